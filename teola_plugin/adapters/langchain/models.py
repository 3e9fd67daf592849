"""Language models: our own, which run on our engines, and foreign models.

*Our* models (`EngineChatModel`, `EngineLLM`; known by `spec` and `request_for`) are a prefill in pieces and a decoding.

*Foreign* models are early calls of the user's own model object, `_generate` or `_agenerate`. The framework gets the
reply on reaching the same method with the same messages. Only models known to keep no state between calls qualify:
models of hosted services, and classes that the user declared `pure`. A user's subclass is neither ours nor hosted until
declared. Models with a response cache or a rate limiter stay with the framework, which must not be bypassed. So does
every reply that is read as a stream: it differs from a whole reply, and its reader wants the tokens as they come. A
hosted model with `streaming=True` makes a whole reply of a stream in each call: the chunks are requested early, and
LangChain makes the reply of the same chunks.

Where the user allows (`optimize(..., stream_lists=True)`), an early call uses `_stream` or `_astream` instead for a
list whose items are used separately. LangChain makes the whole reply of the chunks, as LangChain itself does where a
handler wants to see tokens.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, Generation, LLMResult
from langchain_core.prompt_values import PromptValue

from teola_plugin.adapters.clients import are_own_clients, send_alone
from teola_plugin.adapters.configured import AsSetNow, resource_of
from teola_plugin.adapters.interception import Alone, Met, around, intercept, sharing
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.prompts import cut, maker
from teola_plugin.adapters.langchain.quiet import aapart, apart
from teola_plugin.adapters.langchain.templates import runs_code
from teola_plugin.adapters.langchain.values import Prompt, Symbol, Untraceable, Value
from teola_plugin.adapters.langchain.watched import are_tokens_heard, hears_tokens, may_refuse, wants_streams
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.methods import is_shared, without_replacements
from teola_plugin.adapters.plain import is_unchanging
from teola_plugin.adapters.reader.foreign import MISSING, in_mro
from teola_plugin.adapters.reader.made_classes import is_made_in_function, likeness
from teola_plugin.adapters.service import hold_retries, service_of
from teola_plugin.effects import ASSUMED, assuming, declared_effects
from teola_plugin.engines import Completion, EngineSpec, Foreign
from teola_plugin.errors import GraphError, TeolaError
from teola_plugin.graph import OUTSIDE
from teola_plugin.graph_builder import unique
from teola_plugin.seams import Session, current, is_unheard
from teola_plugin.value_keys import Same, is_comparable, snapshot, value_key

HOSTED = frozenset(
    [
        "langchain_openai",
        "langchain_anthropic",
        "langchain_groq",
        "langchain_cohere",
        "langchain_together",
        "langchain_deepseek",
        "langchain_xai",
        "langchain_google_genai",
        "langchain_perplexity",
    ]
)
"""Packages whose models are clients of a server: a call leaves nothing behind in the object, and reports no callback
events beside the framework's. Left out are packages whose calls report to a run manager, absent in early calls:
langchain_ollama (each token, also of a whole reply), langchain_mistralai, langchain_fireworks and
langchain_google_vertexai (retries), langchain_aws (guardrails), langchain_nvidia_ai_endpoints (tokens used).
"""

KNOWN_BY_SETTINGS = frozenset({"langchain_openai", "langchain_deepseek", "langchain_xai"})
"""Packages whose models hold their clients in fields, made from other fields."""

ASKED_WITHOUT_IDS = frozenset({"langchain_openai"})
"""Packages whose own models send no message `id`. LangChain invents a new one in each run."""

NOT_ASKED = ("ls_structured_output_format", "structured_output_format")
"""Arguments of a chat model for LangChain's tracers only; no model gets them."""

CALLS_TOOLS = "TB114"

Model = BaseChatModel | BaseLLM


def trace_model(
    draft: Draft, model: Model, given: Symbol, kwargs: Mapping[str, Any], name: str, streams: bool
) -> Value:
    """Return the reply of a model. `streams`: streamed calls of the pipeline stream the model. Raises: Untraceable."""
    if getattr(model, "rate_limiter", None) is not None:
        raise Untraceable("TB103", "it has a rate limiter")
    if may_refuse(model.callbacks):
        raise Untraceable("TB103", "one of its callbacks may refuse")
    if model.cache or (model.cache is None and get_llm_cache() is not None):
        raise Untraceable("TB103", "its replies are cached")
    if is_ours(model):
        return _trace_ours(draft, model, given, kwargs, name)
    return _trace_foreign(draft, model, given, kwargs, name, streams)


