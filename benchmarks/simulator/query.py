"""One query of a simulation: what its graph scheduler says is ready goes to the lanes, what comes back goes on.

The run-ahead (runtime/session/plan_executor.py) without an event loop, threads and a framework: text is joined and
functions are called at once, and take no time. A function or an item that fails ends its primitive as lost; the query
ends when nothing of it is on its way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.clock import Clock
from simulator.lane import Lane
from simulator.requests import Lost, Request, Step
from simulator.systems import Workload
from simulator.values import Prompt
from teola_plugin.engines import is_repeatable
from teola_plugin.errors import TeolaError
from teola_plugin.graph import INLINE_KINDS, Literal, Primitive
from teola_plugin.items import parse_items
from teola_plugin.plan import Plan
from teola_plugin.rounds import Rounds
from teola_plugin.runtime.session.ancestry import Sight, Tag, sights_of
from teola_plugin.runtime.session.graph_scheduler import Closed, Event, Fragment, Fragments, GraphScheduler, Ready
from teola_plugin.runtime.session.graph_scheduler import Lost as LostInstance
from teola_plugin.runtime.session.speculation import Speculation
from teola_plugin.value_keys import value_key


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload, and what there is to know of its plan once and for all."""

    workload: Workload
    plan: Plan
    sights: Mapping[str, Sight]
    steps: Mapping[str, Step]
    rounds: Mapping[str, Prepared]


def prepare(workload: Workload) -> Prepared:
    """The workload made ready for many queries."""
    plan = workload.plan
    rounds = {name: prepare(workload.each_round(name)) for name in workload.rounds}
    return Prepared(workload, plan, sights_of(plan), {p.name: _step(p, plan) for p in plan.graph}, rounds)


def _step(p: Primitive, plan: Plan) -> Step:
    is_early = p.kind == "partial_prefilling"
    op = p.kind if is_early else p.kind.removeprefix("partial_")
    settings = {} if is_early else p.engine_settings
    return Step(
        primitive=p,
        name=p.name,
        engine=p.engine,
        op=op,
        settings=settings,
        group=(op, value_key(settings)),
        urgency=plan.remaining[p.name],
        yields=bool(plan.yields[p.name]),
        is_prompt=p.kind in ("prefilling", "full_prefilling", "partial_prefilling"),
        is_early=is_early,
        is_inline=p.kind in INLINE_KINDS,
        is_followed=p.kind == "partial_decoding",
        is_repeatable=is_repeatable(op, settings) and not is_early,
        literal_args=next((n for n, arg in enumerate(p.args) if not isinstance(arg, Literal)), len(p.args)),
        function=p.setting("fn"),
        grammar=p.setting("items") if op == "decoding" else None,
        wanted=p.setting("wanted"),
        early_stop=bool(p.setting("early_stop")),
        is_ahead=bool(p.setting("ahead")),
    )


@dataclass(frozen=True, slots=True)
class World:
    """What all queries share. `ended` hears of each query that has, `answered` of each request."""

    clock: Clock
    lanes: Mapping[str, Lane]
    seed: int
    bundles: bool
    ended: Callable[[Query], None]
    answered: Callable[[Request], None] | None = None


