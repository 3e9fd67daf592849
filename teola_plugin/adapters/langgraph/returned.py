"""Which keys of the state a node's function writes: those of the dicts that its `return` statements spell out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.keys import text_of
from teola_plugin.adapters.source import Source, source_of


@dataclass(frozen=True, slots=True)
class Written:
    """The keys that every return writes, and those that only some do."""

    always: frozenset[str]
    sometimes: frozenset[str] = frozenset()


def returned_keys(function: Any) -> Written | None:
    """The keys of what a function returns, or None if that is not always a dict with constant keys. Never raises."""
    source = source_of(function)
    if source is None:
        return None
    node = source.node
    if isinstance(node, ast.Lambda):
        returns: list[ast.expr | None] = [node.body]
    else:
        returns = [*_returns(node.body), *([] if _always_ends(node.body) else [None])]
    found = [_keys(value, source) for value in returns]
    known = [keys for keys in found if keys is not None]
    if not known or len(known) < len(found):
        return None
    always = frozenset.intersection(*known)
    return Written(always, frozenset.union(*known) - always)


def _returns(body: list[ast.stmt]) -> Iterator[ast.expr | None]:
    """What is returned by the function itself, not by those inside it."""
    for statement in body:
        match statement:
            case ast.Return(value=value):
                yield value
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                for name in ("body", "orelse", "finalbody"):
                    yield from _returns(getattr(statement, name, []))
                for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                    yield from _returns(part.body)


def _always_ends(body: list[ast.stmt]) -> bool:
    """It cannot fall off the end, which would return None."""
    match body[-1]:
        case ast.Return() | ast.Raise():
            return True
        case ast.If(body=then, orelse=[_, *_] as otherwise):
            return _always_ends(then) and _always_ends(otherwise)
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            return _always_ends(inner)
        case ast.Try(body=inner, handlers=handlers, orelse=[]):
            return _always_ends(inner) and all(_always_ends(h.body) for h in handlers)
        case _:
            return False


def _keys(value: ast.expr | None, source: Source) -> frozenset[str] | None:
    match value:
        case None | ast.Constant(value=None):
            return frozenset()
        case ast.Dict(keys=keys):
            texts = [text_of(key, source) if key else None for key in keys]
            known = frozenset(text for text in texts if text is not None)
            return known if None not in texts else None
        case _:
            return None