# --- ours ------------------------------------------------------------------------------------------------------------


def is_ours(model: Model) -> bool:
    """Whether a call of the model is exactly a decoding on an engine."""
    has_request = hasattr(model, "request_for") and isinstance(getattr(model, "spec", None), EngineSpec)
    declared = declared_effects(type(model))
    return has_request and (declared.pure if declared else type(model).__module__.startswith("teola_plugin."))


def _trace_ours(draft: Draft, model: Any, given: Symbol, kwargs: Mapping[str, Any], name: str) -> Value:
    is_chat = isinstance(model, BaseChatModel)
    kwargs = {k: v for k, v in kwargs.items() if k not in NOT_ASKED}

    def request(prompt: PromptValue) -> tuple[str, Mapping[str, Any]]:
        asked: tuple[str, Mapping[str, Any]] = model.request_for(
            prompt.to_messages() if is_chat else prompt.to_string(), **kwargs
        )
        return asked

    try:
        _, settings = request(model._convert_input("?"))
        pieces = cut(draft, given, lambda prompt: request(prompt)[0])
    except (TypeError, ValueError, NotImplementedError, TeolaError) as e:  # the model refuses
        raise Untraceable("TB110", str(e)) from e
    if pieces is None:
        make, args = maker(draft, given, model._convert_input)
        text = draft.call(
            "prompt", "prompt", lambda *a: request(make(*a))[0], *args, is_glue=not _runs_code(given), holds="text"
        )
        pieces = [text]
    engine = model.spec.name or "llm"
    kv = draft.ask(_kv(name), "prefilling", model.spec, *pieces, engine=engine)
    may_call = bool(kwargs.get("tools"))
    try:
        text = draft.ask(
            "text" if may_call else name or "text",
            "decoding",
            model.spec,
            kv,
            settings=settings,
            engine=engine,
            holds="message" if is_chat else "text",
        )
    except GraphError as e:
        raise Untraceable("TB110", str(e)) from e
    if not may_call:
        return text
    draft.leave(CALLS_TOOLS, model, f"{type(model).__name__}, with tools")
    return draft.await_run(name or "reply", model, type(model).__name__, [text], None, is_pure=True)


def _kv(name: str) -> str:
    return "kv" if name in ("", "answer") else f"{name}_kv"


# --- foreign ---------------------------------------------------------------------------------------------------------


def _trace_foreign(
    draft: Draft, model: Model, given: Symbol, kwargs: Mapping[str, Any], name: str, streams: bool
) -> Value:
    if not is_stateless(model):
        raise Untraceable(
            "TB104",
            type(model).__name__,
            "declare its class with teola_plugin.pure if a call leaves nothing behind in it",
        )
    if is_streamed(model) or kwargs.get("stream"):
        raise Untraceable("TB103", "its replies are streamed")
    if is_vouched_for := declared_effects(type(model)) is ASSUMED:
        draft.origin += ", assumed pure"
    is_chat = isinstance(model, BaseChatModel)
    if draft.level and not is_chat:
        raise Untraceable("TB103", "a map asks it for all prompts in one call")
    instrument_model(type(model))
    make, args = maker(draft, given, model._convert_input)
    mode = draft.bindings.mode()
    may_be_stale = draft.is_behind_effects
    are_messages = any(arg.holds == "message" for arg in args)

    def is_stale(_: Entered, *values: Any) -> bool:
        return are_messages or not all(map(is_unchanging, values))

    def payload(entered: Entered, *values: Any) -> Foreign:
        if may_be_stale and is_stale(entered, *values):
            raise LookupError("an effect before it may have changed, in place, what it is asked")
        if not (is_vouched_for or is_stateless(model)):
            raise LookupError("its methods are no longer those of its package")
        mode = entered.mode
        is_stream = mode == "events" or (streams and mode in ("stream", "astream")) or is_streamed(model)
        if is_stream or (collects_chunks(model) and are_tokens_heard(entered.context)):
            raise LookupError("a streamed reply is computed by the framework's own run")
        if mode in ("batch", "abatch") and not is_chat:
            raise LookupError("the framework's own run asks for the replies to all inputs in one call")
        prompt = make(*values)
        content = prompt.to_messages() if is_chat else [prompt.to_string()]
        return foreign_call(model, content, mode in ("ainvoke", "abatch", "astream"), kwargs, entered.context)

    messages = draft.call(
        "messages", "messages", payload, mode, *args, is_glue=not _runs_code(given), is_total=draft.is_total(given),
        is_stale=is_stale,
    )  # fmt: skip
    spec = spec_of(model)
    kv = draft.ask(_kv(name), "prefilling", spec, messages)
    return draft.ask(name or "text", "decoding", spec, kv, reads=(OUTSIDE,), holds="message" if is_chat else "text")


