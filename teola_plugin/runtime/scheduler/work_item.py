"""What an engine owes: for each item that it took in, exactly one end.

A *debt* is one item with everybody who waits for it (`readers`: requests for the same thing that were in flight at the
same time are one item). Its work may be attempted more than once; what a former attempt says is not heard any more.

When a text that was told in part is generated again, the readers hear only what goes beyond it. The new one has to
begin with the same deltas, or the debt fails: nobody is told two texts in one. Who joins late hears the same deltas.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable
from dataclasses import dataclass, field

from teola_plugin.engines import WRITES, Delta, Done, Engine, Failed, Item, Outcome, is_repeatable
from teola_plugin.errors import EngineCrashed
from teola_plugin.runtime.scheduler.request import Request
from teola_plugin.seams import Reply

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What became of all items of an engine: `taken` = `done` + `failed` + `cancelled` + `expired` + those still open.

    `joined`: readers of an item that was in flight already. `refused`: not taken in. `repeated`: attempts after the
    first. `crashes`: of instances. `stalls`: instances that were ended because they said nothing. `late`: outcomes that
    nobody was waiting for any more. `lost`: items that neither waited nor ran, found by the watchdog (none should be).
    `misplaced`: outcomes of no item of their batch, and what the same batch emitted after one. `batches` went to
    instances, and `mixed` of them held items of several queries.
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
        """Items that have not ended."""
        return self.taken - self.done - self.failed - self.cancelled - self.expired


def put(reply: Reply, outcome: Outcome) -> None:
    """Tell the reply, whatever those who listen to it do."""
    try:
        reply.put(outcome)
    except Exception:  # around a user's callback: the others who wait, and the engine, are not to suffer from it
        log.exception("a listener failed")


@dataclass(frozen=True, slots=True)
class Reader:
    """Who waits for an item, and as what it came in. `key`: what makes two items the same, None for like no other."""

    item: Item
    request: Request
    reply: Reply
    key: Hashable = None

    def hear(self, outcome: Outcome) -> None:
        """Tell the reply."""
        put(self.reply, outcome)


@dataclass(slots=True)
class Debt:
    """One item. `attempt` counts its attempts; `told` are the deltas that its readers have heard.

    `engine`: the instance that it is with. `request`: the one in the queue, or that it was in last.
    """

    item: Item
    request: Request
    readers: dict[int, Reader]
    key: Hashable = None
    attempt: int = 0
    engine: Engine | None = None
    crashes: int = 0
    losses: int = 0
    told: list[Delta] = field(default_factory=list)
    _repeated: int = 0
    """How many of them this attempt has told again."""

    @property
    def owners(self) -> set[Hashable]:
        """The queries that wait for it."""
        return {self.item.owner, *(reader.item.owner for reader in self.readers.values())}

    def join(self, reader: Reader) -> None:
        """One more waits for it; what was told is told again."""
        self.readers[reader.item.id] = reader
        self.request.depth = max(self.request.depth, reader.request.depth)
        self.request.remaining_s = max(self.request.remaining_s, reader.request.remaining_s)
        for delta in self.told:
            reader.hear(delta)

    @property
    def may_repeat(self) -> bool:
        """Another attempt can do no harm."""
        if self.request.op in WRITES:
            return False
        return not self.told or is_repeatable(self.request.op, self.request.settings)

    def begin(self, engine: Engine) -> int:
        """A new attempt, with that instance; its number."""
        self.attempt += 1
        self.engine = engine
        self._repeated = 0
        return self.attempt

    def give_up(self) -> None:
        """The attempt is over; nothing of it counts from now on."""
        self.engine = None

    def tell(self, outcome: Delta | Done) -> None:
        """Let the readers hear it. Raises: EngineCrashed if a repeated text turned out differently."""
        if self._repeated < len(self.told):
            if outcome != self.told[self._repeated]:
                raise EngineCrashed(_TWO_TEXTS)
            self._repeated += 1
            return
        if isinstance(outcome, Delta):
            self.told.append(outcome)
            self._repeated += 1
        readers = list(self.readers.values())
        outcomes: list[Outcome] = [outcome] * len(readers)
        if self.request.op == "searching" and isinstance(outcome, Done):
            # Whoever gets what was found may change it, and does so at once: no copy can be made after that.
            outcomes[1:] = [Done(copy.deepcopy(outcome.value)) for _ in readers[1:]]
        for reader, own in zip(readers, outcomes, strict=True):
            reader.hear(own)

    def fail(self, error: BaseException) -> None:
        """Every reader hears this error."""
        for reader in list(self.readers.values()):
            reader.hear(Failed(error))


_TWO_TEXTS = "the engine crashed in the middle of a text, and wrote another one when asked again"
