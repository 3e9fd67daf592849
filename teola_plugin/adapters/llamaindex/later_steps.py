"""The steps of a workflow behind the step that runs: read with the events that the step returns and sends.

A synchronous model call in a step holds up the event loop, so that the next steps begin, and are read, only afterwards.
Their requests are found before:

    start: sends Query(a), Query(b), Query(c)   --read on-->   ask(a), ask(b), ask(c): three requests at once
    the workflow's own run:                                    ask(a) waits, ask(b) and ask(c) find their replies

Reading goes on only from a step that runs alone, and ends where the next steps are not certain: behind a step that may
raise, at an event of an unknown class, at the end of the workflow. Where several events are on their way, or several
steps begin at once, the order of the steps is not certain. So only requests of the steps that these events begin are
made: none of these steps may change the state or end the workflow, and what follows each of them is read to see that
the workflow does not end there.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_index.core.workflow import StartEvent, StopEvent

from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.adapters.llamaindex.reading_workflows import (
    Beginning,
    Running,
    StepContext,
    beginning,
    ending,
    is_simple,
    kind_of_event,
    may_send,
    may_write,
    runs_alone,
)
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.calls import returned
from teola_plugin.adapters.reader.companions import Companions
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import NO_SOURCES, Barrier, Opaque, Stalled, Undecided

Steps = Any
"""A `parts.OwnSteps`."""


def read_step(run: Run, steps: Steps, name: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a step for the given arguments."""
    step = steps.functions[name]
    found = call(run, run.load(step), (run.load(steps.workflow),), dict(values))
    return returned(found, is_awaited=inspect.iscoroutinefunction(step))


def later_steps(steps: Steps, name: str, given: Mapping[str, Any]) -> LaterSteps | None:
    """Return the steps behind one that begins now; None unless the step runs alone, or first of several."""
    event = given.get(steps.functions[name]._step_config.event_name)
    begins = beginning(name, event) if steps.is_whole else None
    if begins is None or steps.functions.keys() != {*begins.names}:
        return None
    if begins.coming is None:
        is_known = isinstance(event, StartEvent) or not any(map(may_send, steps.functions.values()))
        return LaterSteps(steps, name, begins, begins.others) if is_known else None
    others = [*begins.others, *(pair for to, each in begins.coming for pair in _begun_by(steps, begins, to, each))]
    may_end = any(isinstance(each, StopEvent) for _, each in begins.coming)
    return None if may_end else LaterSteps(steps, name, begins, others)


def _begun_by(steps: Steps, begins: Beginning, to: str | None, event: Any) -> list[tuple[str, Any]]:
    kinds = {each: steps.functions[each]._step_config.accepted_events for each in begins.names}
    return [(each, event) for each in begins.names if each == to or (to is None and type(event) in kinds[each])]


@dataclass(eq=False)
class LaterSteps:
    """The steps behind the first of a workflow's steps that is read.

    `name`: the first step, whose begin is `begins`. `others`: the steps that begin beside it, each with its event.
    `reached`: how often each step was read in the last evaluation;
    `has_come`: whether that evaluation has read the first step to its end. `begun`: how often each step has begun in
    the workflow's own run, the first step aside.
    """

    steps: Steps
    name: str
    begins: Beginning
    others: Sequence[tuple[str, Any]]
    reached: Counter[str] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)
    has_come: bool = False

    def begin(self) -> None:
        """Begin an evaluation."""
        self.has_come, self.reached = False, Counter()

    def takes(self, name: str) -> bool:
        """Whether a step that begins now was read already."""
        self.begun[name] += 1
        return self.begun[name] <= self.reached[name]

    def read(
        self, run: Run, value: Any, context: StepContext, buffers: Any, others: Sequence[tuple[str, Any]],
        companions: Companions,
    ) -> None:  # fmt: skip
        """Read the steps beside the first step (`others`), or behind the first step, which has returned a `value`."""
        self.has_come = True
        self.reached = _Reading(self, run, context, buffers, others, companions).go_on(value)


