"""What an LLM writes: a text of so many tokens, and how much of it is handed out after which token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.systems import LlmServer
from simulator.values import Prompt, layout_of, say
from teola_plugin.engines import Completion
from teola_plugin.items import parser_for

Part = tuple[int, str]
"""After so many tokens this part of the text is handed out."""


@dataclass(frozen=True, slots=True)
class Text:
    """`deltas`: a part for each item that is complete with it, as a reader of items sees no difference."""

    value: str
    tokens: int
    deltas: Sequence[Part]


def write(server: LlmServer, settings: Mapping[str, Any], prompt: Prompt) -> Text:
    """The answer to a prompt. Raises: EngineError, GraphError or ItemsError for settings that make no sense."""
    shape = settings.get("shape", "")
    if server.answers is None:
        tokens = output_tokens(server, settings)
        parts = say(prompt, tokens, shape)
        deltas = [(-(-n * tokens // len(parts)), part) for n, part in enumerate(parts, 1)]
        return Text("".join(parts), tokens, deltas)
    value = server.answers("decoding", str(prompt), settings)
    pieces = value.pieces if isinstance(value, Completion) else (str(value),)
    deltas = _as_written(layout_of(shape)[0], pieces) if shape else [(len(pieces), str(value))]
    return Text(value, len(pieces), deltas)


def output_tokens(server: LlmServer, settings: Mapping[str, Any]) -> int:
    """How long answers are."""
    return int(settings.get("max_tokens", server.profile.output_tokens))


def _as_written(grammar: str, pieces: Sequence[str]) -> list[Part]:
    """The pieces, joined up to the next that completes an item."""
    parser, part, deltas = parser_for(grammar), "", list[Part]()
    for n, piece in enumerate(pieces, 1):
        part += piece
        if parser.feed(piece) or n == len(pieces):
            deltas.append((n, part))
            part = ""
    return deltas
