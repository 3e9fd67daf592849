"""The client of an engine in another process, as an `Engine` of this process.

    worker (sends everything at once) --run(batch)--> outgoing, one call per turn of the loop --> EngineServer
    emit(position, outcome) <------ in answer to that call, or to a poll while none is open -----'

All scheduling is done by the server, where the requests of all processes meet. The client handles a crash there: when
the transport breaks, or the server has lost the requests (after a restart, or because the server took this process for
dead), all open items fail with EngineCrashed, and the worker of this process retries items that may be retried once the
engine has `recovered`. After a break this process is a new client to the server: a message may have been lost, and
outcomes of earlier requests must not be taken for outcomes of the retries.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from teola_plugin import forks, shown
from teola_plugin.chat import render_for
from teola_plugin.engines import Batch, Completion, Delta, Done, Emit, Item, Outcome
from teola_plugin.errors import EngineClosed, EngineCrashed, EngineError
from teola_plugin.runtime.engines.kv_demand import KvDemand
from teola_plugin.runtime.engines.sampling import MAX_TOKENS
from teola_plugin.runtime.hosts.remote.messages import EngineInfo, Outcomes, SubmitRequest, packed
from teola_plugin.runtime.hosts.tasks import spawn

log = logging.getLogger(__name__)

RECOVERY_S = 120.0
"""The time that an engine may take to come back, with the model loaded again, in seconds."""

LOOK_AGAIN_S = 0.2

HANG_S = 30.0
"""The time after which a process that does not answer a poll is ended, in seconds; each poll should return after two.
"""


class Transport(Protocol):
    """A connection to an `EngineServer`. Each method raises the transport's own error when the server is gone."""

    async def hello(self) -> EngineInfo:
        """Wait until the engine is there. Returns the description. Finds or makes the engine anew on each call."""
        ...

    async def submit(self, requests: Sequence[SubmitRequest]) -> Outcomes: ...

    async def poll(self) -> Outcomes: ...

    async def cancel(self, ids: Sequence[int]) -> None: ...

    async def release(self, owner: Hashable) -> None: ...

    async def leave(self) -> None: ...

    def begin_anew(self) -> None:
        """Become a new client. Requests of the former client end with its lease."""
        ...

    def restart(self) -> None:
        """End the process, which comes back without help."""
        ...


@dataclass(slots=True)
class _Open:
    """A batch in flight. `was_taken`: the server has answered the call that brought the batch."""

    batch: Batch
    emit: Emit
    positions: dict[int, int]
    ended: asyncio.Future[None]
    was_taken: bool = False


