"""The pipeline's own models: the models that may run ahead, and the interception of foreign models.

Our models (`EngineLLM`) ask the session themselves. OpenAI and OpenAILike are intercepted at their raw methods, below
LlamaIndex's events, and only within a call of an optimized pipeline. A raw stream is left alone: its chunks are the
server's own.

    llm._chat(messages)  --claim-->  slot (model, "_chat", messages, arguments)  <--Foreign--  run-ahead

A call from a coroutine goes through `_achat`, on the caller's loop, where the model's client lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from llama_index.core.llms import ChatResponse
from llama_index.core.llms.structured_llm import StructuredLLM

from teola_plugin.adapters.clients import are_own_clients, send_alone
from teola_plugin.adapters.configured import AsSetNow, resource_of
from teola_plugin.adapters.early import is_harmless
from teola_plugin.adapters.interception import Met, intercept, sharing
from teola_plugin.adapters.leaf import is_stock_of, plain_class
from teola_plugin.adapters.llamaindex.listeners import may_refuse
from teola_plugin.adapters.methods import without_replacements
from teola_plugin.adapters.reader.foreign import MISSING, in_mro
from teola_plugin.adapters.rehearsal import end_rehearsal, is_rehearsing
from teola_plugin.adapters.service import hold_retries, service_of
from teola_plugin.effects import declared_effects
from teola_plugin.engines import Completion, EngineSpec, Foreign
from teola_plugin.seams import Session, active, current
from teola_plugin.value_keys import value_key

T = TypeVar("T")

SYNC = ("_chat", "_complete")
ASYNC = ("_achat", "_acomplete")
STREAMS = ("_stream_chat", "_stream_complete")


def is_model(llm: Any) -> bool:
    """Whether a model's requests are predictable: ours or an intercepted model, without limiter and without parser.

    A rehearsal calls the model's prompt functions once more, so these must be harmless.
    """
    if isinstance(llm, StructuredLLM) or getattr(llm, "output_parser", None) or getattr(llm, "rate_limiter", None):
        return False
    if may_refuse(llm):
        return False
    functions = [getattr(llm, name, None) for name in ("messages_to_prompt", "completion_to_prompt")]
    if not all(is_harmless(f) for f in functions if f is not None):
        return False
    return is_ours(llm) or is_foreign(llm)


def is_structured(llm: Any) -> bool:
    """Whether a model is LlamaIndex's own `StructuredLLM`, which asks the model inside for objects of a class."""
    if type(llm) is not StructuredLLM or any(getattr(llm, each, None) for each in ("output_parser", "rate_limiter")):
        return False
    return not may_refuse(llm) and is_as_published(llm) and is_model(llm.llm)


def is_ours(component: Any) -> bool:
    """Whether the component is a model on an engine of ours, which only asks the session."""
    return isinstance(getattr(component, "spec", None), EngineSpec) and _is_known(component, "teola_plugin.models")


def is_foreign(llm: Any) -> bool:
    """Whether the model is intercepted at its raw methods, and runs no user code."""
    methods = [getattr(type(llm), name, None) for name in (*SYNC, *ASYNC, *STREAMS)]
    is_met = all(hasattr(method, "__teola_original__") for method in methods)
    return is_met and _is_known(llm, "llama_index") and (bool(declared_effects(type(llm))) or is_as_published(llm))


_CALLED = (
    "complete", "acomplete", "chat", "achat", "predict", "apredict", "structured_predict", "astructured_predict",
)  # fmt: skip
"""Methods that ask a model."""


_HTTP_CLIENTS = ("_http_client", "_async_http_client", "http_client", "async_http_client")
_CLIENTS = ("_client", "_aclient", *_HTTP_CLIENTS)


def is_as_published(model: Any, called: Sequence[str] = _CALLED) -> bool:
    """Whether a call runs no user code: no replaced method, no foreign client, no hooks."""
    if not send_alone(getattr(model, name, None) for name in _HTTP_CLIENTS):
        return False
    if not are_own_clients(each for name in _CLIENTS if (each := getattr(model, name, None)) is not None):
        return False
    return all(is_of_package(in_mro(type(model), name)) for name in called)


