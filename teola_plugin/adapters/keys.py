"""The keys of its dict that a user's function reads: an exact answer, or None for "perhaps all of them".

The parameter must not escape. Each use has to be one of

    p["key"]      p.get("key")      p.get("key", default)      "key" in p

or `helper(p)`, where the helper is a function of the same kind. Any other use (`{**p}`, `p[k]`, `q = p`, a rebinding,
`locals()`) makes the answer None. So a function whose keys are known behaves the same on a dict with only these keys.
A key may also be the name of a text from outside the function (`p[document_variable_name]`).
"""

from __future__ import annotations

import ast
import operator
import types
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.source import Source, outer_value, source_of

_SEES_ALL = frozenset({"locals", "vars", "dir", "eval", "exec", "globals", "super"})


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """The keys read by `p["key"]`, and keys that may be absent; `is_getter`: the function is `lambda p: p["key"]`."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    is_getter: bool = False


def read_keys(function: Any) -> ReadKeys | None:
    """Return the keys that a function reads of its first argument. None: perhaps all. Never raises."""
    if isinstance(function, operator.itemgetter):
        keys = function.__reduce__()[1]
        return ReadKeys(tuple(keys), (), len(keys) == 1) if all(isinstance(k, str) for k in keys) else None
    return _read_keys(function, ())


def _read_keys(function: Any, callers: tuple[Any, ...]) -> ReadKeys | None:
    source = source_of(function)
    if source is None or source.parameter is None or function in callers:
        return None
    return _keys_of(source, source.parameter, (*callers, function))


def _keys_of(source: Source, parameter: str, callers: tuple[Any, ...]) -> ReadKeys | None:
    node = source.node
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    inner = [n for part in body for n in ast.walk(part)]
    required: dict[str, None] = {}
    optional: dict[str, None] = {}
    allowed: set[int] = set()
    for use in inner:
        match use:
            case ast.Subscript(value=ast.Name() as p, slice=key, ctx=ast.Load()):
                found = required
            case ast.Call(func=ast.Attribute(value=ast.Name() as p, attr="get"), args=[key], keywords=[]):
                found = optional
            case ast.Call(func=ast.Attribute(value=ast.Name() as p, attr="get"), args=[key, _], keywords=[]):
                found = optional
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name() as p]):
                found = optional
            case ast.Call(func=ast.Name(id=helper), args=[ast.Name(id=handed) as p], keywords=[]) if (
                handed == parameter and isinstance(called := outer_value(source.function, helper), types.FunctionType)
            ):
                keys = None if helper in source.function.__code__.co_varnames else _read_keys(called, callers)
                if keys is not None:
                    allowed.add(id(p))
                    required |= dict.fromkeys(keys.required)
                    optional |= dict.fromkeys(keys.optional)
                continue
            case _:
                continue
        text = text_of(key, source)
        if p.id == parameter and text is not None:
            allowed.add(id(p))
            found[text] = None
    if any(_escapes(n, parameter, allowed) for n in inner):
        return None
    match node:
        case ast.Lambda(body=ast.Subscript(value=ast.Name(id=name))):
            is_getter = name == parameter  # not a table of the user's that the parameter indexes
        case _:
            is_getter = False
    return ReadKeys(tuple(required), tuple(k for k in optional if k not in required), is_getter)


def text_of(key: ast.expr, source: Source) -> str | None:
    """Return the text of a key: a constant, or the value of a name from outside the function; else None."""
    match key:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name not in source.function.__code__.co_varnames:
            text = outer_value(source.function, name)
            return text if isinstance(text, str) else None
        case _:
            return None


def _escapes(node: ast.AST, parameter: str, allowed: set[int]) -> bool:
    match node:
        case ast.Name(id=name) if name == parameter:
            return id(node) not in allowed
        case ast.Name(id=name):
            return name in _SEES_ALL
        case ast.arg(arg=name) | ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name == parameter
        case ast.MatchMapping(rest=name):
            return name == parameter
        case ast.alias(name=name, asname=asname):
            return parameter in (name, asname)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name == parameter
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return parameter in names
        case _:
            return False
