"""Whatever is asked of an engine scheduler in whatever order: no item is lost or runs twice, and nothing overflows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from teola_plugin.engines import Batch, Capabilities, Item, Taker, Urgency
from teola_plugin.errors import Overloaded
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.fairness import OVERFULL
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.work_item import Request
from tests.support.by_id import Scheduler, request_of

LIMIT = 12
SLOW = LlmProfile(Profile.affine(5.0), Profile.affine(1.0))
"""Of several queries, nearly all had better wait."""

TAKERS = (None, Taker(1.0, 20.0))
"""After the latter, texts that are there early gain a lot."""

OBJECTIVES = ("", "", "latency", "throughput")


class Use(RuleBasedStateMachine):
    """What waits and runs by our own books, which have to be those of the scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.last_id = 0
        self.queued: dict[int, Request] = {}
        self.running: dict[int, tuple[Item, Request, int, bool]] = {}
        self.calls: list[Batch] = []
        self.down: set[int] = set()
        self.count = 1
        self.again = 0

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)), slots=st.integers(1, 5), concurrent=st.booleans(),
        tokens=st.sampled_from((None, 50)), count=st.integers(1, 3), limit=st.sampled_from((None, LIMIT)),
        at_end=st.booleans(), tolerance_s=st.sampled_from((0.0, 2.0)), llm=st.sampled_from((None, SLOW)),
    )  # fmt: skip
    def begin(
        self, policy: str, slots: int, concurrent: bool, tokens: int | None, count: int, limit: int | None,
        at_end: bool, tolerance_s: float, llm: LlmProfile | None,
    ) -> None:  # fmt: skip
        self.capabilities = Capabilities(
            slots, tokens if concurrent else None, concurrent=concurrent, prefix=True, prefix_at_end=at_end
        )
        self.limit = limit
        self.count = count
        self.scheduler = Scheduler(
            POLICIES[policy], self.capabilities, replicas=count, limits=Limits(limit, 5.0, tolerance_s), llm=llm
        )

    # --- what is done to it ------------------------------------------------------------------------------------------

    @rule(
        size=st.integers(0, 7), tenant=st.sampled_from("abc"), query=st.integers(1, 3), depth=st.integers(0, 3),
        kind=st.integers(0, 1), tokens=st.integers(0, 70), op=st.sampled_from(("decoding", "partial_prefilling")),
        text=st.sampled_from(("text", "text and more", "other")), objective=st.sampled_from(OBJECTIVES),
        taker=st.sampled_from(TAKERS),
    )  # fmt: skip
    def submit(
        self, size: int, tenant: str, query: int, depth: int, kind: int, tokens: int, op: str, text: str,
        objective: str, taker: Taker | None,
    ) -> None:  # fmt: skip
        urgency = Urgency(depth, 0.0, objective, taker=taker)
        items = [
            Item(text, query, id=self.last_id + n + 1, tenant=tenant, tokens=tokens, urgency=urgency)
            for n in range(size)
        ]
        self.last_id += size
        request = request_of(op, {"max_tokens": kind}, items, query, depth, begun_s=self.now_s)
        waiting = self.scheduler.queued_items
        try:
            self.scheduler.submit(request, self.now_s)
        except Overloaded as e:
            refused = e
        else:
            refused = None
        if refused:
            assert self.limit is not None
            assert waiting + size > self.limit // 3
            assert refused.retry_after_s > 0
            assert self.scheduler.queued_items == waiting
            return
        self.queued |= {item.id: request for item in items}
        if self.limit is not None:
            assert self.scheduler.queued_items <= OVERFULL * self.limit + self.again

    @rule(times=st.integers(1, 4))
    def next_batches(self, times: int) -> None:
        for _ in range(times):
            batch = self.scheduler.batch(self.now_s)
            if batch is None:
                return
            self._took(batch)

    def _took(self, batch: Batch) -> None:
        assert batch.items
        assert batch.instance < self.count
        assert batch.instance not in self.down
        requests = [self.queued.pop(item.id) for item in batch.items]  # KeyError: it had not been waiting
        assert len({request.group for request in requests}) == 1
        is_alone = requests[0].is_alone
        mates = [entry for entry in self.running.values() if entry[2] == batch.instance]
        assert not any(alone for *_, alone in mates)
        if is_alone:
            assert len(batch.items) == 1
            assert not mates
        if not self.capabilities.concurrent:
            assert not mates
            assert all(call.instance != batch.instance for call in self.calls)
        together = [item for item, *_ in mates] + list(batch.items)
        assert len(together) <= self.capabilities.max_items
        limit = self.capabilities.max_tokens
        held = sum(item.tokens for item in together)
        if limit and held > limit:
            assert sum(item.tokens > 0 for item in together) == 1, "more than fits, and not by itself"
        for item, request in zip(batch.items, requests, strict=True):
            self.running[item.id] = (item, request, batch.instance, is_alone)
        self.calls.append(batch)
        self.scheduler.replicas.begin_call(batch.instance)

    @rule(data=st.data(), how=st.sampled_from(("end", "again", "alone", "twice")))
    def finish(self, data: st.DataObject, how: str) -> None:
        if not self.running:
            return
        self._ended(data.draw(st.sampled_from(sorted(self.running))), how)

    def _ended(self, item_id: int, how: str) -> None:
        item, request, _, _ = self.running.pop(item_id)
        self.scheduler.end((item.id,), self.now_s)
        if how == "twice":
            self.scheduler.end((item.id,), self.now_s)
        if how in ("again", "alone"):
            is_alone = how == "alone" or request.is_alone
            group = ("alone", item.id) if is_alone else request.group
            again = replace(request, items=[self.scheduler.works[item.id]], is_alone=is_alone, group=group)
            again.items[0].request = again
            self.scheduler.resubmit(again, self.now_s)
            self.queued[item.id] = again
            self.again += 1

    @rule(how=st.sampled_from(("end", "alone")), more=st.booleans())
    def answer_all(self, how: str, more: bool) -> None:
        """Of the oldest call, which goes on; and something is there that could be next."""
        if more:
            self.submit(2, "a", 1, 1, 0, 1, "decoding", "text", "", None)
        for item_id in [item.id for item in self.calls[0].items] if self.calls else ():
            if item_id in self.running:
                self._ended(item_id, how)
        self.next_batches(3)

    @rule(data=st.data())
    def end_call(self, data: st.DataObject) -> None:
        """What it has not answered ends with it."""
        if not self.calls:
            return
        batch = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        left = [item.id for item in batch.items if item.id in self.running and self.running[item.id][0] is item]
        for item_id in left:
            del self.running[item_id]
        self.scheduler.end(left, self.now_s)
        self.scheduler.replicas.end_call(batch.instance)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        known = sorted(self.queued.keys() | self.running.keys())
        if not known:
            return
        ids = data.draw(st.lists(st.sampled_from(known), max_size=4, unique=True))
        assert sorted(self.scheduler.take_out(ids)) == sorted(self.running.keys() & set(ids))
        for item_id in ids:
            self.queued.pop(item_id, None)

    @rule(at=st.integers(0, 2), is_up=st.booleans())
    def mark(self, at: int, is_up: bool) -> None:
        self.scheduler.mark(at, is_up=is_up)
        if at < self.count:
            self.down = self.down - {at} if is_up else self.down | {at}

    @rule(count=st.integers(1, 3))
    def resize(self, count: int) -> None:
        for at in range(3):  # those that come are well
            self.scheduler.mark(at, is_up=True)
        self.down = set()
        self.scheduler.resize(count)
        self.count = count

    @rule(seconds=st.sampled_from((0.01, 1.0, 6.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.last_id:
            assert self.scheduler.queued_items == len(self.queued)
            assert self.scheduler.running_items == len(self.running)
            here = [self.scheduler.works[item_id] for item_id in self.queued.keys() | self.running.keys()]
            assert all(map(self.scheduler.holds, here))
            assert self.scheduler.replicas.count == self.count

    def teardown(self) -> None:
        """In the end everything runs."""
        if not hasattr(self, "scheduler"):
            return
        self.resize(1)
        while self.calls:
            self._end_first()
        for _ in range(2 * len(self.queued) + 1):
            self.now_s += 6.0
            if batch := self.scheduler.batch(self.now_s):
                self._took(batch)
            while self.calls:
                self._end_first()
        assert not self.running
        assert not self.queued, "some never ran"

    def _end_first(self) -> None:
        batch = self.calls.pop(0)
        ids = [item.id for item in batch.items]
        self.scheduler.end(ids, self.now_s)
        self.scheduler.replicas.end_call(batch.instance)
        for item_id in ids:
            self.running.pop(item_id, None)


Use.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestUse = Use.TestCase
