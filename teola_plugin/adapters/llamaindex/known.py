"""Predictable components: no method is overridden, and the interceptions of leaves are installed.

Optional packages are not imported: a program that uses a package has the package in `sys.modules`.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

from llama_index.core.base.response.schema import Response
from llama_index.core.constants import TYPE_KEY
from llama_index.core.indices.utils import default_parse_choice_select_answer_fn
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.postprocessor import LLMRerank, SimilarityPostprocessor
from llama_index.core.prompts import BasePromptTemplate, SelectorPromptTemplate
from llama_index.core.schema import NodeWithScore, ObjectType, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores.simple import SimpleVectorStore

from teola_plugin.adapters import chroma, sentence_transformers
from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.llamaindex.hosted_embeddings import is_hosted
from teola_plugin.adapters.llamaindex.models import is_ours
from teola_plugin.adapters.methods import is_as_published
from teola_plugin.adapters.reader.facts import are_published
from teola_plugin.adapters.reader.foreign import is_library_class


def is_embedder(model: Any) -> bool:
    """Whether the model embeds: on an engine of ours, by sentence-transformers, or as a hosted service's client."""
    if is_ours(model) or is_hosted(model):
        return True
    if not _is_a(model, "llama_index.embeddings.huggingface.base", "HuggingFaceEmbedding"):
        return False
    return sentence_transformers.spec_of(model._model) is not None and not model._parallel_process


def is_asked_each_time(model: Any) -> bool:
    """Whether an embedding model has neither cache nor limiter."""
    names = ("embeddings_cache", "rate_limiter")  # older releases have no limiters
    return all(getattr(model, name, None) is None for name in names)


def is_reranker(postprocessor: Any) -> bool:
    """Whether the postprocessor is a cross-encoder on an engine of ours, or a sentence-transformers cross-encoder."""
    if is_ours(postprocessor):
        return True
    for module in ("llama_index.core.postprocessor.sbert_rerank", "llama_index.postprocessor.sbert_rerank.base"):
        if _is_a(postprocessor, module, "SentenceTransformerRerank"):
            return sentence_transformers.spec_of(postprocessor._model) is not None
    return False


def is_store(store: Any) -> bool:
    """Whether the store is a Chroma collection."""
    if not _is_a(store, "llama_index.vector_stores.chroma.base", "ChromaVectorStore"):
        return False
    return chroma.spec_of(store._collection) is not None


def is_local_store(store: Any) -> bool:
    """Whether the store is a dictionary in this process: searching is a pure function."""
    return is_stock(store, SimpleVectorStore)


def is_local_docstore(docstore: Any) -> bool:
    """Whether reading the docstore costs nothing and has no effect."""
    return is_stock(docstore, SimpleDocumentStore)


MOST_NODES = 10_000
"""Nodes of a store whose kinds are looked at, before each search of which the result is needed: some 1 ms."""


_READ = (
    (NodeWithScore, ("node", "text", "metadata", "node_id", "id_", "score", "get_content")),
    (TextNode, ("text", "metadata", "node_id", "id_", "get_content")),
    (Response, ("response", "source_nodes", "__str__")),
)
"""Attributes of what is found that may be read before it is there."""


def finds_text_nodes(retriever: Any, cls: type) -> bool:
    """Whether a retriever that only asks finds nodes that LlamaIndex makes of texts, in a store in memory."""
    if cls is not VectorIndexRetriever or retriever._vector_store.stores_text:
        return False
    store = retriever._docstore
    kept = store._kvstore if is_local_docstore(store) else None
    nodes = kept._collections_mappings.get(store._node_collection, {}) if type(kept) is SimpleKVStore else None
    if nodes is None or len(nodes) > MOST_NODES or not all(are_published(*each) for each in _READ):
        return False
    return all(each.get(TYPE_KEY) == ObjectType.TEXT for each in list(nodes.values()))


def writes_text(synthesizer: Any) -> bool:
    """Whether a synthesizer that only asks answers with a text."""
    return getattr(synthesizer, "_output_cls", None) is None


def keeps_nodes(postprocessor: Any, cls: type, *, is_asked: bool) -> bool:
    """Whether a postprocessor that only asks returns some of the nodes that it is given, and never raises."""
    if cls is LLMRerank:
        return is_asked and reads_any_choice(postprocessor._parse_choice_select_answer_fn)
    return cls is SimilarityPostprocessor


def answers_with_text(engine: Any) -> bool:
    """Whether a `RetrieverQueryEngine` that only asks answers with a text, and with nodes of texts."""
    return writes_text(engine._response_synthesizer) and finds_text_nodes(engine._retriever, type(engine._retriever))


def reads_any_choice(function: Any) -> bool:
    """Whether the function is LlamaIndex's own parser of a model's choice among nodes, and skips unreadable lines."""
    return function is default_parse_choice_select_answer_fn and _passes_over_nonsense()


@cache
def _passes_over_nonsense() -> bool:
    """Whether the parser skips unreadable lines; older releases raise."""
    try:
        return default_parse_choice_select_answer_fn("Doc: none, Relevance: much", 1) == ([], [])
    except ValueError:
        return False


def is_plain_template(template: BasePromptTemplate, *, parser: type | None = None) -> bool:
    """Whether the template is of the framework's own kinds, and holds no undeclared user code.

    The template must have no parser, or a stock `parser`.
    """
    cls = type(template)
    if not (cls.__module__.startswith("llama_index.core.prompts") and is_library_class(cls) and is_as_published(cls)):
        return False
    is_parsed = template.output_parser is not None and not (parser and is_stock(template.output_parser, parser))
    if is_parsed:
        return False
    if isinstance(template, SelectorPromptTemplate):
        conditionals = template.conditionals or []
        templates = [template.default_template, *(t for _, t in conditionals)]
        return is_free_of_code([condition for condition, _ in conditionals]) and all(map(is_plain_template, templates))
    return is_free_of_code({name: held for name, held in vars(template).items() if name != "output_parser"})


def resource_of(store: Any) -> str:
    """Return the name that orders reads and writes of a store."""
    name = getattr(getattr(store, "_collection", None), "name", "kb")
    return re.sub(r"\W", "_", f"kb_{name}") if name != "kb" else "kb"


def _is_a(component: Any, module: str, name: str) -> bool:
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and is_stock(component, base)
