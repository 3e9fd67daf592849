"""The glue of components: small pure functions, called by their names in graphs (`fn=`).

The interpreter, the simulator and the runtime call the same functions. The answer of a store or a search service may be
a mapping with the column `documents`, texts, or records with a title and a snippet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teola_plugin.items import parse_items

CHARACTERS = 4
"""Characters per English token, about; chunks are measured in tokens and cut by characters."""


def chunks(document: str, size: int, overlap: int) -> list[str]:
    """Return pieces of about `size` tokens, each beginning with the last `overlap` tokens of the previous piece.

    A piece ends at the end of a word, if its second half has a blank.

    >>> chunks("one two three four", 2, 0)
    ['one two', 'three', 'four']
    """
    pieces, at, end = [], 0, 0
    while end < len(document):
        end = min(at + size * CHARACTERS, len(document))
        if end < len(document) and (blank := document.rfind(" ", at + size * CHARACTERS // 2, end + 1)) > 0:
            end = blank
        if piece := document[at:end].strip():
            pieces.append(piece)
        at = max(end - overlap * CHARACTERS, at + 1)
    return pieces


def documents(hit: Any) -> list[str]:
    """Return the texts found by a search."""
    found = hit["documents"] if isinstance(hit, Mapping) else hit
    return [text_of(each) for each in found or ()]


def text_of(found: Any) -> str:
    """Return a text unchanged; of a record the title, snippet and source."""
    if not isinstance(found, Mapping):
        return str(found)
    said = [str(found[key]) for key in ("title", "snippet", "text") if found.get(key)]
    return ": ".join(said) + (f" ({found['url']})" if found.get("url") else "")


def flattened(nested: Any) -> list[Any]:
    """Return all items of nested lists, each once, in the order of first occurrence.

    >>> flattened([["a", "b"], [["b"], "c"]])
    ['a', 'b', 'c']
    """
    return list({_key(each): each for each in _leaves(nested)}.values())


def _key(value: Any) -> str:
    """Return a key equal for equal values."""
    return value if isinstance(value, str) else repr(value)


def _leaves(nested: Any) -> list[Any]:
    if not isinstance(nested, list):
        return [nested]
    leaves: list[Any] = []
    for each in nested:
        if isinstance(each, list):
            leaves += _leaves(each)
        else:
            leaves.append(each)
    return leaves


def best(passages: Any, scores: Any, top_k: int) -> list[Any]:
    """Return the `top_k` passages with the highest scores, each once; equal scores keep the order of the search.

    >>> best([["a", "b"], ["b", "c", "d"]], [[0.1, 0.9], [0.9, 0.5, 0.5]], 2)
    ['b', 'c']
    """
    unique: dict[str, tuple[Any, float]] = {}
    for passage, score in zip(_leaves(passages), _leaves(scores), strict=True):
        unique.setdefault(_key(passage), (passage, score))
    return [passage for passage, _ in sorted(unique.values(), key=lambda found: -found[1])[:top_k]]


def joined(*parts: Any) -> str:
    """Return one text for a prompt: the items of nested lists, each once, line by line."""
    return "\n".join(text_of(each) for part in parts for each in flattened(part if isinstance(part, list) else [part]))


def neighbours(pieces: Sequence[str], count: int) -> list[str]:
    """Return for each piece its `count` nearest neighbours, half before and half after where possible.

    >>> neighbours(["a", "b", "c"], 2)
    ['b\\nc', 'a\\nc', 'a\\nb']
    """
    around = []
    for at in range(len(pieces)):
        first = max(0, min(at - count // 2, len(pieces) - count - 1))
        near = [i for i in range(first, min(first + count + 1, len(pieces))) if i != at]
        around.append("\n".join(pieces[i] for i in near))
    return around


def item(items: Sequence[Any], at: int) -> Any:
    """Return item number `at`, or an empty text if there are fewer items."""
    return items[at] if at < len(items) else ""


def has_item(items: Sequence[Any], at: int) -> bool:
    """Whether there is an item number `at`."""
    return at < len(items)


def same(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def value_of(values: Mapping[str, Any], name: str) -> Any:
    """Return one of several values, by name."""
    return values[name]


def parsed(text: str, grammar: str, wanted: int | None = None) -> list[Any]:
    """Return the items of a text which is parsed only as a whole."""
    return parse_items(grammar, text)[:wanted]


def grouped(items: Sequence[Any], size: int) -> list[Any]:
    """Return the items in texts of `size` items each."""
    return [joined(list(items[at : at + size])) for at in range(0, len(items), size)]


GLUE: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        chunks, documents, flattened, best, joined, neighbours, item, has_item, same, value_of, parsed, grouped,
    )
}  # fmt: skip
