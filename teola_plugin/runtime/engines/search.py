"""Web search behind any HTTP endpoint that answers in JSON: SearXNG, Brave, or an endpoint of your own.

    engine = SearchEngine("http://localhost:8888/search")                              # as SearXNG answers
    engine = SearchEngine("https://api.example/search", shape="brave", api_key_variable="SEARCH_KEY")

    websearch   query -> [{"title", "url", "snippet"}], best first; with fetch=True also "text", the page's own

Settings: `top_k`, `fetch`, and any other setting, which is sent to the endpoint as a parameter of the same name. Each
item of a batch is a request; requests run side by side, up to `max_items`, each with a separate outcome.

    query --endpoint: the user's own, called at its address and nowhere else--> results
    urls  --pages: strangers', only at public addresses (safe_transport.py), within bounds (search_pages.py)--> texts

The endpoint may be anywhere, loopback included, because the user named the address; the endpoint may not redirect.
Pages are fetched only on request. A page that cannot be fetched has the text "" and the reason in "error"; the search
does not fail.

Transient refusals (408, 409, 429, 5xx, broken connections) are retried within the deadline (openai_limits.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from teola_plugin import forks, shown
from teola_plugin.engines import Batch, Capabilities, Emit, Item
from teola_plugin.errors import DeadlineExceeded, EngineError, EngineUnavailable, TeolaError
from teola_plugin.profile import Profile
from teola_plugin.runtime.engines.item_tasks import ItemTasks, Tell
from teola_plugin.runtime.engines.openai_limits import MAX_ATTEMPTS, TRANSIENT, retried
from teola_plugin.runtime.engines.search_shapes import Result, Shape, read_results, record, shape_of
from teola_plugin.runtime.engines.worker import Worker

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

MAX_ITEMS = 16
MAX_PAGES = 16
"""The number of pages fetched side by side, of all searches together."""

TOP_K = 10
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 << 20
SHOWN_CHARACTERS = 80


@dataclass(slots=True)
class _Connection:
    """The objects that belong to an event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    pages: httpx.AsyncBaseTransport
    slots: asyncio.Semaphore
    page_slots: asyncio.Semaphore


