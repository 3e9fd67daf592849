"""The values that the reader computes with.

    plain values       exact built-in types, and objects of classes that only hold data; always the reader's own copies
    `Unknown`          a value not known yet, such as the reply of a model, and all values computed from it
    `Opaque`           a foreign object (a model, a module, a function, a class), which is carried, compared by `is` and
                       given to handlers that know such objects; no other operation is allowed

Plain containers may hold `Unknown` and `Opaque`. Operations written in C meet both only by special methods, which raise
`Undecided` or `Barrier`. Neither is an `Exception`, so no code mistakes them for errors of the program.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn, Self


class Barrier(BaseException):
    """Reading ends. `what` is not read, `where` the code stands (`file.py:line`), `hint` what to write instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = ""
        self._hint = hint

    def bare(self) -> Self:
        """Return the barrier without the frames where it was raised, to be kept."""
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)

    def again(self) -> Barrier:
        """Return a barrier for the next round of a loop, which comes to the same construct."""
        barrier = Barrier(self.what, self._hint)
        barrier.where = self.where
        return barrier

    @property
    def hint(self) -> str:
        """The hint for the construct; for installed code, which users do not rewrite, the declaration that helps."""
        is_of_others = is_installed_file(self.where) or self.where.startswith(STDLIB)
        return self._hint or (DECLARE_CALLER if is_of_others else "")


DECLARE_CALLER = "if it only reads, put the call into a function that says so: @teola_plugin.reads(...)"

STDLIB = sysconfig.get_paths()["stdlib"]


def is_installed_file(name: str) -> bool:
    """Whether a file, by name, belongs to an installed package, also in a folder that packages share with user code."""
    return any(part in name for part in ("site-packages", "dist-packages")) or _is_of_distribution(name)


@functools.lru_cache(maxsize=8192)
def _is_of_distribution(name: str) -> bool:
    """Whether a file belongs to a package installed in some other folder of `sys.path` (`pip install --target`)."""
    folder = next((each for each in sys.path if each and name.startswith(each + os.sep)), None)
    if folder is None or folder.startswith(STDLIB):
        return False
    return name[len(folder) + 1 :].partition(os.sep)[0].removesuffix(".py") in _names_installed_in(folder)


@functools.lru_cache(maxsize=64)
def _names_installed_in(folder: str) -> frozenset[str]:
    """Return the top-level packages and modules of the distributions installed in a folder."""
    found: set[str] = set()
    for each in importlib.metadata.distributions(path=[folder]):
        files = (each.read_text("RECORD") or "").splitlines()
        found.update(line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in files)
    return frozenset(each for each in found if each.isidentifier())


class Undecided(BaseException):
    """An operation needs an unknown value."""


class Stalled(BaseException):
    """The evaluation cannot go on: the next step depends on an unknown value."""


class Renewed(BaseException):
    """The evaluation begins anew: a change has made a value unknown which the evaluation may have used before."""


GENERAL: Hashable = "general"
"""The source of operations that may raise for any reason; see `Unknown.sources`."""

RAISED: frozenset[Hashable] = frozenset(["raised"])
"""The sources of what an error for any reason has decided."""

ANYWHERE: frozenset[Hashable] = frozenset(["anywhere"])
"""The sources of values that may come from anywhere, as part of other values."""

TIMED: frozenset[Hashable] = frozenset(["timed"])
"""The sources of operations that may take too long."""

CHANGED: frozenset[Hashable] = frozenset(["changed"])
"""The sources of values from before a change of the program's; see changes.py."""

COMPUTED: frozenset[Hashable] = frozenset(["computed"])
"""The sources of values that numpy computes of known values; see arrays.py."""

