"""Faults that a runtime of this kind is known to have, put into ours one at a time: something has to notice each.

The first ten are those of the prototype of the paper's authors, or of its like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from teola_plugin.engines import Delta, Done, Failed
from teola_plugin.errors import EngineCrashed, Overloaded
from teola_plugin.runtime.scheduler import recovery, work_item, worker
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.fairness import TenantFairness
from teola_plugin.runtime.scheduler.policies import POLICIES, topology
from teola_plugin.runtime.scheduler.prefill_admission import PrefillAdmission
from teola_plugin.runtime.scheduler.recovery import Recovery, Retries
from teola_plugin.runtime.scheduler.replicas import Replicas
from teola_plugin.runtime.scheduler.staggered_prefills import StaggeredPrefills
from teola_plugin.runtime.scheduler.waiting import Waiting
from teola_plugin.runtime.scheduler.work_item import Attempt, Status, WorkItem
from teola_plugin.runtime.scheduler.work_table import Deadlines, WorkTable
from teola_plugin.runtime.scheduler.worker import EngineWorker
from tests.support.scenarios import SCENARIOS, play
from tests.support.simulation import simulate

SEEDS = 60

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def fault(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    FAULTS[plant.__name__.replace("_", " ")] = plant
    return plant


@fault
def inverted_depth(patch: pytest.MonkeyPatch) -> None:
    def inverted(request: Any, of_query: Any) -> Any:
        in_round, *rest = topology.rank(request, of_query)
        return (-in_round, *rest)

    patch.setitem(POLICIES, "topology", replace(topology, rank=inverted))


def _one_by_one(attempt: Attempt) -> list[Attempt]:
    return [replace(attempt, batch=replace(attempt.batch, items=(w.item,)), works=(w,)) for w in attempt.works]


@fault
def unbatched_at_dispatch(patch: pytest.MonkeyPatch) -> None:
    start = EngineWorker._start
    patch.setattr(
        EngineWorker,
        "_start",
        lambda self, to, attempt: [start(self, to, alone) for alone in _one_by_one(attempt)],
    )


@fault
def none_is_not_finished(patch: pytest.MonkeyPatch) -> None:
    tell = WorkTable.tell
    patch.setattr(WorkTable, "tell", lambda self, work, told: None if told == Done(None) else tell(self, work, told))


@fault
def positional_slicing(patch: pytest.MonkeyPatch) -> None:
    """What comes after a failure is told to the next one."""
    original = EngineWorker._emit

    def emitting(self: EngineWorker, attempt: Any) -> Any:
        emit = original(self, attempt)
        failures = 0

        def shifted(position: int, outcome: Any) -> None:
            nonlocal failures
            emit((position + failures) % len(attempt.works), outcome)
            failures += isinstance(outcome, Failed)

        return shifted

    patch.setattr(EngineWorker, "_emit", emitting)


@fault
def a_failed_batch_is_only_logged(patch: pytest.MonkeyPatch) -> None:
    settle = Retries.settle

    def logged(self: Retries, attempt: Any, error: BaseException | None) -> None:
        if error is None or isinstance(error, EngineCrashed):
            settle(self, attempt, error)

    patch.setattr(Retries, "settle", logged)


@fault
def a_dropped_abort(patch: pytest.MonkeyPatch) -> None:
    stop = WorkTable._stop

    def dropped(self: WorkTable, work: WorkItem, status: Any) -> None:
        if work.attempt:
            work.attempt.engine.abort = lambda ids: None  # type: ignore[method-assign]
        stop(self, work, status)

    patch.setattr(WorkTable, "_stop", dropped)


@fault
def two_ends(patch: pytest.MonkeyPatch) -> None:
    tell = WorkItem.tell

    def twice(self: WorkItem, outcome: Any) -> None:
        tell(self, outcome)
        if isinstance(outcome, Done):
            tell(self, outcome)

    patch.setattr(WorkItem, "tell", twice)


@fault
def an_unbounded_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantFairness, "check_room", lambda *_: None)


@fault
def a_write_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(work_item, "WRITES", frozenset())


@fault
def joined_across_tenants(patch: pytest.MonkeyPatch) -> None:
    key = EngineWorker._key
    patch.setattr(EngineWorker, "_key", lambda self, *of: (found := key(self, *of)) and found[1:])


@fault
def a_former_attempt_is_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkItem, "runs", lambda self, attempt: self.status in (Status.QUEUED, Status.RUNNING))


@fault
def deadlines_only_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    expire = WorkTable._expire

    def queued(self: WorkTable, waiters: Any) -> None:
        expire(self, [r for r in waiters if (work := self._work_of(r)) and work.status is Status.QUEUED])

    patch.setattr(WorkTable, "_expire", queued)


@fault
def crashed_work_fails(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "again", lambda self, left, error: [self._table.fail(work, error) for work in left])


@fault
def no_aging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "aging_s", property(lambda self: math.inf, lambda self, seconds: None))


@fault
def aging_before_fairness(patch: pytest.MonkeyPatch) -> None:
    _tell_no_tenants_apart(patch)


@fault
def tenants_have_no_shares(patch: pytest.MonkeyPatch) -> None:
    """Neither of the slots nor of the room to wait: who comes first has them."""

    def check_room(self: TenantFairness, tenant: str, items: int, limit: int, retry_after_s: float) -> None:
        if self.waiting + items > limit:
            raise Overloaded("all places are taken", retry_after_s)

    patch.setattr(TenantFairness, "check_room", check_room)
    _tell_no_tenants_apart(patch)


def _tell_no_tenants_apart(patch: pytest.MonkeyPatch) -> None:
    add = Waiting.add
    patch.setattr(Waiting, "add", lambda self, request: (setattr(request, "tenant", ""), add(self, request)))
    patch.setattr(TenantFairness, "in_turn", lambda self: [""])


@fault
def no_fairness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantFairness, "serve", lambda *_: None)
    patch.setattr(TenantFairness, "in_turn", lambda self: sorted(self._held)[:1])


@fault
def kv_cache_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "fits", lambda *_: True)


@fault
def a_slot_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkTable, "free", lambda *_: None)


@fault
def two_calls_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "begin_call", lambda *_: None)
    patch.setattr(Replicas, "end_call", lambda *_: None)


@fault
def suspects_in_company(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "ALONE_AFTER", 3)


@fault
def a_suspect_no_longer_after_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    once_more = Retries._ask_once_more

    def forgiving(self: Retries, left: Any) -> None:
        crashes = [work.crashes for work in left]
        for work in left:
            work.crashes = 0
        once_more(self, left)
        for work, times in zip(left, crashes, strict=True):
            work.crashes = times

    patch.setattr(Retries, "_ask_once_more", forgiving)


@fault
def poison_spreads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "_halve", lambda self, left, error: [self._table.fail(work, error) for work in left])


@fault
def sampled_texts_are_shared(patch: pytest.MonkeyPatch) -> None:
    original = worker.is_repeatable
    patch.setattr(worker, "is_repeatable", lambda op, settings: op == "decoding" or original(op, settings))


@fault
def sampled_texts_are_told_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkItem, "may_repeat", property(lambda self: self.request.op not in work_item.WRITES))


@fault
def a_repeated_text_is_told_from_its_beginning(patch: pytest.MonkeyPatch) -> None:
    begin = WorkItem.begin

    def anew(self: WorkItem, attempt: Attempt) -> None:
        begin(self, attempt)
        self._repeated = len(self.told or ())

    patch.setattr(WorkItem, "begin", anew)


@fault
def readers_share_what_was_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(work_item.copy, "deepcopy", lambda value: value)


@fault
def a_listener_that_fails_fails_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(work_item, "put", lambda reply, outcome: reply.put(outcome))


@fault
def company_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefillAdmission, "end", lambda *_: None)


@fault
def a_later_wave_never_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StaggeredPrefills, "_wanted", staticmethod(lambda plan, at, running: min(plan.left[at][:1], default=0))
    )
    patch.setattr(StaggeredPrefills, "until_s", property(lambda self: math.inf))


@fault
def nobody_watches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "watch", lambda *_: None)


@fault
def deadlines_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadlines, "discard", lambda *_: None)


@fault
def a_lost_answer_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "_ask_once_more", lambda *_: None)


@fault
def joined_readers_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkItem, "join", lambda self, leader: setattr(self, "leader", leader))


@fault
def who_joins_a_text_misses_its_beginning(patch: pytest.MonkeyPatch) -> None:
    tell = WorkItem.tell

    def forgetful(self: WorkItem, outcome: Any) -> None:
        tell(self, outcome)
        if isinstance(outcome, Delta) and self.told:
            self.told.clear()

    patch.setattr(WorkItem, "tell", forgetful)


@pytest.mark.parametrize("name", FAULTS)
def test_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    assert any(_problems()), "nothing noticed it"


def test_only_shares_keep_a_polite_tenant_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENARIOS["a polite tenant keeps its service"]
    assert play(scene) == []
    FAULTS["tenants have no shares"](monkeypatch)
    assert play(scene), "nothing noticed it"


def _problems() -> Iterator[list[str]]:
    yield from map(play, SCENARIOS.values())
    yield from map(simulate, range(SEEDS))
