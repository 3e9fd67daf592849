"""Profile engines: simulated engines that really wait, by a latency profile, and answer from simulated_text.py.

For benchmarks and for tests of scheduling: all else is the same as on real engines.

An LLM is a loop that batches continuously, as vLLM does without chunked prefill:

    while there is work:
        free slots and waiting prompts?   prefill as many as fit: all wait prefill_s(uncached tokens),
                                          then each decoding says its first token
        else                              decode: all wait step_s(running), then each says its next

So a prefill delays the tokens of all running requests. A prompt enters the prefix cache as soon as its prefill begins,
hence two prompts of the same prefill share a prefix (`prefix_at_end`: at the end of the prefill, so they do not); an
answer enters when complete.

Embedding and reranking engines run a single batch at a time, which takes `profile.predict_s(items, tokens)`.

`fail_on(payload)` injects faults: a returned exception fails the item alone, a raised exception the whole batch.
`sleep` may be replaced by a coroutine that passes virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineClosed, EngineError
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.engines.prefix_cache import PrefixCache
from teola_plugin.runtime.engines.simulated_text import Vector, Writer, complete, embed, find, score, tokenize

FailOn = Callable[[Any], BaseException | None]
Sleep = Callable[[float], Awaitable[Any]]


@dataclass(slots=True)
class Stats:
    """The counts of an engine so far. A batch is a prefill of an LLM, or a call of any other engine."""

    batches: int = 0
    items: int = 0
    tokens: int = 0
    """The computed tokens."""
    cached_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    sizes: list[int] = field(default_factory=list)
    """The number of items of each batch."""

    def count(self, items: int, tokens: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.items += items
        self.tokens += tokens
        self.sizes.append(items)


@dataclass(slots=True, eq=False)
class _Sequence:
    """A prompt. `answer`: the text to write, None for a prefill alone; `error`: the failure instead."""

    item: Item
    tokens: list[str]
    answer: Completion | None
    error: BaseException | None
    tell: Callable[[Outcome], None]
    ended: asyncio.Future[None]
    said: int = 0
    is_aborted: bool = False

    def end(self, outcome: Outcome) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self.tell(outcome)


class ProfileLLM:
    """Operations `partial_prefilling` and `decoding` (settings as for `complete`).

    `reply` writes the answers if given. A prefill takes at most `max_prefill_tokens` (but at least one prompt).
    """

    def __init__(
        self, name: str, profile: LlmProfile, *, max_items: int = 32, max_prefill_tokens: int | None = None,
        reply: Writer | None = None, cache: PrefixCache | None = None, fail_on: FailOn = lambda payload: None,
        sleep: Sleep = asyncio.sleep, prefix_at_end: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(
            max_items=max_items, concurrent=True, prefix=True, abort=True, prefix_at_end=prefix_at_end
        )
        self.stats = Stats()
        self._max_prefill_tokens = max_prefill_tokens
        self._reply = reply
        self._cache = PrefixCache() if cache is None else cache
        self._fail_on = fail_on
        self._sleep = sleep
        self._waiting: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._server: asyncio.Task[None] | None = None

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        if batch.op not in ("decoding", "partial_prefilling"):
            raise EngineError(f"{self.name!r} decodes and prefills; it does not understand {batch.op!r}")
        sequences = [self._sequence(batch, n, emit) for n in range(len(batch.items))]
        self._waiting += sequences
        if self._server is None or self._server.done():
            self._server = asyncio.get_running_loop().create_task(self._serve())
        try:
            await asyncio.gather(*(s.ended for s in sequences))
        finally:  # cancelled: the remaining items have no waiter
            for sequence in sequences:
                sequence.is_aborted = True

    def abort(self, ids: Sequence[int]) -> None:
        """End items with `Cancelled` when the current step is over."""
        for sequence in [*self._waiting, *self._running]:
            sequence.is_aborted |= sequence.item.id in ids

    async def close(self) -> None:
        """End running items with `EngineClosed`; a later batch starts afresh."""
        if self._server is not None and not self._server.done():
            self._server.cancel()
            await asyncio.wait({self._server})

    def _sequence(self, batch: Batch, position: int, emit: Emit) -> _Sequence:
        item = batch.items[position]
        prompt = str(item.payload)
        answer = complete(prompt, batch.settings, self._reply) if batch.op == "decoding" else None
        ended = asyncio.get_running_loop().create_future()
        return _Sequence(item, tokenize(prompt), answer, self._fail_on(item.payload), partial(emit, position), ended)

    async def _serve(self) -> None:
        failure: BaseException = EngineClosed(f"engine {self.name!r} was closed")
        try:
            while self._drop_aborted():
                if admitted := self._admit():
                    await self._prefill(admitted)
                else:
                    await self._step()
        except Exception as e:  # of `sleep`: all waiting items get the error, or would wait forever
            failure = e
        finally:
            for sequence in [*self._waiting, *self._running]:
                sequence.end(Failed(failure))
            self._waiting, self._running = [], []

    def _drop_aborted(self) -> bool:
        """End aborted items. Returns whether there is work left."""
        for sequence in [*self._waiting, *self._running]:
            if sequence.is_aborted:
                sequence.end(Failed(Cancelled("the item was aborted")))
        self._waiting = [s for s in self._waiting if not s.ended.done()]
        self._running = [s for s in self._running if not s.ended.done()]
        return bool(self._waiting or self._running)

    def _admit(self) -> list[_Sequence]:
        """Return the prompts of the next prefill, most urgent first."""
        free = self.capabilities.max_items - len(self._running)
        admitted: list[_Sequence] = []
        tokens = 0
        for sequence in sorted(self._waiting, key=lambda s: s.item.priority)[: max(0, free)]:
            tokens += len(sequence.tokens) - self._cache.hit_tokens(sequence.tokens, sequence.item.tenant)
            if admitted and self._max_prefill_tokens is not None and tokens > self._max_prefill_tokens:
                break
            admitted.append(sequence)
        self._waiting = [s for s in self._waiting if s not in admitted]
        self._running += admitted
        return admitted

    async def _prefill(self, admitted: list[_Sequence]) -> None:
        computed, attended_s = 0, 0.0
        for sequence in admitted:
            cached = self._cache.hit_tokens(sequence.tokens, sequence.item.tenant)
            new = len(sequence.tokens) - cached
            if not self.capabilities.prefix_at_end:
                self._cache.add(sequence.tokens, sequence.item.tenant)
            self.stats.cached_tokens += cached
            computed += new
            attended_s += self.profile.pair_s * new * cached
        self.stats.count(len(admitted), computed)
        await self._pass(self.profile.prefill_s(computed, items=len(admitted)) + attended_s)
        for sequence in admitted:
            if self.capabilities.prefix_at_end:
                self._cache.add(sequence.tokens, sequence.item.tenant)
            if sequence.error is not None:
                sequence.end(Failed(sequence.error))
            elif sequence.answer is None:
                sequence.end(Done(len(sequence.tokens)))
            else:
                self._say(sequence, sequence.answer)

    async def _step(self) -> None:
        running = list(self._running)
        self.stats.steps += 1
        await self._pass(self.profile.step_s(len(running)))
        for sequence in running:
            assert sequence.answer is not None
            self._say(sequence, sequence.answer)

    def _say(self, sequence: _Sequence, answer: Completion) -> None:
        """Emit the next token; with the last token (or none) the end."""
        if sequence.ended.done() or sequence.is_aborted:
            return
        if sequence.said < len(answer.pieces):
            sequence.tell(Delta(answer.pieces[sequence.said]))
            sequence.said += 1
        if sequence.said == len(answer.pieces):
            self._cache.add([*sequence.tokens, *answer.pieces], sequence.item.tenant)
            sequence.end(Done(answer))

    async def _pass(self, seconds: float) -> None:
        self.stats.busy_s += seconds
        await self._sleep(seconds)


class ProfileEmbedding:
    """Operation `embedding`: float32, shape (dim,), length one. A setting `prompt` is put before the text."""

    def __init__(
        self, dim: int, profile: Profile, *, name: str = "embedder", max_items: int = 64,
        fail_on: FailOn = lambda payload: None, sleep: Sleep = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items)
        self.stats = Stats()
        self._dim = dim
        self._calls = _Calls(self.stats, profile, fail_on, sleep)

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        _check_op(batch, "embedding", self.name)
        prompt = str(batch.settings.get("prompt") or "")
        await self._calls.run(batch, emit, lambda text: [f"{prompt}{text}"], lambda text: embed(text, self._dim))

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """Do nothing."""


class ProfileReranker:
    """Operation `reranking`: payload `(query, passage)`, value as for `score`."""

    def __init__(
        self, profile: Profile, *, name: str = "reranker", max_items: int = 64,
        fail_on: FailOn = lambda payload: None, sleep: Sleep = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items)
        self.stats = Stats()
        self._calls = _Calls(self.stats, profile, fail_on, sleep)

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        _check_op(batch, "reranking", self.name)
        await self._calls.run(batch, emit, lambda pair: [str(text) for text in pair], score)

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """Do nothing."""


class ProfileStore:
    """Operations `searching` (payload a vector, setting `top_k`) and `ingestion`, a single batch at a time.

    A search finds `top_k` of `texts`, in the column `documents` as a vector store has it; the choice depends on the
    vector alone. Ingested documents are not kept, so that no answer depends on the order of requests.
    """

    def __init__(
        self, texts: Sequence[str], searching: Profile, ingestion: Profile, *, name: str = "store",
        max_items: int = 64, sleep: Sleep = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = searching
        self.capabilities = Capabilities(max_items=max_items)
        self.stats = Stats()
        self._texts = texts
        self.profiles = {"searching": searching, "ingestion": ingestion}
        self._sleep = sleep
        self._busy = asyncio.Lock()

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        if batch.op not in self.profiles:
            raise EngineError(f"{self.name!r} searches and ingests; it does not understand {batch.op!r}")
        async with self._busy:
            seconds = self.profiles[batch.op].predict_s(len(batch.items), 0)
            self.stats.count(len(batch.items), 0)
            self.stats.busy_s += seconds
            await self._sleep(seconds)
            for position, item in enumerate(batch.items):
                emit(position, Done(self._found(item.payload, batch.settings) if batch.op == "searching" else None))

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """Do nothing."""

    def _found(self, vector: Vector, settings: Mapping[str, Any]) -> dict[str, Any]:
        return find(vector, settings["top_k"], self._texts)


class _Calls:
    """Batches in sequence, each as long as the profile says."""

    def __init__(self, stats: Stats, profile: Profile, fail_on: FailOn, sleep: Sleep) -> None:
        self._stats = stats
        self._profile = profile
        self._fail_on = fail_on
        self._sleep = sleep
        self._busy = asyncio.Lock()

    async def run(self, batch: Batch, emit: Emit, texts: Callable[[Any], list[str]], value: Callable[..., Any]) -> None:
        async with self._busy:
            errors = [self._fail_on(item.payload) for item in batch.items]
            inputs = [texts(item.payload) for item in batch.items]
            tokens = sum(len(tokenize(text)) for group in inputs for text in group)
            seconds = self._profile.predict_s(len(inputs), tokens)
            self._stats.count(len(inputs), tokens)
            self._stats.busy_s += seconds
            await self._sleep(seconds)
            for position, (error, group) in enumerate(zip(errors, inputs, strict=True)):
                emit(position, Failed(error) if error is not None else Done(value(*group)))


def _check_op(batch: Batch, op: str, name: str) -> None:
    if batch.op != op:
        raise EngineError(f"{name!r} understands {op!r}, not {batch.op!r}")