def is_streamed(model: Model) -> bool:
    """Whether LangChain streams the model in every call, and somebody may want the tokens as they come."""
    is_set = bool(getattr(model, "streaming", False)) and not collects_chunks(model)
    return is_set or wants_streams(model.callbacks)


def collects_chunks(model: Model) -> bool:
    """Whether `invoke` of the model makes a whole reply of a stream (`streaming=True`) that nobody else reads."""
    is_set = getattr(model, "streaming", False) is True and isinstance(model, BaseChatModel)
    is_hosted = (
        is_set and plain_class(model).__module__.split(".")[0] in HOSTED and declared_effects(type(model)) is None
    )
    return is_hosted and getattr(model, "disable_streaming", False) is False and not hears_tokens(model.callbacks)


def _runs_code(given: Symbol) -> bool:
    return isinstance(given, Prompt) and runs_code(given.template)


def is_stateless(model: Model) -> bool:
    """Whether an early or repeated call of the model leaves nothing behind in this process."""
    declared = declared_effects(type(model))
    if declared is not None:
        return declared.pure
    return type(model).__module__.split(".")[0] in HOSTED and is_as_published(model)


_CALLED = (
    "invoke", "ainvoke", "batch", "abatch", "generate", "agenerate", "generate_prompt", "agenerate_prompt",
    "_generate_with_cache", "_agenerate_with_cache", "_generate", "_agenerate", "_convert_input", "_should_stream",
    "_stream", "_astream",
)  # fmt: skip
"""Methods used in a call of a model."""


_HTTP_CLIENTS = ("http_client", "http_async_client")
_CLIENTS = (
    "client", "async_client", "root_client", "root_async_client", "_client", "_async_client", *_HTTP_CLIENTS,
)  # fmt: skip


def is_as_published(model: Any, called: Sequence[str] = _CALLED) -> bool:
    """Whether a call runs no user code: no replaced method, no function as a key, no foreign client, no hooks."""
    held = vars(model)
    if any(isinstance(value, types.FunctionType) for value in held.values()):
        return False
    if not send_alone(held.get(name) for name in _HTTP_CLIENTS):
        return False
    if not are_own_clients(held[name] for name in _CLIENTS if held.get(name) is not None):
        return False
    cls = plain_class(model)
    return held.keys().isdisjoint(called) and _have_published(cls, called)


def is_published(component: object, called: Sequence[str]) -> bool:
    """Whether the class is its package's under its own name, and `called` are the package's methods."""
    cls = plain_class(component)
    is_its_own = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
    return is_its_own and vars(component).keys().isdisjoint(called) and _have_published(cls, called)


def _have_published(cls: type, called: Sequence[str]) -> bool:
    """Whether all methods are as `is_published_method` wants them."""
    return _are_published(cls, tuple(called), tuple(Same(_found(cls, name)) for name in called))


def _found(cls: type, name: str) -> object:
    """Return a method as a lookup finds it at present, without asking the metaclass."""
    try:
        return type.__getattribute__(cls, name)
    except AttributeError:
        return None


@functools.lru_cache(maxsize=512)
def _are_published(cls: type, called: Sequence[str], methods: Sequence[Same]) -> bool:
    """Return the verdict on `methods`, which are those of the class now: a replaced method is another key."""
    return all(is_published_method(cls, name) for name in called)


def is_published_method(cls: type, name: str) -> bool:
    """Whether the method is absent, or comes from a package of LangChain's."""
    method = without_replacements(in_mro(cls, name))
    if method is MISSING:
        return True
    return type(method) is types.FunctionType and is_of_packages(method)


def is_of_packages(function: types.FunctionType) -> bool:
    """Whether a function is from a package of LangChain's."""
    return str(function.__globals__.get("__name__", "")).split(".")[0] in _PACKAGES


_PACKAGES = HOSTED | {"langchain_core", "langchain", "langchain_classic", "langchain_community", "langchain_tavily"}


