"""A synchronous call of an optimized pipeline on the event loop of the engines, as from an engine of the user's own.

Nothing can run ahead of it, because it holds up the loop: the framework computes everything in the calling thread, or
in threads of its own. Whatever only an engine could compute raises `EngineLoopBlocked` there, instead of waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from teola_plugin.engines import EngineSpec
from teola_plugin.loops import blocked
from teola_plugin.seams import Hold, Reply


class Inline:
    """Implements `seams.Session`. Leaves take it for closed, and compute their values themselves."""

    is_closed = True
    is_unheard = False
    holds_engine_loop = True

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        raise blocked()

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return Reply(), True

    def observe(self, component: object, value: Any) -> None:
        """Nothing runs ahead that it could be told."""

    def enter(self, component: object, value: Any) -> None:
        """Nor here."""

    def hold(self, hold: Hold) -> None:
        """No reply ran ahead."""
