"""Evaluators that user functions call: each judgement is one request, made beside the call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import (
    BaseEvaluator,
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    GuidelineEvaluator,
    RelevancyEvaluator,
)
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode

from teola_plugin import optimize
from teola_plugin.api import optimized
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.support.hosted_service import Service, counted
from tests.support.llamaindex_reading import read_call
from tests.support.llamaindex_world import Engines, apart

TEXTS = ["Anna keeps hive 0.", "Ben keeps hive 1.", "Carla keeps hive 2."]


class Judging(CustomQueryEngine):
    """Keeps the texts that pass."""

    judge: Any

    def custom_query(self, query_str: str) -> str:
        found = [self.judge.evaluate(query=query_str, response=text, contexts=[text]) for text in TEXTS]
        return str([(each.passing, each.feedback, each.score) for each in found])

    async def acustom_query(self, query_str: str) -> str:
        found = [await self.judge.aevaluate(query=query_str, response=text, contexts=[text]) for text in TEXTS]
        return str([(each.passing, each.feedback, each.score) for each in found])


class JudgingResponses(Judging):
    def custom_query(self, query_str: str) -> str:
        found = []
        for text in TEXTS:
            response = Response(text, source_nodes=[NodeWithScore(node=TextNode(text=text, id_=text))])
            found.append(self.judge.evaluate_response(query=query_str, response=response).passing)
        return str(found)


def run(engine: Any, *, is_async: bool = False) -> str:
    async def act() -> Any:
        return await engine.aquery("Who keeps the hives?")

    return str(apart(asyncio.run, act()) if is_async else apart(engine.query, "Who keeps the hives?"))


@pytest.fixture(autouse=True)
def settings(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", chat(service))


@pytest.mark.parametrize("kind", [RelevancyEvaluator, FaithfulnessEvaluator, CorrectnessEvaluator])
@pytest.mark.parametrize(("engine", "is_async"), [(Judging, False), (Judging, True), (JudgingResponses, False)])
def test_judgements_of_a_loop_are_asked_for_at_once(service: Service, kind: Any, engine: Any, is_async: bool) -> None:
    with counted(service) as wanted:
        result = run(engine(judge=kind()), is_async=is_async)
    fast = optimize(engine(judge=kind()))
    with counted(service) as made:
        assert run(fast, is_async=is_async) == result
    assert made == wanted
    if is_async:
        service.holds, service.awaits = "hive 0", "hive 2"
        service.forget()
        run(fast, is_async=True)
        assert not service.has_waited_in_vain
    assert (optimized(fast).reports[-1].wasted, optimized(fast).reports[-1].fallbacks) == (0, ())


class AskingBehind(Judging):
    """Asks once more where the judge could read the reply."""

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError

    async def acustom_query(self, query_str: str) -> str:
        judged = await self.judge.aevaluate(query=query_str, response="x", contexts=["x"])
        return str(await Settings.llm.acomplete("And now?")) + str(judged.passing)


def test_nothing_is_asked_behind_a_judgement_that_may_not_be_read(service: Service) -> None:
    fast = optimize(AskingBehind(judge=GuidelineEvaluator(guidelines="Be kind.")))
    for _ in range(2):
        with counted(service) as made, pytest.raises(ValueError, match="JSON"):
            run(fast, is_async=True)
        assert made.total() == 1
    assert optimized(fast).reports[-1].wasted == 0


def test_a_judgement_on_an_event_loop_of_its_own_is_left_to_the_run() -> None:
    """A client of a hosted model belongs to one event loop."""
    read = read_call(Judging(judge=RelevancyEvaluator()), "query", "q")
    assert (read.rounds, "event loop" in read.barrier) == ([], True)


class OwnJudge(RelevancyEvaluator):
    """May do more than ask."""

    async def aevaluate(self, *args: Any, **given: Any) -> Any:
        return await super().aevaluate(*args, **given)


def test_evaluators_of_the_users_are_left_to_the_run() -> None:
    read = read_call(Judging(judge=OwnJudge()), "query", "q")
    assert "evaluate" in read.barrier or "OwnJudge" in read.barrier
    assert read.rounds == []


def test_texts_that_a_client_refuses_are_not_judged_early(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: BaseEvaluator = RelevancyEvaluator(llm=Engines().model)
    assert [len(each) for each in read_call(Judging(judge=judge), "query", "q").rounds] == [3]
    monkeypatch.setattr("tests.adapters.llamaindex.test_llamaindex_evaluators.TEXTS", ["\ud800"])
    assert "no text" in read_call(Judging(judge=judge), "query", "q").barrier
