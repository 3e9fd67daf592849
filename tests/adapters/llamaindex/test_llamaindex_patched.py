"""Methods of LlamaIndex's classes that the user has replaced, before or after `optimize`: they never run early."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from llama_index.core import PromptTemplate, get_response_synthesizer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.retrievers import BaseRetriever, VectorIndexRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.simple import SimpleVectorStore

from teola_plugin import optimize
from tests.adapters.llamaindex.test_llamaindex_hosted import chat, retriever
from tests.support.hosted_service import Service, counted


class Twice(BaseRetriever):
    """Asks a model, and then another retriever."""

    def __init__(self, inner: Any, llm: Any) -> None:
        self._inner, self._llm = inner, llm
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> Any:
        said = [self._llm.complete(f"{part} of {query_bundle.query_str}").text for part in ("one", "two")]
        return [*self._inner.retrieve(query_bundle), *self._inner.retrieve(said[0])]


def engine_of(service: Service) -> Callable[[str], Any]:
    engine = optimizable(RetrieverQueryEngine(
        Twice(retriever(service), chat(service)), get_response_synthesizer(llm=chat(service)),
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.0)],
    ))  # fmt: skip
    return lambda question: str(engine().query(question))


def function_of(service: Service) -> Callable[[str], Any]:
    inner, llm, template = retriever(service), chat(service), PromptTemplate("say {what}")

    def function(question: str) -> list[str]:
        said = llm.complete(f"one of {question}").text
        found = SimilarityPostprocessor(similarity_cutoff=0.0).postprocess_nodes(inner.retrieve(question))
        more = inner.retrieve(f"two of {question}")
        return [said, llm.predict(template, what=question), *(each.text for each in (*found, *more))]

    app = optimizable(function)
    return lambda question: app()(question)


def optimizable(pipeline: Any) -> Callable[[], Any]:
    """Return a function for the pipeline, or for an optimized one while FAST is set."""
    known: dict[bool, Any] = {False: pipeline}

    def chosen() -> Any:
        if FAST and True not in known:
            known[True] = optimize(pipeline)
        return known[bool(FAST)]

    return chosen


FAST: list[bool] = []
METHODS = [
    (VectorIndexRetriever, "_retrieve"), (VectorIndexRetriever, "retrieve"), (BaseRetriever, "retrieve"),
    (VectorIndexRetriever, "_get_nodes_with_embeddings"), (SimpleVectorStore, "query"),
    (SimilarityPostprocessor, "_postprocess_nodes"), (PromptTemplate, "format"), (CompactAndRefine, "get_response"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def slow() -> Any:
    yield
    FAST.clear()


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize(("cls", "name"), METHODS)
@pytest.mark.parametrize("make", [engine_of, function_of])
def test_a_replaced_method_runs_as_often_as_the_framework_calls_it(
    make: Callable[[Service], Callable[[str], Any]], cls: type, name: str, is_before: bool, service: Service
) -> None:
    ran: list[str] = []
    stock = getattr(cls, name)

    @functools.wraps(stock)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append("begin")
        value = stock(self, *args, **kwargs)
        ran.append("end")
        return value

    ask = make(service)
    if not is_before:
        FAST.append(True)
        ask("before")  # optimized
        FAST.clear()
    with mock.patch.object(cls, name, replacement):
        with counted(service) as original:
            value = ask("who")
        runs = ran.copy()
        FAST.append(True)
        for _ in range(2):
            ran.clear()
            with counted(service) as requests:
                assert ask("who") == value
            assert (ran, requests) == (runs, original)