def spec_of(model: Model) -> EngineSpec:
    """Return the engine of a foreign model: a thread that calls the model. Models known by settings share an engine."""
    resource = _resource_of(model) if is_known_by_settings(model) else model
    return EngineSpec("python", resource, *named(model))


def named(model: Model) -> tuple[str, Hashable]:
    """Return the name of the model's engine, and the service."""
    shown = getattr(model, "model_name", None) or getattr(model, "model", None)
    return _engine_name(shown if isinstance(shown, str) else type(model).__name__), service_of(model)


@functools.lru_cache(maxsize=256)
def _engine_name(shown: str) -> str:
    return unique(shown, ())


def is_known_by_settings(model: Model) -> bool:
    """Whether models with equal settings make equal requests: a stock class with all its clients in fields."""
    cls = plain_class(model)
    module = sys.modules.get(cls.__module__)
    return cls.__module__.split(".")[0] in KNOWN_BY_SETTINGS and getattr(module, cls.__qualname__, None) is cls


def _resource_of(model: Model) -> object:
    return resource_of(model, lambda: as_set_now(model).configured)


def as_set_now(model: Model) -> AsSetNow:
    """Return the model with its settings, and whether the settings alone identify the model."""
    return AsSetNow.of(model, is_known_by_settings=is_known_by_settings(model))


def foreign_call(
    model: Model, content: Sequence[Any], is_async: bool, kwargs: Mapping[str, Any], context: Context,
    now: AsSetNow | None = None,
) -> Foreign:  # fmt: skip
    """Return the framework's later call: after the model's own treatment of its input, before the model.

    The call runs in the caller's context, but with the callbacks there muted: the framework's own run reports the call.
    `now`: the model's settings, where known.
    """
    stop = kwargs.get("stop")
    rest = {k: v for k, v in kwargs.items() if k not in ("stop", *NOT_ASKED)}
    if isinstance(model, BaseChatModel):
        content = normalized(content)
    content, stop, rest = copy.deepcopy(content), snapshot(stop), snapshot(rest)  # the user may change these objects
    now = now or as_set_now(model)
    if makes_chunks := collects_chunks(model):
        key = _key(now, content, stop, is_async, {**rest, CHUNKS: True})
        whole = partial(_acollected if is_async else _collected, model, content, stop, rest)
    else:
        key = _key(now, content, stop, is_async, rest)
        whole = partial(_original(model, "_agenerate" if is_async else "_generate"), model, content, stop=stop, **rest)
    pieces = partial(_astreamed if is_async else _streamed, model, content, stop, rest)

    async def acalled(call: Callable[[], Any]) -> Completion:
        return _completion(await aapart(context, partial(now.acall, call)))

    def called(call: Callable[[], Any]) -> Completion:
        return _completion(apart(context, partial(now.call, call)))

    enter: Callable[[Callable[[], Any]], Any] = acalled if is_async else called

    def stream(tell: Callable[[str], None]) -> Any:
        in_pieces = not makes_chunks and _can_stream(model, is_async, rest)
        return enter(partial(pieces, tell) if in_pieces else whole)

    return Foreign(key, lambda: enter(whole), is_async, stream=stream)


def _can_stream(model: Model, is_async: bool, kwargs: Mapping[str, Any]) -> bool:
    """Whether a stream of the model yields the same as a whole reply."""
    if any((kwargs.get(name) or getattr(model, name, None) or 1) != 1 for name in ("n", "best_of")):
        return False  # several replies to one prompt
    if is_made_in_function(kwargs.get(SCHEMA)):
        return False  # chunks of text, without the object
    if isinstance(model, BaseChatModel):
        return model._should_stream(async_api=is_async, **{**kwargs, "stream": True})
    has_own = type(model)._stream is not BaseLLM._stream
    return has_own or (is_async and type(model)._astream is not BaseLLM._astream)


def _streamed(
    model: Any, content: Sequence[Any], stop: Any, kwargs: Mapping[str, Any], tell: Callable[[str], None]
) -> ChatResult | LLMResult:
    chunks = []
    with closing(model._stream(_streamable(model, content), stop=stop, **kwargs)) as stream:
        for chunk in stream:
            chunks.append(chunk)
            if chunk.text:
                tell(chunk.text)
    return _added_up(model, chunks)


