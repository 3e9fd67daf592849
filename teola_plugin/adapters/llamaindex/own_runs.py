"""Runs of user functions, read while they run: each certain request is made at once.

When the framework's run reaches a component of a user's class, or a step of a workflow, a prediction ahead of the run
begins (see adapters/reader). Inner components that the prediction has reached are not entered again by the inner run: a
component that was read through, a stock component that runs beside the call. Inner components not reached by the end of
the prediction are entered then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.llamaindex.reading_parts import key_of, told_key
from teola_plugin.adapters.llamaindex.streams import STREAMS
from teola_plugin.adapters.llamaindex.unblocked import only_asks
from teola_plugin.adapters.reader.asking import TOLD, Request
from teola_plugin.adapters.reader.prediction import Prediction, State, acted, noting
from teola_plugin.adapters.reader.run import NOWHERE, Given, Run, TooLarge
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.adapters.reader.values import Barrier
from teola_plugin.engines import Done
from teola_plugin.seams import Reply
from teola_plugin.trace import Asides, Mark, Reading

LOOK_S = 0.1
"""The interval at which a run waiting for its prediction checks whether the call is over."""

_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

innermost: ContextVar[OwnRun | None] = ContextVar("teola_own_run", default=None)
"""The innermost run of a user function that is read."""


@contextlib.contextmanager
def outermost() -> Iterator[None]:
    """Surround a call of its own: the function that makes it, if one is read, is not read up to here."""
    token = innermost.set(None)
    try:
        yield
    finally:
        innermost.reset(token)


Program = Callable[[LlamaIndexAsker, Run, Any], object]
"""A function that reads a user function, with copies of its arguments."""


@dataclass(eq=False)
class OwnRun:
    """One run of a user function. `given`: its arguments; `is_async`: whether the run is on an event loop.

    `writes`: the run is a step that may change the state of its workflow. `is_steady`: see `Live`. `session`: of the
    call. `blocks`: the run is synchronous code on an event loop; see `ready`. `around`: the enclosing run. `roots`: the
    component or workflow with the function, and other functions that are read. `make_asker`: makes the asker of a
    reading. `is_beside`: other code of the pipeline may run at the same time. `is_whole`: the run is a call of its
    own, of which nobody gets anything before its end. `runs_loops`: no event loop runs in the thread of the run, so
    that stock code there runs one where it calls coroutines of its own.
    """

    program: Program
    given: Any
    reading: Reading
    is_async: bool
    writes: bool = False
    is_steady: Callable[[], bool] = lambda: False
    on_end: Callable[[], None] = lambda: None
    session: Any = None
    blocks: bool = False
    around: OwnRun | None = None
    roots: Sequence[Any] = ()
    make_asker: Callable[..., LlamaIndexAsker] = LlamaIndexAsker
    is_beside: bool = True
    is_whole: bool = False
    runs_loops: bool = field(default_factory=lambda: asyncio._get_running_loop() is None)
    prediction: Prediction | None = None
    _asker: LlamaIndexAsker | None = None
    _beside: Counter[type | int] = field(default_factory=Counter)
    _entered: Counter[type | int] = field(default_factory=Counter)
    _left: list[tuple[Any, Callable[[], object]]] = field(default_factory=list)
    _told: _Told = field(default_factory=lambda: _Told())
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: int = 0
    _left_alone: list[Callable[[], bool]] = field(default_factory=list)
    _waits_for_run: bool = False
    _on_quiet: Callable[[], object] = lambda: None
    _made: Callable[[], int] = lambda: 0

    # --- the prediction ----------------------------------------------------------------------------------------------

    def come(self, begin: Callable[[], None]) -> None:
        """Begin reading by `begin`, as the framework's run comes to the function."""
        begin()

    def go_on(self, run: Run, found: Any) -> None:
        """Read what follows the function, which was read whole. `found`: the result of the program."""

    def begin(self, asides: Asides) -> None:
        """Begin reading the function, beside its run."""
        given = Given()
        try:
            copies = given.copy(self.given)
        except TooLarge as e:
            self.reading.note(Barrier(f"it is given {e}"), 0)
            return
        given.note(self.roots)
        if self.is_whole:
            given.note_alone()
        own = weakref.ref(self)  # the prediction keeps the run until its end

        def reports(component: Any, method: str, asked: Hashable) -> Any:
            return None if (run := own()) is None else run._reports(component, method, asked)

        asker = self._asker = self.make_asker(is_async=self.is_async, reports=reports, runs_loops=self.runs_loops)

        def program(run: Run) -> None:
            asker.begin()
            run.is_beside, run.where = self.is_beside, self
            with noting(run, self.reading.note):
                found = self.program(asker, run, copies)
            self.go_on(run, found)

        listener = Listener(lambda: self if self._is_running() else NOWHERE, roots=self.roots)
        asides.when_asked(listener.hear)
        self._made = lambda: asides.progress().asked
        self.prediction = Prediction(
            asker, _Line(self, asides), State(program, given), speculates=asides.speculates, listener=listener
        )
        self.prediction.begin()

    def _reports(self, component: Any, method: str, asked: Hashable) -> Any:
        found = self._alike(component, method, asked)
        return found if found is not None and self._told.reports(found, key_of(found, method, asked)) else None

    def _alike(self, component: Any, method: str, asked: Hashable) -> Any:
        """Return the run's own component for one that the reader has made, if there is one; any other itself."""
        return self._told.alike(component, method, asked) if self._has_made(component) else component

    def _has_made(self, component: Any) -> bool:
        return self._asker is not None and self._asker.has_made(component)

    def _is_running(self) -> bool:
        """Whether the code in this context is part of the run."""
        own = innermost.get()
        while own is not None and own is not self:
            own = own.around
        return own is self

    @property
    def is_over(self) -> bool:
        """Whether no more requests run ahead of the run."""
        return self.prediction is None or self.prediction.is_over

    def end(self, *, is_failed: bool = False) -> None:
        """End the prediction with the framework's run of the function."""
        self.on_end()
        prediction, self.prediction = self.prediction, None  # the prediction refers to this run
        if prediction is not None:
            prediction.stop()

    def awaits(self, request: Request) -> Reply:
        """Return the reply for a value that only the framework's run has."""
        component = request.spec.resource
        with self._lock:
            self._told.components.add(id(component))
            missed = [enter for each, enter in self._left if each is component]
            self._left = [(each, enter) for each, enter in self._left if each is not component]
        for enter in missed:
            enter()
        with self._lock:
            self._told.is_alone(request.key)
            reply = self._told.asked(request.key)
        self._wait_for_run()
        return reply

    def awaits_entered(self, request: Request) -> Reply | None:
        """Return the reply for a component's value, if the framework's run has entered the component; else None.

        Then the component runs ahead on its own, and must not run beside the call as well.
        """
        asked: Any = request.key
        if asked[0] != "act":
            return None
        _, _, method, given = asked
        with self._lock:
            key = key_of(self._alike(request.spec.resource, method, given), method, given)
            is_alone, reply = self._told.is_alone(key), self._told.asked(key)
        if not is_alone:  # the value belongs to the request that is made now
            return None
        self._wait_for_run()
        return reply

    def _wait_for_run(self) -> None:
        self._waits_for_run = True
        self._on_quiet()

    def will_hear(self, component: Any, method: str, args: Any, kwargs: Any) -> Hashable | None:
        """Return the key of a method's value as the framework's run begins the method; None for unwanted values."""
        is_known, prediction = self._told.is_known(component), self.prediction
        is_wanted = prediction is not None and prediction.may_go_on if is_known else not self.is_over
        key = told_key(component, method, args, kwargs) if is_wanted else None
        if is_known:
            with self._lock:
                self._told.begins(component, key)
        return key

    def hear(self, key: Hashable, value: Any) -> None:
        """Record the value of a method, but no stream: kept here, a stream that is left would not end."""
        if isinstance(value, STREAMS):
            return
        with contextlib.suppress(TooLarge):
            copied = Given().copy(value)
            with self._lock:
                self._told.heard(key, copied)

    def asks(self, request: Request) -> None:
        """Count an early request."""
        self._asked += 1
        self.reading.ahead = max(self.reading.ahead or 0, min(self._asked, self.reading.requests))
        if request.act is not None:
            component = request.spec.resource
            self._beside[type(component) if self._has_made(component) else id(component)] += 1

    # --- turns on the event loop -------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return when the function's code can run without blocking the event loop on early requests.

        Blocking code runs in the order of arrival, one function after the other, as without waiting.
        """
        session, loop = self.session, asyncio.get_running_loop()
        if not self.blocks or session is None or session.is_unheard or self.prediction is None:
            return
        async with _turns.setdefault(loop, asyncio.Lock()):
            quiet = loop.create_future()
            self._on_quiet = lambda: _wake(loop, quiet)
            await asyncio.sleep(0)  # so that runs begun at the same time are read too
            while not (self.is_over or self._is_stuck or session.is_closed):
                await asyncio.wait([quiet], timeout=LOOK_S)
                quiet = loop.create_future()

    def leaves(self, still: Callable[[], bool]) -> None:
        """Note that requests are left to the framework's run, as long as `still` holds."""
        if still():
            self._left_alone.append(still)
            self._on_quiet()

    @property
    def _is_stuck(self) -> bool:
        """Whether the reading waits for a value of the framework's run."""
        return self._waits_for_run or any(still() for still in self._left_alone)

    # --- components inside of it -------------------------------------------------------------------------------------

    def takes(self, component: Any, enter: Callable[[], object]) -> bool:
        """Whether the run of a component inside this run is predicted, or may be: then `enter` is called if not.

        `enter` is not called late if the framework's run has made a request by then: that one would be made once more.
        """
        made = self._made()

        def enter_late() -> None:
            if self._made() == made:
                enter()

        with self._lock:
            if self._has_reached(component):
                return True
            if self.is_over or id(component) in self._told.components:
                self._told.enters(self._told.begun_by_thread(component))
                return False
            self._left.append((component, self._noting(component, enter_late)))
            return True

    def foresees(self, component: Any) -> bool:
        """Whether everything inside a component is predicted, or may be, as this run reaches the component."""
        return (not self.is_over or self._is_reached(component)) and self._told.is_known(component)

    def leaves_alone(self, component: Any) -> bool:
        """Whether a component in which the framework's run is may run ahead on its own: no reading has come to it."""
        with self._lock:
            if self._is_reached(component):
                return False
            self._told.enters(self._told.begun_by_thread(component))
            return True

    def _is_reached(self, component: Any) -> bool:
        place, read = self._place_of(component), 0
        if self._asker is not None:
            read = self._asker.reached[id(component)]
        return read + self._beside[place] > self._entered[place]

    def _has_reached(self, component: Any) -> bool:
        if not self._is_reached(component):
            return False
        self._entered[self._place_of(component)] += 1
        return True

    def _place_of(self, component: Any) -> type | int:
        """Return what a component is counted by: its class, for a component that the reader may have made alike."""
        number, cls = id(component), type(component)
        is_known = number in self._beside or (self._asker is not None and number in self._asker.reached)
        return cls if cls in self._beside and not is_known else number

    def settle(self) -> None:
        """Enter the components not reached, once reading is over. Called after each reading."""
        with self._lock:
            if not self.is_over:
                return
            self._on_quiet()
            left, self._left = self._left, []
            missed = [enter for component, enter in left if not self._has_reached(component)]
        for enter in missed:
            enter()

    def _noting(self, component: Any, enter: Callable[[], object]) -> Callable[[], None]:
        """Return a function that enters a component and records that the call runs ahead on its own."""
        key = self._told.begun_by_thread(component)

        def enter_alone() -> None:
            with self._lock:
                self._told.enters(key)
            enter()

        return enter_alone


