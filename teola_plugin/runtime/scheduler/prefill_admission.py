"""Prefill admission: how many texts an LLM writes side by side, under `topology` and `critical_path`.

A prefill delays all decodes on the replica. Where prompts are long and answers short, prompts that begin as soon as
there is a slot delay each other, and all end late:

    at once                       one after the other
    a  p . . d d d d              a  p d d d d                 p: prefill, d: decode, .: delayed
    b    p . d d d d              b            p d d d d
    c      p d d d d              c                      p ...  decodes alone: the replica is badly used

Admission is in between. A text beside `n` running texts is delayed by about `n` prefills. So a prompt waits while `n`
times its prefill exceeds `PATIENCE` times the mean decode of the running texts plus `SHARE` of the time that the
queries in the queue have waited so far, together: if many wait for long, a well used replica matters most. Texts of the
prompt's own query do not count, since the query needs them all. But where many texts of a query begin at once, to be
handed on one by one (staggered_prefills.py), each running query is delayed by all the prefills.

The times of a prefill and of a step come from the latency profile (without a profile nothing waits), the length of a
text from `max_tokens` (without `max_tokens` nothing waits beside the text), the cached prefix from recent prompts.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from teola_plugin.engines import Item
from teola_plugin.profile import TOKEN_CHARACTERS, LlmProfile
from teola_plugin.runtime.scheduler.work_item import WorkItem

PATIENCE, SHARE = 2.0, 0.5
"""The factors of the admission rule. With a share of 1 the load benchmark's apps on a CPU gain 9 % in place of 12 %.
With a half, application B of the paper (with the fast embedder) takes 5 % longer at a long load of 0.96 of the LLM's
capacity."""

PIECE_CHARACTERS = 256
"""The step, in characters, in which the common prefix of prompts is known."""

KNOWN_PIECES = 8192
"""The number of most recent pieces that are assumed to be cached: half a million tokens."""

MOST_TOKENS = 1 << 20
"""The largest `max_tokens` that counts as a length."""


@dataclass(slots=True)
class DecodeLoad:
    """A load of running decodes: the number, the total seconds, and the number of decodes of unknown length."""

    count: int = 0
    seconds: float = 0.0
    unknown: int = 0

    def add(self, other: DecodeLoad, times: int = 1) -> None:
        """Add another load so many times; subtract it if negative."""
        self.count += times * other.count
        self.seconds += times * other.seconds
        self.unknown += times * other.unknown


class RunningDecodes:
    """The running decodes of a replica, by query."""

    def __init__(self) -> None:
        self.all = DecodeLoad()
        self._each: dict[Hashable, DecodeLoad] = {}

    def add(self, query: Hashable, texts: DecodeLoad, times: int = 1) -> None:
        """Add decodes of a query so many times; subtract them if negative."""
        self.all.add(texts, times)
        mine = self._each.setdefault(query, DecodeLoad())
        mine.add(texts, times)
        if not mine.count:
            del self._each[query]

    @property
    def queries(self) -> Collection[Hashable]:
        """Return the queries with running decodes."""
        return self._each.keys()

    def others(self, query: Hashable) -> DecodeLoad:
        """Return the load of all other queries."""
        texts = replace(self.all)
        if mine := self._each.get(query):
            texts.add(mine, -1)
        return texts


class PrefillAdmission:
    """The running decodes of an engine by replica, and the prompts sent to each replica."""

    def __init__(self, llm: LlmProfile, *, has_prefixes: bool) -> None:
        self._llm = llm
        self._has_prefixes = has_prefixes
        self._decodes: dict[int, RunningDecodes] = {}  # by replica
        self._known: OrderedDict[int, None] = OrderedDict()  # the latest last

    def should_defer(
        self, at: int, query: Hashable, item: Item, together: int, waited_s: float, more: RunningDecodes | None = None
    ) -> bool:
        """Whether a prompt of a query should wait.

        `together`: the number of the query's prompts that would begin there. `waited_s`: the time that the queries in
        the queue have waited, per replica. `more`: decodes that are about to begin there.
        """
        decodes = [each for each in (self._decodes.get(at), more) if each]
        others = DecodeLoad()
        for each in decodes:
            others.add(each.others(query))
        if not others.count or others.unknown or not isinstance(item.payload, str):
            return False
        bears_s = PATIENCE * others.seconds / others.count + SHARE * waited_s
        held_up = others.count  # by each prompt
        if together > 1:
            held_up = max(held_up, together * len(set().union(*(each.queries for each in decodes)) - {query}))
        return held_up * self.prefill_s(at, item) > bears_s

    def texts(self, settings: Mapping[str, Any], count: int) -> DecodeLoad:
        """Return the load of `count` texts with the given settings."""
        tokens = settings.get("max_tokens")
        if not isinstance(tokens, int) or tokens < 1 or tokens is True:
            return DecodeLoad(count, 0.0, count)
        return DecodeLoad(count, count * min(tokens, MOST_TOKENS) * self._llm.step_s(1))

    def start(self, at: int, works: Sequence[WorkItem]) -> None:
        """Note that items of a request run on a replica from now on."""
        self._count(at, works[0], len(works))
        for work in works:
            if isinstance(work.item.payload, str):
                for piece in self._pieces(at, work.item):
                    self._known[piece] = None
                    self._known.move_to_end(piece)
        while len(self._known) > KNOWN_PIECES:
            self._known.popitem(last=False)

    def end(self, works: Iterable[WorkItem]) -> None:
        """Note that running items have ended."""
        for work in works:
            assert work.replica is not None
            self._count(work.replica, work, -1)

    def _count(self, at: int, work: WorkItem, times: int) -> None:
        request = work.request
        if request.op == "decoding":
            self._decodes.setdefault(at, RunningDecodes()).add(request.query, self.texts(request.settings, 1), times)

    def prefill_s(self, at: int, item: Item) -> float:
        """Return the seconds of the prefill of an item's prompt, a string, less the prefix that may be cached."""
        pieces = itertools.takewhile(self._known.__contains__, self._pieces(at, item))
        known = PIECE_CHARACTERS * sum(1 for _ in pieces)
        return self._llm.prefill_s((len(item.payload) - known) // TOKEN_CHARACTERS, known // TOKEN_CHARACTERS)

    def _pieces(self, at: int, item: Item) -> Iterator[int]:
        """Return a number for each prefix of a prompt at a replica, in steps; none if there is no prefix cache."""
        if not self._has_prefixes:
            return
        text, number = item.payload, hash((at, item.tenant))
        for start in range(0, len(text) - PIECE_CHARACTERS + 1, PIECE_CHARACTERS):
            number = hash((number, text[start : start + PIECE_CHARACTERS]))
            yield number
