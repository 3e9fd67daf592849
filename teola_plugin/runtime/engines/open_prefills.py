"""Open prefills: prompts whose prefix is in vLLM's KV cache while the rest is still being computed.

vLLM takes a prompt in chunks (`StreamingInput`): the engine sends the prefix with `max_tokens=1`, keeps the request
open, and sends the rest with the real sampling parameters when the rest is known. The token sampled in between is
dropped.

    open:      --prefix--> prefilled .. waits ..   (holds its KV blocks and one request slot)
    continue:                            --rest--> decode      the same tokens as the whole prompt would give
    close:                               aborted, the full blocks stay in the prefix cache for a plain request

Condition on the tokens: a prefix ends inside the whole prompt, and tokenisation is not piecewise: the last tokens of a
prefix may merge with the following text. So the last `HELD_BACK_TOKENS` are not sent, and on use the sent tokens must
be the first tokens of the *whole* prompt; otherwise the prefill is closed and the plain request is made.

A paused request must never starve a running request, since the paused query may wait for the running request. The
engine therefore closes open prefills, oldest first, whenever running requests could need the room (`to_close_for`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.errors import Cancelled

HELD_BACK_TOKENS = 8
"""The number of prefix tokens not sent. BPE merges stay inside a word, so only the tokens of a prefix's last word can
change. Over 4,000 random cuts of the docstrings of the standard library, the tiny model's tokenizer changed one token
or more in 75 % of the cases, two in 24 %, three in 5 %, four in 0.4 %, and never more than five. Computing eight tokens
later costs next to nothing."""


class OpenPrefill:
    """A prompt in chunks. Lives on the event loop that made the object.

    `generate` starts vLLM's request for a stream of chunks; `chunk` makes a chunk of token ids and sampling parameters.
    """

    def __init__(
        self, owner: Hashable, text: str, token_ids: Sequence[int], params: Any,
        generate: Callable[[AsyncGenerator[Any, None], Any], AsyncGenerator[Any, None]],
        chunk: Callable[[Sequence[int], Any], Any],
    ) -> None:  # fmt: skip
        self.owner = owner
        self.text = text
        self.token_ids = tuple(token_ids)
        self._chunk = chunk
        self._rest: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._is_taken = asyncio.Event()
        """Whether vLLM has taken the last chunk. Only then is an abort safe: a chunk in flight during the abort would
        become a request of its own, without an owner."""
        self._has_output = asyncio.Event()
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._reader = asyncio.ensure_future(self._read(generate(self._chunks(params), params)))
        self._reader.add_done_callback(_look_at_error)

    async def prefilled(self) -> None:
        """Wait until the prefix is in the cache. Raises: errors of vLLM; Cancelled if the prefill was closed before."""
        await self._has_output.wait()
        if self._reader.cancelled():
            raise Cancelled("the prompt that this prefix was for is wanted no more")
        if self._reader.done():
            self._reader.result()

    async def continued(self, token_ids: Sequence[int], params: Any) -> AsyncGenerator[Any, None]:
        """Yield the outputs of the whole prompt `token_ids`; the first token of all is still to be dropped."""
        try:
            await self._settled()
            self._is_taken.clear()
            self._rest.set_result(self._chunk(token_ids[len(self.token_ids) :], params))
            while (output := await self._outputs.get()) is not None:
                yield output
            await self._reader
        finally:
            await self.close()

    async def close(self) -> None:
        """Abort the request if still running."""
        await self._settled()
        self._reader.cancel()
        await asyncio.wait({self._reader})
        self._rest.cancel()

    async def _chunks(self, params: Any) -> AsyncGenerator[Any, None]:
        yield self._chunk(self.token_ids, params)
        self._is_taken.set()
        yield await self._rest
        self._is_taken.set()

    async def _read(self, outputs: AsyncGenerator[Any, None]) -> None:
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    self._outputs.put_nowait(output)
                    self._has_output.set()
        finally:
            self._outputs.put_nowait(None)
            self._has_output.set()

    async def _settled(self) -> None:
        taken = asyncio.ensure_future(self._is_taken.wait())
        try:
            await asyncio.wait({taken, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()


def _look_at_error(reader: asyncio.Task[None]) -> None:
    """Retrieve the error, which asyncio would otherwise report as never retrieved."""
    if not reader.cancelled():
        reader.exception()


@dataclass(slots=True)
class Room:
    """The capacity of an engine, in tokens of KV cache and in requests."""

    tokens: int
    requests: int
    block_tokens: int

    def blocks(self, tokens: int) -> int:
        """Return `tokens` rounded up to whole blocks."""
        return -(-tokens // self.block_tokens) * self.block_tokens


class OpenPrefills:
    """The open prefills of an engine, oldest first."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._open: list[OpenPrefill] = []

    def __len__(self) -> int:
        return len(self._open)

    def fits(self, tokens: int, running: Sequence[int]) -> bool:
        """Whether a further prefill can stay open beside running requests (`running`: the maximum tokens of each)."""
        return not self._excess([*running, tokens], self._open)

    def to_close_for(self, running: Sequence[int]) -> list[OpenPrefill]:
        """Remove and return the prefills whose room the running requests might need, oldest first."""
        kept = list(self._open)
        while kept and self._excess(running, kept):
            kept.pop(0)
        closing, self._open = self._open[: len(self._open) - len(kept)], kept
        return closing

    def add(self, prefill: OpenPrefill) -> None:
        """Hold `prefill` open until taken or removed."""
        self._open.append(prefill)

    def take(self, owner: Hashable, text: str) -> OpenPrefill | None:
        """Remove and return the owner's prefill that covers most of `text`."""
        fitting = [p for p in self._open if p.owner == owner and text.startswith(p.text)]
        best = max(fitting, key=lambda p: len(p.token_ids), default=None)
        if best is not None:
            self._open.remove(best)
        return best

    def remove(self, prefill: OpenPrefill) -> bool:
        """Remove a prefill. Returns whether `prefill` was still open."""
        found = prefill in self._open
        if found:
            self._open.remove(prefill)
        return found

    def remove_owner(self, owner: Hashable) -> list[OpenPrefill]:
        """Remove and return all prefills of an owner."""
        gone = [p for p in self._open if p.owner == owner]
        self._open = [p for p in self._open if p.owner != owner]
        return gone

    def remove_all(self) -> list[OpenPrefill]:
        """Remove and return all prefills."""
        gone, self._open = self._open, []
        return gone

    def _excess(self, running: Sequence[int], held: Sequence[OpenPrefill]) -> bool:
        tokens = sum(map(self._room.blocks, [*running, *(len(p.token_ids) for p in held)]))
        return tokens > self._room.tokens or len(running) + len(held) > self._room.requests
