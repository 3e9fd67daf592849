"""Calls of pipelines of any framework. A *form* is the name of the method which takes the input.

    invoke ainvoke stream astream (LangChain) · query aquery retrieve aretrieve synthesize asynthesize (LlamaIndex) ·
    __call__ (a function; a tuple holds several arguments)

A call ends when the user would have the last word: a coroutine is awaited, an iterator is read to the end, and the text
of a LlamaIndex streaming response is read.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import types
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from teola_plugin import loops
from teola_plugin.errors import TeolaError

FORMS = ("invoke", "query", "retrieve", "synthesize")
"""The synchronous forms, in the order `first_form` looks for them."""

_SEVERAL = ("synthesize", "asynthesize", "__call__")
"""Forms with several arguments."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call: `value`, or `error` as raised.

    `pieces`: the parts of a streamed answer. `first_s`: seconds until the first part.
    """

    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0
    first_s: float | None = None
    pieces: tuple[Any, ...] | None = None


def first_form(pipeline: Any) -> str:
    """Return the synchronous form of a pipeline. Raises: TeolaError if the pipeline has none."""
    for form in ("__call__",) if isinstance(pipeline, types.FunctionType | types.MethodType) else FORMS:
        if callable(getattr(pipeline, form, None)):
            return form
    raise TeolaError(f"{name_of(pipeline)} has none of the methods {', '.join(FORMS)}: it cannot be called")


def name_of(pipeline: Any) -> str:
    """Return the name of a function, of an object's class, or of a class (an index class makes indices)."""
    is_named = isinstance(pipeline, type | types.FunctionType | types.MethodType)
    return (pipeline if is_named else type(pipeline)).__qualname__


class Caller:
    """Calls pipelines one after another; all coroutines run on one event loop, as in an application.

    Inside a running event loop (a notebook), the caller's loop runs on a separate thread.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._runner is not None:
            _outside_loops(self._runner.close)

    def call(self, pipeline: Any, form: str, value: Any, **options: Any) -> Answer:
        """Make one timed call. Exceptions of the pipeline are part of the answer; Ctrl-C is raised."""
        method = getattr(pipeline, form, None)
        if not callable(method):
            raise TeolaError(f"{name_of(pipeline)} has no method {form!r}")
        arguments = value if form in _SEVERAL and isinstance(value, tuple) else (value,)
        started_s = time.perf_counter()
        try:
            result = method(*arguments, **options)
            if inspect.iscoroutine(result):
                answer = self._run(_finish_async(result, started_s))
            elif isinstance(result, AsyncIterator):
                answer = self._run(_read_async(result, started_s))
            else:
                answer = _finish(result, started_s)
        except Exception as e:  # the pipeline's own error, to be compared
            return Answer(error=e, seconds=time.perf_counter() - started_s)
        return answer

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        if self._runner is None:
            self._runner = asyncio.Runner()
        answer: Answer = _outside_loops(self._runner.run, work)
        return answer


def _finish(result: Any, started_s: float) -> Answer:
    source: Any = result
    if isinstance(response := getattr(result, "response_gen", None), Iterator):
        source = response
    if not isinstance(source, Iterator):
        return Answer(result, seconds=time.perf_counter() - started_s)
    pieces: list[Any] = []
    first_s = None
    for piece in source:
        first_s = first_s or time.perf_counter() - started_s
        pieces.append(piece)
    return _streamed(result, pieces, first_s, started_s)


async def _finish_async(work: Coroutine[Any, Any, Any], started_s: float) -> Answer:
    result = await work
    generator = getattr(result, "async_response_gen", None)
    if callable(generator):
        return await _read_async(generator(), started_s, result)
    if isinstance(result, AsyncIterator):
        return await _read_async(result, started_s)
    return _finish(result, started_s)


async def _read_async(source: AsyncIterator[Any], started_s: float, result: Any = None) -> Answer:
    pieces: list[Any] = []
    first_s = None
    async for piece in source:
        first_s = first_s or time.perf_counter() - started_s
        pieces.append(piece)
    return _streamed(source if result is None else result, pieces, first_s, started_s)


def _streamed(result: Any, pieces: list[Any], first_s: float | None, started_s: float) -> Answer:
    """Return the answer of a stream: all pieces joined, with the source nodes of a LlamaIndex response.

    Pieces of dicts are joined per key, since the order of the branches of a parallel step differs from run to run.
    """
    seconds = time.perf_counter() - started_s
    joined: Any = pieces
    if pieces and all(isinstance(piece, Mapping) for piece in pieces):
        keys = dict.fromkeys(key for piece in pieces for key in piece)
        return Answer({key: [p[key] for p in pieces if key in p] for key in keys}, None, seconds, first_s)
    if pieces and all(isinstance(piece, str) for piece in pieces):
        joined = "".join(pieces)
    if nodes := getattr(result, "source_nodes", None):
        joined = {"response": joined, "source_nodes": nodes}
    return Answer(joined, None, seconds, first_s, tuple(pieces))


def _outside_loops(function: Any, *args: Any) -> Any:
    """Call the function where no event loop runs: in the calling thread if possible, else on a new thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*args)
    loops.check_may_wait()
    outcome: Mapping[str, Any] = {}

    def run() -> None:
        nonlocal outcome
        try:
            outcome = {"value": function(*args)}
        except BaseException as e:  # handed to the caller's thread
            outcome = {"error": e}

    thread = threading.Thread(target=copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
