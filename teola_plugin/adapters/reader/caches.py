"""Functions under `functools.lru_cache` and `functools.cache`.

Cached results are found through the garbage collector, since a call of the wrapper would count a hit. On a miss the
function is read, if the result is immutable.
"""

from __future__ import annotations

import functools
import gc
import types
from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of, type_name

_INFO: Any = vars(functools).get("_CacheInfo")
_KINDS = frozenset(map(id, (str, int, bool, float, bytes, type(None))))
"""Kinds of plain values, by their ids: `in` would ask metaclasses of the user's for `__eq__`."""

_WRAPPERS: tuple[Any, ...] = (functools.lru_cache(lambda: None), functools.lru_cache()(lambda: None))
WRAPPER: type = type(_WRAPPERS[0])


def call_cached(run: Any, held: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call of a cached function. Raises: Barrier, and errors of the function."""
    run.require_known(*args, *kwargs.values())
    if not all(id(type(each)) in _KINDS for each in (*args, *kwargs.values())):
        raise Barrier("it calls a cached function with more than plain values")
    function, mark, results = _inside(held)
    wanted: Any = args
    if kwargs:
        wanted = (*args, mark, *(part for pair in kwargs.items() for part in pair))
    if _is_typed(held):
        wanted = (*wanted, *map(type, (*args, *kwargs.values())))
    elif len(args) == 1 and type(args[0]) in (str, int) and not kwargs:
        wanted = args[0]
    for key, result in results:
        run.tick()
        if key == wanted:
            return run.load(result)
    counts = run.counts.copy()
    made = call(run, run.load(function), args, kwargs)
    if run.counts != counts or not (_never_changes(made) or isinstance_of(made, Opaque)):
        raise Barrier("it calls a cached function that makes more than a component", hint="call it before")
    if type(made) is Opaque and made.is_alone:  # a later reading may find the other object that the run has made
        raise Barrier("it calls a cached function that makes a component", hint="call it before")
    return made


def _never_changes(value: Any) -> bool:
    """Whether the value is immutable: plain, or a tuple (also a named tuple) of plain values."""
    parts = records.fields_of(value) if facts_of(type(value)).kind == "tuple" else None
    held = parts.values() if parts is not None else value if type(value) is tuple else [value]
    return all(map(foreign.is_atom, held))


def _inside(held: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return the function under a cache, the separator of keyword arguments in keys, and the keys with results."""
    parts = gc.get_referents(held)
    at = next((at for at in range(len(parts) - 1, -1, -1) if parts[at] is _INFO), 0)
    if at < 4 or type(parts[at - 4]) is not dict or type(parts[at - 2]) is not object:
        raise Barrier("it calls a cached function")
    cache, function, mark, link = parts[at - 4 : at]
    if type(link) is not type or type_name(link) != "_lru_list_elem":
        raise Barrier("it calls a cached function")
    linked = parts[1 : at - 4]
    found = list(zip(linked[::3], linked[1::3], strict=False)) if linked else list(cache.items())
    if len(found) != len(cache) or not all(_is_plain(key, mark) for key, _ in found):
        raise Barrier("it calls a function that caches by more than plain values")
    return function, mark, found


def _is_plain(key: Any, mark: Any) -> bool:
    """Whether comparing a key runs no user code."""
    if type(key) is tuple:
        return all(each is mark or id(type(each)) in _KINDS or id(each) in _KINDS for each in key)
    return id(type(key)) in _KINDS


_PARAMETERS = [vars(each)["cache_parameters"].__code__ for each in _WRAPPERS]


def _is_typed(held: Any) -> bool:
    """Whether the cache distinguishes 1 from 1.0. Raises: Barrier if unknown."""
    told = vars(held).get("cache_parameters")
    if type(told) is not types.FunctionType or not foreign.is_one_of(told.__code__, _PARAMETERS):
        raise Barrier("it calls a cached function")
    return bool(told()["typed"])
