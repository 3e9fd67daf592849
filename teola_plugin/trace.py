"""The result of an adapter: the p-graph of a pipeline, and the Python objects behind its names.

    trace(pipeline) -> Traced        never calls user code; unreadable parts become primitives @ pipeline

A primitive `@ pipeline` does not run ahead. The framework's own run computes the primitive in program order, the
adapter reports the value with `session.observe(component, value)`, and the dependent primitives go on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from teola_plugin.engines import EngineSpec, Urgency
from teola_plugin.graph import OUTSIDE, READER, Graph, Primitive
from teola_plugin.routes import CallRoutes
from teola_plugin.seams import Reply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Function:
    """A pure function behind `fn=`. `is_glue`: cheap code of the package, so it may run on the scheduler's own thread.

    Any other function, of the user or the framework, will also be run by the framework itself. The early run is
    deferred while the framework is busy: both share one interpreter, and running first would only delay the framework.

    A function which `asks` models and stores itself runs within a session. A coroutine function runs on the caller's
    loop. `is_total`: raises for no possible input. `is_stale`: whether arguments may have been changed in place by the
    primitives before, where one of those had to run.
    """

    call: Callable[..., Any]
    is_glue: bool = False
    asks: bool = False
    is_async: bool = False
    is_total: bool = False
    is_stale: Callable[..., bool] | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """Something left to the framework, with the reason and a hint for the user."""

    code: str
    what: str
    origin: str = ""
    hint: str = ""


@dataclass(slots=True)
class Reading:
    """A user function, and how far the calls so far could read the body.

    `name` and `origin`: as `Break.what` and `.origin`. `barrier`: the construct where reading ended, `where` its place
    (`file.py:line`) and `hint` a replacement to write; empty if the body was read whole. `skipped`: the constructs
    skipped when reading went on after the framework's run had passed them, with their places. `requests`: the number of
    requests found, and `ahead` the number found before the framework's run reached the function; None if not counted.
    `came`: the number of runs, None if not counted.
    """

    name: str
    origin: str = ""
    readings: int = 0
    barrier: str = ""
    where: str = ""
    hint: str = ""
    requests: int = 0
    ahead: int | None = 0
    skipped: tuple[tuple[str, str], ...] = ()
    came: int | None = None

    def note(self, barrier: Any, requests: int, skipped: Sequence[Any] = ()) -> None:
        """Record one more reading, to the end or to a `Barrier` of the reader, with the number of requests found."""
        self.readings += 1
        if skipped:
            self.skipped = tuple(dict.fromkeys((each.what, each.where.rsplit("/", 1)[-1]) for each in skipped))
        self.barrier, self.where, self.hint = ("", "", "") if barrier is None else (
            barrier.what, barrier.where.rsplit("/", 1)[-1], barrier.hint,
        )  # fmt: skip
        self.requests = max(self.requests, requests)

    def come(self) -> None:
        """Record one more run by the framework."""
        self.came = (self.came or 0) + 1


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced pipeline. `bind` maps the user's input to the graph's inputs; a missing name is unknown in advance.

    `observed` maps `id(component)` to the primitive @ pipeline computed by the component's run. `follow` begins to
    follow one call, given the input, where the framework's run reveals the next requests; then the graph, `bind` and
    `parts` (graphs of components by name) only serve to show, and to prepare, the usual first steps. `early` names
    requests which start outside of any graph, as soon as a reply calls for one. `makes`: the pipeline makes further
    pipelines to be optimized (an index makes engines). `readings`: the user functions which are read; they change from
    call to call. `repeats`: a single function makes several requests, so that running ahead can pay in the function
    alone. `loops` names components which make one request after the other; all are sent as the component begins.
    `on_call` is told each input of a call before the framework's run begins. `check` is asked once per call, with an
    input, and raises LookupError if the pipeline was changed after it was traced. `wake` lets parts that gained nothing
    before run ahead in the next call.
    """

    graph: Graph
    functions: Mapping[str, Function] = field(default_factory=dict)
    engines: Mapping[str, EngineSpec] = field(default_factory=dict)
    bind: Callable[[Any], Mapping[str, Any]] = lambda value: {"input": value}
    observed: Mapping[int, str] = field(default_factory=dict)
    breaks: tuple[Break, ...] = ()
    follow: Callable[[Any], Follower] | None = None
    early: tuple[str, ...] = ()
    parts: Mapping[str, Traced] = field(default_factory=dict)
    makes: bool = False
    readings: tuple[Reading, ...] = field(default=(), compare=False)
    repeats: bool = False
    loops: tuple[str, ...] = ()
    on_call: tuple[Callable[[Any, Asides], None], ...] = ()
    check: Callable[[Any], None] = lambda value: None
    wake: Callable[[], None] = lambda: None

    @property
    def may_gain(self) -> bool:
        """Whether something may run ahead, now or in pipelines made from this pipeline: `optimize` returns a twin."""
        is_followed = bool(self.follow or self.makes or self.loops)
        return is_followed or any(p.engine in self.engines or self._asks(p) for p in self.graph)

    @staticmethod
    def _asks(p: Primitive) -> bool:
        return p.engine == READER and OUTSIDE in p.reads


