"""The early replies of a node, held until the checkpoints before the node are saved.

With durability "async" LangGraph submits each checkpoint, and the writes of each node, to a thread or task. There live
values are serialised: the node set of a join, lists of the user's that a node changes in place. The code of a node
before its model call races with the save, and mostly comes first. The code after the reply comes after the save, for
models take longer. An early reply takes no time, so the reply waits for the save instead:

    after_tick -> save submitted -> tick -> node: before the model | reply, held until saved | after the model

A reply is held no longer than its request had been on its way. Nor must the adapter's own work in a tick let the save
come first: a save not yet begun by a thread waits until the tick is over. Errors of a save are raised in LangGraph's
own places.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any

from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop

from teola_plugin.adapters.interception import intercept
from teola_plugin.seams import current

_SAVES = "__teola_saves__"
"""The attribute of a loop that holds its `Saves`."""

_is_saving: ContextVar[bool] = ContextVar("teola_is_saving", default=False)


class Saves:
    """Implements `seams.Hold`: the saves submitted by one loop before the running nodes."""

    def __init__(self, loop: Any) -> None:
        self._submit = loop.submit
        self._savers = frozenset(id(saver) for saver in (loop, loop.checkpointer, loop.cache) if saver is not None)
        self._event_loop = asyncio.get_running_loop() if isinstance(loop, AsyncPregelLoop) else None
        self._may_begin = threading.Event()
        self._may_begin.set()
        self._pending: list[Future[None]] = []
        self._due: list[Future[None]] = []

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Submit as the loop's own executor does; for a save, also remember its end."""
        if id(getattr(work, "__self__", None)) not in self._savers:
            return self._submit(work, *args, **kwargs)
        future = self._submit(partial(self._asave if self._event_loop else self._save, work), *args, **kwargs)
        over: Future[None] = Future()
        future.add_done_callback(lambda _: over.set_result(None))
        self._pending.append(over)
        return future

    def _save(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._may_begin.wait()
        _is_saving.set(True)  # in a separate context, as with a coroutine
        return work(*args, **kwargs)

    async def _asave(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _is_saving.set(True)
        return await work(*args, **kwargs)

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Keep threads from beginning a save inside the context."""
        self._may_begin.clear()
        try:
            yield
        finally:
            self._may_begin.set()

    def fall_due(self) -> None:
        """Mark all submitted saves as due, since nodes are about to run."""
        pending, self._pending = self._pending, []
        self._due = [over for over in (*self._due, *pending) if not over.done()]

    def due(self, *, blocks_loop: bool) -> Sequence[Future[None]]:
        """See `seams.Hold`. A checkpointer that asks a model does not wait for itself, nor a loop for its own tasks."""
        if _is_saving.get() or (blocks_loop and asyncio.get_running_loop() is self._event_loop):
            return ()
        return [over for over in self._due if not over.done()]


def install() -> None:
    """Instrument LangGraph's loops. Idempotent."""
    intercept(PregelLoop, "_first", _remembering_first)
    intercept(PregelLoop, "tick", _marking_tick)


def _remembering_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        # with a bound on concurrency nothing runs ahead, and a save may have to queue behind endless work
        session = current()
        if session is not None and self.checkpointer and self.config.get("max_concurrency") is None:
            saves = Saves(self)
            setattr(self, _SAVES, saves)
            self.submit = saves.submit
            session.hold(saves)
        return original(self, *args, **kwargs)

    return first


def _marking_tick(original: Callable[..., bool]) -> Callable[..., bool]:
    def tick(self: Any) -> bool:
        saves: Saves | None = getattr(self, _SAVES, None)
        if saves is None:
            return original(self)
        with saves.held_back():
            goes_on = original(self)
            saves.fall_due()
        return goes_on

    return tick
