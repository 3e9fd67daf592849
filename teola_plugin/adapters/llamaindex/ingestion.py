"""Ingestion: the pieces of one document are embedded while the splitter splits the next.

    texts: [] = call(fn='split') @ pipeline         the framework's own splitter tells them, document by document
    vecs: [] = embedding(*texts) @ embedder         all texts at once, where no splitter of LlamaIndex's comes before

The writes are the framework's own, each once and in its own place: nothing is stored before everything is embedded, so
a crash, or an error of a splitter or a model, leaves nothing half-written.

Not predicted: processes (`num_workers`), and embeddings behind the user's own transformations until the model is
asked. The same holds with a non-empty ingestion cache, which may know the embeddings already.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import MetadataAwareTextSplitter, TextSplitter
from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.kvstore import SimpleKVStore

from teola_plugin.adapters.interception import around, intercept
from teola_plugin.adapters.leaf import is_stock_of
from teola_plugin.adapters.llamaindex.draft import Draft, star
from teola_plugin.adapters.llamaindex.rehearsal import QUERY_MARK
from teola_plugin.adapters.llamaindex.retrievers import may_embed
from teola_plugin.adapters.plain import is_plain
from teola_plugin.adapters.rehearsal import Asked, outcome, rehearse
from teola_plugin.seams import current
from teola_plugin.trace import Items

INGESTS = (IngestionPipeline, VectorStoreIndex)

SPLITS = ("split_text", "split_text_metadata_aware")


class _Texts:
    """The stand-in component under which the texts of the current ingestion are observed."""


TEXTS = _Texts()


@dataclass
class _Ingesting:
    """One ingestion: its embedding model, the splitter right before, and the texts reported so far."""

    model: BaseEmbedding
    splitter: TextSplitter | None
    documents: Iterator[BaseNode] = field(default_factory=lambda: iter(()))
    told: Counter[str] = field(default_factory=Counter)

    def tell(self, texts: Sequence[str]) -> None:
        if (session := current()) is not None and texts:
            session.observe(TEXTS, Items(texts))
            self.told.update(texts)


_ingesting: ContextVar[_Ingesting | None] = ContextVar("teola_ingesting", default=None)


def install() -> None:
    """Instrument splitters and embedding models. Idempotent."""
    for cls in (TextSplitter, MetadataAwareTextSplitter):
        intercept(cls, "_parse_nodes", _parsing)
    _EMBEDDING.replace(BaseEmbedding, "get_text_embedding_batch", coroutines=["aget_text_embedding_batch"])


def add_ingestion(draft: Draft, component: Any) -> str | None:
    """Add the embeddings of `component`'s ingestion; returns the name of the vectors, None if unpredictable."""
    draft.reading(component)
    model, splitter = _stages(component)
    if model is None:
        return None
    if not may_embed(draft, component, model):
        return None
    asked = _asked(model, QUERY_MARK)
    if asked is None or QUERY_MARK not in str(asked.payload):
        draft.leave("TB204", component, type(model).__name__)
        return None
    if splitter is not None:
        for method in SPLITS:
            intercept(type(splitter), method, _splitting)
    texts = draft.await_run("texts", TEXTS, "split", depth=1)
    if asked.payload != QUERY_MARK:  # the model writes an instruction around the text
        payload = str(asked.payload)
        texts = draft.call("prompted", "prompted", lambda text: payload.replace(QUERY_MARK, text), star(texts), depth=1)
    return draft.ask("vectors", "embedding", asked.spec, star(texts), depth=1, settings=asked.settings)


@contextlib.contextmanager
def ingesting(component: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Surround a run of `component`, called with `kwargs`, in the session of its call."""
    is_told = isinstance(component, INGESTS) and not is_of_processes(component, kwargs)
    model, splitter = _stages(component) if is_told else (None, None)
    if model is None:
        yield
        return
    if isinstance(component, IngestionPipeline) and not component.disable_cache:
        splitter = None if _may_hold(component.cache, kwargs.get("cache_collection")) else splitter
    token = _ingesting.set(_Ingesting(model, splitter))
    try:
        yield
    finally:
        _ingesting.reset(token)


def is_of_processes(component: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the ingestion will run in processes of its own, which do not report."""
    return isinstance(component, IngestionPipeline) and (kwargs.get("num_workers") or 1) > 1


def _stages(component: Any) -> tuple[BaseEmbedding | None, TextSplitter | None]:
    """Return the embedding model, and the splitter whose texts are embedded unchanged."""
    if isinstance(component, VectorStoreIndex):
        stages = [*component._transformations, component._embed_model]
    else:
        stages = list(component.transformations)
    for before, stage in zip([None, *stages], stages, strict=False):
        if isinstance(stage, BaseEmbedding):
            is_known = isinstance(before, TextSplitter) and is_stock_of(before, "llama_index")
            return stage, cast(TextSplitter, before) if is_known else None
    return None, None


def _may_hold(cache: IngestionCache, collection: str | None) -> bool:
    """Whether the cache may hold entries; a cache outside this process counts as possibly filled."""
    if not isinstance(cache.cache, SimpleKVStore):
        return True
    return bool(cache.cache.to_dict().get(collection or cache.collection))


def _asked(model: BaseEmbedding, text: str) -> Asked | None:
    asked = rehearse(lambda: model._get_text_embeddings([text]))
    return asked[0] if asked else None


def _texts(splitter: Any, document: BaseNode, splits: Sequence[str]) -> list[str]:
    """Return the embedded text of each piece: its text, with the metadata added by the splitter.

    Raises: LookupError for a document that is not plain data.
    """
    if not is_plain(document):
        raise LookupError("a document of a class of the user's is read by the framework's own run alone")

    def made() -> str:
        (node,) = build_nodes_from_splits([QUERY_MARK], document, id_func=lambda number, document: "")
        splitter._postprocess_parsed_nodes([node], {document.id_: document})
        return str(node.get_content(metadata_mode=MetadataMode.EMBED))

    around = outcome(made)
    return [around.replace(QUERY_MARK, split) for split in splits]


# --- the framework's own run tells -----------------------------------------------------------------------------------


def _parsing(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, nodes: Sequence[BaseNode], *args: Any, **kwargs: Any) -> Any:
        here = _ingesting.get()
        if here is not None and here.splitter is self:
            here.documents = iter(nodes)
        return original.__get__(self, type(self))(nodes, *args, **kwargs)

    return method


def _splitting(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        split = original.__get__(self, type(self))
        here = _ingesting.get()
        document = next(here.documents, None) if here is not None and here.splitter is self else None
        if here is None or document is None:
            return split(*args, **kwargs)
        token = _ingesting.set(None)  # one method may call the other
        try:
            splits = split(*args, **kwargs)
        finally:
            _ingesting.reset(token)
        with contextlib.suppress(Exception):  # unpredicted texts are embedded all the same
            here.tell(_texts(self, document, splits))
        return splits

    return method


@contextlib.contextmanager
def _embedding(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_async: bool) -> Iterator[None]:
    _tell_rest(model, args[0] if args else kwargs.get("texts", ()))
    yield


_EMBEDDING = around(_embedding)


def _tell_rest(model: object, texts: Sequence[str]) -> None:
    here = _ingesting.get()
    if here is not None and here.model is model:
        here.tell(list((Counter(texts) - here.told).elements()))
