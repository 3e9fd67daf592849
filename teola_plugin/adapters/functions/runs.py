"""One run of a function, and its reading ahead of the run."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.functions.askers import Askers, has_langchain, has_llamaindex, langchain_asker
from teola_plugin.adapters.functions.known import functions_of, held_by, may_ask
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.mentions import mentioned
from teola_plugin.adapters.reader.prediction import CallLine, Prediction, State, noting
from teola_plugin.adapters.reader.run import Given, Run, TooLarge
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.adapters.reader.values import Barrier, Pending, isinstance_of
from teola_plugin.adapters.source import origin_of
from teola_plugin.graph import Graph
from teola_plugin.seams import Reply, current
from teola_plugin.trace import Asides, Follower, Mark, Reading, Traced


@dataclass(frozen=True, slots=True)
class Entered:
    """A call of a function with these arguments, in the caller's context."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    context: Context = field(default_factory=copy_context)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)


def trace(pipeline: Any) -> Traced:
    """Return the follower of a function or an object; empty if nothing makes a request that can be read."""
    functions, graph = functions_of(pipeline), Graph((), (), ())
    if not functions or not may_ask(pipeline, functions.values()):
        return Traced(graph)
    held = list(held_by([pipeline, *(value for each in functions.values() for value in mentioned(each))]))
    if has_langchain():
        _instrument(held)
    readings = [Reading(f"{name}: {origin_of(each)}", origin_of(each), came=0) for name, each in functions.items()]
    return Traced(graph, follow=Followed(held).follow, readings=tuple(readings))


class Followed:
    """What follows the calls of a pipeline. `held`: what the functions may use.

    A function may be optimized before the module that loads LlamaIndex, so each call looks whether it is there.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        self._held = held
        self._with_llamaindex: Callable[[Any], Follower] | None = None

    def follow(self, entered: Entered) -> Follower:
        """See `trace.Traced.follow`."""
        if not has_llamaindex():
            return Following()
        if self._with_llamaindex is None:
            from teola_plugin.adapters.llamaindex.functions import followed

            self._with_llamaindex = followed(self._held)
        return self._with_llamaindex(entered)


def _instrument(held: Iterable[Any]) -> None:
    """Make LangChain's components share early requests."""
    from langchain_core.runnables import Runnable

    from teola_plugin.adapters.langchain import reading_retrievers
    from teola_plugin.adapters.langchain.trace import trace as trace_runnable

    reading_retrievers.instrument_loaded()
    for value in held:
        if isinstance_of(value, Runnable):
            trace_runnable(value)


@contextmanager
def running(entered: Entered, reading: Reading) -> Iterator[None]:
    """Surround the run of a function in an open call, and read the function meanwhile."""
    session = current()
    if session is None:
        yield
        return
    reading.come()
    askers = Askers([langchain_asker(entered.context, is_async=entered.is_async)] if has_langchain() else [])
    if has_llamaindex():
        from teola_plugin.adapters.llamaindex.functions import running as running_with_llamaindex

        with running_with_llamaindex(
            entered.function, entered.args, entered.kwargs, reading, askers, is_async=entered.is_async
        ):
            yield
        return
    session.enter(entered.function, _Begun(entered, reading, askers))
    yield


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that begins."""

    entered: Entered
    reading: Reading
    askers: Askers


class Following:
    """Implements `trace.Follower` for one call."""

    is_beside = False

    def __init__(self) -> None:
        self._prediction: Prediction | None = None

    def tell(self, component: object, value: Any, asides: Asides) -> None:
        """See `trace.Follower.tell`."""
        if isinstance(value, _Begun):
            self._begin(value, asides)

    def end(self, asides: Asides) -> None:
        """See `trace.Follower.end`."""
        if self._prediction is not None:
            self._prediction.stop()

    def _begin(self, begun: _Begun, asides: Asides) -> None:
        entered, reading, given = begun.entered, begun.reading, Given()
        try:
            args, kwargs = given.copy([list(entered.args), dict(entered.kwargs)])
        except TooLarge as e:
            reading.note(Barrier(f"it is given {e}"), 0)
            return
        given.note([entered.function])
        given.note_alone()

        def program(run: Run) -> None:
            with noting(run, reading.note):
                found = call(run, run.load(entered.function), tuple(args), dict(kwargs))
                if entered.is_async and type(found) is Pending:  # who calls others awaits the coroutine, or nobody does
                    found.force()

        asked = itertools.count(1)

        def counted() -> None:
            reading.ahead = max(reading.ahead or 0, min(next(asked), reading.requests))

        listener = Listener(roots=[entered.function])
        asides.when_asked(listener.hear)
        self._prediction = Prediction(
            begun.askers,
            _Line(asides, count=counted),
            State(program, given),
            speculates=asides.speculates,
            listener=listener,
        )
        self._prediction.begin()


@dataclass(frozen=True)
class _Line(CallLine):
    """A `CallLine` that counts the early requests."""

    count: Callable[[], None] = lambda: None

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """See `Line`."""
        self.count()
        return super().ask(request, mark)
