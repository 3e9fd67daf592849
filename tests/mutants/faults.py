"""Lists of planted faults: one file tests/mutants/LAYER.toml for each layer of the package.

files = ["teola_plugin/runtime/scheduler/worker.py"]                # what `--sample` changes at random
tests = ["tests/runtime/scheduler/test_recovery.py"]                      # what has to notice

[[fault]]
name = "stop words are left out of the key"
file = "teola_plugin/runtime/session/slots.py"
old = '''freeze(settings)'''                            # occurs exactly once in the file
new = '''None'''
tests = ["tests/runtime/hosts/test_runtime.py::test_stop_words"]      # optional: instead of the layer's
equivalent = "why no test can notice"                   # optional: shown, neither run nor counted
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """A change to one file; `tests` are its own, instead of those of its layer."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """The faults of one layer, and the tests that have to notice them. `is_real`: also those marked `real`."""

    name: str
    tests: tuple[str, ...]
    faults: tuple[Fault, ...]
    files: tuple[str, ...] = ()
    is_real: bool = True

    @property
    def own_tests(self) -> list[str]:
        """What single faults are run against instead."""
        return list(dict.fromkeys(test for fault in self.faults for test in fault.tests))


def layers_in(folder: Path) -> dict[str, Layer]:
    """All layers that have a list there, by name."""
    return {path.stem: _layer(path) for path in sorted(folder.glob("*.toml"))}


def _layer(path: Path) -> Layer:
    table = tomllib.loads(path.read_text())
    faults = [Fault(**{**fault, "tests": tuple(fault.get("tests", ()))}) for fault in table.pop("fault", [])]
    tests, files = tuple(table.pop("tests")), tuple(table.pop("files", ()))
    is_real = bool(table.pop("real", True))
    if table:
        raise ValueError(f"{path}: unknown {', '.join(table)}")
    if len({fault.name for fault in faults}) < len(faults):
        raise ValueError(f"{path}: two faults have one name")
    return Layer(path.stem, tests, tuple(faults), files, is_real)


def planted(fault: Fault, root: Path) -> str:
    """The text of its file with the fault in it. Raises: ValueError if it cannot be put there any more."""
    path = root / fault.file
    text = path.read_text() if path.exists() else ""
    if (times := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name!r}: `old` occurs {times} times in {fault.file}")
    changed = text.replace(fault.old, fault.new)
    try:
        same = _tree(changed) == _tree(text)
    except SyntaxError as e:
        raise ValueError(f"{fault.name!r}: {fault.file} is no Python any more: {e}") from e
    if same:
        raise ValueError(f"{fault.name!r} changes nothing")
    return changed


@lru_cache(maxsize=4)  # the faults of a file stand together
def _tree(text: str) -> str:
    return ast.dump(ast.parse(text))


def stale_in(layer: Layer, root: Path) -> list[str]:
    """Why some of its faults cannot be planted, one line for each."""
    return [why for fault in layer.faults if (why := _why_stale(fault, root))]


def _why_stale(fault: Fault, root: Path) -> str:
    try:
        planted(fault, root)
    except ValueError as e:
        return str(e)
    return ""
