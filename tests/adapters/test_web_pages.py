"""`requests.get` in functions: GETs in turn are sent at once where that cannot be told, and nobody else's client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
import requests
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize, optimized
from teola_plugin.adapters import web_pages
from teola_plugin.adapters.interception import interception
from teola_plugin.engines import Done
from teola_plugin.errors import Cancelled
from teola_plugin.seams import Reply, active
from tests.adapters.reader.langchain_reading import Found, Recording, hosted, read, stopped
from tests.support.hosted_service import Service, counted

RAN: list[Any] = []
URL = "http://127.0.0.1:9"
"""Nobody is there."""


@pytest.fixture(autouse=True)
def _nothing_of_the_users_runs_early() -> Iterator[None]:
    RAN.clear()
    with interception.installed():
        web_pages.instrument_loaded()
        yield
    assert not RAN


class State(TypedDict, total=False):
    plan: str
    found: list[Any]
    said: str


def app_of(service: Service, find: Callable[[str], Any]) -> Any:
    """A model plans, pages are read in a loop, and a model is told what was found."""
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]

    def plan(state: State) -> dict[str, Any]:
        return {"plan": llm.invoke("Split it.").content}

    def research(state: State) -> dict[str, Any]:
        found = []
        for query in state["plan"].split("\n"):
            found.extend(find(query))
        return {"found": found}

    def say(state: State) -> dict[str, Any]:
        return {"said": llm.invoke(str(state["found"])).content}

    builder = StateGraph(State).add_node("planned", plan).add_node("finding", research).add_node("saying", say)
    builder.add_edge(START, "planned").add_edge("planned", "finding").add_edge("finding", "saying")
    return builder.add_edge("saying", END).compile()


@dataclass
class Result:
    title: str


def careful(service: Service) -> Callable[[str], Any]:
    def search(query: str) -> list[str]:
        try:
            response = requests.get(service.url, headers={"x-key": "k"}, params={"q": query, "count": 5}, timeout=10)
            response.raise_for_status()
            data = response.json()
            results = []
            for each in data.get("items", []):
                results.append(Result(title=each or ""))  # noqa: PERF401
            return [each.title for each in results]
        except Exception as e:
            print(f"search error: {e}")
            return []

    return search


def by_status(service: Service) -> Callable[[str], Any]:
    def search(query: str) -> list[str]:
        response = requests.get(f"{service.url}/find?q={query}")
        if response.status_code == 200:
            return [response.json()["found"]]
        return [f"{response.status_code} {response.reason} {response.ok}"]

    return search


def as_text(service: Service) -> Callable[[str], Any]:
    return lambda query: [requests.get(service.url, {"q": query}, allow_redirects=True).text[:60]]


WAYS = [careful, by_status, as_text]


@pytest.mark.parametrize("make", WAYS)
def test_pages_of_one_address_are_read_side_by_side(service: Service, make: Any) -> None:
    app = app_of(service, make(service))
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    assert fast.invoke({}) == plain
    service.holds, service.awaits = "hive+1" if make is not by_status else "hive%201", "3"
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


@pytest.mark.parametrize("make", WAYS)
def test_a_page_that_is_not_there_is_what_it_was(service: Service, make: Any, capsys: Any) -> None:
    app = app_of(service, make(service))
    service.loses = "2"
    with counted(service) as original:
        plain = app.invoke({})
    printed = capsys.readouterr().out
    fast = optimize(app)
    for _ in range(2):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert capsys.readouterr().out == printed
        assert made == original


class Finding(Workflow):
    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service

    @step
    async def find(self, ev: StartEvent) -> StopEvent:
        found = []
        for query in ev.parts:
            reply = requests.get(self.service.url, params={"q": query})  # noqa: ASYNC210
            found.append(reply.json()["found"])
        return StopEvent(result=found)


async def test_pages_in_a_step_of_a_workflow(service: Service) -> None:
    flow = Finding(service)
    with counted(service) as original:
        plain = await flow.run(parts=["1", "2"])
    fast = optimize(flow)
    for _ in range(3):
        with counted(service) as made:
            assert await fast.run(parts=["1", "2"]) == plain
        assert made == original


def test_the_reply_is_the_callers_own(service: Service) -> None:
    """The program changes the reply and looks at what the reader does not have."""

    def find(query: str) -> list[Any]:
        reply = requests.get(service.url, params={"q": query})
        found = [reply.request.method, reply.elapsed.total_seconds() > 0, reply.raw is not None, reply.json()["found"]]
        reply.status_code = 999
        return [*found, reply.status_code]

    app = app_of(service, find)
    plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        assert fast.invoke({}) == plain


# --- models by requests.post -----------------------------------------------------------------------------------------


def _body(query: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": query}], **more}


def summarized(service: Service) -> Callable[[str], Any]:
    headers = {"Content-Type": "application/json", "x-api-key": "k"}

    def summarize(query: str) -> list[str]:
        payload = _body(f"sum up {query}", temperature=0.7, stream=False)
        try:
            began = time.time()
            response = requests.post(f"{service.url}/chat/completions", json=payload, headers=headers)
            response.raise_for_status()
            print(f"done in {time.time() - began > 100}")
            return [response.json()["choices"][0]["message"]["content"]]
        except Exception as e:
            return [f"failed: {e}"]

    return summarize


def test_models_that_are_asked_by_post_are_asked_at_once(service: Service, capsys: Any) -> None:
    app = app_of(service, summarized(service))
    with counted(service) as original:
        plain = app.invoke({})
    printed = capsys.readouterr().out
    fast = optimize(app)
    assert fast.invoke({}) == plain
    capsys.readouterr()
    service.holds, service.awaits = "sum up hive 1", "sum up hive 3"
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert not service.has_waited_in_vain
    assert made == original
    assert capsys.readouterr().out == printed


def test_what_a_post_is_given_is_copied(service: Service) -> None:
    """One body that is changed for each request."""
    body = _body("")

    def ask(query: str) -> list[str]:
        made = dict(body)
        made["messages"] = [{"role": "user", "content": query}]
        reply = requests.post(f"{service.url}/chat/completions", None, made).json()
        made["messages"].append({"role": "assistant", "content": "more"})
        return [reply["choices"][0]["message"]["content"]]

    app = app_of(service, ask)
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert made == original


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/hook", _body("a")), ("/chat/completions", {"a": 1}), ("/chat/completions", _body("a", stream=True)),
        ("/chat/completions", _body("a", store=True)), ("/chat/completions", {"messages": []}),
        ("/api/chat", _body("a")), ("/chat/completions", None), ("/chat/completions", [_body("a")]),
    ],
)  # fmt: skip
def test_other_posts_are_left_to_the_framework(path: str, body: Any) -> None:
    assert "options that are not read" in stopped(lambda x: requests.post(URL + path, json=body), 1)
    assert stopped(lambda x: requests.post(URL + path, data=body), 1)


def test_a_post_of_which_little_is_known_yet_ends_the_reading(service: Service) -> None:
    llm = hosted()

    def by_address(url: str) -> Any:
        requests.post(f"{url}/{llm.invoke('where?').content}", json=_body("a"))
        return llm.invoke("behind")

    def by_model(url: str) -> Any:
        requests.post(f"{url}/chat/completions", json=_body("a", stream=llm.invoke("whole?").content))
        return llm.invoke("behind")

    def by_body(url: str) -> Any:
        requests.post(f"{url}/chat/completions", json=llm.invoke("what?").content)
        return llm.invoke("behind")

    for program in (by_address, by_model, by_body):
        assert read(program, service.url, most=2).shown[:1] == [1]


@pytest.mark.parametrize("status", [429, 503, 404])
@pytest.mark.parametrize("make", [summarized, by_status])
def test_refusals_of_more_requests_than_the_originals_are_not_handed_out(
    service: Service, make: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that refuses a request beside another: the original never meets it."""
    under_way, lock = [0], threading.Lock()
    served = service.RequestHandlerClass

    def crowded(serve: Callable[[Any], None]) -> Callable[[Any], None]:
        def answer(self: Any) -> None:
            with lock:
                under_way[0] += 1
                is_crowded = under_way[0] > 1
            time.sleep(0.05)
            with lock:
                under_way[0] -= 1
            if not is_crowded or status == 404:
                serve(self)
                return
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        return answer

    app = app_of(service, make(service))
    if status == 404:
        service.loses = "2"
    for name in ("do_GET", "do_POST"):
        monkeypatch.setattr(served, name, crowded(getattr(served, name)))
    plain = app.invoke({})
    fast = optimize(app)
    for _ in range(4):
        assert fast.invoke({}) == plain


