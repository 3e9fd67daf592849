"""The requests to a running vLLM: plain requests, and prompts in two parts (open_prefills.py).

A request whose reader goes away is aborted in vLLM. Running requests come first: a new request closes the open prefills
whose room it may need. The tenant of an item is its `cache_salt`: no prefix in the KV cache serves two tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Hashable, Iterator, Sequence
from typing import Any

from teola_plugin.engines import Item
from teola_plugin.runtime.engines.open_prefills import OpenPrefill, OpenPrefills, Room
from teola_plugin.runtime.hosts.tasks import spawn

_numbers = itertools.count(1)


class Core:
    """A running vLLM (`AsyncLLM`), its event loop, and the open prefills."""

    def __init__(self, name: str, llm: Any, max_items: int) -> None:
        self.llm = llm
        self.loop = asyncio.get_running_loop()
        self.max_model_len: int = llm.model_config.max_model_len
        self.closing: set[asyncio.Task[None]] = set()
        cache = llm.vllm_config.cache_config
        self.room = Room((cache.num_gpu_blocks or 0) * cache.block_size, max_items, cache.block_size)
        self.prefills = OpenPrefills(self.room)
        self._needs: dict[str, int] = {}  # the most tokens each running request may take
        self._running: dict[int, Item] = {}
        self._name = name
        self._has_priorities = llm.vllm_config.scheduler_config.policy == "priority"

    # --- plain requests ----------------------------------------------------------------------------------------------

    async def outputs(
        self, item: Item, ids: list[int], params: Any, prefill: OpenPrefill | None = None
    ) -> AsyncGenerator[tuple[list[int], Any], None]:
        """Yield the new token ids, each time vLLM has some, with vLLM's own output."""
        with self._room_for(item, len(ids) + (params.max_tokens or self.max_model_len)) as request_id:
            if prefill:
                outputs: Any = prefill.continued(ids, params)
            else:
                outputs = self._generate(_prompt(ids, item), params, request_id, item)
            to_drop = 1 if prefill else 0
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    token_ids = list(output.outputs[0].token_ids)[to_drop:]
                    if token_ids or not to_drop:
                        yield token_ids, output.outputs[0]
                    to_drop = 0

    async def _generate(self, prompt: Any, params: Any, request_id: str, item: Item) -> AsyncGenerator[Any, None]:
        priority = item.priority if self._has_priorities else 0
        outputs = self.llm.generate(prompt, params, request_id, priority=priority)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except asyncio.CancelledError:
            await self.llm.abort(request_id)  # vLLM forgets the abort if cancelled while taking the request in
            raise

    def _new_id(self) -> str:
        return f"{self._name}-{next(_numbers)}"

    @contextlib.contextmanager
    def _room_for(self, item: Item, tokens: int) -> Iterator[str]:
        """Yield a request id, after closing open prefills that may be in the way of `tokens`."""
        request_id = self._new_id()
        self._needs[request_id] = min(tokens, self.max_model_len)
        self._running[item.id] = item
        for prefill in self.prefills.to_close_for(list(self._needs.values())):
            self._close_soon(prefill)
        try:
            yield request_id
        finally:
            del self._needs[request_id]
            self._running.pop(item.id, None)

    # --- open prefills -----------------------------------------------------------------------------------------------

    def comes_late(self, item: Item) -> bool:
        """Whether a prompt of the query with this prefix is being computed already: a batch has a single operation."""
        same = (other.payload for other in self._running.values() if other.owner == item.owner != 0)
        return any(prompt.startswith(item.payload) for prompt in same)

    def may_open(self, ids: Sequence[int]) -> bool:
        """Whether there is room to hold a prefill of these tokens open."""
        return self.prefills.fits(len(ids), list(self._needs.values()))

    async def open(self, item: Item, ids: Sequence[int], params: Any) -> None:
        """Compute the first tokens of the item's prompt, and hold the request open for the rest."""
        from vllm.engine.protocol import StreamingInput

        request_id = self._new_id()
        prefill = OpenPrefill(
            item.owner, item.payload, ids, params,
            lambda chunks, params: self._generate(chunks, params, request_id, item),
            lambda ids, params: StreamingInput(prompt=_prompt(ids, item), sampling_params=params),
        )  # fmt: skip
        self.prefills.add(prefill)
        try:
            await prefill.prefilled()
        except BaseException:
            if self.prefills.remove(prefill):
                self._close_soon(prefill)
            raise

    def opened_for(self, item: Item, ids: Sequence[int]) -> OpenPrefill | None:
        """Return the open prefill that a prompt continues. A prefill whose tokens turned out differently is closed."""
        if item.owner == 0:
            return None
        prefill = self.prefills.take(item.owner, item.payload)
        if prefill is None:
            return None
        sent = len(prefill.token_ids)
        if sent < len(ids) and tuple(ids[:sent]) == prefill.token_ids:
            return prefill
        self._close_soon(prefill)
        return None

    def release(self, owner: Hashable) -> None:
        """Close the open prefills of a query."""
        for prefill in self.prefills.remove_owner(owner):
            self._close_soon(prefill)

    def close_prefills(self) -> None:
        """Close all open prefills."""
        for prefill in self.prefills.remove_all():
            self._close_soon(prefill)

    def _close_soon(self, prefill: OpenPrefill) -> None:
        spawn(prefill.close(), self.closing)


def _prompt(ids: Sequence[int], item: Item) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
    if item.tenant:
        prompt["cache_salt"] = item.tenant
    return prompt
