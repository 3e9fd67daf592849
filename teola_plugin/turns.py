"""The stream of a reply with tool calls: an agent's next calls are known before the reply ends.

turn = Turn(spec, follow_up)
session.observe(Turn, turn)          # a listener who can start calls early sets `turn.on_call`
turn.on_call(0, "search", {"query": "bees"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.engines import EngineSpec

OnCall = Callable[[int, str, Mapping[str, Any]], None]


@dataclass
class Turn:
    """One reply. Both hooks may be called from any thread, and must not wait.

    `follow_up`, given the answers of the first tools, returns the next prompt up to the place of the next answer: a
    prefix which the engine of `spec` may prefill. Both are None for a model outside our engines.
    """

    spec: EngineSpec | None = None
    follow_up: Callable[[Sequence[str]], str] | None = None
    on_call: OnCall | None = None
    on_end: Callable[[], None] | None = None
