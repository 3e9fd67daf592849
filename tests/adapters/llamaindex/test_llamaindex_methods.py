"""A method of LlamaIndex's classes that is replaced, before `optimize` or after, is run by the framework alone."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import Response
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import CompactAndRefine, Refine
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize, optimized
from tests.support.llamaindex_world import QUESTION, Engines, apart, engine_of

METHODS = [
    (VectorIndexRetriever, "_retrieve", lambda self, query: []),
    (BaseRetriever, "retrieve", lambda self, query: []),
    (CompactAndRefine, "get_response", lambda self, *args, **kwargs: "replaced"),
    (Refine, "get_response", lambda self, *args, **kwargs: "replaced"),
    (RetrieverQueryEngine, "_query", lambda self, query: Response("replaced")),
    (BaseQueryEngine, "query", lambda self, query: Response("replaced")),
]


def asked(engines: Engines, engine: Any) -> list[Any]:
    """The requests of a query."""
    before = [len(each.seen) for each in (engines.llm, engines.embedder)]
    engine.query(QUESTION)
    return [each.seen[n:] for each, n in zip((engines.llm, engines.embedder), before, strict=True)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("cls", "name", "replacement"), METHODS)
def test_a_replaced_method(cls: type, name: str, replacement: Any, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    plain = engine_of(engines)
    if when == "before":
        monkeypatch.setattr(cls, name, replacement)
    fast = optimize(plain)
    if when == "after":
        asked(engines, fast)
        monkeypatch.setattr(cls, name, replacement)
    assert asked(engines, fast) == asked(engines, plain)
    if fast is not plain and optimized(fast).reports:
        assert optimized(fast).reports[-1].wasted == 0
    assert str(apart(fast.query, QUESTION)) == str(apart(plain.query, QUESTION))


class Greeting(Workflow):
    """A workflow with one step that asks."""

    llm: Any = None

    @step
    async def greet(self, ev: StartEvent) -> StopEvent:
        said = [str(await self.llm.acomplete(f"{n} {ev.name}")) for n in range(2)]
        return StopEvent(result=said)


async def replaced(self: Any, ev: StartEvent) -> StopEvent:
    return StopEvent(result="replaced")


@pytest.mark.filterwarnings("ignore:ServiceManager is deprecated:DeprecationWarning")  # an older Workflow's own
def test_a_replaced_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    workflow = Greeting()
    workflow.llm = engines.model
    fast = optimize(workflow)

    async def run() -> Any:
        return await fast.run(name="Ada")

    assert len(asyncio.run(run())) == 2
    monkeypatch.setattr(Greeting, "greet", functools.wraps(Greeting.greet)(replaced))
    asked = len(engines.llm.seen)
    assert asyncio.run(run()) == "replaced"
    assert len(engines.llm.seen) == asked
