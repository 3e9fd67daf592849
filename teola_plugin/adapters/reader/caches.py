"""Functions under `functools.lru_cache` and `functools.cache`.

What the cache has is looked up without asking the wrapper, which would count a hit: the garbage collector tells what it
holds. What it has not, the function is read for, if the result is nothing that anybody can change.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of, type_name

_INFO: Any = vars(functools).get("_CacheInfo")
_KINDS = (str, int, bool, float, bytes, type(None))
WRAPPER: type = type(functools.lru_cache(lambda: None))


def call_cached(run: Any, held: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call of a cached function comes to. Raises: Barrier, and what the function raises."""
    run.require_known(*args, *kwargs.values())
    if not all(type(each) in _KINDS for each in (*args, *kwargs.values())):
        raise Barrier("it calls a cached function with more than plain values")
    function, mark, results = _inside(held)
    wanted: Any = args
    if kwargs:
        wanted = (*args, mark, *(part for pair in kwargs.items() for part in pair))
    elif len(args) == 1 and type(args[0]) in (str, int):
        wanted = args[0]
    for key, result in results:
        run.tick()
        if key == wanted:
            return run.load(result)
    counts = run.counts.copy()
    made = call(run, run.load(function), args, kwargs)
    if run.counts != counts or not (foreign.is_atom(made) or isinstance_of(made, Opaque)):
        raise Barrier("it calls a cached function that makes more than a component", hint="call it before")
    return made


def _inside(held: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The function under a cache, what marks keyword arguments in its keys, and keys with their results."""
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
    """Whether comparing a key runs no code of the user's."""
    if type(key) is tuple:
        return all(each is mark or type(each) in _KINDS for each in key)
    return type(key) in _KINDS
