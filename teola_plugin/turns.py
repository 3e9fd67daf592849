"""A reply that may call tools, told while it is being written: what an agent does next is known before it ends.

turn = Turn(spec, follow_up)
session.observe(Turn, turn)          # whoever can start a call early sets `turn.on_call`
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

    `follow_up`, given what the first tools answered, is the next prompt up to where the next answer would stand: a
    prefix that the engine of `spec` may compute. Both are None for a model that is not ours.
    """

    spec: EngineSpec | None = None
    follow_up: Callable[[Sequence[str]], str] | None = None
    on_call: OnCall | None = None
    on_end: Callable[[], None] | None = None