@dataclass(eq=False)
class StepRun(OwnRun):
    """One run of a step, which begins with an `event`.

    `later`: the steps behind it, if they are read; `workflow`: the run of the workflow.

    `joined`: the earlier step whose reading has gone on to the run. `is_open`: not known yet whether a reading has.
    """

    step: str = ""
    event: Any = None
    later: LaterSteps | None = None
    workflow: Running | None = None
    joined: StepRun | None = None
    is_open: bool = False
    _has_ended: bool = False
    _coming: list[tuple[StepRun, Callable[[], None]]] = field(default_factory=list)

    def come(self, begin: Callable[[], None]) -> None:
        """Begin reading by `begin`, unless the reading of an earlier step has come here, or will have.

        A step that turns out later not to be read there is not read: its run may have changed what is read. So a
        reading that has not begun before its step has ended gives way to the next step's.
        """
        earlier: StepRun | None = self.workflow.reading if self.workflow is not None else None
        if earlier is not None and self.later is not None and earlier._gives_way():
            earlier = None
        if earlier is not None and earlier.later is not None:
            self.is_open = True
            with earlier._lock:
                earlier._coming.append((self, begin))
            if not earlier._is_reading:
                earlier._place(self)
            return
        self._begin(begin)

    def _begin(self, begin: Callable[[], None]) -> None:
        if self.workflow is not None:
            self.workflow.reading = self
        begin()

    def _gives_way(self) -> bool:
        """End the reading if the step has ended and nothing was read. Returns whether the reading has ended so."""
        with self._lock:
            is_late = self._has_ended and self.later is not None and not self._coming
        if not is_late or self.prediction is None or not self.prediction.withdraw():
            return False
        self._leave()
        return True

    def go_on(self, run: Run, found: Any) -> None:
        """Read the later steps."""
        value, context, buffers, others, companions = found
        if others and run.asks and self.is_alone():
            return
        if self.later is not None and not (run.skipped or run.used or run.has_changed_given):
            self.later.read(run, value, context, buffers, others, companions)
        elif others:
            companions.add_unread()
            companions.hold_back()

    def is_alone(self) -> bool:
        """Whether the step runs alone to the end."""
        return self.workflow is not None and runs_alone(self.workflow, self.step, self.event)

    # --- the runs of later steps -------------------------------------------------------------------------------------

    def _place(self, latest: StepRun | None = None) -> None:
        """Let the begun later steps join the reading; `latest` begins right now, and may begin a reading of its own."""
        while True:
            with self._lock:
                if not self._coming:
                    return
                own, begin = self._coming.pop(0)
            is_read = self.later is not None and self.later.takes(own.step)
            if not is_read:
                self._leave()
            own._join(self if is_read else None, partial(own._begin, begin) if own is latest else None)

    def _join(self, earlier: StepRun | None, begin: Callable[[], None] | None) -> None:
        with self._lock:
            self.is_open, self.joined = False, earlier
            left, self._left = (self._left, []) if earlier is not None else ([], self._left)
        for component, enter in left:
            if not self.takes(component, enter):
                enter()
        if earlier is None and begin is not None:
            begin()

    def _leave(self) -> None:
        """Read no later steps, and nothing more if this step has ended."""
        self.later = None
        if self._has_ended:
            super().end()

    def settle(self) -> None:
        """See `OwnRun`."""
        self._place()
        if self._has_ended and self.later is not None and not self.later.has_come:
            self._leave()
        super().settle()

    def end(self, *, is_failed: bool = False) -> None:
        """See `OwnRun`. The reading of later steps goes on, unless this step has failed."""
        self._has_ended = True
        if not is_failed:
            ending(self.step, self.event)
        if self.joined is not None:
            if is_failed:
                self.joined._leave()
        elif is_failed or self.later is None or not (self.later.has_come or self._is_reading):
            self._leave()

    @property
    def _is_reading(self) -> bool:
        return self.prediction is not None and self.prediction.is_reading

    # --- components inside of it -------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """See `OwnRun`."""
        return not self.is_open and (self.joined.is_over if self.joined is not None else super().is_over)

    def takes(self, component: Any, enter: Callable[[], object]) -> bool:
        """See `OwnRun`."""
        return self.joined.takes(component, enter) if self.joined is not None else super().takes(component, enter)

    def foresees(self, component: Any) -> bool:
        """See `OwnRun`."""
        return self.joined.foresees(component) if self.joined is not None else super().foresees(component)

    def will_hear(self, component: Any, method: str, args: Any, kwargs: Any) -> Hashable | None:
        """See `OwnRun`."""
        if self.joined is not None:
            return self.joined.will_hear(component, method, args, kwargs)
        return super().will_hear(component, method, args, kwargs)

    def hear(self, key: Hashable, value: Any) -> None:
        """See `OwnRun`."""
        if self.joined is not None:
            self.joined.hear(key, value)
        else:
            super().hear(key, value)