async def _astreamed(
    model: Any, content: Sequence[Any], stop: Any, kwargs: Mapping[str, Any], tell: Callable[[str], None]
) -> ChatResult | LLMResult:
    chunks = []
    async with aclosing(model._astream(_streamable(model, content), stop=stop, **kwargs)) as stream:
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.text:
                tell(chunk.text)
    return _added_up(model, chunks)


def _streamable(model: Model, content: Sequence[Any]) -> Any:
    return content if isinstance(model, BaseChatModel) else content[0]


def _added_up(model: Model, chunks: Sequence[Any]) -> ChatResult | LLMResult:
    """Return the equivalent whole reply. Raises: ValueError for an empty stream."""
    if isinstance(model, BaseChatModel):
        return generate_from_stream(iter(chunks))
    if not chunks:
        raise ValueError("the stream was empty")
    total = reduce(add, chunks)
    return LLMResult(generations=[[Generation(text=total.text, generation_info=total.generation_info)]])


CHUNKS = "teola_chunks"
"""Marks a request whose reply is chunks, among the arguments in the request's key."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The reply of a model with `streaming=True`, as the model streams the reply."""

    chunks: list[ChatGenerationChunk]


def _collected(model: Any, content: Sequence[Any], stop: Any, kwargs: Mapping[str, Any]) -> Chunks:
    return Chunks(list(_original(model, "_stream")(model, content, stop=stop, **kwargs)))


async def _acollected(model: Any, content: Sequence[Any], stop: Any, kwargs: Mapping[str, Any]) -> Chunks:
    return Chunks([each async for each in _original(model, "_astream")(model, content, stop=stop, **kwargs)])


