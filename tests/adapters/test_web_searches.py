"""Stock clients of web searches: they are asked ahead as a hosted model is, and nobody else's tools are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_community.tools.file_management import WriteFileTool
from langchain_community.tools.tavily_search import TavilySearchResults
from langchain_community.utilities import tavily_search
from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from teola_plugin import explain, optimize, optimized, providers, pure
from teola_plugin.adapters.langchain.reading_retrievers import provider_of_tool
from teola_plugin.adapters.langchain.tools import EarlyTool, _resource_of, _shares, read_tool
from tests.adapters.langchain.test_agents import QUESTION, World
from tests.adapters.reader.langchain_reading import read, stopped
from tests.support.hosted_service import Service, asked_side_by_side, counted

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
RAN: list[str] = []
NOTED: list[str] = []


class State(TypedDict, total=False):
    plan: str
    found: str
    said: str


@pytest.fixture(autouse=True)
def _address(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TAVILY_API_KEY", "none")
    monkeypatch.setattr(tavily_search, "TAVILY_API_URL", service.url)
    RAN.clear()
    yield
    assert not RAN


def _model(service: Service) -> Any:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def app_of(service: Service, tool: Any) -> Any:
    """A model plans, a tool is asked in turn, and a model is told what was found."""
    llm = _model(service)

    def plan(state: State) -> dict[str, Any]:
        return {"plan": llm.invoke("Split it.").content}

    def find(state: State) -> dict[str, Any]:
        found = ""
        for part in state["plan"].split("\n"):
            found += str(tool.invoke({"query": part}))
        return {"found": found}

    def say(state: State) -> dict[str, Any]:
        return {"said": llm.invoke(state["found"]).content}

    builder = StateGraph(State).add_node("planned", plan).add_node("finding", find).add_node("saying", say)
    builder.add_edge(START, "planned").add_edge("planned", "finding").add_edge("finding", "saying")
    return builder.add_edge("saying", END).compile()


class _Made:
    """A tool that is made for each call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def invoke(self, given: Any) -> Any:
        return self._make().invoke(given)


def _two() -> Any:
    return TavilySearchResults(max_results=2)


@pytest.mark.parametrize("make", [_two, lambda: _Made(_two)], ids=["made before", "made for each search"])
def test_searches_in_turn_run_side_by_side(service: Service, make: Callable[[], Any]) -> None:
    report = asked_side_by_side(service, app_of(service, make()), "search hive 1", "search hive 3")
    assert report.misses <= 1  # the first, where the framework's run is there before the reader


def test_awaited_searches_in_turn_run_side_by_side(service: Service) -> None:
    """The tool has a coroutine with a client of its own: what is asked ahead is what the framework awaits."""
    llm, tool = _model(service), _two()

    async def find(state: State) -> dict[str, Any]:
        parts = (await llm.ainvoke("Split it.")).content.split("\n")
        return {"found": "".join([str(await tool.ainvoke(part)) for part in parts])}

    app: Any = StateGraph(State).add_node("finding", find).add_edge(START, "finding").compile()
    with counted(service) as original:
        plain = asyncio.run(app.ainvoke({}))
    fast = optimize(app)
    asyncio.run(fast.ainvoke({}))
    service.holds, service.awaits = "search hive 1", "search hive 3"
    with counted(service) as made:
        assert asyncio.run(fast.ainvoke({})) == plain
    assert not service.has_waited_in_vain
    assert made == original


def _noting(service: Service, *, is_first: bool) -> Any:
    """Searches of a function that notes something outside before or after them, and a function that does after it."""
    llm, tool = _model(service), _two()

    def plan(state: State) -> dict[str, Any]:
        return {"plan": llm.invoke("Split it.").content}

    def find(state: State) -> dict[str, Any]:
        if is_first:
            NOTED.append("searching")
        found = "".join([str(tool.invoke(part)) for part in state["plan"].split("\n")])
        NOTED.append(found)
        return {"found": found}

    def say(state: State) -> dict[str, Any]:
        NOTED.append("saying")
        return {"said": llm.invoke(state["found"]).content}

    builder = StateGraph(State).add_node("planned", plan).add_node("finding", find).add_node("saying", say)
    builder.add_edge(START, "planned").add_edge("planned", "finding").add_edge("finding", "saying")
    return builder.add_edge("saying", END).compile()


def test_changes_further_down_hold_no_search_back(service: Service) -> None:
    report = asked_side_by_side(service, _noting(service, is_first=False), "search hive 1", "search hive 3")
    assert report.misses <= 1


def test_a_search_behind_a_change_is_left_to_the_run(service: Service) -> None:
    fast = optimize(_noting(service, is_first=True))
    with counted(service) as first:
        fast.invoke({})
    with counted(service) as made:
        fast.invoke({})
    assert made == first
    assert "where it changes a list that it did not make" in " ".join(explain(fast).split())


def _declared() -> type[BaseTool]:
    @pure
    class Declared(BaseTool):
        name: str = "declared"
        description: str = "d"

        def _run(self, word: str) -> str:
            return word

    return Declared


def test_tools_that_a_function_may_make_share_their_calls_before_the_first_call(service: Service) -> None:
    """By the time that the reader meets the tool, the framework's run may be searching already."""
    cls = _declared()
    fast = optimize(app_of(service, _Made(cls)))
    assert "__teola_original__" in vars(cls._run)
    assert _shares(cls())
    del fast


