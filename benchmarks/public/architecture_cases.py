"""LangGraph applications of one package: agents' architectures as classes, whose methods are the nodes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from public.case import Case

PACKAGE = "agentic_architectures"
SOURCE = f"FareedKhan-dev/all-agentic-architectures@cf9d620a8cc5 src/{PACKAGE} (MIT)"


def _built(module: str, name: str, *, is_rag: bool = False) -> Callable[[Any], Any]:
    def build(package: Any) -> Any:
        from langchain_openai import ChatOpenAI, OpenAIEmbeddings

        own: dict[str, Any] = {"llm": ChatOpenAI(model="gpt-4o")}
        if is_rag:
            from langchain_core.documents import Document

            memory = import_module(f"{PACKAGE}.memory.vector").VectorMemory(OpenAIEmbeddings(), "chroma")
            texts = import_module(f"{PACKAGE}.data.sample_corpus").STARDUST_CORPUS
            memory.add([Document(text) for text in texts])
            own["vector_memory"] = memory
        return getattr(import_module(f"{PACKAGE}.architectures.{module}"), name)(**own).build()

    return build


def _architecture(module: str, name: str, *, is_rag: bool = False, **given: Any) -> Case:
    build = _built(module, name, is_rag=is_rag)
    return Case(module, SOURCE, lambda text: {"task": text, **given}, build, module=PACKAGE)


ARCHITECTURES: tuple[Case, ...] = (
    _architecture("chain_of_verification", "ChainOfVerification"),
    _architecture("ensemble", "Ensemble", aggregator_mode="llm_synth"),
    _architecture("self_consistency", "SelfConsistency", n_samples=5),
    _architecture("debate", "Debate", n_agents=3, n_rounds=2),
    _architecture("corrective_rag", "CorrectiveRAG", is_rag=True),
    Case("storm", SOURCE, lambda text: {"topic": text}, _built("storm", "STORM"), module=PACKAGE),
)