class RemoteEngine:
    """An engine in another process. Belongs to the first event loop that runs the engine.

    `local`: an engine of the same model, not started, for prompts.
    """

    def __init__(self, transport: Transport, hello: EngineInfo, local: Any = None) -> None:
        self.name = hello.name
        self.hello = hello
        self.profile = hello.profile
        self.model = hello.model
        self.capabilities = replace(hello.capabilities, is_scheduled=True, abort=True)
        self._transport = transport
        self._local = local
        self._demand = KvDemand()
        self._demand.max_model_len = hello.config.get("config", {}).get("max_model_len")
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._open: dict[int, _Open] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._was_used = False
        self.is_saturated = False
        self._begin_talk()

    def _begin_talk(self) -> None:
        self._outgoing: list[SubmitRequest] = []
        self._calls: set[object] = set()
        """Calls in flight whose answers carry outcomes. A break makes a new set: earlier calls are over."""
        self._epoch = ""
        self._expected = 0
        self._early: dict[int, Outcomes] = {}
        """Messages that arrived before the `_expected` message."""

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> str:
        """Return the prompt of a conversation, in the format of the engine's model."""
        return render_for(self._local, messages, tools)

    def kv_tokens(self, op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        """Return an estimate of the KV cache that an item needs, for a scheduler of several remote engines."""
        return self._demand.of_item(op, payload, settings)

    # --- work --------------------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`. Raises: EngineCrashed."""
        loop = asyncio.get_running_loop()
        self._was_used = True
        positions = {item.id: position for position, item in enumerate(batch.items)}
        call = _Open(batch, emit, dict(positions), loop.create_future())
        self._open.update(dict.fromkeys(positions, call))
        if not self._outgoing:
            self._spawn(self._flush)
        self._outgoing += _requests(batch, loop.time())
        try:
            await call.ended
        finally:
            for item_id in positions:
                self._open.pop(item_id, None)

    async def _flush(self) -> None:
        """Send all requests queued before this task had its turn, in a single call."""
        requests, self._outgoing = self._outgoing, []
        if requests:
            ids = [item_id for asked in requests for item_id in asked.ids]
            await self._call(partial(self._transport.submit, requests), ids)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        spawn(self._reporting(work, self._calls), self._sending)

    async def _reporting(self, work: Callable[[], Coroutine[Any, Any, Any]], calls: set[object]) -> None:
        if calls is not self._calls:  # the transport broke before this was sent
            return
        try:
            await work()
        except Exception as e:  # around an engine: the transport is broken, and all open items fail, once
            if calls is self._calls:
                self._break(e)

    async def _call(self, send: Callable[[], Coroutine[Any, Any, Outcomes]], brought: Sequence[int] = ()) -> None:
        """Make a call that returns outcomes. A poll follows the last call in flight, while items are open."""
        calls, this = self._calls, object()
        calls.add(this)
        try:
            async with asyncio.timeout(HANG_S):
                said = await send()
        except TimeoutError:
            if calls is self._calls:
                log.warning("engine %r did not answer for %.0f s; its process is ended", self.name, HANG_S)
                self._transport.restart()
            raise EngineCrashed(f"engine {self.name!r} did not answer for {HANG_S:.0f} s") from None
        finally:
            calls.discard(this)
        if calls is not self._calls:
            return
        self._take(said)
        for item_id in brought:
            if call := self._open.get(item_id):
                call.was_taken = True
        if self._open and not calls:
            self._spawn(partial(self._call, self._transport.poll))

    def _take(self, said: Outcomes) -> None:
        """Hand out the server's outcomes in order. Raises: EngineCrashed if the server has lost this process."""
        self.is_saturated = said.is_saturated
        if said.epoch != self._epoch:
            if any(call.was_taken for call in self._open.values()):
                raise EngineCrashed(f"engine {self.name!r} does not know any more what this process has asked for")
            self._epoch, self._expected, self._early = said.epoch, 0, {}
        if not said.ids:
            return
        self._early[said.number] = said
        while found := self._early.pop(self._expected, None):
            self._expected += 1
            for item_id, outcome in found:
                self._hear(item_id, outcome)

    def _hear(self, item_id: int, outcome: Outcome) -> None:
        if (call := self._open.get(item_id)) is None:
            return
        self._learn(call.batch, call.positions[item_id], outcome)
        call.emit(call.positions[item_id], outcome)
        if not isinstance(outcome, Delta):
            del self._open[item_id], call.positions[item_id]
            if not call.positions and not call.ended.done():
                call.ended.set_result(None)

    def _learn(self, batch: Batch, position: int, outcome: Outcome) -> None:
        """Learn the actual token counts of requests, for `kv_tokens`."""
        payload = batch.items[position].payload
        if isinstance(outcome, Done) and isinstance(outcome.value, Completion) and isinstance(payload, str):
            if outcome.value.prompt_tokens:
                self._demand.prompt_was(payload, outcome.value.prompt_tokens)
            self._demand.answer_was(outcome.value.output_tokens, batch.settings.get("max_tokens") or MAX_TOKENS)

    def _break(self, error: Exception) -> None:
        broken = error if isinstance(error, EngineCrashed) else EngineCrashed(f"engine {self.name!r}: {_said(error)}")
        self._end_all(broken)

    def _end_all(self, error: EngineError) -> None:
        self._begin_talk()
        self._transport.begin_anew()
        for call in {id(call): call for call in self._open.values()}.values():
            if not call.ended.done():
                call.ended.set_exception(error)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def at_rest(self) -> None:
        """Wait until everything sent has been answered."""
        while under_way := [call.ended for call in self._open.values()]:
            await asyncio.wait(under_way)

    def abort(self, ids: Sequence[int]) -> None:
        """Let the server stop items, without waiting for the outcomes."""
        if wanted := [item_id for item_id in ids if item_id in self._open]:
            self._spawn(partial(self._transport.cancel, wanted))

    def release(self, owner: Hashable) -> None:
        """See `teola_plugin.engines`. Only engines with a prefix cache keep state for a query."""
        if self.capabilities.prefix and self._was_used:
            self._spawn(partial(self._transport.release, owner))

    def restart(self) -> None:
        """End the engine's process, which comes back without help."""
        self._transport.restart()

    async def recovered(self) -> None:
        """Wait until the engine works again. Raises: EngineError if too late, or with another model."""
        until_s = asyncio.get_running_loop().time() + RECOVERY_S
        while True:
            try:
                hello = await asyncio.wait_for(self._transport.hello(), RECOVERY_S)
            except EngineError:
                raise
            except Exception as e:  # around an engine: still starting
                if asyncio.get_running_loop().time() > until_s:
                    raise EngineError(f"engine {self.name!r} did not come back: {_said(e)}") from e
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if hello.identity != self.hello.identity:
                raise EngineError(f"engine {self.name!r} came back with another model: {shown.address(hello.model)!r}")
            return

    async def close(self) -> None:
        """Leave the engine to the remaining clients."""
        for task in self._sending:
            task.cancel()
        try:
            await asyncio.wait_for(self._transport.leave(), 1.0)
        except Exception as e:  # around an engine: the engine may be gone already
            log.debug("engine %r did not hear that this process leaves: %s", self.name, _said(e))
        finally:
            self._end_all(EngineClosed(f"engine {self.name!r} was let go"))


def _requests(batch: Batch, now_s: float) -> list[SubmitRequest]:
    """Return the items of a batch as requests, one for each query and urgency."""
    groups: dict[tuple[Any, ...], list[Item]] = {}
    for item in batch.items:
        groups.setdefault((item.owner, item.tenant, item.deadline_s, item.urgency, item.begun_s), []).append(item)
    return [
        SubmitRequest(
            batch.op, batch.settings, tuple(item.id for item in of_one), packed(item.payload for item in of_one),
            owner, tenant, urgency,
            math.inf if deadline_s == math.inf else deadline_s - now_s, max(0.0, now_s - begun_s),
        )
        for (owner, tenant, deadline_s, urgency, begun_s), of_one in groups.items()
    ]  # fmt: skip


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
