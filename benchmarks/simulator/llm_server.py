"""An LLM that batches continuously, by the same rules as `runtime/engines/simulated.py`.

    while there is work:
        prompts wait?   prefill as many as fit: all wait prefill_s(uncached tokens), then each says its first token
        else            decode: all wait step_s(running), then each says its next

Nothing changes from one decode step to the next until a text or an item of one is complete, or something new comes. So
that many steps are one event; what comes in the middle of it takes effect at the next end of a step.

    marks   (step 12, a ends)  (step 30, b's first item)  (step 41, b ends)       counted from the start of the instance
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.calls import Call, Setup, Told
from simulator.prefix_cache import BLOCK_TOKENS, Key, PiecesCache
from simulator.systems import LlmServer
from simulator.usage import EngineUse
from simulator.values import Prompt, piece_tokens
from simulator.writing import Text, write
from teola_plugin.engines import Batch, Delta, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineError

CACHED_TOKENS = 16_384 * BLOCK_TOKENS
"""What a prefix cache holds if nobody says how large the KV cache is; as of the profile engine."""

MOST_STEPS = 1 << 30
"""So many decode steps are one event at most."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """The prompt at a position of a call. `text`: what will be said, None for a prefill alone.

    `held`: its pieces in the prefix cache. `reserved`: tokens of KV cache that nobody else can use.
    """

    call: Call
    position: int
    item: Item
    prompt: Prompt
    tokens: list[int]
    prompt_tokens: int
    text: Text | None
    held: tuple[Key, ...] = ()
    reserved: int = 0
    is_aborted: bool = False
    has_ended: bool = False


class LlmEngine:
    """One instance of an `LlmServer`. `bundles`: see `System`."""

    def __init__(self, name: str, server: LlmServer, setup: Setup, use: EngineUse, *, bundles: bool = False) -> None:
        self.name = name
        self.capabilities = server.capabilities(bundles=bundles)
        self.profile = server.profile
        self._server = server
        self._setup = setup
        self._loop = setup.loop
        self._count = server.count or setup.count
        self._use = use
        self._most_steps = 1 if setup.cores else MOST_STEPS  # how long the next ones take shows only then
        self._cache = PiecesCache(server.kv_tokens or CACHED_TOKENS, server.block_tokens)
        self._waiting: list[_Sequence] = []
        self._running: dict[int, _Sequence] = {}
        self._aborted: list[_Sequence] = []
        self._known: dict[int, _Sequence] = {}
        self._is_idle = True
        self._step_s: dict[int, float] = {}
        # decoding: steps made so far, what is due at which step, and the steps under way
        self._steps = 0
        self._marks: list[tuple[int, int, _Sequence, Delta | Done]] = []
        self._numbers = itertools.count()
        self._jump = 0
        self._jump_steps = 0
        self._jump_began_s = 0.0

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        await Call(batch, emit, self._setup).end_of(self._begin)

    def abort(self, ids: Sequence[int]) -> None:
        """Drop items at the end of the step under way."""
        self._setup.hop(self._abort, ids)

    async def close(self) -> None:
        """Do nothing."""

    def _begin(self, call: Call) -> None:
        for position, item in enumerate(call.batch.items):
            try:
                sequence = self._sequence(call, position, item)
            except Exception as e:  # settings that make no sense, what does not fit: it is this item's
                self._setup.tell([(call, position, Failed(e))])
                continue
            self._known[item.id] = sequence
            self._waiting.append(sequence)
        self._wake()

    def _abort(self, ids: Sequence[int]) -> None:
        for sequence in filter(None, map(self._known.get, ids)):
            sequence.is_aborted = True
            self._aborted.append(sequence)
        self._wake()

    def _sequence(self, call: Call, position: int, item: Item) -> _Sequence:
        prompt = item.payload if isinstance(item.payload, Prompt) else Prompt((item.payload,))
        tokens = piece_tokens(prompt, self._count)
        text = write(self._server, call.batch.settings, prompt) if call.batch.op == "decoding" else None
        needed, there_are = sum(tokens) + (text.tokens if text else 0), self._server.kv_tokens
        if there_are is not None and needed > there_are:
            raise EngineError(f"a prompt and its answer need {needed} tokens of KV cache, and there are {there_are}")
        return _Sequence(call, position, item, prompt, tokens, sum(tokens), text)

    def _wake(self) -> None:
        """Look at what came: now if there was nothing to do, else when the step under way is over."""
        if self._is_idle:
            self._is_idle = False
            self._loop.call_soon(self._go_on)
        elif self._jump_steps > 1:
            step_s = self._step_s[len(self._running)]
            made = (self._loop.time() - self._jump_began_s) / step_s
            steps = max(1, math.ceil(made - 1e-6))
            if steps < self._jump_steps:
                self._jump_for(steps, step_s)

    def _go_on(self) -> None:
        """The next thing to do."""
        if self._aborted:
            self._drop_aborted()
        if self._waiting and (admitted := self._admit()):
            self._prefill(admitted)
        elif self._running:
            self._decode()
        else:
            self._is_idle = True

    def _drop_aborted(self) -> None:
        for sequence in self._aborted:
            if not sequence.has_ended:
                self._leave(sequence)
                self._setup.tell([_told(sequence, Failed(Cancelled("the item was aborted")))])
        self._waiting = [sequence for sequence in self._waiting if not sequence.has_ended]
        self._aborted.clear()

    def _leave(self, sequence: _Sequence) -> None:
        sequence.has_ended = True
        item_id = sequence.item.id
        del self._known[item_id]
        if self._running.pop(item_id, None) is not None:
            self._cache.release(sequence.held)
            self._cache.reserve(-sequence.reserved)

    # --- prefill -----------------------------------------------------------------------------------------------------

    def _cached(self, sequence: _Sequence) -> int:
        """Tokens at the head of its prompt that need not be computed."""
        n = self._kept(sequence)
        return self._cache.hit_tokens(sequence.prompt.pieces[:n], sequence.tokens[:n], sequence.prompt_tokens)

    def _kept(self, sequence: _Sequence) -> int:
        """How many pieces at the head of its prompt are for the prefix cache."""
        match self._server.prefix_cache:
            case "none":
                return 0
            case "instruction":
                return sequence.prompt.literal_pieces
            case "full":
                return len(sequence.tokens)

    def _admit(self) -> list[_Sequence]:
        """What the next prefill takes, most urgent first."""
        free = self._server.max_items - len(self._running)
        limit = self._server.max_prefill_tokens
        admitted: list[_Sequence] = []
        tokens = 0
        for sequence in sorted(self._waiting, key=lambda s: s.item.priority)[: max(0, free)]:
            tokens += sequence.prompt_tokens - self._cached(sequence)
            if admitted and limit is not None and tokens > limit:
                break
            admitted.append(sequence)
            self._running[sequence.item.id] = sequence
        self._waiting = [sequence for sequence in self._waiting if sequence.item.id not in self._running]
        return admitted

    def _prefill(self, admitted: list[_Sequence]) -> None:
        computed, attended_s = 0, 0.0
        for sequence in admitted:
            sequence.call.begin(sequence.position)
            cached = self._cached(sequence)
            new = sequence.prompt_tokens - cached
            if not self._server.prefix_at_end:
                self._hold(sequence)
            sequence.reserved = sequence.prompt_tokens - sum(sequence.tokens[: self._kept(sequence)])
            sequence.reserved += sequence.text.tokens if sequence.text else 0
            self._cache.reserve(sequence.reserved)
            self._use.cached_tokens += cached
            computed += new
            attended_s += self.profile.pair_s * new * cached
        seconds = self.profile.prefill_s(computed, items=len(admitted)) + attended_s
        beside = len(self._running) - len(admitted) if self._server.mixes_prefills else 0
        if beside:  # their tokens come on top; the model is gone through once
            seconds += self.profile.step_s(1 + beside) - self.profile.step_s(1)
        self._use.batches += 1
        self._use.items += len(admitted)
        self._use.prefilled_tokens += computed
        self._use.busy_s += seconds
        self._setup.after(self._server.demand, seconds, self._prefilled, admitted, beside)

    def _hold(self, sequence: _Sequence) -> None:
        n = self._kept(sequence)
        sequence.held = self._cache.add(sequence.prompt.pieces[:n], sequence.tokens[:n])

    def _prefilled(self, admitted: list[_Sequence], beside: int) -> None:
        if beside:
            self._steps += 1
            self._use.steps += 1
            self._use.step_items += beside
        ended: list[Told] = []
        for sequence in admitted:
            if self._server.prefix_at_end:
                self._hold(sequence)
            if sequence.is_aborted:
                continue
            if sequence.text is None:
                ended.append(_told(sequence, Done(sequence.prompt_tokens)))
                self._leave(sequence)
            else:
                self._begin_text(sequence, sequence.text)
        self._say_due(ended)

    def _begin_text(self, sequence: _Sequence, text: Text) -> None:
        """Its first token is said with the prefill; note what is due at which decode step."""
        if len(text.deltas) > 1 or self._setup.is_traced:  # else its reader sees the end alone
            for token, part in text.deltas:
                self._mark(self._steps + max(0, token - 1), sequence, Delta(part))
        self._mark(self._steps + max(0, text.tokens - 1), sequence, Done(text.value))

    def _mark(self, step: int, sequence: _Sequence, outcome: Delta | Done) -> None:
        heapq.heappush(self._marks, (step, next(self._numbers), sequence, outcome))

    # --- decode ------------------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        count = len(self._running)
        step_s = self._step_s.get(count)
        if step_s is None:
            step_s = self._step_s[count] = self.profile.step_s(count)
        while self._marks[0][2].has_ended:
            heapq.heappop(self._marks)
        self._jump_began_s = self._loop.time()
        self._jump_for(min(self._marks[0][0] - self._steps, self._most_steps), step_s)

    def _jump_for(self, steps: int, step_s: float) -> None:
        self._jump += 1
        self._jump_steps = steps
        seconds = self._jump_began_s + steps * step_s - self._loop.time()
        self._setup.after(self._server.demand, seconds, self._jumped, self._jump)

    def _jumped(self, jump: int) -> None:
        if jump != self._jump:
            return  # cut short
        steps, self._jump_steps = self._jump_steps, 0
        count = len(self._running)
        self._steps += steps
        self._use.steps += steps
        self._use.step_items += steps * count
        self._use.busy_s += steps * self._step_s[count]
        self._say_due([])

    def _say_due(self, told: list[Told]) -> None:
        """Tell what is complete by now, and go on at once: what follows from it comes too late for the next step."""
        while self._marks and self._marks[0][0] <= self._steps:
            _, _, sequence, outcome = heapq.heappop(self._marks)
            if sequence.has_ended or sequence.is_aborted:
                continue
            told.append(_told(sequence, outcome))
            if type(outcome) is Done:
                assert sequence.text is not None
                if self._server.prefix_cache == "full":
                    self._cache.extend(sequence.held, sequence.text.value, sequence.text.tokens)
                self._leave(sequence)
        self._go_on()
        self._setup.tell(told)


def _told(sequence: _Sequence, outcome: Outcome) -> Told:
    return sequence.call, sequence.position, outcome