def test_a_tool_that_the_framework_s_run_may_be_calling_unseen_is_not_asked_ahead() -> None:
    tool = _declared()()
    assert [_shares(tool), _shares(tool)] == [False, True]


@pytest.mark.cold
@pytest.mark.parametrize("make", [_two, lambda: _Made(_two)], ids=["made before", "made for each search"])
def test_a_search_engine_that_has_answered_the_framework_is_asked_ahead(
    service: Service, make: Callable[[], Any]
) -> None:
    fast = optimize(app_of(service, make()))
    plain = fast.invoke({})
    service.holds, service.awaits = "search hive 1", "search hive 3"
    assert fast.invoke({}) == plain
    assert not service.has_waited_in_vain


@pytest.mark.cold
def test_searches_of_the_framework_count_as_answers_of_the_search_engine(service: Service) -> None:
    fast, breaker = optimize(app_of(service, _two())), providers.provider(provider_of_tool(_two()))._breaker
    fast.invoke({})  # a pipeline rests after calls that were read
    before = breaker.successes
    optimized(fast)._worth = SimpleNamespace(is_worth=lambda: False, judge=lambda *report: None)  # type: ignore[assignment]
    fast.invoke({})
    assert breaker.successes == before + 3


def test_a_search_of_a_call_at_rest_is_one_miss_and_no_tool_is_looked_at(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(service, _two())
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    optimized(fast)._worth = SimpleNamespace(is_worth=lambda: False, judge=lambda *report: None)  # type: ignore[assignment]
    monkeypatch.setattr("teola_plugin.adapters.langchain.tools._is_search", lambda tool: pytest.fail("looked at"))
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.rested, report.hits, report.misses) == (True, 0, sum(original.values()))


def test_who_leaves_a_streamed_reply_of_an_agent_has_searched_for_nothing(service: Service) -> None:
    """While the model writes, its caller may still leave."""
    model = World((_two().name, {"query": "hive 1"}), waits=False)
    model.lingers_s = 0.3
    agent = optimize(create_agent(model.model, [_two()]))
    for _ in agent.stream(QUESTION, stream_mode="messages"):
        break
    assert service.asked == []
    agent.invoke(QUESTION)
    assert service.asked == ["search hive 1"]


def test_a_tool_that_is_set_otherwise_is_another() -> None:
    assert _resource_of(_two()) is _resource_of(_two())
    others = [TavilySearchResults(max_results=3), TavilySearchResults(max_results=2, tavily_api_key="b"), _Own()]
    assert all(_resource_of(other) is not _resource_of(_two()) for other in others)


def test_reading_leaves_the_warning_of_a_deprecated_class_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    init: Any = TavilySearchResults.__init__
    (warned,) = (c for n, c in zip(init.__code__.co_freevars, init.__closure__, strict=True) if n == "warned")
    warned.cell_contents = False
    found = read(lambda x: _two().invoke({"query": x}), "hive 1")
    assert not found.stopped
    assert found.certain == [[True]]
    assert warned.cell_contents is False
    monkeypatch.setattr("warnings.showwarning", lambda *args: RAN.append("early"))
    assert read(lambda x: _two().invoke({"query": x}), "hive 1").certain == [[False]]


class _Loud(TavilySearchResults):
    def __init__(self, **given: Any) -> None:
        RAN.append("early")
        super().__init__(**given)


def test_tools_with_a_constructor_of_the_users_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_Loud" in stopped(lambda x: _Loud().invoke({"query": x}), "a")
    assert "_Wrapper" in stopped(lambda x: TavilySearchResults(api_wrapper=_Wrapper()).invoke(x), "a")
    monkeypatch.setattr(TavilySearchResults, "__init__", lambda self, **given: RAN.append("early"))
    assert "TavilySearchResults" in stopped(lambda x: _two().invoke({"query": x}), "a")


class _Own(TavilySearchResults):
    def _run(self, query: str, run_manager: Any = None) -> Any:
        return f"own {query}", {}


class _Wrapper(tavily_search.TavilySearchAPIWrapper):
    def raw_results(self, *args: Any, **kwargs: Any) -> Any:
        return {"results": []}


def _own_wrapper() -> Any:
    return TavilySearchResults(api_wrapper=_Wrapper())  # type: ignore[call-arg]


def _own_method() -> Any:
    tool = TavilySearchResults()
    vars(tool)["_run"] = lambda query, **given: ("own", {})
    return tool


@pytest.mark.parametrize("make", [_Own, _own_wrapper, _own_method])
def test_what_is_the_users_is_left_to_the_framework(service: Service, make: Callable[[], Any]) -> None:
    assert not isinstance(read_tool(make()), EarlyTool)
    app = app_of(service, make())
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert made == original


def test_a_replaced_client_is_left_to_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = TavilySearchResults()
    assert isinstance(read_tool(tool), EarlyTool)
    monkeypatch.setattr(tavily_search.TavilySearchAPIWrapper, "raw_results", lambda *args: RAN.append("early"))
    assert not isinstance(read_tool(tool), EarlyTool)


def test_a_replaced_method_is_left_to_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TavilySearchResults, "_run", lambda *args, **given: RAN.append("early"))
    assert not isinstance(read_tool(TavilySearchResults()), EarlyTool)


def test_other_tools_of_the_same_package_are_left_to_the_framework() -> None:
    assert not isinstance(read_tool(WriteFileTool()), EarlyTool)
