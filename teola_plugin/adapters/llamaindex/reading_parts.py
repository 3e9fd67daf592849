"""Components used by a program: stock components run beside the call, components of the user's classes are read.

stock      one request: the component's own method, with callbacks muted; the engine requests land in slots, where
           the framework's own run finds them. Only components without further effects.
own        `custom_query`, `_query`, `_retrieve` or `_postprocess_nodes` is read, and then the treatment of the value
           by the framework's method around it
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import wrapt
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import BaseEvaluator
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from teola_plugin.adapters import chroma, sdk_clients, web_clients
from teola_plugin.adapters.llamaindex.hosted_embeddings import is_hosted
from teola_plugin.adapters.llamaindex.judges import (
    judgement_of,
    kind_of_judge,
    may_judge_apart,
    never_raises,
    only_judges,
)
from teola_plugin.adapters.llamaindex.known import (
    answers_with_text,
    finds_text_nodes,
    is_asked_each_time,
    is_embedder,
    is_store,
    keeps_nodes,
    writes_text,
)
from teola_plugin.adapters.llamaindex.models import beside_loops, is_ours
from teola_plugin.adapters.llamaindex.reachable import plain_objects, reachable
from teola_plugin.adapters.llamaindex.reading_settings import as_set, places_set
from teola_plugin.adapters.llamaindex.unblocked import only_asks
from teola_plugin.adapters.methods import is_as_published, is_shared, without_replacements
from teola_plugin.adapters.reader import classes, foreign
from teola_plugin.adapters.reader.arrays import embedded
from teola_plugin.adapters.reader.asking import NOT_MINE, TOLD, Request
from teola_plugin.adapters.reader.attributes import bound, set_attribute
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.calls import compiled, returned
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.mentions import functions_in, is_harmless, mentioned
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.records import new_record
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Opaque, Undecided, Unknown, type_name
from teola_plugin.adapters.service import is_json, service_of
from teola_plugin.adapters.source import TWIN_OF
from teola_plugin.engines import EngineSpec
from teola_plugin.value_keys import Same, is_comparable, value_key

METHODS: Mapping[type, tuple[str, ...]] = {
    BaseRetriever: ("retrieve",),
    BaseQueryEngine: ("query", "retrieve", "synthesize"),
    BaseSynthesizer: ("synthesize", "get_response"),
    BaseNodePostprocessor: ("postprocess_nodes",),
    BaseEmbedding: (
        "get_query_embedding", "get_text_embedding", "get_text_embedding_batch", "get_agg_embedding_from_queries",
    ),
    BaseEvaluator: ("evaluate", "evaluate_response"),
}  # fmt: skip
"""The methods of components that a program may call, each with a coroutine of the same name after an `a`."""


_VECTORS = ("get_query_embedding", "get_text_embedding", "get_text_embedding_batch")
"""The methods, and the ends of the names of their coroutines, that return vectors."""


def class_of(component: Any) -> type:
    """Return the class of a component, below our twin's."""
    return next(each for each in foreign.mro_of(type(component)) if "__teola__" not in foreign.namespace_of(each))


def original_of(component: object) -> object:
    """Return the original of a twin; any other component itself."""
    return vars(type(component)).get(TWIN_OF, component)


def kind_of(held: Any) -> type | None:
    """Return the key of `METHODS` that an object is a kind of."""
    return next((kind for kind in METHODS if foreign.is_kind_of(held, kind)), None)


def methods_of(held: Any) -> tuple[str, ...]:
    """Return the methods of a component or vector store that a program may call; see `METHODS`."""
    kind = kind_of(held)
    if kind is not None:
        return METHODS[kind]
    return ("query",) if foreign.is_kind_of(held, BasePydanticVectorStore) else ()


# --- stock components ------------------------------------------------------------------------------------------------


