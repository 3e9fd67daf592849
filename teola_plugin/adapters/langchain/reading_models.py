"""The request of a model call, and the program's value of the reply.

The request equals the later request of the framework's own run (models.py). The framework itself makes the message of
the reply: `invoke` of the model with the engine's reply in place of a call.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables.config import var_child_runnable_config

from teola_plugin.adapters.configured import AsSetNow
from teola_plugin.adapters.handlers import noted_by
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.models import Model
from teola_plugin.adapters.langchain.reading_parts import require_clean_schema
from teola_plugin.adapters.langchain.sending import Sending
from teola_plugin.adapters.langchain.watched import are_tokens_heard, handlers_of, may_refuse
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.reader import chat, foreign
from teola_plugin.adapters.reader.asking import Request, Round
from teola_plugin.adapters.reader.construction import DEFINE_OUTSIDE
from teola_plugin.adapters.reader.exchange import MARK, Exchange
from teola_plugin.adapters.reader.made_classes import is_made_by_reader, likeness
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, type_name, unknown_id
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.errors import TeolaError
from teola_plugin.request_identity import request_key
from teola_plugin.value_keys import Same, is_comparable, value_key

_REFUSED = (TypeError, ValueError, NotImplementedError, TeolaError)
"""Errors of our models for unsupported arguments."""

_SAFE = ("text",)

_PLAIN_ONLY = f"{DEFINE_OUTSIDE}: only whole chat completions of OpenAI's with plain fields are read"


class Sent(NamedTuple):
    """The request of a model, and whether the client certainly sends it."""

    request: Request
    is_certainly: bool


class Settings:
    """The settings of models, looked up once for all evaluations of a call. A predicted call checks them again.

    `prompted`: the requests of models behind templates, by the texts that the template gets.
    `are_tokens_heard`: whether the program has a handler hear the tokens of models, somewhere.
    """

    are_tokens_heard = False

    def __init__(self) -> None:
        self._cache = get_llm_cache()
        self._known: dict[int, AsSetNow] = {}
        self._is_shared: dict[type, bool] = {}
        self._verdicts: dict[tuple[Callable[[Any], bool], int], tuple[Any, bool]] = {}
        self._readable: dict[int, Model] = {}
        self.sending = Sending()
        self.heard: set[Hashable] = set()
        self.prompted: dict[Hashable, Sent] = {}
        self._sent: dict[Hashable, Sent] = {}
        self._hearing: dict[int, Any] = {}

    def require_same_cache(self) -> None:
        """Require that no other response cache is in use than as the call began. Raises: Barrier."""
        if get_llm_cache() is not self._cache:
            raise Barrier("another response cache is set")

    def holds(self, condition: Callable[[Any], bool], component: Any) -> bool:
        """Return whether a condition holds for a component, looked up once."""
        key = condition, id(component)
        if key not in self._verdicts:
            self._verdicts[key] = component, condition(component)
        return self._verdicts[key][1]

    def require_readable(self, model: Model) -> None:
        """Raises: Barrier if a call of the model may do more than request one reply."""
        if self._readable.get(id(model)) is not model:
            require_readable(model)
            self._readable[id(model)] = model

    def note_heard(self, model: Model, context: Context) -> None:
        """Note that objects held by handlers of the model, and of the call, may change from here on."""
        if id(model) not in self._hearing:
            self._hearing[id(model)] = model
            config = context.get(var_child_runnable_config) or {}
            handlers = [*handlers_of(vars(model).get("callbacks")), *handlers_of(config.get("callbacks"))]
            self.heard.update(noted_by(handlers))

    def sent(self, model: Model, given: Any, more: dict[str, Any], way: Way) -> Sent:
        """Return the request of a call of a model, made once for equal arguments. Raises: Barrier."""
        key = Same(model), way.is_async, value_key((given, more))
        if key not in self._sent:
            self._sent[key] = self._made(model, given, more, way)
        return self._sent[key]

    def _made(self, model: Model, given: Any, more: dict[str, Any], way: Way) -> Sent:
        prompt = outcome(lambda: model._convert_input(given))
        if models.is_ours(model):
            return Sent(_ours(model, prompt, more, way.source), True)
        request = _foreign(model, prompt, more, way.is_async, way.source, way.context, self.of(model))
        content = prompt.to_messages() if isinstance(model, BaseChatModel) else [prompt.to_string()]
        return Sent(request, self.sending.is_sent(model, content, more))

    def of(self, model: Model) -> AsSetNow:
        """Return the model with its settings. Raises: Barrier if the framework's run may be in an unshared call."""
        known = self._known.get(id(model))
        cls = type(model)
        if cls not in self._is_shared:
            self._is_shared[cls] = models.instrument_model(cls)
        if not self._is_shared[cls]:
            raise Barrier(f"calls of {type_name(cls)} were not shared yet when the pipeline's call began")
        if known is None or known.model is not model:
            known = self._known[id(model)] = models.as_set_now(model)
        return known


