"""Components that a program makes: models, retrievers, engines, synthesizers, postprocessors and evaluators.

    llm = OpenAI(model="gpt-4o-mini")
    engine = RetrieverQueryEngine.from_args(VectorIndexRetriever(index=index), llm=llm)

The components are really made, by LlamaIndex's own constructors, of plain arguments and known components: no request is
made. LlamaIndex gives the callbacks of `Settings` to the models and postprocessors of what it makes. Where these have
them already, or were made by the program too, nothing is left behind.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import llama_index.core
from llama_index.core import Settings, VectorStoreIndex, get_response_synthesizer
from llama_index.core import postprocessor as postprocessors
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.evaluation import (
    AnswerRelevancyEvaluator,
    ContextRelevancyEvaluator,
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    RelevancyEvaluator,
)
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from pydantic import BaseModel

from teola_plugin.adapters.llamaindex.models import as_set_now, is_model, is_of_package, is_structured
from teola_plugin.adapters.llamaindex.reading_models import is_template, require_plain_template
from teola_plugin.adapters.llamaindex.reading_parts import class_of, original_of
from teola_plugin.adapters.llamaindex.unblocked import only_asks
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_schema
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Undecided, isinstance_of, shown
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.value_keys import Same, is_comparable, value_key

_OF_INDEXES = ("as_retriever", "as_query_engine")

_ALONE = (VectorIndexRetriever, postprocessors.SimilarityPostprocessor, postprocessors.MetadataReplacementPostProcessor)
"""Classes whose constructors use nothing but their arguments."""

_JUDGING = (
    postprocessors.LLMRerank, AnswerRelevancyEvaluator, ContextRelevancyEvaluator, CorrectnessEvaluator,
    FaithfulnessEvaluator, RelevancyEvaluator,
)  # fmt: skip
"""Classes of components that leave their model as it is. Left out is `GuidelineEvaluator`, which changes a template
that all of them share."""

_ENGINE_OF: Callable[..., Any] = RetrieverQueryEngine.from_args
_WRITER_OF: Callable[..., Any] = get_response_synthesizer

_PARTS = (LLM, BaseEmbedding, VectorStoreIndex, BaseRetriever, BaseQueryEngine, BaseSynthesizer, BaseNodePostprocessor)
"""Classes of the objects that components are made of."""

_TOLD = (LLM, BaseSynthesizer, BaseNodePostprocessor)
"""Classes of the parts that get other callbacks when something is made of them."""


def is_made(cls: type) -> bool:
    """Whether an object of the class is made without a trace."""
    is_known = foreign.is_one_of(cls, _ALONE) or _asks(cls) or _is_model_class(cls)
    making = foreign.in_mro(cls, "__init__")
    return is_known and (making is BaseModel.__init__ or is_of_package(making))


def _asks(make: Any) -> bool:
    """Whether what a class or function makes asks a model."""
    return _sets_callbacks(make) or (foreign.is_class(make) and foreign.is_one_of(make, _JUDGING))


def _sets_callbacks(make: Any) -> bool:
    """Whether making something gives other callbacks to its model and postprocessors."""
    if not foreign.is_class(make):
        return make not in (VectorStoreIndex.as_retriever, as_structured_llm)
    is_writer = foreign.module_of(make).startswith("llama_index.core.response_synthesizers.")
    return make is RetrieverQueryEngine or (is_writer and foreign.is_subtype(make, BaseSynthesizer))


def _is_model_class(cls: type) -> bool:
    return any(
        vars(sys.modules.get(f"llama_index.llms.{module}", types)).get(name) is cls
        for module, name in (("openai", "OpenAI"), ("openai_like", "OpenAILike"))
    )


def maker_of(held: Any, name: str = "") -> Callable[..., Any] | None:
    """Return the function or method of LlamaIndex's that makes a component; None for any other.

    `held`: the function, or an index or class with the method.
    """
    if held is get_response_synthesizer and not name:
        return _WRITER_OF
    if held is RetrieverQueryEngine and name == "from_args":
        function = foreign.in_mro(RetrieverQueryEngine, name)
        return _ENGINE_OF if is_of_package(getattr(function, "__func__", None)) else None
    if name == "as_structured_llm":
        is_its_own = foreign.is_kind_of(held, LLM) and is_of_package(foreign.in_mro(type(held), name))
        return as_structured_llm if is_its_own and is_model(held) else None
    if name not in _OF_INDEXES or not foreign.is_kind_of(held, VectorStoreIndex):
        return None
    is_replaced = any(each in (foreign.own_attributes(held) or _OF_INDEXES) for each in _OF_INDEXES)
    is_stock = class_of(held) is VectorStoreIndex and is_of_package(foreign.in_mro(VectorStoreIndex, name))
    if is_replaced or not is_stock:
        return None
    return as_query_engine if name == "as_query_engine" else VectorStoreIndex.as_retriever


def as_query_engine(index: Any, llm: Any = None, **settings: Any) -> Any:
    """Return `index.as_query_engine(llm, **settings)`, which would first set the model's callbacks to the index's."""
    return RetrieverQueryEngine.from_args(VectorStoreIndex.as_retriever(index, **settings), llm=llm, **settings)


def as_structured_llm(llm: Any, output_cls: Any, **settings: Any) -> Any:
    """Return `llm.as_structured_llm(output_cls, **settings)`."""
    return StructuredLLM(llm=llm, output_cls=output_cls, **settings)


class Builder:
    """Makes components, each once in a call: equal arguments give the same object.

    `model_of_settings`: returns `Settings.llm` for a run.
    """

    def __init__(self, model_of_settings: Callable[[Run], Any]) -> None:
        self._model_of_settings = model_of_settings
        self._made: dict[Hashable, tuple[Any, Any, Opaque]] = {}

    def has_made(self, component: Any) -> bool:
        """Whether the component was made here."""
        return any(made.held is component for _, _, made in self._made.values())

    def method(self, held: Any, name: str, make: Callable[..., Any]) -> Callee:
        """Return the method of an index or class that makes a component."""
        if foreign.is_class(held):
            return Callee(lambda run, args, kwargs: self.make(run, make, args, kwargs), name)
        index = Opaque(original_of(held))
        return Callee(lambda run, args, kwargs: self.make(run, make, (index, *args), kwargs), name)

    def make(self, run: Run, make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a constructor or function makes. Raises: Barrier, Undecided, and the errors of the call."""
        name, exchange = make.__name__, Exchange(run)
        given = [_argument(run, exchange, each) for each in args]
        named = {key: _argument(run, exchange, each) for key, each in kwargs.items()}
        parts = [each for value in (*args, *kwargs.values()) for each in _parts_in(value)]
        if named.get("streaming") or named.get("tokenizer"):
            raise Barrier(f"it calls {name} in an unusual way")
        if _asks(make):
            self._complete(run, name, make, parts, given, named)
        key = (Same(make), _key_of(given), tuple((key, _key_of(each)) for key, each in sorted(named.items())))
        if any(not is_comparable(each) for each in _leaves(key)):
            raise Barrier(f"it makes a {name} of what cannot be compared")
        nodes = [list(each.index_struct.nodes_dict.values()) for each in given if type(each) is VectorStoreIndex]
        if key in self._made and self._made[key][1] != nodes:  # by the run, which may have asked it already
            raise Barrier(f"it makes a {name} of an index that has changed")
        if key not in self._made:
            made = outcome(lambda: make(*given, **named))
            is_alike = is_structured(made) or (isinstance(made, LLM) and as_set_now(made).is_known_by_settings)
            if isinstance(made, LLM) and not is_alike:
                raise Barrier(f"it makes a {name} that is not known by its settings")
            if not isinstance(made, LLM) and not only_asks(made):
                raise Barrier(f"it makes a {name}, of which it is not known that it only asks")
            self._made[key] = (given, named), nodes, Opaque(made, is_own=True, is_alone=not isinstance(made, LLM))
        return self._made[key][2]

    def _complete(
        self, run: Run, name: str, make: Any, parts: list[Opaque], given: list[Any], named: dict[str, Any]
    ) -> None:
        """Add the model of the settings for what is given none. Raises: Barrier if something would be left behind."""
        function = make.__init__ if foreign.is_class(make) else make
        signature = inspect.signature(function)
        bound = signature.bind(*([None] if foreign.is_class(make) else []), *given, **named).arguments
        takes_model = "llm" in signature.parameters
        model = None
        if bound.get("llm" if takes_model else "response_synthesizer") is None:
            model = self._model_of_settings(run)
            parts.append(model)
            if takes_model:
                named["llm"] = model.held
        if not all(is_model(each.held) for each in parts if isinstance(each.held, LLM)):
            raise Barrier(f"it calls {name} without a known model")
        if not _sets_callbacks(make):
            return
        manager = (foreign.own_attributes(Settings) or {}).get("_callback_manager")
        if manager is None or llama_index.core.global_tokenizer is None:
            raise Barrier(f"it calls {name}, which sets defaults of Settings")
        given_parts = [each.held for each in parts if isinstance(each.held, _TOLD) and not each.is_own]
        if model is not None and not (manager.handlers or model.held.callback_manager.handlers):
            given_parts = [
                each for each in given_parts if each is not model.held
            ]  # any use of `Settings.llm` sets them
        if any(each.callback_manager is not manager for each in given_parts):
            raise Barrier(f"it calls {name}, which sets the callbacks of its parts")


