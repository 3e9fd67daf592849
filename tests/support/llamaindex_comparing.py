"""One act on an original LlamaIndex component and on two optimized ones, and all that is to be seen of it.

`same(build, act)` builds a component three times. The first is left as it is; the second is optimized and races with
its run-ahead; the third waits for its run-ahead first, so that it is served from it. Compared are the outcome of the
act (or its exception), spans, events and callbacks, what was printed, logged and warned of, the tasks left on the
caller's event loop, what `look` sees in the user's own object afterwards, and what the user's functions were told.

With TEOLA_COMPARE=original nothing is optimized: what fails then is unstable in LlamaIndex itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import gc
import inspect
import io
import itertools
import logging
import os
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from llama_index.core import Settings
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.tools import AsyncBaseTool
from llama_index.core.types import Thread as ReaderThread
from pydantic import BaseModel

import teola_plugin
from teola_plugin.api import OpenCall, OptimizedPipeline
from teola_plugin.runtime.session.report import Report
from teola_plugin.seams import current
from tests.support.llamaindex_world import Engines, Record, apart

WAYS = ("original", "racing", "patient")
PATIENCE_S = 0.1
ENDS_S = 10.0
GRACE_S = 1.0
TOLERANCE = 1e-5
CHANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]{6,}")
"""Ids that are made up anew each time, and addresses."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Ends after the line break, so it moves to whatever is printed next."""


class Stage(Record):
    """A record with the engines of one component, and a place where the user's own functions say that they ran."""

    def __init__(self, *, is_chat_model: bool = True, context_window: int = 4096) -> None:
        super().__init__()
        self.engines = Engines(is_chat_model=is_chat_model, context_window=context_window)
        self.heard: list[Any] = []
        self.kept: dict[str, Any] = {}
        """What an act or a look wants to find again, by name."""


Build = Callable[[Stage], Any]
Act = Callable[[Any], Any]
Look = Callable[[Any, Stage], Any]


@dataclass
class Seen:
    """All that is to be seen of one act."""

    outcome: Any = None
    said: list[str] = field(default_factory=list)
    noise: Counter[str] = field(default_factory=Counter)
    tasks_left: list[str] = field(default_factory=list)
    state: Any = None
    heard: list[Any] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


def optimized(component: Any) -> Any:
    """The one place where this suite optimizes."""
    return component if os.environ.get("TEOLA_COMPARE") == "original" else teola_plugin.optimize(component)


def same(
    build: Build, act: Act, *, exact: bool = True, is_chat_model: bool = True, context_window: int = 4096,
    look: Look | None = None, least_hits: int = 0, change: Callable[[Any], object] | None = None,
    ways: Sequence[str] = WAYS[1:], may_fall_back: bool = False, by_chance: str | None = None,
) -> Any:  # fmt: skip
    """Act on an original and on optimized components, all freshly built, and compare; the outcome of the original.

    - `exact`: everything was said in the same order, not only the same things.
    - `look`: what is to be seen in the object that `build` gave and in its stage, after the act.
    - `least_hits`: how many results the patient component takes from its run-ahead at least.
    - `may_fall_back`: what the models say is such that a run-ahead may give up.
    - `by_chance`: a pattern of what is said, printed or logged more or less often by LlamaIndex itself.
    - `change`: done to the user's object after `optimize` and before the act.
    """
    seen: dict[str, Seen] = {}
    for way in ("original", *ways):
        with _settings_restored():
            stage = Stage(is_chat_model=is_chat_model, context_window=context_window)
            seen[way] = _see(stage, build, act, way, look, change)
        if by_chance is not None:
            seen[way].said = [each for each in seen[way].said if not re.search(by_chance, each)]
            noise = seen[way].noise
            seen[way].noise = Counter({each: noise[each] for each in noise if not re.search(by_chance, each)})
        if way != "original":
            differ(seen["original"], seen[way], exact=exact)
            fallbacks = [report.fallbacks for report in seen[way].reports if report.fallbacks]
            assert may_fall_back or not fallbacks, f"the run-ahead broke: {fallbacks}"
    if least_hits:
        assert sum(report.hits + report.shared for report in seen[ways[-1]].reports) >= least_hits
    return seen["original"].outcome


def differ(one: Seen, other: Seen, *, exact: bool) -> None:
    """Raises: AssertionError, with the first difference, where two acts were not seen to be the same."""
    for name in ("outcome", "state", "heard", "said", "noise", "tasks_left"):
        before, after = getattr(one, name), getattr(other, name)
        if name == "said" and not exact:
            before, after = Counter(before), Counter(after)
        assert after == before, f"{name}: {_first_difference(before, after)}"


