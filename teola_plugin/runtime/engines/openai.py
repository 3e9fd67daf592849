"""LLMs behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted service.

    engine = OpenAIEngine("llama", "http://localhost:8000/v1")
    engine = OpenAIEngine("gpt-x", requests_per_minute=500, tokens_per_minute=200_000)      # key: OPENAI_API_KEY

    decoding            prompt -> Completion, one Delta per chunk; each item is a request, streamed
    partial_prefilling  text -> how many tokens; the text with one token of answer, so that the server has its prefix.
                        Only where that costs nothing: at a server that is known to keep prefixes (openai_probe.py)

**Prompts.** A plain text goes to `/completions`. A chat goes to `/chat/completions` as messages, because the server may
have an unknown template. The engine receives a chat as a text all the same (`write_chat`), because the run-ahead joins
prompts of pieces and compares prompts, and a prefix of the text is a prefix of the conversation. If the server refuses
an endpoint for the model, the other endpoint is used from then on.

**Tools.** vLLM is told not to parse calls: the model's own text comes back, as from VllmEngine. Calls parsed by other
servers are written as text again, in the form of Hermes.

**Refusals.** Retried only before the first token and within the deadline (openai_limits.py). Optional fields that a
server does not know are left out from then on.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from teola_plugin import forks, shown
from teola_plugin.chat import Chat, Message, Tool, read_chat, write_chat
from teola_plugin.engines import Batch, Capabilities, Completion, Emit, Item
from teola_plugin.errors import DeadlineExceeded, EngineError, EngineUnavailable, TeolaError
from teola_plugin.providers import origin_of
from teola_plugin.runtime.engines.item_tasks import ItemTasks, Tell
from teola_plugin.runtime.engines.openai_limits import (
    MAX_ATTEMPTS,
    Budget,
    Ticket,
    is_transient,
    retried,
)
from teola_plugin.runtime.engines.openai_probe import Kind, Server, probe
from teola_plugin.runtime.engines.openai_protocol import Endpoint, Request, failure, refused_fields
from teola_plugin.runtime.engines.openai_stream import Answer, read_answer
from teola_plugin.runtime.engines.redirects import MAX_REDIRECTS, stays_there
from teola_plugin.runtime.engines.worker import Worker

log = logging.getLogger(__name__)

MAX_ITEMS = 64
TIMEOUT_S = 600.0
"""The maximum silence of the server, in seconds; the client's own default."""

SHORTEST_PREFIX_CHARS = 256
"""The shortest prefix, in characters: about the 64 tokens below which an early prefill gained nothing (SHORTEST_PREFILL
in vllm.py)."""

SECRET_BYTES = 16
"""The shortest key that cannot be guessed; placeholders in the manuals of vLLM are shorter."""

_OWN_SECRET = secrets.token_bytes(32)

WARM_UP = {"max_tokens": 1}
ABSENT = (404, 405, 501)

T = TypeVar("T")


@dataclass(slots=True)
class _Connection:
    """A client, the client's event loop, and facts learned about the server."""

    client: Any
    server: Server
    loop: asyncio.AbstractEventLoop
    slots: asyncio.Semaphore
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    absent: set[Endpoint] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


