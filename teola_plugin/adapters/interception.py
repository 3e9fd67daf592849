"""Interception: replaced methods of other packages' classes, in place while an optimized object lives.

Leaves (calls to a model or a store) are intercepted where their class defines them, below callbacks, caches and
limiters:

    intercept(OpenAI, "_chat", wrapper)    replaces the method by `wrapper(original)`, once
    sharing(find), around(describe)        make the sync and async wrappers of a method from one description

A replacement asks `seams.current()` first: without a session only the original runs. Methods are replaced on classes,
never on the user's objects. When the last optimized object is gone, or after `uninstall()`, every method is put back;
the next `optimize` installs all replacements again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from teola_plugin import forks
from teola_plugin.adapters import records
from teola_plugin.finalizers import keep_for_now, kept_off
from teola_plugin.seams import OwnRequest, Reply, Session, aalone, alone, ashare, current, is_unheard, share

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A function from the original to its replacement. Wrappers with equal qualified names count once."""


@dataclass(frozen=True, slots=True)
class _Patch:
    """One replaced method. Class and replacement are held weakly: a function may hold its defining class."""

    owner: weakref.ref[type]
    method: str
    wrapper: Wrapper
    is_inherited: bool
    replacement: weakref.ref[Any]

    def is_in_place(self) -> bool:
        """Whether the class has this replacement, with no foreign replacement on top."""
        owner, replacement = self.owner(), self.replacement()
        held = owner.__dict__.get(self.method) if owner else None
        return replacement is not None and getattr(held, "__func__", held) is replacement

    def revert(self) -> None:
        """Put the original back."""
        owner, replacement = self.owner(), self.replacement()
        if owner is None or replacement is None:
            return
        keep_for_now(replacement)
        if self.is_inherited:
            delattr(owner, self.method)
        else:
            setattr(owner, self.method, replacement.__teola_original__)

    def is_beneath(self) -> bool:
        """Whether the original could not be put back, since other code replaced the method after us."""
        owner, before = self.owner(), self.replacement()
        if owner is None or before is None:
            return False
        while "__teola_original__" in getattr(before, "__dict__", {}):
            before = before.__teola_original__
            before = getattr(before, "__func__", before)
        held = owner.__dict__.get(self.method)
        return held is not None and getattr(held, "__func__", held) is not before

    def __str__(self) -> str:
        owner = self.owner()
        return f"{owner.__module__}.{owner.__qualname__}.{self.method}" if owner else self.method


