"""User handlers that may change or refuse a request: no request is made before the handlers have heard of the request.

A handler that only notes events (counts, logs, writes to a file) delays no request. The source of the handler, and of
the functions and methods named there, decides: a handler interferes by storing to its arguments or by raising.
Unreadable source counts as both.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import in_mro, is_kind_of, is_of_library, is_standard
from teola_plugin.adapters.reader.notes import with_loaded
from teola_plugin.adapters.reader.reach import CHANGING
from teola_plugin.adapters.reader.values import is_installed_file
from teola_plugin.adapters.source import FunctionNode, node_of

_MAKES = (ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.JoinedStr)
_COPIES = frozenset({"dict", "list", "set", "copy", "deepcopy"})
_LOOKUPS = frozenset({"get", "setdefault", "pop", "values", "items"})
_SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})


def may_interfere(handlers: Iterable[Any], hears: Iterable[str], *, may_raise: bool) -> bool:
    """Whether a handler changes its arguments, or raises (where `may_raise`: its errors reach the caller).

    `hears`: prefixes of the handler methods called with a request.
    """
    begins = tuple(hears)
    return any(_class_interferes(type(each), begins, may_raise) for each in handlers)


_known: WeakKeyDictionary[type, dict[Any, bool]] = WeakKeyDictionary()


def _class_interferes(cls: type, begins: tuple[str, ...], may_raise: bool) -> bool:
    known = _known.setdefault(cls, {})
    if (begins, may_raise) not in known:
        called = _called(cls, begins)
        known[begins, may_raise] = any(_changes(each) or _raises(each, may_raise) for each in called)
    return known[begins, may_raise]


def any_raises(hearers: Iterable[Any]) -> bool:
    """Whether a handler (or handling function) of the clients' logs raises to the client."""
    return any(_raises(each, True) if type(each) is FunctionType else _class_raises(type(each)) for each in hearers)


def _class_raises(cls: type) -> bool:
    known = _known.setdefault(cls, {})
    if None not in known:
        known[None] = any(
            _raises(each, may_raise=True) for each in _called(cls, ("emit", "handle", "filter", "format"))
        )
    return known[None]


def _called(cls: type, begins: tuple[str, ...]) -> list[FunctionType]:
    """Return the user's functions run by a call of a method with one of the prefixes."""
    heard = list(_functions(cls, begins))
    return [*heard, *_called_by(cls, heard)]


def _functions(cls: type, begins: tuple[str, ...]) -> Iterator[FunctionType]:
    """Yield the user's functions among the methods of a handler."""
    for base in cls.__mro__:
        for name, member in vars(base).items():
            function = getattr(member, "__func__", member)
            if name.startswith(begins) and type(function) is FunctionType and _is_users(function):
                yield function


def _is_users(function: FunctionType) -> bool:
    is_installed = is_installed_file(function.__code__.co_filename)
    is_ours = function.__module__.startswith("teola_plugin.")
    return not (is_installed or is_ours or is_standard(function) or is_of_library(function))


def _called_by(cls: type, functions: list[FunctionType]) -> list[FunctionType]:
    """Return the user's functions called from `functions`, as methods of the class or by name."""
    todo, found = list(functions), list[FunctionType]()
    while todo:
        function = todo.pop()
        names = [name for code in _codes(function.__code__) for name in code.co_names]
        for each in [*(in_mro(cls, name) for name in names), *(function.__globals__.get(name) for name in names)]:
            inner = getattr(each, "__func__", each)
            if type(inner) is FunctionType and _is_users(inner) and inner not in (*functions, *found):
                found.append(inner)
                todo.append(inner)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if type(const) is CodeType:
            yield from _codes(const)


_ENDING = frozenset({"exit", "quit", "_exit", "abort", "kill", "raise_signal", "interrupt_main", "cancel", "alarm"})
"""Names of functions that end the caller's process or task."""


def _raises(function: FunctionType, may_raise: bool) -> bool:
    """Whether a function raises: any error if `may_raise`; else an error outside `Exception`, never caught."""
    node = node_of(function)
    if node is None:
        return True
    for each in ast.walk(node):
        if isinstance(each, ast.Raise | ast.Assert) and (may_raise or not _is_of_exceptions(each, function)):
            return True
        if isinstance(each, ast.Call) and _name_of(each.func) in _ENDING:
            return True
    return False


