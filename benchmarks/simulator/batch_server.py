"""An engine that runs one batch at a time, for as long as the profile of its operation says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simulator.calls import Call, Setup
from simulator.systems import BatchServer
from simulator.usage import EngineUse
from simulator.values import answer, scores
from teola_plugin.engines import Batch, Done, Emit, Failed, Outcome

TOGETHER: dict[str, Callable[[list[Any]], list[Any]]] = {
    "embedding": list, "reranking": scores, "ingestion": lambda payloads: [None] * len(payloads),
}  # fmt: skip
"""What `values.answer` says, of many payloads at once: these come by the hundred."""


class BatchEngine:
    """One instance of a `BatchServer`."""

    def __init__(self, name: str, server: BatchServer, setup: Setup, use: EngineUse) -> None:
        self.name = name
        self.capabilities = server.capabilities(bundles=False)
        self.profiles = server.profiles
        self._server = server
        self._setup = setup
        self._count = server.count or setup.count
        self._use = use
        self._answer = server.answers or partial(answer, texts=server.texts)
        self._by_items_s: dict[tuple[str, int], float] = {}  # what batches take where tokens do not count

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        await Call(batch, emit, self._setup).end_of(self._begin)

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """Do nothing."""

    def _begin(self, call: Call) -> None:
        for position in range(len(call.batch.items)):
            call.begin(position)
        seconds = self._seconds(call.batch)
        self._use.batches += 1
        self._use.items += len(call.batch.items)
        self._use.busy_s += seconds
        self._setup.after(self._server.demand, seconds, self._end, call)

    def _end(self, call: Call) -> None:
        self._setup.tell([(call, position, each) for position, each in enumerate(self._outcomes(call.batch))])

    def _outcomes(self, batch: Batch) -> list[Outcome]:
        if self._server.answers is None and (together := TOGETHER.get(batch.op)):
            with contextlib.suppress(Exception):  # of some item; of which one, they tell one by one
                return [Done(value) for value in together([item.payload for item in batch.items])]
        return [self._outcome(batch, item.payload) for item in batch.items]

    def _outcome(self, batch: Batch, payload: Any) -> Outcome:
        try:
            return Done(self._answer(batch.op, payload, batch.settings))
        except Exception as e:  # around what stands for an engine: it is this item's
            return Failed(e)

    def _seconds(self, batch: Batch) -> float:
        op, items = batch.op, len(batch.items)
        profile = self._server.profiles[op]
        if profile.token_s or profile.measured_tokens is not None:
            return profile.predict_s(items, self._tokens(batch))
        seconds = self._by_items_s.get((op, items))
        if seconds is None:
            seconds = self._by_items_s[op, items] = profile.predict_s(items, 0)
        return seconds

    def _tokens(self, batch: Batch) -> int | None:
        """Of all items together; None for those of the usual length, where nobody would count them."""
        if batch.op == "embedding":
            prefix = self._count(str(batch.settings.get("prompt") or ""))
            return sum(self._count(str(item.payload)) + prefix for item in batch.items)
        if batch.op == "reranking":
            return sum(self._count(str(text)) for item in batch.items for text in _texts(item.payload))
        return None


def _texts(payload: Any) -> Sequence[Any]:
    return payload if isinstance(payload, tuple) else (payload,)
