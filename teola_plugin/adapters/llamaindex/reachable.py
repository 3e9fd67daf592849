"""The components inside a pipeline, at any depth: all components that an engine's own run may reach."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import BaseSelector
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.evaluation import BaseEvaluator
from llama_index.core.extractors import BaseExtractor
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import LLM
from llama_index.core.objects import ObjectRetriever
from llama_index.core.objects.base_node_mapping import BaseObjectNodeMapping
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.question_gen.types import BaseQuestionGenerator
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.tools import BaseTool
from llama_index.core.workflow import Workflow

from teola_plugin.adapters.llamaindex.hosted_embeddings import is_hosted
from teola_plugin.adapters.llamaindex.models import is_ours
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.values import Barrier, is_installed_file

try:
    from llama_index.core.base.query_pipeline.query import QueryComponent
    from llama_index.core.query_pipeline import QueryPipeline
except ImportError:  # from 0.13 on
    PIPELINES: tuple[type, ...] = ()
    MODULES: tuple[type, ...] = ()
else:
    PIPELINES, MODULES = (QueryPipeline,), (QueryComponent,)

HOLDERS = (
    BaseQueryEngine, BaseRetriever, BaseSynthesizer, BaseNodePostprocessor, BaseQueryTransform, BaseSelector,
    BaseQuestionGenerator, BaseChatEngine, BaseEvaluator, BaseExtractor, BaseTool, ObjectRetriever,
    BaseObjectNodeMapping, Workflow, *MODULES,
)  # fmt: skip
"""Components that may hold components."""

LIBRARIES = frozenset(["llama_index", "workflows", "pydantic", "builtins", "abc", "typing"])

_MODELS = "teola_plugin.models."
"""Our models, which hold an engine of any class."""

MOST = 1000
"""The number of components, lists and dictionaries inspected; further components are left to the pipeline's own run."""


def reachable(pipeline: Any, leaves: tuple[type, ...] = ()) -> list[Any]:
    """Return the components inside `pipeline`, itself first, each once.

    LLMs and `leaves` are among them, but not searched. Plain objects of the user's classes are searched last.
    """
    return _search(pipeline, leaves)[0]


def plain_objects(pipeline: Any) -> list[Any]:
    """Return the objects of the user's classes inside `pipeline` that are no components."""
    return _search(pipeline, ())[1]


def _search(pipeline: Any, leaves: tuple[type, ...]) -> tuple[list[Any], list[Any]]:
    wanted = (*HOLDERS, *leaves, LLM)

    def is_worth_a_look(value: Any) -> bool:
        return issubclass(type(value), (*wanted, list, tuple, Mapping)) or _is_plain(value)

    found: dict[int, Any] = {}
    plain: dict[int, Any] = {}
    waiting: list[Any] = [pipeline]
    postponed: list[Any] = []
    for _ in range(MOST):
        if not waiting:
            waiting, postponed = postponed, waiting
        if not waiting:
            break
        each = waiting.pop(0)
        cls = type(each)
        if id(each) in found or id(each) in plain:
            continue
        inside: Iterable[Any] = ()
        if issubclass(cls, HOLDERS) or each is pipeline:
            found[id(each)] = each
            inside = _held(each)
        elif issubclass(cls, wanted):
            found[id(each)] = each
        elif issubclass(cls, list | tuple | Mapping):
            inside = each.values() if issubclass(cls, Mapping) else each
        elif _is_plain(each):
            plain[id(each)] = each
            inside = _attributes(each)
        is_on_engine = any(str(vars(each).get("__module__")).startswith(_MODELS) for each in cls.__mro__)
        for held in filter(is_worth_a_look, inside):
            if not _is_plain(held):
                waiting.append(held)
            elif not is_on_engine:  # its engine asks for nothing by itself
                postponed.append(held)
    return list(found.values()), list(plain.values())


def _is_plain(value: Any) -> bool:
    """Whether the value is an object of a user's class that only holds attributes."""
    cls = type(value)
    if issubclass(cls, (*HOLDERS, LLM, BaseEmbedding, Mapping, type)):
        return False
    try:
        is_users = foreign.has_plain_lookup(cls) and _is_users(foreign.module_of(cls))
        return is_users and foreign.own_attributes(value) is not None
    except Barrier:  # a class that cannot be looked at
        return False


def _attributes(plain: Any) -> Iterator[Any]:
    """Yield the values of a plain object's attributes, and of its classes' own."""
    for cls in foreign.mro_of(type(plain)):
        if _is_users(foreign.module_of(cls)):
            yield from foreign.namespace_of(cls).values()
    yield from (foreign.own_attributes(plain) or {}).values()


@functools.cache
def _is_users(module: str) -> bool:
    """Whether a module is the user's own, and neither installed nor of the standard library."""
    root = module.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return root not in ("", *LIBRARIES, "teola_plugin", *sys.stdlib_module_names) and not is_installed_file(file)


def _held(component: Any) -> Iterator[Any]:
    """Yield the values of a component's attributes, private pydantic attributes and user class attributes included."""
    for cls in type(component).__mro__:
        if cls.__module__.partition(".")[0] not in LIBRARIES and "__teola__" not in vars(cls):
            yield from vars(cls).values()
    for state in (getattr(component, "__dict__", {}), getattr(component, "__pydantic_private__", None) or {}):
        yield from state.values()


def asks_models_of_others(pipeline: Any) -> bool:
    """Whether the pipeline has a model that is not on an engine of ours."""
    return any(isinstance(each, LLM) and not is_ours(each) for each in reachable(pipeline))


def asks_outside(pipeline: Any) -> bool:
    """Whether requests to a model of the pipeline leave this process."""
    models: list[Any] = [m for m in reachable(pipeline, (BaseEmbedding,)) if isinstance(m, LLM | BaseEmbedding)]
    is_elsewhere = any(map(is_hosted, models)) or any(model.spec.is_outside for model in models if is_ours(model))
    return asks_models_of_others(pipeline) or is_elsewhere


def is_silent(component: Any) -> bool:
    """Whether the component prints nothing."""
    return not any(getattr(component, name, False) for name in ("_verbose", "verbose"))
