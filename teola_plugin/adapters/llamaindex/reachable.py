"""The components inside a pipeline, at any depth: all components that an engine's own run may reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

MOST = 1000
"""The number of components, lists and dictionaries inspected; further components are left to the pipeline's own run."""


def reachable(pipeline: Any, leaves: tuple[type, ...] = ()) -> list[Any]:
    """Return the components inside `pipeline`, itself first, each once.

    LLMs and `leaves` are among them, but not searched.
    """

    def is_worth_a_look(value: Any) -> bool:
        return isinstance(value, (*HOLDERS, *leaves, LLM, list, tuple, Mapping))

    found: dict[int, Any] = {}
    waiting: list[Any] = [pipeline]
    for _ in range(MOST):
        if not waiting:
            break
        each = waiting.pop(0)
        if id(each) in found:
            continue
        if isinstance(each, HOLDERS) or each is pipeline:
            found[id(each)] = each
            waiting += filter(is_worth_a_look, _held(each))
        elif isinstance(each, (LLM, *leaves)):
            found[id(each)] = each
        elif isinstance(each, list | tuple | Mapping):
            waiting += filter(is_worth_a_look, each.values() if isinstance(each, Mapping) else each)
    return list(found.values())


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