@dataclass(eq=False)
class _Reading:
    """One evaluation. `reached`: see `LaterSteps`; `open`: how many readings of a step wait for replies.

    `companions`: the first step, and the steps beside the first one; `is_whole`: each step beside others is read.
    """

    later: LaterSteps
    run: Run
    context: StepContext
    buffers: Mapping[str, Mapping[str, Sequence[Any]]]
    others: Sequence[tuple[str, Any]]
    companions: Companions
    reached: Counter[str] = field(default_factory=Counter)
    is_whole: bool = False
    contexts: list[StepContext] = field(default_factory=list)
    open: Counter[str] = field(default_factory=Counter)

    def go_on(self, value: Any) -> Counter[str]:
        """Read on, and return how often each step was read."""
        with contextlib.suppress(Stalled, Undecided, Exception):
            self._go_on(self._events(value, self.context))
        return self.reached

    def _go_on(self, events: list[Any]) -> None:
        if self.others:
            self.open[self.later.name] += bool(self.run.asks)
            with self._held_back(self.companions):
                if not any(map(self._may_end, self.later.begins.ended)):
                    self._fan(self.others, events, self.companions, [self.later.name, *self.later.begins.queued])
            return
        while len(following := [(name, each) for each in events for name in self._acceptors(each)]) == 1:
            events = self._read(*following[0])
        companions = Companions(self.run, [self.context.state])
        with self._held_back(companions):
            self._fan(following, [], companions)

    @contextlib.contextmanager
    def _held_back(self, companions: Companions) -> Iterator[None]:
        """Let the steps beside each other that are read inside the context wait for each other."""
        try:
            yield
        finally:
            if not self.is_whole:
                companions.add_unread()
            companions.hold_back()
            try:
                companions.require_nothing_shared()
            except Barrier as e:
                raise Stalled(e.what) from e

    def _fan(
        self, following: Sequence[tuple[str, Any]], events: list[Any], companions: Companions,
        beside: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Read steps which begin in any order, and what follows each step; `events`: of the steps `beside`."""
        if not all(map(self._may_run_beside, {*beside, *(name for name, _ in following)})):
            return
        with companions.one():
            self._drain(events)
        run, own = self.run, {self.later.name: self._of_replies()} if beside else {}
        for name, event in following:
            if self.open[name] >= self._config(name).num_workers:
                return
            asked, mine = len(run.asks), own.get(name, NO_SOURCES)
            run.gates -= mine  # the runs of one step are like the rounds of one loop, see `asking.Ask`
            with companions.one(given=[event]):
                events = self._read(name, event, is_beside=True)
                own[name] = mine | self._of_replies()
                run.gates |= mine
                self.open[name] += len(run.asks) > asked
                self._drain(events)
        self.is_whole = not self.later.begins.queued

    def _of_replies(self) -> frozenset[Hashable]:
        """Return the gates that stand for replies which a step may not be able to read."""
        return frozenset(gate for gate in self.run.gates if type(gate) is tuple)

    def _drain(self, events: list[Any]) -> None:
        """Read the steps that follow several events. Raises: Stalled if a step among the steps makes requests."""
        while events:
            event = events.pop(0)
            for name in self._acceptors(event):
                reached, asked = self.reached.copy(), self.run.counts.total()
                try:
                    with self.run.doubted():
                        events[:0] = self._read(name, event, is_beside=True, is_behind=True)
                    if self.run.counts.total() > asked:
                        raise Stalled("requests in an order that is not certain")
                except BaseException:
                    self.reached = reached  # to be read as it begins
                    raise

    def _read(self, name: str, event: Any, *, is_beside: bool = False, is_behind: bool = False) -> list[Any]:
        """Read a step, and return the events which the step returns and sends. `is_behind`: behind a possible error."""
        run, steps, config = self.run, self.later.steps, self._config(name)
        is_async = inspect.iscoroutinefunction(steps.functions[name])
        if (run.gates and not is_behind) or run.has_changed_given or not is_simple(config) or config.resources:
            raise Stalled("it may not come there")
        if is_async is not self.context.is_async:
            raise Stalled("it runs on another thread")
        context = StepContext(
            self.context.state, self.context.is_checked, self.buffers.get(name, {}), lambda waits: steps.is_whole,
            is_async, is_beside=is_beside, origin=self.context,
        )  # fmt: skip
        self.contexts.append(context)  # known by its id
        asked = run.counts.total()
        self.reached[name] += 1
        try:
            values = {config.event_name: event}
            if config.context_parameter:
                values[config.context_parameter] = Opaque(context, is_own=True)
            if is_beside and name not in steps.apart:
                run.begin_beside_unread()
            value = read_step(run, steps, name, values)
        except Barrier as e:
            self.reached[name] -= 1
            run.stops.clear()
            raise Stalled(e.what) from e
        found = run.counts.total() - asked
        reading = steps.readings[name]
        reading.note(None, found)
        reading.ahead = max(reading.ahead or 0, found)
        return self._events(value, context)

    def _events(self, value: Any, context: StepContext) -> list[Any]:
        if self.run.in_doubt and not context.is_beside:
            raise Stalled("it may not come there")
        sent = context.sent
        if sent and (context.is_beside or context.is_unsure):
            raise Stalled("it sends events that are not certain")
        return [*([] if value is None else [value]), *sent]

    def _acceptors(self, event: Any) -> list[str]:
        """Return the steps that an event begins. Raises: Stalled."""
        kind = kind_of_event(event)
        if kind is None or foreign.is_subtype(kind, StopEvent):
            raise Stalled("the workflow may end")
        return [
            name for name in self.later.begins.names if any(each is kind for each in self._config(name).accepted_events)
        ]

    def _config(self, name: str) -> Any:
        return self.later.steps.functions[name]._step_config

    def _may_run_beside(self, name: str) -> bool:
        """Whether a step neither ends the workflow nor changes its state."""
        return not (self._may_end(name) or may_write(self.later.steps.functions[name]))

    def _may_end(self, name: str) -> bool:
        kinds = self._config(name).return_types
        return any(not foreign.is_class(each) or foreign.is_subtype(each, StopEvent) for each in kinds)
