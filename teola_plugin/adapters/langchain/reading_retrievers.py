"""Searches, embeddings, reranking and read-only tools: each use is one request, done by the component itself.

The component's own method runs beside the call, with callbacks muted. Its engine requests land in slots, where the
framework's own run finds the replies. Only components with all requests in slots, or with in-memory results, qualify; a
user's retriever is read like any user code.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableSequence
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from teola_plugin.adapters import chroma, leaf, search_classes, web_clients
from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain import faiss_stores, hosted_embeddings, leaves
from teola_plugin.adapters.langchain.models import is_published
from teola_plugin.adapters.langchain.quiet import aapart, apart
from teola_plugin.adapters.langchain.reading_models import Way, round_of
from teola_plugin.adapters.langchain.reading_parts import is_stock, stock_class
from teola_plugin.adapters.methods import are_installed
from teola_plugin.adapters.reader import classes, foreign
from teola_plugin.adapters.reader.arrays import embedded
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.calls import is_own_method, returned
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.facts import are_published
from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.heap import ZIPPED
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_schema
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, type_name
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.service import is_json
from teola_plugin.engines import EngineSpec
from teola_plugin.value_keys import Same, is_comparable, value_key

Providers = frozenset[Hashable]
"""The services outside this process used by a component; empty for none."""

SEARCHES = frozenset({"similarity_search", "similarity_search_with_score", "max_marginal_relevance_search"})
"""Methods of a vector store that search for a text without a warning."""

_CLASSIC = ("langchain_classic.retrievers.", "langchain.retrievers.")
"""The modules of LangChain's compound retrievers; the second before LangChain 1.0, and where the old name is kept."""


# --- who only reads --------------------------------------------------------------------------------------------------


def providers_of(component: Any) -> Providers | None:
    """Return the services of a read-only component; None for a component with possible effects."""
    if foreign.is_kind_of(component, Embeddings):
        return _of_embeddings(component)
    if foreign.is_kind_of(component, VectorStore):
        return _of_store(component)
    if foreign.is_kind_of(component, BaseRetriever):
        return _of_retriever(component)
    return _of_compressor(component)


def _is_ours(component: Any) -> bool:
    return foreign.module_of(stock_class(component)).startswith("teola_plugin.models.")


def _of_spec(spec: EngineSpec) -> Providers:
    return frozenset() if spec.provider is None else frozenset([spec.provider])


def _of_embeddings(embeddings: Any) -> Providers | None:
    if _is_ours(embeddings):
        return _of_spec(embeddings.spec)
    if hosted := hosted_embeddings.provider_spec(embeddings):
        return _of_spec(hosted)
    leaf = leaves.query_embedding(embeddings)
    return None if leaf is None else _of_spec(leaf.spec)


_NOT_SEARCHING = (
    "as_retriever", "from_texts", "afrom_texts", "from_documents", "afrom_documents", "add_texts", "aadd_texts",
    "add_documents", "aadd_documents", "delete", "adelete", "load", "dump", "_abc_impl",
)  # fmt: skip
"""Names in a store for making, filling and passing on the store: no search uses them."""


def _is_in_memory(store: Any) -> bool:
    """Whether a search of the store is LangChain's own code on a `dict`, despite a user's subclass."""
    if not foreign.is_kind_of(store, InMemoryVectorStore):
        return False
    cls, searching = type(store), _searching_in_memory()
    if foreign.in_mro(cls, "store") is not MISSING or foreign.in_mro(cls, "embedding") is not MISSING:
        return False
    held = foreign.own_attributes(store) or {}
    is_plain = foreign.has_plain_lookup(cls) and type(held.get("store")) is dict and "embedding" in held
    return is_plain and leaf.is_stock(store, InMemoryVectorStore, *searching)


@functools.cache
def _searching_in_memory() -> tuple[str, ...]:
    return tuple(name for name in dir(InMemoryVectorStore) if name not in _NOT_SEARCHING and name[:2] != "__")


