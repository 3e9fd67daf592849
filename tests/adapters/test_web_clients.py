"""Raw clients of web searches in functions: searches in turn are sent at once, and nobody else's client is touched."""

from __future__ import annotations

import asyncio
import os
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import pytest
import requests
from ddgs.ddgs import DDGS
from langchain_community.tools import DuckDuckGoSearchRun
from langchain_community.utilities import DuckDuckGoSearchAPIWrapper, GoogleSerperAPIWrapper
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import Tool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from tavily import BadRequestError, TavilyClient

from teola_plugin import optimize, optimized, pure
from teola_plugin.adapters import web_clients
from teola_plugin.adapters.interception import interception
from teola_plugin.engines import Done
from teola_plugin.seams import Reply, active
from tests.adapters.reader.langchain_reading import Recording, read, stopped
from tests.support.hosted_service import Service, asked_side_by_side, counted

RAN: list[Any] = []


class State(TypedDict, total=False):
    plan: str
    found: list[str]
    said: str


@pytest.fixture(autouse=True)
def _nothing_of_the_users_runs_early() -> Iterator[None]:
    RAN.clear()
    with interception.installed():
        web_clients.instrument_loaded()
        yield
    assert not RAN


def client_of(service: Service, **given: Any) -> TavilyClient:
    return TavilyClient(api_key="none", api_base_url=service.url, **given)


def app_of(service: Service, find: Callable[[str], Any]) -> Any:
    """A model plans, a client is asked in a loop, and a model is told what was found."""
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]

    def plan(state: State) -> dict[str, Any]:
        return {"plan": llm.invoke("Split it.").content}

    def research(state: State) -> dict[str, Any]:
        content = list(state.get("found") or [])
        for query in state["plan"].split("\n"):
            response = find(query)
            for result in response["results"]:
                content.append(result["content"])  # noqa: PERF401
        return {"found": content}

    def say(state: State) -> dict[str, Any]:
        return {"said": llm.invoke("\n".join(state["found"])).content}

    builder = StateGraph(State).add_node("planned", plan).add_node("finding", research).add_node("saying", say)
    builder.add_edge(START, "planned").add_edge("planned", "finding").add_edge("finding", "saying")
    return builder.add_edge("saying", END).compile()


def made_before(service: Service) -> Callable[[str], Any]:
    client = client_of(service)
    return lambda query: client.search(query=query, max_results=2)


def made_for_each(service: Service) -> Callable[[str], Any]:
    return lambda query: TavilyClient(api_key="none", api_base_url=service.url).search(query)


def in_a_tool(service: Service) -> Callable[[str], Any]:
    client = client_of(service)

    @tool
    def look_up(query: str) -> Any:
        """Search the web."""
        return client.search(query, max_results=2)

    return lambda query: look_up.invoke({"query": query})


@pytest.mark.parametrize("make", [made_before, made_for_each, in_a_tool])
def test_searches_in_turn_run_side_by_side(service: Service, make: Any) -> None:
    asked_side_by_side(service, app_of(service, make(service)), "search hive 1", "search hive 3")


def test_the_reply_belongs_to_the_caller(service: Service) -> None:
    """The program changes each reply; what the reader still reads is a copy."""
    search = made_before(service)

    def find(query: str) -> Any:
        response = search(query)
        response["results"] = [*response["results"], {"content": "more"}]
        return response

    app = app_of(service, find)
    fast = optimize(app)
    assert app.invoke({}) == fast.invoke({}) == fast.invoke({})
    report = optimized(fast).reports[-1]
    assert report.hits + report.shared >= 3


def test_reader_and_program_get_copies_of_their_own(service: Service) -> None:
    client = client_of(service)

    class Claiming(Recording):
        """A session whose early reply is there already."""

        def claim(self, *given: Any) -> tuple[Reply, bool]:
            return reply, False

    reply = Reply()
    reply.put(Done({"results": [{"content": "early"}]}))
    with active(Claiming()):
        client.search("a")["results"].clear()
        assert client.search("a") == {"results": [{"content": "early"}]}


