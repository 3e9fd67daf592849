"""Handlers and early requests: which handlers have replies streamed, and which may refuse a request.

A chat model calls `_stream` in place of `_generate` where a handler wants tokens or events, though the call asked for a
whole reply: a handler of the call (`astream_events`, LangGraph's stream modes "messages" and "tools"), of a binding, of
the model itself, or of the context. Such a reply is never requested early. A model with `streaming=True` uses `_stream`
in each call: its chunks are requested early where no handler wants each token as it comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextvars import Context, ContextVar
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler, _V2StreamingCallbackHandler
from langchain_core.tracers.context import _configure_hooks
from langchain_core.tracers.core import _TracerCore

from teola_plugin.adapters.clients import told_of_requests
from teola_plugin.adapters.handlers import may_interfere, noted_by


def is_watched(config: Mapping[str, Any]) -> bool:
    """Whether a handler of this config, or of the context, turns every model's reply into a stream."""
    hooked = [variable.get() for variable, *_ in _configure_hooks]
    return wants_streams(config.get("callbacks")) or wants_streams(hooked)


def wants_streams(callbacks: Any) -> bool:
    """Whether a handler among these callbacks (a list or a manager) wants streams."""
    wanting = (_StreamingCallbackHandler, _V2StreamingCallbackHandler)
    return any(handler is not None and isinstance(handler, wanting) for handler in handlers_of(callbacks))


_is_heard: ContextVar[bool] = ContextVar("teola_tokens_are_heard", default=False)


@contextlib.contextmanager
def tokens_heard(configs: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    """Note in the context whether a handler of these configs hears tokens: the call's config is not in the context."""
    token = _is_heard.set(any(hears_tokens(config.get("callbacks")) for config in configs))
    try:
        yield
    finally:
        _is_heard.reset(token)


def are_tokens_heard(context: Context) -> bool:
    """Whether a handler of the call, or of the context, wants the tokens of a model as they come."""
    config = context.get(var_child_runnable_config) or {}
    hooked = [context.get(variable) for variable, *_ in _configure_hooks]
    return context.get(_is_heard, False) or hears_tokens(config.get("callbacks")) or hears_tokens(hooked)


def hears_tokens(callbacks: Any) -> bool:
    """Whether a handler among these callbacks does something for each token of a model; tracers only note tokens."""
    return any(map(_hears_tokens, handlers_of(callbacks)))


def _hears_tokens(handler: Any) -> bool:
    cls = type(handler)
    if isinstance(handler, _TracerCore) and cls.__module__.split(".")[0] in ("langchain_core", "langsmith"):
        return False
    hears = next((vars(each)["on_llm_new_token"] for each in cls.__mro__ if "on_llm_new_token" in vars(each)), None)
    return hears not in (None, BaseCallbackHandler.on_llm_new_token, AsyncCallbackHandler.on_llm_new_token)


def may_refuse(callbacks: Any) -> bool:
    """Whether a handler among these callbacks may end the run by raising, or change a request.

    Then no request is certain before the handler has let it pass.
    """
    handlers = handlers_of(callbacks)
    # LangChain raises an AttributeError for what is no handler
    refuses = any(handler is not None and getattr(handler, "raise_error", True) for handler in handlers)
    return refuses or may_interfere(handlers, ("on_",), may_raise=False)


def is_refusable(config: Mapping[str, Any]) -> bool:
    """Whether a handler of this config, or of the context, `may_refuse`."""
    return may_refuse(config.get("callbacks")) or may_refuse([variable.get() for variable, *_ in _configure_hooks])


def heard_by(configs: Iterable[Mapping[str, Any]]) -> frozenset[Hashable]:
    """Return the ids of objects that handlers of configs, context or logging may change (see `handlers.noted_by`)."""
    hooked = (variable.get() for variable, *_ in _configure_hooks)
    handlers = [*(each for config in configs for each in handlers_of(config.get("callbacks"))), *filter(None, hooked)]
    return frozenset(noted_by([*handlers, *told_of_requests()]))


def handlers_of(callbacks: Any) -> list[Any]:
    """Return the handlers among callbacks: a list, or a manager."""
    if isinstance(callbacks, list):
        return callbacks
    return [*getattr(callbacks, "handlers", ()), *getattr(callbacks, "inheritable_handlers", ())]
