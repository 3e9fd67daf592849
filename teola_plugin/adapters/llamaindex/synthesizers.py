"""Response synthesizers as primitives. A rehearsal of the synthesizer itself yields the prompts of an answer.

    accumulate, simple_summarize   all prompts are known after retrieval; asked one by one by a call without coroutines
    tree_summarize                 the prompts of the leaves likewise; each level follows the answers of the level below
    refine, compact                the first prompt is known; of the later prompts, with chat templates, the text before
                                   the existing answer, which is prefilled while the first answer is written
    generation                     one prompt, known from the start

An unknown answer is a *mark*. A prompt without a mark is final; a prompt with a mark is known up to the mark. Later
prompts (deeper levels, later refinements) are left to the framework's own run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain, repeat
from typing import Any

from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate, SelectorPromptTemplate
from llama_index.core.response_synthesizers import (
    Accumulate,
    BaseSynthesizer,
    CompactAndRefine,
    Generation,
    Refine,
    SimpleSummarize,
    TreeSummarize,
)
from llama_index.core.response_synthesizers.compact_and_accumulate import CompactAndAccumulate
from llama_index.core.schema import NodeWithScore, TextNode

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.llamaindex.draft import Draft, star
from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import from_coroutine, is_model, is_stream
from teola_plugin.adapters.llamaindex.rehearsal import QUERY_MARK, fresh, pieces, stand_in
from teola_plugin.adapters.rehearsal import Asked, rehearse
from teola_plugin.codes import CODES
from teola_plugin.engines import Foreign
from teola_plugin.graph import Ref

KNOWN = (CompactAndAccumulate, Accumulate, CompactAndRefine, Refine, SimpleSummarize, TreeSummarize, Generation)
"""The known synthesizers, subclasses first."""

GATHERS = (Accumulate, TreeSummarize)
"""Synthesizers that make all possible requests at once in coroutines. A rehearsal could only hinder them."""

LEVELS = 3
"""The number of early levels of a tree above its leaves. Three suffice for the leaves of a thousand nodes."""

MARK = "\u241fanswer\u241f"
"""The mark of an answer that no model has written yet."""


def add_synthesizer(draft: Draft, synthesizer: BaseSynthesizer, nodes: str, question: str) -> str | None:
    """Add the answer of `synthesizer` to `question` from `nodes`; returns its name, None if left alone."""
    draft.reading(synthesizer)
    if not _is_readable(draft, synthesizer):
        return None
    prompts = _Prompts(synthesizer)
    draft.rely_on(synthesizer._llm)
    draft.rely_on_that(prompts.has_its_model)
    draft.rely_on_methods(PromptTemplate, ChatPromptTemplate, SelectorPromptTemplate)
    draft.cover(synthesizer)
    first = prompts.first()
    if is_stream(first.payload) and not isinstance(synthesizer, TreeSummarize):
        draft.leave("TB210", synthesizer)
        return None
    is_foreign = isinstance(first.payload, Foreign)
    mode = ("is_async",) if is_foreign or isinstance(synthesizer, GATHERS) else ()
    if is_foreign and _uses_coroutines(synthesizer):
        draft.leave("TB215", synthesizer, hint="call it from a coroutine, or without use_async")
    if is_stock(synthesizer, Generation):
        return _add_generation(draft, prompts, first, mode, question)
    asked = draft.call("asked", "rehearse", prompts.asked, question, nodes, *mode, is_rehearsal=True)
    answers = _add_answers(draft, "answers", draft.call("prompts", "prompts", _payloads, asked, depth=1), first)
    if isinstance(synthesizer, Refine):
        draft.leave("TB214", synthesizer)
    if isinstance(synthesizer, Refine) and _is_context_first(synthesizer):
        prefixes = draft.call("prefixes", "prefixes", _known_prefixes, asked, depth=1)
        draft.ask("warm", "partial_prefilling", first.spec, star(prefixes), depth=1)
    if isinstance(synthesizer, TreeSummarize):
        return _add_levels(draft, prompts, first, mode, (question, nodes), answers)
    return answers


def _add_levels(
    draft: Draft, prompts: _Prompts, first: Asked, mode: tuple[str, ...], given: tuple[str, str], answers: str
) -> str:
    """Add the levels of a tree above its leaves, each from all answers below. A finished tree has no further levels."""
    levels = [answers]
    for _ in range(LEVELS):
        above = draft.call(
            "asked_above", "rehearse_above", prompts.asked_above, *given, *mode, *levels, is_rehearsal=True
        )
        prompts_above = draft.call("prompts_above", "prompts", _payloads, above, depth=1)
        levels.append(_add_answers(draft, "answers_above", prompts_above, first))
    return levels[-1]


def _add_answers(draft: Draft, name: str, prompts: str, like: Asked) -> str:
    kvs = draft.ask("kvs", "prefilling", like.spec, star(prompts), depth=1)
    return draft.ask(name, "decoding", like.spec, star(kvs), depth=1, settings=like.settings)


def _add_generation(draft: Draft, prompts: _Prompts, first: Asked, mode: tuple[str, ...], text: str) -> str:
    if isinstance(first.payload, str):
        kv = draft.ask("kv", "prefilling", first.spec, *pieces(first.payload, QUERY_MARK, text))
        return draft.ask("answer", "decoding", first.spec, Ref(kv), settings=first.settings)

    def asked(question: str, is_async: bool) -> list[Asked]:
        return prompts.asked(question, [], is_async)

    requests = draft.call("asked", "rehearse", asked, text, *mode)
    return _add_answers(draft, "answers", draft.call("prompts", "prompts", _payloads, requests, depth=1), first)


def _is_readable(draft: Draft, synthesizer: BaseSynthesizer) -> bool:
    code = _obstacle(synthesizer)
    if code is None:
        return not (synthesizer._streaming and isinstance(synthesizer, Accumulate))  # a streaming one raises in the run
    draft.leave(code, synthesizer, type(synthesizer._llm).__name__ if code == "TB208" else "")
    return False


def _obstacle(synthesizer: BaseSynthesizer) -> str | None:
    """Return the code of the obstacle to a rehearsal, None without an obstacle."""
    if not any(is_stock(synthesizer, c) for c in KNOWN):
        return "TB209"
    if getattr(synthesizer, "_multimodal", False) or synthesizer._output_cls or _filters_answers(synthesizer):
        return "TB211"
    if not is_model(synthesizer._llm):
        return "TB208"
    if not is_free_of_code(synthesizer._prompt_helper):  # the helper counts tokens
        return "TB209"
    if not all(is_plain_template(t) for t in vars(synthesizer).values() if isinstance(t, BasePromptTemplate)):
        return "TB212"
    return None


def _filters_answers(synthesizer: BaseSynthesizer) -> bool:
    return bool(getattr(synthesizer, "_structured_answer_filtering", False))


def certain_requests(synthesizer: BaseSynthesizer, question: str, nodes: Sequence[NodeWithScore]) -> list[Asked]:
    """Return the requests that a call without coroutines makes whatever the replies say; none if it is not readable.

    Of a tree in coroutines only a single leaf, which is asked without one.
    """
    if _obstacle(synthesizer) or synthesizer._streaming:
        return []
    asked = _Prompts(synthesizer).rehearsed(question, nodes)
    if _uses_coroutines(synthesizer) and not (isinstance(synthesizer, TreeSummarize) and len(asked) == 1):
        return []
    return [each for each in asked if MARK not in str(each.payload)]


class _Prompts:
    """The requests of a synthesizer, from its rehearsals. The settings are read anew each time, the model is not."""

    def __init__(self, synthesizer: BaseSynthesizer) -> None:
        self._synthesizer = synthesizer
        self._llm = synthesizer._llm

    def has_its_model(self) -> bool:
        """Whether the synthesizer still has the model that the graph asks."""
        return self._synthesizer._llm is self._llm

    def asked(self, question: str, nodes: Sequence[NodeWithScore], is_async: bool = False) -> list[Asked]:
        """Return every request, in order; from the second on, requests may depend on unknown answers."""
        return self.asked_after(question, nodes, (), is_async)

    def asked_above(
        self, question: str, nodes: Sequence[NodeWithScore], is_async: bool, *levels: Sequence[str]
    ) -> list[Asked]:
        """Return the requests of the level above these answers; none above the root."""
        if len(levels[-1]) < 2:
            return []
        return self.asked_after(question, nodes, list(chain.from_iterable(levels)), is_async)

    def asked_after(
        self, question: str, nodes: Sequence[NodeWithScore], answers: Sequence[str], is_async: bool = False
    ) -> list[Asked]:
        """Return the requests after the requests answered by `answers`."""
        synthesizer = self._synthesizer
        if isinstance(synthesizer, GATHERS) and (is_async or _uses_coroutines(synthesizer)):
            return []
        if code := _obstacle(synthesizer):  # it was changed after it had been read
            raise LookupError(f"{type(synthesizer).__name__}: {CODES[code]}")
        asked = self.rehearsed(question, nodes, answers)[len(answers) :]
        if is_async:
            return [a._replace(payload=from_coroutine(a.payload)) for a in asked]
        # The framework will ask in coroutines, on an event loop that does not exist yet.
        return [a for a in asked if not (_uses_coroutines(synthesizer) and isinstance(a.payload, Foreign))]

    def first(self) -> Asked:
        """Return the first request for a sample node, with `QUERY_MARK` as the question."""
        return self.rehearsed(QUERY_MARK, [_node("context")])[0]

    def rehearsed(self, question: str, nodes: Sequence[NodeWithScore], answers: Sequence[str] = ()) -> list[Asked]:
        """Return the requests of a rehearsal without coroutines."""
        double = stand_in(self._synthesizer, _use_async=False)
        if isinstance(double, Refine):
            double._program_factory = double._default_program_factory
        return rehearse(lambda: _read(double.synthesize(question, fresh(nodes))), decoding=chain(answers, repeat(MARK)))


def _uses_coroutines(synthesizer: BaseSynthesizer) -> bool:
    return bool(getattr(synthesizer, "_use_async", False))


def _read(response: Any) -> None:
    """Exhaust a streaming response, which asks its model only then."""
    stream = getattr(response, "response_gen", None)
    if isinstance(stream, Generator):
        for _ in stream:
            pass


def _payloads(asked: Sequence[Asked]) -> list[Any]:
    return [a.payload for a in asked if MARK not in str(a.payload) and not is_stream(a.payload)]


def _known_prefixes(asked: Sequence[Asked]) -> list[str]:
    return [_known_prefix(a) for a in asked if MARK in str(a.payload)]


def _known_prefix(asked: Asked) -> str:
    return str(asked.payload).split(MARK, 1)[0]


def _is_context_first(synthesizer: BaseSynthesizer) -> bool:
    """Whether later prompts of a refinement have their context before the existing answer, so prefilling pays."""
    double = stand_in(synthesizer)
    double.__class__ = Refine  # no compaction, so two nodes make two steps
    asked = _Prompts(double).asked("question", [_node("first context"), _node("second context")])
    return len(asked) == 2 and isinstance(asked[1].payload, str) and "second context" in _known_prefix(asked[1])


def _node(text: str) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text), score=1.0)
