"""The search engine against real small servers, and pages that try to lead it where it must not go."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from teola_plugin import runtime
from teola_plugin.engines import Batch, Done, EngineSpec, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineError, EngineUnavailable
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.profile import Profile
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.identity import identity
from teola_plugin.runtime.engines.safe_transport import Resolve, SafeTransport, is_public, resolve
from teola_plugin.runtime.engines.search import SearchEngine
from teola_plugin.runtime.engines.search_pages import Page, PageRules, fetch, readable
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.trace import Function
from tests.runtime.hosts.test_forks import in_child
from tests.support.openai_service import free_port
from tests.support.search_server import Index, search_server

HIT = {"title": "Bees", "url": "http://site.test/bees", "content": "They dance."}
HTML = {"Content-Type": "text/html"}


@dataclass
class Reply:
    """What a server sends. `gate`: not before it is set."""

    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


@dataclass
class Site:
    """A server whose pages a test writes. `seen`: method, path with query, headers and body of each request."""

    reply: Callable[[str], Reply]
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0
    open: int = 0
    most_open: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/search"


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with counting:
                site.open += 1
                site.most_open = max(site.most_open, site.open)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            site.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            reply = site.reply(self.path)
            if reply.gate:
                reply.gate.wait(20)
            with counting:
                site.open -= 1
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.content)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.content)
            except OSError:  # nobody waits any more
                pass

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    site.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def answering(*replies: Reply) -> Iterator[Site]:
    """An endpoint that gives these answers in turn, and the last one from then on."""
    left = list(replies)
    with serving(Site(lambda path: left.pop(0) if len(left) > 1 else left[0])) as site:
        yield site


@asynccontextmanager
async def opened(endpoint: str, **arguments: Any) -> AsyncIterator[SearchEngine]:
    async def at_once(delay_s: float) -> None:
        await asyncio.sleep(0)

    engine = SearchEngine(endpoint, **{"sleep": at_once, **arguments})
    try:
        yield engine
    finally:
        await engine.close()


def items_of(queries: Sequence[Item | str]) -> list[Item]:
    return [each if isinstance(each, Item) else Item(each, id=n) for n, each in enumerate(queries)]


async def until(is_so: Callable[[], bool]) -> None:
    """Of what a thread does."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def outcomes(engine: SearchEngine, items: Sequence[Item | str], **settings: Any) -> list[Outcome]:
    """The one outcome of each item."""
    batch = Batch(
        "websearch", settings, tuple(i if isinstance(i, Item) else Item(i, id=n) for n, i in enumerate(items))
    )
    told: dict[int, Outcome] = {}

    def emit(position: int, outcome: Outcome) -> None:
        assert position not in told
        told[position] = outcome

    await engine.run(batch, emit)
    return [told[position] for position in range(len(items))]


async def search(engine: SearchEngine, item: Item | str, **settings: Any) -> list[dict[str, str]]:
    (outcome,) = await outcomes(engine, [item], **settings)
    if isinstance(outcome, Failed):
        raise outcome.error
    assert isinstance(outcome, Done)
    found: list[dict[str, str]] = outcome.value
    return found


# --- searches --------------------------------------------------------------------------------------------------------


async def test_a_batch_is_answered_item_by_item() -> None:
    with search_server() as server:
        async with opened(server.endpoint, top_k=3) as engine:
            heap, cache, nothing = await outcomes(engine, ["largest items heap", "lru cache results", "zzyzx"])
            alone = await search(engine, "largest items heap")
    assert isinstance(heap, Done)
    assert isinstance(cache, Done)
    assert heap.value == alone
    assert [set(hit) for hit in alone] == [{"title", "url", "snippet"}] * 3
    assert [heap.value[0]["title"], cache.value[0]["title"]] == ["heapq", "functools.lru_cache"]
    assert nothing == Done([])


def test_rare_words_and_short_texts_rank_first() -> None:
    index = Index(["bees dance", "bees bees sleep all day and night long", "wasps dance", "the rest"])
    assert [place for place, _ in index.search("bees dance", 9)] == [0, 2, 1]
    assert [place for place, _ in index.search("sleep", 9)] == [1]
    assert [place for place, _ in index.search("bees", 1)] == [0]


