"""`optimize`, and the record of each optimized pipeline: trace, rewrite and plan once, run ahead at each call.

pipeline --adapter.trace--> p-graph --passes--> e-graph --planned--> plan              once
call: session + run-ahead of the plan, and the framework's own method inside           each time
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, Literal, TypeVar, get_args

from teola_plugin.adapters import SUPPORTED, Adapter, adapter_for
from teola_plugin.adapters.interception import interception
from teola_plugin.adapters.records import hold_back
from teola_plugin.adapters.source import origin_of
from teola_plugin.calling import name_of
from teola_plugin.effects import NOTHING, Assumed, assumed, assuming
from teola_plugin.engines import Urgency
from teola_plugin.errors import TeolaError
from teola_plugin.passes import DEFAULT, Context, Optimized, Pass, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.passes.speculate_branches import speculate_branches
from teola_plugin.plan import is_request
from teola_plugin.processor import processor
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.routes import CallRoutes, Routes
from teola_plugin.runtime import host
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.inline import Inline
from teola_plugin.runtime.hosts.selection import Runtime, place
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.runtime.session.report import Listener, Report
from teola_plugin.runtime.session.session import Begun, Session
from teola_plugin.seams import current, holds_engine_loop
from teola_plugin.tenancy import Terms, current_terms
from teola_plugin.trace import Asides, Break, Follower, Traced
from teola_plugin.worth import Worth

log = logging.getLogger(__name__)
P = TypeVar("P")
STANCE = "TEOLA_STANCE"
"""Environment variable, read at each call; `original` makes every optimized object run as the original."""

Speculate = Literal["certain", "branches", "learned", "off"]

on_every_call: list[Callable[[OptimizedPipeline, Report], None]] = []
"""Listeners of all optimized pipelines, for modules with their own way to report calls; called when a call ends."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `optimize`. `profiles`: latency profiles by engine name, for the passes.

    `assumed`: functions and classes which count as declared `@pure` in the pipeline. `stream_lists`: see `optimize`.
    `learns`: requests which the last calls make likely also run ahead.
    """

    passes: tuple[Pass, ...] = DEFAULT
    profiles: Mapping[str, Profile | LlmProfile] | None = None
    strict: bool = False
    run_ahead: bool = True
    callbacks: tuple[Callable[[Report], None], ...] = ()
    assumed: Assumed = NOTHING
    stream_lists: bool = False
    runtime: Runtime = "auto"
    learns: bool = False


class OpenCall:
    """One running call of an optimized pipeline. Implements `adapters.Call`."""

    __slots__ = ("_ended", "_left", "session")

    def __init__(
        self, session: Session | Inline | None, ended: Callable[[Report, Sequence[Listener]], None] | None
    ) -> None:
        self.session = session
        self._ended = ended
        self._left: Callable[[], None] | None = None

    def inside(self, leave: Callable[[], None]) -> OpenCall:
        """Mark the call as admitted; `leave` is called when the call leaves."""
        self._left = leave
        return self

    def close(self) -> None:
        ended, self._ended = self._ended, None
        left, self._left = self._left, None
        try:
            if ended and isinstance(self.session, Session):
                ended(self.session.close(), self.session.listeners)
        finally:
            if left:
                left()


class OptimizedPipeline:
    """The record of one object returned by `optimize`: graphs, plan and reports. Implements `adapters.Calls`.

    `reports`: the reports of the last calls, newest last. `routes`: the routes learned from the calls, if the pipeline
    learns.
    """

    def __init__(self, pipeline: Any, adapter: Adapter, traced: Traced, options: Options) -> None:
        self.pipeline = pipeline
        self.adapter = adapter
        self.traced = traced
        self.options = options
        self.optimized, self.prepared = _prepared(traced, options)
        self.reports: deque[Report] = deque(maxlen=64)
        self.routes = Routes() if options.learns else None
        self._worth = Worth()
        self._urgency = max(self.prepared.plan.remaining.values(), key=lambda each: each[:2], default=Urgency(1))
        self._stretches = {id(traced): (traced, self.prepared)}
        interception.keep(self)

    def open(
        self, inputs: Callable[[], Sequence[Any]], *, count: int = 1, loop: asyncio.AbstractEventLoop | None = None,
        is_lockstep: bool = False,
    ) -> OpenCall:  # fmt: skip
        """Open a call; see `adapters.Calls.open`. Raises: Overloaded, see `teola_plugin.configure`.

        Nothing runs ahead of a synchronous call on the event loop of the engines, since the call blocks that loop.
        """
        if loop is None and holds_engine_loop():
            return OpenCall(Inline(), None)
        if _is_original(os.environ.get(STANCE, "")):
            return OpenCall(None, self._ended)
        if current() is not None:  # a pipeline inside another one was let in with it
            return self._opened(inputs, count, loop, is_lockstep)
        terms = current_terms()
        if not interception.begin_call():
            return OpenCall(None, self._ended)
        try:
            host.admission.enter(terms, time.monotonic())
        except BaseException:
            interception.end_call()
            raise
        processor.begin()
        hold_back()
        leave = partial(_leave, terms)
        try:
            return self._opened(inputs, count, loop, is_lockstep).inside(leave)
        except BaseException:
            leave()
            raise

    def _opened(
        self, inputs: Callable[[], Sequence[Any]], count: int, loop: asyncio.AbstractEventLoop | None, is_lockstep: bool
    ) -> OpenCall:
        has_slack = self.prepared.plan.has_slack or self.traced.repeats or count > 1 or self.traced.follow
        may_run = bool(self.options.run_ahead and count and has_slack)
        is_at_rest = may_run and (processor.is_busy or not self._worth.is_worth())
        given = inputs() if may_run and (self.routes or not is_at_rest) else ()
        may_run &= is_at_rest or bool(given)
        routes = CallRoutes(self.routes, is_at_rest=is_at_rest) if self.routes and given else None
        session = Session(
            host, urgency=self._urgency, terms=current_terms(), loop=loop, assumed=self.options.assumed,
            speculates=speculate_branches in self.options.passes, routes=routes,
        )  # fmt: skip
        is_alone = is_at_rest or not may_run
        if is_alone:
            session.be_alone(rest=is_at_rest, is_off=not self.options.run_ahead)
        if self.traced.follow and (routes or not is_alone):
            if len(given) == 1:
                follower = self.traced.follow(given[0])
                session.follow(partial(self._follow, follower), follower.end, beside=follower.is_beside)
            return OpenCall(session, partial(self._learned, routes) if routes else self._judged)
        if is_alone:
            return OpenCall(session, self._judged if is_at_rest else self._ended)
        try:
            self.traced.check(given[0])
            values = [self.traced.bind(value) for value in given]
        except Exception as e:  # an input that the pipeline cannot take either, or a changed pipeline
            session.fell_back(e)
        else:
            for act, value in product(self.traced.on_call, given):
                act(value, session)
            session.run_ahead(self.prepared, values, self.traced.observed, is_lockstep=is_lockstep)
        return OpenCall(session, self._judged)

    def _follow(self, follower: Follower, component: object, value: Any, asides: Asides) -> Begun | None:
        with assuming(self.options.assumed) if self.options.assumed.objects else nullcontext():
            found = follower.tell(component, value, asides)
        if found is None:
            return None
        traced, inputs = found
        if id(traced) not in self._stretches:
            self._stretches[id(traced)] = (traced, _prepared(traced, self.options)[1])
        prepared = self._stretches[id(traced)][1]
        return (prepared, inputs, traced.observed) if prepared.plan.has_slack or traced.repeats else None

    @property
    def assumed(self) -> tuple[str, ...]:
        """The places of the functions covered by `assume_pure`."""
        return tuple(origin_of(each) for each in self.options.assumed.objects)

    def wake(self) -> None:
        """Let the next call run ahead, whatever the last calls gained."""
        self._worth = Worth()
        self.traced.wake()

    def again(self, pipeline: Any) -> Any:
        """Optimize another pipeline with the same options; see `adapters.Calls.again`."""
        return _optimize(pipeline, self.options)

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        """See `teola_plugin.explain`."""
        from teola_plugin.explanation import explain_pipeline

        return explain_pipeline(self, format, analyze)

    def _learned(self, routes: CallRoutes, report: Report, listeners: Sequence[Listener]) -> None:
        """Learn from an ended call. The call is judged only if some of the requests were already learned."""
        asked = report.hits + report.shared + report.misses + report.stale + report.wasted
        if routes.end(asked, report.wasted):
            self.wake()
        elif not (report.rested or routes.is_learning):
            self._worth.judge(report, processor.side_by_side)
        self._ended(report, listeners)

    def _judged(self, report: Report, listeners: Sequence[Listener]) -> None:
        self._worth.judge(report, processor.side_by_side)
        self._ended(report, listeners)

    def _ended(self, report: Report, listeners: Sequence[Listener]) -> None:
        self.reports.append(report)
        if not (listeners or on_every_call or self.options.callbacks):
            return
        told = [partial(listener, report, self.traced) for listener in listeners]
        told += [partial(tell, self, report) for tell in on_every_call]
        for tell in (*(partial(callback, report) for callback in self.options.callbacks), *told):
            try:
                tell()
            except Exception:  # a user's callback must not break the pipeline
                log.exception("%r failed on the report of a call", tell.func)


def optimize(
    pipeline: P, *, passes: Iterable[Pass] = DEFAULT, policy: PolicyName | None = None,
    profiles: Mapping[str, Profile | LlmProfile] | None = None, strict: bool = False, speculate: Speculate = "certain",
    callbacks: Iterable[Callable[[Report], None]] = (), assume_pure: Iterable[Callable[..., Any]] = (),
    stream_lists: bool = False, runtime: Runtime = "auto",
) -> P:  # fmt: skip
    """Return a faster object of the same type, with the same answers, callbacks and errors.

    A pipeline is a LangChain runnable, a LangGraph graph, a LlamaIndex component, or a function, a method or an object
    of a plain class that uses these; `optimize` also decorates functions and methods.

    The user's object is left unchanged. A pipeline with nothing to run ahead comes back as the same object; so does an
    object which is no known pipeline, with a warning. An optimized object comes back unchanged unless the options
    differ.

    - `passes`: the rewrites, in order; see `teola_plugin.passes`.
    - `policy`: how all engines of the process make batches from now on (`po`, `to`, `topology`, `critical_path`); None
      keeps the current policy, at first `critical_path`.
    - `profiles`: latency profiles by engine name, consulted by the passes.
    - `speculate`: which requests may run ahead. `certain`: on engines of the process, requests which the pipeline will
      make unless something raises before; on outside engines (a hosted model, a service, a store on a server, a tool),
      requests which the pipeline will make unless an engine fails, so nothing behind a function, a parser or a check
      which may still raise. `branches`: also requests behind those, and embeddings, searches and rerankings which a
      condition may yet decide against, if they would begin at once (see `teola_plugin.passes.speculate_branches`).
      `learned`: in a LangGraph graph, also requests on the route of nearly all of the last calls, before a router or an
      `if` has decided. Learned requests include some which the original would not make, to hosted models too: the
      provider may bill them and may see a text which a router would have withheld. `Report.wasted` counts them; while
      more than a tenth of the requests of the last calls were wasted, no learned request is made (see
      `teola_plugin.routes`). `off`: nothing runs ahead; engine work is still batched across queries.
    - `callbacks`: called with the `Report` of each call when the call ends.
    - `assume_pure`: functions, and classes of models, which count as declared `@pure` in the pipeline and in pipelines
      made from the result; for code which cannot be decorated. A `@writes` still counts.
    - `runtime`: where the engines run. `local`: in the process. `ray`: on Ray. `auto`: on Ray only if the process is
      connected and an engine of the same model already runs there; see `teola_plugin.runtime.hosts.selection`.
    - `stream_lists`: a hosted LangChain model which writes a list whose items are used one by one is called with
      streaming when running ahead, so that each item is used while the next is written. The framework gets the whole
      reply, put together by LangChain; the reply may lack the token usage (the model's `stream_usage=True` asks for the
      usage), and `response_metadata` is the metadata of a stream.

    Raises: TeolaError for an unknown `policy`, `speculate` or `runtime`; EngineError for an engine which cannot be
    started on Ray; TypeError for an `assume_pure` which is no list of functions and classes. With `strict`, TypeError
    for an object which is no known pipeline, and PassError where a pass broke the graph.
    """
    _require("speculate", speculate, get_args(Speculate))
    _require("runtime", runtime, get_args(Runtime))
    if policy is not None:
        _require("policy", policy, get_args(PolicyName))
        host.use(policy)
    vouched = assumed(assume_pure)
    for each in vouched.objects:
        if (adapter := adapter_for(each)) and adapter.name != "functions":
            raise TypeError(
                f"assume_pure wants functions and classes, not pipelines: give the function in {each!r:.80}"
            )
    passes = tuple(passes)
    if speculate == "branches" and speculate_branches not in passes:
        passes = (*passes, speculate_branches)
    options = Options(
        passes, profiles, strict, speculate != "off", tuple(callbacks), vouched, stream_lists, runtime,
        learns=speculate == "learned",
    )  # fmt: skip
    return _optimize(pipeline, options)  # type: ignore[no-any-return]


def _optimize(pipeline: Any, options: Options) -> Any:
    with interception.installed():
        return _twin_of(pipeline, options)


def _twin_of(pipeline: Any, options: Options) -> Any:
    adapter = adapter_for(pipeline)
    if adapter is None:
        return _unknown(pipeline, options.strict)
    calls = adapter.calls_of(pipeline)
    if isinstance(calls, OptimizedPipeline):
        return pipeline if calls.options == options else _twin_of(calls.pipeline, options)
    with assuming(options.assumed):
        traced = _placed(adapter.trace(pipeline), options.runtime)
    if not traced.may_gain:
        from teola_plugin.explanation import nothing_to_gain

        log.info("%s", nothing_to_gain(pipeline, traced))
        return pipeline
    return adapter.twin(pipeline, OptimizedPipeline(pipeline, adapter, traced, options))


def _leave(terms: Terms) -> None:
    host.admission.leave(terms, time.monotonic())
    processor.end()
    interception.end_call()


def _placed(traced: Traced, where: Runtime) -> Traced:
    """Add a break for each engine which could run elsewhere, or was to, but does not."""
    staying = place(traced.engines, where)
    breaks = [Break("TB301" if where == "ray" else "TB302", name, hint=why) for name, why in staying.items()]
    return replace(traced, breaks=(*traced.breaks, *breaks)) if breaks else traced


def _require(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise TeolaError(f"optimize({option}={value!r}): it is one of {', '.join(map(repr, known))}")


@cache
def _is_original(stance: str) -> bool:
    """Whether the stance is `original`. A misspelled stance is logged once."""
    if stance not in ("", "original"):
        log.warning("%s=%r switches nothing off; the one value that does is 'original'", STANCE, stance)
    return stance == "original"


def _unknown(pipeline: Any, strict: bool) -> Any:
    message = (
        f"{type(pipeline).__module__}.{type(pipeline).__qualname__} is no pipeline teola_plugin knows; supported are "
        f"{SUPPORTED}"
    )
    if strict:
        raise TypeError(message)
    log.warning("TB001 %s; it is returned as it is", message)
    return pipeline


def optimized(pipeline: Any) -> OptimizedPipeline:
    """Return the record behind an optimized object: graphs, pass records, breaks and the reports of calls.

    Raises: TeolaError for any other object.
    """
    adapter = adapter_for(pipeline)
    calls = adapter.calls_of(pipeline) if adapter else None
    if not isinstance(calls, OptimizedPipeline):
        raise TeolaError(f"{name_of(pipeline)} was not optimized, or had nothing to optimize: {pipeline!r:.80}")
    return calls


def _prepared(traced: Traced, options: Options) -> tuple[Optimized, Prepared]:
    context = _context(traced, options)
    optimized = optimize_graph(traced.graph, options.passes, context, strict=options.strict)
    plan = planned(optimized.graph, context)
    return optimized, Prepared(plan, traced.functions, traced.engines, options.stream_lists)


def _context(traced: Traced, options: Options) -> Context:
    used = {p.engine for p in traced.graph if is_request(p) or p.kind.endswith("prefilling")} & set(traced.engines)
    engines = {name: engine_for(traced.engines[name]) for name in used}
    profiles = {n: p for n, e in engines.items() if (p := getattr(e, "profile", None)) is not None}
    capabilities = {name: e.capabilities for name, e in engines.items()}
    pure = frozenset(p.setting("fn") for p in traced.graph if p.kind == "call" and p.engine == "python")
    return Context(
        {**profiles, **(options.profiles or {})}, capabilities, streams_lists=options.stream_lists, pure=pure
    )
