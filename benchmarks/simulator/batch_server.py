"""An instance that runs one batch at a time, for as long as the profile of its operation says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simulator.clock import Clock
from simulator.requests import Lost, Work
from simulator.systems import BatchServer
from simulator.usage import EngineUse
from simulator.values import Count, answer, scores

Tell = Callable[[Sequence[Work], Sequence[Any]], None]
"""Hears what came of works: a value or `Lost` for each."""

Begun = Callable[[Sequence[Work]], None]

At = Callable[..., None]
"""`Clock.at` for what works until then: later where it shares its processors (cores.py)."""


TOGETHER: dict[str, Callable[[list[Any]], list[Any]]] = {
    "embedding": list, "reranking": scores, "ingestion": lambda payloads: [None] * len(payloads),
}  # fmt: skip
"""What `values.answer` says, of many payloads at once: these come by the hundred."""


class BatchInstance:
    """`tell` hears the values of a batch at its end, `begun` that it runs; `at`: when work ends that would end then."""

    def __init__(
        self, server: BatchServer, clock: Clock, count: Count, use: EngineUse, tell: Tell, begun: Begun | None,
        at: At | None,
    ) -> None:  # fmt: skip
        self._server = server
        self._clock = clock
        self._count = count
        self._use = use
        self._tell = tell
        self._begun = begun
        self._at = at or clock.at
        self._answer = server.answers or partial(answer, texts=server.texts)
        self._by_items_s: dict[tuple[str, int], float] = {}  # what batches take where tokens do not count

    def begin(self, works: Sequence[Work]) -> None:
        """Run a batch; all have the same operation and settings."""
        if self._begun:
            self._begun(works)
        seconds = self._seconds(works)
        self._use.batches += 1
        self._use.items += len(works)
        self._use.busy_s += seconds
        self._at(self._clock.now_s + seconds, self._end, works)

    def abort(self, item_id: int) -> None:
        """Batches are short: what runs, ends."""

    def _end(self, works: Sequence[Work]) -> None:
        self._tell(works, self._values(works))

    def _values(self, works: Sequence[Work]) -> list[Any]:
        if self._server.answers is None and (together := TOGETHER.get(works[0].step.op)):
            with contextlib.suppress(Exception):  # of some item; of which one, they tell one by one
                return together([work.payload for work in works])
        return [self._value(work) for work in works]

    def _value(self, work: Work) -> Any:
        try:
            return self._answer(work.step.op, work.payload, work.step.settings)
        except Exception as e:  # around what stands for an engine: it is this item's
            return Lost(e)

    def _seconds(self, works: Sequence[Work]) -> float:
        op, items = works[0].step.op, len(works)
        profile = self._server.profiles[op]
        if profile.token_s or profile.measured_tokens is not None:
            return profile.predict_s(items, self._tokens(op, works))
        seconds = self._by_items_s.get((op, items))
        if seconds is None:
            seconds = self._by_items_s[op, items] = profile.predict_s(items, 0)
        return seconds

    def _tokens(self, op: str, works: Sequence[Work]) -> int | None:
        """Of all items together; None for those of the usual length, where nobody would count them."""
        if op == "embedding":
            prefix = self._count(str(works[0].step.settings.get("prompt") or ""))
            return sum(self._count(str(work.payload)) + prefix for work in works)
        if op == "reranking":
            return sum(self._count(str(text)) for work in works for text in _texts(work.payload))
        return None


def _texts(payload: Any) -> Sequence[Any]:
    return payload if isinstance(payload, tuple) else (payload,)
