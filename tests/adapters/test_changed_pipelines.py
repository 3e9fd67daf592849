"""A pipeline that is changed in place after `optimize` asks for nothing that the changed pipeline does not ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, HumanMessagePromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import Field

from teola_plugin import optimize, optimized
from teola_plugin.adapters.langchain import trace
from tests.support.langchain_world import Engines, ask


class Parts:
    """Two steps that do not need each other, and what they are made of."""

    def __init__(self) -> None:
        self.engines = Engines()
        self.retriever = self.engines.store().as_retriever(search_kwargs={"k": 1})
        text = PromptTemplate.from_template("A {q} {mood}").partial(mood="calm")
        self.system = SystemMessage("be brief")
        self.human = HumanMessagePromptTemplate(prompt=text)
        self.prompt = ChatPromptTemplate.from_messages([self.system, self.human])
        self.first = self.prompt | self.engines.chat | StrOutputParser()
        self.second = ask("B {q}") | self.engines.chat | StrOutputParser()
        found = RunnableLambda(lambda given: given["q"]) | self.retriever
        self.chain = RunnablePassthrough.assign(a=self.first, d=found) | RunnablePassthrough.assign(b=self.second)
        self.fast = optimize(self.chain)

    def asked(self, chain: Any) -> Counter[Any]:
        """What a call asks for."""
        engines = self.engines.llm, self.engines.embedder
        before = [len(engine.seen) for engine in engines]
        chain.invoke({"q": "who?"})
        return Counter(each for engine, n in zip(engines, before, strict=True) for each in engine.seen[n:])


class Counting(StrOutputParser):
    """A parser of the user's with a class method of the library's name, and attributes of its own."""

    calls: int = 0
    seen: list[str] = Field(default_factory=list)

    @classmethod
    def format(cls, text: str) -> str:
        return text


class CountingRetriever(VectorStoreRetriever):
    """A retriever of the user's that counts its searches."""

    searches: int = 0
    judge: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **given: Any) -> list[Any]:
        self.searches += 1
        return super()._get_relevant_documents(query, run_manager=run_manager, **given)


class Loud(StrOutputParser):
    def parse(self, text: str) -> str:
        return text.upper()


def shout(self: Any, text: str) -> str:
    return text.upper()


def find_nothing(self: Any, query: str, **given: Any) -> list[Any]:
    return []


SEARCH = "_get_relevant_documents"
CHANGES: dict[str, Callable[[Parts, pytest.MonkeyPatch], Any]] = {
    "a step": lambda p, _: setattr(p.second, "first", ask("C {q}")),
    "a step in the middle": lambda p, _: p.second.middle.insert(0, RunnableLambda(lambda said: said)),  # type: ignore[attr-defined]
    "a branch": lambda p, _: p.chain.last.mapper.steps__.update(c=p.first),  # type: ignore[attr-defined]
    "no branch": lambda p, _: p.chain.last.mapper.steps__.pop("b"),  # type: ignore[attr-defined]
    "the last step": lambda p, _: setattr(p.fast, "last", RunnablePassthrough()),
    "a text": lambda p, _: setattr(p.human.prompt, "template", "D {q} {mood}"),
    "a variable": lambda p, _: p.human.prompt.partial_variables.update(mood="cross"),  # type: ignore[union-attr]
    "a message": lambda p, _: setattr(p.system, "content", "be rude"),
    "further messages": lambda p, _: p.prompt.messages.append(SystemMessage("be rude")),
    "a parser": lambda p, _: setattr(p.first, "last", Loud()),
    "a search": lambda p, _: p.retriever.search_kwargs.update(k=2),
    "a method of a parser": lambda p, patch: patch.setattr(StrOutputParser, "parse", shout),
    "a method of one parser": lambda p, _: object.__setattr__(p.first.last, "parse", str.upper),  # type: ignore[attr-defined]
    "a class method": lambda p, patch: patch.setattr(StrOutputParser, "parse", classmethod(shout)),
    "a method of a retriever": lambda p, patch: patch.setattr(
        VectorStoreRetriever, "_get_relevant_documents", find_nothing
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_pipeline_runs_as_it_is_now(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    assert parts.asked(parts.fast) == parts.asked(parts.chain)
    assert optimized(parts.fast).reports[-1].hits
    CHANGES[what](parts, monkeypatch)
    asked = parts.asked(parts.fast)
    report = optimized(parts.fast).reports[-1]
    assert (report.hits, report.wasted) == (0, 0)
    assert report.fallbacks
    if what != "the last step":
        assert asked == parts.asked(parts.chain)


def test_a_model_is_looked_at_for_each_request() -> None:
    parts = Parts()
    parts.asked(parts.fast)
    parts.engines.chat.name = "another name"
    parts.asked(parts.fast)
    assert optimized(parts.fast).reports[-1].hits


def test_a_method_that_was_replaced_before_is_the_frameworks_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrOutputParser, "parse", shout)
    assert "TB102" in [each.code for each in trace(Parts().chain).breaks]


def test_a_method_of_one_object_is_the_frameworks_to_call() -> None:
    parts = Parts()
    object.__setattr__(parts.first.last, "parse", str.upper)  # type: ignore[attr-defined]
    assert "TB102" in [each.code for each in trace(parts.chain).breaks]


def counted() -> tuple[Parts, CountingRetriever, Any]:
    """A pipeline with components of the user's classes that count, optimized."""
    parts = Parts()
    store = parts.retriever.vectorstore
    retriever = CountingRetriever(vectorstore=store, judge=StrOutputParser())
    parser = Counting()
    found = RunnableLambda(lambda given: given["q"]) | retriever
    chain = RunnablePassthrough.assign(a=parts.first, b=parts.second | parser, d=found)
    return parts, retriever, optimize(chain)


def test_a_component_of_the_users_may_change_its_own_attributes() -> None:
    parts, retriever, fast = counted()
    for _ in range(3):
        parts.asked(fast)
        fast.mapper.steps__["b"].last.calls += 1
        fast.mapper.steps__["b"].last.seen.append("a")
        report = optimized(fast).reports[-1]
        assert report.hits + report.shared  # the framework may be as fast
        assert not report.fallbacks
    assert retriever.searches == 3


@pytest.mark.parametrize("change", ["judge", "search_kwargs"])
def test_components_and_settings_that_a_users_component_holds_count(change: str) -> None:
    parts, retriever, fast = counted()
    parts.asked(fast)
    setattr(retriever, change, {"k": 1} if change == "search_kwargs" else Loud())
    parts.asked(fast)
    assert optimized(fast).reports[-1].fallbacks