class SearchEngine:
    """Operation `websearch`, payload the query. No request is sent to the endpoint before the first search.

    `endpoint`: the address for queries; "{query}" and "{top_k}" are filled in, otherwise both are sent as parameters.
    `shape`: a name in SHAPES, or the fields of a shape. The key comes from `api_key` or the environment variable named
    by `api_key_variable`. `timeout_s`: the silence that ends an attempt. `fetch`, `top_k`: defaults for missing
    settings. `pages`: fields of `PageRules`. `resolve`, `sleep`: for tests. `run` belongs to a single event loop at a
    time; the rest may be called from any thread. Raises: EngineError for invalid arguments, EngineUnavailable if a
    package is missing.
    """

    def __init__(
        self, endpoint: str, *, shape: str | Mapping[str, Any] | Shape = "searxng", api_key: str | None = None,
        api_key_variable: str = "", name: str = "web", max_items: int = MAX_ITEMS, top_k: int = TOP_K,
        fetch: bool = False, pages: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S,
        max_attempts: int = MAX_ATTEMPTS, profile: Profile | None = None, resolve: Any = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        try:
            import httpx
            import tenacity  # noqa: F401

            from teola_plugin.runtime.engines import safe_transport, search_pages
        except ImportError as e:
            raise EngineUnavailable(
                f"engine {name!r} for web searches needs the package {e.name}: install teola-plugin[search]"
            ) from e
        self.name = name
        self.model = endpoint
        self.profile = profile
        try:
            self.shape = shape_of(shape)
            self.address = _shown(endpoint)
            self._rules = record(search_pages.PageRules, pages or {}, "pages")
        except EngineError as e:
            raise EngineError(f"engine {name!r}: {e}") from e
        self.capabilities = Capabilities(max_items=max_items, concurrent=True, abort=True, remote=True)
        self._headers = self._key_headers(api_key, api_key_variable)
        self._usual = {"top_k": top_k, "fetch": fetch}
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts
        self._sleep = sleep
        self._resolve = resolve or safe_transport.resolve
        self._certificates = httpx.create_ssl_context()  # 20 ms, too long for an event loop
        self._worker = Worker(f"{name}-pages")
        self._begin()
        forks.in_child(self._begin_anew)

    def _begin(self) -> None:
        self._connection: _Connection | None = None
        self._tasks = ItemTasks()

    def _begin_anew(self) -> None:
        """Start afresh in a forked child: the sockets are the parent's."""
        forks.leave(self._connection, self._tasks)
        self._begin()

    def _key_headers(self, api_key: str | None, variable: str) -> dict[str, str]:
        if variable and not (api_key := os.environ.get(variable)):
            raise EngineError(f"engine {self.name!r}: api_key_variable: {variable} is not set")
        if not api_key:
            return {}
        if not self.shape.key_header:
            raise EngineError(f"engine {self.name!r}: a key was given, but shape.key_header does not say where it goes")
        return {self.shape.key_header: self.shape.key_format.format(key=api_key)}

    # --- start and end --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel running searches and close the connections. A later use opens new connections."""
        connection, self._connection = self._connection, None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.stop()
        if connection is not None:
            await connection.client.aclose()
            await connection.pages.aclose()

    def _running(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._connection is not None and not self._connection.loop.is_closed():
            if self._connection.loop is not loop:
                raise EngineError(f"engine {self.name!r} already runs on another event loop")
            return self._connection
        import httpx

        from teola_plugin.runtime.engines.safe_transport import SafeTransport

        self._connection = _Connection(
            loop,
            httpx.AsyncClient(timeout=self._timeout_s, verify=self._certificates, headers=self._headers),
            SafeTransport(
                networks=self._rules.networks, ports=self._rules.ports, resolve=self._resolve,
                verify=self._certificates,
            ),
            asyncio.Semaphore(self.capabilities.max_items),
            asyncio.Semaphore(MAX_PAGES),
        )  # fmt: skip
        return self._connection

    # --- work -----------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        if batch.op != "websearch":
            raise EngineError(f"engine {self.name!r} understands 'websearch', not {batch.op!r}")

        def work(item: Item, tell: Tell) -> Awaitable[list[Result]]:
            return self._search(item, batch.settings)

        await self._tasks.run(self.name, batch, emit, work, self._error)

    def abort(self, ids: Sequence[int]) -> None:
        """Drop searches and their connections."""
        self._tasks.abort(ids)

    async def _search(self, item: Item, settings: Mapping[str, Any]) -> list[Result]:
        if not isinstance(item.payload, str):
            raise EngineError(f"engine {self.name!r}: a query is a text, not a {type(item.payload).__name__}")
        connection = self._running()
        wanted = {**self._usual, **settings}
        top_k, is_fetching = wanted.pop("top_k"), wanted.pop("fetch")
        if not isinstance(top_k, int) or top_k < 1:
            raise EngineError(f"engine {self.name!r}: top_k: expected a whole number >= 1, got {top_k!r}")
        request = self._request(connection.client, item.payload, top_k, wanted)
        said = await retried(
            lambda: self._ask(connection, request), _is_transient, deadline_s=item.deadline_s,
            max_attempts=self._max_attempts, sleep=self._sleep,
            tell=lambda why: log.info("engine %r: %s", self.name, why),
        )  # fmt: skip
        try:
            results = read_results(self.shape, said, top_k)
        except EngineError as e:
            raise EngineError(f"engine {self.name!r}: {self.address}: {e}") from None
        if is_fetching:
            await asyncio.gather(*(self._add_text(connection, result) for result in results))
        return results

    def _request(
        self, client: httpx.AsyncClient, query: str, top_k: int, wanted: Mapping[str, Any]
    ) -> httpx.Request:  # fmt: skip
        shape, is_template = self.shape, "{query}" in self.model
        url = self.model.replace("{query}", quote(query, safe="")).replace("{top_k}", str(top_k))
        given = {**shape.parameters, **wanted}
        if not is_template:
            given[shape.query] = query
        if shape.count:
            given[shape.count] = top_k
        if shape.method == "POST":
            return client.build_request("POST", url, json=given)
        import httpx

        return client.build_request("GET", httpx.URL(url).copy_merge_params(given))

    async def _ask(self, connection: _Connection, request: httpx.Request) -> Any:
        """Make an attempt. Returns the endpoint's answer."""
        async with connection.slots:
            response = await connection.client.send(request, stream=True)
            try:
                response.raise_for_status()  # of a redirect too: only the given address is asked
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise EngineError(f"engine {self.name!r}: the answer of {self.address} is too long")
            finally:
                await response.aclose()
        try:
            return json.loads(bytes(body))
        except (ValueError, RecursionError) as e:
            begin = bytes(body[:SHOWN_CHARACTERS]).decode("utf-8", "replace")
            raise EngineError(f"engine {self.name!r}: {self.address} answered no JSON, but {begin!r}") from e

    async def _add_text(self, connection: _Connection, result: Result) -> None:
        """Add the page's text, or the reason why there is none."""
        import httpx

        from teola_plugin.runtime.engines.search_pages import fetch, readable

        result["text"] = ""
        try:
            async with connection.page_slots, asyncio.timeout(self._rules.timeout_s):
                page = await fetch(connection.pages, result["url"], self._rules)
            result["text"] = await self._worker.call(lambda: readable(page))
        except TimeoutError:
            result["error"] = f"no page within {self._rules.timeout_s} s"
        except (EngineError, httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
            result["error"] = str(e) or type(e).__name__

    def _error(self, error: Exception) -> Exception:
        """Return an error of this package, without the query and other parts of the requested address."""
        import httpx

        where = f"engine {self.name!r}: {self.address}"
        match error:
            case TeolaError():
                return error
            case TimeoutError():
                return DeadlineExceeded(f"{where} gave no answer before the deadline")
            case httpx.HTTPStatusError() if error.response.has_redirect_location:
                to = shown.address(error.response.headers["location"].partition("?")[0])
                return EngineError(f"{where} redirects to {to}: give that address, if it is the right one")
            case httpx.HTTPStatusError():
                hint = "; give the right key" if error.response.status_code in (401, 403) else ""
                return EngineError(f"{where} answered {error.response.status_code}{hint}")
            case httpx.ConnectError() | httpx.ConnectTimeout():
                why = str(error) or "no connection"
                told: EngineError = EngineUnavailable(f"{where}: no server answers there: {why}")
            case httpx.TimeoutException():
                told = EngineError(f"{where} said nothing for {self._timeout_s} s")
            case _:
                told = EngineError(f"{where}: {str(error) or type(error).__name__}")
        told.__cause__ = error
        return told


def _is_transient(error: BaseException) -> bool:
    """Whether the same search may succeed a little later."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return status in TRANSIENT or (status >= 500 and status != 501)
    return isinstance(error, httpx.TransportError)


def _shown(endpoint: str) -> str:
    """Return the address up to the path; later parts may hold a key or a query. Raises: EngineError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EngineError(
            f"endpoint: expected an address like http://localhost:8888/search, got {shown.address(endpoint)!r}"
        )
    return shown.address(endpoint)
