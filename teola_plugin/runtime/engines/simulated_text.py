"""The answers of profile engines: texts, vectors and scores that are pure functions of the request.

Equal requests have equal answers in every process, independent of the batch, so results may be compared bit by bit.
Meaning is words: texts with common words are near, passages with the question's words rank high.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from teola_plugin.engines import Completion
from teola_plugin.errors import EngineError

Vector = npt.NDArray[np.float32]
Writer = Callable[[str, Mapping[str, Any]], str]
"""A function that writes the answer to a prompt under the given settings."""

DEFAULT_TOKENS = 64
ITEM_WORDS = 6

_TOKEN = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")
_WORD = re.compile(r"\w+")
_VOCABULARY = _WORD.findall(
    "amber birch cedar delta ember fjord grove harbor island juniper kelp lagoon meadow north ocean pebble "
    "quartz river slate timber upland valley willow yarrow zephyr atlas basin comet dune eagle forest glade"
)
_LAYOUTS: dict[str, Callable[[list[str]], str]] = {
    "lines": "\n".join,
    "numbered": lambda items: "\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)),
    "markdown": lambda items: "\n".join(f"- {item}" for item in items),
    "csv": ", ".join,
    "json": json.dumps,
}


def tokenize(text: str) -> list[str]:
    """Split a text into words and signs, each with the blanks before; the joined tokens are the text.

    >>> tokenize("Who, me?\\n")
    ['Who', ',', ' me', '?', '\\n']
    """
    return _TOKEN.findall(text)


def complete(prompt: str, settings: Mapping[str, Any], reply: Writer | None = None) -> Completion:
    """Return the answer, cut at `stop` strings and after `max_tokens`, with a piece per token.

    Without `reply` the answer is `max_tokens` words that depend on the prompt and all settings but `max_tokens` and
    `stop`; with `shape` (such as `"lines:3"`, `"json:5"`; a grammar and a number) the answer is a list of that many
    items.

    >>> str(complete("Who?", {"max_tokens": 2})) == str(complete("Who?", {"max_tokens": 4}).rsplit(" ", 2)[0])
    True
    """
    limit = settings.get("max_tokens")
    text = reply(prompt, settings) if reply else _written(prompt, settings)
    stops = [settings["stop"]] if isinstance(settings.get("stop"), str) else settings.get("stop") or ()
    end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    tokens = tokenize(text[:end])
    is_cut = limit is not None and len(tokens) > limit
    pieces = tokens if limit is None else tokens[:limit]
    return Completion(
        "".join(pieces),
        token_ids=[_number(piece) % 2**31 for piece in pieces],
        pieces=pieces,
        finish_reason="length" if is_cut else "stop",
        prompt_tokens=len(tokenize(prompt)),
    )


def _written(prompt: str, settings: Mapping[str, Any]) -> str:
    seen = {key: value for key, value in settings.items() if key not in ("max_tokens", "stop")}
    words = random.Random(_number(f"{prompt}\0{sorted(seen.items())!r}"))
    if shape := settings.get("shape"):
        layout, _, count = str(shape).partition(":")
        if layout not in _LAYOUTS or not count.isdigit():
            raise EngineError(f"shape={shape!r}: expected one of {', '.join(_LAYOUTS)}, a colon and a number")
        return _LAYOUTS[layout]([" ".join(words.choices(_VOCABULARY, k=ITEM_WORDS)) for _ in range(int(count))])
    limit = settings.get("max_tokens")
    return " ".join(words.choices(_VOCABULARY, k=DEFAULT_TOKENS if limit is None else limit + 1))


def embed(text: str, dim: int) -> Vector:
    """Return a vector of length one; vectors are the nearer the more words two texts have in common."""
    vector = np.zeros(dim, dtype=np.float32)
    for word in _words(text) or [""]:
        vector += _direction(word, dim)
    return vector / np.float32(np.linalg.norm(vector))


def score(query: str, passage: str) -> float:
    """Return the share of the query's words in the passage, a float32; a hash decides between equal shares."""
    asked, said = set(_words(query)), set(_words(passage))
    share = len(asked & said) / max(1, len(asked))
    return float(np.float32(share + _number(f"{query}\0{passage}") % 10_000 / 1e7))


def find(vector: Vector, top_k: int, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the search result of a store of texts: `top_k` adjacent texts."""
    at = zlib.crc32(vector.tobytes())
    return {"documents": [texts[(at + n) % len(texts)] for n in range(top_k)]}


def answer(op: str, payload: Any, settings: Mapping[str, Any], *, dim: int, texts: Sequence[str]) -> Any:
    """Return the answer of the profile engine for an operation. `dim`: of embeddings; `texts`: in the store."""
    match op:
        case "embedding":
            return embed(payload, dim)
        case "reranking":
            return score(*payload)
        case "ingestion":
            return None
        case "searching":
            return find(payload, settings["top_k"], texts)
        case _:
            return complete(payload, settings)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


@functools.lru_cache(maxsize=20_000)
def _direction(word: str, dim: int) -> Vector:
    return np.random.default_rng(_number(word)).standard_normal(dim, dtype=np.float32)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
