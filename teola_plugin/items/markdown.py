"""`markdown`: what follows `- ` or `* ` at a line's start, as LangChain's `MarkdownListOutputParser` does.

The blank after the mark may be a line break. A last line that cannot become an item is kept all the same:
what comes next does not stand at the start of a line.
"""

from __future__ import annotations

import re

from teola_plugin.items.pattern import PatternItems

_PATTERN = re.compile(r"^\s*[-*]\s([^\n]+)$", re.MULTILINE)
_OPENING = re.compile(r"^(\s*([-*](\s[^\n]*)?)?|[^\n]*)\Z", re.MULTILINE)


def markdown_items() -> PatternItems:
    """A fresh parser."""
    return PatternItems(_PATTERN, _OPENING)
