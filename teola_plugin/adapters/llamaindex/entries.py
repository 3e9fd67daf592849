"""The inputs of a call of an entry method (`query`, `retrieve`, `synthesize`, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.extractors import BaseExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import BaseTool
from llama_index.core.workflow import Workflow

from teola_plugin.adapters.llamaindex.reachable import PIPELINES
from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.adapters.plain import is_plain

WRITES = ("insert", "insert_nodes", "update", "update_ref_doc", "refresh", "refresh_ref_docs")
"""Methods of an index that write documents."""

RETRIEVES = {"answers": False}
ANSWERS = {"retrieves": False}


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a component. `retrieves`, `answers`: the work of the entry method; `nodes`: its input nodes.

    `modules`: the inputs of a `QueryPipeline`, by module.
    """

    query: Any
    is_async: bool = False
    retrieves: bool = True
    answers: bool = True
    nodes: Sequence[NodeWithScore] | None = None
    modules: Mapping[str, Mapping[str, Any]] | None = None


def methods_of(cls: type) -> dict[str, dict[str, bool]]:
    """Return the entry methods of a class, without their coroutines, and their settings of `Entry`."""
    if issubclass(cls, BaseRetriever):
        return {"retrieve": {}}
    if issubclass(cls, BaseQueryEngine):
        return {"query": {}, "retrieve": RETRIEVES, "synthesize": ANSWERS}
    if issubclass(cls, BaseSynthesizer):
        return {"synthesize": ANSWERS}
    if issubclass(cls, BaseNodePostprocessor):
        return {"postprocess_nodes": {"answers": False}}
    if issubclass(cls, BaseTool):
        return {"call": {}}
    if issubclass(cls, BaseExtractor):
        return {"extract": {}, "process_nodes": {}}
    if issubclass(cls, BaseChatEngine):
        return {"chat": {}, "stream_chat": {}}
    if issubclass(cls, Workflow | IngestionPipeline):
        return {"run": {}}
    if issubclass(cls, VectorStoreIndex):
        return {name: {} for name in WRITES}
    if issubclass(cls, PIPELINES):
        return {"run": {}, "run_multi": {}, "run_with_intermediates": {}, "run_multi_with_intermediates": {}}
    return {}


def entry_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], does: Mapping[str, bool], *, is_async: bool, is_root: bool = True
) -> Entry:
    """Return the entry of a call. Entry methods take the query first and, if any, the nodes second."""
    values = [*args, *kwargs.values()]
    if values and _are_found(values[0]):  # a postprocessor takes the nodes first
        query = next((value for value in values[1:] if value is not None), None)
        return Entry(query, is_async, nodes=values[0], modules=None, **does)
    nodes = kwargs.get("nodes", args[1] if len(args) > 1 else None) if is_root else None
    named = next((kwargs[name] for name in ("str_or_query_bundle", "query_bundle", "query") if name in kwargs), None)
    query = args[0] if args else named if named is not None else next(iter(values), None)
    return Entry(query, is_async, nodes=nodes if isinstance(nodes, list) else None, modules=None, **does)


def bind(value: Any) -> Mapping[str, Any]:
    """Return values for a graph's inputs from an `Entry`, a text or a `QueryBundle`."""
    entry = value if isinstance(value, Entry) else Entry(value)
    if entry.modules is not None:
        return {"is_async": entry.is_async, "inputs": {key: dict(inputs) for key, inputs in entry.modules.items()}}
    text = entry.query.query_str if type(entry.query) is QueryBundle else entry.query
    if type(text) is not str or not text:
        return {}
    values: dict[str, Any] = {"is_async": entry.is_async}
    if entry.retrieves and not _is_special(entry.query):
        values["query"] = text
    if entry.answers:
        values["question"] = text
    if entry.nodes is not None and is_plain(entry.nodes):
        values["nodes"] = fresh(entry.nodes)
    return values


def _are_found(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(node, NodeWithScore) for node in value)


def _is_special(query: Any) -> bool:
    """Whether the query brings its own vector, texts or image to search with."""
    return isinstance(query, QueryBundle) and bool(query.embedding or query.custom_embedding_strs or query.image_path)
