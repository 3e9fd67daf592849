"""Handlers of LlamaIndex's events: handlers of callback managers, and of LlamaIndex's instrumentation dispatchers.

An error of a callback manager's handler ends the call; LlamaIndex drops an error of a dispatcher's handler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core import Settings
from llama_index_instrumentation import root_manager

from teola_plugin.adapters.clients import told_of_requests
from teola_plugin.adapters.handlers import may_interfere

_HEAR = ("on_event", "start_trace", "end_trace")
_NOTICE = ("handle", "ahandle", "new_span", "prepare_to", "span_")


def may_refuse(*components: Any) -> bool:
    """Whether a handler of these components, of LlamaIndex's settings or of a dispatcher may end or change a call."""
    hearing = may_interfere(_hearing(*components), _HEAR, may_raise=True)
    return hearing or may_interfere(_noticing(), _NOTICE, may_raise=False)


def handlers_of(*components: Any) -> Iterator[Any]:
    """Yield all handlers which hear of the work of the components."""
    yield from _hearing(*components)
    yield from _noticing()
    yield from told_of_requests()


def _hearing(*components: Any) -> Iterator[Any]:
    managers = [Settings._callback_manager, *(getattr(each, "callback_manager", None) for each in components)]
    for manager in managers:
        yield from getattr(manager, "handlers", None) or ()


def _noticing() -> Iterator[Any]:
    for dispatcher in root_manager.dispatchers.values():
        yield from dispatcher.event_handlers
        yield from dispatcher.span_handlers
