"""Text splitters made or used by a program: LangChain's own splitters compute on texts alone, so they are really run.

Splitters with `len` as the measure and plain separators are known; the rest run user functions, or slow patterns.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, isinstance_of
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.value_keys import value_key

METHODS = frozenset({"split_text", "split_documents", "create_documents"})

_CALLED = (*METHODS, "__init__", "_split_text", "_merge_splits", "_join_docs")
_MODULE = "langchain_text_splitters.character"


def is_splitter_class(cls: Any) -> bool:
    """Whether the class is `RecursiveCharacterTextSplitter`, as published."""
    found = vars(sys.modules.get(_MODULE, types)).get("RecursiveCharacterTextSplitter")
    return found is not None and cls is found and all(map(_is_its_own, _CALLED))


def _is_its_own(name: str) -> bool:
    method = foreign.in_mro(vars(sys.modules[_MODULE])["RecursiveCharacterTextSplitter"], name)
    return type(method) is types.FunctionType and foreign.is_of_library(method)


def is_splitter(held: Any) -> bool:
    """Whether the splitter runs no user code."""
    own = foreign.own_attributes(held) if is_splitter_class(type(held)) else None
    if own is None or own.keys() & set(_CALLED) or own.get("_is_separator_regex") is not False:
        return False
    return own.get("_length_function") is len


def made(run: Run, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Opaque:
    """Return a new splitter. Raises: Barrier, Undecided, errors of the constructor."""
    given = dict(kwargs)
    measure = given.pop("length_function", None)
    if measure is not None and not (isinstance_of(measure, Opaque) and measure.held is len):
        raise Barrier(
            "it makes a splitter that measures by a function", "leave `length_function` out, or give it `len`"
        )
    out = Exchange(run).out
    arguments, named = [out(each) for each in args], {name: out(each) for name, each in given.items()}
    splitter = outcome(lambda: cls(*arguments, **named))
    if not is_splitter(splitter):
        raise Barrier("it makes a splitter whose separators are patterns")
    return Opaque(splitter, is_own=True)


def split(run: Run, held: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a splitter's method for texts or documents. Raises: Barrier, errors of the method."""
    exchange = Exchange(run)
    try:
        given = [exchange.out(each) for each in args]
        named = {key: exchange.out(each) for key, each in kwargs.items()}
    except Undecided:
        return unknown_from(run, [*args, *kwargs.values()], "any", is_safe=False)
    for each in (*given, *named.values()):
        for text in each if type(each) is list else [each]:
            content = text.page_content if type(text) is Document else text
            if type(content) is str:
                _allow(run, held, len(content))
    kept = copy.copy(held)
    kept.split_text = lambda text: list(_pieces(_AsSet(held), text))
    return exchange.back(outcome(lambda: getattr(kept, name)(*given, **named)))


def _allow(run: Run, held: Any, count: int) -> None:
    """Spend the ticks of splitting a text: words are joined to chunks, and removed from the front singly."""
    chunk = held._chunk_size if type(held._chunk_size) is int else count
    run.tick(1 + count // _CHARACTERS_PER_TICK + count * min(count, chunk) // _PAIRS_PER_TICK)


_CHARACTERS_PER_TICK = 5
_PAIRS_PER_TICK = 50_000
"""Measured: 0.25 us a character with small chunks, 0.6 s for 285,000 characters in chunks of 100,000."""


class _AsSet:
    """A splitter with its settings, equal to any splitter with the same settings."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self._settings = value_key({name: each for name, each in vars(held).items() if name != "_length_function"})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsSet) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)


@functools.lru_cache(maxsize=64)
def _pieces(splitter: _AsSet, text: str) -> tuple[str, ...]:
    """Return the pieces of a text, cached: a function is read again with each reply, and splits its texts each time."""
    return tuple(outcome(lambda: splitter.held.split_text(text)))
