"""Evaluators that user functions call: each judgement is one request, made beside the call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import httpx
import pytest
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.evaluation import (
    BaseEvaluator,
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    GuidelineEvaluator,
    RelevancyEvaluator,
)
from llama_index.core.evaluation.guideline import EvaluationData
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI, OpenAI

from teola_plugin import optimize
from teola_plugin.adapters.llamaindex import models
from teola_plugin.adapters.llamaindex.models import has_clients_alike
from teola_plugin.api import optimized
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.support.hosted_service import Service, asked_side_by_side, counted
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
    service.holds, service.awaits = "hive 0", "hive 2"
    service.forget()
    run(fast, is_async=is_async)
    assert not service.has_waited_in_vain
    assert (optimized(fast).reports[-1].wasted, optimized(fast).reports[-1].fallbacks) == (0, ())


class AskingBehind(Judging):
    """Asks once more where the judge could read the reply."""

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError

    async def acustom_query(self, query_str: str) -> str:
        judged = await self.judge.aevaluate(query=query_str, response="x", contexts=["x"])
        return str(await Settings.llm.acomplete("And now?")) + str(judged.passing)


def counting(*judges: Any) -> Any:
    """Return a function that counts what passes, of a text for each question."""

    def count(query: str) -> tuple[float, str]:
        passed, notes = 0.0, ""
        for number in range(2):
            text = Settings.llm.complete(f"{query} {number}?").text
            for judge in judges:
                judged = judge.evaluate(query=query, response=text, contexts=[f"hive {number}"])
                passed += judged.passing + judged.score
                notes += judged.feedback.upper()
        return passed, notes

    return count


def test_what_passes_is_counted_beside_the_next_question(service: Service) -> None:
    count = counting(FaithfulnessEvaluator(), RelevancyEvaluator())
    result = apart(count, "Who?")
    fast = optimize(count)
    with counted(service) as made:
        assert apart(fast, "Who?") == result
    assert made.total() == 6
    service.holds, service.awaits = "hive 0", "Who? 1?"
    service.forget()
    assert apart(fast, "Who?") == result
    assert not service.has_waited_in_vain


def test_nothing_is_asked_behind_a_judgement_that_may_be_missing(service: Service) -> None:
    judge = CorrectnessEvaluator()

    def ask(query: str) -> tuple[float, str]:
        judged = judge.evaluate(query=query, response="Anna", contexts=["hive 0"])
        return judged.passing + judged.score, Settings.llm.complete(f"{query} Why?").text

    made_by(service, ask, raising=TypeError)


def test_nothing_is_asked_behind_a_judgement_that_may_not_be_read(service: Service) -> None:
    fast = optimize(AskingBehind(judge=GuidelineEvaluator(guidelines="Be kind.")))
    for _ in range(2):
        with counted(service) as made, pytest.raises(ValueError, match="JSON"):
            run(fast, is_async=True)
        assert made.total() == 1
    assert optimized(fast).reports[-1].wasted == 0


# --- synchronous judgements of hosted models: an asynchronous client belongs to one event loop ------------------------


def judging(*judges: Any) -> Any:
    """Return a function that asks several evaluators, one after the other."""

    def judge(query: str) -> list[Any]:
        first, second = judges
        found = [first.evaluate(query=query, response="Anna", contexts=["hive 0"])]
        found.append(second.evaluate(query=query, response="Carla", contexts=["hive 2"]))
        return [(each.passing, each.feedback, each.score) for each in found]

    return judge


def made_by(service: Service, judge: Any, *, raising: type[Exception] | None = None) -> None:
    """Check that the optimized function asks what the original asks."""
    service.lasts_s, fast = 0.1, optimize(judge)
    for _ in range(2):
        seen: list[Any] = []
        for app in (judge, fast):
            with counted(service) as made, contextlib.suppress(raising or TypeError):
                apart(app, "Who?")
            seen.append(made)
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "kinds", [(FaithfulnessEvaluator, RelevancyEvaluator), (RelevancyEvaluator, FaithfulnessEvaluator)]
)
def test_evaluators_one_after_the_other_are_asked_at_once(service: Service, kinds: Any) -> None:
    judge = judging(*(kind() for kind in kinds))
    asked_side_by_side(service, judge, "hive 0", "hive 2", lambda app: apart(app, "Who?"))


def made(query: str, **settings: Any) -> list[Any]:
    judges = FaithfulnessEvaluator(**settings), RelevancyEvaluator(**settings)
    return [
        judges[0].evaluate(query=query, response="Anna", contexts=["hive 0"]).feedback,
        judges[1].evaluate(query=query, response="Carla", contexts=["hive 2"]).feedback,
    ]


def test_evaluators_that_a_function_makes_are_asked_at_once(service: Service) -> None:
    asked_side_by_side(service, made, "hive 0", "hive 2", lambda app: apart(app, "Who?"))


def test_evaluators_that_a_function_makes_with_a_model_are_asked_at_once(service: Service) -> None:
    other = chat(service, "other")
    asked_side_by_side(service, made, "hive 0", "hive 2", lambda app: apart(lambda: app("Who?", llm=other)))


def test_an_evaluator_has_the_model_that_the_function_has_set(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [chat(service), chat(service, "other")]

    def judge(query: str) -> Any:
        said = Settings.llm.complete("first").text
        monkeypatch.setattr(Settings, "_llm", models[len(said) > 0])
        return said, made(query)

    for _ in range(2):
        made_by(service, judge)


def test_evaluators_of_two_models_are_asked_of_each(service: Service) -> None:
    models = [chat(service), chat(service, "other")]

    def judge(query: str) -> list[Any]:
        judges = [FaithfulnessEvaluator(llm=llm) for llm in models]
        found = [judges[0].evaluate(query=query, response="Anna", contexts=["hive 0"]).feedback]
        found.append(judges[1].evaluate(query=query, response="Carla", contexts=["hive 2"]).feedback)
        return found

    made_by(service, judge)


def test_an_evaluator_with_a_constructor_of_the_users_is_made_as_often(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    init, count = FaithfulnessEvaluator.__init__, list[Any]()
    monkeypatch.setattr(
        FaithfulnessEvaluator, "__init__", lambda self, **given: (count.append(1), init(self, **given))[1]
    )
    service.lasts_s, fast = 0.1, optimize(made)
    for app in (made, fast):
        count.clear()
        apart(app, "Who?")
        assert len(count) == 1


def test_a_guideline_evaluator_changes_the_shared_template_as_often(service: Service) -> None:
    """So it is not made early."""
    before = GuidelineEvaluator(guidelines="Rule 0.", output_parser=PydanticOutputParser(output_cls=_Anything))

    def judge(query: str) -> Any:
        first = before.evaluate(query=query, response="Anna", contexts=[]).feedback
        with contextlib.suppress(ValueError):
            GuidelineEvaluator(guidelines="Rule 1.").evaluate(query=query, response="Anna", contexts=[])
        before._eval_template.output_parser = before._output_parser
        return first

    made_by(service, judge)


def test_evaluators_of_a_kind_are_asked_in_a_loop(service: Service) -> None:
    def judge(query: str) -> list[Any]:
        return [each.evaluate(query=query, response="Anna", contexts=[]).feedback for each in judges]

    parser = PydanticOutputParser(output_cls=_Anything)
    judges = [GuidelineEvaluator(guidelines=f"Rule {n}.", output_parser=parser) for n in range(3)]
    asked_side_by_side(service, judge, "Rule 0", "Rule 2", lambda app: apart(app, "Who?"))


class _Anything(EvaluationData):
    """What any reply is parsed to."""

    @classmethod
    def model_validate_json(cls, *args: Any, **given: Any) -> Any:
        return cls(passing=True, feedback="fine")


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (lambda: RelevancyEvaluator(raise_error=True), {}),
        (RelevancyEvaluator, {"response": "hive 0 " * 3_000}),
        (RelevancyEvaluator, {"contexts": None}),
        (RelevancyEvaluator, {"query": None}),
        (RelevancyEvaluator, {"contexts": ["\ud800"]}),
        (CorrectnessEvaluator, {}),
    ],
    ids=range(6),
)
def test_nothing_is_asked_behind_a_judgement_that_may_raise(
    service: Service, monkeypatch: pytest.MonkeyPatch, first: Any, told: dict[str, Any]
) -> None:
    def said_no(path: str, given: dict[str, Any]) -> dict[str, Any]:
        reply = Service.reply_to(service, path, given)
        reply["choices"][0]["message"]["content"] = "no"
        return reply

    monkeypatch.setattr(service, "reply_to", said_no)
    before, behind = FaithfulnessEvaluator(), FaithfulnessEvaluator()
    evaluator = first()
    given = {"response": "Anna", "contexts": ["hive 0"], **told}

    def judge(query: str) -> list[Any]:
        found = [before.evaluate(query=query, response="Ben", contexts=["hive 1"])]
        found.append(evaluator.evaluate(**{"query": query, **given}))
        found.append(behind.evaluate(query=query, response="Carla", contexts=["hive 2"]))
        return found

    made_by(service, judge, raising=Exception)


def test_early_judgements_are_asked_by_the_synchronous_client(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asynchronous one keeps connections of one event loop."""
    asked, chat = list[Any](), models._originals["_chat"]
    monkeypatch.setitem(models._originals, "_chat", lambda *args, **given: (asked.append(1), chat(*args, **given))[1])
    service.lasts_s, fast = 0.1, optimize(judging(FaithfulnessEvaluator(), RelevancyEvaluator()))
    apart(fast, "Who?")
    apart(fast, "Who?")
    assert asked


