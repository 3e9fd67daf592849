"""What was found for each fault of a layer, kept so that only what may have changed is run again.

tests/mutants/LAYER.json has a line for each fault: a key, and the test or other sign that noticed it, null if none did.
The key is a digest of what the result depends on as far as that is cheap to tell: the change, the code of its file, and
the code of the test that noticed it, or else of all test files that were run. Not in it: comments and docstrings, the
rest of the package, and what tests share (fakes, worlds, files of cases). A result that depends on these is found again
with `--again`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.mutants.faults import Fault, Layer

LIKELY = 8
"""So many tests that noticed other faults of a file are run before all others."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Record:
    """The results of one layer. Each is written as it comes; runs of other layers have files of their own."""

    def __init__(self, layer: Layer, root: Path, folder: Path) -> None:
        self._layer, self._root = layer, root
        self._path = root / folder / f"{layer.name}.json"
        self._rows: dict[str, list[str | None]] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._lock = threading.Lock()

    def noticed(self, fault: Fault) -> bool:
        """Whether a test noticed it the last time."""
        return "::" in (self._rows.get(fault.name, (None, None))[1] or "")

    def likely(self, fault: Fault) -> list[str]:
        """The test that noticed it the last time, or else those that noticed most faults of its file."""
        of_file = [fault] if self._rows.get(fault.name, (None, None))[1] else self._layer.faults
        found = [self._rows[each.name][1] for each in of_file if each.file == fault.file and each.name in self._rows]
        return [by for by, _ in Counter(found).most_common(LIKELY) if by and "::" in by]

    def found(self, fault: Fault) -> str | None:
        """What noticed it, empty if nothing did; None if that is not known of the texts as they are."""
        key, by = self._rows.get(fault.name, (None, None))
        return by or "" if key == self._key(fault, by or "", self._root) else None

    def add(self, fault: Fault, by: str, root: Path) -> None:
        """`root`: the copy of the tree in which it was found, as it is without a fault."""
        with self._lock:
            self._rows[fault.name] = [self._key(fault, by, root), by or None]
            names = sorted({fault.name for fault in self._layer.faults} & {*self._rows})
            rows = [f"{json.dumps(name)}: {json.dumps(self._rows[name])}" for name in names]
            beside = self._path.with_suffix(f".{os.getpid()}")
            beside.write_text("{\n" + ",\n".join(rows) + "\n}\n")
            beside.replace(self._path)

    def _key(self, fault: Fault, by: str, root: Path) -> str:
        tests = [by] if by.startswith("tests/") else fault.tests or self._layer.tests
        texts = [fault.file, fault.old, fault.new, _code((root / fault.file).read_text()), *_sources(tests, root)]
        if not by.startswith("tests/"):
            texts += tests
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _sources(tests: Sequence[str], root: Path) -> list[str]:
    """The code of one test function; of more than one, or of a file, all of it."""
    files = sorted({test.partition("::")[0] for test in tests})
    texts = [path.read_text() if (path := root / file).exists() else "" for file in files]
    if len(tests) > 1 or "::" not in tests[0]:
        return [*map(_code, texts)]
    name = tests[0].rpartition("::")[2].partition("[")[0]
    found = [node for node in ast.walk(ast.parse(texts[0])) if getattr(node, "name", None) == name]
    return [_code(ast.unparse(node)) for node in found]


@lru_cache(maxsize=64)  # the faults of a file stand together, and so do those that one test notices
def _code(text: str) -> str:
    """Return a program without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
