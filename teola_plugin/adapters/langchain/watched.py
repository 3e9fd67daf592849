"""Handlers and early requests: which handlers have replies streamed, and which may refuse a request.

A chat model calls `_stream` in place of `_generate` where a handler wants tokens or events, though the call asked for a
whole reply: a handler of the call (`astream_events`, LangGraph's stream modes "messages" and "tools"), of a binding, of
the model itself, or of the context. A streamed reply is never requested early.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from langchain_core.tracers._streaming import _StreamingCallbackHandler, _V2StreamingCallbackHandler
from langchain_core.tracers.context import _configure_hooks

from teola_plugin.adapters.clients import told_of_requests
from teola_plugin.adapters.handlers import may_interfere, noted_by


def is_watched(config: Mapping[str, Any]) -> bool:
    """Whether a handler of this config, or of the context, turns every model's reply into a stream."""
    hooked = [variable.get() for variable, *_ in _configure_hooks]
    return wants_streams(config.get("callbacks")) or wants_streams(hooked)


def wants_streams(callbacks: Any) -> bool:
    """Whether a handler among these callbacks (a list or a manager) wants streams."""
    wanting = (_StreamingCallbackHandler, _V2StreamingCallbackHandler)
    return any(isinstance(handler, wanting) for handler in handlers_of(callbacks))


def may_refuse(callbacks: Any) -> bool:
    """Whether a handler among these callbacks may end the run by raising, or change a request.

    Then no request is certain before the handler has let it pass.
    """
    handlers = handlers_of(callbacks)
    refuses = any(getattr(handler, "raise_error", False) for handler in handlers)
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