@dataclass(frozen=True)
class Way:
    """The mode of a component's run: bound arguments, async or not, one of several inputs of a batch or not.

    `source`: the call that the program made. `context`: the caller's. `is_configured`: a config may choose among
    alternatives. `noted`: gets the request that a model is asked. `configurable`: the dict under this key in the config
    that the program gave, None if not known.
    """

    source: Round
    context: Context
    settings: Settings
    is_async: bool = False
    is_batch: bool = False
    is_configured: bool = True
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    noted: list[Sent] | None = None
    configurable: dict[Any, Any] | None = None


def ask_model(run: Run, model: Model, value: Any, way: Way) -> Any:
    """Request the reply of a model and return the reply. Raises: Barrier."""
    source = way.source
    kwargs = {name: _class_or(held) for name, held in way.kwargs.items() if name not in models.NOT_ASKED}
    way.settings.require_readable(model)
    run.require_as_set_before(model)
    way.settings.require_same_cache()
    way.settings.note_heard(model, way.context)
    run.heard = way.settings.heard
    if id(model) in run.heard:
        raise Barrier(f"a callback handler may set what {type_name(type(model))} asks")
    if models.collects_chunks(model) and (way.settings.are_tokens_heard or are_tokens_heard(way.context)):
        raise Barrier(f"a handler hears the tokens of {type_name(type(model))}")
    _require_readable_arguments(model, kwargs)
    is_chat = isinstance(model, BaseChatModel)
    exchange = Exchange(run)
    try:
        given, more = exchange.out(value), _out(exchange, kwargs)
    except Undecided:
        is_prompt = type(value) is Unknown and (value.holds in _SAFE or foreign.is_class(value.holds))
        is_safe = (is_prompt or chat.is_chat(run, value)) and _are_known(exchange, kwargs)
        more_sources = frozenset([source])
        return unknown_from(run, [value, dict(kwargs)], _holds(is_chat), is_safe=is_safe, more=more_sources)
    if exchange.has_made_classes:  # the framework's run hands on objects of the program's own class
        raise Barrier("it hands an object of a class that is made in the function to a model", DEFINE_OUTSIDE)
    sent = way.settings.sent(model, given, more, way)
    if way.noted is not None:
        way.noted.append(sent)
    return ask_again(run, sent, way)


def ask_again(run: Run, sent: Sent, way: Way) -> Any:
    """Return the reply to a request that was made before for an equal call."""
    try:
        return run.ask(replace(sent.request, source=way.source))
    finally:
        if not sent.is_certainly:
            run.raises()


