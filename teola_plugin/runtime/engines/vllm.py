"""LLMs on vLLM: continuous batching, prompts computed ahead of their end, priorities, abort.

    engine = VllmEngine("/models/llama", max_model_len=4096)     # other arguments are vLLM's own (AsyncEngineArgs)

    decoding            prompt -> Completion, one Delta per token; each item is a request of its own to vLLM
    partial_prefilling  text -> None; a prompt of the same owner that begins with it continues there (open_prefills.py)

**Tokens.** A prompt is tokenised once, here, with the special tokens that the tokenizer gives to plain text, unless the
text begins with the BOS token, as a rendered chat does: it never gets a second one.

**Errors.** A prompt that is too long, empty or not Unicode fails alone, before vLLM hears of it. If the core dies, the
items it had fail with EngineError and the next use starts another; so it is after `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing.util
import os
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from teola_plugin import forks
from teola_plugin.chat import Message, Tool, render_plainly
from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineError, EngineUnavailable, TeolaError
from teola_plugin.runtime.engines import vllm_core
from teola_plugin.runtime.engines.open_prefills import HELD_BACK_TOKENS, OpenPrefill, OpenPrefills, Room
from teola_plugin.runtime.engines.pieces import Pieces
from teola_plugin.runtime.engines.sampling import held_back_chars, is_continuable, sampling_params
from teola_plugin.runtime.engines.worker import Worker

MAX_ITEMS = 64
"""Requests side by side, unless `max_num_seqs` is given. A CPU gains little beyond 32."""

SHORTEST_PREFILL = 64
"""Tokens. A tiny Llama on two cores answered after an open prefill of 8 to 32 tokens no sooner than without (-8 to +2
ms), after one of 64 by 9 ms, of 256 by 26 ms, of 512 by 65 ms. A 7B model on a GPU forgoes 15 ms at most."""

STOP_TIMEOUT_S = 10.0
"""How long the end of the interpreter may wait for an engine that nobody closed."""

PREFILL = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
"""Settings of a request whose answer nobody wants."""


@dataclass(frozen=True, slots=True)
class _Core:
    """A running vLLM, the event loop it belongs to, and what it holds for us."""

    llm: Any
    loop: asyncio.AbstractEventLoop
    max_model_len: int
    prefills: OpenPrefills
    needs: dict[str, int] = field(default_factory=dict)
    """The most tokens each running request may take."""


class VllmEngine:
    """One model on vLLM. Nothing is loaded before the first use, and for texts only the tokenizer.

    `start_method`: "spawn" or "fork", see vllm_core.py; by default VLLM_WORKER_MULTIPROC_METHOD, else as vLLM likes it.
    `shortest_prefill`: a prefix of fewer tokens is not prefilled early.
    `run` and `start` belong to one event loop, the first that calls them; the rest may be called from any thread.
    """

    def __init__(
        self, model: str | Path, *, name: str = "llm", start_method: Literal["spawn", "fork"] | None = None,
        shortest_prefill: int = SHORTEST_PREFILL, **engine_args: Any,
    ) -> None:  # fmt: skip
        self.model = str(model)
        self.name = name
        self._start_method = start_method or os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
        self._shortest_prefill = shortest_prefill
        self._args = {"max_num_seqs": MAX_ITEMS, "enable_prefix_caching": True, **engine_args}
        self._has_priorities = self._args.get("scheduling_policy", "priority") == "priority"
        self.capabilities = Capabilities(
            max_items=self._args["max_num_seqs"], concurrent=True, abort=True,
            prefix=bool(self._args["enable_prefix_caching"]),
        )  # fmt: skip
        self._numbers = itertools.count(1)
        self._starter = Worker(f"{name}-starter")  # asyncio.to_thread is over before the interpreter ends
        self._begin()
        forks.in_child(self._begin_anew)

    # --- text -----------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, from transformers. Raises: EngineUnavailable."""
        vllm_core.require("transformers", self.name, self.model)
        from transformers import AutoTokenizer

        args = self._args
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(args.get("tokenizer") or self.model),
                revision=args.get("tokenizer_revision") or args.get("revision"),
                trust_remote_code=args.get("trust_remote_code", False),
            )
        except (OSError, ValueError) as e:
            raise EngineUnavailable(f"engine {self.name!r}: no tokenizer for {self.model!r}: {e}") from e
        if not hasattr(tokenizer, "_tokenizer"):
            raise EngineUnavailable(f"engine {self.name!r}: the tokenizer of {self.model!r} is not a fast one")
        return tokenizer

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The prompt of a conversation, up to where the assistant answers; by the model's template if it has one."""
        if not self.tokenizer.chat_template:
            return render_plainly(messages, tools)
        given = {"tools": list(tools)} if tools else {}
        template = self.tokenizer.apply_chat_template
        return str(template(list(messages), tokenize=False, add_generation_prompt=True, **given))

    def tokens(self, text: str) -> list[int]:
        """The token ids of a whole prompt. Raises: UnicodeEncodeError for lone surrogates."""
        text.encode()
        has_bos = bool(self.tokenizer.bos_token) and text.startswith(self.tokenizer.bos_token)
        return list(self.tokenizer(text, add_special_tokens=not has_bos, verbose=False)["input_ids"])

    # --- start and end --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._core: _Core | None = None
        self._starting: asyncio.Task[_Core] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._released: deque[int] = deque(maxlen=1024)

    def _begin_anew(self) -> None:
        """In a forked child; it starts a core of its own."""
        forks.leave(self._core, self._starting, self._tasks, self._closing)
        if self._core is not None:
            vllm_core.leave(self._core.llm)
        self._begin()

    async def start(self) -> None:
        """Load the model, if it is not loaded. Raises: EngineUnavailable."""
        await self._running()

    async def close(self) -> None:
        """Stop vLLM; what runs is cancelled. A later use starts it again."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        core, self._core = self._core, None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if core is not None:
            closing = [prefill.close() for prefill in core.prefills.remove_all()]
            await asyncio.gather(*tasks, *closing, *self._closing, return_exceptions=True)
            await self._starter.call(lambda: vllm_core.stop(core.llm))
            self._starter.stop()

    async def _running(self) -> _Core:
        loop = asyncio.get_running_loop()
        if self._core is not None and self._core.loop.is_closed():
            self._drop()
        if self._core is not None:
            if self._core.loop is not loop:
                raise EngineError(f"engine {self.name!r} already runs on another event loop")
            return self._core
        if self._starting is None or self._starting.get_loop() is not loop:
            self._starting = loop.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Core:
        try:
            self.tokenizer  # noqa: B018  fails early, and in words
            llm = await self._starter.call(
                lambda: vllm_core.load(self.name, self.model, self._args, self._start_method)
            )
        finally:
            self._starting = None
        cache = llm.vllm_config.cache_config
        room = Room((cache.num_gpu_blocks or 0) * cache.block_size, self._args["max_num_seqs"], cache.block_size)
        core = _Core(llm, asyncio.get_running_loop(), llm.model_config.max_model_len, OpenPrefills(room))
        self._core = core
        _started.add(self)
        # Before multiprocessing waits for the core to end; in its children nothing else is called at exit.
        multiprocessing.util.Finalize(None, _stop_all, exitpriority=100)
        return core

    def _drop(self) -> None:
        """Let go of a core that is of no use any more."""
        core, self._core = self._core, None
        if core is not None:
            vllm_core.stop(core.llm)

    # --- work -----------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        ops: dict[str, Callable[[Item, Mapping[str, Any], Callable[[Outcome], None]], Any]]
        ops = {"decoding": self._decode, "partial_prefilling": self._prefill}
        if batch.op not in ops:
            raise EngineError(f"engine {self.name!r} knows {', '.join(ops)}, not {batch.op}")

        async def answer(position: int, item: Item) -> None:
            def tell(outcome: Outcome) -> None:
                emit(position, outcome)

            try:
                tell(Done(await ops[batch.op](item, batch.settings, tell)))
            except asyncio.CancelledError:
                tell(Failed(Cancelled(f"engine {self.name!r} was told to stop")))
            except Exception as e:  # an item fails alone
                tell(Failed(self._error(e)))

        tasks = [asyncio.ensure_future(answer(i, item)) for i, item in enumerate(batch.items)]
        ids = {item.id: task for item, task in zip(batch.items, tasks, strict=True)}
        self._tasks |= ids
        try:
            await asyncio.gather(*tasks)
        finally:
            for item_id in ids:
                self._tasks.pop(item_id, None)

    def abort(self, ids: Sequence[int]) -> None:
        """Stop these items; vLLM frees what they hold."""
        for item_id in ids:
            if task := self._tasks.get(item_id):
                task.get_loop().call_soon_threadsafe(task.cancel)

    def release(self, owner: int) -> None:
        """The query `owner` is over: its open prefills are closed, and later ones not opened."""
        if core := self._core:
            core.loop.call_soon_threadsafe(self._release, core, owner)

    def _release(self, core: _Core, owner: int) -> None:
        self._released.append(owner)
        for prefill in core.prefills.remove_owner(owner):
            self._close_soon(prefill)

    def _close_soon(self, prefill: OpenPrefill) -> None:
        task = asyncio.ensure_future(prefill.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _error(self, error: Exception) -> Exception:
        """vLLM's own failures as ours; what it says about a request stays as it is."""
        if isinstance(error, TeolaError):  # maybe that vLLM is not there
            return error
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        match error:
            case EngineDeadError():
                if self._core is not None and self._core.llm.errored:  # and not its successor
                    self._drop()
                told: Exception = EngineError(f"engine {self.name!r}: vLLM died; the next use starts it again")
            case EngineGenerateError():
                told = EngineError(f"engine {self.name!r}: vLLM failed: {error.__cause__ or error}")
            case _:
                return error
        told.__cause__ = error
        return told

    # --- decoding -------------------------------------------------------------------------------------------

    async def _decode(self, item: Item, settings: Mapping[str, Any], tell: Callable[[Outcome], None]) -> Any:
        core = await self._running()
        params = sampling_params(settings)
        ids = self._checked(core, item.payload)
        pieces = Pieces(
            self.tokenizer._tokenizer, ids,
            skip_special_tokens=params.skip_special_tokens, held_back=held_back_chars(params),
        )  # fmt: skip
        prefill = self._open_prefill(core, item, ids) if is_continuable(settings) else None
        reason, text_chars = "", 0
        async with contextlib.aclosing(self._outputs(core, item, ids, params, prefill)) as outputs:
            async for token_ids, output in outputs:
                text_chars += len(output.text)
                reason = output.finish_reason or ""
                last = token_ids.pop() if reason and token_ids else None
                for token_id in token_ids:
                    tell(Delta(pieces.add(token_id)))
                if last is not None:
                    cut = text_chars if params.stop else None
                    tell(Delta(pieces.add_last(last, is_silent=_is_silent(output, params), text_chars=cut)))
        if reason not in ("stop", "length"):
            raise EngineError(f"engine {self.name!r}: vLLM ended a request early ({reason or 'without a reason'})")
        return Completion(
            pieces.text, token_ids=pieces.token_ids, pieces=pieces.said, finish_reason=reason,
            prompt_tokens=len(ids),
        )  # fmt: skip

    async def _outputs(
        self, core: _Core, item: Item, ids: list[int], params: Any, prefill: OpenPrefill | None = None
    ) -> AsyncGenerator[tuple[list[int], Any], None]:
        """The new token ids, each time vLLM has some, with its own account of them."""
        with self._room(core, len(ids) + (params.max_tokens or core.max_model_len)) as request_id:
            if prefill:
                outputs: Any = prefill.continued(ids, params)
            else:
                outputs = self._generate(core, {"prompt_token_ids": ids}, params, request_id, item)
            to_drop = 1 if prefill else 0
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    token_ids = list(output.outputs[0].token_ids)[to_drop:]
                    if token_ids or not to_drop:
                        yield token_ids, output.outputs[0]
                    to_drop = 0

    async def _generate(
        self, core: _Core, prompt: Any, params: Any, request_id: str, item: Item
    ) -> AsyncGenerator[Any, None]:
        priority = item.priority if self._has_priorities else 0
        outputs = core.llm.generate(prompt, params, request_id, priority=priority)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except asyncio.CancelledError:
            await core.llm.abort(request_id)  # vLLM forgets it if cancelled while it takes the request in
            raise

    def _checked(self, core: _Core, text: str) -> list[int]:
        """The tokens of a prompt that vLLM will take. Raises: ValueError, as vLLM would."""
        ids = self.tokens(text)
        if not ids:
            raise ValueError("the prompt is empty")
        if len(ids) >= core.max_model_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and leaves no room for an answer:"
                f" the model takes {core.max_model_len} (max_model_len)"
            )
        return ids

    @contextlib.contextmanager
    def _room(self, core: _Core, tokens: int) -> Iterator[str]:
        """A request id, and no open prefill in the way of that many tokens."""
        request_id = f"{self.name}-{next(self._numbers)}"
        core.needs[request_id] = min(tokens, core.max_model_len)
        for prefill in core.prefills.to_close_for(list(core.needs.values())):
            self._close_soon(prefill)
        try:
            yield request_id
        finally:
            del core.needs[request_id]

    # --- partial prefilling ---------------------------------------------------------------------------------

    async def _prefill(self, item: Item, settings: Mapping[str, Any], tell: Callable[[Outcome], None]) -> int:
        """How many tokens were prefilled."""
        core = await self._running()
        ids = self.tokens(item.payload)[:-HELD_BACK_TOKENS]
        if not max(1, self._shortest_prefill) <= len(ids) < core.max_model_len or item.owner in self._released:
            return 0
        params = sampling_params(PREFILL)
        may_wait = item.owner != 0 and is_continuable(settings) and self.capabilities.prefix
        if not (may_wait and core.prefills.fits(len(ids), list(core.needs.values()))):
            async for _ in self._outputs(core, item, ids, params):  # a plain request: leaves its full blocks cached
                pass
            return len(ids)
        prefill = self._open(core, item, ids, params)
        core.prefills.add(prefill)
        try:
            await prefill.prefilled()
        except BaseException:
            if core.prefills.remove(prefill):
                self._close_soon(prefill)
            raise
        return len(ids)

    def _open(self, core: _Core, item: Item, ids: list[int], params: Any) -> OpenPrefill:
        from vllm.engine.protocol import StreamingInput

        request_id = f"{self.name}-{next(self._numbers)}"
        return OpenPrefill(
            item.owner, item.payload, ids, params,
            lambda chunks, params: self._generate(core, chunks, params, request_id, item),
            lambda ids, params: StreamingInput(prompt={"prompt_token_ids": list(ids)}, sampling_params=params),
        )  # fmt: skip

    def _open_prefill(self, core: _Core, item: Item, ids: list[int]) -> OpenPrefill | None:
        """The open prefill that this prompt continues. One whose tokens turned out differently is closed."""
        if item.owner == 0:
            return None
        prefill = core.prefills.take(item.owner, item.payload)
        if prefill is None:
            return None
        sent = len(prefill.token_ids)
        if sent < len(ids) and tuple(ids[:sent]) == prefill.token_ids:
            return prefill
        self._close_soon(prefill)
        return None


def _is_silent(output: Any, params: Any) -> bool:
    """The last token ended the answer (EOS, a stop token) and is not part of its text."""
    by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
    return by_token and not params.include_stop_str_in_output


_started: weakref.WeakSet[VllmEngine] = weakref.WeakSet()


def _stop_all() -> None:
    """What nobody closed; vLLM's own destructor would complain once the interpreter is half gone."""
    for engine in list(_started):
        if (core := engine._core) and core.loop.is_running():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(engine.close(), core.loop).result(STOP_TIMEOUT_S)
        engine._drop()
