"""A lane of a simulation: one engine, its scheduler, its instances, and who waits for what.

    put --> EngineScheduler --next_batch--> instance --tell--> readers

What `runtime/scheduler/worker.py` does for real engines, less all that guards against faults: batches are made once
everything that comes at the same instant is here; the same thing asked for twice at the same time is one item; a slot
is free when its item has ended; an engine with much to do lets early prefills rest. `hop_s` is taken by each batch on
its way to an instance and by each answer on its way back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from simulator.batch_server import BatchInstance
from simulator.clock import Clock
from simulator.cores import Cores
from simulator.llm_server import LlmInstance
from simulator.requests import Lost, Request, Work
from simulator.systems import LlmServer, Server, System
from simulator.usage import EngineUse
from simulator.values import Count, Prompt
from simulator.writing import output_tokens
from teola_plugin.runtime.scheduler.batching import EngineScheduler, Limits
from teola_plugin.runtime.scheduler.policies import POLICIES, PRIORITIES
from teola_plugin.runtime.scheduler.work_item import Attempt
from teola_plugin.runtime.scheduler.work_item import Request as Queued
from teola_plugin.runtime.session.speculation import crowded_out
from teola_plugin.value_keys import value_key


class Lane:
    """See the module. `ids`: of items, each once."""

    def __init__(
        self, server: Server, system: System, clock: Clock, count: Count, ids: Iterator[int],
        cores: Cores | None = None, *, trace: bool = False,
    ) -> None:  # fmt: skip
        self.use = EngineUse()
        self._server = server
        self._clock = clock
        self._cores = cores
        self._count = server.count or count
        self._ids = ids
        self._hop_s = system.hop_s
        self._capabilities = server.capabilities(bundles=system.bundles)
        profiles = {} if isinstance(server, LlmServer) else server.profiles
        knees = {op: profile.knee_items for op, profile in profiles.items()}
        self._scheduler = EngineScheduler(
            POLICIES[system.policy],
            self._capabilities,
            replicas=server.instances,
            limits=Limits(prefix_tolerance_s=system.prefix_tolerance_s),
            knee_items=lambda op: knees.get(op),
            llm=server.profile if isinstance(server, LlmServer) else None,
        )
        self._priority = PRIORITIES[system.policy]
        self._instances = [self._instance(trace) for _ in range(server.instances)]
        self._joinable: dict[Any, dict[Any, Work]] = {}
        self._will_pump = False
        self._again_s = math.inf

    def _instance(self, trace: bool) -> BatchInstance | LlmInstance:
        begun = self._note_begin if trace else None
        at = partial(self._cores.at, self._server.demand) if self._cores else None
        if isinstance(self._server, LlmServer):
            return LlmInstance(
                self._server, self._clock, self._count, self.use, self._tell, self._hand_out, self._free, begun, at
            )
        return BatchInstance(self._server, self._clock, self._count, self.use, self._tell, begun, at)

    @property
    def takes_early_prefills(self) -> bool:
        """A prefix that is prefilled early pays, and there is room for it."""
        if not self._capabilities.prefix:
            return False
        return not self._scheduler.is_saturated

    # --- in ----------------------------------------------------------------------------------------------------------

    def put(self, request: Request) -> None:
        """Take a request in; its payloads get their values. Raises: Overloaded for a guess that would have to wait."""
        if request.is_dropped:
            return
        if request.guess and request.guess.is_open and not self._scheduler.begins_at_once(self._fresh(request)):
            raise crowded_out()
        step, urgency, now_s = request.step, request.step.urgency, self._clock.now_s
        request.queued_s = now_s
        fresh: list[Work] = []
        queued = Queued(
            step.op, step.settings, [], request.query, urgency.depth, urgency.remaining_s,
            request.began_s, group=step.group, own_s=urgency.own_s,
        )  # fmt: skip
        joinable = self._joinable.setdefault((step.group, step.grammar), {}) if step.is_repeatable else None
        priority = self._priority(urgency, request.began_s) if self._capabilities.abort else 0  # for LLMs
        tokens = self._kv_tokens(request) if self._capabilities.max_tokens is not None else None
        ids = self._ids
        for position, payload in enumerate(request.payloads):
            kv_tokens = tokens[position] if tokens else 0
            if joinable is None:
                fresh.append(Work(next(ids), request, position, payload, queued, kv_tokens, priority))
                continue
            key = payload if type(payload) is str else _key(payload)
            if known := joinable.get(key):
                self._join(known, request, position)
                continue
            work = joinable[key] = Work(next(ids), request, position, payload, queued, kv_tokens, priority)
            work.joinable, work.key = joinable, key
            fresh.append(work)
        request.works += fresh
        self._scheduler.submit(queued, now_s)
        self._pump_soon()

    def _fresh(self, request: Request) -> int:
        """How many of its items are not under way already."""
        if not request.step.is_repeatable:
            return len(request.payloads)
        known = self._joinable.get((request.step.group, request.step.grammar), {})
        return len({_key(payload) for payload in request.payloads} - known.keys())

    def _kv_tokens(self, request: Request) -> list[int]:
        """Of each prompt with its answer."""
        assert isinstance(self._server, LlmServer)
        written = output_tokens(self._server, request.step.settings) if request.step.op == "decoding" else 0
        return [self._count(str(payload)) + written for payload in request.payloads]

    def _join(self, work: Work, request: Request, position: int) -> None:
        self.use.joined += 1
        work.others = (*work.others, (request, position))
        request.works.append(work)
        self._scheduler.raise_priority(work.unit, request.step.urgency.depth, request.step.urgency.remaining_s)
        if work.told:
            request.told(request, position, work.told, False)

    def cancel(self, request: Request) -> None:
        """Nobody wants what is still open of it."""
        request.is_dropped = True
        for work in request.works:
            if work.has_ended:
                continue
            readers = [each for each in ((work.request, work.position), *work.others) if each[0] is not request]
            if readers:
                (work.request, work.position), *work.others = readers
            else:
                self._stop(work)
        self._pump_soon()

    def _stop(self, work: Work) -> None:
        work.has_ended = True
        if work.joinable is not None:
            del work.joinable[work.key]
        at = work.unit.replica
        if at is None:
            self._scheduler.withdraw((work.unit,))
        else:
            self._clock.after(self._hop_s, self._instances[at].abort, work.id)

    # --- work --------------------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if not self._will_pump:
            self._will_pump = True
            self._clock.soon(self._pump)

    def _pump_later(self) -> None:
        """Once what follows from what has ended is here, as in the real lane."""
        if not self._will_pump:
            self._will_pump = True
            self._clock.at(self._clock.now_s, self._pump)

    def _pump(self) -> None:
        self._will_pump = False
        now_s = self._clock.now_s
        while attempt := self._scheduler.next_batch(now_s):
            self._start(attempt)
        if self._scheduler.waits_until_s < self._again_s:
            self._again_s = self._scheduler.waits_until_s
            self._clock.at(self._again_s, self._pump_again)

    def _pump_again(self) -> None:
        self._again_s = math.inf
        self._pump()

    def _start(self, attempt: Attempt) -> None:
        works = cast("Sequence[Work]", attempt.batch.items)
        if self._hop_s:
            self._clock.after(self._hop_s, self._instances[attempt.at].begin, works)
        else:
            self._instances[attempt.at].begin(works)

    def _note_begin(self, works: Sequence[Work]) -> None:
        for work in works:
            for request, _ in ((work.request, work.position), *work.others):
                request.begin_s = self._clock.now_s if request.begin_s < 0 else request.begin_s

    # --- out ---------------------------------------------------------------------------------------------------------

    def _tell(self, works: Sequence[Work], values: Sequence[Any]) -> None:
        """An instance has these values."""
        if self._hop_s:
            self._clock.after(self._hop_s, self._end, works, values)
        else:
            self._end(works, values)

    def _end(self, works: Sequence[Work], values: Sequence[Any]) -> None:
        self._scheduler.finish([work.unit for work in works], self._clock.now_s)
        self._pump_later()
        for work, value in zip(works, values, strict=True):
            if work.has_ended:
                continue  # nobody waits for it any more
            work.has_ended = True
            if work.joinable is not None:
                del work.joinable[work.key]
            request = work.request
            request.values[work.position] = value
            request.open -= 1
            if type(value) is Lost:
                request.has_lost = True
            if not request.open:
                request.works.clear()
                request.ended(request)
            for request, position in work.others:
                _answer(request, position, value)

    def _hand_out(self, work: Work, items: Sequence[Any], is_last: bool) -> None:
        if self._hop_s:
            self._clock.after(self._hop_s, self._hear, work, items, is_last)
        else:
            self._hear(work, items, is_last)

    def _hear(self, work: Work, items: Sequence[Any], is_last: bool) -> None:
        if work.has_ended:
            return
        work.told = (*work.told, *items)
        for request, position in ((work.request, work.position), *work.others):
            request.told(request, position, items, is_last)

    def _free(self, work: Work) -> None:
        """An instance has dropped what was aborted."""
        self._clock.after(self._hop_s, self._freed, work)

    def _freed(self, work: Work) -> None:
        self._scheduler.finish((work.unit,), self._clock.now_s)
        self._pump_soon()


def _key(payload: Any) -> Any:
    """What makes two items the same."""
    return payload if isinstance(payload, Prompt) else value_key(payload)  # no server looks at a prompt's pieces


def _answer(request: Request, position: int, value: Any) -> None:
    request.values[position] = value
    request.has_lost |= type(value) is Lost
    request.open -= 1
    if not request.open:
        request.works.clear()
        request.ended(request)