def normalized(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages as LangChain hands them to a model."""
    from langchain_core.language_models._utils import _normalize_messages

    return _normalize_messages(messages)


def _original(model: Model, method: str) -> Callable[..., Any]:
    function = getattr(type(model), method)
    original: Callable[..., Any] = getattr(function, "__teola_original__", function)
    return original


def _key(now: AsSetNow, content: Sequence[Any], stop: Any, is_async: bool, kwargs: Mapping[str, Any]) -> Hashable:
    without = (BaseMessage, "id") if plain_class(now.model).__module__.split(".")[0] in ASKED_WITHOUT_IDS else None
    if (schema := schema_of(now.model, kwargs)) is not None:
        kwargs = {**kwargs, SCHEMA: likeness(schema) or schema}
    return now.key(value_key((list(content), stop, is_async, kwargs), without=without))


SCHEMA = "response_format"


def schema_of(model: Model, kwargs: Mapping[str, Any]) -> Any:
    """Return the model of pydantic that a whole reply of OpenAI's chat completions is validated by; None without one.

    The package gets the validated object with the reply.
    """
    schema = kwargs.get(SCHEMA)
    if not isinstance(schema, type) or not is_known_by_settings(model) or collects_chunks(model):
        return None
    of_openai: Any = model
    is_its = plain_class(model).__module__.startswith("langchain_openai.chat_models.")
    if not is_its or of_openai._use_responses_api({**of_openai._default_params, **kwargs}):
        return None
    return schema


def validate_by(schema: Any, result: ChatResult) -> ChatResult:
    """Put an object of `schema` in the place of an object of an alike model, as OpenAI's client makes such objects."""
    message = result.generations[0].message
    parsed = message.additional_kwargs.get("parsed")
    if parsed is not None and type(parsed) is not schema:
        message.additional_kwargs["parsed"] = schema.model_validate_json(message.content)
    return result


def _completion(result: ChatResult | LLMResult | Chunks) -> Completion:
    """Return the text for the plan, with `raw` for the framework: the object that the model returned."""
    if isinstance(result, Chunks):
        return Completion("".join(each.text for each in result.chunks), raw=result)
    first: Any = next(iter(result.generations), [])
    generations = first if isinstance(first, list) else [first]  # an LLM takes several prompts
    return Completion(generations[0].text if generations else "", raw=result)


def instrument_loaded() -> None:
    """Make calls of all loaded classes of hosted and declared models share early requests.

    A function may make such a model, or find one where no search does.
    """
    todo: list[type] = [BaseChatModel, BaseLLM]
    while todo:
        cls = todo.pop()
        todo += type.__subclasses__(cls)
        if cls.__module__.split(".")[0] in HOSTED or declared_effects(cls):
            instrument_model(cls)


def instrument_model(cls: type) -> bool:
    """Make calls of a foreign model's class share early requests. Returns whether they did before."""
    was_shared = is_shared(cls, "_generate")
    hold_retries()
    _SHARED.replace(cls, "_generate", coroutines=["_agenerate"])
    intercept(cls, "_should_stream", _whole_if_unheard)
    _COLLECTING.replace(cls, "_generate_with_cache", coroutines=["_agenerate_with_cache"])
    intercept(cls, "_stream", _shared_chunks)
    intercept(cls, "_astream", _ashared_chunks)
    return was_shared


def _whole_if_unheard(original: Callable[..., bool]) -> Callable[..., bool]:
    """Refuse streams of foreign models to early functions: the framework's run would request the stream once more."""

    def should_stream(self: Any, **kwargs: Any) -> bool:
        streams = original(self, **kwargs)
        if (streams or is_streamed(self) or collects_chunks(self)) and is_unheard() and not is_ours(self):
            raise LookupError("a streamed reply is computed by the framework's own run")
        return streams

    return should_stream


@dataclass(frozen=True, slots=True)
class _Completion(Met):
    """A call of a model. `now`: the model's settings. `schema`: see `schema_of`."""

    now: AsSetNow
    schema: Any = None

    def reply(self, value: Any) -> Completion:
        """See `Met.reply`."""
        self.now.note()
        return _completion(value)

    def taken(self, value: Completion) -> Any:
        """See `Met.taken`."""
        raw = value.own_raw()
        return raw if self.schema is None else validate_by(self.schema, raw)


def _meet(
    session: Session, original: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | Alone | None:  # fmt: skip
    if not args or (isinstance(model, BaseLLM) and len(args[0]) != 1):
        return None
    if is_known_by_settings(model) and (request := session.ask_alone(partial(named, model), "decoding")):
        return Alone(request, partial(_is_plain, session, model))
    if getattr(session, "is_at_rest", False):  # nothing runs ahead in this call: no reply to look for
        return None
    if not _is_plain(session, model):
        return None
    rest = {k: v for k, v in kwargs.items() if k not in ("stop", "run_manager")}
    now = as_set_now(model)
    key = _key(now, args[0], args[1] if len(args) > 1 else kwargs.get("stop"), is_async, rest)
    if not is_comparable(key):
        return None
    claimed = session.claim(spec_of(model), "decoding", Foreign(key, lambda: None, is_async), {})
    return _Completion(claimed, now, schema_of(model, rest))


# --- chunks of models with `streaming=True` --------------------------------------------------------------------------


_is_collecting: ContextVar[bool] = ContextVar("teola_collects_chunks", default=False)


def _collecting(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_async: bool
) -> AbstractContextManager[None] | None:
    """Share the chunks of a call of `_generate_with_cache` that makes a whole reply of a stream which nobody hears."""
    if current() is None or not collects_chunks(model) or hears_tokens(kwargs.get("run_manager")):
        return None
    return _collecting_chunks()


@contextmanager
def _collecting_chunks() -> Iterator[None]:
    token = _is_collecting.set(True)
    try:
        yield
    finally:
        _is_collecting.reset(token)


_COLLECTING = around(_collecting)


def _shared_chunks(original: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_collecting.get():
            return original(self, *args, **kwargs)
        _is_collecting.set(False)  # a model that this one asks makes a call of its own
        return iter(collected(self, *args, **kwargs).chunks)

    def collect(self: Any, *args: Any, **kwargs: Any) -> Chunks:
        return Chunks(list(original(self, *args, **kwargs)))

    collected = _SHARED_CHUNKS.sync(collect)
    return stream


def _ashared_chunks(original: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_collecting.get():
            return original(self, *args, **kwargs)
        _is_collecting.set(False)
        return chunks(self, *args, **kwargs)

    async def chunks(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for each in (await collected(self, *args, **kwargs)).chunks:
            yield each

    async def collect(self: Any, *args: Any, **kwargs: Any) -> Chunks:
        return Chunks([each async for each in original(self, *args, **kwargs)])

    collected = _SHARED_CHUNKS.coroutine(collect)
    return stream


def _meet_chunks(
    session: Session, original: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | Alone | None:  # fmt: skip
    return _meet(session, original, model, args, {**kwargs, CHUNKS: True}, is_async)


_SHARED_CHUNKS = sharing(_meet_chunks)


def _is_plain(session: Session, model: Model) -> bool:
    with assuming(session.assumed):
        return is_stateless(model)


_SHARED = sharing(_meet)