class Interception:
    """All patches of this process, and the number of users: optimized objects, and calls of optimized objects.

    `_lock` is held only briefly and never by a waiting thread, so a finalizer may take the lock.
    """

    _calls: int
    _is_being_installed: bool

    def __init__(self) -> None:
        self._begin_anew()
        self._patches: list[_Patch] = []
        self._owners = 0
        self._is_installed = False
        self._is_wanted = False

    # --- what is replaced ------------------------------------------------------------------------------------

    def intercept(self, cls: type, method: str, wrapper: Wrapper, *, is_inherited: bool = False) -> None:
        """Replace `method` by `wrapper(original)`, once, on its defining class in the MRO of `cls`.

        `is_inherited`: replace on `cls` itself, which inherits the method. The replacement keeps name, signature and
        docstring. Nothing happens if the method does not exist, or was replaced by a wrapper of this name.
        """
        owner = cls if is_inherited else next((c for c in cls.__mro__ if method in c.__dict__), None)
        if owner is None:
            return
        original = getattr(cls, method) if is_inherited else owner.__dict__[method]
        is_of_class = isinstance(original, classmethod)
        function = original.__func__ if is_of_class else original
        made_by = (wrapper.__module__, wrapper.__qualname__)
        if made_by in getattr(function, "__teola_made_by__", ()):
            return
        replacement: Any = functools.wraps(function)(wrapper(function))
        replacement.__teola_original__ = original
        replacement.__teola_made_by__ = (*getattr(function, "__teola_made_by__", ()), made_by)
        patch = _Patch(weakref.ref(owner), method, wrapper, is_inherited, weakref.ref(replacement))
        with kept_off, self._lock:
            setattr(owner, method, classmethod(replacement) if is_of_class else replacement)
            self._patches = [*(each for each in self._patches if each.owner()), patch]

    # --- for how long ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Keep the replacements in place inside the context."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def keep(self, owner: object) -> None:
        """Keep the replacements in place as long as the object lives."""
        self._enter()
        weakref.finalize(owner, self._leave).atexit = False

    def begin_call(self) -> bool:
        """Begin a call of an optimized object, to be ended by `end_call`. False: the call must run as the original."""
        with kept_off, self._lock:
            if self._is_wanted:
                self._calls += 1
            return self._is_wanted

    def end_call(self) -> None:
        """End a call that began."""
        with kept_off, self._lock:
            self._calls = max(0, self._calls - 1)  # a forked child may end a call of its parent
            self._uninstall_if_unused()

    def uninstall(self) -> list[str]:
        """Put all replaced methods of other packages back. Returns the qualified names of methods that stay replaced.

        A method stays replaced if foreign code replaced it after us: removing our replacement would remove the foreign
        one, too. The method then calls the original. While calls of optimized objects run, the methods are put back
        when the last call ends. Existing optimized objects run as the originals from now on, until the next `optimize`
        replaces all methods again.
        """
        with kept_off, self._lock:
            self._is_wanted = False
            is_over = self._uninstall_if_unused()
            return sorted({str(each) for each in self._patches if is_over and each.is_beneath()})

    @property
    def patched(self) -> tuple[str, ...]:
        """The qualified names of the methods replaced now."""
        with kept_off, self._lock:
            return tuple(sorted({str(each) for each in self._patches if each.is_beneath()}))

    def _enter(self) -> None:
        with self._installing:
            with kept_off, self._lock:
                self._owners += 1
                patches = [] if self._is_installed else self._patches
                self._patches = [each for each in self._patches if each.replacement()]
                self._is_installed = self._is_being_installed = True
            for each in patches:
                if owner := each.owner():
                    self.intercept(owner, each.method, each.wrapper, is_inherited=each.is_inherited)
            with kept_off, self._lock:  # no call begins before all is in place
                self._is_being_installed, self._is_wanted = False, True

    def _leave(self) -> None:
        with kept_off, self._lock:
            self._owners -= 1
            self._is_wanted = self._is_wanted and self._owners > 0
            self._uninstall_if_unused()

    def _uninstall_if_unused(self) -> bool:
        if self._is_wanted or self._calls or self._is_being_installed:
            return False
        self._is_installed = False
        records.remove_filters()
        for each in reversed(self._patches):
            if each.is_in_place():
                each.revert()
        return True

    def _begin_anew(self) -> None:
        """Begin without calls: in a forked child, the parent's do not end, and its threads may have held the locks."""
        self._lock = threading.RLock()
        self._installing = threading.RLock()
        self._is_being_installed = False
        self._calls = 0


interception = Interception()
intercept = interception.intercept
uninstall = interception.uninstall
forks.in_child(interception._begin_anew)


# --- replacements made from one description --------------------------------------------------------------------------


def muted(answer: Any) -> Wrapper:
    """Return a wrapper: where callbacks are muted, the method does nothing and returns `answer`."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            return answer if is_unheard() else original(*args, **kwargs)

        return method

    return wrapper


@dataclass(frozen=True, slots=True)
class Met:
    """A call of a leaf whose reply is shared between the early request and the framework's run.

    `claimed`: see `seams.Session.claim`.
    """

    claimed: tuple[Reply, bool]

    def asking(self) -> AbstractContextManager[Any]:
        """Return the context for the original, if this call makes the request."""
        return nullcontext()

    async def awaited(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of the original, a coroutine function."""
        return await call()

    def reply(self, value: Any) -> Any:
        """Return the reply to share, from the value of the original."""
        return value

    def taken(self, value: Any) -> Any:
        """Return the reply in the form that the caller gets."""
        return value


@dataclass(frozen=True, slots=True)
class Alone:
    """A call where nothing has run ahead (`seams.Session.ask_alone`).

    `is_plain`: whether the call only makes a request. `asking`: the context of the request, as of `Met`.
    """

    request: OwnRequest
    is_plain: Callable[[], bool]
    asking: Callable[[], AbstractContextManager[Any]] = nullcontext