def test_no_search_is_lost_or_repeated_when_the_service_fails(service: Service) -> None:
    app = app_of(service, made_before(service))
    fast = optimize(app)
    fast.invoke({})
    service.fails = "hive 2"
    asked = len(service.asked)
    with pytest.raises(BadRequestError):
        app.invoke({})
    plain, asked = service.asked[asked:], len(service.asked)
    with pytest.raises(BadRequestError):
        fast.invoke({})
    more = Counter(service.asked[asked:]) - Counter(plain)
    assert set(more) <= {"search hive 3"}  # under way as the failure came
    assert not Counter(plain) - Counter(service.asked[asked:])


class _Own(TavilyClient):
    def search(self, query: str, **given: Any) -> Any:  # type: ignore[override]
        RAN.append("early")
        return {"results": []}


class _Adapter(requests.adapters.HTTPAdapter):
    """An adapter of the user's."""


def _with_session(change: Callable[[requests.Session], Any]) -> TavilyClient:
    session = requests.Session()
    change(session)
    return TavilyClient(api_key="none", api_base_url="http://nowhere", session=session)


def _with_method() -> TavilyClient:
    client = TavilyClient(api_key="none")
    vars(client)["search"] = lambda query: RAN.append("early")
    return client


def test_the_search_of_a_read_only_tool_is_asked_for_once(service: Service) -> None:
    """The call of the tool is shared as a whole, and the search inside of it is not shared besides."""
    client = client_of(service)

    @tool
    @pure
    def look_up(query: str) -> Any:
        """Search the web."""
        return client.search(query, max_results=2)

    app = app_of(service, lambda query: look_up.invoke({"query": query}))
    fast = optimize(app)
    fast.invoke({})
    with counted(service) as original:
        plain = app.invoke({})
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


class Research(Workflow):
    """A step that searches in a loop."""

    client: Any = None

    @step
    async def research(self, ev: StartEvent) -> StopEvent:
        found = [self.client.search(f"hive {n}")["results"][0]["content"] for n in range(1, 4)]
        return StopEvent(result=found)


def test_a_step_of_a_workflow_that_searches(service: Service) -> None:
    workflow = Research()
    workflow.client = client_of(service)
    fast = optimize(workflow)

    async def run(workflow: Any) -> Any:
        return await workflow.run()

    plain = asyncio.run(run(workflow))
    assert asyncio.run(run(fast)) == plain
    service.holds, service.awaits = "search hive 1", "search hive 3"
    with counted(service) as made:
        assert asyncio.run(run(fast)) == plain
    assert not service.has_waited_in_vain
    assert sum(made.values()) == 3


USERS: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: _Own(api_key="none"),
    "a hook": lambda: _with_session(lambda s: s.hooks["response"].append(lambda *args, **given: RAN.append("early"))),
    "an adapter": lambda: _with_session(lambda s: s.mount("http://", _Adapter())),
    "authentication": lambda: _with_session(lambda s: setattr(s, "auth", lambda request: RAN.append("early"))),
    "a method of the session": lambda: _with_session(lambda s: setattr(s, "post", lambda *a, **g: RAN.append("early"))),
    "a method": _with_method,
}


@pytest.mark.parametrize("name", USERS)
def test_a_client_with_user_code_is_not_asked_ahead(name: str) -> None:
    client = USERS[name]()
    assert not web_clients.searches(client, "search")
    assert stopped(lambda query: client.search(query), "a")


def test_nor_is_one_whose_method_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    client = TavilyClient(api_key="none")
    assert web_clients.searches(client, "search")
    monkeypatch.setattr(TavilyClient, "_search", lambda *args, **given: RAN.append("early"))
    assert not web_clients.searches(client, "search")


def test_a_wrapper_that_is_made_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(query: str) -> str:
        return DuckDuckGoSearchAPIWrapper().run(query)

    monkeypatch.setattr(DDGS, "text", lambda self, query, **given: [{"body": f"<{query}>"}])
    found = read(search, "a")
    assert not found.stopped
    assert [len(each) for each in found.rounds] == [1]
    assert found.value == "<a>"


