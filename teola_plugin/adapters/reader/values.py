"""The values that the reader computes with.

    plain values       exact built-in types, and objects of classes that only hold data; always the reader's own copies
    `Unknown`          what is not known yet, such as the reply of a model that has been asked, and what depends on it
    `Opaque`           an object of somebody else's (a model, a module, a function, a class), which is carried, compared
                       by `is` and given to handlers that know it; nothing else is ever done with it

`Unknown` and `Opaque` may be inside of plain containers. Operations written in C meet them only by their special
methods, and each of these raises: `Undecided` or `Barrier`, which are no `Exception`, so that no code takes them for an
error of the program that is read.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn


class Barrier(BaseException):
    """The reader does not go on: `what` is not read, `where` it stands (`file.py:line`), `hint` what to write."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = ""
        self._hint = hint

    @property
    def hint(self) -> str:
        """What was said of the construct; of code of others, which nobody rewrites, what may be declared."""
        is_of_others = is_installed_file(self.where) or self.where.startswith(_STDLIB)
        return self._hint or (DECLARE_CALLER if is_of_others else "")


DECLARE_CALLER = "if it only reads, put the call into a function that says so: @teola_plugin.reads(...)"

_STDLIB = sysconfig.get_paths()["stdlib"]


def is_installed_file(name: str) -> bool:
    """Whether a file, by its name, is one of a package that was installed."""
    return any(part in name for part in ("site-packages", "dist-packages"))


class Undecided(BaseException):
    """An operation needs a value that is not known yet."""


class Stalled(BaseException):
    """The evaluation cannot go on: what comes next depends on what is not known yet."""


GENERAL: Hashable = "general"
"""The source of what may raise for any reason; see `Unknown.sources`."""

ANYWHERE: frozenset[Hashable] = frozenset(["anywhere"])
"""The sources of what may come from anywhere, as part of others."""

TIMED: frozenset[Hashable] = frozenset(["timed"])
"""The sources of what may take too long."""

NO_SOURCES: frozenset[Hashable] = frozenset()

_SPECIAL = """
    eq ne lt le gt ge hash bool len iter next getitem setitem delitem contains add radd sub rsub mul rmul truediv
    rtruediv floordiv rfloordiv mod rmod pow rpow and rand or ror xor rxor lshift rlshift rshift rrshift iadd isub
    imul itruediv ifloordiv imod ipow iand ior ixor neg pos invert abs int float index complex str repr format round
    trunc floor ceil divmod rdivmod reversed enter exit aenter aexit await aiter anext matmul rmatmul imatmul call
    bytes copy deepcopy reduce reduce_ex getstate fspath missing length_hint instancecheck subclasscheck
"""


def _raising(cls: type, refuse: Callable[[Any, str], NoReturn]) -> None:
    for name in _SPECIAL.split():

        def special(self: Any, *args: Any, _name: str = name, **kwargs: Any) -> NoReturn:
            refuse(self, _name)

        setattr(cls, f"__{name}__", special)


class Unknown:
    """A value that is not known yet. `holds`: what it will be, as far as that is certain.

    `holds` is "any", "text", "texts" (a list of texts), "bool", "number", "message" (an AI message of a model), or a
    class whose object it will be. `sources`: the places that it comes from (components that were asked); whether an
    operation on it raises depends on them alone.
    """

    __slots__ = ("holds", "sources")

    def __init__(self, holds: str | type = "any", sources: frozenset[Hashable] = NO_SOURCES) -> None:
        self.holds = holds
        self.sources = sources


class Opaque:
    """An object of somebody else's. `is_own`: the reader made it, by code that is known to leave nothing behind."""

    __slots__ = ("held", "is_own")

    def __init__(self, held: Any, *, is_own: bool = False) -> None:
        self.held = held
        self.is_own = is_own


def _unknown(self: Any, name: str) -> NoReturn:
    raise Undecided(name)


def _opaque(self: Any, name: str) -> NoReturn:
    raise Barrier(f"it uses {shown(self)} by __{name}__")


_raising(Unknown, _unknown)
_raising(Opaque, _opaque)

Arguments = tuple[Any, ...]
Handler = Callable[[Any, Arguments, dict[str, Any]], Any]
"""What a call comes to, given the run, positional and keyword arguments."""


class Callee(Opaque):
    """Something of the reader's own that can be called: `handler(run, args, kwargs)`."""

    __slots__ = ("handler", "name")

    def __init__(self, handler: Handler, name: str) -> None:
        self.held = self
        self.is_own = True
        self.handler = handler
        self.name = name

    def is_plain(self, frames: Sequence[Any]) -> bool:
        """Whether it holds nothing that changes, besides the variables of these frames."""
        return False


class Stale:
    """An object of which nothing is known; see `STALE`."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # programs that look through `gc.get_objects()` ask each object for it
            return Stale
        raise AttributeError(name)

    def _refuse(self, *args: Any) -> Any:
        raise TypeError

    __bool__ = __call__ = __eq__ = __hash__ = _refuse


STALE = Opaque(Stale())
"""Stands for what is not read, and not copied: it may have changed, or must not be kept. Whatever uses it is a stop."""


class Pending(Opaque):
    """A coroutine that was not awaited yet: `force()` runs it."""

    __slots__ = ("force",)

    def __init__(self, force: Callable[[], Any]) -> None:
        self.held = self
        self.is_own = True
        self.force = force


class Lazy:
    """An iterator that the reader made, to be used up where it was made: `arms`, of the run it belongs to, says where.

    Its place cannot be put back, so both arms of an undecided `if` may not use it.
    """

    __slots__ = ("_arms", "_run", "iterator")

    def __init__(self, run: Any, iterator: Any) -> None:
        self.iterator = iterator
        self._run = run
        self._arms = run.path

    def __iter__(self) -> Lazy:
        return self

    def __next__(self) -> Any:
        if self._run.path != self._arms:
            raise Barrier("an iterator is used on a path that may not be taken")
        self._run.advanced += 1
        return next(self.iterator)


def type_name(cls: type) -> str:
    """The name of a class, without asking its metaclass."""
    return str.__str__(type.__dict__["__name__"].__get__(cls))  # it may be of a subclass of `str`


def shown(value: Any) -> str:
    """How a message calls a value."""
    if type(value) is Callee:
        return value.name
    held = value.held if isinstance_of(value, Opaque) else value
    return f"an object of the class {type_name(type(held))}"


def isinstance_of(value: Any, cls: type) -> bool:
    """`isinstance` that asks neither the object nor its class."""
    kind = type(value)
    if kind is cls:
        return True
    return any(each is cls for each in _MRO.__get__(kind))  # `in` would ask metaclasses for `__eq__`


_MRO = type.__dict__["__mro__"]