def makes_retrievers(store: Any) -> bool:
    """Whether `as_retriever` of a store is LangChain's own, and its searches ask only known services."""
    is_own = foreign.in_mro(type(store), "as_retriever") is foreign.in_mro(VectorStore, "as_retriever")
    return is_own and _of_store(store) is not None


def _of_store(store: Any) -> Providers | None:
    if not are_installed(type(store), [f"{prefix}{name}" for name in SEARCHES for prefix in ("", "a")]):
        return None
    if _is_in_memory(store):
        return _of_embeddings(store.embedding)
    if faiss_stores.is_faiss(store):
        return _of_embeddings(store.embedding_function)
    spec = chroma.spec_of(store._collection) if leaves.is_chroma(store) else None
    if spec is None:
        return None
    inner = _of_embeddings(store.embeddings)
    return None if inner is None else inner | _of_spec(spec)


def _of_retriever(retriever: Any) -> Providers | None:
    name = type_name(stock_class(retriever))
    if is_stock(retriever, "langchain_core.vectorstores.") and name == "VectorStoreRetriever":
        is_plain = retriever.search_type in ("similarity", "mmr") and is_free_of_code(retriever.search_kwargs)
        is_plain = is_plain and is_published(retriever, ("invoke", "ainvoke", "_get_relevant_documents"))
        return _of_store(retriever.vectorstore) if is_plain else None
    if is_stock(retriever, *_CLASSIC):
        if name in ("EnsembleRetriever", "MergerRetriever"):
            return _all(retriever.retrievers)
        if name == "ContextualCompressionRetriever":
            return _all([retriever.base_retriever, retriever.base_compressor])
    return frozenset() if _is_bm25(retriever) else None


def _is_bm25(retriever: Any) -> bool:
    """Whether the retriever ranks its documents by the published code of LangChain and rank-bm25 alone."""
    own = vars(sys.modules.get("langchain_community.retrievers.bm25", types))
    if stock_class(retriever) is not own.get("BM25Retriever"):
        return False
    is_plain = retriever.preprocess_func is own["default_preprocessing_func"] and _is_ranker(retriever.vectorizer)
    return is_plain and is_published(retriever, ("invoke", "ainvoke", "_get_relevant_documents"))


def _is_ranker(vectorizer: Any) -> bool:
    cls, own = type(vectorizer), vars(sys.modules.get("rank_bm25", types))
    methods = [foreign.in_mro(cls, name) for name in ("get_top_n", "get_scores")]
    is_named = foreign.module_of(cls) == "rank_bm25" and own.get(type_name(cls)) is cls
    is_its = all(type(method) is types.FunctionType and method.__globals__ is own for method in methods)
    return is_named and is_its and {"get_top_n", "get_scores"}.isdisjoint(foreign.own_attributes(vectorizer) or {})


def _of_compressor(compressor: Any) -> Providers | None:
    if _is_ours(compressor):
        return _of_spec(compressor.spec)
    leaf = leaves.reranking(compressor)
    return None if leaf is None else _of_spec(leaf.spec)


def _all(components: list[Any]) -> Providers | None:
    found = [providers_of(each) for each in components]
    return None if any(each is None for each in found) else frozenset().union(*found)  # type: ignore[arg-type]


def _with_parts(component: Any) -> list[Any]:
    """Return a component with its retriever, store and embedding model."""
    found = [component]
    for each in found:
        parts = (foreign.own_attributes(each) or {}).values()
        fresh = [part for part in parts if any(foreign.is_kind_of(part, cls) for cls in _PARTS)]
        found += [part for part in fresh if not any(part is known for known in found)]
    return found


_PARTS = (BaseRetriever, VectorStore, Embeddings)


# --- requests --------------------------------------------------------------------------------------------------------