Meets = Callable[[Session, Callable[..., Any], Any, tuple[Any, ...], dict[str, Any], bool], Met | Alone | None]
"""From the session, the original, the component, its arguments and whether it is async: the shared call, if any."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Wrappers of a synchronous method and of the method's coroutine, from a single description."""

    sync: Wrapper
    coroutine: Wrapper

    def replace(self, cls: type, *methods: str, coroutines: Sequence[str] = ()) -> None:
        """`intercept` the methods of the class."""
        for method in methods:
            intercept(cls, method, self.sync)
        for method in coroutines:
            intercept(cls, method, self.coroutine)


def sharing(meet: Meets) -> Forms:
    """Return replacements whose calls share their replies with early requests, where `meet` finds a shared call."""

    def sync(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            session = current()
            if session is None or (met := meet(session, original, self, args, kwargs, False)) is None:
                return original(self, *args, **kwargs)
            if isinstance(met, Alone):
                with met.asking():
                    return alone(met.request, functools.partial(original, self, *args, **kwargs), met.is_plain)

            def ask() -> Any:
                with met.asking():
                    value = original(self, *args, **kwargs)
                return met.reply(value)

            return met.taken(share(met.claimed, ask))

        return method

    def coroutine(original: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            session = current()
            if session is None or (met := meet(session, original, self, args, kwargs, True)) is None:
                return await original(self, *args, **kwargs)
            if isinstance(met, Alone):
                with met.asking():
                    return await aalone(met.request, functools.partial(original, self, *args, **kwargs), met.is_plain)

            async def ask() -> Any:
                with met.asking():
                    value = await met.awaited(functools.partial(original, self, *args, **kwargs))
                return met.reply(value)

            return met.taken(await ashare(met.claimed, ask))

        return method

    return _named(meet, sync, coroutine)


def around(surround: Callable[..., AbstractContextManager[Callable[[Any], Any] | None] | None]) -> Forms:
    """Return replacements that run the original inside of `surround(component, args, kwargs, is_async)`.

    Without a context (None) the original runs as it is, once `surround` has returned.
    The context yields a function from the original's value to the caller's value; None: both are the same. A coroutine
    first awaits the `ready()` of the yielded function, if there is one, and then runs the original.
    """

    def sync(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = original.__get__(self, type(self))  # bound, so that a LlamaIndex span knows the owner
            if (surrounding := surround(self, args, kwargs, False)) is None:
                return run(*args, **kwargs)
            with surrounding as finish:
                value = run(*args, **kwargs)
                return value if finish is None else finish(value)

        return method

    def coroutine(original: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = original.__get__(self, type(self))
            if (surrounding := surround(self, args, kwargs, True)) is None:
                return await run(*args, **kwargs)
            with surrounding as finish:
                if ready := getattr(finish, "ready", None):
                    await ready()
                value = await run(*args, **kwargs)
                return value if finish is None else finish(value)

        return method

    return _named(surround, sync, coroutine)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that is passed on chunk by chunk. Each chunk is made `inside` a context, then given to `heard`.

    `ended`: called after the last chunk; `closed`: also after an error, or when the reader stops early.
    """

    inside: Callable[[], AbstractContextManager[Any]]
    heard: Callable[[Any], None] = lambda chunk: None
    ended: Callable[[], None] = lambda: None
    closed: Callable[[], None] = lambda: None

    def passed_on(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Yield the same chunks. Closing the returned stream closes `chunks`."""
        try:
            while True:
                with self.inside():
                    chunk = next(chunks, _END)
                if chunk is _END:
                    break
                self.heard(chunk)
                yield chunk
        finally:
            if close := getattr(chunks, "close", None):
                close()
            self.closed()
        self.ended()

    async def apassed_on(self, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """`passed_on` for an async stream."""
        try:
            while True:
                with self.inside():
                    chunk = await anext(chunks, _END)
                if chunk is _END:
                    break
                self.heard(chunk)
                yield chunk
        finally:
            if close := getattr(chunks, "aclose", None):
                await close()
            self.closed()
        self.ended()


_END: Any = object()


def _named(description: Callable[..., Any], sync: Wrapper, coroutine: Wrapper) -> Forms:
    """Return the wrappers under the name of their description."""
    for each in (sync, coroutine):
        each.__module__, each.__qualname__ = description.__module__, description.__qualname__
    return Forms(sync, coroutine)
