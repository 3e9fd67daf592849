"""Values computed only by the framework's own run: the entry methods of the components report to the session.

A component reports its result; a session hears the result only once. A stream reports at the end, with the chunks added
up as by LangChain. Only plain data is reported: an iterator can be read only once, and a user's method may do
anything.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from teola_plugin.adapters.interception import Stream, around, intercept
from teola_plugin.adapters.langchain.generators import of_the_kind_of
from teola_plugin.adapters.plain import copied, is_plain
from teola_plugin.seams import Session, current

_watched_for: dict[int, Callable[[], object]] = {}
"""By id, a weak reference to each component whose value may be wanted."""


def instrument_component(component: object) -> None:
    """Make the class of this component report to the session."""
    key = id(component)
    try:
        _watched_for[key] = weakref.ref(component, lambda _: _watched_for.pop(key, None))
    except TypeError:  # no weak references
        _watched_for[key] = lambda: component
    cls = type(component)
    _WHOLE.replace(cls, "invoke", coroutines=["ainvoke"])
    for method in ("stream", "transform"):
        intercept(cls, method, _reporting_stream)
    for method in ("astream", "atransform"):
        intercept(cls, method, _reporting_astream)


def _listener(component: object) -> Session | None:
    """Return the session, if any, which wants the value of the component."""
    wanted = _watched_for.get(id(component))
    if wanted is None or wanted() is not component or _is_inside.get():
        return None
    session = current()
    return None if session is None or session.is_at_rest else session


def _report(session: Session, component: object, value: Any) -> None:
    if session.wants_values and is_plain(value):
        session.observe(component, copied(value))


_is_inside: ContextVar[bool] = ContextVar("teola_inside_component", default=False)
"""Whether a component left to the framework is running here: the components inside are not the pipeline's own, though
possibly the same objects.
"""


@contextmanager
def _inside() -> Iterator[None]:
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def _running(
    component: Any, args: Any, kwargs: Any, is_async: bool
) -> AbstractContextManager[Callable[[Any], Any]] | None:
    """Surround the whole run of a component, and report the result."""
    session = _listener(component)
    return None if session is None else _reported_run(session, component)


@contextmanager
def _reported_run(session: Session, component: object) -> Iterator[Callable[[Any], Any]]:
    with ExitStack() as run:
        run.enter_context(_inside())

        def finish(value: Any) -> Any:
            run.close()
            _report(session, component, value)
            return value

        yield finish


_WHOLE = around(_running)


def _reporting_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        chunks = original(self, *args, **kwargs)
        return chunks if (session := _listener(self)) is None else _reported(session, self).passed_on(chunks)

    return of_the_kind_of(original, stream)


def _reporting_astream(original: Callable[..., Any]) -> Callable[..., Any]:
    def astream(self: Any, *args: Any, **kwargs: Any) -> Any:
        chunks = original(self, *args, **kwargs)
        return chunks if (session := _listener(self)) is None else _reported(session, self).apassed_on(chunks)

    return of_the_kind_of(original, astream)


def _reported(session: Session, component: object) -> Stream:
    total = _Sum()

    def report() -> None:
        if total.count and total.is_plain:
            _report(session, component, total.value)

    return Stream(_inside, heard=total.add, ended=report)


class _Sum:
    """The sum of chunks, if plain data; a chunk that cannot be added replaces the sum."""

    def __init__(self) -> None:
        self.count = 0
        self.is_plain = True
        self.value: Any = None

    def add(self, chunk: Any) -> None:
        is_first, self.count = self.count == 0, self.count + 1
        self.is_plain = self.is_plain and is_plain(chunk)
        if not self.is_plain:
            return
        try:
            self.value = chunk if is_first else self.value + chunk
        except TypeError:
            self.value = chunk
