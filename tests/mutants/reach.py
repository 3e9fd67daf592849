"""Which tests run the function that a fault is in, from one run of a layer's tests with probes in these functions.

Only tests that pass there count. A probe is a call at the beginning of the innermost function around the fault. A fault
outside of any function, or in one that only other processes run, is reached by no test as far as this can tell.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.mutants.faults import Fault
from tests.mutants.probes import FOUND
from tests.mutants.trees import Tree

LIMIT_S = 1800
"""A run of a layer's tests is ended after so long; what was found by then is used."""

MOST_TESTS, MOST_S = 200, 60.0
"""So many tests that reach a fault are run before the layer's, and only as long as they took this together."""

PROBE = 'getattr(__import__("builtins"), "_teola_probe", int)({number})'
"""In processes that have no plugin, it calls `int`."""


def reaching(faults: Sequence[Fault], tests: Sequence[str], tree: Tree, *, is_real: bool) -> dict[str, list[str]]:
    """For the name of each fault, the tests that run its function and pass, the shortest first."""
    with contextlib.ExitStack() as stack:
        for file in {fault.file for fault in faults}:
            text = (tree.path / file).read_text()
            numbers = {number: fault for number, fault in enumerate(faults) if fault.file == file}
            stack.enter_context(tree.changed(file, _with_probes(text, numbers)))
        rows = _passed(tests, tree, is_real=is_real)
    return {
        fault.name: list(_first(sorted((took_s, test) for test, took_s, reached in rows if number in reached)))
        for number, fault in enumerate(faults)
    }


def passing(tests: Sequence[str], tree: Tree) -> list[str]:
    """Which of these tests pass there, from one run of them all."""
    return [test for test, _, _ in _passed(tests, tree, is_real=True)]


def _passed(tests: Sequence[str], tree: Tree, *, is_real: bool) -> list[tuple[str, float, list[int]]]:
    """The tests that pass, with their seconds and the numbers of the probes that they ran."""
    found = tree.path / FOUND
    found.unlink(missing_ok=True)
    tree.run(tests, LIMIT_S, is_real=is_real, is_probed=True)
    return json.loads(found.read_text()) if found.exists() else []


def _first(tests: Iterable[tuple[float, str]]) -> Iterator[str]:
    left_s = MOST_S
    for count, (took_s, test) in enumerate(tests):
        left_s -= took_s
        if count == MOST_TESTS or left_s < 0:
            return
        yield test


def _beginning(fault: Fault, text: str, tree: ast.Module) -> ast.stmt | None:
    """The first statement, behind the docstring, of the innermost function around the fault."""
    begins = text.index(fault.old) + len(fault.old) - len(fault.old.lstrip())
    line = text.count("\n", 0, begins) + 1
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return None
    function = max(around, key=lambda node: node.lineno)
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[has_docstring and len(function.body) > 1]


def _with_probes(text: str, faults: Mapping[int, Fault]) -> str:
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    at: dict[int, list[str]] = {}
    for number, fault in faults.items():
        if (statement := _beginning(fault, text, tree)) is None:
            continue
        decorators = [node.lineno for node in getattr(statement, "decorator_list", ())]
        line = min([statement.lineno, *decorators])
        if lines[line - 1][: statement.col_offset].strip():
            continue  # `def f(): return 1` has no line to put it on
        at.setdefault(line, []).append(" " * statement.col_offset + PROBE.format(number=number) + "\n")
    return "".join("".join(at.get(number, ())) + line for number, line in enumerate(lines, 1))