async def test_side_by_side_up_to_the_bound() -> None:
    gate = threading.Event()
    with answering(Reply({"results": [HIT]}, gate=gate)) as site:
        async with opened(site.endpoint, max_items=3) as engine:
            asking = asyncio.create_task(outcomes(engine, [f"question {n}" for n in range(8)]))
            await until(lambda: site.open == 3)
            gate.set()
            assert all(isinstance(outcome, Done) for outcome in await asking)
    assert (site.most_open, len(site.seen)) == (3, 8)


@pytest.mark.parametrize(
    ("shape", "answer", "asked"),
    [
        ("searxng", {"results": [HIT]}, {"q": "a&b", "format": "json", "language": "de"}),
        (
            "brave",
            {"web": {"results": [{"title": "Bees", "url": HIT["url"], "description": "They dance."}]}},
            {"q": "a&b", "count": "2", "language": "de"},
        ),
        (
            {"query": "words", "results": "0.hits", "title": "head.text", "url": "link", "snippet": "text"},
            [{"hits": [{"head": {"text": "Bees"}, "link": HIT["url"], "text": "They dance."}]}],
            {"words": "a&b", "language": "de"},
        ),
    ],
)
async def test_shapes(shape: Any, answer: Any, asked: dict[str, str]) -> None:
    with answering(Reply(answer)) as site:
        async with opened(f"{site.endpoint}?own=1", shape=shape) as engine:
            found = await search(engine, "a&b", top_k=2, language="de")
    assert found == [{"title": "Bees", "url": HIT["url"], "snippet": "They dance."}]
    ((_, path, _, _),) = site.seen
    assert {name: value for name, (value,) in parse_qs(urlsplit(path).query).items()} == {"own": "1", **asked}


async def test_a_template_a_key_and_a_post() -> None:
    with answering(Reply({"results": [HIT]})) as site:
        async with opened(f"http://127.0.0.1:{site.port}/{{query}}/{{top_k}}") as engine:
            await search(engine, "a/b c", top_k=4)
        bearer = {"method": "POST", "count": "n", "key_header": "Authorization", "key_format": "Bearer {key}"}
        async with opened(site.endpoint, shape=bearer, api_key="k") as engine:
            await search(engine, "a", top_k=4, safe=True)
    assert site.seen[0][1] == "/a%2Fb%20c/4?format=json"
    method, path, headers, body = site.seen[1]
    assert (method, path, headers["authorization"]) == ("POST", "/search", "Bearer k")
    assert json.loads(body) == {"q": "a", "n": 4, "safe": True}


async def test_results_without_an_address_are_left_out_and_missing_texts_are_empty() -> None:
    results = [{"title": "no address"}, "no result", {"url": "http://site.test/", "title": None}, HIT]
    with answering(Reply({"results": results})) as site:
        async with opened(site.endpoint) as engine:
            found = await search(engine, "a")
    assert found == [
        {"title": "", "url": "http://site.test/", "snippet": ""},
        {"title": "Bees", "url": HIT["url"], "snippet": "They dance."},
    ]


@pytest.mark.parametrize(
    ("reply", "shape", "said"),
    [
        (Reply("<html>"), "searxng", "answered no JSON, but '<html>'"),
        (Reply("[" * 100_000), "searxng", "answered no JSON"),
        (Reply({"items": [HIT], "query": "a"}), "searxng", "no list at 'results', but the keys items, query"),
        (Reply({"results": {"a": 1}}), "searxng", "no list at 'results'"),
        (Reply([HIT]), "brave", r"no list at 'web\.results', but a list"),
        (Reply({"results": [{"link": "x"}]}), "searxng", "no 'url', but the keys link"),
        (Reply("no", 403), "searxng", "answered 403; give the right key"),
        (Reply("no", 404), "searxng", "/search answered 404"),
        (Reply("", 302, {"Location": "http://169.254.169.254/x?key=1"}), "searxng", "redirects to .*/x: give that"),
        (Reply(b" " * (5 << 20)), "searxng", "too long"),
    ],
    ids=range(10),
)
async def test_an_answer_that_cannot_be_used_is_told_of_and_not_asked_for_again(
    reply: Reply, shape: str, said: str
) -> None:
    with answering(reply) as site:
        async with opened(f"{site.endpoint}?key=secret", shape=shape) as engine:
            with pytest.raises(EngineError, match=said) as told:
                await search(engine, "private words")
    assert len(site.seen) == 1
    assert not any(word in str(told.value) for word in ("secret", "private", "key=1"))


