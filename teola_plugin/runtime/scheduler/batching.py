"""The scheduler of an engine: a queue of requests in, batches out. Pure: reads no clock and has no side effects.

All queries and applications share the scheduler. A policy (policies.py) picks the items of the next batch; the batch
goes to a single replica of the engine (replicas.py) as *one* call. An engine with continuous batching (an LLM) has as
many slots as items held at once, and each finished item frees a slot; any other engine runs a batch at a time.

    scheduler.submit(request, now_s)
    while attempt := scheduler.next_batch(now_s): start(attempt)
    scheduler.finish(works, now_s)          # these items have ended: their slots are free

Rules around the policy:

- **Bounds and fairness** between tenants (fairness.py). Each tenant gets at most a fair share of the free slots; unused
  slots go to requests of the same operation and settings. (Under `po`, which shares no batches, tenants take turns.)
- **Aging.** A request that has waited for `Limits.aging_s` goes first, in the order of arrival, whatever the policy;
  requests with the same operation and settings fill the batch.
- **Knee.** Beyond the knee of the engine's profile a batch only takes longer with each item. There, `critical_path`
  lets no query wait for the items of another query: such items go into the next batch.
- **Staggered prefills.** If only texts of a single query wait for an LLM, and the next engine takes each text when
  ready, some texts begin later (staggered_prefills.py). Only under `topology` and `critical_path`: the remaining
  policies know no queries.
- **Prefill admission.** If the prefills of an LLM delay running decodes too long, the next query waits
  (prefill_admission.py). Under the same two policies.
- **Quarantine.** A request suspected of crashing the engine waits for an idle replica. After `aging_s` a replica takes
  nothing else until the suspect has run.
- **Prefixes.** Where an engine reuses a prefix only once computed (`prefix_at_end`), prompts of a query wait for the
  early prefill of the prefix. `Limits.prefix_tolerance_s` lets the policy put prompts with the same prefix next to each
  other, so that the prefix is still cached (policies.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from teola_plugin.engines import Batch, Capabilities
from teola_plugin.profile import LlmProfile
from teola_plugin.runtime.scheduler.fairness import TenantFairness
from teola_plugin.runtime.scheduler.policies import APPLICATION_AWARE, Policy, critical_path
from teola_plugin.runtime.scheduler.prefill_admission import PrefillAdmission, RunningDecodes
from teola_plugin.runtime.scheduler.prefixes import PrefixTracker, prefix_of
from teola_plugin.runtime.scheduler.replicas import Replicas
from teola_plugin.runtime.scheduler.staggered_prefills import StaggeredPrefills
from teola_plugin.runtime.scheduler.throughput import Throughput
from teola_plugin.runtime.scheduler.waiting import MayRun, Pick, Waiting
from teola_plugin.runtime.scheduler.work_item import Attempt, Request, Status, WorkItem

RELAXED = 0.5
"""The share of the saturation threshold below which an engine is no longer saturated. With more than `early_beside`
waiting or running items per replica, an engine counts as saturated, and rewrites that cost compute rest; in between
nothing changes. With half of all slots in place of one item, early prefills cost the load benchmark's apps 3 to 5 % of
the mean."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_queued_items`: how many items may wait, None for any number (fairness.py). `aging_s`: see the module.

    `prefix_tolerance_s`: by how much prompts may change places to begin as one before them; 0: not at all.
    """

    max_queued_items: int | None = None
    aging_s: float = 30.0
    prefix_tolerance_s: float = 2.0


class EngineScheduler:
    """The queue and the slots of an engine."""

    def __init__(
        self, policy: Policy, capabilities: Capabilities, *, replicas: int = 1, limits: Limits | None = None,
        knee_items: Callable[[str], int | None] = lambda op: None, llm: LlmProfile | None = None,
    ) -> None:  # fmt: skip
        """`knee_items`: the knee of an operation, in items, None if unknown. `llm`: the latency profile of an LLM."""
        self._policy = policy
        self._knee_items = knee_items
        self.limits = limits or Limits()
        self.replicas = Replicas(capabilities, replicas)
        self._capabilities = capabilities
        self._queue = Waiting(policy)
        self._suspects: dict[Request, None] = {}  # requests that are to run alone
        self._arrivals = itertools.count()
        self._prefixes = PrefixTracker()
        self._has_throughput = False
        self._fairness = TenantFairness()
        self._throughput = Throughput()
        self._is_saturated = False
        self.coming_items = 0
        """Items submitted to the host that are not here yet, as far as the host tells."""
        self.waits_until_s = math.inf
        self._admission = (
            PrefillAdmission(llm, has_prefixes=capabilities.prefix) if llm and capabilities.concurrent else None
        )
        self._staggered = StaggeredPrefills(self._admission) if self._admission else None

    @property
    def policy(self) -> Policy:
        """The order of the queue."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._queue.use(policy)

    # --- contents ----------------------------------------------------------------------------------------------------

    @property
    def queued_items(self) -> int:
        """The number of items in no batch yet."""
        return self._fairness.waiting

    @property
    def running_items(self) -> int:
        """The number of items with the engine."""
        return self.replicas.running_items

    @property
    def has_replica_up(self) -> bool:
        """Whether any replica takes work."""
        return self.replicas.count_up > 0

    @property
    def is_saturated(self) -> bool:
        """Whether the engine is too busy for rewrites which cost compute."""
        limit = self._capabilities.early_beside * (RELAXED if self._is_saturated else 1)
        items = self.coming_items + self.queued_items + self.running_items
        self._is_saturated = items > limit * self.replicas.count_up
        return self._is_saturated

    def begins_at_once(self, count: int) -> bool:
        """Whether `count` more items would not have to wait."""
        room = self.replicas.room()
        return self.queued_items + count <= (sum(room) if self._capabilities.concurrent else max(room, default=0))

    def holds(self, work: WorkItem) -> bool:
        """Whether an item waits here or is with the engine."""
        return work.status is Status.QUEUED or work.replica is not None

    def drained_in_s(self) -> float:
        """Return the seconds until all items here should have ended, by the recent throughput."""
        return self._throughput.needs_s(self.queued_items + self.running_items)

    # --- in ----------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now_s: float = 0.0) -> None:
        """Queue a request and number it in the order of submissions. Raises: Overloaded."""
        if not request.items:
            return
        if self.limits.max_queued_items is not None:
            most = self.limits.max_queued_items
            self._fairness.check_room(request.tenant, request.waiting, most, self.drained_in_s())
        self.resubmit(request, now_s)

    def raise_priority(self, work: WorkItem, depth: int, remaining_s: float) -> None:
        """Raise the request of an item, which waits or runs, to the urgency of a request that joined the item."""
        request = work.request
        if request.lot is not None:
            self._queue.raise_priority(request, depth, remaining_s)
        else:
            request.depth, request.remaining_s = max(request.depth, depth), max(request.remaining_s, remaining_s)

    def resubmit(self, request: Request, now_s: float = 0.0) -> None:
        """Queue a request again with the earlier arrival: before all later requests. Nothing is refused."""
        if request.arrival < 0:
            request.arrival, request.since_s = next(self._arrivals), now_s
        self._fairness.came(request.tenant, request.waiting)
        if self._staggered:
            self._staggered.came(request)
        for work in request.items:
            work.status = Status.QUEUED
        if request.is_alone:
            self._suspects[request] = None
        if self.limits.prefix_tolerance_s:
            request.prefix = prefix_of(request.first)
        self._queue.add(request)
        if self._capabilities.prefix_at_end and request.op == "partial_prefilling":
            self._prefixes.prefill(request.items)
        self._has_throughput |= request.first.urgency.objective == "throughput"

    # --- out ---------------------------------------------------------------------------------------------------------

    def next_batch(self, now_s: float = 0.0) -> Attempt | None:
        """Return the next batch, if a replica has a free slot; the items count as running from now on.

        If there is none, `waits_until_s` says when a waiting request will be old enough to be sent all the same.
        """
        self.waits_until_s = math.inf
        if not self._queue:
            return None
        due = [each for each in self._suspects if now_s - each.since_s >= self.limits.aging_s]
        room = self._staggered_room(self.replicas.room(make_way=bool(due)), now_s)
        free = sum(room) if self._capabilities.concurrent else max(room, default=0)
        if free <= 0:
            return None
        picks = self._within_knee(self._picked(free, self._who_may_run(due, room), now_s))
        if not picks:
            return None
        first = picks[0].request
        at = self._replica_for(first, room, now_s)
        if at is None:
            return None
        going = self._going_to(at, self._admitted(at, picks, now_s), room)
        if not going:
            return None
        if not self.running_items:
            self._throughput.begin(now_s)
        for request, mine in going:
            self._start(at, request, mine)
        works = [work for _, mine in going for work in mine]
        batch = Batch(first.op, first.settings, tuple([work.item for work in works]), at)
        return Attempt(batch, works, now_s, now_s)

    def _start(self, at: int, request: Request, works: Sequence[WorkItem]) -> None:
        """Move items of a request from the queue to a replica."""
        self._leave(request, works, Status.RUNNING)
        self.replicas.start(at, works, request.query, is_alone=request.is_alone)
        if self._admission:
            self._admission.start(at, works)
        if self._staggered:
            self._staggered.started(at, request, works)
        self._fairness.serve(request.tenant, sum(work.item.tokens or 1 for work in works))
        if self.limits.prefix_tolerance_s:
            self._prefixes.ran(works)

    def _staggered_room(self, room: Sequence[int], now_s: float) -> Sequence[int]:
        """Return the room of each replica, less the slots held back by staggered prefills."""
        if (waves := self._staggered) is None or self.policy not in APPLICATION_AWARE:
            return room
        if self._queue.queries == 1 and any(self.replicas.is_free(at) for at in self.replicas.up()):
            waves.plan(self._queue.requests(), self.replicas, now_s, self.limits.aging_s)
        left = waves.room(room, now_s)
        self.waits_until_s = waves.until_s
        return left

    def _who_may_run(self, due: Sequence[Request], room: Sequence[int]) -> MayRun:
        """Whether a request could run now. `due`: quarantined requests that have waited too long.

        A quarantined request never waits: other requests wait for it. The last slots are not for `throughput` requests,
        so the head of the queue does not wait for such requests.
        """
        is_idle = bool(self._suspects and self.replicas.idle())
        load = self.replicas.loads() if self._has_throughput else []

        def may_run(request: Request) -> bool:
            if due and is_idle and request not in due:
                return False
            if request.is_alone:
                return is_idle
            if self._prefixes.holds_any_up and self._is_held_up(request):
                return False
            if not self._has_throughput or request.first.urgency.objective != "throughput":
                return True
            return self.replicas.best(request.first, request.query, room, load) is not None

        return may_run if self._suspects or self._prefixes.holds_any_up or self._has_throughput else _anybody

    def _is_held_up(self, request: Request) -> bool:
        held_up = map(self._prefixes.holds_up, request.items)
        # Prefills wait for shorter prefills, which may be in the same request, or in a request that waits for it.
        return all(held_up) if request.op == "partial_prefilling" else any(held_up)

    def _picked(self, free: int, may_run: MayRun, now_s: float) -> Sequence[Pick]:
        """Return the picks of the policy, tenant by tenant where several wait."""
        tenants = self._fairness.in_turn()
        if len(tenants) <= 1:
            return self._of_tenant(tenants[0], None, free, may_run, now_s)
        tenants = [tenant for tenant in tenants if self._queue.oldest(may_run, tenant)]
        picks: list[Pick] = []
        group: Hashable = None
        left = free
        for turn, tenant in enumerate(tenants):
            if left <= 0:
                break
            share = -(-left // (len(tenants) - turn))
            found = self._of_tenant(tenant, group, share, may_run, now_s)
            if not found:
                continue
            picks += found
            if not self._policy.shares_batches:
                return picks
            group = picks[0].request.group
            left -= sum(pick.size for pick in found)
        return self._queue.topped_up(picks, left, may_run)

    def _of_tenant(self, tenant: str, group: Hashable, free: int, may_run: MayRun, now_s: float) -> Sequence[Pick]:
        """Return the picks of the policy for a tenant, the oldest request first if too old."""
        oldest = self._queue.oldest(may_run, tenant, group)
        if oldest is not None and now_s - oldest.since_s >= self.limits.aging_s:
            picks = [Pick(oldest, min(free, oldest.waiting))]
            if not self._policy.shares_batches:
                return picks
            return self._queue.topped_up(picks, free - picks[0].size, may_run, tenant)
        return self._queue.picks(free, may_run, tenant, group, self._prefixes.warm(self.limits.prefix_tolerance_s))

    def _within_knee(self, picks: Sequence[Pick]) -> Sequence[Pick]:
        """Return the picks without the items beyond the knee that belong to queries other than the first."""
        if self._policy is not critical_path or len(picks) < 2:
            return picks
        first = picks[0].request
        if (knee := self._knee_items(first.op)) is None:
            return picks
        kept: list[Pick] = []
        held = 0
        for pick in picks:
            count = pick.size if pick.request.query == first.query else min(pick.size, knee - held)
            if count > 0:
                kept.append(Pick(pick.request, count))
                held += count
        return kept

    def _leave(self, request: Request, works: Sequence[WorkItem], status: Status) -> None:
        """Take items of a request out of the queue."""
        self._fairness.left(request.tenant, len(works))
        self._queue.took(request, len(works))
        for work in works:
            work.status = status
        request.items = [work for work in request.items if work.status is Status.QUEUED]
        if not request.items:
            self._queue.remove(request)
            self._suspects.pop(request, None)

    def _replica_for(self, request: Request, room: Sequence[int], now_s: float) -> int | None:
        """Return the replica for a request; None if the request has to wait."""
        if request.is_alone:
            return next(iter(self.replicas.idle()), None)
        self.replicas.next_turn()
        left = list(room)
        at = self.replicas.best(request.first, request.query, left)
        while at is not None and self._should_defer(at, request, now_s):
            left[at] = 0
            at = self.replicas.best(request.first, request.query, left)
            if at is None:
                self.waits_until_s = min(self.waits_until_s, request.since_s + self.limits.aging_s)
        return at

    @property
    def _limit(self) -> PrefillAdmission | None:
        """The prefill admission, if the policy tells queries apart."""
        return self._admission if self.policy in APPLICATION_AWARE else None

    def _admitted(self, at: int, picks: Sequence[Pick], now_s: float) -> Sequence[Pick]:
        """Return the leading picks that may start now; stop at the first pick that admission defers."""
        if (limit := self._limit) is None:
            return picks
        more = RunningDecodes()
        for place, pick in enumerate(picks):
            request = pick.request
            if place and self._should_defer(at, request, now_s, more):
                return picks[:place]
            if request.op == "decoding":
                more.add(request.query, limit.texts(request.settings, pick.size))
        return picks

    def _should_defer(self, at: int, request: Request, now_s: float, more: RunningDecodes | None = None) -> bool:
        """Whether admission defers a request at a replica. `more`: the decodes that begin together with the request."""
        if (limit := self._limit) is None or request.op != "decoding":
            return False
        if now_s - request.since_s >= self.limits.aging_s:
            return False
        up = self.replicas.count_up
        queries = self._queue.queries
        if more:
            queries -= len(more.queries) - (request.query in more.queries)
        waited_s = (now_s - request.since_s) * queries / up  # as if all came with this request
        of_query = self._queue.prompts(request.query) // up
        together = min(self._capabilities.max_items, of_query) if request.first.urgency.taker else 1
        return limit.should_defer(at, request.query, request.first, max(1, together), waited_s, more)

    def _going_to(self, at: int, picks: Iterable[Pick], room: Sequence[int]) -> list[tuple[Request, list[WorkItem]]]:
        """Return the picked items for the replica `at`, by request."""
        one_way = len(room) == 1 and not self._has_throughput if self._capabilities.concurrent else True
        if one_way and not self._capabilities.max_tokens:
            return [(pick.request, pick.request.items[: pick.size]) for pick in picks]
        going: list[tuple[Request, list[WorkItem]]] = []
        room, load, tokens = list(room), self.replicas.loads(), self.replicas.tokens(at)
        for pick in picks:
            request = pick.request
            mine: list[WorkItem] = []
            for work in request.items[: pick.size]:
                item = work.item
                to = at if not going else self.replicas.best(item, request.query, room, load)
                if to is None:
                    return going
                room[to] -= 1
                load[to] += self.replicas.weight(item)
                if to != at:
                    continue
                if not self.replicas.fits(item, tokens, bool(going)):
                    return going
                tokens += item.tokens
                if not mine:
                    going.append((request, mine))
                mine.append(work)
        return going

    # --- replicas ----------------------------------------------------------------------------------------------------

    def resize(self, replicas: int) -> None:
        """Set the number of replicas. A leaving replica takes nothing new and is removed once idle."""
        self.replicas.resize(replicas)

    def learn(self, capabilities: Capabilities) -> None:
        """Set the capabilities that hold from now on for all replicas."""
        self._capabilities = self.replicas.capabilities = capabilities

    def mark(self, replica: int, *, is_up: bool) -> None:
        """Set whether a replica takes work."""
        self.replicas.mark(replica, is_up=is_up)

    # --- the end of items --------------------------------------------------------------------------------------------

    def finish(self, works: Collection[WorkItem], now_s: float = 0.0) -> None:
        """Free the slots of finished items; a second call for an item does nothing."""
        self._prefixes.ended(works)
        ended = [work for work in works if work.replica is not None]
        if not ended:
            return
        if self._admission:
            self._admission.end(ended)
        if self._staggered:
            self._staggered.ended(ended)
        self.replicas.end(ended)
        self._throughput.end(len(ended), now_s)
        for work in ended:
            if work.status is Status.RUNNING:
                work.status = Status.DONE

    def withdraw(self, works: Collection[WorkItem]) -> list[WorkItem]:
        """Take items out of the queue. Returns the items with the engine, which only the engine can abort."""
        for request in dict.fromkeys(work.request for work in works if work.status is Status.QUEUED):
            mine = [work for work in request.items if work in works]
            self._leave(request, mine, Status.CANCELLED)
        self._prefixes.ended(work for work in works if work.replica is None)
        return [work for work in works if work.replica is not None]


def _anybody(request: Request) -> bool:
    return True