def test_a_judgement_on_the_callers_event_loop_is_asked_once(service: Service) -> None:
    """Older releases leave the call behind where they run such a judgement on a thread."""

    async def in_a_loop(query: str) -> Any:
        return app(query)

    app = judging(FaithfulnessEvaluator(), RelevancyEvaluator())
    with counted(service) as wanted:
        apart(asyncio.run, in_a_loop("Who?"))
    app, service.lasts_s = optimize(app), 0.1
    with counted(service) as made:
        apart(asyncio.run, in_a_loop("Who?"))
    assert made == wanted


def test_a_model_with_a_client_of_the_users_judges_as_the_run_comes_to_it(service: Service) -> None:
    given = {"base_url": service.url, "api_key": "none", "max_retries": 0, "timeout": 60.0}
    like = {"async_openai_client": AsyncOpenAI(**given)}
    for client, is_early in (
        (like, True),
        ({"async_openai_client": AsyncOpenAI(**{**given, "api_key": "other"})}, False),
        ({"async_openai_client": AsyncOpenAI(**given, organization="hives")}, False),
        ({"openai_client": OpenAI(**given, default_headers={"x-hive": "1"})}, False),
        ({"async_http_client": httpx.AsyncClient()}, False),
    ):
        llm = OpenAILike(model="m", api_base=service.url, api_key="none", is_chat_model=True, max_retries=0, **client)
        assert has_clients_alike(llm) == is_early, client


