"""A synchronous call of an optimized pipeline on the event loop of the engines, as from an engine of the user.

Nothing can run ahead of such a call, because the call blocks the loop: the framework computes everything in the calling
thread, or in threads of the framework. Work that only an engine could compute raises `EngineLoopBlocked` instead of
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import EngineSpec
from teola_plugin.loops import blocked
from teola_plugin.seams import Hold, Reply


class Inline:
    """Implements `seams.Session`. Leaves treat the session as closed, and compute values directly."""

    is_closed = True
    is_unheard = False
    holds_engine_loop = True

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        raise blocked()

    def ask_alone(self, spec: Callable[[], EngineSpec], op: str) -> None:
        """Return None: leaves compute directly."""

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return Reply(), True

    def observe(self, component: object, value: Any) -> None:
        """Do nothing: no run-ahead needs the value."""

    def enter(self, component: object, value: Any) -> None:
        """Do nothing: no run-ahead needs the position."""

    def hold(self, hold: Hold) -> None:
        """Do nothing: no reply ran ahead."""