def act(
    run: Run, component: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], way: Way,
    providers: Providers, function: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return the result of a component's method, which may be a coroutine function, as a request."""
    is_tool = foreign.is_kind_of(component, BaseTool)
    run.require_unchanged(seen_by=None if is_tool else component)
    parts = _with_parts(component)
    for each in parts:
        run.require_as_set_before(each)
    is_search = bool(providers) and not is_tool
    exchange = Exchange(run)
    try:
        given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    except Undecided:
        asked = [*args, *kwargs.values()]
        is_safe = is_search and type(asked[0]) is Unknown and asked[0].holds == "text" and _are_counts(asked[1:])
        found = unknown_from(run, [list(args), dict(kwargs)], "any", is_safe=is_safe, more=frozenset([way.source]))
        return _to_come(run, component, method, found)
    bound = function or getattr(component, method)
    is_async = inspect.iscoroutinefunction(bound)
    spec = EngineSpec("python", component, type_name(type(component)), next(iter(providers), None))
    key = ("act", Same(component), method, value_key((given, named)))
    if not is_comparable(key[-1]):
        raise Barrier(f"what {spec.name} is asked cannot be compared")

    finds_own = _finds_own(component)
    if finds_own and run.has_changed(Document):
        raise Barrier("it has changed a document, which may be one of those that it searches")
    asked = [*given, *named.values()]
    if is_search and not (asked and type(asked[0]) in (str, list)):
        raise Barrier("it looks for what is no text")

    def begin() -> Any:
        return (aapart if is_async else apart)(way.context, lambda: bound(*given, **named))

    may_raise = is_tool and _may_refuse(component)
    request = Request(
        key, spec, "act", None, {}, _own, "any", may_raise, way.source, spec.name,
        run.begin_as_set_before(begin, parts), is_async, shares=finds_own,
    )  # fmt: skip
    found = run.ask(request)
    if finds_own:
        found = _kept_as_found(run, found)
    if type(found) is Unknown or foreign.is_kind_of(component, Embeddings):
        found = _to_come(run, component, method, found)
    if is_search and not (is_json(asked[0]) and _are_counts(asked[1:])):
        run.raises()  # the client refuses the text, or the store refuses the number of documents
    return found


def _are_counts(given: Sequence[Any]) -> bool:
    return all(type(each) is int and each > 0 for each in given)


_READ = ("page_content", "metadata", "id", "type")
"""Attributes of a document that may be read before it is there."""


def _to_come(run: Run, component: Any, method: str, found: Any) -> Any:
    """Return what is known of a search's result before the reply: each document is made for the search."""
    if foreign.is_kind_of(component, Embeddings):
        return embedded(run, component, found, are_several="documents" in method)
    is_of_store = foreign.is_kind_of(component, VectorStore)
    is_search = is_of_store or foreign.is_kind_of(component, BaseRetriever)
    if not is_search or _finds_own(component) or not are_published(Document, _READ):
        return found
    documents = Unknown("list", found.sources, over=("document",))
    if method.removeprefix("a") == "similarity_search_with_score":
        over = ZIPPED, documents, Unknown("list", found.sources, over=(float,))
        return Unknown("list", found.sources, over=over)
    return documents


def _finds_own(component: Any) -> bool:
    """Whether a search returns the component's own documents, so that changed documents are found changed later."""
    if foreign.is_kind_of(component, VectorStore):
        return faiss_stores.is_faiss(component) or (_is_in_memory(component) and not _holds_plain(component))
    if not foreign.is_kind_of(component, BaseRetriever):
        return False
    held = foreign.own_attributes(component) or {}
    inner = [*held.get("retrievers", ()), *(held[each] for each in ("vectorstore", "base_retriever") if each in held)]
    return _is_bm25(component) or any(map(_finds_own, inner))


MOST_DOCUMENTS = 5_000
"""Documents of a store in memory whose metadata is looked at: some 4 ms, a part of what a search of these takes."""

_PLAIN = frozenset(map(id, foreign.ATOMS))