# --- order -----------------------------------------------------------------------------------------------------------


def certain(program: Callable[[Any], Any], service: Service) -> list[list[bool]]:
    found: Found = read(program, service.url)
    assert not found.stopped
    return found.certain


def test_pages_of_one_host_and_other_addresses_are_read_in_order(service: Service) -> None:
    def program(url: str) -> list[Any]:
        return [requests.get(f"{url}/{path}").json() for path in ("on", "state", "off")]

    assert certain(program, service) == [[True, False, False]]


def test_pages_of_other_hosts_are_read_side_by_side(service: Service) -> None:
    def program(url: str) -> list[Any]:
        return [requests.get(each).json() for each in (f"{url}/a", f"{url.replace('127.0.0.1', 'localhost')}/b")]

    assert certain(program, service) == [[True, True]]


def test_a_page_is_read_after_what_stands_before_it(service: Service) -> None:
    """A model before a GET may fail, and a service may not keep to what GET means."""
    llm = hosted()

    def program(url: str) -> list[Any]:
        return [llm.invoke("first").content, requests.get(url).json()]

    assert certain(program, service) == [[True, False]]


async def _awaited(x: float) -> None:
    await asyncio.sleep(x)


@pytest.mark.parametrize("pause", [time.sleep, _awaited])
def test_nothing_is_asked_before_a_pause_is_over(pause: Any) -> None:
    """A program that pauses may keep to a rate limit; shorter pauses only look like work."""
    assert read(pause, 0.3, is_async=pause is _awaited).stopped == "it waits"
    assert not read(pause, 0.1, is_async=pause is _awaited).stopped


