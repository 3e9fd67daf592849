"""What an adapter makes of a pipeline: the p-graph, and the Python objects its names stand for.

    trace(pipeline) -> Traced        never calls the user's code; what it cannot read becomes a primitive @ pipeline

A primitive `@ pipeline` is not run ahead. The framework's own run computes it in program order, the adapter reports
its value with `session.observe(component, value)`, and what depends on it goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from teola_plugin.engines import EngineSpec, Urgency
from teola_plugin.graph import OUTSIDE, READER, Graph, Primitive
from teola_plugin.routes import CallRoutes
from teola_plugin.seams import Reply


@dataclass(frozen=True, slots=True)
class Function:
    """A pure function behind `fn=`. `is_glue`: ours and cheap, so it may run on the scheduler's own thread.

    Any other, of the user's or the framework's, is code that the framework's own run is about to run as well. It is put
    off while that run is busy: both want the one interpreter, and to run first what the run comes to anyhow would only
    delay it.

    One that `asks` models and stores itself does so within a session. A coroutine function runs on the caller's loop.
    `is_total`: it raises for no value that it can be given. `is_stale` tells of its arguments whether they may have
    been changed in place by what it comes after, where that had to be run.
    """

    call: Callable[..., Any]
    is_glue: bool = False
    asks: bool = False
    is_async: bool = False
    is_total: bool = False
    is_stale: Callable[..., bool] | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """Something that is left to the framework, why, and what the user may do about it."""

    code: str
    what: str
    origin: str = ""
    hint: str = ""


@dataclass(slots=True)
class Reading:
    """A function of the user's, and how far it was read in the calls so far.

    `name` and `origin`: as `Break.what` and `.origin`. `barrier`: the construct where reading ended, `where` it stands
    (`file.py:line`) and `hint` what to write instead; empty if it was read whole. `skipped`: what was not read where
    reading went on once the framework's run had come past it, and where that stands. `requests`: how many were found in
    it, and `ahead` how many of these before the framework's run came to the function; None where that is not counted.
    `came`: how often the run came to it, None where that is not counted.
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
        """It was read once more, to its end or up to a `Barrier` of the reader's; so many requests were found in it."""
        self.readings += 1
        if skipped:
            self.skipped = tuple(dict.fromkeys((each.what, each.where.rsplit("/", 1)[-1]) for each in skipped))
        self.barrier, self.where, self.hint = ("", "", "") if barrier is None else (
            barrier.what, barrier.where.rsplit("/", 1)[-1], barrier.hint,
        )  # fmt: skip
        self.requests = max(self.requests, requests)

    def come(self) -> None:
        """The framework's run has come to it once more."""
        self.came = (self.came or 0) + 1


@dataclass(frozen=True, slots=True)
class Traced:
    """`bind` turns the user's input into values for the graph's inputs; a name it leaves out is not known ahead.

    `observed` maps `id(component)` to the primitive @ pipeline whose value that component's run is. `follow` begins to
    follow one call, given its input, where the framework's run reveals what may run ahead: then the graph and `bind`
    only serve to show and to prepare what usually comes first, and so do `parts`, graphs of components by their names.
    `early` names what starts outside of any graph, as soon as a reply that calls for it says so. `makes`: pipelines are
    made from it (an index makes engines), which are to be optimized too. `readings`: the user's functions that are
    read; they change from call to call. `repeats`: one of them asks more than once, so that there is something to gain
    in it alone. `loops` names components that ask one request after the other, all of which are made as the component
    begins. `on_call` is told of each input of a call before the framework's run begins.
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

    @property
    def may_gain(self) -> bool:
        """Something may run ahead, of the pipeline or of what is made from it: `optimize` gives back a twin."""
        is_followed = bool(self.follow or self.makes or self.loops)
        return is_followed or any(p.engine in self.engines or self._asks(p) for p in self.graph)

    @staticmethod
    def _asks(p: Primitive) -> bool:
        return p.engine == READER and OUTSIDE in p.reads


@dataclass(frozen=True, slots=True)
class Items:
    """Some more items of a list that the framework's run computes, in order; `is_last` with the last of them."""

    items: Sequence[Any]
    is_last: bool = False


class Follower(Protocol):
    """One call of a pipeline that is revealed as it runs.

    `is_beside`: what it tells of runs ahead beside what does so already, and also for functions that run ahead.
    """

    is_beside: bool

    def tell(self, component: object, value: Any, asides: Asides) -> tuple[Traced, Mapping[str, Any]] | None:
        """From what the framework's run has told: what may run ahead from here, with its inputs, if that is news."""
        ...


class Mark(Protocol):
    """Where the framework's run is: how often it has asked for each item.

    `is_beside`: others ask beside the function that has come there, so that it is not known which of them asked.
    """

    is_beside: bool

    def taken(self, key: Hashable) -> int:
        """How often it had asked for an item."""
        ...

    def next(self, key: Hashable) -> int:
        """Which time an item will be that is asked for after this, and after those that this has told of."""
        ...


Hear = Callable[[Callable[[], Hashable], Callable[[], Mark]], bool]
"""Is told of each request that the framework's run makes: how to have its key, and where the run is before it. Returns
whether it wants to hear of more."""


class Asides(Protocol):
    """What a follower may begin at once, outside of any graph.

    `speculates`: also what is merely possible. `routes`: where calls take note of the way they go, if that is learned.
    """

    @property
    def speculates(self) -> bool: ...

    @property
    def routes(self) -> CallRoutes | None: ...

    def aside(
        self, name: str, work: Callable[[], Any], *, is_async: bool = False, is_until_rewound: bool = False,
        mark: Mark | None = None,
    ) -> None:  # fmt: skip
        """Run a function (or coroutine function) ahead; nobody hears of it, nor of its errors.

        Under its name, if it has one, it stands in the report. What it asks lands in the slots of the call, but not
        after `rewind`, if `is_until_rewound`: the framework's run may have come past it. A coroutine runs on the
        caller's event loop.
        """
        ...

    def when_open(self, spec: EngineSpec, act: Callable[[], None]) -> None:
        """Call `act` now, or once requests may run ahead at the provider of this engine.

        Not at all if that does not come, or only after the run-ahead began anew.
        """
        ...

    def withholds(self, spec: EngineSpec) -> bool:
        """Whether nothing may run ahead at the provider of this engine now."""
        ...

    def request(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], mark: Mark | None = None
    ) -> Reply:
        """Ask an engine for one item ahead of the framework's run, which will find it: the first time that it asks for
        it after what was asked ahead before, or after the `mark`."""
        ...

    def when_asked(self, hear: Hear) -> None:
        """Tell of each request of the framework's run as it is made, in the thread that makes it."""
        ...

    def drop(self, reply: Reply) -> None:
        """What was asked by `request` is not needed after all; if the framework's run did not take it, it is wasted."""
        ...

    def read(self, work: Callable[[], None]) -> None:
        """Read something of the user's in another thread, when there is time; what it asks lands in the slots."""
        ...

    def spent(self, seconds: float) -> None:
        """So much CPU time went into reading code of the user's."""
        ...

    def rewind(self) -> None:
        """What is asked from here on begins with what the framework's run has not come to yet."""
        ...

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        """Ask the engine to prefill a prefix, if it is text; nobody waits for it."""
        ...
