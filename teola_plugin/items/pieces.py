"""Texts kept in pieces, so that adding a piece does not copy the earlier pieces."""

from __future__ import annotations

from collections.abc import Sequence


def joined(pieces: Sequence[str]) -> str:
    """Return the whole text."""
    return "".join(pieces)
