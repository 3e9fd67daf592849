"""Prompts and parsers, over values that may be unknown.

Known values are computed by LangChain's own code with callbacks muted, where no user code can run: stock classes, no
functions among the partial variables, no template language, no schema with validators.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, ListOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputToolsParser, PydanticToolsParser
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.prompts import BasePromptTemplate, MessagesPlaceholder
from langchain_core.prompts.chat import BaseChatPromptTemplate

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain.templates import is_transparent, partials_of, parts_of
from teola_plugin.adapters.methods import is_as_published
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.made_classes import is_made_by_reader
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.pydantic_schemas import is_made_without_code
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, type_name
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.value_keys import value_key

_PARSERS = ("langchain_core.output_parsers.", "langchain_classic.output_parsers.", "langchain.output_parsers.")
_MORE_PARSERS = tuple(
    f"{package}.retrievers.{module}"
    for package in ("langchain_classic", "langchain")
    for module in ("multi_query", "document_compressors.")
)
_ASKING = frozenset({"OutputFixingParser", "RetryOutputParser", "RetryWithErrorOutputParser"})
"""Parsers that ask a model again."""


def is_stock(value: Any, *modules: str) -> bool:
    """Whether the object's class is LangChain's own, from one of these modules, and no method was replaced."""
    cls = stock_class(value)
    if not (foreign.is_library_class(cls) and foreign.module_of(cls).startswith(modules) and is_as_published(cls)):
        return False
    own = foreign.own_attributes(value) or {}
    fields = getattr(cls, "model_fields", {})
    return all(name in fields or not callable(held) for name, held in own.items())


_MAKING = frozenset({"__init__", "__new__", "model_post_init", "from_llm", "from_chain_type"})


def is_made_as_published(cls: type, *modules: str) -> bool:
    """Whether a class is LangChain's own, from one of these modules, and nobody has replaced how it is made."""
    is_its = foreign.is_library_class(cls) and foreign.module_of(cls).startswith(modules)
    return is_its and facts_of(cls).user_names.isdisjoint(_MAKING)


def stock_class(value: Any) -> type:
    """Return the class of a component, below our twin's."""
    return next(each for each in foreign.mro_of(type(value)) if "__teola__" not in foreign.namespace_of(each))


# --- prompts ---------------------------------------------------------------------------------------------------------


def format_prompt(run: Run, template: BasePromptTemplate[Any], value: Any) -> Any:
    """Return the result of `template.invoke(value)`. Raises: Barrier, and LangChain's errors."""
    names = _require_usable(run, template)
    exchange = Exchange(run)
    if type(value) is dict and not run.is_tainted(value):  # the template looks at no other variables
        value = {key: held for key, held in value.items() if key in names}
    try:
        given = exchange.out(value)
    except Undecided:
        return _unknown_prompt(run, template, value)
    return exchange.back(outcome(lambda: template.invoke(given)))


def texts_for(run: Run, template: BasePromptTemplate[Any], value: Any) -> tuple[tuple[str, str], ...] | None:
    """Return the variables of a template by name; None unless all are known texts. Raises: Barrier."""
    names = _require_usable(run, template)
    if type(value) is not dict or run.is_tainted(value):
        return None
    texts = tuple(each for each in value.items() if each[0] in names)
    return texts if all(type(text) is str for _, text in texts) else None


def _require_usable(run: Run, template: BasePromptTemplate[Any]) -> Names:
    names = require_clean_template(template)
    _require_unchanged(run, template)
    return names


def _require_unchanged(run: Run, template: Any) -> None:
    """Raises: Barrier if the template's partial variables differ from the first reading.

    The framework's own run may have changed the variables, and a request with the earlier values must not be repeated.
    """
    for part in parts_of(template):
        partials = partials_of(part)
        brought = value_key(dict(partials)) if partials else None
        if run.as_first_read(part, "what it is formatted with", brought) != brought:
            raise Barrier("it formats a prompt whose partial variables have changed")


Names = frozenset[str]

_clean: dict[int, tuple[Any, int, Names]] = {}
"""Inspected components, with the evaluation and the variables that a template reads."""

_MOST_CLEAN = 256