def _out(exchange: Exchange, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model; classes are passed on."""
    return {name: held if foreign.is_class(held) else exchange.out(held) for name, held in kwargs.items()}


def _are_known(exchange: Exchange, kwargs: Mapping[str, Any]) -> bool:
    try:
        _out(exchange, kwargs)
    except Undecided:
        return False
    return True


def _class_or(value: Any) -> Any:
    """Return the class held by the reader's value; any other value unchanged."""
    return value.held if type(value) is Opaque and foreign.is_class(value.held) else value


def _holds(is_chat: bool) -> str:
    return "message" if is_chat else "text"


def require_readable(model: Any) -> None:
    """Raises: Barrier if a call of the model may do more than request one reply."""
    name = type_name(type(model))
    if may_refuse(vars(model).get("callbacks")):
        raise Barrier(f"a callback of {name} may refuse")
    if vars(model).get("rate_limiter") is not None:
        raise Barrier(f"{name} has a rate limiter")
    if vars(model).get("cache") or (vars(model).get("cache") is None and get_llm_cache() is not None):
        raise Barrier(f"the replies of {name} are cached")
    if not models.is_ours(model) and not models.is_stateless(model):
        raise Barrier(f"it asks {name}", "declare its class with teola_plugin.pure if a call leaves nothing behind")
    if models.is_streamed(model):
        raise Barrier(f"the replies of {name} are streamed")


def _require_readable_arguments(model: Any, kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("stream"):
        raise Barrier(f"the replies of {type_name(type(model))} are streamed")
    for each in kwargs.values():
        if foreign.is_class(each):
            require_clean_schema(each)
            if is_made_by_reader(each) and not (models.schema_of(model, kwargs) is each and likeness(each)):
                raise Barrier("it asks for an object of a class that is made in the function", _PLAIN_ONLY)


def _ours(model: Any, prompt: Any, kwargs: dict[str, Any], source: Any) -> Request:
    is_chat = isinstance(model, BaseChatModel)
    content = models.normalized(prompt.to_messages()) if is_chat else prompt.to_string()
    try:
        payload, settings = outcome(lambda: model.request_for(content, **kwargs))
    except _REFUSED as e:
        raise Barrier(f"{type_name(type(model))} refuses what it is asked: {type(e).__name__}") from e
    if MARK in payload:
        raise Barrier(f"{type_name(type(model))} is told a random id")

    def value(reply: Any) -> Any:
        if not is_chat:
            return str(reply)
        message = outcome(lambda: model.invoke(prompt, **kwargs), decoding=[reply])
        return _as_seen(message, is_id_made_up=True, are_calls_made_up=True)

    return _request(model, model.spec, payload, settings, value, is_async=False, source=source)


def _foreign(
    model: Any, prompt: Any, kwargs: dict[str, Any], is_async: bool, source: Any, context: Context, now: AsSetNow
) -> Request:
    is_chat = isinstance(model, BaseChatModel)
    content = prompt.to_messages() if is_chat else [prompt.to_string()]
    if any(_is_mark(message.id) for message in content if isinstance(message, BaseMessage)):
        if plain_class(model).__module__.split(".")[0] not in models.ASKED_WITHOUT_IDS:
            raise Barrier(f"{type_name(type(model))} is told the random id of a message")
        content = [_without_mark(message) for message in content]
    payload = models.foreign_call(model, content, is_async, kwargs, context, now)

    def value(reply: Any) -> Any:
        raw = reply.own_raw()
        if not is_chat:
            return str(raw.generations[0][0].text)
        told = raw.chunks if isinstance(raw, models.Chunks) else raw.generations[:1]
        is_made_up = all(each.message.id is None for each in told)
        seen = _as_seen(_finished(model, raw), is_id_made_up=is_made_up)
        return _without_object(seen) if is_made_by_reader(kwargs.get(models.SCHEMA)) else seen

    return _request(model, models.spec_of(model), payload, {}, value, is_async=is_async, source=source)


def _request(
    model: Any, spec: Any, payload: Any, settings: Mapping[str, Any], value: Callable[[Any], Any], *, is_async: bool,
    source: Any,
) -> Request:  # fmt: skip
    key = request_key(spec, "decoding", payload, settings)
    if not is_comparable(key):
        raise Barrier(f"what {type_name(type(model))} is asked cannot be compared with another request")
    holds = _holds(isinstance(model, BaseChatModel))
    return Request(
        key, spec, "decoding", payload, settings, value, holds, False, source, spec.name or type_name(type(model)),
        None, is_async,
    )  # fmt: skip


def _finished(model: Any, raw: Any) -> AIMessage:
    """Return the message that `invoke` makes of the result of `_generate`, or of the chunks of `_stream`."""
    double = copy.copy(model)
    if isinstance(raw, models.Chunks):
        given = {
            "_stream": lambda messages, stop=None, **kwargs: iter(raw.chunks),
            "_should_stream": lambda **kwargs: True,
        }
    else:
        given = {"_generate": lambda messages, stop=None, **kwargs: raw}
    vars(double).update(callbacks=None, cache=False, **given)
    return outcome(lambda: double.invoke(""))  # type: ignore[no-any-return]


def _as_seen(message: AIMessage, *, is_id_made_up: bool, are_calls_made_up: bool = False) -> AIMessage:
    """Return the message as the program sees it; ids invented at random in each run are unknown."""
    fields = vars(message)
    if is_id_made_up:
        fields["id"] = unknown_id()
    if are_calls_made_up:
        for name in ("tool_calls", "invalid_tool_calls"):
            fields[name] = [{**call, "id": unknown_id()} for call in fields.get(name, ())]
    return message


def _without_object(message: AIMessage) -> AIMessage:
    """Return the message with an unknown object of a class made in a function: later readings have another class."""
    more = message.additional_kwargs
    if more.get("parsed") is not None:
        vars(message)["additional_kwargs"] = {**more, "parsed": Unknown()}
    return message


def _is_mark(text: Any) -> bool:
    return type(text) is str and text.startswith(MARK)


def _without_mark(message: BaseMessage) -> BaseMessage:
    return message.model_copy(update={"id": None}) if _is_mark(message.id) else message


_numbers = itertools.count()


def round_of(kind: Hashable) -> Round:
    """Return another call of a component. `kind`: what tells the component from others; see `Builder.kind_of`."""
    return Round(kind, next(_numbers))


def one_of_many(way: Way, component: Any) -> Way:
    """Return the mode for one of the independent items that another component hands to `component`."""
    return replace(way, source=Round((way.source.component, Same(component)), next(_numbers)), is_batch=True)
