"""Declarations of the effects of a function by the user: `pure`, `reads("kb")`, `writes("kb")`.

    @pure                   no effects: may run early, and more than once
    @reads("kb")            no effects, but reads "kb": may run early, not before a write to "kb"
    @writes("kb")           changes only "kb": runs exactly once, in the framework's own run

A name means a resource of the user; the name of a vector collection means the collection, and "outside" means
everything beyond the process: hosted models wait for a function which writes "outside". `pure` may also mark a class:
of LangChain models whose calls change no state of the model, or of objects which are made, or called, without effects.

The decorators only mark the function and return the same object.

Code which cannot be decorated may be assumed pure in one pipeline, `optimize(pipeline, assume_pure=[f])`: within
`assuming`, the function counts as declared `@pure`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import BuiltinMethodType, MethodType
from typing import Any, TypeVar

T = TypeVar("T")

MARK = "__teola_effects__"

_MRO: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__
_NAMES: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
"""The classes in which attributes of a class are looked up, and the own names of a class: without its metaclass."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of running a function. `why`: the reason why the function is not pure, or who declares the purity.

    A function which is neither pure nor writes a named resource may do anything.
    """

    pure: bool
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    why: str = ""


def pure(function: T) -> T:
    """Declare the function free of effects, and return the same function."""
    return _mark(function, Effects(pure=True, why="declared"))


def reads(*resources: str) -> Callable[[T], T]:
    """Return a decorator which declares: the function has no effects, but the value depends on the named resources.

    Raises: TypeError without a name, as for `@reads` alone.
    """
    _require_names("reads", resources)
    return lambda function: _mark(function, Effects(pure=True, reads=resources, why="declared"))


def writes(*resources: str) -> Callable[[T], T]:
    """Return a decorator which declares: the function changes the named resources and nothing else.

    Raises: TypeError without a name, as for `@writes` alone.
    """
    _require_names("writes", resources)
    return lambda function: _mark(function, Effects(pure=False, writes=resources, why="declared to write"))


def _require_names(decorator: str, resources: tuple[object, ...]) -> None:
    if not resources or not all(isinstance(name, str) for name in resources):
        raise TypeError(f'{decorator} wants the names of resources, such as @{decorator}("kb")')


def declared_effects(function: Any) -> Effects | None:
    """Return the declared or assumed effects of a function, a method, an object or the object's class.

    A decorator made with `functools.wraps` carries the mark of the wrapped function but may have other effects: on a
    wrapper only `writes` counts. A declaration takes precedence over an assumption.
    """
    found = _marked(function)
    if isinstance(found, Effects):
        is_carried = _marked(inspect.getattr_static(function, "__wrapped__", None)) is found
        if not (is_carried and found.pure):
            return found
    return ASSUMED if _is_assumed(function) else None


def _marked(function: Any) -> Any:
    """Return the mark of a function, method, class or object, without running user code for attribute access."""
    if isinstance(function, type):
        return next((names[MARK] for cls in _MRO(function) if MARK in (names := _NAMES(cls))), None)
    return inspect.getattr_static(function.__func__ if type(function) is MethodType else function, MARK, None)


# --- assumed in one pipeline -----------------------------------------------------------------------------------------

ASSUMED = Effects(pure=True, why="assumed pure")


@dataclass(frozen=True, slots=True)
class Assumed:
    """Functions and classes which the user assumes pure; `keys` identify the functions."""

    objects: tuple[Any, ...] = field(default=(), compare=False)
    keys: frozenset[Hashable] = frozenset()


NOTHING = Assumed()

_assumed: ContextVar[Assumed] = ContextVar("teola_assumed", default=NOTHING)


def assumed(objects: Iterable[Any]) -> Assumed:
    """Return the assumption for the functions and classes. Raises: TypeError for any other object."""
    if callable(objects) or isinstance(objects, str) or not isinstance(objects, Iterable):
        raise TypeError(f"assume_pure wants a list of functions and classes, such as [f, g], not {objects!r:.80}")
    found = tuple(objects)
    for each in found:
        if not callable(each):
            raise TypeError(
                f"assume_pure wants functions and classes, not {each!r:.80}: give the function that a runnable holds, "
                "or the class of a model"
            )
    return Assumed(found, frozenset(map(_key, found)))


@contextmanager
def assuming(assumed: Assumed) -> Iterator[None]:
    """Treat the assumed functions and classes as declared `@pure` inside the block."""
    token = _assumed.set(assumed)
    try:
        yield
    finally:
        _assumed.reset(token)


def _is_assumed(function: Any) -> bool:
    keys = _assumed.get().keys
    if not keys:
        return False
    if not isinstance(function, type):
        if _key(function) in keys or id(getattr(function, "__func__", None)) in keys:
            return True
        function = type(function)
    for cls in function.__mro__:
        if id(cls) in keys:
            return True
        if MARK in vars(cls):  # it speaks for itself
            return False
    return False


def _key(function: Any) -> Hashable:
    """Return a key equal for the same function; each access to a bound method makes a new object."""
    if isinstance(function, MethodType):
        return (id(function.__self__), id(function.__func__))
    return function if isinstance(function, BuiltinMethodType) else id(function)


# --- marks -----------------------------------------------------------------------------------------------------------


def _mark(function: T, effects: Effects) -> T:
    earlier = vars(function).get(MARK) if hasattr(function, "__dict__") else None
    if isinstance(earlier, Effects):
        effects = replace(
            effects,
            pure=effects.pure and earlier.pure,
            reads=tuple(dict.fromkeys(earlier.reads + effects.reads)),
            writes=tuple(dict.fromkeys(earlier.writes + effects.writes)),
            why=effects.why if effects.writes else earlier.why,
        )
    try:
        setattr(function, MARK, effects)
    except (AttributeError, TypeError):  # a bound method, or something written in C
        raise TypeError(f"{function!r} cannot carry a mark: wrap it in a function of yours and declare that") from None
    return function