def _many_pauses(x: float) -> None:
    for _ in range(3):
        time.sleep(x)


def test_short_pauses_add_up() -> None:
    assert stopped(_many_pauses, 0.1) == "it waits"
    assert not stopped(_many_pauses, 0.01)


def test_a_pause_of_unknown_length_is_a_pause() -> None:
    assert stopped(lambda x: time.sleep(hosted().invoke("how long?")), 1) == "it waits"  # type: ignore[arg-type]


# --- what is left to the framework -----------------------------------------------------------------------------------


def _hooked() -> Any:
    return requests.get(URL, hooks={"response": lambda *args, **kwargs: RAN.append("hook")})


def _authenticated() -> Any:
    return requests.get(URL, auth=lambda request: RAN.append("auth"))


def _streamed() -> Any:
    return requests.get(URL, stream=True)


def _unverified() -> Any:
    return requests.get(URL, verify=False)


def _posted() -> Any:
    return requests.post(URL, json={})


def _of_a_session() -> Any:
    return SESSION.get(URL)


SESSION = requests.Session()


@pytest.mark.parametrize("program", [_hooked, _authenticated, _streamed, _unverified, _posted, _of_a_session])
def test_other_requests_are_left_to_the_framework(program: Any) -> None:
    assert stopped(lambda x: program(), 1)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (requests.Session, "request"), (requests.Session, "send"), (requests.adapters.HTTPAdapter, "send"),
        (requests.api, "request"), (requests.api, "get"), (requests, "get"),
    ],
    ids=str,
)  # fmt: skip
def test_what_was_replaced_is_the_users(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: RAN.append(name))
    assert stopped(lambda x: requests.get(x), URL)


