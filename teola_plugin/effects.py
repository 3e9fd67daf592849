"""What the user says about the effects of a function: `pure`, `reads("kb")`, `writes("kb")`.

    @pure                   no effects: it may run early, and more than once
    @reads("kb")            no effects, but its answer depends on "kb": it may run early, not before a write to "kb"
    @writes("kb")           changes "kb" and nothing else: it runs exactly once, in the framework's own run

A name means a resource of the user's; the name of a vector collection means that collection, and "outside" what is
beyond this process: hosted models wait for a function that writes it. `pure` may also stand on a class: of LangChain
models whose calls leave nothing behind in them, or of objects that are made, or called, without effects.

The decorators only leave a mark; the function stays the same object.

What cannot be decorated may be vouched for in one pipeline, `optimize(pipeline, assume_pure=[f])`: within `assuming` it
counts as declared `@pure`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import BuiltinMethodType, MethodType
from typing import Any, TypeVar

T = TypeVar("T")

MARK = "__teola_effects__"


@dataclass(frozen=True, slots=True)
class Effects:
    """What running a function does. `why` says why it is not pure, or who says that it is.

    A function that is neither pure nor writes a named resource may do anything.
    """

    pure: bool
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    why: str = ""


def pure(function: T) -> T:
    """The function itself, declared free of effects."""
    return _mark(function, Effects(pure=True, why="declared"))


def reads(*resources: str) -> Callable[[T], T]:
    """A decorator: the function has no effects, but its value depends on these resources.

    Raises: TypeError without a name, as for `@reads` alone.
    """
    _require_names("reads", resources)
    return lambda function: _mark(function, Effects(pure=True, reads=resources, why="declared"))


def writes(*resources: str) -> Callable[[T], T]:
    """A decorator: the function changes these resources and nothing else.

    Raises: TypeError without a name, as for `@writes` alone.
    """
    _require_names("writes", resources)
    return lambda function: _mark(function, Effects(pure=False, writes=resources, why="declared to write"))


def _require_names(decorator: str, resources: tuple[object, ...]) -> None:
    if not resources or not all(isinstance(name, str) for name in resources):
        raise TypeError(f'{decorator} wants the names of resources, such as @{decorator}("kb")')


def declared_effects(function: Any) -> Effects | None:
    """What the user declared about this function, method or object (or its class), or assumes of it here.

    A decorator made with `functools.wraps` carries the mark of what it wraps, but may have effects of its own: there
    only "it writes" counts. A mark stands whatever is assumed.
    """
    found = _marked(function)
    if isinstance(found, Effects):
        is_carried = _marked(inspect.getattr_static(function, "__wrapped__", None)) is found
        if not (is_carried and found.pure):
            return found
    return ASSUMED if _is_assumed(function) else None


def _marked(function: Any) -> Any:
    """The mark of a function, method, class or object; objects are not asked for it, for they may answer by code."""
    return inspect.getattr_static(function.__func__ if type(function) is MethodType else function, MARK, None)


# --- assumed in one pipeline -----------------------------------------------------------------------------------------

ASSUMED = Effects(pure=True, why="assumed pure")


@dataclass(frozen=True, slots=True)
class Assumed:
    """Functions and classes that the user vouches for; `keys` tell whether a function is one of them."""

    objects: tuple[Any, ...] = field(default=(), compare=False)
    keys: frozenset[Hashable] = frozenset()


NOTHING = Assumed()

_assumed: ContextVar[Assumed] = ContextVar("teola_assumed", default=NOTHING)


def assumed(objects: Iterable[Any]) -> Assumed:
    """These functions and classes. Raises: TypeError for anything that is neither."""
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
    """What is judged inside is judged as if these were declared `@pure`."""
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
    """Equal for the same object; a bound method is made anew each time that one asks for it."""
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