def _first_difference(before: Any, after: Any) -> str:
    if isinstance(before, Counter) and isinstance(after, Counter):
        return f"missing {dict(before - after)}, new {dict(after - before)}"
    if isinstance(before, list) and isinstance(after, list):
        pairs = itertools.zip_longest(before, after, fillvalue="nothing")
        at = next(((i, *pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        return f"at {at[0]}: {_first_difference(at[1], at[2])}" if at else ""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in {**before, **after} if before.get(key, "nothing") != after.get(key, "nothing")]
        return f"in {keys}: {_first_difference(before.get(keys[0]), after.get(keys[0]))}"
    return f"{before!r:.1500} became {after!r:.1500}"


def _see(
    stage: Stage, build: Build, act: Act, way: str, look: Look | None, change: Callable[[Any], object] | None
) -> Seen:
    seen = Seen()
    with stage, _watching(seen, is_patient=way == "patient"):
        Settings.llm, Settings.embed_model = stage.engines.model, stage.engines.embedding
        Settings.callback_manager = stage.callback_manager
        own = build(stage)
        component = own if way == "original" else optimized(own)
        if change:
            change(own)
        stage.said.clear()
        with _noise(seen):
            seen.outcome = apart(_acted, act, component, seen)
            _readers_ended()
        seen.said = [CHANCE.sub("<id>", str(each)) for each in stage.said]
    seen.state = picture(apart(look, own, stage)) if look else None
    seen.heard = stage.heard
    return seen


def _acted(act: Act, component: Any, seen: Seen) -> Any:
    try:
        outcome = act(component)
        if inspect.isawaitable(outcome):
            outcome = asyncio.run(_alone(outcome, seen))
        outcome = picture(outcome)
    except Exception as e:
        outcome = picture(e)
    assert current() is None, "the call outlives the method in the caller's context"
    return outcome


def _readers_ended() -> None:
    """The threads that read LlamaIndex's streams; the caller has the end or the error a little before they are done."""
    for thread in threading.enumerate():
        if isinstance(thread, ReaderThread):
            thread.join(ENDS_S)


async def _alone(awaitable: Any, seen: Seen) -> Any:
    """Its outcome; and which tasks there are beside it when it has ended, and remain."""
    try:
        return await awaitable
    finally:
        ends_s = time.monotonic() + GRACE_S
        while (left := asyncio.all_tasks() - {asyncio.current_task()}) and time.monotonic() < ends_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        seen.tasks_left = sorted(task.get_coro().__qualname__ for task in left)


@contextlib.contextmanager
def _settings_restored() -> Iterator[None]:
    before = vars(Settings).copy()
    try:
        yield
    finally:
        vars(Settings).clear()
        vars(Settings).update(before)


# --- calls of twins ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _watching(seen: Seen, *, is_patient: bool) -> Iterator[None]:
    """Notes the reports of all calls, waits for their run-ahead where wanted, and sees to it that all are closed."""
    opened: list[OpenCall] = []
    really_open, really_ended = OptimizedPipeline.open, OptimizedPipeline._ended

    def open_(self: OptimizedPipeline, inputs: Sequence[Any], **settings: Any) -> OpenCall:
        call = really_open(self, inputs, **settings)
        opened.append(call)
        if is_patient and call.session:
            _tell_and_wait(call)
        return call

    def ended(self: OptimizedPipeline, report: Report, listeners: Sequence[Any]) -> None:
        seen.reports.append(report)
        really_ended(self, report, listeners)

    with mock.patch.object(OptimizedPipeline, "open", open_), mock.patch.object(OptimizedPipeline, "_ended", ended):
        yield
    if any(call._ended for call in opened):
        gc.collect()  # what was forgotten may hang in a circle
    left = [call for call in opened if call._ended]
    assert not left, f"{len(left)} of {len(opened)} calls were never closed"


def _tell_and_wait(call: OpenCall) -> None:
    """Let its run-ahead come to rest now, and again after each value it is told, or part it enters."""
    assert call.session
    observe = call.session.observe

    def observe_and_wait(component: object, value: Any) -> None:
        observe(component, value)
        _wait(call)

    enter = call.session.enter

    def enter_and_wait(component: object, value: Any) -> object | None:
        front = enter(component, value)
        _wait(call)
        return front

    call.session.observe = observe_and_wait  # type: ignore[method-assign]
    call.session.enter = enter_and_wait  # type: ignore[method-assign]
    _wait(call)


def _wait(call: OpenCall) -> None:
    """Until nothing is on its way; a coroutine of the caller's own loop cannot end meanwhile, so not for ever."""
    assert call.session
    ends_s = time.monotonic() + PATIENCE_S
    quiet = 0
    while time.monotonic() < ends_s and quiet < 2:
        runs = list(call.session._runs)
        is_at_rest = (runs and all(run._on_its_way == 0 for run in runs)) or not call.session._is_ahead
        quiet = quiet + 1 if is_at_rest and not _is_reading(call.session) else 0
        if not quiet or call.session._asides:
            time.sleep(0.001)
        else:
            return


def _is_reading(session: Any) -> bool:
    """Functions of the user's are read, or what was found in them is on its way."""
    if any(not each.done() for each in list(session._asides)):
        return True
    slots = [slot for of_key in list(session._slots._by_key.values()) for slot in list(of_key.slots)]
    return bool(session._asides) and any(slot.reply.outcome is None for slot in slots)


# --- what is heard besides --------------------------------------------------------------------------------------------


class _Log(logging.Handler):
    def __init__(self, noise: Counter[str]) -> None:
        super().__init__()
        self._noise = noise

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        said = CHANCE.sub("<id>", f"{record.levelname} {record.name}: {record.getMessage()} {error}")
        self._noise[said] += 1


@contextlib.contextmanager
def _noise(seen: Seen) -> Iterator[None]:
    """What is printed, logged and warned of, and what threads die of.

    Not which file a warning names: LlamaIndex counts stack frames to the caller, and the twin's is one more
    (docs/limits.md).
    """

    def died(args: Any) -> None:
        seen.noise[f"a thread died of {picture(args.exc_value)}"] += 1

    log, framework = _Log(seen.noise), logging.getLogger("llama_index")
    level = framework.level
    logging.getLogger().addHandler(log)
    framework.setLevel(logging.INFO)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            warnings.catch_warnings(record=True) as warned,
            mock.patch.object(threading, "excepthook", died),
        ):
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("always", RuntimeWarning)
            yield
    finally:
        framework.setLevel(level)
        logging.getLogger().removeHandler(log)
    text = CHANCE.sub("<id>", COLOUR.sub("", printed.getvalue()))
    seen.noise.update(f"printed {line}" for line in text.splitlines())
    for each in warned:
        if each.category in (UserWarning, RuntimeWarning):
            seen.noise[f"warned {each.category.__name__} {each.message}"] += 1


# --- what values look like --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Near:
    """A number that equals all that are within the tolerance."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and abs(self.value - other.value) <= TOLERANCE

    __hash__ = None  # type: ignore[assignment]


def picture(value: Any) -> Any:
    """The value in plain, comparable pieces, without what chance made."""
    match value:
        case None | bool() | int() | Near():
            return value
        case str():
            return CHANCE.sub("<id>", value)
        case float():
            return Near(float(value))
        case Mapping():
            return {picture(key): picture(each) for key, each in value.items()}
        case list() | tuple():
            return [picture(each) for each in value]
        case BaseException():
            return [type(value).__name__, picture(list(value.args))]
        case NodeWithScore():
            return ["node", picture(value.score), picture(value.node)]
        case BaseNode():
            return [type(value).__name__, *_node(value)]
        case AsyncBaseTool():
            return [type(value).__name__, value.metadata.name]
        case BaseModel():
            return [type(value).__name__, {name: picture(each) for name, each in value}]
        case type():
            return value.__name__
    if dataclasses.is_dataclass(value):
        return [type(value).__name__, {f.name: picture(getattr(value, f.name)) for f in dataclasses.fields(value)}]
    return CHANCE.sub("<id>", str(value)) if type(value).__module__ == "numpy" else type(value).__name__


def _node(node: BaseNode) -> list[Any]:
    relationships = {str(kind): picture(related) for kind, related in node.relationships.items()}
    embedding = [picture(float(x)) for x in node.embedding] if node.embedding is not None else None
    return [picture(node.node_id), picture(node.get_content()), picture(node.metadata), relationships, embedding]


# --- acts on query engines --------------------------------------------------------------------------------------------

FORMS = ("query", "aquery", "streaming", "async streaming")


def is_exact(form: str) -> bool:
    """Whether what is said has an order: nothing runs beside the caller."""
    return form in ("query", "streaming", "retrieve")


def asking(form: str, question: Any) -> Act:
    """Ask a query engine and read all of its answer."""

    def act(engine: Any) -> Any:
        query = copy.deepcopy(question)
        return _aanswer(engine.aquery(query)) if form in ("aquery", "async streaming") else _answer(engine.query(query))

    return act


def _answer(response: Any) -> Any:
    """Pieces before text: who asks for the text has read the stream."""
    stream = getattr(response, "response_gen", None)
    pieces = list(stream) if stream is not None else None
    return [type(response), pieces, _text(response), response.source_nodes, response.metadata]


async def _aanswer(asked: Any) -> Any:
    response = await asked
    stream = getattr(response, "response_gen", None)
    if stream is None or not hasattr(stream, "__aiter__"):
        return _answer(response)
    pieces = [piece async for piece in stream]
    return [type(response), pieces, None, response.source_nodes, response.metadata]


def _text(response: Any) -> Any:
    return response.response if hasattr(response, "response") else response.response_txt


def retrieving(form: str, query: Any) -> Act:
    """The nodes that a retriever finds."""
    return lambda retriever: (
        retriever.aretrieve(copy.deepcopy(query)) if form == "aretrieve" else retriever.retrieve(copy.deepcopy(query))
    )