def _argument(run: Run, exchange: Exchange, value: Any) -> Any:
    """Return an argument of a constructor: plain data, components, plain templates and clean classes."""
    if type(value) is list:
        if run.is_tainted(value):
            raise Undecided
        return [_argument(run, exchange, each) for each in value]
    if type(value) is not Opaque:
        return exchange.out(value)
    held = value.held
    if is_template(held):
        require_plain_template(held)
        return held
    is_schema = foreign.is_class(held) and foreign.has_known_classes(held) and is_clean_schema(held)
    if is_schema or foreign.is_kind_of(held, LLM) or foreign.is_kind_of(held, BaseEmbedding):
        return held
    if foreign.is_kind_of(held, VectorStoreIndex) and class_of(held) is VectorStoreIndex:
        return original_of(held)
    is_index = foreign.is_kind_of(held, VectorStoreIndex)
    if not is_index and any(foreign.is_kind_of(held, each) for each in _PARTS) and only_asks(held):
        return original_of(held)
    raise Barrier(f"it hands {shown(value)} to a component")


def _parts_in(value: Any) -> list[Opaque]:
    values = value if type(value) is list else [value]
    return [each for each in values if isinstance_of(each, Opaque)]


def _key_of(value: Any) -> Hashable:
    """Return a key, equal for arguments with equal results. A template may be made anew in each reading."""
    if type(value) is list:
        return (list, *map(_key_of, value))
    is_object = foreign.is_class(value) or any(foreign.is_kind_of(value, each) for each in _PARTS)
    return Same(value) if is_object else value_key(value)


def _leaves(key: Any) -> list[Any]:
    return [leaf for each in key for leaf in _leaves(each)] if type(key) is tuple else [key]
