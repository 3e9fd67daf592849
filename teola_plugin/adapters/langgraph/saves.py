"""LangGraph's background saves are finished before the nodes of the next superstep run.

In durability "async" LangGraph submits each checkpoint, and what each node wrote, to a thread or task that serialises
live values: the set that a join collects its nodes in, lists of the user's that a node may change in place. That is
safe only while the next nodes take longer than the save. A node whose model ran ahead takes no time, so without this
the saved checkpoint could hold what happened after it.

    after_tick -> save submitted -> tick -> [save finished] -> nodes run

Errors of a save are raised where LangGraph raises them. Only loops of a call in which something has run ahead wait, and
what runs ahead goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop

from teola_plugin.seams import current, instrument

_SAVES = "__teola_saves__"
"""The attribute of a loop that holds its `Saves`."""


class Saves:
    """The saves that one loop has submitted and not yet waited for; `due` once the next nodes are about to run."""

    def __init__(self, loop: Any) -> None:
        self._submit = loop.submit
        self._savers = frozenset(id(saver) for saver in (loop, loop.checkpointer, loop.cache) if saver is not None)
        self._pending: list[Any] = []
        self._due: list[Any] = []

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Submits as the loop's own executor does, and remembers the future if it is that of a save."""
        future = self._submit(work, *args, **kwargs)
        if id(getattr(work, "__self__", None)) in self._savers:
            self._pending.append(future)
        return future

    def fall_due(self) -> None:
        """What was submitted so far is to be finished before the loop goes on."""
        pending, self._pending = self._pending, []
        self._due += pending

    def take_due(self) -> list[Any]:
        """The futures to wait for, each once."""
        due, self._due = self._due, []
        return [future for future in due if not future.done()]


def install() -> None:
    """Instrument LangGraph's loops. Idempotent."""
    instrument(PregelLoop, "_first", _remembering_first)
    instrument(PregelLoop, "tick", _marking_tick)
    instrument(SyncPregelLoop, "match_cached_writes", _waiting_match)
    instrument(AsyncPregelLoop, "amatch_cached_writes", _waiting_amatch)


def _remembering_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        # with a bound on concurrency nothing runs ahead, and a save may have to queue behind what never ends
        if current() is not None and self.checkpointer and self.config.get("max_concurrency") is None:
            saves = Saves(self)
            setattr(self, _SAVES, saves)
            self.submit = saves.submit
        return original(self, *args, **kwargs)

    return first


def _marking_tick(original: Callable[..., bool]) -> Callable[..., bool]:
    def tick(self: Any) -> bool:
        goes_on = original(self)
        if goes_on and (saves := getattr(self, _SAVES, None)):
            saves.fall_due()
        return goes_on

    return tick


def _waiting_match(original: Callable[..., Any]) -> Callable[..., Any]:
    def match_cached_writes(self: Any) -> Any:
        if due := _due(self):
            concurrent.futures.wait(due)
        return original(self)

    return match_cached_writes


def _waiting_amatch(original: Callable[..., Any]) -> Callable[..., Any]:
    async def amatch_cached_writes(self: Any) -> Any:
        if due := _due(self):
            await asyncio.wait(due)
        return await original(self)

    return amatch_cached_writes


def _due(loop: Any) -> list[Any]:
    saves, session = getattr(loop, _SAVES, None), current()
    return saves.take_due() if saves and session and session.has_run_ahead else []
