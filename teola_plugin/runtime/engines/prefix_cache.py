"""A model of an LLM's prefix cache: whole blocks of tokens, evicted by least recent use.

Of blocks used together the last block of the text is evicted first, so that the remaining prefix can still be found.

    tokens    a b c d | e f g h | i j        blocks of four
    known     a b c d | e f g h              `i j` fills no block, so it is never found again

Source: vLLM's automatic prefix caching; the model keeps the rules that decide the cost: only full blocks, the last
token of a prompt is always computed, and blocks are freed from the end of a text to the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_TOKENS = 16
"""vLLM's block size on a GPU."""

_Block = tuple[int | str, tuple[str, ...]]


class PrefixCache:
    """A tree of blocks for each tenant: a block is found by the parent (or the tenant) and by tokens.

    No prompt of a tenant finds blocks of another tenant.
    """

    def __init__(self, max_blocks: int = 16_384, block_tokens: int = BLOCK_TOKENS) -> None:
        self._max_blocks = max_blocks
        self._block_tokens = block_tokens
        self._blocks: dict[_Block, int] = {}  # oldest use first
        self._newest = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def hit_tokens(self, tokens: Sequence[str], tenant: str = "") -> int:
        """Return the number of tokens at the start of a prompt that need not be computed."""
        parent: int | str = tenant
        hit: list[_Block] = []
        for block in self._full_blocks(tokens[: max(0, len(tokens) - 1)]):
            if (parent, block) not in self._blocks:
                break
            hit.append((parent, block))
            parent = self._blocks[parent, block]
        self._use(hit)
        return len(hit) * self._block_tokens

    def add(self, tokens: Sequence[str], tenant: str = "") -> None:
        """Add computed tokens, from the first token of a prompt on."""
        parent: int | str = tenant
        path: list[_Block] = []
        for block in self._full_blocks(tokens):
            path.append((parent, block))
            if (parent, block) not in self._blocks:
                self._newest += 1
                self._blocks[parent, block] = self._newest
            parent = self._blocks[parent, block]
        self._use(path)
        while len(self._blocks) > self._max_blocks:
            del self._blocks[next(iter(self._blocks))]

    def clear(self) -> None:
        """Remove all blocks."""
        self._blocks.clear()

    def _use(self, path: list[_Block]) -> None:
        """Mark blocks as used; the first block is evicted last."""
        for block in reversed(path):
            self._blocks[block] = self._blocks.pop(block)

    def _full_blocks(self, tokens: Sequence[str]) -> list[tuple[str, ...]]:
        size = self._block_tokens
        return [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