def test_a_client_of_langchains_made_before_the_function_is_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = DuckDuckGoSearchAPIWrapper(max_results=3)
    monkeypatch.setattr(DDGS, "text", lambda self, query, **given: [{"body": f"<{query}>", "title": "", "href": ""}])
    found = read(lambda query: [wrapper.run(query), wrapper.results(query, 2)[0]["snippet"]], "a")
    assert not found.stopped
    assert found.certain == [[True, False]]
    assert found.value == ["<a>", "<a>"]


def test_behind_a_search_that_raises_if_it_finds_nothing_no_other_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(query: str) -> str:
        wrapper = DuckDuckGoSearchAPIWrapper()
        return wrapper.run(query) + wrapper.run("b")

    def raw(query: str) -> Any:
        wrapper = DuckDuckGoSearchAPIWrapper()
        return [wrapper._ddgs_text(query), wrapper._ddgs_text("b")]

    def found_or_not(queries: list[str]) -> list[str]:
        found = []
        for query in queries:
            try:
                found.append(DuckDuckGoSearchAPIWrapper().run(query))
            except Exception:
                found.append("nothing")
        return found

    monkeypatch.setattr(DDGS, "text", lambda self, query, **given: [{"body": f"<{query}>"}])
    assert read(twice, "a").certain[0] == [True, False]
    assert read(raw, "a").certain[0] == [True, False]
    assert read(found_or_not, ["a", "b"]).certain[0] == [True, True]
    search = DuckDuckGoSearchRun()
    assert read(lambda query: [search.run(query), search.run("b")], "a").certain[0] == [True, False]
    assert not read(lambda query: DuckDuckGoSearchRun().run(query), "a").stopped


class _Told:
    """What the search engine of `GoogleSerperAPIWrapper` replies."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def raise_for_status(self) -> None:
        pass

    def json(self) -> Any:
        return self._reply


def _serper(monkeypatch: pytest.MonkeyPatch, reply: Callable[[str], Any]) -> GoogleSerperAPIWrapper:
    monkeypatch.setattr(requests, "post", lambda url, headers, params: _Told(reply(params["q"])))
    wrapper = GoogleSerperAPIWrapper(serper_api_key="none", k=2)
    web_clients.instrument_loaded()
    return wrapper


def _snippets(query: str) -> Any:
    return {"organic": [{"snippet": f"<{query}{n}>"} for n in range(3)]}


def test_searches_whose_text_the_client_computes_are_asked_as_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of `run` may find a reply without results, as a parser may a reply that is no JSON."""
    wrapper = _serper(monkeypatch, _snippets)

    def find(queries: list[str]) -> dict[str, str]:
        results = {}
        for query in queries:
            results[query] = wrapper.run(query)
        return results

    found = read(find, ["a", "b", "c"])
    assert found.certain == [[True, True, True]]
    assert found.value == find(["a", "b", "c"]) == {each: f"<{each}0> <{each}1>" for each in "abc"}


def test_behind_a_text_that_the_client_may_not_compute_another_search_is_not_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapper = _serper(monkeypatch, _snippets)
    found = read(lambda query: wrapper.run(query) + wrapper.run("b" + query), "a")
    assert found.certain[0][0]
    assert not all(found.certain[0])
    assert found.value == "<a0> <a1><ba0> <ba1>"


def test_a_reply_from_which_the_client_computes_no_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = _serper(monkeypatch, lambda query: {} if query == "b" else _snippets(query))

    def find(queries: list[str]) -> list[str]:
        found = []
        for query in queries:
            try:
                found.append(wrapper.run(query))
            except Exception as e:
                found.append(f"none: {e!r}")
        return found

    fast = optimize(find)
    for _ in range(2):
        assert fast(["a", "b", "c"]) == ["<a0> <a1>", "none: KeyError('organic')", "<c0> <c1>"]
    assert optimized(fast).reports[-1].wasted == 0


