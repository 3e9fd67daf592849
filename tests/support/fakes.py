"""Engines for the tests of the pure layers and of the host: no model, no waiting, and every kind of fault."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from teola_plugin import pure
from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, EngineSpec, Failed


@pure
class FakeTransport(httpx.MockTransport):
    """Answers requests in this process; may be asked ahead of time."""


class FakeEngine:
    """Answers `answer(payload)`; a Completion is streamed word by word. `gate`, if set, holds each batch back."""

    def __init__(
        self, answer: Callable[[Any], Any] = str, *, name: str = "fake", max_items: int = 8, concurrent: bool = False,
        abort: bool = True, pads: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.capabilities = Capabilities(
            max_items=max_items, concurrent=concurrent, abort=abort, prefix=True, pads=pads
        )
        self.answer = answer
        self.gate: asyncio.Event | None = None
        self.batches: list[Batch] = []
        self.aborted: list[int] = []
        self.released: list[int] = []
        self.is_closed = False
        self.version = 0

    @property
    def spec(self) -> EngineSpec:
        return EngineSpec("engine", self, self.name)

    @property
    def seen(self) -> list[Any]:
        return [item.payload for batch in self.batches for item in batch.items]

    def stamp(self) -> int:
        return self.version

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        if self.gate:
            await self.gate.wait()
        for position, item in enumerate(batch.items):
            try:
                value = self.answer(item.payload)
            except Exception as e:  # the item's own failure
                emit(position, Failed(e))
                continue
            if isinstance(value, Completion):
                for piece in value.pieces:
                    emit(position, Delta(piece))
                    await asyncio.sleep(0)
            emit(position, Done(value))

    def abort(self, ids: Sequence[int]) -> None:
        self.aborted += ids

    def release(self, owner: int) -> None:
        self.released.append(owner)

    async def close(self) -> None:
        self.is_closed = True


def says(text: str) -> Completion:
    """A completion of these words, one piece each."""
    return Completion(text, pieces=re.findall(r"\S+\s*", text))


def collect_garbage() -> None:
    """`gc.collect` until it has: while another thread collects, it returns at once."""

    class Garbage:
        def __init__(self) -> None:
            self.me = self

    gone = weakref.ref(Garbage())
    while gone() is not None:
        gc.collect()