def _wake(loop: asyncio.AbstractEventLoop, quiet: asyncio.Future[None]) -> None:
    def wake() -> None:
        if not quiet.done():
            quiet.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(wake)


@dataclass(frozen=True)
class _Line:
    """Implements `prediction.Line`: requests land in the slots of the call."""

    own: OwnRun
    asides: Asides

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """See `Line`."""
        if request.op == TOLD:
            return self.own.awaits(request)
        if request.act is not None and (entered := self.own.awaits_entered(request)) is not None:
            return entered
        self.own.asks(request)
        spec, asides = request.spec, self.asides
        if request.act is not None:
            reply = acted(asides, request, mark)
            self.own.leaves(lambda: spec.is_outside and reply.outcome is None and asides.withholds(spec))
        else:
            reply = asides.request(spec, request.op, request.payload, request.settings, mark)
            self.own.leaves(lambda: spec.is_outside and reply.outcome is None and reply.provider_call is None)
        return reply

    def give_up(self, reply: Reply) -> None:
        """See `Line`."""
        self.asides.drop(reply)

    def soon(self, work: Callable[[], None]) -> None:
        """See `Line`."""

        def read() -> None:
            work()
            self.own.settle()

        self.asides.read(read)

    def spent(self, seconds: float) -> None:
        """See `Line`."""
        self.asides.spent(seconds)


