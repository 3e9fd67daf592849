"""Random small changes to a source file, made from its syntax tree.

Comparisons are flipped or moved by one case, conditions negated, `and` and `or` exchanged, constants changed, arguments
swapped, values replaced by None, statements dropped. Messages, annotations, log lines and docstrings are left alone.
"""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """Another text for a file, and its difference from the one that is there."""

    file: str
    text: str
    diff: str


def sampled(files: Sequence[str], root: Path, count: int, seed: str) -> list[Change]:
    """At most so many changes to these files, the same ones for the same seed."""
    edits = [(file, edit) for file in files for edit in _edits(ast.parse((root / file).read_text()))]
    chosen = random.Random(seed).sample(edits, min(count, len(edits)))
    return [_change(file, (root / file).read_text(), *edit) for file, edit in chosen]


Edit = tuple[ast.AST, ast.AST]
"""What stands there, and what is to stand there instead."""


def _change(file: str, text: str, old: ast.AST, new: ast.AST) -> Change:
    lines = text.encode().splitlines(keepends=True)  # columns count bytes
    start = sum(map(len, lines[: old.lineno - 1])) + old.col_offset  # type: ignore[attr-defined]
    end = sum(map(len, lines[: old.end_lineno - 1])) + old.end_col_offset  # type: ignore[attr-defined]
    put = ast.unparse(new)
    if isinstance(new, ast.expr):
        put = f"({put})"
    changed = (text.encode()[:start] + put.encode() + text.encode()[end:]).decode()
    ast.parse(changed)
    diff = difflib.unified_diff(text.splitlines(), changed.splitlines(), file, file, n=1, lineterm="")
    return Change(file, changed, "\n".join(list(diff)[2:]))


def _edits(tree: ast.AST) -> list[Edit]:
    return [edit for node in _touchable(tree) for edit in [*((node, new) for new in _instead(node)), *_negated(node)]]


def _negated(node: ast.AST) -> Iterator[Edit]:
    """Conditions that have no operator of their own to be exchanged."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, (ast.Name, ast.Attribute, ast.Call)):
                yield test, ast.UnaryOp(ast.Not(), test)


def _touchable(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _touchable(child)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
    return False


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARISONS[type(op)]:
                yield _with(node, ops=[other()])
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
            yield _with(node, args=[second, first, *rest])
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
