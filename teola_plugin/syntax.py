"""`ast.parse` with retries, since CPython before 3.11.8 may fail on valid text.

In those versions one counter serves all threads, and a garbage collection half-way can let another thread parse
(CPython issue 106905).
"""

from __future__ import annotations

import ast

TRIES = 5


def parse(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree. Raises: as `ast.parse`."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(source, filename)
        except SystemError:
            continue
    return ast.parse(source, filename)
