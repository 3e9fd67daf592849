"""Handlers of the user's that may change what is asked, or refuse it: nothing is asked before these have heard of it.

A handler that only notes what it hears (counts, logs, writes to a file) does not hold up anything. Which it is, its
source tells: it stores to what it was handed, or raises. What cannot be read may do both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from teola_plugin.adapters.reader.foreign import is_of_library
from teola_plugin.adapters.reader.reach import CHANGING
from teola_plugin.adapters.source import node_of

_MAKES = (ast.Dict, ast.List, ast.Set, ast.Call, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.JoinedStr)


def may_interfere(handlers: Iterable[Any], hears: Iterable[str], *, may_raise: bool) -> bool:
    """Whether one of these changes what it hears, or raises (where that `may_raise` to the caller).

    `hears`: how the names of its methods begin that are called with what is asked.
    """
    begins = tuple(hears)
    return any(_class_interferes(type(each), begins, may_raise) for each in handlers)


_known: WeakKeyDictionary[type, dict[Any, bool]] = WeakKeyDictionary()


def _class_interferes(cls: type, begins: tuple[str, ...], may_raise: bool) -> bool:
    known = _known.setdefault(cls, {})
    if (begins, may_raise) not in known:
        known[begins, may_raise] = any(_interferes(function, may_raise) for function in _functions(cls, begins))
    return known[begins, may_raise]


def _functions(cls: type, begins: tuple[str, ...]) -> Iterator[FunctionType]:
    """The user's functions among the methods of a handler."""
    for base in cls.__mro__:
        for name, member in vars(base).items():
            function = getattr(member, "__func__", member)
            if name.startswith(begins) and type(function) is FunctionType and _is_users(function):
                yield function


def _is_users(function: FunctionType) -> bool:
    is_installed = any(part in function.__code__.co_filename for part in ("site-packages", "dist-packages"))
    is_ours = function.__module__.startswith("teola_plugin.")
    return not (is_installed or is_ours or is_of_library(function))


def _interferes(function: FunctionType, may_raise: bool) -> bool:
    node = node_of(function)
    if node is None:
        return True
    made = {
        target.id
        for each in ast.walk(node) if isinstance(each, ast.Assign) and isinstance(each.value, _MAKES)
        for target in each.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for each in ast.walk(node):
        if may_raise and isinstance(each, ast.Raise | ast.Assert):
            return True
        if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store | ast.Del):
            changed: ast.expr = each.value
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in CHANGING:
            changed = each.func.value
        else:
            continue
        is_made_here = isinstance(changed, ast.Name) and changed.id in made
        if not is_made_here and _root(changed) not in ("self", "cls"):
            return True
    return False


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