async def test_an_answer_of_brave_without_results_found_nothing() -> None:
    with answering(Reply({"type": "search"})) as site:
        async with opened(site.endpoint, shape="brave") as engine:
            assert await search(engine, "a") == []


async def test_what_passes_is_asked_for_again() -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    busy = Reply("slow down", 429, {"Retry-After": "7"})
    with answering(busy, Reply("", 503), Reply({"results": [HIT]})) as site:
        async with opened(site.endpoint, sleep=sleep) as engine:
            assert len(await search(engine, "a")) == 1
    assert (len(site.seen), len(slept), slept[0]) == (3, 2, 7.0)


async def test_nothing_is_asked_again_after_the_deadline() -> None:
    with answering(Reply("", 429, {"Retry-After": "7"})) as site:
        async with opened(site.endpoint) as engine:
            with pytest.raises(EngineError, match="answered 429"):
                await search(engine, Item("a", deadline_s=asyncio.get_running_loop().time() + 5))
    assert len(site.seen) == 1


async def test_only_the_item_whose_deadline_passes_fails() -> None:
    gate = threading.Event()
    with serving(Site(lambda path: Reply({"results": [HIT]}, gate=gate if "late" in path else None))) as site:
        async with opened(site.endpoint) as engine:
            deadline_s = asyncio.get_running_loop().time() + 0.3
            late, good = await outcomes(engine, [Item("late", id=1, deadline_s=deadline_s), Item("good", id=2)])
            gate.set()
    assert isinstance(late, Failed)
    assert isinstance(late.error, DeadlineExceeded)
    assert isinstance(good, Done)


async def test_aborted_items_end_and_the_others_do_not() -> None:
    gate = threading.Event()
    with answering(Reply({"results": [HIT]}, gate=gate)) as site:
        async with opened(site.endpoint) as engine:
            asking = asyncio.create_task(outcomes(engine, ["a", "b"]))
            await until(lambda: site.open == 2)
            await asyncio.to_thread(engine.abort, [0])
            await until(engine._tasks[0].done)
            gate.set()
            first, second = await asking
    assert isinstance(first, Failed)
    assert isinstance(first.error, Cancelled)
    assert isinstance(second, Done)


async def test_nobody_there() -> None:
    async with opened(f"http://127.0.0.1:{free_port()}/search", max_attempts=2) as engine:
        with pytest.raises(EngineUnavailable, match=r"no server answers there"):
            await search(engine, "a")


def test_an_engine_goes_with_its_event_loop_to_the_next_and_into_a_child() -> None:
    with answering(Reply({"results": [HIT]})) as site:
        engine = SearchEngine(site.endpoint)

        async def once() -> int:
            found = len(await search(engine, "a"))
            with pytest.raises(EngineError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(search(engine, "a")))
            return found

        assert asyncio.run(once()) == 1
        assert in_child(lambda: len(asyncio.run(search(engine, "a")))) == "1"
        assert asyncio.run(once()) == 1


async def test_wrong_payloads_and_settings() -> None:
    async with opened("http://127.0.0.1:1/search") as engine:
        for payload, settings, said in ((7, {}, "a query is a text"), ("a", {"top_k": 0}, "top_k: expected")):
            with pytest.raises(EngineError, match=said):
                await search(engine, Item(payload), **settings)
        with pytest.raises(EngineError, match="understands 'websearch', not 'searching'"):
            await engine.run(Batch("searching", {}, (Item("a"),)), lambda *told: None)


# --- declarations and graphs -----------------------------------------------------------------------------------------


def test_a_declared_engine_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "k")
    profile = Profile.affine(0.4)
    engine = build(
        EngineConfig(
            "web", "search", model="https://api.test/search?key=1", max_items=4, profile=profile,
            config={"shape": "brave", "api_key_variable": "SEARCH_KEY", "top_k": 3, "pages": {"max_bytes": 9}},
        )
    )  # fmt: skip
    assert isinstance(engine, SearchEngine)
    assert (engine.name, engine.profile, engine.capabilities.max_items) == ("web", profile, 4)
    assert (engine.shape.results, engine.address) == ("web.results", "https://api.test/search")
    assert identity(engine) != identity(SearchEngine("https://other.test/search"))


