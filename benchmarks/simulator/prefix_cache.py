"""Which beginnings of prompts an LLM still holds the KV cache of: pieces of text, the least recently used go first.

    pieces    'Answer: ' | question | 'Context: ' | documents       known: a path from the root of a tree
                                \\ other question | ...

Pieces take what they have in tokens. Those of a prompt that runs are held; a piece goes before the one it follows.
A hit is rounded down to whole blocks, and the last token of a prompt is always computed, as in vLLM. Two prompts whose
pieces differ have nothing in common from there on, also if the pieces begin alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 16
"""vLLM's block size on a GPU."""

ROOT = 0
Key = tuple[int, str]


@dataclass(slots=True)
class _Node:
    number: int
    tokens: int
    holders: int = 0


class PiecesCache:
    """A tree of pieces that holds at most `max_tokens`, if nothing more is in use."""

    def __init__(self, max_tokens: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.tokens = 0
        self.max_tokens = max_tokens
        self._block_tokens = block_tokens
        self._nodes: OrderedDict[Key, _Node] = OrderedDict()  # oldest use first; a piece before the one it follows
        self._newest = ROOT
        self._held = 0

    def hit_tokens(self, pieces: Sequence[str], tokens: Sequence[int], prompt_tokens: int) -> int:
        """How many tokens at the start of a prompt need not be computed. It counts as a use."""
        path, known, number = [], 0, ROOT
        for piece, size in zip(pieces, tokens, strict=True):
            node = self._nodes.get((number, piece))
            if node is None:
                break
            path.append((number, piece))
            known += size
            number = node.number
        for key in reversed(path):
            self._nodes.move_to_end(key)
        return max(0, min(known, prompt_tokens - 1)) // self._block_tokens * self._block_tokens

    def add(self, pieces: Sequence[str], tokens: Sequence[int]) -> tuple[Key, ...]:
        """These pieces are there from now on, and held until `release` with what is returned."""
        path: list[Key] = []
        number = ROOT
        for piece, size in zip(pieces, tokens, strict=True):
            key = (number, piece)
            node = self._nodes.get(key)
            if node is None:
                self._newest += 1
                node = self._nodes[key] = _Node(self._newest, size)
                self.tokens += size
            node.holders += 1
            path.append(key)
            number = node.number
        for key in reversed(path):
            self._nodes.move_to_end(key)
        self._evict()
        return tuple(path)

    def extend(self, path: Sequence[Key], piece: str, tokens: int) -> None:
        """One more piece is there, behind those that are held."""
        key = (self._nodes[path[-1]].number if path else ROOT, piece)
        if key not in self._nodes:
            self._newest += 1
            self._nodes[key] = _Node(self._newest, tokens)
            self.tokens += tokens
        for each in (key, *reversed(path)):
            self._nodes.move_to_end(each)
        self._evict()

    def release(self, path: Sequence[Key]) -> None:
        """Whoever held these needs them no more."""
        for key in path:
            self._nodes[key].holders -= 1

    def reserve(self, tokens: int) -> None:
        """So many more tokens (or fewer) are taken by what is being written."""
        self._held += tokens
        self._evict()

    def _evict(self) -> None:
        excess = self.tokens + self._held - self.max_tokens
        if excess <= 0:
            return
        victims = []
        for key, node in self._nodes.items():
            if not node.holders:
                victims.append(key)
                excess -= node.tokens
                if excess <= 0:
                    break
        for key in victims:
            self.tokens -= self._nodes.pop(key).tokens
