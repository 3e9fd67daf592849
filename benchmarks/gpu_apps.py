"""Unmodified LangChain, LangGraph and LlamaIndex pipelines on the models of gpu.py: original and optimized, in turns.

    python benchmarks/gpu_apps.py                the rows of langchain_and_langgraph.py, and the demo's RAG pipelines
    python benchmarks/gpu_apps.py --divide 32    models that a CPU can do, too

`itself`: the original's answer twice; what differs there is no matter of the optimizer (see VLLM_BATCH_INVARIANT in
gpu.py). Each row is printed when it is done.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from gpu import STARTED_S, models, random_weights
from langchain_and_langgraph import SHAPES, rows
from langchain_and_langgraph import Models as ChainModels
from langchain_chroma import Chroma
from langchain_core.language_models import BaseChatModel
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin import compare, optimize, runtime
from teola_plugin.calling import Caller
from teola_plugin.demo import langchain_rag, llamaindex_rag
from teola_plugin.demo.corpus import QUESTIONS, document, passages
from teola_plugin.demo.parts import chroma_without
from teola_plugin.engines import Engine
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings, EngineReranker
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank

ROW = "{:34}{:>9}{:>9}  {:20}{:>10}  {}"
GREEDY = {"temperature": 0.0}
ANSWER_TOKENS = 64
NOTE_TOKENS = 16
"""Of an answer in a tree: three have to fit into a prompt, and tokens of noise are long words; else no tree ends."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    pipeline: Any
    given: Any
    form: str


def main(
    divide: Annotated[int, typer.Option(min=1)] = 1,
    memory: Annotated[float, typer.Option(min=0.1, max=0.9)] = 0.7,
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each row.")] = 5,
    stored: Annotated[int, typer.Option(min=8, help="Passages in the stores of the RAG pipelines.")] = 240,
    only: Annotated[str, typer.Option(help="Rows whose name contains this.")] = "",
    quick_start: Annotated[bool, typer.Option(help="See gpu.py.")] = False,
    limit: Annotated[float, typer.Option(help="Seconds after which no further row is begun.")] = 3600,
) -> None:
    """Print one row for each pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        engines = models(Path(folder), divide, memory, quick_start=quick_start).engines
        ends_s = time.perf_counter() + limit
        try:
            print(ROW.format("milliseconds", "original", "optim.", "ratio [95 %]", "itself", "equal"), flush=True)
            for case in cases(engines, stored):
                if only in case.name and time.perf_counter() < ends_s:
                    print(_row(case, repeats), flush=True)
        finally:
            runtime.host.close()
    import vllm

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU, no GPU"
    print(f"device: {device}; torch {torch.__version__}; vLLM {vllm.__version__}; models divided by {divide}")


def _row(case: Case, repeats: int) -> str:
    print(f"{time.perf_counter() - STARTED_S:6.1f} s  {case.name}", file=sys.stderr, flush=True)
    try:
        with Caller() as caller:
            first, second = (caller.call(case.pipeline, case.form, case.given) for _ in range(2))
        found = compare(case.pipeline, [case.given], optimized=optimize(case.pipeline), repeats=repeats, mode=case.form)
    except Exception as error:  # the other rows are worth having
        return f"{case.name:34}  {type(error).__name__}: {error}"[:300]
    for line in [*found.differences[:2], *found.tree_differences[:2], *found.fallbacks[:2]]:
        print(f"          {line}"[:400], file=sys.stderr, flush=True)
    itself = "alike" if str(first.value) == str(second.value) else "DIFFERS"
    return ROW.format(
        case.name, f"{found.original_median_s * 1000:.0f}", f"{found.optimized_median_s * 1000:.0f}", str(found.ratio),
        itself, f"NO ANSWER: {found.error}" if found.errors else found.verdict,
    ).rstrip()  # fmt: skip


def cases(engines: Mapping[str, Engine], stored: int) -> Iterator[Case]:
    """All of them, on the same engines."""
    llm = engines["llm"]

    def chat(max_tokens: int, shape: str = "") -> BaseChatModel:
        more = {"structured_outputs": {"regex": SHAPES[shape]}} if shape else {"ignore_eos": True}
        return EngineChatModel(engine=llm, settings={**GREEDY, "max_tokens": max_tokens, **more})

    answering = {**GREEDY, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    writing = {**GREEDY, "max_tokens": ANSWER_TOKENS, "structured_outputs": {"regex": SHAPES["lines:3"]}}
    yield from _langchain(engines, stored, answering, writing)
    advanced, naive = _llamaindex(engines, stored, answering, writing)
    yield advanced
    for row in rows(ChainModels(chat, EngineEmbeddings(engines["embedder"]))):
        yield Case(row.name, row.pipeline, row.given, row.form)
    yield naive


def _langchain(
    engines: Mapping[str, Engine], stored: int, answering: dict[str, Any], writing: dict[str, Any]
) -> Iterator[Case]:
    model, writer = (EngineChatModel(engine=engines["llm"], settings=each) for each in (answering, writing))
    store = Chroma("texts", EngineEmbeddings(engines["embedder"]), client=chroma_without("texts"))
    store.add_texts([p.text for p in passages(stored)], ids=[str(n) for n in range(len(passages(stored)))])
    rag = langchain_rag.advanced(model, writer, store, EngineReranker(engine=engines["reranker"], top_n=3))
    yield Case("LangChain advanced RAG", rag, {"question": QUESTIONS[0], "document": document(48)}, "invoke")
    yield Case("LangChain naive RAG", langchain_rag.naive(model, store), {"question": QUESTIONS[0]}, "invoke")


def _llamaindex(
    engines: Mapping[str, Engine], stored: int, answering: dict[str, Any], writing: dict[str, Any]
) -> Iterator[Case]:
    model, writer = (EngineLLM(engine=engines["llm"], settings=each) for each in (answering, writing))
    embedding = EngineEmbedding(engine=engines["embedder"])
    store = ChromaVectorStore(chroma_collection=chroma_without("nodes").create_collection("nodes"))
    nodes = [TextNode(text=p.text, id_=str(n)) for n, p in enumerate(passages(stored))]
    VectorStoreIndex(nodes, storage_context=StorageContext.from_defaults(vector_store=store), embed_model=embedding)
    reranker = EngineRerank(engine=engines["reranker"], top_n=3)
    advanced = llamaindex_rag.advanced(model, writer, embedding, store, reranker)
    yield Case("LlamaIndex advanced RAG", advanced, QUESTIONS[0], "query")
    noter = EngineLLM(engine=engines["llm"], settings={**answering, "max_tokens": NOTE_TOKENS})
    yield Case("LlamaIndex naive RAG", llamaindex_rag.naive(noter, embedding, store), QUESTIONS[0], "query")


if __name__ == "__main__":
    typer.run(main)
elif __name__ == "__mp_main__":
    random_weights()