def _is_of_exceptions(node: ast.Raise | ast.Assert, function: FunctionType) -> bool:
    raised = node.exc if isinstance(node, ast.Raise) else None
    if raised is None:  # an `assert`, or a bare re-raise
        return True
    made = raised.func if isinstance(raised, ast.Call) else raised
    found: Any = None
    if isinstance(made, ast.Name):
        found = function.__globals__.get(made.id, getattr(builtins, made.id, None))
    elif isinstance(made, ast.Attribute) and isinstance(made.value, ast.Name):
        found = getattr(function.__globals__.get(made.value.id), made.attr, None)
    return isinstance(found, type) and issubclass(found, Exception)


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def noted_by(handlers: Iterable[Any]) -> Iterator[Hashable]:
    """Yield the ids of objects that handlers may change at any request: objects held or named by the handlers.

    Stored variables appear as the id of a cell, or as the id of the globals with the name.
    """
    todo: list[Any] = []
    sets = set[str]()
    for each in handlers:
        held = list(vars(each).values()) if hasattr(each, "__dict__") else []
        own = _own_functions(type(each))
        given = [value for value in held if type(value) is FunctionType and _is_users(value)]
        todo += held if own else [value for value in held if type(value) in _HOLDING]
        yield from map(id, (each, *(type(each).__mro__[:-1] if own else ())))
        for function in (*own, *given, *_called_by(type(each), given)):
            names, stored, cells = _names_in(function.__code__)
            sets |= _set_by(function.__code__)
            todo += [function.__globals__[name] for name in names if name in function.__globals__]
            held_in = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
            todo += [cell.cell_contents for cell in held_in.values() if not _is_empty(cell)]
            yield from ((id(function.__globals__), name) for name in stored)
            yield from (id(held_in[name]) for name in cells if name in held_in)
    seen: set[int] = set()
    while todo and len(seen) < MOST:
        value = todo.pop()
        kind = type(value)
        if id(value) in seen or kind is logging.Logger:
            continue
        if kind not in _HOLDING and facts_of(kind).kind not in _WITH_STATE:
            if facts_of(kind).kind == "component" and not sets.isdisjoint(("setattr", *vars(value))):
                yield id(value)  # a model, whose settings a handler sets
            continue
        seen.add(id(value))
        yield id(value)
        todo += dict.values(value) if is_kind_of(value, dict) else () if kind in _HOLDING else vars(value).values()


_own: WeakKeyDictionary[type, tuple[FunctionType, ...]] = WeakKeyDictionary()


def _own_functions(cls: type) -> tuple[FunctionType, ...]:
    """Return the user's functions among the methods of a handler, and the functions called from there."""
    if cls not in _own:
        methods = list(_functions(cls, ("",)))
        _own[cls] = (*methods, *_called_by(cls, methods))
    return _own[cls]


@functools.lru_cache(maxsize=1_000)
def _names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the names in a function, the stored globals, and the stored cells."""
    codes = list(_codes(code))
    stores = [(each.opname, each.argval) for inner in codes for each in dis.get_instructions(inner)]
    return (
        frozenset(name for inner in codes for name in inner.co_names),
        frozenset(name for opname, name in stores if opname in ("STORE_GLOBAL", "DELETE_GLOBAL")),
        frozenset(name for opname, name in stores if opname in ("STORE_DEREF", "DELETE_DEREF")),
    )


@functools.lru_cache(maxsize=1_000)
def _set_by(code: CodeType) -> frozenset[str]:
    """Return the attributes that a method sets of objects other than its own, and "setattr" if it calls that."""
    found = set[str]()
    for inner in _codes(code):
        for each, before in with_loaded(inner):
            if each.opname in ("STORE_ATTR", "DELETE_ATTR") and before not in inner.co_varnames[:1]:
                found.add(each.argval)
        found |= _SETTERS.intersection(inner.co_names) and {"setattr"}
    return frozenset(found)


MOST = 1_000
_WITH_STATE = ("object", "record")
_HOLDING = (dict, list, set, deque, Counter, OrderedDict, defaultdict)


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def _changes(function: FunctionType) -> bool:
    """Whether a function changes objects in place, beside its own variables and the handler's values."""
    node = node_of(function)
    if node is None:
        return True
    made = _made_in(node)
    for each in ast.walk(node):
        changed = _changed_by(each)
        is_made_here = isinstance(changed, ast.Name) and changed.id in made
        if changed and not is_made_here and _root(changed) not in ("self", "cls"):
            return True
    return False


def _made_in(node: FunctionNode) -> set[str]:
    """Return the variables with only new values of the function, or values of the handler."""
    makes, stores = set[int](), list[ast.Name]()
    for each in ast.walk(node):
        match each:
            case ast.Assign(targets=targets, value=value) if _is_made(value):
                makes |= set(map(id, targets))
            case ast.NamedExpr(target=target, value=value) | ast.For(target=target, iter=value) if _is_made(value):
                makes.add(id(target))
            case ast.Name(ctx=ast.Store()):
                stores.append(each)
    given = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    return {each.id for each in stores} - {each.id for each in stores if id(each) not in makes} - given


def _is_made(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and _name_of(value.func) in _COPIES:
        return True
    return isinstance(value, _MAKES) or _root(value, through=_LOOKUPS) in ("self", "cls")


def _changed_by(node: ast.AST) -> ast.expr | None:
    """Return the expression that a node changes in place."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del(), value=changed):
            return changed
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed):
            return changed
        case ast.Call(func=ast.Attribute(attr=attr, value=changed)) if attr in CHANGING:
            return changed
        case ast.Call(func=called, args=[changed, *_]) if _name_of(called) in _SETTERS:
            return changed
        case _:
            return None


def _root(node: ast.expr, through: Collection[str] | None = None) -> str:
    """Return the first name of an expression; "" for calls of methods outside of `through`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if not isinstance(node, ast.Call):
            node = node.value
        elif through is None or (_name_of(node.func) in through and all(map(_is_made, node.args[1:]))):
            node = node.func
        else:
            return ""
    return node.id if isinstance(node, ast.Name) else ""
