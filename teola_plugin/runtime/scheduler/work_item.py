"""A work item: a piece of work of an engine, with all replies that wait for the outcome.

Equal requests in flight at the same time are a single work item with several *waiters*. The work may be attempted
repeatedly; outcomes of an earlier attempt do not count.

If a partly emitted text is generated again, the waiters receive only the continuation. The new text has to begin with
the same deltas, or the item fails: no waiter receives a mix of two texts. A waiter that joins late receives the same
deltas.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Hashable
from dataclasses import dataclass, field

from teola_plugin.engines import WRITES, Batch, Delta, Done, Engine, Failed, Item, Outcome, is_repeatable
from teola_plugin.errors import EngineCrashed, EngineError
from teola_plugin.runtime.scheduler.request import Request
from teola_plugin.seams import Reply

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Counts of all items of an engine: `taken` = `done` + `failed` + `cancelled` + `expired` + open items.

    `joined`: waiters that joined an item in flight. `refused`: items not taken in. `repeated`: attempts after the
    first. `crashes`: of instances. `stalls`: instances that were ended because of silence. `late`: outcomes without a
    waiter. `lost`: items that neither waited nor ran, found by the watchdog (there should be none). `misplaced`:
    outcomes of no item of the batch, and all later outcomes of the batch. `batches`: calls of instances, of which
    `mixed` held items of several queries.
    """

    taken: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    joined: int = 0
    refused: int = 0
    repeated: int = 0
    crashes: int = 0
    stalls: int = 0
    late: int = 0
    lost: int = 0
    misplaced: int = 0
    batches: int = 0
    mixed: int = 0

    @property
    def open(self) -> int:
        """The number of items that have not ended."""
        return self.taken - self.done - self.failed - self.cancelled - self.expired


def put(reply: Reply, outcome: Outcome) -> None:
    """Give an outcome to a reply; an error of a listener is logged."""
    try:
        reply.put(outcome)
    except Exception:  # around a user's callback: the other waiters and the engine must not be affected
        log.exception("a listener failed")


@dataclass(frozen=True, slots=True)
class Waiter:
    """A reply that waits for an item, with the original item and request.

    `key`: equal for equal items, None for an item that cannot be compared.
    """

    item: Item
    request: Request
    reply: Reply
    key: Hashable = None

    def notify(self, outcome: Outcome) -> None:
        """Give an outcome to the reply."""
        put(self.reply, outcome)


@dataclass(slots=True)
class WorkItem:
    """An item with waiters and attempts.

    `request`: the queued request that holds the item, or held the item last. `attempt`: the number of attempts.
    `engine`: the instance that runs the item. `told`: the deltas that the waiters have received.
    """

    item: Item
    request: Request
    waiters: dict[int, Waiter]
    key: Hashable = None
    attempt: int = 0
    engine: Engine | None = None
    crashes: int = 0
    losses: int = 0
    told: list[Delta] = field(default_factory=list)
    _repeated: int = 0
    """The number of deltas in `told` that the current attempt has repeated."""

    @property
    def owners(self) -> set[Hashable]:
        """The queries that wait for the item."""
        return {self.item.owner, *(waiter.item.owner for waiter in self.waiters.values())}

    def join(self, waiter: Waiter) -> None:
        """Add a waiter, which receives the deltas so far."""
        self.waiters[waiter.item.id] = waiter
        for delta in self.told:
            waiter.notify(delta)

    @property
    def may_repeat(self) -> bool:
        """Whether another attempt can do no harm."""
        if self.request.op in WRITES:
            return False
        return not self.told or is_repeatable(self.request.op, self.request.settings)

    def begin(self, engine: Engine) -> int:
        """Begin an attempt on an instance. Returns the number of the attempt."""
        self.attempt += 1
        self.engine = engine
        self._repeated = 0
        return self.attempt

    def give_up(self) -> None:
        """End the attempt: later outcomes of the attempt do not count."""
        self.engine = None

    def tell(self, outcome: Delta | Done) -> None:
        """Give an outcome to all waiters. Raises: EngineCrashed if a repeated text turned out differently."""
        if self._repeated < len(self.told):
            if outcome != self.told[self._repeated]:
                raise EngineCrashed(_TWO_TEXTS)
            self._repeated += 1
            return
        if isinstance(outcome, Delta):
            self.told.append(outcome)
            self._repeated += 1
        waiters = list(self.waiters.values())
        outcomes: list[Outcome] = [outcome] * len(waiters)
        if self.request.op == "searching" and isinstance(outcome, Done):
            # The first waiter may change the results, and does so at once: copies must be made before.
            outcomes[1:] = [Done(copy.deepcopy(outcome.value)) for _ in waiters[1:]]
        for waiter, own in zip(waiters, outcomes, strict=True):
            waiter.notify(own)

    def fail(self, error: BaseException) -> None:
        """Give an error to all waiters."""
        for waiter in list(self.waiters.values()):
            waiter.notify(Failed(error))


_TWO_TEXTS = "the engine crashed in the middle of a text, and wrote another one when asked again"


@dataclass(slots=True, eq=False)
class Attempt:
    """A batch that runs on an instance.

    `numbers`: the attempt of each item, by id. `owners`: the queries with items in the batch. `heard_s`: when the
    instance last emitted something. `is_given_up`: the instance was silent for too long. `broke_protocol`: the instance
    emitted an invalid outcome, and no later outcome of the batch counts.
    """

    engine: Engine
    batch: Batch
    numbers: dict[int, int]
    started_s: float
    heard_s: float
    owners: set[Hashable] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    watch: asyncio.TimerHandle | None = None
    was_restarted: bool = False
    is_given_up: bool = False
    broke_protocol: EngineError | None = None

    @property
    def at(self) -> int:
        """The place of the instance."""
        return self.batch.instance

    def end(self) -> None:
        """Note that the call has returned."""
        if self.watch:
            self.watch.cancel()
        self.watch = self.task = None