class _Told:
    """Values reported by the framework's run, by key: the n-th request of a key gets the n-th value."""

    def __init__(self) -> None:
        self.components: set[int] = set()
        self._begun: dict[int, list[Hashable | None]] = defaultdict(list)
        self._owners: dict[int, Any] = {}
        self._alike: dict[int, Any] = {}
        self._wanted: set[Hashable] = set()
        self._values: dict[Hashable, list[Any]] = defaultdict(list)
        self._replies: dict[Hashable, list[Reply]] = defaultdict(list)
        self._only_ask: dict[int, bool] = {}
        self._begun_here: dict[int, tuple[int, Hashable]] = {}
        self._alone: Counter[Hashable] = Counter()

    def is_known(self, component: Any) -> bool:
        """Whether the component only asks, so nothing awaits the reported value."""
        number = id(component)
        if number not in self._only_ask:
            self._only_ask[number] = only_asks(component)
        return self._only_ask[number]

    def begins(self, component: Any, key: Hashable | None) -> None:
        """Record that a method of a component begins. `key`: of the method's value, None if the value is unwanted."""
        self._begun[id(component)].append(key)
        self._owners[id(component)] = component
        self._begun_here[threading.get_ident()] = id(component), key

    def alike(self, component: Any, method: str, asked: Hashable) -> Any:
        """Return the one component of a class that was asked so first; None if there are several, or none."""
        if id(component) not in self._alike:
            owners = [each for each in self._owners.values() if type(each) is type(component)]
            alike = [each for each in owners if key_of(each, method, asked) in self._begun[id(each)]]
            if len(alike) != 1:
                return None
            self._alike[id(component)] = alike[0]
        return self._alike[id(component)]

    def reports(self, component: Any, key: Hashable) -> bool:
        """Whether the framework's run reports a value of a component that only asks: of the first such call."""
        begun = self._begun[id(component)]
        if begun.count(key) == 1 and None not in begun:
            self._wanted.add(key)
        return key in self._wanted

    def begun_by_thread(self, component: Any) -> Hashable | None:
        """Return the key of the component's call that this thread has just begun."""
        number, key = self._begun_here.get(threading.get_ident(), (0, None))
        return key if number == id(component) else None

    def enters(self, key: Hashable | None) -> None:
        """Record that a call runs ahead on its own. `key`: of its value, None if that is not known."""
        if key is not None:
            self._alone[key] += 1

    def is_alone(self, key: Hashable) -> bool:
        """Whether one more call of a key runs ahead on its own; it counts as asked for."""
        is_alone = self._alone[key] > 0
        self._alone[key] -= is_alone
        return is_alone

    def asked(self, key: Hashable) -> Reply:
        """Return a reply for the next value of a key."""
        reply, at = Reply(), len(self._replies[key])
        self._replies[key].append(reply)
        if at < len(self._values[key]):
            reply.put(Done(self._values[key][at]))
        return reply

    def heard(self, key: Hashable, value: Any) -> None:
        """Record the next value of a key."""
        at = len(self._values[key])
        self._values[key].append(value)
        if at < len(self._replies[key]):
            self._replies[key][at].put(Done(value))


class Live:
    """The runs being read in a call. Early requests begin behind the requests already made by the framework's run.

    The state of a workflow is steady for a step if no step with possible changes runs beside.
    """

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[OwnRun] = weakref.WeakSet()
        self._writers: set[OwnRun] = set()
        self._begun = 0

    def begin(self, own: OwnRun, asides: Asides) -> None:
        """Begin reading a run, unless it was read before."""
        own.come(lambda: self._begin(own, asides))

    def _begin(self, own: OwnRun, asides: Asides) -> None:
        is_alone = not self._writers
        if own.writes:
            self._writers.add(own)
            self._begun += 1
            own.on_end = lambda: self._writers.discard(own)
        begun = self._begun
        own.is_steady = lambda: is_alone and self._begun == begun
        if all(each.is_over for each in list(self._runs)):
            asides.rewind()
        self._runs.add(own)
        own.begin(asides)
