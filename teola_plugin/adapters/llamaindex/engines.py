"""Query engines as primitives.

RetrieverQueryEngine      retriever -> postprocessors -> synthesizer
CitationQueryEngine       the same, with nodes cut into sources
TransformQueryEngine      transform -> the inner engine
SubQuestionQueryEngine    prefilling -> decoding, one question after the other -> call(answered), which is the run
                          of a tool's engine, ahead -> synthesizer
anything else             the engine's own run; inner components run ahead once reached (see parts.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.core.question_gen.types import SubQuestion
from llama_index.core.schema import NodeWithScore, QueryBundle

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.leaf import is_stock, is_stock_of
from teola_plugin.adapters.llamaindex.draft import Draft, star
from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import from_coroutine, is_model
from teola_plugin.adapters.llamaindex.postprocessors import add_postprocessor
from teola_plugin.adapters.llamaindex.reachable import asks_models_of_others, asks_outside, is_silent, reachable
from teola_plugin.adapters.llamaindex.reading_parts import is_read
from teola_plugin.adapters.llamaindex.rehearsal import QUERY_MARK, fresh, pieces, stand_in
from teola_plugin.adapters.llamaindex.retrievers import add_retriever
from teola_plugin.adapters.llamaindex.synthesizers import add_synthesizer
from teola_plugin.adapters.llamaindex.transforms import Query, add_transform
from teola_plugin.adapters.rehearsal import Asked, outcome, rehearse
from teola_plugin.graph import Ref

Nodes = list[NodeWithScore]


def add_engine(draft: Draft, engine: BaseQueryEngine, query: Query) -> str | None:
    """Add the answer of `engine` to `query`; returns the name of the result, None if the engine is left alone."""
    draft.reading(engine)
    if is_stock(engine, RetrieverQueryEngine):
        return _add_retrieval(draft, engine, query)
    if is_stock(engine, CitationQueryEngine) and _cuts_alone(engine):
        return _add_retrieval(draft, engine, query, _cited(engine))
    if is_stock(engine, TransformQueryEngine):
        return _add_transformed(draft, engine, query)
    if is_stock(engine, SubQuestionQueryEngine):
        return _add_sub_questions(draft, engine, query)
    if not is_read(engine):
        draft.leave("TB200", engine)
    return None


def _add_retrieval(draft: Draft, engine: Any, query: Query, cut: Callable[[Nodes], Nodes] | None = None) -> str | None:
    draft.rely_on(engine)
    draft.cover(engine)
    nodes = add_retriever(draft, engine._retriever, query)
    for postprocessor in engine._node_postprocessors:
        nodes = add_postprocessor(draft, postprocessor, nodes, query.text)
    if cut:
        draft.reading(engine)
        nodes = draft.call("sources", "cited", cut, nodes, is_rehearsal=True)
    return add_synthesizer(draft, engine._response_synthesizer, nodes, query.question) or nodes


def _cuts_alone(engine: Any) -> bool:
    """Whether no splitter of the user's cuts the engine's nodes."""
    is_multimodal = getattr(engine, "_multimodal", False)  # older releases have only text
    splitter = engine.text_splitter
    return not is_multimodal and is_stock_of(splitter, "llama_index") and is_free_of_code(splitter)


def _cited(engine: Any) -> Callable[[Nodes], Nodes]:
    return lambda nodes: outcome(lambda: stand_in(engine)._create_citation_nodes(fresh(nodes)))


def _add_transformed(draft: Draft, engine: Any, query: Query) -> str | None:
    draft.rely_on(engine)
    transformed = add_transform(draft, engine._query_transform, engine._transform_metadata or {}, query)
    if transformed is None:
        return None
    draft.cover(engine)
    return add_engine(draft, engine._query_engine, transformed)


# --- sub-questions ---------------------------------------------------------------------------------------------------


def _add_sub_questions(draft: Draft, engine: Any, query: Query) -> str | None:
    generator = engine._question_gen
    if not _is_readable(draft, generator):
        return None
    held = dict(engine._query_engines)
    read = {name: runs_alone(tool) for name, tool in held.items()}
    tools = {name for name, still in read.items() if still}
    is_outside = asks_outside(engine)
    if not tools or (is_outside and len(tools) < len(held)):  # another tool may raise before the next question
        draft.leave("TB217", engine)
        return None
    if asks_models_of_others(engine) and engine._use_async and not draft.is_async:
        draft.leave("TB215", engine)
        return None
    draft.rely_on(engine, generator, generator._llm)
    draft.rely_on_that(lambda: engine._query_engines == held and all(still() for still in read.values() if still))

    def asked(question: str) -> Asked:
        bundle = QueryBundle(question)
        return rehearse(lambda: stand_in(generator).generate(engine._metadatas, bundle))[0]

    first = asked(QUERY_MARK)
    if isinstance(first.payload, str):
        kv = draft.ask("kv", "prefilling", first.spec, *pieces(first.payload, QUERY_MARK, query.question))
    else:

        def request(question: str, is_async: bool) -> Any:
            payload = asked(question).payload
            return from_coroutine(payload) if is_async else payload

        kv = draft.ask(
            "kv", "prefilling", first.spec, Ref(draft.call("request", "request", request, query.question, "is_async"))
        )
    settings = {**({} if is_outside else {"items": "sub_questions"}), **first.settings}
    questions = draft.ask("questions", "decoding", first.spec, Ref(kv), depth=1 - is_outside, settings=settings)
    if is_outside:  # an unparsable list yields no questions, so no question of the list is asked before the list ends

        def parsed(text: str) -> list[SubQuestion]:
            found = list(generator._prompt.output_parser.parse(str(text)).parsed_output)
            if unknown := {each.tool_name for each in found} - tools:
                raise LookupError(f"no tool is called {', '.join(sorted(unknown))}")
            return found

        questions = draft.call("parsed", "parsed", parsed, questions, depth=1, may_raise=True)
    answers = draft.run(
        "answers", "answered", _answering(engine, tools, is_async=draft.is_async), star(questions), depth=1,
        is_outside=is_outside,
    )  # fmt: skip

    def nodes(pairs: Sequence[Any]) -> Nodes:
        return [engine._construct_node(pair) for pair in pairs if pair]

    draft.cover(engine)
    draft.run_ahead(*(held for name in tools for held in reachable(engine._query_engines[name])))
    return add_synthesizer(
        draft, engine._response_synthesizer, draft.call("nodes", "nodes", nodes, answers), query.question
    )


def _answering(engine: Any, tools: set[str], *, is_async: bool) -> Callable[..., Any]:
    """Return the function that runs a tool for one sub-question, as the engine itself does."""

    def read(item: Any) -> SubQuestion:
        asked = SubQuestion.model_validate(item)
        if asked.tool_name not in tools:
            raise LookupError(f"{asked.tool_name} is left to its own run")
        return asked

    def answered(item: Any) -> Any:
        return stand_in(engine)._query_subq(read(item))

    async def aanswered(item: Any) -> Any:
        return await stand_in(engine)._aquery_subq(read(item))

    return aanswered if is_async else answered


def _is_readable(draft: Draft, generator: Any) -> bool:
    draft.reading(generator)
    if not is_stock(generator, LLMQuestionGenerator):
        draft.leave("TB216", generator)
        return False
    if not is_model(generator._llm):
        draft.leave("TB208", generator, type(generator._llm).__name__)
        return False
    prompt = generator._prompt
    is_plain = is_stock(prompt, PromptTemplate) and is_plain_template(prompt, parser=SubQuestionOutputParser)
    if not is_plain:
        draft.leave("TB212", generator)
    return is_plain


def runs_alone(engine: Any) -> Callable[[], bool] | None:
    """Return whether an engine still runs without effects and without unpredicted requests, as a function.

    Such a run may be made early as a whole. None if the engine never qualified.
    """
    draft = Draft()
    is_alone = bool(add_engine(draft, engine, Query())) and draft.is_whole and all(map(is_silent, reachable(engine)))
    return draft.still_fits if is_alone else None
