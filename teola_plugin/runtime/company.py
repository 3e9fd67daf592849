"""How many texts an LLM writes side by side, under `critical_path`.

A prefill holds up all that decodes on its instance. Where prompts are long and answers short, prompts that begin as
soon as there is a slot hold up one another, and all end late:

    at once                       one after the other
    a  p . . d d d d              a  p d d d d                 p: prefill, d: decode, .: held up
    b    p . d d d d              b            p d d d d
    c      p d d d d              c                      p ...  decodes alone: the instance is badly used

In between lies what is done here. A text beside `n` others is held up by about `n` prefills, so a prompt waits in the
queue while `n` times its prefill takes longer than `PATIENCE` times what the others decode, and some more for each
query that waits: the more wait, the more the instance has to be used well. Prompts of one query do not wait for each
other, since it needs them all.

What a prefill and a step take is what the latency profile says (without one nothing waits), how long a text gets what
`max_tokens` says (without it nothing waits beside it), and what is in the prefix cache what was sent there lately.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from teola_plugin.engines import Item
from teola_plugin.profile import TOKEN_CHARACTERS, LlmProfile

PATIENCE, EACH = 2.0, 0.5
"""Between 2 and 3, and 0.25 and 1, the applications of the paper and the load benchmark differ by 1 to 3 %."""

PIECE_CHARACTERS = 256
"""What a prompt has in common with earlier ones is known in steps of so many."""

KNOWN_PIECES = 8192
"""So many that were sent last are taken for cached: a quarter of a million tokens."""


class Company:
    """Of one engine: who decodes on which instance, and what was sent there."""

    def __init__(self, llm: LlmProfile, *, has_prefixes: bool) -> None:
        self._llm = llm
        self._has_prefixes = has_prefixes
        self._decoding: dict[int, dict[int, tuple[Hashable, float]]] = {}  # by instance and item: query, seconds
        self._at: dict[int, int] = {}
        self._known: OrderedDict[int, None] = OrderedDict()  # the latest last

    def is_enough(
        self, at: int, query: Hashable, item: Item, waiting: float,
        more: Sequence[tuple[Hashable, Mapping[str, Any]]] = (),
    ) -> bool:  # fmt: skip
        """Whether a prompt of a query had better wait. `waiting`: queries in the queue, for each instance.

        `more`: query and settings of what is about to begin there.
        """
        there = [*self._decoding.get(at, {}).values(), *((whose, self._decode_s(settings)) for whose, settings in more)]
        others = [seconds for whose, seconds in there if whose != query]
        if not others or not isinstance(item.payload, str):
            return False
        decode_s = math.fsum(others) / len(others)
        return len(others) * self._prefill_s(item) > (PATIENCE + EACH * waiting) * decode_s

    def start(self, at: int, op: str, settings: Mapping[str, Any], items: Sequence[Item], query: Hashable) -> None:
        """These are with that instance from now on."""
        for item in items:
            if op == "decoding":
                self._decoding.setdefault(at, {})[item.id] = (query, self._decode_s(settings))
                self._at[item.id] = at
            if isinstance(item.payload, str):
                for piece in self._pieces(item):
                    self._known[piece] = None
                    self._known.move_to_end(piece)
        while len(self._known) > KNOWN_PIECES:
            self._known.popitem(last=False)

    def end(self, ids: Collection[int]) -> None:
        """These items ended."""
        for item_id in ids:
            if (at := self._at.pop(item_id, None)) is not None:
                del self._decoding[at][item_id]

    def _decode_s(self, settings: Mapping[str, Any]) -> float:
        tokens = settings.get("max_tokens")
        return tokens * self._llm.step_s(1) if isinstance(tokens, int) else math.inf

    def _prefill_s(self, item: Item) -> float:
        pieces = itertools.takewhile(self._known.__contains__, self._pieces(item))
        known = PIECE_CHARACTERS * sum(1 for _ in pieces)
        return self._llm.prefill_s((len(item.payload) - known) // TOKEN_CHARACTERS, known // TOKEN_CHARACTERS)

    def _pieces(self, item: Item) -> Iterator[int]:
        """A number for each beginning of its prompt; none if there is no prefix cache."""
        if not self._has_prefixes:
            return
        text, number = item.payload, hash(item.tenant)
        for start in range(0, len(text) - PIECE_CHARACTERS + 1, PIECE_CHARACTERS):
            number = hash((number, text[start : start + PIECE_CHARACTERS]))
            yield number
