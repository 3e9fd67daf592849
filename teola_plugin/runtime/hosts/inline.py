"""A synchronous call of an optimized pipeline on the event loop of the engines, as from an engine of the user.

Nothing can run ahead of such a call, because the call blocks the loop: the framework computes everything in the calling
thread, or in threads of the framework. Work that only an engine could compute raises `EngineLoopBlocked` instead of
waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from teola_plugin.engines import EngineSpec
from teola_plugin.loops import blocked
from teola_plugin.seams import Reply, Session


class Inline(Session):
    """A session that leaves treat as closed, so that they compute values directly."""

    is_closed = True
    holds_engine_loop = True

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        raise blocked()

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return Reply(), True