def _holds_plain(store: Any) -> bool:
    """Whether the metadata in a store in memory holds plain values alone: others are found as the store's own."""
    rows = list(store.store.values())
    if len(rows) > MOST_DOCUMENTS or not all(type(each) is dict for each in rows):
        return False
    about = [each.get("metadata") for each in rows]
    if not all(type(each) is dict for each in about):
        return False
    held = itertools.chain.from_iterable([list(each.values()) for each in about])
    return _PLAIN.issuperset(map(id, map(type, held)))


def _kept_as_found(run: Run, found: Any) -> Any:
    """Return found documents, not to be changed; unknown where those of an earlier search are, and may be changed."""
    if type(found) is Unknown or run.awaited is not None:
        run.awaited = found if run.awaited is None else run.awaited
        return unknown_from(run, [found, run.awaited], "any", is_safe=True)
    todo = [found]
    while todo:
        part = todo.pop()
        todo += run.parts(part)
        if part is not found:
            run.fix(part)
    return found


def _own(value: Any) -> Any:
    return value


RunComponent = Callable[[Run, Any, Any, Way], Any]


def is_read(retriever: Any) -> bool:
    """Whether the retriever's services are known, with at least a single service outside the process."""
    if is_multi_query(retriever):
        return bool(_of_retriever(retriever.retriever))
    if is_compressed_by_model(retriever):
        return is_read(retriever.base_retriever) or _of_retriever(retriever.base_retriever) is not None
    return bool(_of_retriever(retriever))


def is_multi_query(retriever: Any) -> bool:
    """Whether the retriever asks a model for several queries, and searches for each in turn."""
    return is_stock(retriever, *_CLASSIC) and type_name(stock_class(retriever)) == "MultiQueryRetriever"


def asks_often(retriever: Any) -> bool:
    """Whether a search by the retriever makes several requests, one after the other."""
    return is_multi_query(retriever) or is_compressed_by_model(retriever)


def is_compressed_by_model(retriever: Any) -> bool:
    """Whether the retriever has a model extract from, or judge, each document that another retriever finds."""
    is_compressing = (
        is_stock(retriever, *_CLASSIC) and type_name(stock_class(retriever)) == "ContextualCompressionRetriever"
    )
    return is_compressing and _is_model_compressor(retriever.base_compressor)


def _is_model_compressor(compressor: Any) -> bool:
    """Whether a compressor asks a chain about each document, with the published input."""
    name, module = type_name(stock_class(compressor)), foreign.module_of(stock_class(compressor))
    if name not in _MODEL_COMPRESSORS or not is_stock(compressor, *_CLASSIC):
        return False
    own = vars(sys.modules.get(module, types)).get("default_get_input")
    return own is not None and compressor.get_input is own and type(compressor.llm_chain) is RunnableSequence


_MODEL_COMPRESSORS = ("LLMChainExtractor", "LLMChainFilter")


def retrieve(run: Run, retriever: Any, value: Any, way: Way, run_component: RunComponent) -> Any:
    """Return the documents that a retriever finds. Raises: Barrier."""
    providers = _of_retriever(retriever)
    if providers is not None:
        return act(run, retriever, "invoke", (value,), {}, way, providers)
    if is_multi_query(retriever):
        return _multi_query(run, retriever, value, way, run_component)
    if is_compressed_by_model(retriever):
        found = run_component(run, retriever.base_retriever, value, way)
        return _compress(run, retriever.base_compressor, found, value, way, run_component)
    return _retrieve_by_users_code(run, retriever, value, way)


def _retrieve_by_users_code(run: Run, retriever: Any, value: Any, way: Way) -> Any:
    own = own_search_of(retriever, is_async=way.is_async)
    if own is None:
        raise Barrier(f"it searches by an object of the class {type_name(stock_class(retriever))}")
    code = own.__code__
    takes = "run_manager" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    named = {"run_manager": Opaque(None, is_own=True)} if takes else {}
    found = call(run, run.load(own), (run.load(retriever), value), named)
    return returned(found, is_awaited=inspect.iscoroutinefunction(own))


