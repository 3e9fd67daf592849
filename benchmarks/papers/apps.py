"""The applications of the paper as templates, each as a chain of modules and with independent modules side by side.

    APPS["C advanced RAG"].graph("chain")         LlamaDist's: one module after the other, as order edges
    APPS["C advanced RAG"].graph("parallel")      LlamaDistPC's: what is independent side by side, by hand
    APPS["C advanced RAG"].inputs(7)              what query 7 asks, of seeded sizes and texts

Ours are the passes on the chain. Engines by name: `llm` (core), `small_llm` (proxy and judge), `writer_llm` (2B, writes
contexts), `embedder`, `reranker`, `store`, `search`, `tools`. A token is four characters, in documents as in the
simulator; decodings write as many tokens as `max_tokens` says, and lists have `shape`.

Source of the applications: arXiv 2407.00326 (Ayo), section 7.1 and figure 2; of each length: beside it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from teola_plugin.graph import Graph
from teola_plugin.templates import (
    Branches,
    Chain,
    Chunking,
    Component,
    Condition,
    Embedding,
    Generation,
    Ingestion,
    QueryExpansion,
    Reranking,
    Searching,
    Situating,
    Step,
    Synthesis,
    Tool,
    WebSearch,
)
from teola_plugin.templates.decompose import decompose
from teola_plugin.templates.functions import CHARACTERS

# --- lengths, in tokens ---------------------------------------------------------------------------------------------

QUESTION_TOKENS = (8, 28)
"""WebQuestions and TruthfulQA have short questions, HotpotQA longer ones; the range is assumed."""

CHUNKS = (32, 64)
"""Of a document: 48 in the mean, as the embedding requests of figure 4; the spread is assumed."""

CHUNK_TOKENS, OVERLAP_TOKENS = 256, 30
"""Section 7.1."""

CONTEXT_TOKENS = 64
"""That the 2B model writes for a chunk: contextual retrieval, as published, has 50 to 100."""

EXPANSION_TOKENS = 48
"""Three queries of 16 tokens: the prototype's logs have 15 to 18 for each."""

ANSWER_TOKENS = 10
"""Of each call of a synthesis: `max_tokens` in the prototype's examples."""

PROXY_TOKENS, JUDGE_TOKENS, SEARCH_ANSWER_TOKENS = 32, 4, 32
"""Of app A: a draft in a sentence or two, yes or no, an answer in a sentence or two; assumed."""

PLAN_TOKENS, AGENT_ANSWER_TOKENS = 48, 64
"""Of app E: three calls of 16 tokens, a paragraph; assumed."""

SEARCHED = 0.75
"""So many questions does the judge send to the search; assumed. A verdict that says yes or no is taken at its word."""

INSTRUCTION = (
    "You are an assistant with access to the results of a web search. Read the question and the results, decide which"
    " of them bear on it, and answer in one or two sentences. Name no source that is not among the results, and say so"
    " if they do not answer it.\n"
)
"""About 60 tokens, section 7.1."""

THREE_LINES = MappingProxyType({"shape": "lines:3"})
"""What an engine that waits by a profile writes."""

Parallel = bool
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class PaperApp:
    """`graph("chain" | "parallel")`; `functions` by fn=; `inputs(number)`: of one query; `engines`: names."""

    graph: Callable[[str], Graph]
    functions: Mapping[str, Callable[..., Any]]
    inputs: Callable[[int], Mapping[str, Any]]
    engines: tuple[str, ...]
    template: Callable[[Parallel], Step]
    """`template(parallel)`: as a user writes it."""


# --- templates ------------------------------------------------------------------------------------------------------


def needs_search(verdict: str) -> bool:
    """What the judge said; of a text that says neither yes nor no its checksum decides."""
    said = verdict.strip().lower()
    if said.startswith(("yes", "no")):
        return said.startswith("yes")
    return zlib.crc32(verdict.encode()) % 100 < 100 * SEARCHED


def search_engine_generation(parallel: Parallel) -> Step:
    """A small LLM drafts an answer and judges whether it needs a search; the core LLM answers from the results."""
    draft = Generation(
        "Answer this question in a sentence from what you know.\nQuestion: {question}\nAnswer: ", to="draft",
        engine="small_llm", max_tokens=PROXY_TOKENS, name="proxy",
    )  # fmt: skip
    judge = Generation(
        "Is a web search needed to answer this question, or is the draft right? Say yes or no.\nQuestion: {question}\n"
        "Draft: {draft}\nVerdict: ", to="verdict", engine="small_llm", max_tokens=JUDGE_TOKENS, name="judge",
    )  # fmt: skip
    search = WebSearch(top_k=4, takes={"queries": "question"})
    searched = Condition(needs_search, of="verdict", then=search, name="needs_search")
    answer = Generation(
        INSTRUCTION + "Question: {question}\nResults: {results}\nAnswer: ", to="answer",
        max_tokens=SEARCH_ANSWER_TOKENS, name="core",
    )  # fmt: skip
    return draft >> judge >> searched >> answer


def naive_rag(parallel: Parallel) -> Step:
    """Answers from each of the three best chunks, and one from these answers."""
    synthesis = Synthesis(mode="tree", max_tokens=ANSWER_TOKENS)
    return _retrieved(parallel, _indexing(), _query_embedding("question")) >> Searching(3, embedder=None) >> synthesis


