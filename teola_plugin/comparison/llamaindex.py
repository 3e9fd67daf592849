"""Records the spans, events and callback events of one run of a LlamaIndex pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.callbacks.schema import CBEventType
from llama_index.core.instrumentation import root_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from pydantic import PrivateAttr

from teola_plugin.comparison.trees import Node


class SpanRecorder(BaseSpanHandler[BaseSpan]):
    """Keeps each span, and its end, as a node."""

    _nodes: dict[str, Node] = PrivateAttr(default_factory=dict)

    @property
    def nodes(self) -> dict[str, Node]:
        return self._nodes

    def new_span(
        self, id_: str, bound_args: inspect.BoundArguments, instance: Any | None = None,
        parent_span_id: str | None = None, tags: dict[str, Any] | None = None, **kwargs: Any,
    ) -> BaseSpan:  # fmt: skip
        self._nodes[id_] = Node("span", _span_name(id_), parent_span_id, {"tags": tags or {}})
        return BaseSpan(id_=id_, parent_id=parent_span_id, tags=tags or {})

    def prepare_to_exit_span(
        self, id_: str, bound_args: inspect.BoundArguments, instance: Any | None = None, result: Any | None = None,
        **kwargs: Any,
    ) -> BaseSpan | None:  # fmt: skip
        return self._end(id_, "ok")

    def prepare_to_drop_span(
        self, id_: str, bound_args: inspect.BoundArguments, instance: Any | None = None,
        err: BaseException | None = None, **kwargs: Any,
    ) -> BaseSpan | None:  # fmt: skip
        return self._end(id_, type(err).__name__)

    def _end(self, id_: str, how: str) -> BaseSpan | None:
        if node := self._nodes.get(id_):
            node.facts["ended"] = how
        return self.open_spans.get(id_)


class EventRecorder(BaseEventHandler):
    """Keeps each event as a child of its span. The number of pieces of a stream counts too."""

    _nodes: dict[str, Node] = PrivateAttr(default_factory=dict)

    @property
    def nodes(self) -> dict[str, Node]:
        return self._nodes

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._nodes[event.id_] = Node("event", type(event).__name__, event.span_id, {"tags": dict(event.tags or {})})


class CallbackRecorder(BaseCallbackHandler):
    """The older callback interface, which every component still calls."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.nodes: dict[str, Node] = {}

    def on_event_start(
        self, event_type: CBEventType, payload: dict[str, Any] | None = None, event_id: str = "", parent_id: str = "",
        **kwargs: Any,
    ) -> str:  # fmt: skip
        self.nodes[event_id] = Node(
            "callback", event_type.value, parent_id, {"payload": sorted(map(str, payload or {}))}
        )
        return event_id

    def on_event_end(
        self, event_type: CBEventType, payload: dict[str, Any] | None = None, event_id: str = "", **kwargs: Any
    ) -> None:
        if node := self.nodes.get(event_id):
            node.facts["ended"] = sorted(map(str, payload or {}))

    def start_trace(self, trace_id: str | None = None) -> None:
        return None

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        return None


@contextmanager
def recording(pipeline: Any) -> Iterator[dict[str, Node]]:
    """Record the events of the pipeline inside the block; the yielded mapping is complete at the end."""
    spans, events, callbacks = SpanRecorder(), EventRecorder(), CallbackRecorder()
    dispatcher = root_dispatcher
    managers = {id(m): m for m in _managers(pipeline)}.values()
    dispatcher.add_span_handler(spans)
    dispatcher.add_event_handler(events)
    for manager in managers:
        manager.add_handler(callbacks)
    nodes: dict[str, Node] = {}
    try:
        yield nodes
    finally:
        dispatcher.span_handlers.remove(spans)
        dispatcher.event_handlers.remove(events)
        for manager in managers:
            manager.remove_handler(callbacks)
        nodes |= spans.nodes | events.nodes | callbacks.nodes


def _managers(pipeline: Any) -> Iterator[CallbackManager]:
    """Yield the callback managers of the pipeline, of its parts one level down, and the global manager."""
    parts = [pipeline, *vars(pipeline).values()] if hasattr(pipeline, "__dict__") else [pipeline]
    for part in parts:
        if isinstance(manager := getattr(part, "callback_manager", None), CallbackManager):
            yield manager
    if Settings._callback_manager is not None:
        yield Settings._callback_manager


def _span_name(id_: str) -> str:
    """Return `RetrieverQueryEngine.query` of `RetrieverQueryEngine.query-1b9d6bcd-...`: the part before the UUID."""
    return id_[:-37] if len(id_) > 37 and id_[-37] == "-" else id_
