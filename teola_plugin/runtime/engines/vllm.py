"""LLMs on vLLM: continuous batching, early prefills, priorities, abort.

    engine = VllmEngine("/models/llama", max_model_len=4096)     # other arguments are vLLM's own (AsyncEngineArgs)

    decoding            prompt -> Completion, one Delta per token; each item is a request of its own to vLLM
    partial_prefilling  text -> None; a prompt of the same owner that begins with it continues there (open_prefills.py)

**Tokens.** A prompt is tokenised once, here, with the special tokens that the tokenizer gives to plain text, unless the
text begins with the BOS token, as a rendered chat does: a prompt never gets a second BOS token.

**Errors.** A prompt that is too long, empty or not Unicode fails alone, before vLLM gets the prompt. If the core dies,
the open batches end with EngineCrashed, and the next use starts another core; likewise after `close`.

**Tenants.** The tenant of an item is its `cache_salt`: no prefix in the KV cache serves two tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.util
import os
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from teola_plugin import forks
from teola_plugin.chat import Message, Tool, render_plainly
from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineCrashed, EngineError, TeolaError
from teola_plugin.profile import LlmProfile
from teola_plugin.runtime.engines import vllm_core
from teola_plugin.runtime.engines.kv_demand import KvDemand
from teola_plugin.runtime.engines.open_prefills import HELD_BACK_TOKENS
from teola_plugin.runtime.engines.pieces import Pieces
from teola_plugin.runtime.engines.sampling import held_back_chars, is_continuable, sampling_params
from teola_plugin.runtime.engines.vllm_requests import Core
from teola_plugin.runtime.engines.worker import Worker

MAX_ITEMS = 64
"""The number of requests side by side, unless `max_num_seqs` is given. A CPU gains little beyond 32."""

SHORTEST_PREFILL = 64
"""The shortest early prefill, in tokens. A tiny Llama on two cores answered after an open prefill of 8 to 32 tokens no
sooner than without (-8 to +2 ms), of 64 tokens 9 ms sooner, of 256 tokens 26 ms, of 512 tokens 65 ms. A 7B model on a
GPU forgoes 15 ms at most."""

STOP_TIMEOUT_S = 10.0
"""How long the end of the interpreter may wait for an engine that was not closed."""

PREFILL = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
"""The settings of a request whose answer is not used."""


_Op = Callable[[Core, Item, Mapping[str, Any], Callable[[Outcome], None]], Coroutine[Any, Any, Any]]


class VllmEngine:
    """A model on vLLM. Nothing is loaded before the first use, and for texts only the tokenizer.

    The amount of KV cache (`capabilities.max_tokens`) is known once the engine runs.

    `start_method`: "spawn" or "fork", see vllm_core.py; by default VLLM_WORKER_MULTIPROC_METHOD, else vLLM's choice.
    `shortest_prefill`: a prefix of fewer tokens is not prefilled early. `run` and `start` belong to the first event
    loop that calls them; the rest may be called from any thread.
    """

    def __init__(
        self, model: str | Path, *, name: str = "llm", start_method: Literal["spawn", "fork"] | None = None,
        shortest_prefill: int = SHORTEST_PREFILL, profile: LlmProfile | None = None, **engine_args: Any,
    ) -> None:  # fmt: skip
        self.model = str(model)
        self.name = name
        self.profile = profile
        self._start_method = start_method or os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
        self._shortest_prefill = shortest_prefill
        self._args = {"max_num_seqs": MAX_ITEMS, "enable_prefix_caching": True, **engine_args}
        self.capabilities = Capabilities(
            max_items=self._args["max_num_seqs"], concurrent=True, abort=True,
            prefix=bool(self._args["enable_prefix_caching"]),
        )  # fmt: skip
        self._demand = KvDemand()
        self._starter = Worker(f"{name}-starter")  # asyncio.to_thread is over before the interpreter ends
        self._begin()
        forks.in_child(self._begin_anew)

    # --- text -----------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, from transformers. Raises: EngineUnavailable."""
        return vllm_core.load_tokenizer(self.name, self.model, self._args)

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt of a conversation, up to the assistant's answer; by the model's template if any."""
        if not self.tokenizer.chat_template:
            return render_plainly(messages, tools)
        given = {"tools": list(tools)} if tools else {}
        template = self.tokenizer.apply_chat_template
        return str(template(list(messages), tokenize=False, add_generation_prompt=True, **given))

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a whole prompt. Raises: UnicodeEncodeError for lone surrogates."""
        text.encode()
        has_bos = bool(self.tokenizer.bos_token) and text.startswith(self.tokenizer.bos_token)
        return list(self.tokenizer(text, add_special_tokens=not has_bos, verbose=False)["input_ids"])

    def kv_tokens(self, op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        """Return an estimate of the KV cache that an item will need; see kv_demand.py."""
        return self._demand.of_item(op, payload, settings)

    # --- start and end --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._core: Core | None = None
        self._starting: asyncio.Task[Core] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._told_to_stop: set[int] = set()
        self._released: deque[Hashable] = deque(maxlen=1024)

    def _begin_anew(self) -> None:
        """Start afresh in a forked child, which starts a core of its own."""
        forks.leave(self._core, self._starting, self._tasks)
        if self._core is not None:
            vllm_core.leave(self._core.llm)
        self._begin()

    async def start(self) -> None:
        """Load the model, if not loaded. Raises: EngineUnavailable."""
        await self._running()

    async def close(self) -> None:
        """Stop vLLM and cancel running requests. A later use starts vLLM again."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        core, self._core = self._core, None
        tasks = list(self._tasks.values())
        self.abort(list(self._tasks))
        if core is not None:
            core.close_prefills()
            await asyncio.gather(*tasks, *core.closing, return_exceptions=True)
            await self._starter.call(lambda: vllm_core.stop(core.llm))
            self._starter.stop()

    async def recovered(self) -> None:
        """Wait until a core runs again. Raises: EngineUnavailable."""
        await self._running()

    def restart(self) -> None:
        """End the silent core; the next use starts another."""
        if self._core is not None:
            vllm_core.kill(self._core.llm)

    async def _running(self) -> Core:
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

    async def _start(self) -> Core:
        try:
            self.tokenizer  # noqa: B018  fails early, and in words
            llm = await self._starter.call(
                lambda: vllm_core.load(self.name, self.model, self._args, self._start_method)
            )
        finally:
            self._starting = None
        core = Core(self.name, llm, self._args["max_num_seqs"])
        self.capabilities = replace(
            self.capabilities, max_tokens=core.room.tokens or None, early_beside=0 if vllm_core.is_on_cpu() else 1
        )
        self._demand.block_tokens, self._demand.max_model_len = core.room.block_tokens, core.max_model_len
        self._core = core
        _started.add(self)
        # Before multiprocessing waits for the core to end; in its children nothing else is called at exit.
        multiprocessing.util.Finalize(None, _stop_all, exitpriority=100)
        return core

    def _drop(self) -> None:
        """Stop a core that is of no use any more."""
        core, self._core = self._core, None
        if core is not None:
            vllm_core.stop(core.llm)

    # --- work -----------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`. Raises: EngineCrashed if the core died, for the open items."""
        ops: dict[str, _Op] = {"decoding": self._decode, "partial_prefilling": self._prefill}
        if batch.op not in ops:
            raise EngineError(f"engine {self.name!r} knows {', '.join(ops)}, not {batch.op}")
        ids = [item.id for item in batch.items]
        work = [
            self._answer(ops[batch.op], item, batch.settings, lambda outcome, at=at: emit(at, outcome))  # type: ignore[misc]
            for at, item in enumerate(batch.items)
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        self._tasks |= dict(zip(ids, tasks, strict=True))
        try:
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for item_id in ids:
                self._tasks.pop(item_id, None)
            self._told_to_stop.difference_update(ids)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _answer(self, op: _Op, item: Item, settings: Mapping[str, Any], tell: Callable[[Outcome], None]) -> None:
        """Emit the outcome of an item. Raises: EngineCrashed; CancelledError if the item was not to stop."""
        core: Core | None = None
        try:
            core = await self._running()
            value = await op(core, item, settings, tell)
        except asyncio.CancelledError:
            if item.id not in self._told_to_stop:
                raise
            tell(Failed(Cancelled(f"engine {self.name!r} was told to stop")))
        except Exception as e:  # an item fails alone
            error = self._error(e, core)
            if isinstance(error, EngineCrashed):
                raise error from e
            tell(Failed(error))
        else:
            tell(Done(value))

    def abort(self, ids: Sequence[int]) -> None:
        """Stop items; vLLM frees their state."""
        for item_id in ids:
            if task := self._tasks.get(item_id):
                self._told_to_stop.add(item_id)
                task.get_loop().call_soon_threadsafe(task.cancel)

    def release(self, owner: Hashable) -> None:
        """Close the open prefills of a query that is over, and open no later prefills."""
        if core := self._core:
            core.loop.call_soon_threadsafe(self._release, core, owner)

    def _release(self, core: Core, owner: Hashable) -> None:
        self._released.append(owner)
        core.release(owner)

    def _error(self, error: Exception, core: Core | None) -> Exception:
        """Return vLLM's own failures as errors of this package; errors about a request stay unchanged."""
        if core is None or (isinstance(error, TeolaError) and not isinstance(error, EngineCrashed)):
            return error  # for example, vLLM is not installed
        if isinstance(error, EngineCrashed) or core.llm.errored or core is not self._core:
            if core is self._core:
                self._core = None
                core.close_prefills()
                self._starter.submit(lambda: vllm_core.stop(core.llm))  # before another starts on that thread
            return EngineCrashed(f"engine {self.name!r}: vLLM died; the next use starts it again")
        return vllm_core.told(self.name, error)

    # --- decoding -------------------------------------------------------------------------------------------

    async def _decode(
        self, core: Core, item: Item, settings: Mapping[str, Any], tell: Callable[[Outcome], None]
    ) -> Completion:
        params = sampling_params(settings)
        ids = self._checked(core, item.payload)
        self._demand.prompt_was(item.payload, len(ids))
        pieces = Pieces(
            self.tokenizer._tokenizer, ids,
            skip_special_tokens=params.skip_special_tokens, held_back=held_back_chars(params),
        )  # fmt: skip
        prefill = core.opened_for(item, ids) if is_continuable(settings) else None
        reason, text_chars = "", 0
        async with contextlib.aclosing(core.outputs(item, ids, params, prefill)) as outputs:
            async for token_ids, output in outputs:
                text_chars += len(output.text)
                reason = output.finish_reason or ""
                last = token_ids.pop() if reason and token_ids else None
                for token_id in token_ids:
                    tell(Delta(pieces.add(token_id)))
                if last is not None:
                    cut = text_chars if params.stop else None
                    tell(Delta(pieces.add_last(last, is_silent=_is_silent(output, params), text_chars=cut)))
        if reason == "abort":  # not by this engine: the core was told to end, as all processes of a service may be
            raise EngineCrashed(f"engine {self.name!r}: vLLM ends")
        if reason not in ("stop", "length"):
            raise EngineError(f"engine {self.name!r}: vLLM ended a request early ({reason or 'without a reason'})")
        if params.max_tokens:
            self._demand.answer_was(len(pieces.token_ids), params.max_tokens)
        return Completion(
            pieces.text, token_ids=pieces.token_ids, pieces=pieces.said, finish_reason=reason,
            prompt_tokens=len(ids),
        )  # fmt: skip

    def _checked(self, core: Core, text: str) -> list[int]:
        """Return the tokens of a prompt that vLLM will take. Raises: ValueError, as vLLM would."""
        ids = self.tokens(text)
        if not ids:
            raise ValueError("the prompt is empty")
        if len(ids) >= core.max_model_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and leaves no room for an answer:"
                f" the model takes {core.max_model_len} (max_model_len)"
            )
        return ids

    # --- partial prefilling ---------------------------------------------------------------------------------

    async def _prefill(
        self, core: Core, item: Item, settings: Mapping[str, Any], tell: Callable[[Outcome], None]
    ) -> int:
        """Return the number of tokens prefilled."""
        ids = self.tokens(item.payload)[:-HELD_BACK_TOKENS]
        if not max(1, self._shortest_prefill) <= len(ids) < core.max_model_len:
            return 0
        if item.owner in self._released or core.comes_late(item):
            return 0
        params = sampling_params(PREFILL)
        may_wait = item.owner != 0 and is_continuable(settings) and self.capabilities.prefix
        if may_wait and vllm_core.takes_later_limits() and core.may_open(ids):
            await core.open(item, ids, params)
        else:
            async for _ in core.outputs(item, ids, params):  # a plain request: leaves its full blocks cached
                pass
        return len(ids)


def _is_silent(output: Any, params: Any) -> bool:
    """Whether the last token ended the answer (EOS, a stop token) and is not part of the text."""
    by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
    return by_token and not params.include_stop_str_in_output


_started: weakref.WeakSet[VllmEngine] = weakref.WeakSet()


def _stop_all() -> None:
    """Close all open engines; vLLM's own destructor would complain once the interpreter is half gone."""
    for engine in list(_started):
        if (core := engine._core) and core.loop.is_running():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(engine.close(), core.loop).result(STOP_TIMEOUT_S)
        engine._drop()
