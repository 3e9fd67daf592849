"""A LlamaIndex pipeline as a p-graph, read from its components without running the pipeline.

inputs(query, question)              the same text: `query` for what retrieves, `question` for what answers,
                                     so that a call of `retrieve` alone runs nothing of the answer ahead
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle

from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.llamaindex.draft import Draft
from teola_plugin.adapters.llamaindex.postprocessors import add_postprocessor
from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.adapters.llamaindex.retrievers import add_retriever
from teola_plugin.adapters.llamaindex.synthesizers import add_synthesizer
from teola_plugin.trace import Traced

log = logging.getLogger(__name__)
INPUTS = ("query", "question", "nodes", "is_async")


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a twin. `retrieves`, `answers`: what the entry method does; `nodes`: what it was given."""

    query: Any
    is_async: bool = False
    retrieves: bool = True
    answers: bool = True
    nodes: Sequence[NodeWithScore] | None = None


def knows(pipeline: Any) -> bool:
    """A query engine, retriever or response synthesizer."""
    return isinstance(pipeline, BaseQueryEngine | BaseRetriever | BaseSynthesizer)


def trace(pipeline: Any) -> Traced:
    """The p-graph of a query engine, retriever or response synthesizer; empty, with a break, if it cannot be read."""
    draft = Draft()
    try:
        # On a thread of its own, because counting the tokens of messages leaves an event loop behind on the caller's.
        with ThreadPoolExecutor(1) as thread:
            outputs = thread.submit(copy_context().run, _read, draft, pipeline).result()
    except Exception as e:  # the framework's own code, rehearsed; its run will raise the same in its own place
        log.debug("tracing %s ended with %r", type(pipeline).__name__, e)
        draft, outputs = Draft(), ()
        draft.leave("TB213", pipeline, f"{type(e).__name__}: {e}")

    def bind_if_it_fits(value: Any) -> Mapping[str, Any]:
        return bind(value) if draft.still_fits() else {}  # without inputs nothing runs ahead

    return draft.traced(INPUTS, outputs, bind_if_it_fits)


def bind(value: Any) -> Mapping[str, Any]:
    """Values for the graph's inputs from an `Entry`, a text or a `QueryBundle`."""
    entry = value if isinstance(value, Entry) else Entry(value)
    text = entry.query.query_str if isinstance(entry.query, QueryBundle) else entry.query
    if not isinstance(text, str) or not text:
        return {}
    values: dict[str, Any] = {"is_async": entry.is_async}
    if entry.retrieves and not _is_special(entry.query):
        values["query"] = text
    if entry.answers:
        values["question"] = text
    if entry.nodes is not None:
        values["nodes"] = fresh(entry.nodes)
    return values


def _is_special(query: Any) -> bool:
    """It brings its own vector, texts or image to search with."""
    return isinstance(query, QueryBundle) and bool(query.embedding or query.custom_embedding_strs or query.image_path)


def _read(draft: Draft, pipeline: Any) -> tuple[str, ...]:
    if isinstance(pipeline, BaseSynthesizer):
        answer = add_synthesizer(draft, pipeline, "nodes")
        return (answer,) if answer else ()
    if isinstance(pipeline, BaseRetriever):
        return (add_retriever(draft, pipeline),)
    if not is_stock(pipeline, RetrieverQueryEngine):
        draft.leave("TB200", pipeline)
        return ()
    draft.rely_on(pipeline)
    nodes = add_retriever(draft, pipeline._retriever)
    for postprocessor in pipeline._node_postprocessors:
        nodes = add_postprocessor(draft, postprocessor, nodes)
    return (add_synthesizer(draft, pipeline._response_synthesizer, nodes) or nodes,)