class Parsing(SentenceSplitter):
    """Counts its texts."""

    seen: ClassVar[list[str]] = []

    def split_text(self, text: str) -> list[str]:
        self.seen.append(text)
        return super().split_text(text)

    split_text_metadata_aware = lambda self, text, metadata_str: self.split_text(text)  # noqa: E731


def test_a_node_parser_of_the_users_runs_as_often(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_node_parser", Parsing())
    monkeypatch.setattr(Settings, "_transformations", None)
    judge, seen = judging(RelevancyEvaluator(), RelevancyEvaluator()), []
    service.lasts_s, fast = 0.1, optimize(judge)
    for app in (judge, fast):
        Parsing.seen.clear()
        apart(app, "Who?")
        seen.append([*Parsing.seen])
    assert seen[0] == seen[1] != []


class Hearing(BaseCallbackHandler):
    """Counts what a model is asked."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.heard = 0

    def on_event_start(self, event_type: Any, payload: Any = None, event_id: str = "", **given: Any) -> str:
        self.heard += event_type == "llm"
        return event_id

    def on_event_end(self, *args: Any, **given: Any) -> None: ...

    def start_trace(self, trace_id: str | None = None) -> None: ...

    def end_trace(self, *args: Any, **given: Any) -> None: ...


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_keeps_its_callbacks_until_it_judges(service: Service, is_async: bool) -> None:
    """LlamaIndex gives the model of an engine the callbacks of the settings."""
    handler, llm = Hearing(), chat(service)
    judge = RelevancyEvaluator(llm=llm)

    def asking(query: str) -> Any:
        said = str(llm.complete("first")) + str(llm.complete("second"))
        return said, judge.evaluate(query=query, response="Anna", contexts=["hive 0"]).feedback

    async def aasking(query: str) -> Any:
        said = str(await llm.acomplete("first")) + str(await llm.acomplete("second"))
        return said, (await judge.aevaluate(query=query, response="Anna", contexts=["hive 0"])).feedback

    service.lasts_s, seen = 0.1, []
    for app in (aasking, optimize(aasking)) if is_async else (asking, optimize(asking)):
        llm.callback_manager, handler.heard = CallbackManager([handler]), 0
        apart(asyncio.run, app("Who?")) if is_async else apart(app, "Who?")
        seen.append(handler.heard)
    assert seen == [2, 2]


def test_a_judgement_on_an_event_loop_of_its_own_is_left_to_the_run() -> None:
    """Where another loop runs already."""
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
    model = Engines().model
    model.callback_manager = CallbackManager()
    judge: BaseEvaluator = RelevancyEvaluator(llm=model)
    assert [len(each) for each in read_call(Judging(judge=judge), "query", "q").rounds] == [3]
    monkeypatch.setattr("tests.adapters.llamaindex.test_llamaindex_evaluators.TEXTS", ["\ud800"])
    assert "no text" in read_call(Judging(judge=judge), "query", "q").barrier
