"""The glue of components: small pure functions, called by the names that graphs have for them (`fn=`).

The interpreter, the simulator and the runtime call the same ones. What a store or a search service answers may be a
mapping with the column `documents`, texts, or records with a title and a snippet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teola_plugin.items import parse_items

CHARACTERS = 4
"""Of an English token, about; chunks are measured in tokens and cut by characters."""


def chunks(document: str, size: int, overlap: int) -> list[str]:
    """Pieces of about `size` tokens, each beginning with the last `overlap` tokens of the one before it.

    They end where a word ends, if there is a blank in their second half.

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
    """The texts that a search found."""
    found = hit["documents"] if isinstance(hit, Mapping) else hit
    return [text_of(each) for each in found or ()]


def text_of(found: Any) -> str:
    """A text as it is; of a record its title and snippet, and where it is from."""
    if not isinstance(found, Mapping):
        return str(found)
    said = [str(found[key]) for key in ("title", "snippet", "text") if found.get(key)]
    return ": ".join(said) + (f" ({found['url']})" if found.get("url") else "")


def flattened(nested: Any) -> list[Any]:
    """All items of nested lists, each once, in the order in which they come first.

    >>> flattened([["a", "b"], [["b"], "c"]])
    ['a', 'b', 'c']
    """
    return list({_key(each): each for each in _leaves(nested)}.values())


def _key(value: Any) -> str:
    """The same for equal values."""
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
    """The `top_k` passages with the highest scores, each once; of equal ones those that were found first.

    >>> best([["a", "b"], ["b", "c", "d"]], [[0.1, 0.9], [0.9, 0.5, 0.5]], 2)
    ['b', 'c']
    """
    unique: dict[str, tuple[Any, float]] = {}
    for passage, score in zip(_leaves(passages), _leaves(scores), strict=True):
        unique.setdefault(_key(passage), (passage, score))
    return [passage for passage, _ in sorted(unique.values(), key=lambda found: -found[1])[:top_k]]


def joined(*parts: Any) -> str:
    """One text for a prompt: what nested lists hold, each once, line by line."""
    return "\n".join(text_of(each) for part in parts for each in flattened(part if isinstance(part, list) else [part]))


def neighbours(pieces: Sequence[str], count: int) -> list[str]:
    """For each piece the `count` ones nearest to it, half before and half after it where there are as many.

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
    """Item number `at`, an empty text if there are fewer."""
    return items[at] if at < len(items) else ""


def has_item(items: Sequence[Any], at: int) -> bool:
    """There is an item number `at`."""
    return at < len(items)


def same(value: Any) -> Any:
    """The value itself."""
    return value


def value_of(values: Mapping[str, Any], name: str) -> Any:
    """One of several values."""
    return values[name]


def parsed(text: str, grammar: str, wanted: int | None = None) -> list[Any]:
    """The items of a text that is not taken apart while it is written."""
    return parse_items(grammar, text)[:wanted]


def grouped(items: Sequence[Any], size: int) -> list[Any]:
    """The items in texts of `size` each."""
    return [joined(list(items[at : at + size])) for at in range(0, len(items), size)]


GLUE: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        chunks, documents, flattened, best, joined, neighbours, item, has_item, same, value_of, parsed, grouped,
    )
}  # fmt: skip
