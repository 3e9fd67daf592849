"""Output parsers: the text of a reply, lists of items, and other results.

A list parser directly behind a model becomes an item grammar of the decoding, so each item can be used as soon as its
text is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
)
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.outputs import ChatGeneration, Generation

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain.draft import Draft, to_message
from teola_plugin.adapters.langchain.values import Symbol, Value
from teola_plugin.adapters.reader.foreign import is_library_class
from teola_plugin.effects import declared_effects

GRAMMARS = {
    ("langchain_core.output_parsers.list", "CommaSeparatedListOutputParser"): "csv",
    ("langchain_core.output_parsers.list", "NumberedListOutputParser"): "numbered",
    ("langchain_core.output_parsers.list", "MarkdownListOutputParser"): "markdown",
    ("langchain_classic.retrievers.multi_query", "LineListOutputParser"): "lines",
}
"""Classes with an item grammar that splits a text exactly as the class does."""

_STOCK = ("langchain_core.output_parsers.", "langchain_classic.output_parsers.")
_CALLING = ("OutputFixingParser", "RetryOutputParser", "RetryWithErrorOutputParser")
"""Parsers that ask a model again."""


def trace_parser(draft: Draft, parser: BaseLLMOutputParser[Any], given: Symbol, name: str) -> Value | None:
    """Return the result of a parser; None for a parser with possible effects."""
    reply = given if isinstance(given, Value) else draft.value(given)
    is_text = reply.holds in ("message", "text") and not reply.is_list
    if type(parser) is StrOutputParser and is_text:
        return Value(reply.name, reply.depth, reply.level, "text")
    grammar = _grammar(parser)
    if grammar and is_text:
        return draft.list_call(f"{reply.name}_items", grammar, _parsing(parser), reply)
    if not is_pure(parser):
        return None
    fn = type(parser).__name__
    made = draft.call(
        name or ("text" if type(parser) is StrOutputParser else "parsed"),
        fn,
        _parsing(parser),
        reply,
        identity=("parser", id(parser)),
        is_glue=fn in _known_names(),
    )
    return Value(made.name, made.depth, made.level, "text") if type(parser) is StrOutputParser else made


def is_list_parser(parser: Any) -> bool:
    """Whether a model directly before the parser passes its name on to the items."""
    return _grammar(parser) is not None or type(parser) is StrOutputParser


def is_pure(parser: BaseLLMOutputParser[Any]) -> bool:
    """Whether the parser only looks at the text: LangChain's own parsers, without classes or parsers of the user's."""
    declared = declared_effects(parser)
    if declared is not None:
        return declared.pure and not declared.reads
    cls = type(parser)
    is_stock = cls.__module__.startswith(_STOCK) or (cls.__module__, cls.__name__) in GRAMMARS
    return is_stock and is_library_class(cls) and cls.__name__ not in _CALLING and is_free_of_code(parser)


def _grammar(parser: Any) -> str | None:
    cls = type(parser)
    has_pattern = isinstance(parser, NumberedListOutputParser | MarkdownListOutputParser)
    if has_pattern and parser.pattern != cls.model_fields["pattern"].default:
        return None
    return GRAMMARS.get((cls.__module__, cls.__name__))


def _known_names() -> tuple[str, ...]:
    return (StrOutputParser.__name__, CommaSeparatedListOutputParser.__name__)


def _parsing(parser: BaseLLMOutputParser[Any]) -> Callable[[Any], Any]:
    """Return `parser.invoke` as a function of a reply, without callbacks."""

    def parse(reply: Any) -> Any:
        if not is_pure(parser):
            raise LookupError(f"{type(parser).__name__} was given code of the user's after it had been read")
        message = to_message(reply) if getattr(reply, "raw", None) is not None else reply
        if isinstance(message, BaseMessage):
            return parser.parse_result([ChatGeneration(message=message)])
        return parser.parse_result([Generation(text=str(message))])

    return parse
