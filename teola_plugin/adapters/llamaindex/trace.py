"""A LlamaIndex pipeline as a p-graph, read from its components without running the pipeline.

inputs(query, question)              the same text: `query` for retrieval, `question` for answering,
                                     so that a call of `retrieve` alone runs nothing of the answer ahead

A pipeline that cannot be read as one graph has the graphs of its parts, see parts.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer

from teola_plugin.adapters import sdk_clients, web_clients, web_httpx, web_pages
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex import hosted_embeddings
from teola_plugin.adapters.llamaindex.draft import Draft
from teola_plugin.adapters.llamaindex.engines import add_engine
from teola_plugin.adapters.llamaindex.entries import bind
from teola_plugin.adapters.llamaindex.in_turn import loops_in
from teola_plugin.adapters.llamaindex.ingestion import INGESTS, add_ingestion
from teola_plugin.adapters.llamaindex.own_parts import own_methods, own_parts, own_steps
from teola_plugin.adapters.llamaindex.parts import Part, Parts
from teola_plugin.adapters.llamaindex.postprocessors import add_postprocessor
from teola_plugin.adapters.llamaindex.query_pipeline import add_query_pipeline
from teola_plugin.adapters.llamaindex.reachable import HOLDERS, PIPELINES, reachable
from teola_plugin.adapters.llamaindex.retrievers import add_retriever
from teola_plugin.adapters.llamaindex.synthesizers import add_synthesizer
from teola_plugin.adapters.llamaindex.transforms import Query
from teola_plugin.graph import Graph
from teola_plugin.graph_builder import unique
from teola_plugin.trace import Traced

log = logging.getLogger(__name__)
INPUTS = ("query", "question", "nodes", "is_async", "inputs")
READABLE = (BaseQueryEngine, BaseRetriever, BaseSynthesizer, *PIPELINES)


def knows(pipeline: Any) -> bool:
    """Whether the object is a LlamaIndex component that may hold components, or the class of an index."""
    if isinstance(pipeline, type):
        return issubclass(pipeline, VectorStoreIndex)
    return isinstance(pipeline, (*HOLDERS, *INGESTS))


def trace(pipeline: Any) -> Traced:
    """Return the p-graph of a pipeline, and of its parts; empty, with a break, for an unreadable pipeline."""
    instrument_loaded()
    traced = Traced(Graph((), (), ())) if isinstance(pipeline, type) else _traced_whole(pipeline)
    is_index = isinstance(pipeline, type | VectorStoreIndex)
    return replace(traced, makes=is_index)


def instrument_loaded() -> None:
    """Make all clients that are loaded share early requests."""
    hosted_embeddings.instrument_loaded()
    sdk_clients.instrument_loaded()
    web_clients.instrument_loaded()
    web_pages.instrument_loaded()
    web_httpx.instrument_loaded()


def _traced_whole(pipeline: Any) -> Traced:
    root = _part(pipeline)
    held = reachable(pipeline)
    loops = loops_in(held)
    parts = [*([root] if root.traced.engines else ()), *parts_among(held[1:], root.covered - root.ahead)]
    own, steps = own_parts(held, pipeline), own_steps(pipeline)
    methods = None if root.traced.engines else own_methods(pipeline)  # else the graph asks for what they do
    if not (own or steps or methods) and parts in ([], [root]) and root.traced is root.atraced:
        return replace(root.traced, loops=loops) if loops else root.traced
    breaks = dict.fromkeys(why for part in (root, *parts) for why in part.traced.breaks)
    shown: dict[str, Traced] = {}
    for part in parts:
        if part is not root:
            shown[unique(plain_class(part.component).__name__, shown)] = part.traced
    return replace(
        root.traced, breaks=tuple(breaks), follow=Parts(parts, own, steps, methods).follow, parts=shown, loops=loops,
        readings=(
            *(steps.readings.values() if steps else ()), *(methods.readings.values() if methods else ()),
            *(reading for each in own for reading in each.readings),
        ),
    )  # fmt: skip


def parts_among(components: Sequence[Any], covered: Set[int] = frozenset()) -> list[Part]:
    """Return the components with graphs of their own. `covered`: ids of components in other graphs already."""
    parts, seen = list[Part](), set(covered)
    for component in components:
        if isinstance(component, READABLE) and id(component) not in seen:
            part = _part(component)
            parts.append(part)
            seen |= part.covered - part.ahead
    return [part for part in parts if part.traced.engines]


def _part(component: Any) -> Part:
    traced, draft = _traced(component, is_async=False)
    atraced = _traced(component, is_async=True)[0] if draft.has_modes else traced
    return Part(component, traced, atraced, frozenset(draft.covered), frozenset(draft.ahead))


def _traced(component: Any, *, is_async: bool) -> tuple[Traced, Draft]:
    draft = Draft(is_async=is_async)
    outputs: tuple[str, ...] = ()
    if isinstance(component, (*READABLE, *INGESTS, BaseNodePostprocessor)):
        try:
            # On a separate thread: counting the tokens of messages leaves an event loop behind on its thread.
            with ThreadPoolExecutor(1) as thread:
                outputs = thread.submit(copy_context().run, _read, draft, component).result()
        except Exception as e:  # the framework's own code, rehearsed; its run will raise the same in its own place
            log.debug("tracing %s ended with %r", type(component).__name__, e)
            draft, outputs = Draft(), ()
            draft.leave("TB213", component, f"{type(e).__name__}: {e}")

    def bind_if_it_fits(value: Any) -> Mapping[str, Any]:
        return bind(value) if draft.still_fits() else {}  # without inputs nothing runs ahead

    return draft.traced(INPUTS, outputs, bind_if_it_fits), draft


def _read(draft: Draft, component: Any) -> tuple[str, ...]:
    match component:
        case BaseSynthesizer():
            end = add_synthesizer(draft, component, "nodes", "question")
        case BaseRetriever():
            end = add_retriever(draft, component, Query())
        case _ if isinstance(component, PIPELINES):
            return add_query_pipeline(draft, component)
        case BaseNodePostprocessor():
            end = add_postprocessor(draft, component, draft.take("nodes"), "query")
        case IngestionPipeline() | VectorStoreIndex():
            end = add_ingestion(draft, component)
        case _:
            end = add_engine(draft, component, Query())
    return (end,) if end else ()
