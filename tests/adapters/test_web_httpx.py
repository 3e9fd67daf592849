"""httpx in functions: pages by `httpx.get` and by clients are read at once where that cannot be told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
from langgraph.graph import END, START, StateGraph
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize, optimized
from teola_plugin.adapters import web_httpx, web_pages
from teola_plugin.adapters.interception import interception
from teola_plugin.engines import Done
from teola_plugin.errors import Cancelled
from teola_plugin.seams import Reply, active
from tests.adapters.reader.langchain_reading import Recording, hosted, read, stopped
from tests.adapters.test_web_pages import URL, State, app_of
from tests.support.hosted_service import Service, counted

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_of_the_users_runs_early() -> Iterator[None]:
    RAN.clear()
    with interception.installed():
        web_httpx.instrument_loaded()
        yield
    assert not RAN


def by_function(service: Service) -> Callable[[str], Any]:
    def search(query: str) -> list[Any]:
        try:
            response = httpx.get(service.url, headers={"x-key": "k"}, params={"q": query}, timeout=httpx.Timeout(10))
            response.raise_for_status()
            return [*response.json()["items"], str(response.url), response.headers.get("content-type")]
        except Exception as e:
            print(f"search error: {e}")
            return []

    return search


def by_client(service: Service) -> Callable[[str], Any]:
    def search(query: str) -> list[Any]:
        with httpx.Client(base_url=service.url, headers={"x-key": "k"}, timeout=10.0) as client:
            response = client.get("/find", params={"q": query})
            if response.status_code == 200:
                return [response.json()["found"], f"{response.url}"]
            return [f"{response.status_code} {response.reason_phrase} {response.is_success}"]

    return search


def by_client_outside(service: Service) -> Callable[[str], Any]:
    """Each GET waits for the one before, as a reply may bring cookies."""
    client = httpx.Client(headers={"x-key": "k"})
    return lambda query: [client.get(service.url, params={"q": query}).text, len(client.cookies)]


WAYS = [by_function, by_client]


@pytest.mark.parametrize("make", WAYS)
def test_pages_of_one_address_are_read_side_by_side(service: Service, make: Any) -> None:
    app = app_of(service, make(service))
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    assert fast.invoke({}) == plain
    service.holds, service.awaits = "hive+1", "3"
    with counted(service) as made:
        assert fast.invoke({}) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


@pytest.mark.parametrize("make", [*WAYS, by_client_outside])
def test_a_page_that_is_not_there_is_what_it_was(service: Service, make: Any, capsys: Any) -> None:
    app = app_of(service, make(service))
    service.loses = "2"
    with counted(service) as original:
        plain = app.invoke({})
    printed = capsys.readouterr().out
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert capsys.readouterr().out == printed
        assert made == original


def async_app(service: Service, find: Callable[[str], Any]) -> Any:
    """The pages of three queries, one after the other, in a coroutine function."""

    async def research(state: State) -> dict[str, Any]:
        return {"found": [await find(query) for query in ("1", "2", "3")]}

    builder = StateGraph(State).add_node("finding", research)
    return builder.add_edge(START, "finding").add_edge("finding", END).compile()


def awaited(service: Service) -> Callable[[str], Any]:
    async def find(query: str) -> Any:
        async with httpx.AsyncClient(timeout=15, headers={"User-Agent": "M"}) as client:
            page = await client.get(service.url, params={"q": query}, follow_redirects=True)
            return page.text, page.json()["found"], str(page.url), page.content, page.is_error

    return find


async def test_pages_of_an_async_client_are_read_side_by_side(service: Service) -> None:
    app = async_app(service, awaited(service))
    with counted(service) as original:
        plain = await app.ainvoke({})
    fast = optimize(app)
    assert await fast.ainvoke({}) == plain
    service.holds, service.awaits = "q=1", "q=3"
    with counted(service) as made:
        assert await fast.ainvoke({}) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


class Finding(Workflow):
    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service

    @step
    async def find(self, ev: StartEvent) -> StopEvent:
        found = []
        for query in ev.parts:
            async with httpx.AsyncClient() as client:
                reply = await client.get(self.service.url, params={"q": query})
            found.append(reply.json()["found"])
        return StopEvent(result=found)


async def test_pages_in_a_step_of_a_workflow(service: Service) -> None:
    flow = Finding(service)
    with counted(service) as original:
        plain = await flow.run(parts=["1", "2"])
    fast = optimize(flow)
    assert await fast.run(parts=["1", "2"]) == plain
    service.holds, service.awaits = "q=1", "q=2"
    with counted(service) as made:
        assert await fast.run(parts=["1", "2"]) == plain
    assert not service.has_waited_in_vain
    assert made == original


def test_the_reply_is_the_callers_own(service: Service) -> None:
    """The program looks at what the reader does not have, and changes the reply."""

    def find(query: str) -> list[Any]:
        with httpx.Client() as client:
            reply = client.get(service.url, params={"q": query})
            request = reply.request
            found = [request.method, str(request.url), [*request.headers.items()], request.extensions]
            found += [reply.elapsed.total_seconds() > 0, reply.is_closed, reply.is_stream_consumed, reply.history]
            found += [reply.json()["found"], client.is_closed, reply.http_version, reply.num_bytes_downloaded]
            reply.status_code = 999
            reply.headers["server"] = "mine"
            return [*found, reply.status_code]

    app = app_of(service, find)
    plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        assert fast.invoke({}) == plain


# --- cookies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def baking(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that tells the cookies it gets, and sets one; `/go` leads elsewhere."""

    def answer(self: Any) -> None:
        self.server.note(f"get {self.path} {self.headers.get('cookie')}")
        goes = "/go" in self.path
        said = b"" if goes else json.dumps([self.path, self.headers.get("cookie")]).encode()
        self.send_response(302 if goes else 200)
        self.send_header("content-length", str(len(said)))
        if "plain" not in self.path:
            self.send_header("set-cookie", f"c{len(self.path)}=1; Path=/")
        if goes:
            self.send_header("location", self.path.replace("/go", "/elsewhere"))
        self.end_headers()
        self.wfile.write(said)

    monkeypatch.setattr(service.RequestHandlerClass, "do_GET", answer)
    return service


