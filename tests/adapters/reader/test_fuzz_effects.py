"""No reading leaves a trace: random functions over objects that count how they are used.

TEOLA_TEST_PROGRAMS sets how many functions there are, TEOLA_TEST_SEED where they begin.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from teola_plugin.adapters.reader.run import Answer, Given, Run
from tests.adapters.reader.fuzzing import World, Worldly, evaluated, replies
from tests.adapters.reader.random_effects import Snapshot, effects_source

pytestmark = pytest.mark.usefixtures("no_batches")

PROGRAMS = int(os.environ.get("TEOLA_TEST_PROGRAMS", "300"))
FIRST = int(os.environ.get("TEOLA_TEST_SEED", "0"))
PER_FILE = 50
NAME = "effects_module"


def effects_module(seed: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of random functions, while the test runs: vLLM looks through all modules, and their objects are odd."""
    path.write_text(effects_source(seed, PER_FILE))
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, NAME, module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def read_through(program: Any, seed: int) -> str:
    """Read a function without answers, and with more and more. Returns how it ended."""
    given = Given()
    reply = replies(seed)
    models = {name: given.copy(each) for name, each in World(reply).models.items() if name in ("m", "q", "jb")}
    answers: dict[Hashable, Answer] = {}
    asker = Worldly(may_raise=seed % 3 == 0)
    while True:
        found = evaluated(program, asker, answers, given, models)
        found.run.put_back()
        fresh = [ask for ask in found.asks if ask.key not in answers]
        if not fresh:
            break
        answers[fresh[0].key] = Answer(given.copy(reply(fresh[0].request.key, fresh[0].number)))
    if found.barrier is not None:
        return found.barrier.what
    return "stalled" if found.is_stalled else "read"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, PROGRAMS // PER_FILE)))
def test_reading_leaves_no_trace(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = effects_module(seed, tmp_path / f"{NAME}.py", monkeypatch)
    counts: Counter[str] = Counter()
    before = Snapshot(module)
    for number in range(PER_FILE):
        program = getattr(module, f"effect_{number}")
        written = io.StringIO()
        with contextlib.redirect_stdout(written), caplog.at_level(logging.DEBUG):
            counts[read_through(program, seed * 1000 + number)] += 1
        assert not written.getvalue()
        assert not before.changes(), (number, before.changes()[:3])
    assert counts["read"] > 1, counts


def test_traces_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = effects_module(1, tmp_path / f"{NAME}.py", monkeypatch)
    before, load = Snapshot(module), Run.load

    def not_copied(run: Run, value: Any, *, is_given: bool = False) -> Any:
        return value if type(value) in (list, dict) else load(run, value, is_given=is_given)

    monkeypatch.setattr(Run, "load", not_copied)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        for number in range(PER_FILE):
            read_through(getattr(module, f"effect_{number}"), number)
    assert before.changes()
