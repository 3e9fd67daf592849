"""A pool of engines that do the same work, as a single engine: the scheduler in front chooses the instance."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from teola_plugin.chat import render_for
from teola_plugin.engines import Batch, Capabilities, Emit, Engine
from teola_plugin.errors import EngineError


class EnginePool:
    """A pool of `instances` in the order of their numbers, with the same model and capabilities."""

    def __init__(self, name: str, instances: Sequence[Engine]) -> None:
        if not instances:
            raise EngineError(f"engine {name!r}: a pool needs at least one instance")
        self.name = name
        self.instances: Sequence[Engine] = list(instances)
        self._told: Capabilities | None = None
        self._capabilities = Capabilities()

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of each instance; some are known only once an instance runs.

        Instances in other processes have schedulers of their own, but the scheduler in front of the pool makes the
        batches.
        """
        told = self.instances[0].capabilities if self.instances else self._told
        if told is not None and told is not self._told:
            self._told, self._capabilities = told, replace(told, is_scheduled=False)
        return self._capabilities

    @property
    def profile(self) -> Any:
        """The profile of each instance."""
        return getattr(self.instances[0], "profile", None)

    @property
    def model(self) -> str:
        """The model of the instances."""
        return str(getattr(self.instances[0], "model", ""))

    def kv_tokens(self, op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        """Return the KV cache demand that each instance reports, 0 if instances report none."""
        kv_tokens = getattr(self.instances[0], "kv_tokens", None)
        return kv_tokens(op, payload, settings) if kv_tokens else 0

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> str:
        """Return the prompt of a conversation, in the format of the instances' model."""
        return render_for(self.instances[0], messages, tools)

    async def run(self, batch: Batch, emit: Emit) -> None:
        """Run a batch on the intended instance."""
        await self.instances[batch.instance].run(batch, emit)

    def abort(self, ids: Sequence[int]) -> None:
        """Abort items at all instances."""
        for instance in self.instances:
            instance.abort(ids)

    def release(self, owner: Hashable) -> None:
        """Release a finished query at all instances."""
        for instance in self.instances:
            if release := getattr(instance, "release", None):
                release(owner)

    async def close(self) -> None:
        """Close all instances."""
        await asyncio.gather(*(instance.close() for instance in self.instances))
