"""How many texts an LLM writes side by side, under `topology` and `critical_path`.

A prefill holds up all that decodes on its instance. Where prompts are long and answers short, prompts that begin as
soon as there is a slot hold up one another, and all end late:

    at once                       one after the other
    a  p . . d d d d              a  p d d d d                 p: prefill, d: decode, .: held up
    b    p . d d d d              b            p d d d d
    c      p d d d d              c                      p ...  decodes alone: the instance is badly used

In between lies what is done here. A text beside `n` others is held up by about `n` prefills. So a prompt waits in the
queue while `n` times its prefill takes longer than `PATIENCE` times what the others decode, and than `SHARE` of the
time that the queries in the queue have waited by now, together: where many wait for long, the instance has to be used
well above all. Texts of its own query do not count, since the query needs them all. But where many of them begin at
once, to be handed on one by one (staggered_prefills.py), each of the other queries is held up by all their prefills.

What a prefill and a step take is what the latency profile says (without one nothing waits), how long a text gets what
`max_tokens` says (without it nothing waits beside it), and what is in the prefix cache what was sent there lately.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from teola_plugin.engines import Item
from teola_plugin.profile import TOKEN_CHARACTERS, LlmProfile

PATIENCE, SHARE = 2.0, 0.5
"""With a share of 1 the load benchmark's apps on a CPU gain 9 % in place of 12 %. With a half, application B of the
paper (its embedder the fast one) takes 5 % longer where it comes for long at 0.96 of what the LLM can serve."""

PIECE_CHARACTERS = 256
"""What a prompt has in common with earlier ones is known in steps of so many."""

KNOWN_PIECES = 8192
"""So many that were sent last are taken for cached: half a million tokens."""

MOST_TOKENS = 1 << 20
"""More is no length that anybody has in mind."""


@dataclass(slots=True)
class Texts:
    """Some that decode: how many, for how many seconds in all, and of how many of them nobody knows."""

    count: int = 0
    seconds: float = 0.0
    unknown: int = 0

    def add(self, other: Texts, sign: int = 1) -> None:
        """Those too; `sign` -1: without those."""
        self.count += sign * other.count
        self.seconds += sign * other.seconds
        self.unknown += sign * other.unknown


class Crowd:
    """Texts by their queries."""

    def __init__(self) -> None:
        self.all = Texts()
        self._each: dict[Hashable, Texts] = {}

    def add(self, query: Hashable, texts: Texts, sign: int = 1) -> None:
        """These of that query too; `sign` -1: without these."""
        self.all.add(texts, sign)
        mine = self._each.setdefault(query, Texts())
        mine.add(texts, sign)
        if not mine.count:
            del self._each[query]

    @property
    def queries(self) -> Collection[Hashable]:
        """Whose they are."""
        return self._each.keys()

    def others(self, query: Hashable) -> Texts:
        """Those of all other queries."""
        texts = replace(self.all)
        if mine := self._each.get(query):
            texts.add(mine, -1)
        return texts


class Company:
    """Of one engine: who decodes on which instance, and what was sent there."""

    def __init__(self, llm: LlmProfile, *, has_prefixes: bool) -> None:
        self._llm = llm
        self._has_prefixes = has_prefixes
        self._crowds: dict[int, Crowd] = {}  # by instance
        self._running: dict[int, tuple[int, Hashable, Texts]] = {}  # by item
        self._known: OrderedDict[int, None] = OrderedDict()  # the latest last

    def is_enough(
        self, at: int, query: Hashable, item: Item, together: int, waited_s: float, more: Crowd | None = None
    ) -> bool:
        """Whether prompts like this one of a query had better wait.

        `together`: so many of its prompts would begin there. `waited_s`: the queries in the queue, for each instance.
        `more`: what is about to begin there.
        """
        crowds = [crowd for crowd in (self._crowds.get(at), more) if crowd]
        others = Texts()
        for crowd in crowds:
            others.add(crowd.others(query))
        if not others.count or others.unknown or not isinstance(item.payload, str):
            return False
        bears_s = PATIENCE * others.seconds / others.count + SHARE * waited_s
        held_up = others.count  # by each prompt
        if together > 1:
            held_up = max(held_up, together * len(set().union(*(crowd.queries for crowd in crowds)) - {query}))
        return held_up * self.prefill_s(at, item) > bears_s

    def texts(self, settings: Mapping[str, Any], count: int) -> Texts:
        """So many, with these settings."""
        tokens = settings.get("max_tokens")
        if not isinstance(tokens, int) or tokens < 1 or tokens is True:
            return Texts(count, 0.0, count)
        return Texts(count, count * min(tokens, MOST_TOKENS) * self._llm.step_s(1))

    def start(self, at: int, op: str, settings: Mapping[str, Any], items: Sequence[Item], query: Hashable) -> None:
        """These are with that instance from now on."""
        texts = self.texts(settings, 1)
        for item in items:
            if op == "decoding":
                self._crowds.setdefault(at, Crowd()).add(query, texts)
                self._running[item.id] = (at, query, texts)
            if isinstance(item.payload, str):
                for piece in self._pieces(at, item):
                    self._known[piece] = None
                    self._known.move_to_end(piece)
        while len(self._known) > KNOWN_PIECES:
            self._known.popitem(last=False)

    def end(self, ids: Collection[int]) -> None:
        """These items ended."""
        for item_id in ids:
            if (running := self._running.pop(item_id, None)) is not None:
                at, query, texts = running
                self._crowds[at].add(query, texts, -1)

    def prefill_s(self, at: int, item: Item) -> float:
        """What the prompt of an item, a string, takes that instance, with what it may have cached."""
        pieces = itertools.takewhile(self._known.__contains__, self._pieces(at, item))
        known = PIECE_CHARACTERS * sum(1 for _ in pieces)
        return self._llm.prefill_s((len(item.payload) - known) // TOKEN_CHARACTERS, known // TOKEN_CHARACTERS)

    def _pieces(self, at: int, item: Item) -> Iterator[int]:
        """A number for each beginning of its prompt at that instance; none if there is no prefix cache."""
        if not self._has_prefixes:
            return
        text, number = item.payload, hash((at, item.tenant))
        for start in range(0, len(text) - PIECE_CHARACTERS + 1, PIECE_CHARACTERS):
            number = hash((number, text[start : start + PIECE_CHARACTERS]))
            yield number