@pytest.mark.parametrize(
    ("model", "config", "said"),
    [
        ("", {}, "model: expected what"),
        ("api.test", {}, "engine 'web': endpoint: expected an address"),
        ("http://a.test", {"shapes": "brave"}, "config.shapes: no argument .* did you mean 'shape'"),
        ("http://a.test", {"shape": "bravo"}, "engine 'web': shape: expected one of searxng, brave"),
        ("http://a.test", {"shape": {"result": "x"}}, "shape.result: no such field; did you mean 'results'"),
        ("http://a.test", {"shape": {"method": "PUT"}}, "shape.method: expected GET or POST"),
        ("http://a.test", {"pages": {"port": [80]}}, "pages.port: no such field; did you mean 'ports'"),
        ("http://a.test", {"pages": {"networks": ["10.0.0.1/8"]}}, "pages.networks: expected networks"),
        ("http://a.test", {"api_key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ("http://a.test", {"api_key": "k"}, "shape.key_header does not say"),
    ],
)
def test_what_is_wrong_in_a_declaration_is_named(model: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        build(EngineConfig("web", "search", model=model, config=config))


async def test_searches_of_a_graph_are_a_batch_and_their_results_a_list() -> None:
    graph = parse(
        "inputs(queries=[])\n"
        "hits: [[]] = websearch(*queries, top_k=2) @ web\n"
        "titles: [[]] = call(*hits, fn='title') @ python\n"
        "outputs(titles)"
    )
    with search_server() as server:
        engine = SearchEngine(server.endpoint, fetch=False)
        specs = {"web": EngineSpec("engine", engine, "web")}
        prepared = Prepared(make_plan(graph), {"title": Function(lambda hit: hit["title"])}, specs)
        host = runtime.LocalHost(loop=asyncio.get_running_loop())
        try:
            found = await run_query(host, prepared, {"queries": ["largest items heap", "lru cache results"]})
        finally:
            await host.aclose()
    assert [len(titles) for titles in found["titles"]] == [2, 2]
    assert found["titles"][1][0] == "functools.lru_cache"


# --- where pages may come from ---------------------------------------------------------------------------------------

PRIVATE = (
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
    "100.100.100.200", "169.254.169.254", "169.254.170.2", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%1", "fec0::1", "ff02::1", "ff0e::1",
    "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1", "2606:4700:4700::1111%1",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "172.32.0.1", "192.0.1.1", "2606:4700:4700::1111", "64:ff9b::8.8.8.8", "2a00:1450::1")


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_that_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def names(**found: Sequence[str]) -> Resolve:
    """A resolver that knows these hosts of `.test`."""

    async def look_up(host: str, port: int) -> Sequence[str]:
        return found[host.removesuffix(".test")] if host.endswith(".test") else await resolve(host, port)

    return look_up


async def connected_to(url: str, **arguments: Any) -> list[str]:
    """Where a transport would connect to for this address."""
    tried: list[str] = []

    async def connect(request: httpx.Request) -> httpx.Response:
        tried.append(str(request.url.host))
        return httpx.Response(200)

    transport = SafeTransport(**arguments)
    transport._inner = httpx.MockTransport(connect)  # type: ignore[assignment]
    await transport.handle_async_request(httpx.Request("GET", url))
    return tried


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0", "localhost",
        "LOCALHOST", "localhost.", "%6c%6f%63alhost", "\uff11\uff12\uff17.\uff10.0.1",
        "127\u30020\u30020\u30021", "[::1]", "[::]", "[::ffff:7f00:1]",
        "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254",
        "2852039166", "0xa9fea9fe", "private.test", "mixed.test", "mapped.test", "nothing.test", "link.test",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_private_address_is_connected_to(host: str) -> None:
    resolver = names(
        private=["10.0.0.1"], mixed=["1.1.1.1", "127.0.0.1"], mapped=["::ffff:10.0.0.1"], nothing=[],
        link=["fe80::1%1"],
    )  # fmt: skip
    with pytest.raises((EngineError, httpx.InvalidURL, httpx.ConnectError)) as told:
        await connected_to(f"http://{host}/", resolve=resolver)
    assert not isinstance(told.value, httpx.ConnectError) or "no such host" in str(told.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://site.test/", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("gopher://site.test:80/", "only http and https"),
        ("//site.test/", "only http and https"),
        ("http://user:word@site.test/", "credentials"),
        ("http://user@site.test/", "credentials"),
        ("http://site.test:22/", "port 22"),
        ("http://site.test:6379/", "port 6379"),
        ("https://site.test:8443/", "port 8443"),
    ],
)
async def test_addresses_that_are_refused_unseen(url: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        await connected_to(url, resolve=names(site=["1.1.1.1"]))


async def test_the_connection_is_to_the_address_that_was_checked_and_the_name_stays_in_the_head() -> None:
    requests: list[httpx.Request] = []

    async def connect(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if len(requests) == 1:
            raise httpx.ConnectError("no route")
        return httpx.Response(200)

    transport = SafeTransport(resolve=names(site=["2606:4700::1", "1.1.1.1"]))
    transport._inner = httpx.MockTransport(connect)  # type: ignore[assignment]
    given = httpx.Request("GET", "https://site.test/a?b=c", headers={"Host": "other.test"})
    await transport.handle_async_request(given)
    assert [str(request.url) for request in requests] == ["https://[2606:4700::1]/a?b=c", "https://1.1.1.1/a?b=c"]
    assert {(request.headers["host"], request.extensions["sni_hostname"]) for request in requests} == {
        ("site.test", "site.test")
    }
    assert str(given.url) == "https://site.test/a?b=c"


async def test_a_name_that_changes_its_address_gains_nothing() -> None:
    """It is looked up once for each request: the address that was checked is the one that is connected to."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["1.1.1.1"] if len(asked) == 1 else ["127.0.0.1"]

    assert await connected_to("http://site.test/", resolve=rebinding) == ["1.1.1.1"]
    assert asked == ["site.test"]
    with pytest.raises(EngineError, match="no public address"):
        await connected_to("http://site.test/", resolve=rebinding)


# --- pages -----------------------------------------------------------------------------------------------------------


@contextmanager
def pages(reply: Callable[[str], Reply]) -> Iterator[tuple[Site, dict[str, Any]]]:
    """A server of strangers' pages, and the rules and resolver under which site.test is it."""
    with serving(Site(reply)) as site:
        # Its address is loopback: allowed for these tests alone, and only on its own port.
        arguments = {"pages": {"networks": ["127.0.0.1/32"], "ports": [site.port]}}
        yield site, {**arguments, "resolve": names(site=["127.0.0.1"], inside=["127.0.0.2"])}


async def texts_of(addresses: Sequence[str], arguments: dict[str, Any]) -> list[dict[str, str]]:
    """What a search that finds these addresses has of their pages."""
    hits = [{"url": address} for address in addresses]
    with answering(Reply({"results": hits})) as endpoint:
        async with opened(endpoint.endpoint, **arguments) as engine:
            found = await search(engine, "a", fetch=True)
            assert all("text" not in hit for hit in await search(engine, "a"))  # only if asked for
    return found


async def test_pages_come_with_their_text_or_with_the_reason() -> None:
    def reply(path: str) -> Reply:
        match path:
            case "/zipped":
                return Reply(gzip.compress(b"<p>Packed"), headers={**HTML, "Content-Encoding": "gzip"})
            case "/moved":
                return Reply("", 302, {"Location": "/good"})
            case "/inside":
                return Reply("", 302, {"Location": f"http://inside.test:{site.port}/good"})
            case "/port":
                return Reply("", 302, {"Location": "http://site.test:6379/"})
            case "/file":
                return Reply("", 302, {"Location": "file:///etc/passwd"})
            case "/round":
                return Reply("", 302, {"Location": "/round"})
            case "/picture":
                return Reply(b"x", headers={"Content-Type": "image/png"})
            case "/twice":
                return Reply(b"x", headers={**HTML, "Content-Encoding": "gzip, gzip"})
            case "/gone":
                return Reply("", 404)
        return Reply("<h1>Good</h1>", headers={**HTML, "Set-Cookie": "a=b; Path=/"})

    said = {
        "good": "", "zipped": "", "moved": "", "inside": "no public address", "port": "port 6379",
        "file": "only http and https", "round": "more than 5 redirects", "picture": "type image/png",
        "twice": "gzip, gzip", "gone": "404",
    }  # fmt: skip
    with pages(reply) as (site, arguments):
        found = await texts_of([f"http://site.test:{site.port}/{name}" for name in said], arguments)
    assert [hit["text"] for hit in found] == ["Good", "Packed", "Good", *[""] * 7]
    for hit, why in zip(found, said.values(), strict=True):
        assert why in hit.get("error", ""), hit
        assert bool(why) == ("error" in hit)
    assert all(headers["host"] == f"site.test:{site.port}" for _, _, headers, _ in site.seen)
    assert not any({"cookie", "authorization", "referer"} & headers.keys() for _, _, headers, _ in site.seen)


async def test_the_endpoint_may_be_on_loopback_and_pages_may_not() -> None:
    with search_server() as server:
        async with opened(server.endpoint) as engine:
            found = await search(engine, "largest items heap", fetch=True)
        own = {"networks": ["127.0.0.0/8"], "ports": [urlsplit(server.url).port]}
        async with opened(server.endpoint, pages=own) as engine:
            allowed = await search(engine, "largest items heap", fetch=True)
    assert {hit["text"] for hit in found} == {""}
    assert all(hit["text"].startswith(hit["title"]) and len(hit["text"]) > 200 for hit in allowed)


async def test_a_page_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    with pages(lambda path: Reply("late", headers=HTML, gate=gate)) as (site, arguments):
        arguments["pages"]["timeout_s"] = 0.2
        (hit,) = await texts_of([f"http://site.test:{site.port}/"], arguments)
        gate.set()
    assert (hit["text"], hit["error"]) == ("", "no page within 0.2 s")


async def test_of_a_long_page_the_beginning_is_read_packed_or_not() -> None:
    bomb = gzip.compress(b"<p>" + b"a" * (20 << 20))
    packed = {**HTML, "Content-Encoding": "gzip"}
    with pages(lambda path: Reply(bomb, headers=packed) if path == "/bomb" else Reply("b" * 4000, headers=HTML)) as (
        site,
        arguments,
    ):
        transport = SafeTransport(resolve=arguments["resolve"], networks=["127.0.0.1/32"], ports=[site.port])
        got = [
            await fetch(transport, f"http://site.test:{site.port}/{name}", PageRules(max_bytes=len(bomb) + 1))
            for name in ("bomb", "long")
        ]
        cut = await fetch(transport, f"http://site.test:{site.port}/long", PageRules(max_bytes=100))
        await transport.aclose()
    assert [len(page.body) for page in got] == [len(bomb) + 1, 4000]
    assert cut.body == b"b" * 100


async def test_a_page_without_end_is_left_after_its_beginning() -> None:
    left = asyncio.Event()

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"a" * 65_536)
                await writer.drain()
        except ConnectionError:
            left.set()
            writer.close()

    async with await asyncio.start_server(write, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = SafeTransport(networks=["127.0.0.1/32"], ports=[port])
        page = await fetch(transport, f"http://127.0.0.1:{port}/", PageRules(max_bytes=100_000))
        await transport.aclose()
        await left.wait()
    assert len(page.body) == 100_000


@pytest.mark.parametrize(
    ("body", "content_type", "charset", "text"),
    [
        ("<title>T</title><p>one\ntwo<br>three", "text/html", "utf-8", "T\none two\nthree"),
        ("a<script>if (a<b) x('</p>')</script>b<STYLE>p{}</style >c", "text/html", "utf-8", "a\nb\nc"),
        ("<!-- <p>no</p> -->yes<!doctype html><?php?>", "text/html", "utf-8", "yes"),
        ("1 &lt; 2 &amp;&#233; &#" + "9" * 5000 + "; x", "text/html", "utf-8", "1 < 2 &é x"),
        ("<b>1 < 2</b>", "text/plain", "utf-8", "<b>1 < 2</b>"),
        ("kept <a href='x", "text/html", "utf-8", "kept"),
        ("kept <script>never closed", "text/html", "utf-8", "kept"),
        ("plain", "text/plain", "rot13", "plain"),
        ("plain", "text/plain", "zlib", "plain"),
    ],
)
def test_what_can_be_read_of_a_page(body: str, content_type: str, charset: str, text: str) -> None:
    assert readable(Page(body.encode(), content_type, charset)) == text


def test_other_alphabets() -> None:
    assert readable(Page("später".encode("latin-1"), "text/plain", "iso-8859-1")) == "später"
    assert readable(Page(b"sp\xe4ter", "text/plain", "utf-8")) == "sp\ufffdter"


@pytest.mark.parametrize("piece", ["<!--", "<", "<a ", "</a", "<!a", "<script>", "<script></", "&#", "<svg>", "<a>"])
@pytest.mark.timeout(20)
def test_no_page_takes_longer_than_its_length_is_worth(piece: str) -> None:
    """Half a megabyte of each: in quadratic time, minutes."""
    size = PageRules().max_bytes
    assert len(readable(Page((piece * (size // len(piece))).encode(), "text/html", "utf-8"))) <= size
