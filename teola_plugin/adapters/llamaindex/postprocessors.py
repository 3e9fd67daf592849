"""Node postprocessors as primitives.

    a cross-encoder           call(pairs) -> reranking -> call(top)
    LLMRerank                 call(prompts) -> prefilling -> decoding, one for each batch of nodes -> call(top)
    pure stock postprocessor  call
    anything else             @ pipeline: its own run tells the value

Pairs, prompts and orders are made by the components' own methods, in rehearsals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any
from weakref import WeakValueDictionary

from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from teola_plugin.adapters.early import is_harmless
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.llamaindex.draft import Draft, star
from teola_plugin.adapters.llamaindex.known import is_plain_template, is_reranker, reads_any_choice
from teola_plugin.adapters.llamaindex.models import from_coroutine, is_model
from teola_plugin.adapters.llamaindex.reachable import asks_outside
from teola_plugin.adapters.llamaindex.reading_parts import is_read
from teola_plugin.adapters.llamaindex.rehearsal import fresh, stand_in
from teola_plugin.adapters.rehearsal import outcome, rehearse
from teola_plugin.engines import Foreign

Nodes = list[NodeWithScore]
PURE_POSTPROCESSORS = (SimilarityPostprocessor, LongContextReorder, MetadataReplacementPostProcessor)


_in_graphs: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The LLM rerankers by id whose prompts some graph asks for."""


def is_in_graph(reranker: object) -> bool:
    """Whether a graph asks for the prompts of an LLM reranker."""
    return _in_graphs.get(id(reranker)) is reranker


def add_postprocessor(draft: Draft, postprocessor: BaseNodePostprocessor, nodes: str, query: str) -> str:
    """Add `postprocessor` on `nodes` and the `query`; returns the name of the remaining nodes."""
    draft.reading(postprocessor)
    if is_reranker(postprocessor) and (top := _add_reranking(draft, postprocessor, nodes, query)):
        return top
    if is_stock(postprocessor, LLMRerank) and (top := _add_llm_reranking(draft, postprocessor, nodes, query)):
        return top
    if any(is_stock(postprocessor, pure) for pure in PURE_POSTPROCESSORS):
        draft.rely_on_methods(type(postprocessor))

        def apply(query: str, nodes: Nodes) -> Nodes:
            return outcome(lambda: postprocessor._postprocess_nodes(fresh(nodes), QueryBundle(query)))

        return draft.call("nodes", "postprocess", apply, query, nodes)
    if not is_read(postprocessor):
        draft.leave("TB202", postprocessor)
    return draft.await_run("nodes", postprocessor, "postprocess", query, nodes)


def _add_reranking(draft: Draft, reranker: Any, nodes: str, query: str) -> str | None:
    def act(query: str, nodes: Nodes) -> Callable[[], Nodes]:
        return lambda: reranker._postprocess_nodes(fresh(nodes), QueryBundle(query))

    def pairs(query: str, nodes: Nodes) -> list[Any]:
        return [asked.payload for asked in rehearse(act(query, nodes))]

    def top(query: str, nodes: Nodes, scores: Sequence[float]) -> Nodes:
        return outcome(act(query, nodes), reranking=scores)

    asked = rehearse(act("question", [NodeWithScore(node=TextNode(text="passage"), score=1.0)]))
    if not asked:  # items cannot express its scores
        return None
    draft.rely_on(reranker)
    first = asked[0]
    pair_list = draft.call("pairs", "pairs", pairs, query, nodes, depth=1)
    scores = draft.ask("scores", "reranking", first.spec, star(pair_list), depth=1, settings=first.settings)
    return draft.call("top", "top", top, query, nodes, scores)


def _add_llm_reranking(draft: Draft, reranker: Any, nodes: str, query: str) -> str | None:
    """Add the prompts of an LLM reranker, all asked at once, since no prompt needs the answer to another."""
    functions = (reranker._format_node_batch_fn, reranker._parse_choice_select_answer_fn)
    if not all(map(is_harmless, functions)) or not is_plain_template(reranker.choice_select_prompt):
        return None
    if not is_model(reranker.llm):
        draft.leave("TB208", reranker, type(reranker.llm).__name__)
        return None
    if asks_outside(reranker) and not reads_any_choice(functions[1]):  # the run may end before the next prompt
        draft.leave("TB218", reranker)
        return None

    def asked(query: str, nodes: Nodes) -> list[Any]:
        double = stand_in(reranker)
        double._parse_raw_response = lambda *_: []  # the answers are not written yet
        return rehearse(lambda: double._postprocess_nodes(fresh(nodes), QueryBundle(query)), decoding=repeat(""))

    def prompts(query: str, nodes: Nodes, is_async: bool = False) -> list[Any]:
        payloads = [each.payload for each in asked(query, nodes)]
        return [from_coroutine(payload) for payload in payloads] if is_async else payloads

    def top(query: str, nodes: Nodes, answers: Sequence[str]) -> Nodes:
        double = stand_in(reranker)
        return outcome(lambda: double._postprocess_nodes(fresh(nodes), QueryBundle(query)), decoding=answers)

    first = asked("question", [NodeWithScore(node=TextNode(text="passage"), score=1.0)])[0]
    _in_graphs[id(reranker)] = reranker
    draft.rely_on(reranker, reranker.llm)
    mode = ("is_async",) if isinstance(first.payload, Foreign) else ()
    prompt_list = draft.call("choices", "rehearse_choices", prompts, query, nodes, *mode, depth=1, is_rehearsal=True)
    kvs = draft.ask("choice_kvs", "prefilling", first.spec, star(prompt_list), depth=1)
    answers = draft.ask("chosen", "decoding", first.spec, star(kvs), depth=1, settings=first.settings)
    return draft.call("top", "top", top, query, nodes, answers, is_rehearsal=True)
