"""LlamaIndex pipelines of real components on fake engines, and a record of everything they say.

The language model answers with a digest of its prompt: one different character anywhere and the whole answer changes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_instrumentation.event_handlers import BaseEventHandler
from llama_index_instrumentation.span import SimpleSpan
from llama_index_instrumentation.span_handlers import BaseSpanHandler
from pydantic import PrivateAttr

from teola_plugin.engines import Completion
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank
from tests.support.fakes import FakeEngine, says

T = TypeVar("T")
_names = (f"llamaindex-{number}" for number in itertools.count())

QUESTION = "Who keeps the bees?"
MODES = ("refine", "compact", "tree_summarize", "simple_summarize", "accumulate", "compact_accumulate", "generation")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def answer(prompt: str) -> Completion:
    """Words that tell the prompt; four queries, badly formatted, where queries are asked for, and two
    choices where documents are to be chosen."""
    words = [digest(prompt)[i : i + 6] for i in range(0, 30, 6)]
    if "search queries" in prompt:
        return says("```\n" + "\n".join([f"1. {words[0]} bees", "", f"  {words[1]} hive ", words[2], words[3]]) + "```")
    if "Relevance: 7" in prompt:
        return says(
            f"Doc: 2, Relevance: {int(words[0], 16) % 10}\nDoc: 1, Relevance: {int(words[1], 16) % 10}\nno more"
        )
    return says(" ".join(words))


def vector(text: str) -> Any:
    return np.random.default_rng(int(digest(text)[:8], 16)).normal(size=16).astype(np.float32)


def score(pair: tuple[str, str]) -> float:
    return int(digest("|".join(pair))[:6], 16) / 0xFFFFFF


class Engines:
    """The fake engines of one pipeline, and LlamaIndex models on them."""

    def __init__(self, *, is_chat_model: bool = True, context_window: int = 4096) -> None:
        self.llm = FakeEngine(answer, name="llm", concurrent=True)
        self.embedder = FakeEngine(vector, name="embedder")
        self.reranker = FakeEngine(score, name="reranker")
        self.model = EngineLLM(
            engine=self.llm, is_chat_model=is_chat_model, context_window=context_window, max_tokens=64
        )
        self.embedding = EngineEmbedding(engine=self.embedder)
        self.rerank = EngineRerank(engine=self.reranker, top_n=3)


@functools.cache
def _client() -> Any:
    """Half of the time of a test goes into reading the settings of a client."""
    import chromadb

    return chromadb.EphemeralClient()


def index_of(engines: Engines, texts: Sequence[str] | None = None) -> VectorStoreIndex:
    """Twelve nodes in a Chroma collection of their own."""
    from llama_index.vector_stores.chroma import ChromaVectorStore

    texts = texts or [
        f"Note {i}. " + f"The keeper of hive {i} is called {digest(str(i))[:8]}. " * 12 for i in range(12)
    ]
    collection = _client().create_collection(next(_names), embedding_function=None)
    storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
    nodes = [TextNode(text=text, id_=f"n{i}", metadata={"page": i}) for i, text in enumerate(texts)]
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=engines.embedding)


def apart(function: Callable[..., T], *args: Any) -> T:
    """Call it on a thread and in a context of its own.

    LlamaIndex leaves an event loop behind where it counts the tokens of messages, and after a failed call entries on
    its stack of traces; both would be seen by the next call.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args).result()


def engine_of(
    engines: Engines, *, mode: str = "compact", retriever: str = "vector", rerank: bool = False,
    streaming: bool = False, use_async: bool = False, callback_manager: CallbackManager | None = None,
) -> RetrieverQueryEngine:  # fmt: skip
    """A query engine over a fresh collection."""
    index = index_of(engines)
    source: Any = index.as_retriever(similarity_top_k=4)
    if retriever == "fusion":
        source = QueryFusionRetriever(
            [source], llm=engines.model, mode="reciprocal_rerank", similarity_top_k=5, use_async=use_async
        )
    synthesizer = get_response_synthesizer(
        llm=engines.model, response_mode=mode, streaming=streaming, callback_manager=callback_manager
    )
    if callback_manager:
        source.callback_manager = callback_manager
    return RetrieverQueryEngine(source, synthesizer, [engines.rerank] if rerank else [], callback_manager)


# --- what a pipeline says ---------------------------------------------------------------------------------------------


class _Events(BaseEventHandler):
    _said: list[Any] = PrivateAttr()

    @classmethod
    def class_name(cls) -> str:
        return "Events"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self._said.append(("event", type(event).__name__, _span(event.span_id), *_content(event)))


class _Spans(BaseSpanHandler[SimpleSpan]):
    _said: list[Any] = PrivateAttr()

    @classmethod
    def class_name(cls) -> str:
        return "Spans"

    def new_span(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_span_id: Any = None,
        tags: Any = None,
        **kwargs: Any,
    ) -> SimpleSpan:
        self._said.append(("enter", _span(id_), _span(parent_span_id)))
        return SimpleSpan(id_=id_, parent_id=parent_span_id)

    def prepare_to_exit_span(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> SimpleSpan:
        self._said.append(("exit", _span(id_)))
        return self.open_spans[id_]

    def prepare_to_drop_span(
        self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **kwargs: Any
    ) -> SimpleSpan:
        self._said.append(("drop", _span(id_), repr(err)))
        return self.open_spans[id_]


class _Callbacks(BaseCallbackHandler):
    def __init__(self, said: list[Any]) -> None:
        super().__init__([], [])
        self._said = said
        self._kinds = {"root": "root"}

    def on_event_start(
        self, event_type: Any, payload: Any = None, event_id: str = "", parent_id: str = "", **kwargs: Any
    ) -> str:
        self._kinds[event_id] = str(event_type)
        self._said.append(("start", str(event_type), self._kinds.get(parent_id), sorted(map(str, payload or {}))))
        return event_id

    def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
        self._said.append(("end", str(event_type), sorted(map(str, payload or {}))))

    def start_trace(self, trace_id: str | None = None) -> None:
        self._said.append(("trace", trace_id))

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        self._said.append(("traced", trace_id))


class Record:
    """While open, everything that dispatchers and `callback_manager` hear, in order: `said`."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.callback_manager = CallbackManager([_Callbacks(self.said)])
        self._events, self._spans = _Events(), _Spans()
        self._events._said = self._spans._said = self.said

    def __enter__(self) -> Record:
        root = get_dispatcher()
        root.add_event_handler(self._events)
        root.add_span_handler(self._spans)
        return self

    def __exit__(self, *_: object) -> None:
        root = get_dispatcher()
        root.event_handlers.remove(self._events)
        root.span_handlers.remove(self._spans)


def _span(id_: str | None) -> str | None:
    return id_[:-37] if id_ else id_  # without the uuid


CONTENT = (
    "query", "str_or_query_bundle", "prompt", "messages", "response", "output", "nodes", "chunks", "exception",
)  # fmt: skip


def _content(event: Any) -> list[str]:
    """What an event says, without ids and times."""
    said = []
    for name in CONTENT:
        value = getattr(event, name, None)
        if value is not None:
            said.append(f"{name}: {_text(value)}")
    return said


def _text(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], NodeWithScore):
        return str([(n.node_id, None if n.score is None else round(n.score, 5)) for n in value])
    if hasattr(value, "response_gen"):
        return type(value).__name__
    return str(value)