def is_of_package(method: Any) -> bool:
    """Whether the method is LlamaIndex's, possibly decorated by its instrumentation or by our interception."""
    wrappers = sys.modules.get("wrapt")
    method = without_replacements(method)
    if wrappers is not None and type(method) is wrappers.FunctionWrapper:
        return is_of_package(method._self_wrapper) and is_of_package(method.__wrapped__)
    if type(method) is not types.FunctionType:
        return method is MISSING
    return method.__globals__.get("__name__", "").split(".")[0] in _PACKAGES


_PACKAGES = ("llama_index", "llama_index_instrumentation")


def _is_known(component: Any, package: str) -> bool:
    """Whether the class is stock or declared pure: a user's subclass may write a log, count costs, ..."""
    declared = declared_effects(type(component))
    return declared.pure if declared else is_stock_of(component, package)


def install() -> None:
    """Instrument the foreign models whose packages are installed. Idempotent."""
    try:
        from llama_index.llms.openai import OpenAI  # OpenAILike is a subclass
    except ImportError:
        return
    hold_retries()
    for method in (*SYNC, *ASYNC, *STREAMS):
        _originals.setdefault(method, getattr(OpenAI, method))
    _SHARED.replace(OpenAI, *SYNC, coroutines=ASYNC)
    for method in STREAMS:
        intercept(OpenAI, method, _stream_seam(method))


