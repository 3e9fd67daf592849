"""The request of a model call, and the program's value of the reply; templates filled in by a program.

The request is the request of LlamaIndex's own method in a rehearsal. The program's value is the same method's result
with the engine's reply. So every model call with a single request can be read, on any kind of model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
    TextBlock,
)
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate

from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import (
    from_coroutine,
    is_foreign,
    is_model,
    is_of_package,
    is_stream,
    is_structured,
)
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.exchange import MARK, Exchange
from teola_plugin.adapters.reader.facts import is_user_code
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.pydantic_schemas import dumped_fields, is_clean_schema
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.stock_records import stock_record
from teola_plugin.adapters.reader.table import is_text
from teola_plugin.adapters.reader.values import Arguments, Barrier, Opaque, Undecided, Unknown, isinstance_of, type_name
from teola_plugin.adapters.rehearsal import outcome, rehearse
from teola_plugin.adapters.service import are_headers, is_json
from teola_plugin.request_identity import request_key
from teola_plugin.value_keys import Same, is_comparable, value_key

_HOLDS: Mapping[str, str | type] = {
    "complete": CompletionResponse, "chat": ChatResponse, "predict": "text", "structured_predict": "any",
}  # fmt: skip

ASKING = frozenset([*_HOLDS, *(f"a{name}" for name in _HOLDS)])
"""Methods of a model that ask once and return the whole reply."""

FORMATTING = frozenset(["format", "format_messages", "partial_format"])
"""Methods of a template that are read."""


HINT = "declare its class with teola_plugin.pure if a call leaves nothing behind"


class Models:
    """Requests of models, each rehearsed once in a call. A predicted call checks the model's settings again."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, Request] = {}

    def ask(self, run: Run, llm: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        """Return the value of `llm.method(*args, **kwargs)`. Raises: Barrier, LlamaIndex's errors before a request."""
        asked = _asked_by(llm)
        require_readable(asked)
        is_async, name = method not in _HOLDS, method if method in _HOLDS else method[1:]
        may_raise = name == "structured_predict" or asked is not llm
        if asked is not llm and name not in ("chat", "complete"):
            raise Barrier(f"it calls {method} of a StructuredLLM")
        for each in (llm, asked):
            run.require_as_set_before(each)
        exchange = Exchange(run)
        source = Same(asked)
        try:
            given = [_out(exchange, each) for each in args]
            named = {key: _out(exchange, each) for key, each in kwargs.items()}
        except Undecided:
            is_safe = not may_raise and all(map(_is_safe, _plain_parts(args, kwargs)))
            holds, more = _holds(name, args, kwargs), frozenset([source])
            return unknown_from(run, [args, kwargs], holds, is_safe=is_safe, more=more)
        key = (Same(llm), method, value_key((given, named)))
        is_kept = is_comparable(key[-1])
        found = self._asked.get(key) if is_kept else None
        if found is None:
            found = _request(llm, name, is_async, given, named, _holds(name, args, kwargs), source, may_raise)
            if is_kept:
                self._asked[key] = found
        value = run.ask(found)
        if not _is_sent(asked, name, given, named):
            run.raises()
        return value


def require_readable(llm: Any) -> None:
    """Raises: Barrier if a call of the model may do more than request one reply."""
    if not is_model(llm):
        raise Barrier(f"it asks {type_name(type(llm))}", HINT)


def _asked_by(llm: Any) -> Any:
    """Return the model that a model asks: itself, or the model inside of LlamaIndex's `StructuredLLM`. Raises: Barrier.

    The text of a structured reply is made by the class of the reply.
    """
    if not is_structured(llm):
        return llm
    cls = llm.output_cls
    makes_text = foreign.in_mro(cls, "model_dump_json")
    if dumped_fields(cls) is None or is_user_code("model_dump_json", makes_text):
        raise Barrier(f"it asks for objects of the class {type_name(cls)}, which has code of its own")
    return llm.llm


def _request(
    llm: Any, name: str, is_async: bool, given: Sequence[Any], named: Mapping[str, Any], holds: str | type,
    source: Hashable, may_raise: bool,
) -> Request:  # fmt: skip
    def act() -> Any:
        args, kwargs = _own(given), _own(named)
        return getattr(llm, name)(*args, **kwargs)

    asked = rehearse(act)
    if len(asked) != 1 or asked[0].op != "decoding" or is_stream(asked[0].payload):
        raise Barrier(f"it asks {type_name(type(llm))} by {name} in a way that is not foreseen")
    spec, op, payload, settings = asked[0]
    if type(payload) is str and MARK in payload:
        raise Barrier(f"{type_name(type(llm))} is told a random id")
    if is_async:
        payload = from_coroutine(payload)
    key = request_key(spec, op, payload, settings)
    if not is_comparable(key):
        raise Barrier(f"what {type_name(type(llm))} is asked cannot be compared with another request")

    def value(reply: Any) -> Any:
        return outcome(act, decoding=[reply])

    return Request(
        key, spec, op, payload, settings, value, holds, may_raise, source,
        spec.name or type_name(type(llm)), None, is_async,
    )  # fmt: skip


def _is_sent(llm: Any, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether no client refuses the request: a text, or messages of texts, and settings that each client takes.

    `formatted`, which says that a text needs no template of the model, is not sent.
    """
    if name not in ("complete", "chat"):
        return True
    kept = {"extra_headers", *_SETTINGS} if is_foreign(llm) else set[str]()
    if name == "complete" and type(named.get("formatted")) is bool:
        kept.add("formatted")
    settings = {key: value for key, value in named.items() if key in _SETTINGS}
    if not (is_json(settings) and are_headers(named.get("extra_headers", {}))):
        return False
    asked = [*given, *(value for key, value in named.items() if key not in kept)]
    if name == "complete":
        return len(asked) == 1 and type(asked[0]) is str and is_json(asked)
    messages = asked[0] if len(asked) == 1 and type(asked[0]) is list else [None]
    blocks = [block for each in messages for block in (each.blocks if type(each) is ChatMessage else [None])]
    return all(type(block) is TextBlock and is_json(block.text) for block in blocks)


_SETTINGS = foreign.words("frequency_penalty max_tokens presence_penalty seed stop temperature top_p user")
"""Arguments of a call that OpenAI's client takes for chats and for texts."""


def _own(value: Any) -> Any:
    """Return a copy for one use: stock code may keep or change arguments. Templates are not safe to share."""
    if type(value) in (set, frozenset):  # a copy may iterate in another order
        return value
    if isinstance(value, BasePromptTemplate):
        return copy.deepcopy(value)
    if type(value) is list:
        return [_own(each) for each in value]
    if type(value) is dict:
        return {key: _own(each) for key, each in value.items()}
    return value if foreign.is_class(value) else copy.deepcopy(value)


def _out(exchange: Exchange, value: Any) -> Any:
    """Return an argument of a model. Templates and schemas are passed on. Raises: Undecided, Barrier."""
    if type(value) is Opaque:
        held = value.held
        if is_template(held):
            require_plain_template(held)
            return held
        if foreign.is_class(held) and foreign.has_known_classes(held) and is_clean_schema(held):
            return held
    return exchange.out(value)


def _holds(name: str, args: Arguments, kwargs: Mapping[str, Any]) -> str | type:
    if name != "structured_predict":
        return _HOLDS[name]
    schema = args[0] if args else kwargs.get("output_cls")
    return schema.held if type(schema) is Opaque and foreign.is_class(schema.held) else "any"


def _plain_parts(args: Arguments, kwargs: Mapping[str, Any]) -> list[Any]:
    return [each for each in (*args, *kwargs.values()) if not isinstance_of(each, Opaque)]


def _is_safe(value: Any) -> bool:
    """Whether a request made of the value is certain, whatever the value: a text, or messages of texts."""
    if type(value) is list:
        return all(type(each) is ChatMessage and all(map(_is_text_block, each.blocks)) for each in value)
    return type(value) is str or (type(value) is Unknown and value.holds == "text")


def _is_text_block(block: Any) -> bool:
    return type(block) is TextBlock and _is_safe(block.text)


# --- messages --------------------------------------------------------------------------------------------------------


def makes_message(cls: type, name: str) -> bool:
    """Whether the attribute of a class is LlamaIndex's own `ChatMessage.from_str`."""
    return cls is ChatMessage and name == "from_str" and is_of_package(_function(foreign.in_mro(cls, name)))


def _function(method: Any) -> Any:
    return method.__func__ if type(method) is classmethod else None


def make_message(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Return `ChatMessage.from_str(content, role)`. Raises: Barrier, ValueError."""
    given = dict(zip(("content", "role"), args, strict=False)) | dict(kwargs)
    if len(args) > 2 or len(given) < len(args) + len(kwargs) or given.keys() - {"content", "role"}:
        raise Barrier("it calls from_str with arguments that are not read")
    content, role = given.get("content"), given.get("role", "user")
    if not is_text(content):
        raise Barrier("it makes a message of what is no text")
    role = run.load(MessageRole(role)) if type(role) is str else role
    return stock_record(run, ChatMessage, (), {"role": role, "content": content})


# --- templates -------------------------------------------------------------------------------------------------------


def is_template(held: Any) -> bool:
    """Whether an object is a template."""
    return foreign.is_kind_of(held, BasePromptTemplate)


def require_plain_template(template: Any) -> None:
    """Raises: Barrier if filling in the template may run user code."""
    if not is_plain_template(template):
        raise Barrier(
            f"it fills in a {type_name(type(template))} with functions, a parser or code of its own",
            "use a plain PromptTemplate",
        )


def fill_in(run: Run, template: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a template's method. Raises: Barrier, and LlamaIndex's errors."""
    require_plain_template(template)
    if method != "partial_format" and type(template) in (PromptTemplate, ChatPromptTemplate):
        args, kwargs = args[1:], {name: each for name, each in kwargs.items() if name != "llm"}  # not used
    if args or kwargs.keys() & {"llm", "completion_to_prompt", "messages_to_prompt"}:
        raise Barrier(f"it calls {method} with arguments that are not read")
    exchange = Exchange(run)
    try:
        given = exchange.out(dict(kwargs))
    except Undecided:
        is_safe = type(template) in (PromptTemplate, ChatPromptTemplate)
        if method == "partial_format":
            raise Barrier("it fills in a part of a template with what is not known yet") from None
        return unknown_from(run, dict(kwargs), "text" if method == "format" else "any", is_safe=is_safe)
    made = outcome(lambda: getattr(copy.deepcopy(template), method)(**given))
    return Opaque(made, is_own=True) if method == "partial_format" else exchange.back(made)


def make_template(run: Run, cls: type, make: Callable[..., Any], args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Return a template made by the program of texts and messages. Raises: Barrier, Undecided, LlamaIndex's errors."""
    if len(args) > 1 or kwargs.keys() - {"template", "message_templates", "prompt_type"}:
        raise Barrier(f"it makes a {type_name(cls)} with arguments that are not read")
    exchange = Exchange(run)
    given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    run.tick(100)
    return Opaque(outcome(lambda: make(*given, **named)), is_own=True)
