"""Engines of simulated worlds: they crash, hang, are slow, lose replies, tell them twice or too late, and fail.

What becomes of a payload is written at its beginning (`Nature`); all else that goes wrong is drawn by the world. An
engine also watches whoever uses it: slots, KV cache, writes, and whether what nobody waits for is aborted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.engines import WRITES, Batch, Capabilities, Completion, Delta, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineCrashed
from teola_plugin.profile import LlmProfile

NATURES = ("ok", "none", "fails", "poison", "crasher")
"""The value is of the payload; is None; the item fails; its whole batch fails; its engine crashes."""


STALE = Delta("stale")
"""What a call says after it is over."""


class ItemError(Exception):
    """This item fails, wherever it is."""


class BatchError(Exception):
    """A batch failed because of this payload."""


class Hiccup(Exception):
    """A batch failed for no reason."""


class GoneError(Exception):
    """An instance does not come back."""


def nature_of(payload: str) -> str:
    return payload.split(":")[0]


def text_of(payload: str, settings: Any, nonce: int) -> str:
    """What an LLM writes: for a greedy request always the same."""
    end = "" if settings.get("temperature") == 0 else f" no. {nonce}"
    return f"{payload} has {len(payload)} letters{end}"


def value_of(op: str, payload: str, tenant: str) -> Any:
    """What comes of an item, except of `decoding`."""
    if nature_of(payload) == "none":
        return None
    return {"op": op, "of": payload, "tenant": tenant, "notes": []}


@dataclass
class Faults:
    """How likely each is, for each batch. `bad_recoveries`: so many times an instance does not come back."""

    crash: float = 0.0
    hang: float = 0.0
    slow: float = 0.0
    lose: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    hiccup: float = 0.0
    line: float = 0.0
    bad_recoveries: int = 0
    never_recovers: bool = False


@dataclass
class Record:
    """What the engines of a world saw."""

    complain: Callable[[str], None]
    is_awaited: Callable[[str, str, str], bool] = lambda op, payload, tenant: True
    look: Callable[[], None] = lambda: None
    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    crashes: Counter[int] = field(default_factory=Counter)
    batches: list[list[str]] = field(default_factory=list)
    began_s: dict[tuple[str, str], float] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    is_gone: bool = False
    nonce: int = 0


class Instance:
    """One engine, or one of several that share the work of a `Several`."""

    def __init__(
        self, name: str, capabilities: Capabilities, faults: Faults, record: Record, rng: random.Random
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.profile: LlmProfile | None = None
        self.holding: dict[tuple[int, int], Item] = {}  # by call and position
        self._faults = faults
        self._record = record
        self._rng = rng
        self._item_s = 0.1
        self._calls: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._stopped: set[int] = set()
        self._is_up = True
        self._begun = 0

    # --- what a lane calls -------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        if not self._is_up:  # nobody has been told yet
            self._record.crashes.update(item.id for item in batch.items)
            raise EngineCrashed(f"{self.name} is down")
        self._watch(batch)
        loop = asyncio.get_running_loop()
        end = loop.create_future()
        self._begun += 1
        call = self._begun

        def tell(at: int, outcome: Outcome) -> None:
            if end.done() and not end.cancelled():
                return  # it crashed
            is_sampled = batch.op == "decoding" and batch.settings.get("temperature") != 0
            if isinstance(outcome, Delta) and is_sampled and outcome != STALE:
                self._record.told.add(batch.items[at].id)
            if not isinstance(outcome, Delta):
                self.holding.pop((call, at), None)
            try:
                emit(at, outcome)
            except Exception as e:
                self._record.complain(f"{self.name}: emit raised {e!r}")

        for at, item in enumerate(batch.items):
            self.holding[call, at] = item
            self._record.began_s.setdefault((str(item.payload), item.tenant), loop.time())
        self._calls[end] = None
        late: list[tuple[int, Outcome]] = []
        work = asyncio.ensure_future(self._work(batch, tell, late))
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                await end
            await work
        finally:
            work.cancel()
            self._calls.pop(end, None)
            if not end.done():
                end.cancel()
            for at in range(len(batch.items)):
                self.holding.pop((call, at), None)
            for at, outcome in late:  # told when the call is over
                loop.call_later(self._rng.uniform(0, 5), tell, at, outcome)

    def abort(self, ids: Sequence[int]) -> None:
        self._record.aborted |= set(ids)
        self._stopped |= set(ids) & {item.id for item in self.holding.values()}
        if self._rng.random() < 0.1:
            raise RuntimeError("abort failed")

    async def close(self) -> None:
        self.crash("was closed")

    async def recovered(self) -> None:
        if self._faults.never_recovers:
            await asyncio.Event().wait()
        await asyncio.sleep(self._rng.uniform(0, 3))
        self._is_up = True
        if self._faults.bad_recoveries > 0:
            self._faults.bad_recoveries -= 1
            self._record.is_gone = True
            raise GoneError(self.name)

    # --- what happens ------------------------------------------------------------------------------------------------

    def crash(self, why: str = "crashed") -> None:
        if not self._is_up:
            return
        self._is_up = False
        self._record.crashes.update({item.id for item in self.holding.values()})
        self.holding.clear()
        for call in list(self._calls):
            if not call.done():
                call.set_exception(EngineCrashed(f"{self.name} {why}"))

    def _watch(self, batch: Batch) -> None:
        """See that the rules of the engine are kept."""
        complain, capabilities = self._record.complain, self.capabilities
        self._record.batches.append([str(item.payload) for item in batch.items])
        if self._calls and not capabilities.concurrent:
            complain(f"{self.name}: two batches at once")
        all_items = [*self.holding.values(), *batch.items]
        if len({item.id for item in all_items}) < len(all_items):
            complain(f"{self.name}: an item is there twice")
        if len(all_items) > capabilities.max_items:
            complain(f"{self.name}: {len(all_items)} items in {capabilities.max_items} slots")
        tokens = sum(item.tokens for item in all_items)
        if capabilities.max_tokens and tokens > capabilities.max_tokens and len(all_items) > 1:
            complain(f"{self.name}: {tokens} tokens where {capabilities.max_tokens} fit")
        for item in batch.items:
            if item.id in self._record.told:
                complain(f"{self.name}: the sampled text of {item.payload} was told in part, and is asked for again")
            if self._record.crashes[item.id] >= 2 and len(all_items) > 1:
                complain(f"{self.name}: {item.payload} is in company after 2 crashes")
            if self._record.crashes[item.id] >= 3:
                complain(f"{self.name}: {item.payload} comes again after 3 crashes")
        self._record.look()

    async def _work(self, batch: Batch, emit: Emit, late: list[tuple[int, Outcome]]) -> None:
        rng, faults = self._rng, self._faults
        slowly = 20.0 if rng.random() < faults.slow else 1.0
        await asyncio.sleep(slowly * self._item_s * rng.uniform(0.5, 1.5))
        culprits = [str(i.payload) for i in batch.items if nature_of(str(i.payload)) in ("poison", "crasher")]
        if culprits and nature_of(culprits[0]) == "crasher":
            self.crash()
        elif culprits:
            raise BatchError(culprits[0])
        if len(self.holding) > 1:  # nothing happens to one that is alone, for it would be blamed
            if rng.random() < faults.crash:
                self.crash()
            if rng.random() < faults.hang:
                await asyncio.Event().wait()
            if rng.random() < faults.hiccup and len(batch.items) > 1:
                raise Hiccup
        order = list(range(len(batch.items)))
        rng.shuffle(order)
        if self.capabilities.concurrent:
            await asyncio.gather(*(self._answer(batch, at, emit, late) for at in order))
        else:
            for at in order:
                await self._answer(batch, at, emit, late)

    async def _answer(self, batch: Batch, at: int, emit: Emit, late: list[tuple[int, Outcome]]) -> None:
        rng, faults, item = self._rng, self._faults, batch.items[at]
        key = (batch.op, str(item.payload), item.tenant)
        if batch.op in WRITES:
            self._record.writes[key[1:]] += 1
        said = await self._said(batch, at, emit)
        if item.id in self._stopped:
            self._stopped.discard(item.id)
            emit(at, Failed(Cancelled("aborted")))
            return
        if self.capabilities.abort and not self._record.is_awaited(*key):
            self._record.complain(f"{self.name}: ran {item.payload} to its end, though nobody waits for it")
        if len(self.holding) > 1 and rng.random() < faults.line:
            self._record.crashes[item.id] += 1
            emit(at, Failed(EngineCrashed("the line broke")))
            return
        if rng.random() < faults.lose:
            self._record.lost[key] += 1
            return
        if rng.random() < faults.late:
            self._record.lost[key] += 1
        else:
            emit(at, said)
        if rng.random() < faults.late + faults.twice:
            late.append((at, Done("stale")))
            late.append((at, STALE))

    async def _said(self, batch: Batch, at: int, emit: Emit) -> Done | Failed:
        item = batch.items[at]
        payload = str(item.payload)
        if nature_of(payload) == "fails":
            return Failed(ItemError(payload))
        if batch.op != "decoding":
            return Done(value_of(batch.op, payload, item.tenant))
        self._record.nonce += 1
        text = text_of(payload, batch.settings, self._record.nonce)
        pieces: list[str] = []
        same = random.Random(payload)  # a greedy text comes in the same pieces each time
        while text and item.id not in self._stopped:
            length = same.randint(1, 12)
            pieces.append(text[:length])
            text = text[length:]
            emit(at, Delta(pieces[-1]))
            await asyncio.sleep(self._item_s / 4)
        return Done(Completion("".join(pieces), pieces=pieces))


class Restartable(Instance):
    """An instance in a process of its own, which can be ended."""

    def restart(self) -> None:
        self.crash("was ended")
        if self._rng.random() < 0.1:
            raise RuntimeError("the process had gone")


class Several:
    """An engine of several instances."""

    def __init__(self, instances: list[Instance]) -> None:
        self.name = instances[0].name.rstrip("0123456789")
        self.capabilities = instances[0].capabilities
        self.instances = instances

    def kv_tokens(self, op: str, payload: Any, settings: Any) -> int:
        return len(str(payload)) * 10 if self.capabilities.max_tokens else 0

    async def run(self, batch: Batch, emit: Emit) -> None:
        raise AssertionError("its instances run")

    def abort(self, ids: Sequence[int]) -> None:
        raise AssertionError("its instances run")

    async def close(self) -> None:
        for instance in self.instances:
            await instance.close()
