"""What simulated engines say: texts, documents and scores that are pure functions of what they are asked.

Only lengths and identities matter to a simulation, so a token is four characters, an embedding is the text itself, and
everything else follows from a checksum: equal questions have equal answers, in every process.

    say("Who?", 3)                      ['p2c 0ma p2c ']
    say("Who?", 6, "lines:2")           ['p2c 0ma p2c\\n', ...]     two items of three tokens
    documents(vector, texts, 3)         {'documents': [...]}

A prompt is a text that knows its pieces: a prefix cache compares these, not the tokens.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from teola_plugin.errors import EngineError
from teola_plugin.graph import Literal, Primitive
from teola_plugin.profile import TOKEN_CHARACTERS

Count = Callable[[str], int]

FOUND_PAGES = 4
"""By a web search that does not say how many: top-4 as in Teola's first application."""

TOOL_TOKENS = 64
"""Of what a tool says, unless its setting `tokens` says otherwise; as of an answer of the profile engines."""


def tokens_of(text: str) -> int:
    """About how many tokens a text has.

    >>> tokens_of(""), tokens_of("a"), tokens_of("abcde")
    (0, 1, 2)
    """
    return (len(text) + TOKEN_CHARACTERS - 1) // TOKEN_CHARACTERS


class Prompt(str):
    """A text in `pieces`; `literal_pieces` of them, at its head, are the same in each query."""

    pieces: tuple[str, ...]
    literal_pieces: int

    def __new__(cls, args: Sequence[Any], literal_args: int = 0) -> Prompt:
        """Of the arguments of a prefilling, of which `literal_args` at the head are literals."""
        pieces: list[str] = []
        literal = True
        literal_pieces = 0
        for at, arg in enumerate(args):
            if isinstance(arg, Prompt):
                pieces += arg.pieces
                literal_pieces += arg.literal_pieces if literal else 0
                literal &= arg.literal_pieces == len(arg.pieces)
            else:
                pieces.append(str(arg))
                literal &= at < literal_args
                literal_pieces += literal
        self = super().__new__(cls, "".join(pieces))
        self.pieces = tuple(pieces)
        self.literal_pieces = literal_pieces
        return self

    def __deepcopy__(self, memo: Any) -> Prompt:
        return self  # it never changes


def prompt_of(p: Primitive, args: Sequence[Any]) -> Prompt:
    """The prompt of a prefilling, in place of a text joined of its arguments."""
    return Prompt(args, next((n for n, arg in enumerate(p.args) if not isinstance(arg, Literal)), len(p.args)))


def piece_tokens(prompt: Prompt, count: Count) -> list[int]:
    """Tokens of each piece, which add up to those of the prompt."""
    ends = itertools.accumulate(map(len, prompt.pieces))
    if count is tokens_of:
        counts = [(end + TOKEN_CHARACTERS - 1) // TOKEN_CHARACTERS for end in ends]
    else:
        counts = [count(prompt[:end]) for end in ends]
    return [after - before for before, after in itertools.pairwise([0, *counts])]


class Layout(NamedTuple):
    """How a list is written: each item, what stands between items, and around all."""

    item: str
    between: str
    begin: str = ""
    end: str = ""


LAYOUTS = {
    "lines": Layout("{item}", "\n"),
    "numbered": Layout("{n}. {item}", "\n"),
    "markdown": Layout("- {item}", "\n"),
    "csv": Layout("{item}", ", "),
    "json": Layout('"{item}"', ", ", "[", "]"),
}


def say(prompt: str, tokens: int, shape: str = "") -> list[str]:
    """A text of so many tokens that depends on the prompt; `shape`, such as `lines:3`, makes it a list of items.

    The text is returned in pieces, each of which makes one more item complete.

    Raises: EngineError for a shape that is none.
    """
    if not shape:
        return [_words(checksum(prompt), tokens)]
    layout, count = layout_of(shape)
    seed = checksum(prompt)
    ends = [tokens * n // count for n in range(count + 1)]
    items = [_words(seed + n, max(1, ends[n + 1] - ends[n])).rstrip() for n in range(count)]
    pieces = [LAYOUTS[layout].item.format(n=n, item=item) + LAYOUTS[layout].between for n, item in enumerate(items, 1)]
    pieces[0] = LAYOUTS[layout].begin + pieces[0]
    pieces[-1] = pieces[-1].removesuffix(LAYOUTS[layout].between) + LAYOUTS[layout].end
    return pieces


def documents(query: str, texts: Sequence[str], top_k: int) -> dict[str, list[str]]:
    """What a search finds: `top_k` of the texts, in the column that a vector store has them in."""
    at = checksum(query)
    return {"documents": [texts[(at + n) % len(texts)] for n in range(top_k)]}


def scores(pairs: Iterable[tuple[Any, Any]]) -> list[float]:
    """How well passages answer queries, from 0 to 1; each pair is a query and a passage."""
    found = []
    last, start = "", checksum("")
    for query, passage in pairs:
        if query != last:
            last, start = query, checksum(str(query))
        found.append(zlib.crc32(str(passage).encode("utf-8", "surrogatepass"), start) / 2**32)
    return found


def checksum(text: str) -> int:
    """The same for equal texts, in every process."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


@functools.cache
def layout_of(shape: str) -> tuple[str, int]:
    """The name of a layout and the number of items. Raises: EngineError for a shape that is none."""
    name, _, count = str(shape).partition(":")
    if name not in LAYOUTS or not count.isdigit() or int(count) < 1:
        raise EngineError(f"shape={shape!r}: expected one of {', '.join(LAYOUTS)}, a colon and a number above 0")
    return name, int(count)


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _words(number: int, tokens: int) -> str:
    """Words of a token each, blank included; the first two tell texts apart."""
    first, second = _word(number), _word(number // 36**3)
    return f"{first} {second} {f'{first} ' * (tokens - 2)}"[: TOKEN_CHARACTERS * tokens]


def _word(number: int) -> str:
    return _DIGITS[number // 1296 % 36] + _DIGITS[number // 36 % 36] + _DIGITS[number % 36]


def answer(op: str, payload: Any, settings: Mapping[str, Any], texts: Sequence[str]) -> Any:
    """What an engine that runs batches says. Raises: EngineError for a setting that is missing."""
    match op:
        case "embedding":
            return payload
        case "reranking":
            return scores([payload])[0]
        case "searching":
            if "top_k" not in settings:
                raise EngineError("a search needs top_k=")
            return documents(str(payload), texts, settings["top_k"])
        case "websearch":
            return documents(str(payload), texts, settings.get("top_k", FOUND_PAGES))["documents"]
        case "ingestion":
            return None
        case _:
            return "".join(say(f"{op} {payload}", settings.get("tokens", TOOL_TOKENS)))
