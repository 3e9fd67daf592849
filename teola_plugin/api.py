"""`optimize` and what it keeps: the way from a user's object to the same object, sooner.

pipeline --adapter.trace--> p-graph --passes--> e-graph --planned--> plan          once
call: session + run-ahead of the plan, and the framework's own method inside it    each time
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
"""Environment variable; `original` makes every optimized object run as the original, read at each call."""

Speculate = Literal["certain", "branches", "learned", "off"]

on_every_call: list[Callable[[OptimizedPipeline, Report], None]] = []
"""For modules that tell of calls in their own way: called when a call of any optimized pipeline ends."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `optimize` was asked for. `profiles`: latency profiles by engine name, for the passes.

    `assumed`: what counts as declared `@pure` in this pipeline. `stream_lists`: see `optimize`. `learns`: what is
    likely by the last calls is asked ahead.
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
    """Implements `adapters.Call`."""

    __slots__ = ("_ended", "_left", "session")

    def __init__(
        self, session: Session | Inline | None, ended: Callable[[Report, Sequence[Listener]], None] | None
    ) -> None:
        self.session = session
        self._ended = ended
        self._left: Callable[[], None] | None = None

    def inside(self, leave: Callable[[], None]) -> OpenCall:
        """It was let in, and calls this when it leaves."""
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
    """Implements `adapters.Calls`: what stands behind one object that `optimize` returned.

    `reports` are those of the last calls, newest last. `routes`: what they taught, if the pipeline learns.
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
        self, inputs: Sequence[Any], *, loop: asyncio.AbstractEventLoop | None = None, is_lockstep: bool = False
    ) -> OpenCall:
        """See `adapters.Calls.open`. Raises: Overloaded, see `teola_plugin.configure`.

        Nothing runs ahead of a synchronous call on the event loop of the engines, which could do nothing meanwhile.
        """
        if loop is None and holds_engine_loop():
            return OpenCall(Inline(), None)
        if _is_original(os.environ.get(STANCE, "")):
            return OpenCall(None, self._ended)
        if current() is not None:  # a pipeline inside another one was let in with it
            return self._opened(inputs, loop, is_lockstep)
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
            return self._opened(inputs, loop, is_lockstep).inside(leave)
        except BaseException:
            leave()
            raise

    def _opened(self, inputs: Sequence[Any], loop: asyncio.AbstractEventLoop | None, is_lockstep: bool) -> OpenCall:
        has_slack = self.prepared.plan.has_slack or self.traced.repeats or len(inputs) > 1 or self.traced.follow
        may_run = bool(self.options.run_ahead and inputs and has_slack)
        is_at_rest = may_run and (processor.is_busy or not self._worth.is_worth())
        routes = CallRoutes(self.routes, is_at_rest=is_at_rest) if self.routes and may_run else None
        session = Session(
            host, urgency=self._urgency, terms=current_terms(), loop=loop, assumed=self.options.assumed,
            speculates=speculate_branches in self.options.passes, routes=routes,
        )  # fmt: skip
        is_alone = is_at_rest or not may_run
        if is_alone:
            session.be_alone(rest=is_at_rest, is_off=not self.options.run_ahead)
        if self.traced.follow and (routes or not is_alone):
            if len(inputs) == 1:
                follower = self.traced.follow(inputs[0])
                session.follow(partial(self._follow, follower), beside=follower.is_beside)
            return OpenCall(session, partial(self._learned, routes) if routes else self._judged)
        if is_alone:
            return OpenCall(session, self._ended)
        try:
            values = [self.traced.bind(value) for value in inputs]
        except Exception as e:  # an input that the pipeline cannot take either: it will say so itself
            session.fell_back(e)
        else:
            for act, value in product(self.traced.on_call, inputs):
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
        """Where that stands which `assume_pure` vouches for."""
        return tuple(origin_of(each) for each in self.options.assumed.objects)

    def wake(self) -> None:
        """The next call runs ahead, whatever the last ones gained."""
        self._worth = Worth()

    def again(self, pipeline: Any) -> Any:
        """See `adapters.Calls.again`."""
        return _optimize(pipeline, self.options)

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        """See `teola_plugin.explain`."""
        from teola_plugin.explanation import explain_pipeline

        return explain_pipeline(self, format, analyze)

    def _learned(self, routes: CallRoutes, report: Report, listeners: Sequence[Listener]) -> None:
        """A call has ended from which is learned. It is judged only once there was something to learn from."""
        asked = report.hits + report.shared + report.misses + report.stale + report.wasted
        if routes.end(asked, report.wasted):
            self.wake()
        elif not (report.rested or routes.is_learning):
            self._worth.judge(report)
        self._ended(report, listeners)

    def _judged(self, report: Report, listeners: Sequence[Listener]) -> None:
        self._worth.judge(report)
        self._ended(report, listeners)

    def _ended(self, report: Report, listeners: Sequence[Listener]) -> None:
        self.reports.append(report)
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
    """The same pipeline, sooner: an object of the same type that gives the same answers, callbacks and errors.

    The user's object is left as it is. A pipeline without anything to run ahead, and anything that is no pipeline we
    know, comes back as the same object (with a warning in the second case). So does an optimized one, unless the
    options are others.

    - `passes`: the rewrites, in order; see `teola_plugin.passes`.
    - `policy`: how all engines of this process make batches from now on (`po`, `to`, `topology`, `critical_path`); None
      leaves that as it is, which is `critical_path` at first.
    - `profiles`: latency profiles by engine name, which the passes consult.
    - `speculate`: what may run ahead. `certain`: on engines of this process, what the pipeline will ask for unless
      something raises before; of engines elsewhere (a hosted model, a service, a store on a server, a tool), what it
      will ask for unless an engine fails: nothing behind a function, a parser or a check that may still raise.
      `branches`: also what stands behind such, and embeddings, searches and rerankings that a condition may yet decide
      against, where they would begin at once (see `teola_plugin.passes.speculate_branches`). `learned`: of a LangGraph
      graph, also what follows where nearly all of its last calls went, before a router or an `if` has decided that.
      Requests then go out that the original would not make, to hosted models too: these may bill them, and be sent a
      text that a router would have kept from them. They are counted (`Report.wasted`); while more than a tenth of the
      requests of the last calls were for nothing, none is made (see `teola_plugin.routes`). `off`: nothing; engine work
      is still batched across queries.
    - `callbacks`: called with the `Report` of each call when it ends.
    - `assume_pure`: functions, and classes of models, that count as declared `@pure` in this pipeline and in what is
      made of it; for code that cannot be decorated. A `@writes` stands.
    - `runtime`: where the engines run: in this process (`local`), on Ray (`ray`), or on Ray only where this process is
      connected and an engine of the same model runs there already (`auto`); see `teola_plugin.runtime.hosts.selection`.
    - `stream_lists`: a hosted LangChain model that writes a list whose items are used one by one is asked for a stream
      when it runs ahead, so that each item goes on while the next is written. The framework gets the reply as a whole,
      put together by LangChain; it may lack the token usage (`stream_usage=True` of the model asks for it), and its
      `response_metadata` is that of a stream.

    Raises: TeolaError for a `policy`, `speculate` or `runtime` that does not exist; EngineError for an engine that
    cannot be started on Ray; TypeError for an `assume_pure` that is no list
    of functions and classes. With `strict`, TypeError for what is no pipeline we know, and PassError where a pass broke
    the graph.
    """
    _require("speculate", speculate, get_args(Speculate))
    _require("runtime", runtime, get_args(Runtime))
    if policy is not None:
        _require("policy", policy, get_args(PolicyName))
        host.use(policy)
    vouched = assumed(assume_pure)
    for each in vouched.objects:
        if adapter_for(each):
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
        return _optimized(pipeline, options)


def _optimized(pipeline: Any, options: Options) -> Any:
    adapter = adapter_for(pipeline)
    if adapter is None:
        return _unknown(pipeline, options.strict)
    calls = adapter.calls_of(pipeline)
    if isinstance(calls, OptimizedPipeline):
        return pipeline if calls.options == options else _optimized(calls.pipeline, options)
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
    """With a break for each engine that was to run elsewhere, or could, and does not."""
    staying = place(traced.engines, where)
    breaks = [Break("TB301" if where == "ray" else "TB302", name, hint=why) for name, why in staying.items()]
    return replace(traced, breaks=(*traced.breaks, *breaks)) if breaks else traced


def _require(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise TeolaError(f"optimize({option}={value!r}): it is one of {', '.join(map(repr, known))}")


@cache
def _is_original(stance: str) -> bool:
    """Who misspells a kill switch should hear of it, once."""
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
    """What stands behind an object that `optimize` returned: graphs, pass records, breaks and the reports of its calls.

    Raises: TeolaError for any other object.
    """
    adapter = adapter_for(pipeline)
    calls = adapter.calls_of(pipeline) if adapter else None
    if not isinstance(calls, OptimizedPipeline):
        raise TeolaError(
            f"{type(pipeline).__qualname__} was not optimized, or had nothing to optimize: {pipeline!r:.80}"
        )
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