def _in_one_client(url: str) -> list[Any]:
    with httpx.Client() as client:
        found = [client.get(url, params={"q": q}).json() for q in ("1", "22", "333")]
        return [*found, sorted(client.cookies.items())]


def _of_two_hosts(url: str) -> list[Any]:
    with httpx.Client() as client:
        found = [client.get(each, params={"q": "1"}).json() for each in (url, f"{_other(url)}/b", f"{url}/c")]
        return [*found, sorted((each.domain, each.name) for each in client.cookies.jar)]


def _in_a_client_each(url: str) -> list[Any]:
    found = []
    for query in ("1", "22", "333"):
        with httpx.Client() as client:
            page = client.get(f"{url}/go", params={"q": query}, follow_redirects=True)
            history = [(each.status_code, str(each.url), each.is_closed) for each in page.history]
            found.append([page.json(), history, sorted(client.cookies.items())])
    return found


def _in_a_client_outside(url: str) -> list[Any]:
    CLIENT.cookies.clear()
    found = [CLIENT.get(url, params={"q": q}).json() for q in ("1", "22")]
    return [*found, sorted(CLIENT.cookies.items())]


CLIENT = httpx.Client()


@pytest.mark.parametrize("way", [_in_one_client, _of_two_hosts, _in_a_client_each, _in_a_client_outside])
def test_cookies_are_what_they_were(baking: Service, way: Any) -> None:
    app = app_of(baking, lambda query: way(f"{baking.url}/{len(query)}"))
    with counted(baking) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(baking) as made:
            assert fast.invoke({}) == plain
        assert made == original