_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Request:
    """A call of a model's raw method, which runs ahead only while the model keeps the settings of `now`."""

    llm: Any
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    now: AsSetNow

    @classmethod
    def met(cls, session: Session, llm: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Request:
        """Return an intercepted call; if early, with copied arguments, which the user may change meanwhile."""
        if session.is_unheard:
            args, kwargs = copy.deepcopy((args, kwargs))
        return cls(llm, method, args, kwargs, as_set_now(llm))

    @property
    def spec(self) -> EngineSpec:
        return spec_of(self.llm, self.now)

    @property
    def payload(self) -> Foreign:
        key = self.now.key(value_key((self.method, self.args, self.kwargs)))
        return Foreign(key, self, is_async=self.method in ASYNC)

    def __call__(self) -> Any:
        """Return the model's answer as a `Completion`, or a coroutine. Inside, the model runs without our session."""
        call = partial(_originals[self.method], self.llm, *self.args, **self.kwargs)
        if self.method in ASYNC:
            return self._arun(call)
        if self.now.is_known_by_settings:
            with contextlib.suppress(Exception), _making:  # the call raises the same
                self.llm._get_client()  # threads that ask at the same time would each make one
        with active(None):
            return _completion(self.now.call(call))

    async def _arun(self, call: Callable[[], Awaitable[Any]]) -> Completion:
        with active(None):
            return _completion(await self.now.acall(call))


def from_coroutine(payload: Any) -> Any:
    """Return the payload in the form of a coroutine's request; payloads of our models are the same in both forms."""
    if not isinstance(payload, Foreign) or payload.is_async or is_stream(payload):
        return payload
    request = payload.call
    assert isinstance(request, _Request)
    return replace(request, method=f"_a{request.method[1:]}").payload


def is_stream(payload: Any) -> bool:
    """Whether the payload is a raw stream, which does not run ahead."""
    return isinstance(payload, Foreign) and isinstance(payload.call, _Request) and payload.call.method in STREAMS


_is_beside_loops: ContextVar[bool] = ContextVar("teola_beside_loops", default=False)


def beside_loops(act: Callable[[], T]) -> T:
    """Return the result of a function that runs coroutines on an event loop of its own, beside the caller's.

    A model's asynchronous client belongs to one event loop, so models are asked by their synchronous clients.
    """
    token = _is_beside_loops.set(True)
    try:
        return act()
    finally:
        _is_beside_loops.reset(token)


def has_clients_alike(llm: Any) -> bool:
    """Whether both clients of an intercepted model are those that LlamaIndex makes of its fields."""
    published = vars(sys.modules.get("llama_index.llms.openai", types)).get("OpenAI")
    makers = ("_get_client", "_get_aclient", "_get_credential_kwargs")
    if published is None or not isinstance(llm, published):
        return False
    if any(in_mro(type(llm), name) is not in_mro(published, name) or name in vars(llm) for name in makers):
        return False
    given = llm._get_credential_kwargs()
    if llm._http_client is not None or llm._async_http_client is not None:
        return False
    return all(client is None or _is_made_of(given, client) for client in (llm._client, llm._aclient))


def _is_known_by_settings(llm: Any) -> bool:
    """Whether models with equal settings make equal requests: LlamaIndex's own class, with clients of its own."""
    cls = plain_class(llm)
    is_its_own = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
    return is_its_own and cls.__module__.startswith("llama_index.") and has_clients_alike(llm)


def as_set_now(llm: Any) -> AsSetNow:
    """Return the model with its settings, and whether the settings alone identify the model."""
    return AsSetNow.of(llm, is_known_by_settings=_is_known_by_settings(llm))


def spec_of(llm: Any, now: AsSetNow | None = None) -> EngineSpec:
    """Return the engine of a foreign model. Models known by settings share an engine. `now`: the settings, if known."""
    now = now or as_set_now(llm)
    resource = resource_of(llm, lambda: now.configured) if now.is_known_by_settings else llm
    return EngineSpec("python", resource, "llm", service_of(llm))


def _is_made_of(given: dict[str, Any], client: Any) -> bool:
    sdk = sys.modules["openai"]
    wrapper = type(client._client).__name__  # the SDK's own, unless the user gave another
    return (
        type(client) in (sdk.OpenAI, sdk.AsyncOpenAI)
        and wrapper in ("SyncHttpxClientWrapper", "AsyncHttpxClientWrapper")
        and client.api_key == given["api_key"]
        and str(client.base_url).rstrip("/") == str(given["base_url"]).rstrip("/")
        and (client.max_retries, client.timeout) == (given["max_retries"], given["timeout"])
        and dict(client._custom_headers) == (given["default_headers"] or {})
        and not client._custom_query
        and client.organization == os.environ.get("OPENAI_ORG_ID")
        and client.project == os.environ.get("OPENAI_PROJECT_ID")
    )


def _completion(response: Any) -> Completion:
    text = response.message.content if isinstance(response, ChatResponse) else response.text
    return Completion(text or "", raw=response)


def _foreseen(request: _Request, answer: str) -> Any:
    """Return the reply of a rehearsal in the framework's own form."""
    from llama_index.core.base.llms.types import ChatMessage, CompletionResponse

    if request.method.endswith("chat"):
        return ChatResponse(message=ChatMessage(role="assistant", content=answer), delta=answer)
    return CompletionResponse(text=answer, delta=answer)


def _raw(request: _Request, value: Completion) -> Any:
    return _foreseen(request, str(value)) if value.raw is None else value.own_raw()


_originals: dict[str, Callable[..., Any]] = {}
"""The raw methods of LlamaIndex's model, possibly wrapped by other code since."""


@dataclass(frozen=True, slots=True)
class _Answer(Met):
    """An intercepted call, made to the model itself, without our session."""

    request: _Request

    def asking(self) -> contextlib.AbstractContextManager[Any]:
        """See `Met.asking`."""
        return active(None)

    async def awaited(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """See `Met.awaited`."""
        if not _is_beside_loops.get():
            return await call()
        request = self.request
        original = _originals[f"_{request.method.removeprefix('_a')}"]
        return await asyncio.to_thread(original, request.llm, *request.args, **request.kwargs)

    def reply(self, value: Any) -> Completion:
        """See `Met.reply`."""
        self.request.now.note()
        return _completion(value)

    def taken(self, value: Completion) -> Any:
        """See `Met.taken`."""
        return _raw(self.request, value)


def _meet(
    session: Session, original: Callable[..., Any], llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    is_async: bool,
) -> _Answer | None:  # fmt: skip
    if getattr(llm, "rate_limiter", None) is not None:
        end_rehearsal()
        return None
    request = _Request.met(session, llm, original.__name__, args, kwargs)
    return _Answer(session.claim(request.spec, "decoding", request.payload, {}), request)


_SHARED = sharing(_meet)


def _stream_seam(method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper: a stream is the model's own, but where callbacks are muted the model is not called."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def seam(self: Any, *args: Any, **kwargs: Any) -> Any:
            session = current()
            if session is None or not session.is_unheard:
                return original(self, *args, **kwargs)
            if not is_rehearsing():
                raise LookupError("a stream of a model elsewhere is asked for by the framework's own run alone")
            request = _Request.met(session, self, method, args, kwargs)
            reply, _ = session.claim(request.spec, "decoding", request.payload, {})
            return iter([_foreseen(request, str(reply.result()))])

        return seam

    return wrapper