@dataclass(frozen=True, slots=True)
class Items:
    """Further items of a list computed by the framework's run, in order; `is_last` with the last items."""

    items: Sequence[Any]
    is_last: bool = False


class Follower(Protocol):
    """One call of a pipeline which is revealed as it runs.

    `is_beside`: the followed parts run ahead beside the present ones, and also for functions which run ahead.
    """

    is_beside: bool

    def tell(self, component: object, value: Any, asides: Asides) -> tuple[Traced, Mapping[str, Any]] | None:
        """Take a value from the framework's run.

        Returns the graph which may run ahead from here, with its inputs, if new.
        """
        ...

    def end(self, asides: Asides) -> None:
        """Take note that the call has ended."""
        ...


class Progress(NamedTuple):
    """How far a call is, and what running ahead has brought it so far.

    `asked`: items requested by the framework's run. `ahead`: items requested early that the framework's run has not
    taken. `gained_s`, `prefills`: as in the report of a call.
    """

    asked: int
    ahead: int
    gained_s: float
    prefills: int


class Mark(Protocol):
    """The position of the framework's run: the number of requests so far for each item.

    `is_beside`: further code makes requests beside the function reached, so the source of a request is not known.
    """

    is_beside: bool

    def taken(self, key: Hashable) -> int:
        """Return the number of earlier requests for an item."""
        ...

    def next(self, key: Hashable) -> int:
        """Return the occurrence of the next request for an item, after the mark and after earlier results of `next`."""
        ...


class Asked:
    """A request of the framework's run. `key`: makes the key. `mark`: makes the position before the request.

    `items`: how many items are requested at once; the key is that of the first.
    """

    def __init__(self, key: Callable[[], Hashable], mark: Callable[[], Mark], items: int = 1) -> None:
        self.key = key
        self.mark = mark
        self.items = items
        self._found: dict[Callable[[], Any], Any] = {}

    def once(self, find: Callable[[], T]) -> T:
        """Return the result of `find`, called once for all listeners of the request."""
        if find not in self._found:
            self._found[find] = find()
        return cast(T, self._found[find])


Hear = Callable[[Asked | None], bool]
"""A listener told of each request of the framework's run, and of the end of the call (None).

Returns whether to be told of further requests.
"""


class Asides(Protocol):
    """Early work started by a follower at once, outside of any graph.

    `speculates`: possible requests may run too. `routes`: where calls record their routes, if routes are learned.
    """

    @property
    def speculates(self) -> bool: ...

    @property
    def routes(self) -> CallRoutes | None: ...

    def aside(
        self, name: str, work: Callable[[], Any], *, is_async: bool = False, is_until_rewound: bool = False,
        mark: Mark | None = None,
    ) -> None:  # fmt: skip
        """Run a function (or coroutine function) ahead, with callbacks muted and errors dropped.

        Under `name`, if given, the work stands in the report. Its requests land in the slots of the call, but not after
        `rewind` if `is_until_rewound`: the framework's run may be past it. A coroutine runs on the caller's event loop.
        """
        ...

    def when_open(self, spec: EngineSpec, act: Callable[[], None]) -> None:
        """Call `act` now, or once requests may run ahead at the engine's provider.

        Never called if no request ever may, or only after the run-ahead began anew.
        """
        ...

    def withholds(self, spec: EngineSpec) -> bool:
        """Whether nothing may run ahead at the engine's provider now."""
        ...

    def request(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], mark: Mark | None = None
    ) -> Reply:
        """Request one item ahead of the framework's run.

        The reply belongs to the framework's next occurrence after earlier early requests, or after the `mark`."""
        ...

    def when_asked(self, hear: Hear) -> None:
        """Tell `hear` of each request of the framework's run, in the requesting thread."""
        ...

    def progress(self) -> Progress:
        """Return how far the call is."""
        ...

    def are_asked_together(self, replies: Sequence[Reply]) -> bool:
        """Whether the framework's run has asked for the last of these replies before the first of them came."""
        ...

    def rest(self) -> None:
        """Let the framework's run ask by itself until something runs ahead again.

        Nothing changes if an early reply waits for the framework's run, or if some work of `aside` may still ask.
        """
        ...

    def drop(self, reply: Reply) -> None:
        """Drop a reply of `request`; it counts as wasted unless the framework's run took it."""
        ...

    def read(self, work: Callable[[], None], *, may_wait: bool = False) -> None:
        """Read user code in another thread when there is time; its requests land in the slots.

        `may_wait`: while the framework's run computes, wait a short time for its next request.
        """
        ...

    def spent(self, seconds: float) -> None:
        """Count CPU seconds spent on reading user code."""
        ...

    def rewind(self) -> None:
        """Let further early requests match the framework's requests from its present position on."""
        ...

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        """Prefill a prefix on the engine, if it is text, without waiting."""
        ...