async def test_cookies_of_an_async_client_are_what_they_were(baking: Service) -> None:
    async def find(query: str) -> Any:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            found = [(await client.get(f"{baking.url}/{each}{query}")).json() for each in ("plain", "go", "last")]
            return [*found, sorted(client.cookies.items())]

    app = async_app(baking, find)
    with counted(baking) as original:
        plain = await app.ainvoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(baking) as made:
            assert await fast.ainvoke({}) == plain
        assert made == original


def test_a_node_behind_that_has_cookies_is_what_it_was(baking: Service) -> None:
    """The second node's request carries what the first node's brought."""
    client = httpx.Client()

    def first(state: State) -> dict[str, Any]:
        client.cookies.clear()
        client.get(f"{baking.url}/first")
        return {"plan": "p"}

    def second(state: State) -> dict[str, Any]:
        return {"said": client.get(f"{baking.url}/second").text}

    builder = StateGraph(State).add_node("a", first).add_node("b", second)
    app: Any = builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()
    with counted(baking) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(baking) as made:
            assert fast.invoke({}) == plain
        assert made == original


def _other(url: str) -> str:
    return url.replace("127.0.0.1", "localhost")


def test_a_client_reads_pages_of_hosts_without_common_cookies_side_by_side(service: Service) -> None:
    def program(url: str) -> list[Any]:
        with httpx.Client() as client:
            return [client.get(each).json() for each in (url, f"{_other(url)}/b")]

    def following(url: str) -> list[Any]:
        with httpx.Client(follow_redirects=True) as client:
            return [client.get(each).json() for each in (url, f"{_other(url)}/b")]

    def in_one_call(url: str) -> list[Any]:
        with httpx.Client() as client:
            return [client.get(each, follow_redirects=True).json() for each in (url, f"{_other(url)}/b")]

    def of_one_host(url: str) -> list[Any]:
        with httpx.Client() as client:
            return [client.get(url, params={"q": each}).json() for each in "ab"]

    def outside(url: str) -> list[Any]:
        return [client.get(each).json() for each in (url, f"{_other(url)}/b")]

    client = httpx.Client()
    assert read(program, service.url).certain == read(outside, service.url).certain == [[True, True]]
    for waiting in (following, in_one_call, of_one_host):
        assert read(waiting, service.url).certain == [[True, False]]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.example.com", "b.example.com", True), ("example.com", "example.org", False), ("a", "b", True),
        ("127.0.0.2", "127.0.0.3", False), ("a.co.uk", "b.co.uk", True), ("printer.local", "host", True),
    ],
)  # fmt: skip
def test_hosts_share_cookies_of_a_common_domain(one: str, other: str, expected: bool) -> None:
    assert web_httpx._may_share_cookies(one, other) is expected


def test_an_address_that_is_not_known_may_bring_cookies(service: Service) -> None:
    llm = hosted()

    def program(url: str) -> list[Any]:
        with httpx.Client() as client:
            return [client.get(f"{url}/{llm.invoke('where?').content}").text, client.get(_other(url)).text]

    assert [len(each) for each in read(program, service.url).rounds] == [1, 2]


@pytest.mark.parametrize("get", [httpx.get, requests.get])
def test_the_same_page_is_read_in_turn(service: Service, get: Any) -> None:
    """The page may count its calls."""
    same, other = [
        read(lambda url, end=end: [get(url, params={"q": each}).text for each in ("a", end)], service.url).rounds[0]
        for end in "ab"
    ]
    assert not web_pages.may_pass_get(same[1], same[0])
    assert web_pages.may_pass_get(other[1], other[0])


# --- order and refusals ----------------------------------------------------------------------------------------------


def test_pages_of_one_host_and_other_addresses_are_read_in_order(service: Service) -> None:
    def program(url: str) -> list[Any]:
        return [httpx.get(f"{url}/{path}").json() for path in ("on", "state", "off")]

    assert read(program, service.url).certain == [[True, False, False]]