class OpenAIEngine:
    """A model of an OpenAI-compatible server. No request is sent to the server before the first use.

    `base_url`: by default OPENAI_BASE_URL; the key in OPENAI_API_KEY is sent only to the default server. `max_items`:
    requests side by side. `prefix`: "auto" computes prefixes ahead where the server is known to keep prefixes and to be
    run by the user; "free" says that early prefixes cost nothing; "off" never. `server`: the kind of server, where a
    proxy hides the kind. `extra_body`: fields added to each request. The budgets belong to this object: another process
    has budgets of its own. `run` and `start` belong to a single event loop; the rest may be called from any thread.
    """

    def __init__(
        self, model: str, base_url: str | None = None, *, api_key: str | None = None, name: str = "llm",
        max_items: int = MAX_ITEMS, requests_per_minute: int | None = None, tokens_per_minute: int | None = None,
        prefix: Literal["auto", "free", "off"] = "auto", server: Kind | None = None,
        extra_body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S, max_attempts: int = MAX_ATTEMPTS,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        from pydantic import SecretStr

        self.model = model
        self.name = name
        self._base_url = _address(base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1")
        self.address = shown.address(self._base_url)
        key = api_key or (None if base_url else os.environ.get("OPENAI_API_KEY"))
        self._key = SecretStr(key or "")
        self.capabilities = Capabilities(
            max_items=max_items, concurrent=True, abort=True, remote=True, prefix=prefix != "off"
        )
        self._prefix = prefix
        self._kind = server
        self._extra_body = dict(extra_body or {})
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts
        self._clock = clock
        self._sleep = sleep
        self._budget = Budget(requests_per_minute, tokens_per_minute)
        self.provider = origin_of(self.address)
        self._starter = Worker(f"{name}-starter")  # importing the client takes seconds
        self._begin()
        forks.in_child(self._begin_anew)

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the conversation as a text that the engine parses back."""
        return write_chat(messages, tools)

    # --- start and end --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[_Connection] | None = None
        self._tasks = ItemTasks()

    def _begin_anew(self) -> None:
        """Start afresh in a forked child: the sockets are the parent's."""
        forks.leave(self._connection, self._opening, self._tasks)
        self._begin()

    async def start(self) -> Server:
        """Connect. Returns the description of the server. Raises: EngineUnavailable, EngineError."""
        try:
            return (await self._running()).server
        except Exception as e:  # around an engine's run, which this is the first part of
            error = self._error(e)
        raise error

    async def close(self) -> None:
        """Cancel running requests and close the connections. A later use opens new connections."""
        connection, self._connection = self._connection, None
        tasks = [*self._tasks.values(), *([self._opening] if self._opening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._starter.stop()
        if connection is not None:
            await connection.client.close()

    async def _running(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._connection is not None and self._connection.loop.is_closed():
            self._connection = None
        if self._connection is not None:
            if self._connection.loop is not loop:
                raise EngineError(f"engine {self.name!r} already runs on another event loop")
            return self._connection
        if self._opening is None or self._opening.get_loop() is not loop:
            self._opening = loop.create_task(self._open())
            self._opening.add_done_callback(_look_at_error)
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Connection:
        try:
            client = await self._starter.call(self._new_client)
            try:
                server = await self._retried(math.inf, lambda: self._probed(client))
            except BaseException:
                await client.close()
                raise
        finally:
            self._opening = None
        slots = asyncio.Semaphore(self.capabilities.max_items)
        self._connection = _Connection(client, server, asyncio.get_running_loop(), slots)
        return self._connection

    def _new_client(self) -> Any:
        try:
            import httpx
            import openai
            import tenacity  # noqa: F401
        except ImportError as e:
            raise EngineUnavailable(
                f"engine {self.name!r} for {self.address} needs the package {e.name}: install teola-plugin[openai]"
            ) from e
        limits = httpx.Limits(max_connections=self.capabilities.max_items + 4)
        return openai.AsyncOpenAI(
            base_url=self._base_url, api_key=self._key.get_secret_value() or "none", max_retries=0,
            timeout=self._timeout_s, http_client=openai.DefaultAsyncHttpxClient(
                limits=limits, max_redirects=MAX_REDIRECTS,
                event_hooks={"response": [stays_there(f"engine {self.name!r}: {self.address}")]},
            ),
        )  # fmt: skip

    async def _probed(self, client: Any) -> Server:
        import openai

        try:
            server = await probe(client, self.model, self._kind)
        except openai.APIConnectionError as e:
            if isinstance(e.__cause__, TeolaError):
                raise e.__cause__ from None
            raise EngineUnavailable(
                f"engine {self.name!r}: no server answers at {self.address}: start one there (`vllm serve`,"
                f" `llama-server`, ...) or correct base_url ({e.__cause__ or e})"
            ) from e
        if server.kind != "unknown" and (missing := server.misses(self.model)):
            raise EngineUnavailable(f"engine {self.name!r}: the server at {self.address} is there, but {missing}")
        warms = self._prefix == "free" or (self._prefix == "auto" and server.keeps_prefixes)
        self.capabilities = replace(self.capabilities, prefix=warms)
        return server

    # --- work -----------------------------------------------------------------------------------------------

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        ops = {"decoding": self._decode, "partial_prefilling": self._prefill}
        if batch.op not in ops:
            raise EngineError(f"engine {self.name!r} knows {', '.join(ops)}, not {batch.op}")

        def work(item: Item, tell: Tell) -> Awaitable[Any]:
            return ops[batch.op](item, batch.settings, tell)

        await self._tasks.run(self.name, batch, emit, work, self._error)

    def abort(self, ids: Sequence[int]) -> None:
        """Close the streams of items, whereupon a server stops writing."""
        self._tasks.abort(ids)

    async def _decode(self, item: Item, settings: Mapping[str, Any], tell: Tell) -> Completion:
        chat = _chat(item.payload)
        connection = await self._running()
        answer = Answer(tell)
        request = Request(item.payload, chat, settings, self._extra(connection, item))
        attempt = partial(self._ask, connection, item, request, answer)
        await self._retried(item.deadline_s, attempt, lambda: not answer.pieces)
        return answer.completion()

    async def _prefill(self, item: Item, settings: Mapping[str, Any], tell: Tell) -> int:
        """Return the number of tokens that the server has computed."""
        chat = _chat(item.payload)
        connection = await self._running()
        if not self.capabilities.prefix or len(item.payload) < SHORTEST_PREFIX_CHARS:
            return 0
        if chat and not chat.is_whole and not chat.messages[-1]["content"]:  # an empty message cannot be continued
            chat = replace(chat, messages=chat.messages[:-1])
        if chat and not chat.messages:
            return 0
        answer = Answer(lambda outcome: None)
        request = Request(item.payload, chat, WARM_UP, self._extra(connection, item))
        await self._retried(item.deadline_s, partial(self._ask, connection, item, request, answer))
        return answer.prompt_tokens

    async def _retried(
        self, deadline_s: float, attempt: Callable[[], Awaitable[T]], may_again: Callable[[], bool] = lambda: True
    ) -> T:
        return await retried(
            attempt, lambda error: is_transient(error) and may_again(), deadline_s=deadline_s,
            max_attempts=self._max_attempts, sleep=self._sleep,
            tell=lambda why: log.info("engine %r: %s", self.name, why),
        )  # fmt: skip

    async def _ask(self, connection: _Connection, item: Item, request: Request, answer: Answer) -> None:
        """Make an attempt: wait for a slot and for the budget, send, and read the answer to the end."""
        answer.begin()
        async with connection.slots:
            ticket = await self._ticket(connection, item, request.tokens)
            stream = await self._sent(connection, request)
            async with stream:
                await read_answer(stream, answer, f"engine {self.name!r}: {self.address}", request.text)
            if answer.prompt_tokens:
                self._budget.settle(ticket, answer.prompt_tokens + answer.output_tokens)

    async def _ticket(self, connection: _Connection, item: Item, tokens: int) -> Ticket:
        async with connection.turn:
            while (delay_s := self._budget.delay_s(self._clock(), tokens)) > 0:
                if math.isinf(delay_s):
                    raise EngineError(
                        f"engine {self.name!r}: a request of up to {tokens} tokens is larger than the whole budget of"
                        f" {self._budget.tokens_per_minute} a minute: give it fewer max_tokens, or the engine more"
                        " tokens_per_minute"
                    )
                if asyncio.get_running_loop().time() + delay_s >= item.deadline_s:
                    raise DeadlineExceeded(f"engine {self.name!r}: its budget has room in {delay_s:.1f} s, too late")
                await self._sleep(delay_s)
            return self._budget.take(self._clock(), tokens)

    async def _sent(self, connection: _Connection, request: Request) -> Any:
        """Return the stream of the answer, from an endpoint that the model has."""
        order: list[Endpoint] = ["chat", "completions"] if request.chat else ["completions", "chat"]
        first, second = sorted(order, key=lambda endpoint: endpoint in connection.absent)
        try:
            return await self._sent_to(first, connection, request)
        except Exception as e:
            if not _is_absent(e) or second in connection.absent:
                raise
            try:
                stream = await self._sent_to(second, connection, request)
            except Exception as other:
                raise (e if _is_absent(other) else other) from None
        connection.absent.add(first)
        return stream

    async def _sent_to(self, endpoint: Endpoint, connection: _Connection, request: Request) -> Any:
        client = connection.client
        create = client.chat.completions.create if endpoint == "chat" else client.completions.create
        body = request.body(endpoint, connection.server.kind)
        asked = {name: body.pop(name) for name in ("prompt", "messages") if name in body}
        while True:
            for name in connection.refused & body.keys():
                value = body.pop(name)
                if name == "max_tokens":
                    body["max_completion_tokens"] = value
            try:
                return await create(model=self.model, stream=True, extra_body=body, **asked)
            except Exception as e:
                refused = refused_fields(e, body)
                if not refused:
                    raise
                connection.refused |= refused

    def _extra(self, connection: _Connection, item: Item) -> dict[str, Any]:
        """Return the fields of every request, and the fields of this item."""
        extra: dict[str, Any] = {"stream_options": {"include_usage": True}, **self._extra_body}
        if connection.server.kind == "vllm":
            extra["return_token_ids"] = True
            if item.priority:
                extra["priority"] = item.priority
            if item.tenant:
                extra["cache_salt"] = self._salt(item.tenant)
        return extra

    def _salt(self, tenant: str) -> str:
        """Return the tenant's `cache_salt`, which cannot be guessed without the API key.

        Processes with the same key share prefixes. A short or missing key is no secret: then the salt is private to
        this process.
        """
        key = self._key.get_secret_value().encode()
        secret = key if len(key) >= SECRET_BYTES else _OWN_SECRET + key
        return hmac.new(secret, tenant.encode(), hashlib.sha256).hexdigest()

    def _error(self, error: Exception) -> Exception:
        server = self._connection.server if self._connection else Server()
        where = f"engine {self.name!r}: {self.address}"
        return failure(error, where, server, self.model, self._key.get_secret_value())


def _address(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise EngineError(
            f"base_url {shown.address(base_url)!r} is no address: give one like 'http://localhost:8000/v1'"
        )
    return base_url.rstrip("/") if parts.path.strip("/") else f"{base_url.rstrip('/')}/v1"


def _look_at_error(opening: asyncio.Task[_Connection]) -> None:
    """Retrieve the error, which asyncio would otherwise report as never retrieved."""
    if not opening.cancelled():
        opening.exception()


def _is_absent(error: Exception) -> bool:
    return getattr(error, "status_code", None) in ABSENT


def _chat(text: str) -> Chat | None:
    text.encode()  # a lone surrogate fails here, as in VllmEngine
    return read_chat(text)