class Query:
    """See the module. `place`: its own among all queries."""

    def __init__(self, place: int, number: int, prepared: Prepared, world: World) -> None:
        self.place = place
        self.number = number
        self.began_s = world.clock.now_s
        self._prepared = prepared
        self._steps = prepared.steps
        self._functions = prepared.workload.functions
        self._rounds = prepared.workload.rounds
        self._round_trip_s = prepared.workload.round_trip_s
        self._world = world
        self._clock = world.clock
        self._errors: list[BaseException] = []
        self._open: dict[Request, None] = {}
        self._guesses: Speculation[Request] = Speculation()
        self._on_its_way = 0
        self._is_over = False
        self._has_ended = False

    def start(self) -> None:
        """Begin with what the inputs allow."""
        try:
            inputs = self._prepared.workload.inputs(self.number)
        except Exception as e:  # the caller's function: it is this query's
            inputs = {}
            self._end_by(e)
        self._scheduler = GraphScheduler(self._prepared.plan, inputs, self._prepared.sights)
        self._go(self._scheduler.start)

    @property
    def error(self) -> BaseException | None:
        """Why an output is not there, if one is not."""
        if self.outputs() is not None:
            return None
        return self._errors[0] if self._errors else TeolaError("an output waits for what never comes")

    def outputs(self) -> dict[str, Any] | None:
        """The values of the outputs, without those that were skipped; None if one is not there."""
        return None if self._is_over else self._scheduler.outputs()

    # --- the loop of the run-ahead -----------------------------------------------------------------------------------

    def _go(self, step: Callable[..., list[Ready]], *args: Any) -> None:
        if not self._is_over:
            try:
                self._run(step(*args))
            except Exception as e:  # values that do not fit the graph: it is this query's
                self._end_by(e)
        if self._on_its_way == 0 and not self._has_ended:
            self._has_ended = True
            for request in self._open:
                self._world.lanes[request.step.engine].cancel(request)
            self._open.clear()
            self._world.ended(self)

    def _end_by(self, error: BaseException) -> None:
        self._errors.append(error)
        self._is_over = True

    def _run(self, pending: list[Ready]) -> None:
        if self._guesses.open:
            self._settle()
        while pending:
            events: list[Event] = []
            for ready in _bundled(pending) if self._world.bundles else pending:
                step = self._steps[ready.primitive.name]
                if step.function in self._rounds:
                    self._reveal(ready, step)
                elif step.is_inline:
                    events += self._prompts(ready, step) if step.is_prompt else self._called(ready, step)
                elif step.is_early:
                    events += self._prompts(ready, step, ask=True)
                elif not step.is_ahead or (is_wanted := self._scheduler.is_wanted(step.name)):
                    self._ask_for(ready, step)
                elif is_wanted is None:
                    self._ask_for(ready, step, is_guess=True)
            pending = self._scheduler.apply(events) if events else []
            if self._guesses.open:
                self._settle()

    def _settle(self) -> None:
        """What was guessed, and is wanted or not by now."""
        for guess, is_wanted in self._guesses.decided(self._scheduler.is_wanted):
            request, step = guess.request, self._steps[guess.ready.primitive.name]
            if request and is_wanted and not request.has_lost:
                continue
            guess.request = None
            if request and not request.is_over:
                request.is_over = True
                self._on_its_way -= 1
                self._open.pop(request, None)
                self._world.lanes[step.engine].cancel(request)
            if is_wanted:
                self._ask_for(guess.ready, step)

    def _prompts(self, ready: Ready, step: Step, *, ask: bool = False) -> list[Event]:
        prompts = [Prompt(args, step.literal_args) for args in ready.args]
        if ask and self._world.lanes[step.engine].takes_early_prefills:
            self._ask(ready, step, prompts)
        return [Fragments(step.name, ready.tags, prompts)]

    def _called(self, ready: Ready, step: Step) -> list[Event]:
        function = _first if step.function is None else self._functions[step.function]
        events: list[Event] = []
        for tag, args in zip(ready.tags, ready.args, strict=True):
            try:
                events += _made(step, tag, function(*args))
            except Exception as e:  # the caller's function: its value is lost
                self._errors.append(e)
                events.append(LostInstance(step.name, tag))
        return events

    def _reveal(self, ready: Ready, step: Step) -> None:
        rounds = self._rounds[str(step.function)].rounds
        for tag, args in zip(ready.tags, ready.args, strict=True):
            self._on_its_way += 1
            self._round(1, step, tag, rounds, rounds.first(args))

    def _round(self, number: int, step: Step, tag: Tag, rounds: Rounds, inputs: Mapping[str, Any]) -> None:
        """Round `number` of a function that is a graph, and those after it."""

        def ended(inner: Query) -> None:
            outputs = inner.outputs()
            if outputs is None:
                self._errors.append(inner.error or TeolaError("a round came to nothing"))
                came_to: list[Event] = [LostInstance(step.name, tag)]
            elif not self._is_over and (after := rounds.after(number, inputs, outputs)) is not None:
                self._round(number + 1, step, tag, rounds, after)
                return
            else:
                came_to = _made(step, tag, rounds.value(inputs, outputs))
            self._on_its_way -= 1
            self._go(self._scheduler.apply, came_to)

        each = self._prepared.rounds[str(step.function)]
        each = replace(each, workload=replace(each.workload, inputs=lambda _: inputs))
        world = replace(self._world, ended=lambda inner: self._clock.soon(ended, inner))
        inner = Query(self.place, self.number, each, world)
        inner.began_s = self.began_s
        inner.start()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _ask_for(self, ready: Ready, step: Step, *, is_guess: bool = False) -> None:
        self._on_its_way += 1
        one = len(ready.args[0]) == 1
        self._ask(ready, step, [arg for (arg,) in ready.args] if one else ready.args, is_guess=is_guess)

    def _ask(self, ready: Ready, step: Step, payloads: Sequence[Any], *, is_guess: bool = False) -> None:
        count = len(payloads)
        request = Request(
            step, self.place, self.began_s, ready.tags, payloads, self._answered, self._told, [None] * count, count
        )
        if is_guess:
            request.guess = self._guesses.add(ready, request)
        self._open[request] = None
        if self._round_trip_s is None:
            self._put(request)
        else:
            self._clock.after(self._one_way_s(request), self._put, request)

    def _put(self, request: Request) -> None:
        try:
            self._world.lanes[request.step.engine].put(request)
        except Exception as e:  # settings that make no sense: it is this request's
            request.values, request.open, request.has_lost = [Lost(e)] * len(request.values), 0, True
            self._clock.soon(self._answered, request)  # not while others of the query are being asked for

    def _one_way_s(self, request: Request) -> float:
        """Half the round trip. It is drawn for the request alone, so that other ways to run the query have the same."""
        assert self._round_trip_s is not None
        if request.round_trip_s < 0:
            drawn = random.Random(f"{self._world.seed} {self.number} {request.step.name} {request.tags[0]}")
            request.round_trip_s = self._round_trip_s(drawn)
        return request.round_trip_s / 2

    def _answered(self, request: Request) -> None:
        """All values are there; they are on their way to the query."""
        self._open.pop(request, None)
        if request.is_over:
            return
        if self._world.answered:
            self._world.answered(request)
        if request.step.is_early:
            return  # nobody waits for it
        if self._round_trip_s is None:
            self._take(request)
        else:
            self._clock.after(self._one_way_s(request), self._take, request)

    def _take(self, request: Request) -> None:
        if request.is_over:
            return
        request.is_over = True
        self._on_its_way -= 1
        self._go(self._apply, request)

    def _apply(self, request: Request) -> list[Ready]:
        if request.guess and request.has_lost and self._guesses.withdraw(request.guess):
            return []
        return self._scheduler.apply(self._events(request))

    def _events(self, request: Request) -> list[Event]:
        step, tags, values = request.step, request.tags, request.values
        if request.has_lost:
            self._errors += [value.error for value in values if type(value) is Lost]
        elif step.is_followed:
            return []  # told while it was written
        elif not step.yields:
            return [Fragments(step.name, tags, values)]
        events: list[Event] = []
        for tag, value in zip(tags, values, strict=True):
            if type(value) is Lost:
                events.append(LostInstance(step.name, tag))
            elif not step.is_followed:
                events += _made(step, tag, parse_items(step.grammar, value)[: step.wanted] if step.grammar else value)
        return events

    def _told(self, request: Request, position: int, items: Sequence[Any], is_last: bool) -> None:
        """Items of a text that is being written."""
        if self._round_trip_s is None:
            self._take_items(request, position, items, is_last)
        else:
            self._clock.after(self._one_way_s(request), self._take_items, request, position, items, is_last)
        if is_last and request.step.early_stop and len(request.tags) == 1 and request.open:
            self._world.lanes[request.step.engine].cancel(request)
            request.open = 0
            self._answered(request)

    def _take_items(self, request: Request, position: int, items: Sequence[Any], is_last: bool) -> None:
        name, tag, begin = request.step.name, request.tags[position], request.handed.get(position, 0)
        end = request.handed[position] = begin + len(items)
        events: list[Event] = [Fragment(name, (*tag, begin + n), item) for n, item in enumerate(items)]
        if is_last:
            events.append(Closed(name, tag, end))
        self._go(self._scheduler.apply, events)


def _first(*args: Any) -> Any:
    """An aggregate takes what ran."""
    return args[0]


def _made(step: Step, tag: Tag, value: Any) -> list[Event]:
    if not step.yields:
        return [Fragment(step.name, tag, value)]
    if isinstance(value, str):  # of a tool
        value = [value]
    return [Fragments(step.name, [(*tag, n) for n in range(len(value))], value), Closed(step.name, tag, len(value))]


def _bundled(pending: Iterable[Ready]) -> Iterable[Ready]:
    """What is ready of one primitive as one request."""
    merged: dict[str, Ready] = {}
    for ready in pending:
        name = ready.primitive.name
        known = merged.get(name)
        merged[name] = Ready(ready.primitive, known.tags + ready.tags, known.args + ready.args) if known else ready
    return merged.values()
