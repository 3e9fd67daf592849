"""Several engines that do the same work, as one: the scheduler in front of them tells which runs a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from teola_plugin.chat import render_for
from teola_plugin.engines import Batch, Capabilities, Emit, Engine
from teola_plugin.errors import EngineError


class EnginePool:
    """`instances` in the order of their numbers; they have the same model and capabilities."""

    def __init__(self, name: str, instances: Sequence[Engine]) -> None:
        if not instances:
            raise EngineError(f"engine {name!r}: a pool needs at least one instance")
        self.name = name
        self.instances: Sequence[Engine] = list(instances)
        self._told: Capabilities | None = None
        self._capabilities = Capabilities()

    @property
    def capabilities(self) -> Capabilities:
        """Of each; some are known only once they run.

        Instances in other processes have schedulers of their own, but the one in front of the pool makes the batches.
        """
        told = self.instances[0].capabilities if self.instances else self._told
        if told is not None and told is not self._told:
            self._told, self._capabilities = told, replace(told, is_scheduled=False)
        return self._capabilities

    @property
    def profile(self) -> Any:
        """That of each instance."""
        return getattr(self.instances[0], "profile", None)

    @property
    def model(self) -> str:
        """What they serve."""
        return str(getattr(self.instances[0], "model", ""))

    def kv_tokens(self, op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        """As each instance tells, if it does."""
        kv_tokens = getattr(self.instances[0], "kv_tokens", None)
        return kv_tokens(op, payload, settings) if kv_tokens else 0

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> str:
        """The prompt of a conversation, as their model wants it."""
        return render_for(self.instances[0], messages, tools)

    async def run(self, batch: Batch, emit: Emit) -> None:
        """Run it on the instance it is meant for."""
        await self.instances[batch.instance].run(batch, emit)

    def abort(self, ids: Sequence[int]) -> None:
        """Whichever has them stops them."""
        for instance in self.instances:
            instance.abort(ids)

    def release(self, owner: Hashable) -> None:
        """The query is over."""
        for instance in self.instances:
            if release := getattr(instance, "release", None):
                release(owner)

    async def close(self) -> None:
        """Close all of them."""
        await asyncio.gather(*(instance.close() for instance in self.instances))