def _known_clean(component: Any) -> Names | None:
    known = _clean.get(id(component))
    return known[2] if known is not None and known[0] is component and known[1] == foreign.epoch() else None


def _keep_clean(component: Any, names: Names = frozenset()) -> Names:
    if len(_clean) >= _MOST_CLEAN:
        _clean.clear()
    _clean[id(component)] = component, foreign.epoch(), names
    return names


def require_clean_template(template: Any) -> Names:
    """Return the variables that a template reads. Raises: Barrier if formatting may run user code."""
    known = _known_clean(template)
    if known is not None:
        return known
    parts = list(parts_of(template))
    names: set[str] = set()
    for part in parts:
        if not is_stock(part, "langchain_core.prompts."):
            raise Barrier(f"it formats a prompt of the class {type_name(type(part))}")
        held, partials = vars(part), partials_of(part)
        if any(not foreign.is_atom(value) and type(value) is not list for value in partials.values()):
            raise Barrier("it formats a prompt with a function among its partial variables", "give it as an input")
        if held.get("template_format", "f-string") not in ("f-string", "mustache"):
            raise Barrier("it formats a prompt in a template language", "use an f-string template")
        if held.get("example_selector") is not None:
            raise Barrier("it formats a prompt with an example selector")
        names.update(getattr(part, "input_variables", ()), held.get("optional_variables", ()), partials)
    if not is_free_of_code(*_texts_of(parts)):
        raise Barrier("it formats a prompt that holds code of the user's")
    return _keep_clean(template, frozenset(names))


def _texts_of(parts: list[Any]) -> Iterator[Any]:
    """Yield the texts, messages and partial variables that a template puts together."""
    for part in parts:
        held = vars(part)
        yield from (value for name, value in held.items() if name not in _PARTS_AND_TYPES)
        yield from (each for each in held.get("messages", ()) if isinstance(each, BaseMessage))


_PARTS_AND_TYPES = frozenset({"messages", "prompt", "input_types", "example_prompt"})


def _unknown_prompt(run: Run, template: Any, value: Any) -> Any:
    is_chat = isinstance(template, BaseChatPromptTemplate)
    holds = ChatPromptValue if is_chat else StringPromptValue
    if type(value) is not dict or run.is_tainted(value):
        is_one = len(template.input_variables) == 1 and type(value) is Unknown and value.holds in ("text", "message")
        return unknown_from(run, value, holds, is_safe=is_one and is_total(template))
    missing = set(template.input_variables) - value.keys()
    if missing:
        raise KeyError(f"missing variables {missing}")
    return unknown_from(run, value, holds, is_safe=is_total(template) and _fill_placeholders(template, value))


def is_total(template: Any) -> bool:
    """Whether formatting raises for no value of a variable, placeholders of messages excepted."""
    return is_transparent(template) or (
        isinstance(template, BaseChatPromptTemplate)
        and all(
            type(part) is MessagesPlaceholder or isinstance(part, BaseMessage) or _is_plain_message(part)
            for part in template.messages  # type: ignore[attr-defined]
        )
    )


def _is_plain_message(part: Any) -> bool:
    prompt = getattr(part, "prompt", None)
    return prompt is not None and is_transparent(prompt)


def _fill_placeholders(template: Any, value: dict[str, Any]) -> bool:
    """Whether all placeholders of a template get lists of messages."""
    places = [part for part in getattr(template, "messages", ()) if type(part) is MessagesPlaceholder]
    return all(_are_messages(value[part.variable_name]) for part in places if part.variable_name in value)


def _are_messages(value: Any) -> bool:
    return type(value) is list and all(
        foreign.is_kind_of(each, BaseMessage) or (type(each) is Unknown and each.holds == "message") for each in value
    )


# --- parsers ---------------------------------------------------------------------------------------------------------


def parse(run: Run, parser: BaseLLMOutputParser[Any], value: Any) -> Any:
    """Return the result of `parser.invoke(value)`. Raises: Barrier, and LangChain's errors."""
    require_clean_parser(parser)
    exchange = Exchange(run)
    try:
        given = exchange.out(value)
    except Undecided:
        return _unknown_parsed(run, parser, value)
    return exchange.back(outcome(lambda: parser.invoke(given)))  # type: ignore[attr-defined]