ARRAYS: frozenset[Hashable] = frozenset(["arrays"])
"""Among the sources of values that may be arrays of numpy, or hold some: the truth of an array may raise."""

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
    """A value that is not known yet. `holds`: the kind of the later value, as far as certain.

    `holds` is "any", "text", "texts" (a list of texts), "list", "bool", "json" or a kind of numbers (see
    amounts.py), "message" (an AI message of a model), "document" (of LangChain), "found node", "text node", "response"
    and "judgement" (of LlamaIndex), "reply" (of a web page), "vector" (or None), "match" (of a regular expression, or
    None), a kind of numpy's or an embedding (see arrays.py), or the class of the object.

    `sources`: the origins of the value (components that were asked), which alone decide whether an operation on the
    value raises. `items`: the items of one of several dicts with different keys, some of them `Perhaps`. `is_shared`: a
    list that the program may also know by another name. `is_dict`: certainly a dict, with items that are not known.
    `is_true`: certainly counts as true. `of`: of a flag or a number, what it shows of another value (see
    `heap.Heap.shown`), or the number that an index is below, or the `BracketPlace` in a text; of a text, the bracket
    ("{" or "[") with which it begins, if not white space; of a match, the pattern; of the present time, its zone; of a
    caught error, BaseException; of a document's metadata, `FOUND`.
    `over`: of an iterator, a list or a view, how the items are made, and of what; or the kind of each item; see
    `heap.Heap.item_of`.
    """

    __slots__ = ("holds", "is_dict", "is_shared", "is_true", "items", "of", "over", "sources")

    def __init__(
        self, holds: str | type = "any", sources: frozenset[Hashable] = NO_SOURCES,
        items: Mapping[Any, Any] | None = None, over: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        self.holds = holds
        self.sources = sources
        self.items = items
        self.over = over
        self.is_shared = False
        self.is_dict = False
        self.is_true = False
        self.of: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class BracketPlace:
    """The place of a bracket in an unknown text, as found by `name` ("find", ...), or the place behind the bracket."""

    text: Unknown
    bracket: str
    name: str
    is_behind: bool = False


class Perhaps:
    """The value of a key that a dict may also lack."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Opaque:
    """A foreign object. `is_own`: made by the reader, with code that is known to have no lasting effect.

    `is_alone`: what is asked of it is asked of no equal object.
    """

    __slots__ = ("held", "is_alone", "is_own")

    def __init__(self, held: Any, *, is_own: bool = False, is_alone: bool = False) -> None:
        self.held = held
        self.is_own = is_own
        self.is_alone = is_alone


def _unknown(self: Any, name: str) -> NoReturn:
    raise Undecided(name)


def _opaque(self: Any, name: str) -> NoReturn:
    raise Barrier(f"it uses {shown(self)} by __{name}__")


_raising(Unknown, _unknown)
_raising(Opaque, _opaque)

Arguments = tuple[Any, ...]
Handler = Callable[[Any, Arguments, dict[str, Any]], Any]
"""Computes the result of a call from the run, the positional and the keyword arguments."""


class Own(Opaque):
    """An object of the reader's own, which stands for itself."""

    __slots__ = ()

    def __init__(self) -> None:
        self.is_own = True

    @property
    def held(self) -> Any:
        """The object itself; no attribute, which would keep the object until the next garbage collection."""
        return self


class Callee(Own):
    """A callable of the reader's own: `handler(run, args, kwargs)`."""

    __slots__ = ("handler", "name")

    def __init__(self, handler: Handler, name: str) -> None:
        super().__init__()
        self.handler = handler
        self.name = name

    def is_plain(self, frames: Sequence[Any]) -> bool:
        """Whether the callable holds only constants and the variables of these frames."""
        return False

    def parts(self) -> Sequence[Any] | None:
        """Return the values held by the callable; None if the values are not known."""
        return None


class Method(Callee):
    """A function of the program's (`function`, as read), bound to an object."""

    __slots__ = ("function",)

    def __init__(self, handler: Handler, name: str, function: Any) -> None:
        super().__init__(handler, name)
        self.function = function


class Super(Callee):
    """What `super()` is in a method of `cls` on an object: what the object has behind that class."""

    __slots__ = ("cls", "value")

    def __init__(self, value: Any, cls: type) -> None:
        super().__init__(_used_otherwise, "super")
        self.value = value
        self.cls = cls


def _used_otherwise(*args: Any) -> Any:
    raise Barrier("it uses super() in an unusual way")


class Stale:
    """An object of which nothing is known; see `STALE`."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # read by programs that look through `gc.get_objects()`
            return Stale
        raise AttributeError(name)

    def _refuse(self, *args: Any) -> Any:
        raise TypeError

    __bool__ = __call__ = __eq__ = __hash__ = _refuse


STALE = Opaque(Stale())
"""Stands for a value that is neither read nor copied. Any use is a stop.

The value may have changed, or must not be kept alive.
"""


class Pending(Own):
    """A coroutine before its first await: `force()` runs the coroutine.

    `given`: the arguments. `is_of_tasks`: gathers coroutines and tasks.
    """

    __slots__ = ("force", "given", "is_of_tasks")

    def __init__(self, force: Callable[[], Any], given: Sequence[Any] = (), *, is_of_tasks: bool = False) -> None:
        super().__init__()
        self.force = force
        self.given = given
        self.is_of_tasks = is_of_tasks


class Managed(Own):
    """The context made by a function decorated with `contextlib.contextmanager`, before it is entered.

    `around(within)` evaluates the function, at its `yield` the body of the `with` statement (`within`, from the yielded
    value), and returns how the body ended. `is_async`: of `contextlib.asynccontextmanager` (None: of both kinds).
    `given`: the arguments.
    """

    __slots__ = ("around", "given", "is_async")

    def __init__(
        self, around: Callable[[Callable[[Any], Any]], Any], given: Sequence[Any], *, is_async: bool | None
    ) -> None:
        super().__init__()
        self.around = around
        self.given = given
        self.is_async = is_async


class Lazy:
    """An iterator that the reader made, to be used up on the path of the run where it was made (`_arms`).

    The position of an iterator cannot be put back, so the arms of an undecided `if` may not use the iterator.
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
    """Return the name of a class, without asking the metaclass."""
    return str.__str__(type.__dict__["__name__"].__get__(cls))  # the name may be a subclass of `str`


def shown(value: Any) -> str:
    """Return the name of a value for messages."""
    if type(value) in (Callee, Method):
        return value.name  # type: ignore[no-any-return]
    held = value.held if isinstance_of(value, Opaque) else value
    if type(held) is Stale:
        return "a value that was made where the function is not read"
    return f"an object of the class {type_name(type(held))}"


FOUND = "found"
"""`Unknown.of` of the metadata of a document that a search has made: no other object has the dict."""

ID = "id"
"""`Unknown.holds` of a random id that is made up in each run."""


def unknown_id() -> Unknown:
    """Return an unknown id that a framework makes up anew in each run."""
    return Unknown(ID)


def is_random_id(value: Any) -> bool:
    """Whether the value is an id from `unknown_id`."""
    return type(value) is Unknown and value.holds == ID


def isinstance_of(value: Any, cls: type) -> bool:
    """`isinstance` that asks neither the object nor the class."""
    for each in _mro(type(value)):  # noqa: SIM110  a generator takes longer; `in` would ask metaclasses for `__eq__`
        if each is cls:
            return True
    return False


_mro = type.__dict__["__mro__"].__get__