def own_search_of(retriever: Any, *, is_async: bool = False) -> types.FunctionType | None:
    """Return the search function of a user's retriever; None for a library's, or if the user overrides more."""
    cls = stock_class(retriever)
    is_own = any(foreign.in_mro(cls, name) is not foreign.in_mro(BaseRetriever, name) for name in ("invoke", "ainvoke"))
    if is_own or foreign.is_library_class(cls) or not foreign.has_plain_lookup(cls):
        return None
    own = foreign.in_mro(cls, "_aget_relevant_documents") if is_async else None
    if own is None or own is foreign.in_mro(BaseRetriever, "_aget_relevant_documents"):
        own = foreign.in_mro(cls, "_get_relevant_documents")
    return own if type(own) is types.FunctionType and not foreign.is_of_library(own) else None


def _multi_query(run: Run, retriever: Any, value: Any, way: Way, run_component: RunComponent) -> Any:
    inner = _of_retriever(retriever.retriever)
    if inner is None:
        raise Barrier("it searches by a MultiQueryRetriever whose retriever is not known")
    queries = run_component(run, retriever.llm_chain, {"question": value}, way)
    if run.is_unknown(queries):
        return _to_come(run, retriever.retriever, "invoke", unknown_from(run, queries, "any", is_safe=False))
    if type(queries) is not list:
        raise Barrier("the queries of a MultiQueryRetriever are no list")
    asked = [*queries, value] if retriever.include_original else list(queries)
    found = [act(run, retriever.retriever, "invoke", (query,), {}, way, inner) for query in asked]
    try:
        exchange = Exchange(run)
        documents = [document for each in exchange.out(found) for document in each]
    except Undecided:
        return _to_come(run, retriever.retriever, "invoke", unknown_from(run, found, "any", is_safe=True))
    return exchange.back(retriever.unique_union(documents))


def _compress(
    run: Run, compressor: Any, documents: Any, query: Any, way: Way, run_component: RunComponent
) -> Any:  # fmt: skip
    """Return what a compressor makes of documents, asking its chain about one after the other. Raises: Barrier."""
    if run.is_unknown(documents):
        return unknown_from(run, [documents, query], "any", is_safe=False)
    if type(documents) is not list:
        raise Barrier("it compresses what is no list of documents")
    texts = [classes.attribute(run, each, "page_content") for each in documents]
    ways = [replace(way, source=round_of(way.source.component), kwargs={}) for _ in texts]
    said = [
        run_component(run, compressor.llm_chain, {"question": query, "context": text}, each)
        for text, each in zip(texts, ways, strict=True)
    ]
    exchange = Exchange(run)
    try:
        found, told = exchange.out([documents, said])
    except Undecided:
        return unknown_from(run, [documents, said], "any", is_safe=True)
    if type_name(stock_class(compressor)) == "LLMChainFilter":
        return exchange.back([each for each, is_kept in zip(found, told, strict=True) if is_kept is True])
    if not all(type(text) is str for text in told):
        raise Barrier("what is extracted is no text")
    return exchange.back(
        [Document(page_content=text, metadata=each.metadata) for each, text in zip(found, told, strict=True) if text]
    )


# --- tools -----------------------------------------------------------------------------------------------------------


_shared: list[Callable[[Any], bool]] = []
_instrumenting: list[Callable[[], None]] = []


def install(shares: Callable[[Any], bool], instrument_tools: Callable[[], None]) -> None:
    """Set `shares`: whether a tool only reads, and the framework's run takes its early value.

    `instrument_tools` makes calls of all loaded classes of such tools share early calls.
    """
    _shared[:] = [shares]
    _instrumenting[:] = [instrument_tools]


def instrument_loaded() -> None:
    """Make all that functions may ask, and is loaded, share early requests; see `hosted_embeddings`."""
    hosted_embeddings.instrument_loaded()
    for instrument in _instrumenting:
        instrument()


