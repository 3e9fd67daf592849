"""Stock evaluators that a program calls: what a judgement may do besides asking a model."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import EvaluationResult, FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms import LLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.leaf import is_stock, is_stock_of
from teola_plugin.adapters.llamaindex.models import has_clients_alike, is_ours
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.service import is_json
from teola_plugin.value_keys import Same

_TELLING = (FaithfulnessEvaluator, RelevancyEvaluator)
"""Evaluators that look for a word in a reply. They make an index and an engine for each judgement."""


def judgement_of(evaluator: Any) -> str | type:
    """Return the kind of a judgement to come: see `values.Unknown.holds`."""
    return "judgement" if any(is_stock(evaluator, each) for each in _TELLING) else EvaluationResult


def kind_of_judge(evaluator: Any) -> Hashable:
    """Return what tells an evaluator from others asked at the same place: a loop over several is read as a batch."""
    return type(evaluator), *(Same(each) for each in _models_in(evaluator))


def may_judge_apart(evaluator: Any, *, runs_loops: bool) -> bool:
    """Whether an evaluator's models can be asked without the event loop of its run. `runs_loops`: see `OwnRun`."""
    return all(is_ours(each) or (runs_loops and has_clients_alike(each)) for each in _models_in(evaluator))


def only_judges(evaluator: Any) -> bool:
    """Whether a judgement runs no code of the user's, and leaves the callbacks of its model as they are."""
    if not isinstance(evaluator, _TELLING):
        return True
    own = foreign.own_attributes(Settings) or {}
    stages = [own.get("_node_parser"), *(own.get("_transformations") or ())]
    are_stock = all(each is None or _only_cuts(each) for each in stages)
    manager = own.get("_callback_manager")
    managers = [each.callback_manager for each in _models_in(evaluator)]
    are_set = all(each is manager or not (each.handlers or (manager and manager.handlers)) for each in managers)
    return are_stock and are_set


def _only_cuts(parser: Any) -> bool:
    held = {**vars(parser), **foreign.private_of(parser)}
    is_plain = is_free_of_code([each for name, each in held.items() if name != "callback_manager"])
    return is_plain and is_stock_of(parser, "llama_index.core.node_parser")


def never_raises(evaluator: Any, method: str, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a judgement is one request that no client refuses, with a value whatever the reply."""
    if not any(is_stock(evaluator, each) for each in _TELLING) or evaluator._raise_error:
        return False
    names = ("query", "response", "contexts")[: 2 if method.endswith("_response") else 3]
    told = dict(zip(names, given, strict=False)) | dict(named)
    if len(given) > len(names) or not told.keys() <= set(names):
        return False
    texts = list(_texts(told))
    needed = texts if told.get("query") is not None or type(evaluator) is RelevancyEvaluator else texts[1:]
    return all(type(each) is str and is_json(each) for each in needed) and _fits(evaluator, needed)


def _texts(told: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the query, the response, and the contexts; None for what is no text."""
    response, contexts = told.get("response"), told.get("contexts")
    if type(response) is Response:
        nodes = [each.node for each in response.source_nodes]
        contexts = [each.text if type(each) is TextNode else None for each in nodes]
        response = response.response
    yield told.get("query")
    yield response
    yield from contexts if type(contexts) is list else [None]


def _fits(evaluator: Any, texts: Sequence[str]) -> bool:
    """Whether LlamaIndex's own prompt with these texts is one prompt of the model: a token has a byte or more."""
    module, own = sys.modules[type(evaluator).__module__], foreign.own_attributes(Settings) or {}
    templates = evaluator._eval_template, evaluator._refine_template
    are_own = all(any(each is held for held in vars(module).values()) for each in templates)
    if not are_own or not all(type(each) is PromptTemplate for each in templates):
        return False
    if any(own.get(name) is not None for name in ("_prompt_helper", "_chat_prompt_helper")):
        return False
    told = evaluator._llm.metadata
    room = told.context_window - max(told.num_output, 256) - 100
    return bool(sum(len(each.encode()) for each in [*texts, *(each.template for each in templates)]) <= room)


def _models_in(evaluator: Any) -> list[Any]:
    return [each for each in reachable(evaluator) if isinstance(each, LLM)]
