"""What an LLM writes: a text of so many tokens, and after which token each item of it is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.requests import Step
from simulator.systems import LlmServer
from simulator.values import Prompt, say
from teola_plugin.engines import Completion
from teola_plugin.items import parse_items, parser_for

HandOut = tuple[int, Sequence[Any], bool]
"""After so many tokens these items are complete; whether they are the last ones."""


@dataclass(frozen=True, slots=True)
class Text:
    """`hand_outs` in their order, for a decoding that hands its items out."""

    value: str
    tokens: int
    hand_outs: Sequence[HandOut] = ()


def write(server: LlmServer, step: Step, prompt: Prompt) -> Text:
    """The answer to a prompt. Raises: EngineError, GraphError or ItemsError for settings that make no sense."""
    if server.answers is not None:
        value = server.answers(step.op, str(prompt), step.settings)
        pieces = value.pieces if isinstance(value, Completion) else (str(value),)
        return Text(value, len(pieces), _as_written(step, pieces) if step.is_followed else ())
    tokens = output_tokens(server, step.settings)
    text = say(prompt, tokens, step.settings.get("shape", ""))
    return Text(text, tokens, _evenly(step, text, tokens) if step.is_followed else ())


def output_tokens(server: LlmServer, settings: Mapping[str, Any]) -> int:
    """How long answers are."""
    return int(settings.get("max_tokens", server.profile.output_tokens))


def _evenly(step: Step, text: str, tokens: int) -> list[HandOut]:
    items = parse_items(str(step.grammar), text)
    wanted = len(items) if step.wanted is None else step.wanted
    found: list[HandOut] = [
        (-(-(n + 1) * tokens // len(items)), (item,), n + 1 == wanted) for n, item in enumerate(items[:wanted])
    ]
    return found if wanted <= len(items) and found else [*found, (tokens, (), True)]


def _as_written(step: Step, pieces: Sequence[str]) -> list[HandOut]:
    parser, wanted = parser_for(str(step.grammar)), step.wanted
    feeds: list[Callable[[], list[Any]]] = [lambda piece=piece: parser.feed(piece) for piece in pieces]  # type: ignore[misc]
    found: list[HandOut] = []
    count = 0
    for n, complete in enumerate([*feeds, parser.close], 1):
        items = complete()
        items = items if wanted is None else items[: wanted - count]
        count += len(items)
        is_last = n > len(pieces) or count == wanted
        if items or is_last:
            found.append((min(n, len(pieces)), items, is_last))
        if is_last:
            break
    return found