@pytest.mark.parametrize("as_tool", [True, False], ids=["as a tool", "as it is"])
def test_what_a_client_computes_the_run_takes(service: Service, monkeypatch: pytest.MonkeyPatch, as_tool: bool) -> None:
    """All searches are under way before the first is answered, and each is made once."""
    asked: list[str] = []
    is_last = threading.Event()
    wrapper = _serper(monkeypatch, lambda query: _waiting(asked, is_last, query))
    search = Tool(name="search", func=wrapper.run, description="searches")
    find = search.invoke if as_tool else wrapper.run
    app = app_of(service, lambda query: {"results": [{"content": find(query)}]})
    is_last.set()
    plain = app.invoke({})
    fast = optimize(app)
    assert fast.invoke({}) == plain
    first, asked[:] = Counter(asked), []
    is_last.clear()
    assert fast.invoke({}) == plain
    assert Counter(asked) + Counter(asked) == first


def _waiting(asked: list[str], is_last: threading.Event, query: str) -> Any:
    asked.append(query)
    if len(asked) == 3:
        is_last.set()
    assert is_last.wait(5)
    return _snippets(query)


def test_a_method_of_a_base_class_is_not_taken_for_the_object_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = _serper(monkeypatch, _snippets)
    other = types.MethodType(lambda self, query: "other " + query, wrapper)
    other.__func__.__name__ = "run"
    assert read(lambda query: other(query), "a").value == "other a"


@pytest.mark.parametrize("certain", [True, False])
def test_a_search_whose_arguments_the_client_may_refuse_is_a_branch(service: Service, certain: bool) -> None:
    client = client_of(service)

    def twice(query: str) -> Any:
        first = client.search(query) if certain else client.search(query, timeout=1.0)
        return [first, client.search("b")]

    assert read(twice, "a").certain[0] == [True, certain]


@pytest.mark.parametrize("options", [
    {"time_range": "week", "topic": "news"}, {"include_domains": ["a.org"], "days": 3}, {"country": "france"},
])  # fmt: skip
def test_options_that_tavily_sends_as_they_are_hold_nothing_back(service: Service, options: Any) -> None:
    client = client_of(service)

    def twice(query: str) -> Any:
        return [client.search(query, **options), client.search("b", **options)]

    assert read(twice, "a").certain[0] == [True, True]


def test_a_search_that_has_come_back_was_not_refused(service: Service) -> None:
    client = client_of(service)

    def find(query: str) -> Any:
        pages = client.search(query, timeout=1.0)["results"]
        return [client.search(page["url"]) for page in pages]

    found = read(find, "a")
    assert [len(each) for each in found.certain] == [1, len(found.value)]
    assert all(found.certain[1])


def _stores(client: TavilyClient, url: str) -> None:
    client.base_url = url


def _replaces(client: TavilyClient, url: str) -> None:
    client.search = lambda query, **options: {"results": []}  # type: ignore[method-assign,assignment,misc]


def _updates(client: TavilyClient, url: str) -> None:
    vars(client).update(base_url=url)


def _stores_unread(client: TavilyClient, url: str) -> None:
    with open(os.devnull):
        client.base_url = url


@pytest.mark.parametrize("change", [_stores, _replaces, _updates, _stores_unread])
def test_a_client_that_the_function_changes_is_asked_once(
    service: Service, change: Callable[[TavilyClient, str], None]
) -> None:
    """What is asked before the change is not asked again with the new settings, and what follows not with the old."""
    client, before = client_of(service), {}

    def find(query: str) -> Any:
        found = [client.search(f"{query} 1")]
        change(client, service.url + "/other")
        return [*found, client.search(f"{query} 2"), client.search(f"{query} 3")]

    before.update(vars(client))
    app = RunnableLambda(find) | RunnableLambda(lambda found: found)
    fast = optimize(app)
    for pipeline in (app, fast, fast):
        vars(client).clear()
        vars(client).update(before)
        with counted(service) as asked:
            pipeline.invoke("hives")
        if pipeline is app:
            original = asked
        assert asked == original
