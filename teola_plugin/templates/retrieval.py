"""Components which cut, embed, store, find and rank texts.

    Chunking() >> Embedding() >> Ingestion()            the document given with the question
    Searching(top_k=16) >> Reranking(top_k=3)           the search in it

| component | takes | gives | primitives |
|---|---|---|---|
| Chunking | document | chunks | chunking |
| Situating | chunks | situated | a prefilling and a decoding for each chunk |
| Embedding | situated or chunks | vectors | embedding |
| Ingestion | vectors, situated or chunks | ingested | ingestion, which writes `into` |
| Searching | queries or question (or query_vectors) | found | embedding and searching, which reads `within` |
| Reranking | question, found or results or chunks | best | reranking |

Components run for each item of their inputs, at any nesting; a Reranking runs once per query, or once for each item of
its `scope`. Source: arXiv 2407.00326, Table 1 and Algorithm 1; Situating is contextual retrieval of section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from teola_plugin.templates.flow import Component
from teola_plugin.templates.functions import GLUE
from teola_plugin.templates.options import Takes, number, text
from teola_plugin.templates.part import Part

Names = Mapping[str, str]

SITUATE = (
    "Say in a sentence or two where this part of a document stands in it, to help a search find it. Around it:"
    " {around}\nThe part: {part}\n"
)


def Chunking(
    size: int = 256, overlap: int = 30, *, splitter: Callable[[str, int, int], list[str]] | None = None,
    name: str = "chunking", takes: Names | None = None, gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which cuts the document into chunks of about `size` tokens.

    `splitter(document, size, overlap)`: a function which cuts instead.
    """

    def rule(part: Part) -> None:
        size, overlap = part.option("size"), part.option("overlap")
        if overlap >= size:
            raise part.fault("overlap", f"expected less than size={size}, got {overlap}")
        fn = part.draft.call(name if splitter else "chunks", splitter or GLUE["chunks"])
        document = part.value("document")
        chunks = part.add(
            "chunking", document, size, overlap, levels=document.levels, fn=fn, named="chunks", makes_list=True
        )
        part.give("chunks", chunks)

    return Component(
        name, rule, {"document": Takes(("document",))}, {"chunks": "chunks"},
        options={"size": number(size, "chunk_size"), "overlap": number(overlap, "chunk_overlap", least=0)},
    ).named(takes, gives)  # fmt: skip


def Situating(
    neighbours: int = 4, *, prompt: str = SITUATE, max_tokens: int = 64, engine: str = "llm", name: str = "situating",
    settings: Mapping[str, Any] | None = None, takes: Names | None = None, gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which writes before each chunk its place in the document, inferred from the neighbours."""

    def rule(part: Part) -> None:
        chunks = part.value("chunks")
        beside = part.call(
            "neighbours", chunks, part.option("neighbours"), levels=chunks.levels[:-1], makes_list=True, named="around"
        )
        context = part.generate(
            "prompt", "llm", levels=chunks.levels, named="context", max_tokens=part.option("max_tokens"),
            blanks={"around": replace(beside, levels=chunks.levels), "part": chunks}, **(settings or {}),
        )  # fmt: skip
        part.give("situated", part.call("joined", context, chunks, levels=chunks.levels, named="situated"))

    return Component(
        name, rule, {"chunks": Takes(("chunks",), 1)}, {"situated": "situated"}, {"llm": engine},
        {"neighbours": number(neighbours), "prompt": text(prompt, "situating_prompt"),
         "max_tokens": number(max_tokens)},
        ("prompt",), ("around", "part"),
    ).named(takes, gives)  # fmt: skip


def Embedding(
    *, engine: str = "embedder", batchable: bool = True, name: str = "embedding", takes: Names | None = None,
    gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which makes vectors of texts."""

    def rule(part: Part) -> None:
        texts = part.value("texts")
        part.give("vectors", part.add("embedding", texts, engine="embedder", levels=texts.levels, named="vectors"))

    return Component(
        name, rule, {"texts": Takes(("situated", "chunks"))}, {"vectors": "vectors"}, {"embedder": engine},
        batchable=batchable,
    ).named(takes, gives)  # fmt: skip


def Ingestion(
    into: str = "kb", *, engine: str = "store", batchable: bool = True, name: str = "ingestion",
    takes: Names | None = None, gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which adds texts with their vectors to the store.

    Searches `within` the same store wait for all additions.
    """

    def rule(part: Part) -> None:
        vectors, texts = part.value("vectors"), part.value("texts")
        levels = part.deepest(vectors, texts)
        done = part.add("ingestion", vectors, texts, engine="store", levels=levels, named="ingested", writes=(into,))
        part.give("ingested", done)

    return Component(
        name, rule, {"vectors": Takes(("vectors",)), "texts": Takes(("situated", "chunks"))},
        {"ingested": "ingested"}, {"store": engine}, batchable=batchable,
    ).named(takes, gives)  # fmt: skip


def Searching(
    top_k: int = 3, *, within: str = "kb", embedder: str | None = "embedder", engine: str = "store",
    batchable: bool = True, name: str = "searching", takes: Names | None = None, gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which finds `top_k` texts for each query.

    Without an embedder, `query_vectors` of an earlier Embedding are used.
    """

    def rule(part: Part) -> None:
        vectors = part.value("queries")
        levels, top_k = vectors.levels, part.option("top_k")
        if embedder is not None:
            vectors = part.add("embedding", vectors, engine="embedder", levels=levels, named="query_vectors")
        hits = part.add("searching", vectors, engine="store", levels=levels, named="hits", reads=(within,), top_k=top_k)
        part.give("found", part.call("documents", hits, levels=levels, named="found", makes_list=True, most=top_k))

    names = ("query_vectors",) if embedder is None else ("queries", "question")
    engines = {"store": engine} if embedder is None else {"embedder": embedder, "store": engine}
    return Component(
        name,
        rule,
        {"queries": Takes(names)},
        {"found": "found"},
        engines,
        {"top_k": number(top_k, "search_top_k")},
        batchable=batchable,
    ).named(takes, gives)


def Reranking(
    top_k: int = 3, *, scope: str = "request", engine: str = "reranker", batchable: bool = True,
    name: str = "reranking", takes: Names | None = None, gives: Names | None = None,
) -> Component:  # fmt: skip
    """Return a component which keeps the `top_k` passages closest to the question, each once."""

    def rule(part: Part) -> None:
        question, passages, top_k = part.value("question"), part.value("passages"), part.option("top_k")
        scores = part.add("reranking", question, passages, engine="reranker", levels=passages.levels, named="scores")
        part.give("best", part.call("best", passages, scores, top_k, named="best", makes_list=True, most=top_k))

    return Component(
        name, rule, {"question": Takes(("question",)), "passages": Takes(("found", "results", "chunks"), 1)},
        {"best": "best"}, {"reranker": engine}, {"top_k": number(top_k, "rerank_top_k")}, scope=scope,
        batchable=batchable,
    ).named(takes, gives)  # fmt: skip
