"""The locks of requirements/: whatever an install downloads is what was there when the lock was made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
LOCKS = sorted(path for path in REQUIREMENTS.glob("*.txt") if "==" in path.read_text())

OF_THE_MACHINE = {"torch"}
"""Which build of it is taken depends on the machine: see `lock` in the Makefile."""


def pins(lock: str) -> dict[str, list[str]]:
    """The hashes of each pinned package."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lock.splitlines():
        if pin := re.match(r"([\w.\[\]-]+)==\S+", line):
            name = pin[1]
            found[name] = []
        found.get(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
    return found


def test_there_are_locks() -> None:
    assert [path.stem for path in LOCKS] == ["conformance", "cpu", "llamaindex-0.12", "llamaindex-0.14"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_is_locked_with_its_hashes(path: Path) -> None:
    found = pins(path.read_text())
    assert found
    assert {name for name, hashes in found.items() if not hashes} <= OF_THE_MACHINE


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_no_host(path: Path) -> None:
    assert "://" not in path.read_text()
