"""A pytest plugin that notes which probes (reach.py) each test runs, and how long it takes."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOUND = "reached.json"


class Probes:
    """Rows of a test that passes, its seconds with its fixtures, and the numbers of its probes, written to `FOUND`."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, list[int]]] = []
        self._reached: set[int] = set()
        self._has_failed = False
        builtins._teola_probe = self._reached.add  # type: ignore[attr-defined]  the probes in the package look here

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._reached.clear()
        self._has_failed = False
        began_s = time.perf_counter()
        result = yield
        if not self._has_failed:
            self._rows.append((item.nodeid, time.perf_counter() - began_s, sorted(self._reached)))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        (Path(session.config.rootpath) / FOUND).write_text(json.dumps(self._rows))