@pytest.mark.parametrize("headers", [None, {"x-key": "a\nb"}, {"x-key": "é"}])
def test_what_the_client_may_refuse_is_a_branch(service: Service, headers: Any) -> None:
    llm = hosted()

    def program(url: str) -> str:
        httpx.get(url, headers=headers, timeout=5)
        return str(llm.invoke("b").content)

    def certain_of(url: str) -> list[bool]:
        try:
            return read(program, url).certain[0]
        except Exception:  # of the client
            return [True, False]

    assert certain_of(service.url) == [True, headers is None]
    assert certain_of("nowhere://host") == [True, False]


@pytest.mark.parametrize(
    ("url", "headers", "expected"),
    [(URL, {}, True), ("nowhere://host", {}, False), (URL, {"a": "b\n"}, False), (URL, {"a": b"\xe9"}, False)],
)
def test_a_request_may_be_refused_for_its_address_and_headers(url: str, headers: Any, expected: bool) -> None:
    assert web_httpx._is_sent(httpx.Request("GET", url, headers=headers)) is expected


def test_the_readers_reply_is_a_copy(service: Service) -> None:
    reply = httpx.get(service.url)
    copied = web_httpx._copied(reply).held
    reply.headers["server"] = reply.status_code = "mine"  # type: ignore[assignment]
    assert (copied.text, copied.reason_phrase, copied.status_code) == (reply.text, "OK", 200)
    assert copied.headers["server"] != "mine"


def test_an_error_of_the_connection_is_the_programs(service: Service) -> None:
    def find(query: str) -> list[str]:
        try:
            return [httpx.get(URL, params={"q": query}, timeout=1).text]
        except httpx.ConnectError as e:
            return [f"{type(e).__name__} {e} {e.request.url}"]

    app = app_of(service, find)
    plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        assert fast.invoke({}) == plain


def test_a_closed_client_raises_as_it_did(service: Service) -> None:
    def find(query: str) -> list[str]:
        client = httpx.Client()
        with client:
            found = [client.get(service.url).text]
        try:
            return [*found, client.get(service.url, params={"q": query}).text]
        except RuntimeError as e:
            return [*found, str(e)]

    app = app_of(service, find)
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert made == original


def _of_its_class(url: str) -> Any:
    with httpx.Client() as client:
        if not isinstance(client, httpx.Client):
            return hosted().invoke("never")
        return client.get(url).text


def _of_its_type(url: str) -> Any:
    client = httpx.Client()
    return client.get(url).text if type(client) is httpx.Client else hosted().invoke("never")


def _changed(url: str) -> Any:
    with httpx.Client() as client:
        client.follow_redirects = True
        return client.get(url).text


def _entered_twice(url: str) -> Any:
    with httpx.Client() as client, client:
        return client.get(url).text


def test_a_client_is_what_it_looks_like(service: Service) -> None:
    for program in (_of_its_class, _of_its_type):
        assert read(program, service.url).certain == [[True]]
    for changing in (_changed, _entered_twice):
        assert stopped(changing, service.url)


def test_a_client_that_has_taken_a_reply_is_not_entered_again(service: Service) -> None:
    def find(query: str) -> list[str]:
        client = httpx.Client()
        found = [client.get(service.url, params={"q": query}).text]
        try:
            with client:
                return [*found, client.get(service.url, params={"q": query, "again": 1}).text]
        except RuntimeError as e:
            return [*found, str(e)]

    app = app_of(service, find)
    with counted(service) as original:
        plain = app.invoke({})
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as made:
            assert fast.invoke({}) == plain
        assert made == original


# --- what is left to the framework -----------------------------------------------------------------------------------


def _note(*args: Any) -> Any:
    RAN.append(args)
    return httpx.Response(200)


