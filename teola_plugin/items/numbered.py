"""`numbered`: what follows `1. ` to the end of the line, as LangChain's `NumberedListOutputParser` reads it.

The number may stand anywhere in a line, and the blank after its dot may be a line break.
"""

from __future__ import annotations

import re

from teola_plugin.items.pattern import PatternItems

_PATTERN = re.compile(r"\d+\.\s([^\n]+)")
_OPENING = re.compile(r"\d+(\.(\s[^\n]*)?)?\Z")


def numbered_items() -> PatternItems:
    """A fresh parser."""
    return PatternItems(_PATTERN, _OPENING)