def require_clean_parser(parser: Any) -> None:
    """Raises: Barrier if parsing may run user code."""
    if _known_clean(parser) is None:
        _require_clean_parser(parser)
        if not any(foreign.is_class(each) and foreign.is_local(each) for each in _schemas(parser)):  # of one call
            _keep_clean(parser)


def _require_clean_parser(parser: Any) -> None:
    if not is_stock(parser, *_PARSERS, *_MORE_PARSERS) or type_name(stock_class(parser)) in _ASKING:
        raise Barrier(f"it parses by an object of the class {type_name(type(parser))}")
    inner = vars(parser).get("parser")
    if inner is not None:
        require_clean_parser(inner)
    for schema in _schemas(parser):
        require_clean_schema(schema)
    if not is_free_of_code(*(held for name, held in vars(parser).items() if name not in _SCHEMAS)):
        raise Barrier(f"it parses by a {type_name(type(parser))} that holds code of the user's")


def require_clean_schema(schema: Any) -> None:
    """Raises: Barrier if making an object of the class may run user code."""
    if not (foreign.is_class(schema) and foreign.has_known_classes(schema) and is_made_without_code(schema)):
        name = type_name(schema) if foreign.is_class(schema) else "its schema"
        raise Barrier(f"validating {name} runs code", _hint(schema))


def _hint(schema: Any) -> str:
    if foreign.is_class(schema) and "__validators__" in foreign.namespace_of(schema):
        return "use plain types without validators, or derive it from BaseModel of pydantic 2: of it more is read"
    return "use a schema without validators and functions that make defaults"


_SCHEMAS = ("pydantic_object", "tools", "pydantic_schema", "enum")


def _schemas(parser: Any) -> list[Any]:
    held = [vars(parser).get(name) for name in _SCHEMAS]
    return [part for each in held if each is not None for part in (each if type(each) is list else [each])]


def _unknown_parsed(run: Run, parser: Any, value: Any) -> Any:
    is_reply = type(value) is Unknown and value.holds in ("text", "message")
    if type(parser) is StrOutputParser:
        return unknown_from(run, value, "text", is_safe=is_reply)
    return unknown_from(run, value, _parsed_holds(parser), is_safe=False)


def _parsed_holds(parser: Any) -> str | type:
    if isinstance(parser, JsonOutputParser) and not isinstance(parser, PydanticOutputParser | JsonOutputToolsParser):
        return "any"
    if isinstance(parser, PydanticOutputParser):
        return parser.pydantic_object
    if isinstance(parser, PydanticToolsParser) and parser.first_tool_only and len(parser.tools) == 1:
        return parser.tools[0]
    return "texts" if isinstance(parser, ListOutputParser) else "any"


# --- structured output -----------------------------------------------------------------------------------------------


def structured_schema(function: Any) -> Any:
    """Return the class behind a stock function of `with_structured_output`; None for any other function."""
    if type(function) is not partial or function.args or set(function.keywords) != {"schema"}:
        return None
    made_by = function.func
    is_stock_parser = (
        getattr(made_by, "__module__", "").startswith("langchain_openai.")
        and getattr(made_by, "__name__", "") == "_oai_structured_outputs_parser"
        and foreign.is_class(function.keywords["schema"])
    )
    return function.keywords["schema"] if is_stock_parser else None


def parse_structured(run: Run, function: Any, schema: type, value: Any) -> Any:
    """Return the object that a model's structured reply is parsed to."""
    require_clean_schema(schema)
    parsed = value.additional_kwargs.get("parsed") if type(value) is AIMessage else None
    if is_made_by_reader(schema) and type(parsed) is Unknown and type(value.content) is str:
        return Exchange(run).back(schema.model_validate_json(value.content))  # type: ignore[attr-defined]
    if type(parsed) is Opaque and type(parsed.held) is schema:
        return parsed
    exchange = Exchange(run)
    try:
        given = exchange.out(value)
    except Undecided:
        return unknown_from(run, value, schema, is_safe=False)
    return exchange.back(outcome(lambda: function(given)))