def advanced_rag(
    parallel: Parallel, *, chunk: tuple[int, int] = (CHUNK_TOKENS, OVERLAP_TOKENS), writing: Settings = THREE_LINES,
    answering: Settings = MappingProxyType({}),
) -> Step:  # fmt: skip
    """Three queries, 16 chunks for each, the best three of them, an answer that is improved twice.

    `chunk`: tokens, and how many of them overlap. `writing` and `answering`: what the LLM is told for queries, answers.
    """
    expansion = QueryExpansion(3, max_tokens=EXPANSION_TOKENS, settings=writing)
    found = _retrieved(parallel, _indexing(*chunk), expansion >> _query_embedding("queries"))
    found = found >> Searching(16, embedder=None) >> Reranking(3)
    return found >> Synthesis(mode="refine", max_tokens=ANSWER_TOKENS, settings=answering)


def contextual_retrieval(parallel: Parallel) -> Step:
    """A 2B model writes a context for each chunk; of 32 found the best three are read at once."""
    writing = Situating(neighbours=4, engine="writer_llm", max_tokens=CONTEXT_TOKENS)
    indexing = Chunking(CHUNK_TOKENS, OVERLAP_TOKENS) >> writing >> Embedding() >> Ingestion()
    found = _retrieved(parallel, indexing, _query_embedding("question")) >> Searching(32, embedder=None)
    return found >> Reranking(3) >> Synthesis(mode="one-shot", max_tokens=ANSWER_TOKENS)


def agent(parallel: Parallel) -> Step:
    """A plan of three calls, the tools side by side, an answer from what they say."""
    plan = Generation(
        "You may call tools: search(text), calculate(formula), look_up(name). Write the calls that are needed to answer"
        " the question, one per line.\nQuestion: {question}\n", to="calls", items="lines", wanted=3,
        max_tokens=PLAN_TOKENS, settings={"shape": "lines:3"}, name="plan",
    )  # fmt: skip
    answer = Generation(
        "Answer the question from what the tools say.\nQuestion: {question}\nTools: {observations}\nAnswer: ",
        to="answer", max_tokens=AGENT_ANSWER_TOKENS,
    )  # fmt: skip
    return plan >> Tool(reads=("world",)) >> answer


def _indexing(chunk_tokens: int = CHUNK_TOKENS, overlap_tokens: int = OVERLAP_TOKENS) -> Chain:
    return Chunking(chunk_tokens, overlap_tokens) >> Embedding() >> Ingestion()


def _query_embedding(queries: str) -> Component:
    return Embedding(name="query_embedding", takes={"texts": queries}, gives={"vectors": "query_vectors"})


def _retrieved(parallel: Parallel, indexing: Chain, querying: Component | Chain) -> Chain | Branches:
    return Branches((indexing, querying)) if parallel else indexing >> querying


# --- what queries ask -----------------------------------------------------------------------------------------------


def question_of(app: str, number: int) -> str:
    """A question of seeded length and words, which no other query asks."""
    drawn = random.Random(f"{app} {number}")
    return text_of(drawn, drawn.randint(*QUESTION_TOKENS), f"{number}: ") + "?"


def document_of(app: str, number: int) -> str:
    """A document of seeded length, no two alike."""
    drawn = random.Random(f"{app} {number}")
    chunks = drawn.randint(*CHUNKS)
    return text_of(drawn, chunks * (CHUNK_TOKENS - OVERLAP_TOKENS) + OVERLAP_TOKENS, f"Document {number}. ")


def passages(count: int = 256, tokens: int = CHUNK_TOKENS) -> tuple[str, ...]:
    """Texts that a simulated store finds."""
    return tuple(text_of(random.Random(f"passage {at}"), tokens, f"Passage {at}. ") for at in range(count))


def text_of(drawn: random.Random, tokens: int, head: str = "") -> str:
    """So many tokens of a long text, from somewhere in it."""
    size = max(1, tokens * CHARACTERS - len(head))
    corpus = _corpus()
    at = drawn.randrange(len(corpus) - size)
    return head + corpus[at : at + size]


@cache
def _corpus() -> str:
    syllables = ("ba", "ko", "ri", "su", "tel", "mar", "no", "vin", "dor", "ke")
    drawn = random.Random(2407_00326)
    return " ".join("".join(drawn.choices(syllables, k=drawn.randint(1, 3))) for _ in range(60_000))


# --- the applications -----------------------------------------------------------------------------------------------


def _app(name: str, template: Callable[[Parallel], Step], *, has_document: bool = False) -> PaperApp:
    ways = {mode: decompose(template(mode == "parallel")) for mode in ("chain", "parallel")}
    chained = ways["chain"]
    functions = {fn: function.call for fn, function in chained.functions.items()}
    engines = dict.fromkeys(p.engine for p in chained.graph if p.engine not in ("", "python"))

    def inputs(number: int) -> dict[str, Any]:
        given = {"question": question_of(name, number)}
        return {**given, "document": document_of(name, number)} if has_document else given

    return PaperApp(lambda mode: ways[mode].graph, functions, inputs, tuple(engines), template)


class _Apps(dict[str, PaperApp]):
    """By name, or by the letter with which a name begins."""

    def __missing__(self, letter: str) -> PaperApp:
        names = [name for name in self if name.split()[0] == letter]
        if not names:
            raise KeyError(f"{letter!r}: the applications are {', '.join(self)}")
        return self[names[0]]


APPS: Mapping[str, PaperApp] = _Apps(
    {
        "A search-engine generation": _app("A", search_engine_generation),
        "B naive RAG": _app("B", naive_rag, has_document=True),
        "C advanced RAG": _app("C", advanced_rag, has_document=True),
        "D contextual retrieval": _app("D", contextual_retrieval, has_document=True),
        "E agent": _app("E", agent),
    }
)
