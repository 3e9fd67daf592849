"""Who hears of what LlamaIndex does: handlers of callback managers, and of the dispatchers of its instrumentation.

An error that a handler of a callback manager raises ends the call; one of a dispatcher's is dropped by LlamaIndex.
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
    """A handler of these components, of LlamaIndex's settings or of a dispatcher may end a call, or change it."""
    hearing = may_interfere(_hearing(*components), _HEAR, may_raise=True)
    return hearing or may_interfere(_noticing(), _NOTICE, may_raise=False)


def handlers_of(*components: Any) -> Iterator[Any]:
    """All who hear of what these components do."""
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
