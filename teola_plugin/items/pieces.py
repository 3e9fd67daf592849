"""Texts kept in pieces, so that each piece that is added costs no copy of those before it."""

from __future__ import annotations

from collections.abc import Sequence


def joined(pieces: Sequence[str]) -> str:
    """The whole text."""
    return "".join(pieces)
