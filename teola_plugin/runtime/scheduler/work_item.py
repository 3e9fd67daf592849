"""Work items: a unit of work of an engine, from the submission to the end.

    submitted --> QUEUED --next_batch--> RUNNING --outcome--> DONE | FAILED
                    |  ^------ retry ------'
                    '--cancel, deadline--> CANCELLED | EXPIRED          JOINED: has an equal item in flight do the work

Items submitted together are a *request* of the queue until all of them run. The batch with which an item runs is an
*attempt*; outcomes of an earlier attempt do not count.

If a partly emitted text is generated again, the waiters receive only the continuation. The new text has to begin with
the same deltas, or the item fails: no waiter receives a mix of two texts. A waiter that joins late receives the same
deltas.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from teola_plugin.engines import WRITES, Batch, Delta, Done, Engine, Failed, Item, Outcome, is_repeatable
from teola_plugin.errors import EngineCrashed, EngineError
from teola_plugin.seams import Reply
from teola_plugin.value_keys import value_key

log = logging.getLogger(__name__)


class Status(Enum):
    """The state of a work item. `JOINED`: an equal item in flight does the work."""

    QUEUED = "queued"
    RUNNING = "running"
    JOINED = "joined"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class Request:
    """Work items of a primitive (or of a component's call) of a query, which wait together in the queue of an engine.

    `items`, all of one tenant, shrinks as items leave in batches. `remaining_s`: predicted seconds to the end of the
    query, which began at `begun_s`; the request takes `own_s` of the seconds. `arrival`, `since_s`: the number in the
    order of submissions, and the time of arrival. `is_alone`: suspected of crashing the engine, so the request runs
    alone. `prefix`: see policies.py. `gives_way`: asked whether to refuse the request if the request would have to wait
    (session/speculation.py).

    `place`, `lot`: in the queue, see waiting.py; no lot once all items have left.
    """

    op: str
    settings: Mapping[str, Any]
    items: list[WorkItem]
    query: Hashable
    depth: int = 0
    remaining_s: float = 0.0
    begun_s: float = 0.0
    is_alone: bool = False
    arrival: int = -1
    since_s: float = 0.0
    group: Hashable = None
    prefix: Hashable = None
    own_s: float = 0.0
    gives_way: Callable[[], bool] | None = None
    tenant: str = field(default="", init=False)
    place: int = field(default=0, init=False)
    lot: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.items:
            self.tenant = self.items[0].item.tenant
        if self.group is None:
            self.group = (self.op, value_key(self.settings))

    @property
    def waiting(self) -> int:
        """The number of items that are not in a batch yet."""
        return len(self.items)

    @property
    def first(self) -> Item:
        """The first waiting item, which stands for all: they differ in the payload only."""
        return self.items[0].item


@dataclass(slots=True, eq=False)
class WorkItem:
    """An item, who waits for the outcome, and the work so far.

    `request`: the request that holds the item, or held the item last. `reply`: of the item's own waiter. `key`: equal
    for equal items, None for an item that cannot be compared. `leader`: the equal item that does the work of a joined
    item. `followers`: the joined items; the item's own waiter may have left (`is_awaited`). `replica`: the replica with
    a slot for the item. `attempt`: the latest attempt, of so many `attempts`. `told`: the deltas that the waiters have
    received.
    """

    item: Item
    request: Request
    reply: Reply | None = None
    status: Status = Status.QUEUED
    key: Hashable = None
    leader: WorkItem | None = None
    followers: tuple[WorkItem, ...] = ()
    is_awaited: bool = True
    replica: int | None = None
    attempt: Attempt | None = None
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    told: list[Delta] | None = None
    _repeated: int = 0
    """The number of deltas in `told` that the current attempt has repeated."""

    # --- waiters -----------------------------------------------------------------------------------------------------

    @property
    def waiters(self) -> tuple[WorkItem, ...]:
        """The items whose replies get the outcome."""
        return (self, *self.followers) if self.is_awaited else self.followers

    @property
    def owners(self) -> set[Hashable]:
        """The queries that wait for the item."""
        return {self.item.owner, *(waiter.item.owner for waiter in self.followers)}

    @property
    def is_answered(self) -> bool:
        """Whether the reply of the item's own waiter has ended."""
        return self.reply is not None and self.reply.outcome is not None

    def join(self, leader: WorkItem) -> None:
        """Let an equal item do the work; the waiter receives the deltas so far."""
        self.leader, self.status = leader, Status.JOINED
        leader.followers = (*leader.followers, self)
        for delta in leader.told or ():
            self.notify(delta)

    def leave(self, status: Status) -> None:
        """Wait no longer for work with further waiting items."""
        if (leader := self.leader) is None:
            self.is_awaited = False
            return
        self.leader, self.status = None, status
        leader.followers = tuple(each for each in leader.followers if each is not self)

    def notify(self, outcome: Outcome) -> None:
        """Give an outcome to the item's own waiter."""
        if self.reply is not None:
            put(self.reply, outcome)

    # --- attempts ----------------------------------------------------------------------------------------------------

    @property
    def may_repeat(self) -> bool:
        """Whether another attempt can do no harm."""
        if self.request.op in WRITES:
            return False
        return not self.told or is_repeatable(self.request.op, self.request.settings)

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt."""
        self.attempt = attempt
        self.attempts += 1
        self._repeated = 0

    def runs(self, attempt: Attempt) -> bool:
        """Whether the item is open, and this is the current attempt."""
        return self.attempt is attempt and self.status is Status.RUNNING

    def tell(self, outcome: Delta | Done) -> None:
        """Give an outcome to all waiters. Raises: EngineCrashed if a repeated text turned out differently."""
        if self.told and self._repeated < len(self.told):
            if outcome != self.told[self._repeated]:
                raise EngineCrashed(_TWO_TEXTS)
            self._repeated += 1
            return
        if isinstance(outcome, Delta):
            self.told = self.told or []
            self.told.append(outcome)
            self._repeated += 1
        waiters = self.waiters
        outcomes: list[Outcome] = [outcome] * len(waiters)
        if self.request.op == "searching" and isinstance(outcome, Done):
            # The first waiter may change the results, and does so at once: copies must be made before.
            outcomes[1:] = [Done(copy.deepcopy(outcome.value)) for _ in waiters[1:]]
        for waiter, own in zip(waiters, outcomes, strict=True):
            waiter.notify(own)

    def fail(self, error: BaseException) -> None:
        """Give an error to all waiters."""
        for waiter in self.waiters:
            waiter.notify(Failed(error))


_TWO_TEXTS = "the engine crashed in the middle of a text, and wrote another one when asked again"


def put(reply: Reply, outcome: Outcome) -> None:
    """Give an outcome to a reply; an error of a listener is logged."""
    try:
        reply.put(outcome)
    except Exception:  # around a user's callback: the other waiters and the engine must not be affected
        log.exception("a listener failed")


@dataclass(slots=True, eq=False)
class Attempt:
    """A batch that runs on a replica, with the work item of each item.

    `owners`: the queries with items in the batch. `heard_s`: when the replica last emitted something. `is_given_up`:
    the replica was silent for too long. `broke_protocol`: the replica emitted an invalid outcome, and no later outcome
    of the batch counts.
    """

    batch: Batch
    works: Sequence[WorkItem]
    started_s: float
    heard_s: float
    engine: Engine = field(init=False)
    owners: set[Hashable] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    watch: asyncio.TimerHandle | None = None
    was_restarted: bool = False
    is_given_up: bool = False
    broke_protocol: EngineError | None = None

    @property
    def at(self) -> int:
        """The place of the replica."""
        return self.batch.instance

    @property
    def open(self) -> list[WorkItem]:
        """The items without an end, in this attempt."""
        return [work for work in self.works if work.runs(self)]

    def end(self) -> None:
        """Note that the call has returned."""
        if self.watch:
            self.watch.cancel()
        self.watch = self.task = None

    # A faulty custom engine must not answer an item with another item's value. A position of no item in the batch, or a
    # value that is no outcome, shows that the engine has lost count: the owners of the remaining outcomes are not
    # certain either. Whether a vector or a score makes sense (NaN, say) is not judged: the framework would get the same
    # value from the model.

    def work_at(self, position: object, outcome: object) -> WorkItem | None:
        """Return the item at a position; None for a violation of the protocol."""
        if not isinstance(outcome, Outcome) or (isinstance(outcome, Delta) and not isinstance(outcome.text, str)):
            return None
        if isinstance(position, bool) or not hasattr(position, "__index__"):
            return None
        at = operator.index(position)
        return self.works[at] if 0 <= at < len(self.works) else None

    def protocol_error(self, engine: str, position: object, outcome: object) -> EngineError:
        """Return the error for a violation, without the value."""
        where = f"position {position!r:.40}, in a batch of {len(self.works)}"
        return EngineError(f"engine {engine!r} broke its protocol: it emitted a {type(outcome).__name__} for {where}")


def as_promised(engine: str, op: str, item: Item, outcome: Outcome) -> Outcome:
    """Return the outcome; a failure in place of an LLM's answer that is no text."""
    if op != "decoding" or not (isinstance(outcome, Done) and isinstance(item.payload, str)):
        return outcome
    if isinstance(outcome.value, str):
        return outcome
    what = type(outcome.value).__name__
    return Failed(EngineError(f"engine {engine!r} broke its protocol: the answer is a {what}, not a text"))


def ids_of(works: Iterable[WorkItem]) -> tuple[int, ...]:
    """Return the ids of items."""
    return tuple([work.item.id for work in works])