def told_key(component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return the key of a component's reported value; None if the arguments cannot be compared."""
    asked = value_key((list(args), dict(kwargs)))
    return key_of(component, method, asked) if is_comparable(asked) else None


def key_of(component: Any, method: str, asked: Hashable) -> Hashable:
    """Return the key of a component's reported value. `asked`: the key of the arguments."""
    return TOLD, Same(component), method, asked


Reports = Callable[[Any, str, Hashable], Any]


class Parts:
    """Stock components, each inspected once in a call. `is_async`: whether the call has an event loop.

    The value of a component with other possible effects is reported by the framework's own run, and so is the value of
    a component in which the framework's run is when reading goes on. `reports`: returns the component whose value
    the framework's run reports, for the latter. `runs_loops`: whether the run is on no event loop, and may run one.
    """

    def __init__(
        self, *, is_async: bool, reports: Reports = lambda *asked: None,
        runs_loops: bool = False,
    ) -> None:  # fmt: skip
        self._is_async = is_async
        self._runs_loops = runs_loops
        self._reports = reports
        self._known: dict[int, tuple[Any, bool, Hashable | None]] = {}

    def use(self, run: Run, component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a component's method, as a request. Raises: Barrier."""
        may_begin, provider = self._known_of(component)
        name = type_name(class_of(component))
        is_entered = run.open is not None and not foreign.is_kind_of(component, BaseEmbedding)
        if not may_begin and not tells(component, method):
            raise Barrier(f"it uses a {name}, of which it is not known that it only asks")
        is_async = method.startswith("a")
        if is_async and not self._is_async:
            raise Barrier(f"it awaits {method} in a call without an event loop")
        if method.endswith("get_text_embedding_batch") and is_hosted(component):  # requests of batches are not shared
            raise Barrier(f"it embeds several texts with a {name}", "embed the texts one by one")
        judges = foreign.is_kind_of(component, BaseEvaluator)
        holds = judgement_of(component) if judges else "any"
        source = Same(component)
        exchange = Exchange(run)
        bundle = _bundle_to_embed(component, method, args, kwargs)
        places, asked_of, state = places_set(run, component), component, None
        try:
            asked_of, state = as_set(run, component, places)
            given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
        except Undecided:
            values = [_looked_for(each) for each in (*args, *kwargs.values())]
            is_sure = _is_text_to_come(values) or (_is_embedded(args, kwargs) and type(values[0]) is str)
            is_sure = is_sure and (not _searches(component, method) or run.is_true(values[0]))
            is_sure = is_sure or bool(_made_of_nodes(component, method, args, kwargs))
            is_safe = may_begin and not judges and is_sure and not places
            found = unknown_from(run, [args, dict(kwargs)], holds, is_safe=is_safe, more=frozenset([source]))
            _embed(run, bundle, found.sources)
            if foreign.is_kind_of(component, BaseEmbedding) and not places and may_begin and method.endswith(_VECTORS):
                return embedded(run, component, found, are_several=method.endswith("batch"))
            return _to_come(component, method, found, args, kwargs) if may_begin else found
        is_search = provider is not None and method.removeprefix("a") not in _OF_NODES
        if is_search and not all(type(each) in _LOOKED_FOR and is_json(_text_of(each)) for each in given[:1]):
            raise Barrier("it looks for what is no text")
        if _searches(component, method) and any(map(_is_empty, [*given[:1], *named.values()])):
            raise Barrier(f"it lets a {name} look for an empty text, which may raise")
        if judges and not is_async and not may_judge_apart(component, runs_loops=self._runs_loops):
            raise Barrier(f"it calls {method} of a {name}, which makes an event loop", f"await a{method}")
        if judges and not only_judges(component):
            raise Barrier(f"it calls {method} of a {name}, which may do more than ask")
        if judges and not all(map(is_json, filter(_is_text, [*given, *named.values()]))):
            raise Barrier("it has judged what is no text")
        nodes = [each for value in (*given, *named.values()) if type(value) is list for each in value]
        if not all(foreign.is_library_class(type(each.node)) for each in nodes if type(each) is NodeWithScore):
            raise Barrier(f"it gives nodes of a class of its own to a {name}")
        asked = value_key((given, named))
        if not is_comparable(asked):
            raise Barrier(f"what {name} is asked cannot be compared")
        if is_entered:  # the component runs ahead by itself
            told = self._reports(component, method, asked) if may_begin else None
            if told is None or run.counts[key_of(told, method, asked)]:
                raise Barrier(f"the run is in a {name} already")
            component, source, may_begin = told, Same(told), False
        elif not may_begin:
            run.begin_beside_unread()
        spec = EngineSpec("python", component, name, provider)
        act: Callable[[], Any] | None = None
        if may_begin:
            run.require_as_set_before(component, places)
            act = functools.partial(getattr(asked_of, method), *given, **named)
            act = functools.partial(beside_loops, act) if judges and not is_async else act
            act = functools.partial(_embedding, act, exchange.out(bundle)) if bundle is not None else act
            act = run.begin_as_set_before(act, [component], places)
        op = "act" if may_begin else TOLD
        key = (op, source if state is None else (source, state), method, asked)
        may_raise = judges and not never_raises(component, method, given, named)
        place = kind_of_judge(component) if judges else source
        _embed(run, bundle, frozenset([source]))  # by what raises, too
        found = run.ask(Request(key, spec, op, None, {}, _same, holds, may_raise, place, name, act, is_async))
        if type(found) is Unknown:
            _embed(run, bundle, found.sources)
        elif bundle is not None and may_begin:
            found, vector = found
            set_attribute(run, bundle, "embedding", vector)
        if type(found) is not Unknown:
            _fix_shared(run, found, method)
        if foreign.is_kind_of(component, BaseEmbedding) and not places and may_begin and method.endswith(_VECTORS):
            return embedded(run, component, found, are_several=method.endswith("batch"))
        return _to_come(component, method, found, args, kwargs) if may_begin and type(found) is Unknown else found

    def _known_of(self, component: Any) -> tuple[bool, Hashable | None]:
        """Return whether a component only asks, and the provider outside this process, if any."""
        known = self._known.get(id(component))
        if known is None:
            is_model = foreign.is_kind_of(component, BaseEmbedding)
            only = _only_embeds(component) if is_model else only_asks(component)
            known = self._known[id(component)] = component, only, _provider_of(component) if only else None
        return known[1], known[2]


def _only_embeds(model: Any) -> bool:
    return is_embedder(model) and is_asked_each_time(model) and is_as_published(class_of(model))


def _same(value: Any) -> Any:
    return value


# Some retrievers note the question's embedding in the bundle that they are given, so that the next one does not ask.

_NOT_NOTED: Any = vars(VectorIndexRetriever)["_aretrieve"]


def _bundle_to_embed(component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> QueryBundle | None:
    """Return the bundle in which the method may note an embedding."""
    found = [each for each in (*args, *kwargs.values()) if type(each) is QueryBundle and each.embedding is None]
    is_kept = method == "aretrieve" and foreign.in_mro(class_of(component), "_aretrieve") is _NOT_NOTED
    return found[0] if len(found) == 1 and not is_kept else None


def _embed(run: Run, bundle: QueryBundle | None, sources: frozenset[Hashable]) -> None:
    if bundle is not None:
        set_attribute(run, bundle, "embedding", Unknown("vector", sources))


def _embedding(act: Callable[[], Any], bundle: QueryBundle) -> Any:
    """Return the result of an act, and the embedding that the act leaves in a bundle."""
    found = act()
    if not inspect.isawaitable(found):
        return found, bundle.embedding

    async def awaited() -> Any:
        return await found, bundle.embedding

    return awaited()


def _is_embedded(args: Arguments, kwargs: Mapping[str, Any]) -> bool:
    """Whether the only argument is a bundle with an embedding, or none, that the component will find there."""
    asked = [*args, *kwargs.values()]
    return len(asked) == 1 and _looked_for(asked[0]) is not asked[0]


def _looked_for(asked: Any) -> Any:
    """Return the text of a bundle, of which nothing else is not known yet but its embedding; else what is given."""
    if type(asked) is not QueryBundle or asked.image_path is not None or asked.custom_embedding_strs is not None:
        return asked
    vector: Any = asked.embedding
    return asked.query_str if type(vector) is Unknown and vector.holds == "vector" else asked


def _fix_shared(run: Run, found: Any, method: str) -> None:
    """Forbid changes of lists and dicts in the metadata of found nodes: a store in memory holds the same objects."""
    todo = [(found, False)] if method.removeprefix("a") in ("retrieve", "query") else []
    while todo:
        part, is_held = todo.pop()
        if is_held and type(part) in (list, dict, set):
            run.fix(part)
        todo += [(each, is_held or type(part) is dict) for each in run.parts(part)]


def _to_come(component: Any, method: str, found: Unknown, args: Arguments, kwargs: Mapping[str, Any]) -> Unknown:
    """Return what is known of the result before the reply, of a component that only asks."""
    cls, name = class_of(component), method.removeprefix("a")
    kind = _made_of_nodes(component, method, args, kwargs)
    if kind == "list" or (name == "retrieve" and finds_text_nodes(component, cls)):
        return Unknown("list", found.sources, over=("found node",))
    if kind or (name == "query" and cls is RetrieverQueryEngine and answers_with_text(component)):
        return Unknown("response", found.sources)
    return found


_OF_NODES = {"postprocess_nodes": ("nodes", "query_bundle", "query_str"), "synthesize": ("query", "nodes")}
"""The parameters of methods that take nodes."""


def _made_of_nodes(component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> str:
    """Return the kind of what a stock component makes of found nodes, whichever these are; "" where it may raise."""
    name = method.removeprefix("a")
    names = _OF_NODES.get(name, ())
    told = dict(zip(names, args, strict=False)) | dict(kwargs)
    nodes = told.pop("nodes", None)
    asked = [each for each in told.values() if each is not None]
    if len(args) > len(names) or not told.keys() <= set(names) or len(asked) > 1 or not _are_found(nodes):
        return ""
    if not all(type(text := _text_of(each)) is str or _is_text_to_come([text]) for each in asked):
        return ""
    if name == "synthesize":
        return "response" if asked and writes_text(component) else ""
    return "list" if keeps_nodes(component, class_of(component), is_asked=bool(asked)) else ""


def _are_found(nodes: Any) -> bool:
    """Whether these are nodes of texts that a search finds, or will find."""
    if type(nodes) is list:
        return all(type(each) is NodeWithScore and type(each.node) is TextNode for each in nodes)
    return type(nodes) is Unknown and nodes.over == ("found node",)


_LOOKED_FOR = (str, list, QueryBundle, VectorStoreQuery)


def _searches(component: Any, method: str) -> bool:
    """Whether a component searches, or may: an empty text has no embedding, and then LlamaIndex's store raises."""
    name = method.removeprefix("a")
    return name in ("retrieve", "query") and not foreign.is_kind_of(component, BaseEmbedding)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is list and all(type(each) is str for each in value))


def _is_empty(value: Any) -> bool:
    text = _text_of(value)
    return type(text) is str and not text


def _is_text_to_come(asked: Sequence[Any]) -> bool:
    """Whether a component is asked with a single text that is not known yet, and so does not raise."""
    return len(asked) == 1 and type(asked[0]) is Unknown and asked[0].holds == "text"


def _text_of(value: Any) -> Any:
    return value.query_str if type(value) is QueryBundle else value


def tells(component: Any, method: str) -> bool:
    """Whether the component's method is LlamaIndex's, intercepted to report results, without a user's override."""
    return is_shared(class_of(component), method) and not is_replaced(component, method)


def _provider_of(component: Any) -> Hashable | None:
    for each in reachable(component, (BaseEmbedding, BasePydanticVectorStore)):
        if isinstance(each, LLM | BaseEmbedding) and is_ours(each):
            spec: EngineSpec = each.spec  # type: ignore[union-attr]
            provider = spec.provider
        elif isinstance(each, LLM) or is_hosted(each):
            provider = service_of(each)
        else:
            provider = getattr(chroma.spec_of(each._collection), "provider", None) if is_store(each) else None
        if provider is not None:
            return provider
    return None


# --- components of the user's own classes ----------------------------------------------------------------------------


def is_own(component: Any) -> bool:
    """Whether a component is of a user's class, whose functions are read."""
    return kind_of(component) in _READ and not foreign.is_library_class(class_of(component))


def is_read(component: Any) -> bool:
    """Whether the component has a user function that may make requests."""
    try:
        if not is_own(component):
            return False
        found = (function_of(component), function_of(component, is_async=True))
        functions = [each for each in (*found, *overrides_of(component).values()) if each is not None]
        return bool(functions) and may_ask(component, functions)
    except Barrier:  # the class is unreadable
        return False


def may_ask(component: Any, functions: Sequence[types.FunctionType]) -> bool:
    """Whether these functions of a component may make requests: to inner components, or to what they name."""
    for function in functions:
        for each in functions_in(function):
            compiled(each)
    clients = (*web_clients.loaded(), *sdk_clients.loaded())
    if len(reachable(component, (BaseEmbedding, VectorStoreIndex, *clients))) > 1:
        return True
    methods = [each for held in plain_objects(component) for each in foreign.methods_of(type(held))]
    return any(not is_harmless(value) for function in (*functions, *methods) for value in mentioned(function))


def function_of(component: Any, *, is_async: bool = False, is_inherited: bool = False) -> types.FunctionType | None:
    """Return the user's function read for a component; None if the framework's method around it was changed, too.

    `is_async`: the function that the framework's coroutine calls. `is_inherited`: a user's method calls that of
    the framework as `super()`'s.
    """
    cls = class_of(component)
    base = CustomQueryEngine if foreign.is_subtype(cls, CustomQueryEngine) else kind_of(component)
    if base is None or base not in _READ or not foreign.has_known_classes(cls) or not is_as_published(base):
        return None
    around, name = _READ[base]
    around = tuple(map(_coroutine, around)) if is_async else around
    own = foreign.own_attributes(component)
    if own is None or any(each in own for each in (*around, name, _coroutine(name))):
        return None
    if any(foreign.in_mro(cls, each) is not foreign.in_mro(base, each) for each in around[is_inherited:]):
        return None
    return (own_function(cls, base, _coroutine(name)) if is_async else None) or own_function(cls, base, name)


def is_replaced(component: Any, method: str) -> bool:
    """Whether a user's code may override a framework's method: in a class, or in the object."""
    try:
        own = foreign.own_attributes(component)
        owner = foreign.owner_in_mro(class_of(component), method)
        return own is None or method in own or (owner is not None and not foreign.is_library_class(owner))
    except Barrier:  # the class is unreadable
        return True


def replacement_of(component: Any, method: str) -> types.FunctionType | None:
    """Return the user's readable override of a framework's method, in a class."""
    cls = class_of(component)
    if not foreign.has_known_classes(cls) or not is_replaced(component, method):
        return None
    own = foreign.own_attributes(component)
    function = without_span(foreign.in_mro(cls, method)) if own is not None and method not in own else None
    if function is None or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return None
    return function


def replacements_of(component: Any, names: Iterable[str]) -> dict[str, types.FunctionType]:
    """Return the user's readable overrides of methods, and of their coroutines, by name."""
    methods = [each for name in names for each in (name, f"a{name}")]
    found = {each: function for each in methods if (function := replacement_of(component, each)) is not None}
    return {name: each for name, each in found.items() if inspect.iscoroutinefunction(each) is name.startswith("a")}


def overrides_of(component: Any) -> dict[str, types.FunctionType]:
    """Return the user's readable overrides of the method by which the framework uses a component of a user's class."""
    kind = kind_of(component)
    return {} if kind is None else replacements_of(component, METHODS[kind][:1])


def surrounded(held: Any) -> types.FunctionType | None:
    """Return the user's function inside a span, or inside a replacement of ours; None for any other object."""
    function = without_span(held)
    return None if function is None or function is held or foreign.is_of_library(function) else function


def _coroutine(name: str) -> str:
    return f"_a{name[1:]}" if name.startswith("_") else f"a{name}"


_READ: Mapping[type, tuple[tuple[str, ...], str]] = {
    CustomQueryEngine: (("query",), "custom_query"),
    BaseQueryEngine: (("query",), "_query"),
    BaseRetriever: (("retrieve", "_handle_recursive_retrieval"), "_retrieve"),
    BaseNodePostprocessor: (("postprocess_nodes",), "_postprocess_nodes"),
}
"""By class: the framework's methods that call the user's method, and the method's name, without the coroutines' `a`."""


def own_function(cls: type, base: type, name: str) -> types.FunctionType | None:
    """Return the function of a user's class that overrides the method of `base`."""
    found = foreign.in_mro(cls, name)
    return None if found is foreign.in_mro(base, name) else without_span(found)


def without_span(found: Any) -> types.FunctionType | None:
    """Return a function, or the function inside a LlamaIndex span; None for any other object."""
    found = without_replacements(found)
    if type(found) is types.FunctionType:
        return found
    if type(found) is not wrapt.FunctionWrapper:
        return None
    inner, wrapper = found.__wrapped__, found._self_wrapper
    is_span = type(wrapper) is types.FunctionType and foreign.is_of_library(wrapper)
    if not is_span or not str(wrapper.__globals__["__name__"]).endswith(".dispatcher"):
        return None
    return inner if type(inner) is types.FunctionType else None


def read_own(
    run: Run, component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any], *, is_inherited: bool = False
) -> Any:
    """Return the result of `component.method(*args, **kwargs)`, for a user's class. Raises: Barrier.

    `is_inherited`: see `function_of`.
    """
    kind, is_async = kind_of(component), method.startswith("a")
    function = function_of(component, is_async=is_async, is_inherited=is_inherited)
    if is_inherited and function is not None and foreign.is_of_library(function):
        function = None
    name = type_name(class_of(component))
    if function is None or kind is None or method.removeprefix("a") != METHODS[kind][0]:
        raise Barrier(f"it calls {method} of {name}")
    if kind is BaseNodePostprocessor:
        return _called(run, component, function, _nodes_and_query(run, *args, **kwargs))
    query = _query_in(component, method, args, kwargs)
    if kind is BaseRetriever:
        return _found(run, _called(run, component, function, (_bundle(query),)))
    if foreign.is_subtype(class_of(component), CustomQueryEngine):
        text = classes.attribute(run, query, "query_str") if type(query) is QueryBundle else query
        return _answered(run, _called(run, component, function, (text,)))
    return _called(run, component, function, (_bundle(query),))


def is_taken_apart(component: Any, method: str) -> bool:
    """Whether a stock query engine is read part by part: a user's class is among its parts.

    Such an engine cannot run beside the call as a whole, as the user's functions must not run early.
    """
    if class_of(component) is not RetrieverQueryEngine or method not in ("query", "aquery"):
        return False
    own = foreign.own_attributes(component) or {}
    is_stock = own.keys().isdisjoint(_OF_ENGINE) and tells(component, method) and is_as_published(RetrieverQueryEngine)
    return is_stock and any(map(is_own, (own.get("_retriever"), *(own.get("_node_postprocessors") or ()))))


_OF_ENGINE = frozenset({
    "query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "_apply_node_postprocessors",
    "_async_apply_node_postprocessors",
})  # fmt: skip
"""The methods through which a query engine runs."""


def read_apart(
    run: Run, engine: Any, method: str, args: Arguments, kwargs: Mapping[str, Any], use: Callable[..., Any]
) -> Any:
    """Return the response of a stock query engine, read as LlamaIndex runs it; see `is_taken_apart`. Raises: Barrier.

    `use`: returns the result of a component's method, as `Parts.use`.
    """
    query = _query_in(engine, method, args, kwargs)
    run.require_as_set_before(engine)
    prefix, bundle = method.removesuffix("query"), _bundle(query)

    def used(component: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return returned(use(run, component, prefix + name, args, kwargs), is_awaited=True)

    nodes = used(engine._retriever, "retrieve", bundle)
    for each in engine._node_postprocessors:
        nodes = used(each, "postprocess_nodes", nodes, query_bundle=bundle)
    return used(engine._response_synthesizer, "synthesize", query=bundle, nodes=nodes)


def _query_in(component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Return the only argument of a call. Raises: Barrier for a call with more or other arguments."""
    query = kwargs.get("str_or_query_bundle") if kwargs else args[0] if len(args) == 1 else None
    if len(args) + len(kwargs) != 1 or query is None:
        raise Barrier(f"it calls {method} of {type_name(class_of(component))} in an unusual way")
    return query


def _called(run: Run, component: Any, function: types.FunctionType, args: Arguments) -> Any:
    value = call(run, run.load(function), (run.load(component), *args), {})
    return returned(value, is_awaited=inspect.iscoroutinefunction(function))


def _bundle(query: Any) -> Any:
    if type(query) is str or (type(query) is Unknown and query.holds == "text"):
        return new_record(
            QueryBundle, {"query_str": query, "image_path": None, "custom_embedding_strs": None, "embedding": None}
        )
    if type(query) is QueryBundle:
        return query
    raise Undecided if type(query) is Unknown else Barrier("it asks with what is no text")


def _nodes_and_query(run: Run, nodes: Any, query_bundle: Any = None, query_str: Any = None) -> Arguments:
    if query_bundle is not None and query_str is not None:
        raise ValueError("Cannot specify both query_str and query_bundle")
    return nodes, (_bundle(query_str) if query_str is not None else query_bundle)


def _answered(run: Run, value: Any) -> Any:
    """Return the response that `query` of a custom query engine makes of a text."""
    if type(value) is Unknown and value.holds != "text":
        return run.unknown(value, is_safe=True)
    if type(value) is str or type(value) is Unknown:
        return new_record(Response, {"response": value, "source_nodes": [], "metadata": None})
    return value


def _found(run: Run, nodes: Any) -> Any:
    """Return the nodes that `retrieve` makes of the nodes found: each once."""
    if type(nodes) is not list or run.is_unknown(nodes):
        return unknown_from(run, nodes, "any", is_safe=False)
    kept, seen = [], set[Any]()
    for each in nodes:
        if run.is_unknown(each):
            return unknown_from(run, nodes, "any", is_safe=False)
        if type(each) is not NodeWithScore:
            raise Barrier("it finds what is no NodeWithScore")
        node = classes.attribute(run, each, "node")
        if foreign.is_kind_of(node, IndexNode):
            raise Barrier("it finds a node that stands for another retriever")
        number = classes.attribute(run, node, "id_")
        if type(number) is Unknown:
            return unknown_from(run, nodes, "any", is_safe=False)
        if number not in seen:
            seen.add(number)
            kept.append(each)
    return kept


# --- attributes ------------------------------------------------------------------------------------------------------


def own_attribute(run: Run, owner: Opaque, name: str) -> Any:
    """Return a user component's attribute beyond the reader's knowledge of objects: methods with spans, private fields.

    `asking.NOT_MINE` for any other attribute.
    """
    held = owner.held
    found = without_replacements(foreign.in_mro(type(held), name))
    if type(found) is wrapt.FunctionWrapper:
        function = without_span(found)
        if function is None or foreign.is_of_library(function):
            raise Barrier(f"it calls {name} of {foreign.describe(owner)}")
        return bound(run, function, owner, name)
    if not name.startswith("_") or found is not foreign.MISSING or facts_of(type(held)).kind != "component":
        return NOT_MINE
    private = foreign.private_of(held)
    return run.load(private[name]) if name in private else NOT_MINE