def _auth(request: Any) -> Any:
    RAN.append("auth")
    return request


class _Own(httpx.Client):
    pass


_OTHERS: list[Callable[[], Any]] = [
    lambda: httpx.get(URL, auth=_auth),
    lambda: httpx.get(URL, auth=("a", "b")),
    lambda: httpx.get(URL, verify=False),
    lambda: httpx.get(URL, cookies={"c": "1"}),
    lambda: httpx.get(URL, trust_env=False),
    lambda: httpx.get(URL, proxy=URL),
    lambda: httpx.post(URL, json={}),
    lambda: httpx.request("GET", URL),
    lambda: httpx.Client(event_hooks={"request": [_note]}).get(URL),
    lambda: httpx.Client(transport=httpx.MockTransport(_note)).get(URL),
    lambda: httpx.Client(limits=httpx.Limits(max_connections=1)).get(URL),
    lambda: httpx.Client(auth=_auth).get(URL),
    lambda: httpx.Client().post(URL),
    lambda: _Own().get(URL),
    lambda: HOOKED.get(URL),
    lambda: MOCKED.get(URL),
    lambda: AUTHENTICATED.get(URL),
    lambda: FEW.get(URL),
    lambda: WITH_COOKIES.get(URL),
    lambda: OWN.get(URL),
    lambda: PROXIED.get(URL),
    lambda: PATCHED.get(URL),
    lambda: CLOSED.get(URL),
    lambda: CLIENT.get(URL, auth=("a", "b")),
    lambda: CLIENT.get(URL, extensions={"trace": _note}),
]
HOOKED = httpx.Client(event_hooks={"response": [_note]})
MOCKED = httpx.Client(transport=httpx.MockTransport(_note))
AUTHENTICATED = httpx.Client(auth=("a", "b"))
FEW = httpx.Client(limits=httpx.Limits(max_connections=2))
WITH_COOKIES = httpx.Client(cookies={"c": "1"})
OWN = _Own()
PROXIED = httpx.Client(proxy=URL)
PATCHED = httpx.Client()
PATCHED.send = _note  # type: ignore[assignment]
CLOSED = httpx.Client()
CLOSED.close()


@pytest.mark.parametrize("program", _OTHERS)
def test_other_requests_are_left_to_the_framework(program: Any) -> None:
    assert stopped(lambda x: program(), 1)


async def _by_async_client(url: str) -> Any:
    async with httpx.AsyncClient() as client:
        return await client.get(url)


@pytest.mark.parametrize(
    "name",
    [
        "Client.request", "Client.send", "Client._send_single_request", "Client._transport_for_url", "Response.read",
        "HTTPTransport.handle_request", "get", "_api.get", "_api.request", "_api.Client", "_client.Request",
    ],
)  # fmt: skip
def test_what_was_replaced_is_the_users(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"httpx.{name}", lambda *args, **kwargs: RAN.append(name))
    assert stopped(lambda x: httpx.get(x), URL)


