"""Programs that set `similarity_top_k` of a retriever: what they ask is found, and nothing that they would not ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever, VectorIndexRetriever

from teola_plugin import optimize
from tests.adapters.llamaindex.test_llamaindex_hosted import chat, retriever
from tests.support.hosted_service import Service, asked_side_by_side, counted


class Rag:
    """Searches with several settings."""

    def __init__(self, service: Service) -> None:
        self.llm, self.search = chat(service), retriever(service)
        self.engine = RetrieverQueryEngine.from_args(self.search, llm=self.llm)
        self.fusion = QueryFusionRetriever([self.search], llm=self.llm, num_queries=1, use_async=False)
        self.outer = RetrieverQueryEngine.from_args(self.fusion, llm=self.llm)

    def _tell(self, found: Any) -> str:
        return str(self.llm.complete(f"tell {[each.text for each in found]}"))

    def _found(self, number: Any, text: str) -> str:
        self.search.similarity_top_k = number
        return self._tell(self.search.retrieve(text))

    def searches(self) -> Any:
        return [self._found(number, f"hive {number}") for number in (1, 3, 2)]

    def equal_searches(self) -> Any:
        return [self._found(number, "hive") for number in (1, 3, 2)]

    def answers(self) -> Any:
        out = []
        for number in (1, 3):
            self.search.similarity_top_k = number
            out.append(str(self.engine.query(f"hive {number}")))
        return out

    def before(self) -> Any:
        first = self._tell(self.search.retrieve("before"))
        return first, self._found(1, "hive")

    def once(self) -> Any:
        first = self._found(1, "hive")
        return first, self._tell(self.search.retrieve("again"))

    def by_a_reply(self) -> Any:
        number = len(self.llm.complete("how many").text)
        return self._found(number, "hive"), self._found(1, "bees")

    def in_one_way(self) -> Any:
        if "many" in self.llm.complete("how many").text:
            self.search.similarity_top_k = 3
        return self._tell(self.search.retrieve("hive"))

    def in_the_other_way(self) -> Any:
        self.search.similarity_top_k = 1
        if "none" in self.llm.complete("how many").text:
            self.search.similarity_top_k = 3
        return self._tell(self.search.retrieve("hive"))

    def after_one_way(self) -> Any:
        first = None
        if "many" in self.llm.complete("how many").text:
            first = self._found(3, "hive")
        return first, self._found(1, "hive")

    def held_by_another(self) -> Any:
        self.llm.complete("first")
        self.search.similarity_top_k = 1
        return self._tell(self.fusion.retrieve("hive"))

    def in_an_engine_of_another(self) -> Any:
        self.llm.complete("first")
        self.search.similarity_top_k = 1
        return str(self.outer.query("hive"))

    def of_no_number(self) -> Any:
        try:
            return self._found("many", "hive")
        except TypeError as e:
            return type(e).__name__

    def seen_by_others(self) -> Any:
        seen = [self.search.similarity_top_k]
        for number in (1, 3):
            self.search.similarity_top_k = number
            found = self.search.retrieve(f"hive {number}")
            seen += [self.search.similarity_top_k, len(found)]
        return seen


SIDE_BY_SIDE: dict[str, tuple[Callable[[Rag], Any], str, str]] = {
    "searches": (Rag.searches, "hive 1", "hive 2"),
    "answers": (Rag.answers, "hive 1", "hive 3"),
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_searches_with_several_settings_are_made_side_by_side(name: str, service: Service) -> None:
    method, first, last = SIDE_BY_SIDE[name]
    rag = Rag(service)
    asked_side_by_side(service, rag, first, last, lambda made: getattr(made, method.__name__)())


PROGRAMS = [name for name, each in vars(Rag).items() if name[:1] != "_" and callable(each)]


@pytest.mark.parametrize("delay_s", [0.0, 0.08])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_else_is_asked(name: str, delay_s: float, service: Service) -> None:
    rag = Rag(service)
    fast = optimize(rag)
    service.lasts_s = delay_s
    for _ in range(3):
        rag.search.similarity_top_k = 2
        with counted(service) as original:
            plain = getattr(rag, name)()
        left, rag.search.similarity_top_k = rag.search.similarity_top_k, 2
        with counted(service) as made:
            assert getattr(fast, name)() == plain
        assert made == original
        assert rag.search.similarity_top_k == left


def test_what_a_thread_sets_meanwhile_is_not_guessed(service: Service) -> None:
    rag = Rag(service)
    service.lasts_s = 0.1

    def called(made: Any) -> Any:
        def later() -> None:
            with service.news:
                service.news.wait_for(lambda: any("tell" in each for each in service.asked), 10)
            rag.search.similarity_top_k = 3

        thread = threading.Thread(target=later)
        thread.start()
        found = made.once()
        thread.join()
        return found

    with counted(service) as original:
        plain = called(rag)
    fast = optimize(rag)
    for _ in range(3):
        with counted(service) as made:
            assert called(fast) == plain
        assert made == original


class Doubling(VectorIndexRetriever):
    @property
    def similarity_top_k(self) -> int:
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, number: int) -> None:
        self._similarity_top_k = number // 2 + 1


class Limited(VectorIndexRetriever):
    """Finds one node only."""

    def _retrieve(self, query_bundle: Any) -> Any:
        return super()._retrieve(query_bundle)[:1]


@pytest.mark.parametrize("cls", [Doubling, Limited])
def test_a_class_of_its_own_is_left_alone(cls: Any, service: Service) -> None:
    rag = Rag(service)
    rag.search = cls(index=rag.search._index, similarity_top_k=2)
    fast = optimize(rag)
    with counted(service) as original:
        plain = rag.searches()
    service.lasts_s = 0.05
    for _ in range(3):
        with counted(service) as made:
            assert fast.searches() == plain
        assert made == original