def test_replaced_methods_of_replies_are_the_users(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests.Response, "json", lambda reply: RAN.append("json"))
    assert stopped(lambda x: requests.get(x).json(), service.url)


def test_sessions_with_settings_share_nothing(service: Service) -> None:
    """The key of a GET tells nothing of them."""

    def by_session(state: State) -> dict[str, Any]:
        session = requests.Session()
        session.headers["x-key"] = "mine"
        time.sleep(0.1)  # until the other has been asked ahead
        return {"said": str(session.get(service.url, params={"q": "same"}).json())}

    def read_page(state: State) -> dict[str, Any]:
        time.sleep(0.15)
        return {"found": requests.get(service.url, {"q": "same"}).json()["items"]}

    builder = StateGraph(State).add_node("a", by_session).add_node("b", read_page)
    app: Any = builder.add_edge(START, "a").add_edge(START, "b").compile()
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert made == original


class Early(Recording):
    """A session with an early page for each request that is shared."""

    def claim(self, *given: Any) -> tuple[Reply, bool]:
        page = requests.Response()
        page.status_code, page._content = 200, b'"early"'
        reply = Reply()
        reply.put(Done(page))
        return reply, False


@pytest.mark.parametrize(
    ("name", "value"),
    [("headers", {"x-key": "mine"}), ("params", {"p": "mine"}), ("cookies", {"c": "mine"}), ("max_redirects", 1)],
)
def test_a_session_with_settings_takes_no_early_page(service: Service, name: str, value: Any) -> None:
    session = requests.Session()
    with active(Early()):
        assert session.get(service.url).json() == "early"
        if type(value) is dict:
            getattr(session, name).update(value)
        else:
            setattr(session, name, value)
        assert session.get(service.url).json() != "early"


def test_an_address_from_a_parser_is_a_text(service: Service) -> None:
    address = StrOutputParser().invoke(AIMessage(service.url))
    assert type(address) is not str
    with active(Early()):
        assert requests.get(address).json() == "early"


@pytest.mark.parametrize("headers", [None, {"x-key": "a\nb"}, {"x-key": "é"}])
def test_what_the_client_may_refuse_is_a_branch(service: Service, headers: Any) -> None:
    llm = hosted()

    def program(url: str) -> str:
        requests.get(url, headers=headers, timeout=5)
        return str(llm.invoke("b").content)

    def certain_of(url: str) -> list[bool]:
        try:
            return read(program, url).certain[0]
        except Exception:  # of the client
            return [True, False]

    assert certain_of(service.url) == [True, headers is None]
    assert certain_of("nowhere://host") == [True, False]


def test_an_error_of_the_connection_is_the_programs(service: Service) -> None:
    """One more request than the original's at most: the next page may be under way as the first fails."""

    def find(query: str) -> list[str]:
        try:
            return [requests.get(URL, params={"q": query}, timeout=1).text]
        except requests.exceptions.ConnectionError as e:
            return [type(e).__name__]

    app = app_of(service, find)
    plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        assert fast.invoke({}) == plain


def test_an_error_that_is_not_caught_is_the_same(service: Service) -> None:
    def find(query: str) -> list[str]:
        return [requests.get("nowhere://host", params={"q": query}).text]

    app = app_of(service, find)
    fast = optimize(app)
    for _ in range(3):
        with pytest.raises(requests.exceptions.InvalidSchema, match="No connection adapters were found for"):
            fast.invoke({})


def test_a_client_that_is_replaced_meanwhile_sends_nothing_early(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The early request begins when the program has replaced a part of the client already."""
    send = requests.adapters.HTTPAdapter.send

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        RAN.append("sent")
        return send(self, *args, **kwargs)

    def late() -> None:
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", traced)
        try:
            with web_pages.claiming():
                requests.get(service.url, params={"q": "early"})
        finally:
            monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)

    with pytest.raises(Cancelled):
        late()
    assert service.asked == []