@pytest.mark.parametrize("name", ["ConnectionPool", "HTTPConnection"])
def test_a_mock_of_what_is_beneath_gets_no_early_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As respx puts one there."""
    httpcore: Any = pytest.importorskip("httpcore")
    for prefix, method in (("", "handle_request"), ("Async", "handle_async_request")):
        monkeypatch.setattr(getattr(httpcore, prefix + name), method, lambda *args: RAN.append(name))
    assert stopped(lambda x: httpx.get(x), URL)
    assert stopped(lambda x: httpx.Client().get(x), URL)
    assert read(_by_async_client, URL, is_async=True).stopped


def test_a_proxy_of_the_environment_gets_no_early_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", URL)
    assert stopped(lambda x: httpx.get(x), URL)
    assert stopped(lambda x: httpx.Client().get(x), URL)


class Early(Recording):
    """A session with an early page for each request that is shared."""

    def claim(self, *given: Any) -> tuple[Reply, bool]:
        reply = Reply()
        reply.put(Done(httpx.Response(200, json="early", request=httpx.Request("GET", URL))))
        return reply, False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cookies", {"c": "mine"}), ("auth", ("a", "b")), ("event_hooks", {"request": [lambda request: None]}),
        ("_mounts", {"all://": httpx.HTTPTransport()}), ("_transport", httpx.MockTransport(lambda r: _said())),
        ("request", None), ("_default_encoding", lambda content: "utf-8"),
    ],
)  # fmt: skip
def test_a_client_with_code_or_cookies_takes_no_early_page(service: Service, name: str, value: Any) -> None:
    client = httpx.Client()
    with active(Early()):
        assert client.get(service.url).json() == "early"
        setattr(client, name, (lambda *args, **kwargs: _said()) if name == "request" else value)
        if name == "_mounts":
            client._mounts = {httpx._utils.URLPattern("all://"): value["all://"]}
        assert client.get(service.url).json() != "early"


def test_a_client_gets_the_cookies_of_all_replies_of_a_redirect() -> None:
    request = httpx.Request("GET", "http://host.example.com/")
    page, before = (httpx.Response(200, headers={"set-cookie": f"{name}=1"}, request=request) for name in "ab")
    page.history = [before]

    class Redirected(Recording):
        def claim(self, *given: Any) -> tuple[Reply, bool]:
            reply = Reply()
            reply.put(Done(page))
            return reply, False

    client = httpx.Client()
    with active(Redirected()):
        assert client.get(request.url) is page
    assert {*client.cookies} == {"a", "b"}


def _said() -> httpx.Response:
    return httpx.Response(200, json="said")


def test_keys_tell_all_that_is_sent() -> None:
    def key(client: Any, *args: Any, **kwargs: Any) -> Any:
        return web_httpx._claim_of(client, ("GET", *args), kwargs)

    made: list[dict[str, Any]] = [
        {}, {"headers": {"a": "b"}}, {"params": {"a": "b"}}, {"timeout": 1}, {"follow_redirects": True},
        {"max_redirects": 1}, {"base_url": "http://a/b"}, {"verify": False}, {"http1": False, "http2": False},
        {"trust_env": False}, {"default_encoding": "latin-1"},
    ]  # fmt: skip
    clients = [httpx.Client(**each) for each in made]
    keys = [key(each, "/p") for each in clients]
    plain = clients[0]
    keys += [
        key(plain, "/p", params={"q": 1}), key(plain, "/p", headers={"q": "1"}), key(plain, "/p", timeout=3),
        key(plain, "/p", follow_redirects=True, timeout=2), key(plain, "/p", timeout=None),
    ]  # fmt: skip
    assert None not in keys
    assert len({*keys}) == len(keys)
    assert key(httpx.Client(), "/p") == keys[0]
    assert key(plain, "/p", content=b"x") is key(plain, "/p", data={"a": "b"}) is key(plain, "/p", json=1) is None


def test_a_client_that_is_changed_meanwhile_sends_nothing_early(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *args: RAN.append("sent"))
    with pytest.raises(Cancelled), web_pages.claiming():
        httpx.get(service.url)


def test_an_async_client_outside(service: Service) -> None:
    """Two calls, each in an event loop of its own."""

    async def run(app: Any) -> Any:
        client = httpx.AsyncClient()

        async def find(query: str) -> Any:
            return (await client.get(service.url, params={"q": query})).text

        async with client:
            return await app(find)

    async def original(find: Any) -> Any:
        return await async_app(service, find).ainvoke({})

    async def fast(find: Any) -> Any:
        app = optimize(async_app(service, find))
        return [await app.ainvoke({}) for _ in range(3)]

    with counted(service) as asked:
        plain = asyncio.run(run(original))
    with counted(service) as made:
        assert asyncio.run(run(fast)) == [plain] * 3
    assert made == {each: 3 * number for each, number in asked.items()}