def provider_of_tool(tool: Any) -> Hashable:
    """Return the key of the service behind a tool, the same for calls that run ahead and for the framework's calls."""
    return "tool", foreign.module_of(type(tool)), type_name(type(tool)), tool.name


def use_tool(run: Run, tool: Any, value: Any, way: Way) -> Any:
    """Return the result of a read-only tool, or of a tool with a readable function. Raises: Barrier."""
    if any(way.settings.holds(shares, tool) for shares in _shared):
        name = "ainvoke" if way.is_async and has_coroutine(tool) else "invoke"
        return act(run, tool, name, (value,), {}, way, frozenset([provider_of_tool(tool)]))
    return _use_function(run, tool, value, way)


def _may_refuse(tool: Any) -> bool:
    """Whether a tool may raise an error although its service answers; most published tools of searches may not."""
    known = search_classes.tool_of(foreign.module_of(type(tool)), type_name(type(tool)))
    if known is not None:
        return known.if_empty == "error" or (known.if_empty == "tool error" and not tool.handle_tool_error)
    function = getattr(tool, "func", None)
    return type(function) is not types.FunctionType or function.__module__ != "langchain_core.tools.retriever"


def has_coroutine(tool: Any) -> bool:
    """Whether the asynchronous call of a tool runs a coroutine of its own, in place of its function in a thread."""
    if isinstance(tool, StructuredTool | Tool):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def has_clean_arguments(tool: Any) -> bool:
    """Whether checking the arguments of a tool runs no user code."""
    schema = tool.args_schema
    return foreign.is_class(schema) and foreign.has_known_classes(schema) and is_clean_schema(schema)


def _has_plain_schema(tool: Any) -> bool:
    return type(tool) is StructuredTool and has_clean_arguments(tool) and _may_be_left_out(tool)


def _takes_text(tool: Any, function: Any, value: Any) -> bool:
    """Whether a tool has a single argument, a text, which the function gets unchanged."""
    is_text = type(value) in (str, Unknown)
    is_simple = type(tool) is Tool and tool.args_schema is None and is_text
    return is_simple and "callbacks" not in inspect.signature(function).parameters


def _is_known_function(function: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether the function is one of Python, or a search of a published client."""
    if type(function) is types.MethodType:
        return is_own_method(function) and web_clients.searches(function.__self__, function.__func__.__name__)
    return type(function) is types.FunctionType


def _may_be_left_out(tool: Any) -> bool:
    """Whether the arguments that no model gives to a tool, if any, have defaults."""
    fields = tool.args_schema.model_fields
    return all(name in fields and not fields[name].is_required() for name in tool._injected_args_keys)


def _use_function(run: Run, tool: Any, value: Any, way: Way) -> Any:
    """Return the result of the function behind a stock tool, called as the tool calls the function."""
    function = tool.coroutine if way.is_async and getattr(tool, "coroutine", None) else getattr(tool, "func", None)
    is_call = type(value) is dict and value.get("type") == "tool_call"
    is_simple = tool.response_format == "content" and tool.callbacks is None and not tool.return_direct
    if type(tool) not in (StructuredTool, Tool) or not _is_known_function(function) or is_call or not is_simple:
        raise Barrier(f"it uses the tool {tool.name!r}", "declare that it only reads: @reads(...)")
    if _get_runnable_config_param(function) or not (_takes_text(tool, function, value) or _has_plain_schema(tool)):
        raise Barrier(f"it uses the tool {tool.name!r}, whose arguments are not plain")
    exchange = Exchange(run)
    given = exchange.out(value)
    try:
        args, named = outcome(lambda: tool._to_args_and_kwargs(given, None))
        found = call(run, run.load(function), exchange.back(tuple(args)), exchange.back(dict(named)))
        return returned(found, is_awaited=way.is_async and function is getattr(tool, "coroutine", None))
    except Exception as e:
        raise Barrier(f"the tool {tool.name!r} raises {type_name(type(e))}") from e
