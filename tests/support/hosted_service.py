"""A hosted service in this process: chat, embeddings, web search and pages over HTTP on loopback."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from teola_plugin import optimize, optimized
from teola_plugin.runtime.session.report import Report

READ_S = 0.04
"""No reading is slower, on busy cores too: a service that answers within 7 ms is at times faster than the reading."""


class Service(ThreadingHTTPServer):
    """Chat and embeddings of OpenAI's kind, searches of Tavily's, and JSON for each address that is read by GET.

    The reply to `holds` waits until `awaits` is asked, after `awaits` was set. All others take `lasts_s`, and at
    least `READ_S` if there are `holds`. A chat is answered with `says`, filled in with the last message.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.holds = ""
        self.awaits = ""
        self.has_waited_in_vain = False
        self.lasts_s = 0.0
        self.news = threading.Condition()
        self.fails = self.loses = ""
        self.says = "<{}>"

    @property
    def awaits(self) -> str:
        return self._awaits

    @awaits.setter
    def awaits(self, text: str) -> None:
        self._awaits, self._since = text, len(self.asked)

    def forget(self) -> None:
        self.asked.clear()
        self._since = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            texts = [given["input"]] if isinstance(given["input"], str) else given["input"]
            self.note(f"embed {texts} {given.get('dimensions')}")
            data = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(texts)]
            return {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        if path.endswith("/search"):
            self.note(f"search {given['query']}")
            return {
                "results": [{"url": "http://nowhere", "title": "t", "content": f"<{given['query']}>", "score": 1.0}]
            }
        told = given["messages"][-1]["content"]
        self.note(f"chat {told}")
        said = "hive 1\nhive 2\nhive 3" if told.startswith("Split") else self.says.format(told)
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}

    def note(self, asked: str) -> None:
        with self.news:
            self.asked.append(asked)
            self.news.notify_all()
            if self.holds and self.holds in asked:
                is_there = self.news.wait_for(
                    lambda: any(self.awaits in each for each in self.asked[self._since :]), 10
                )
                self.has_waited_in_vain |= not is_there
                return
        time.sleep(max(self.lasts_s, READ_S if self.holds else 0.0))


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        fails = bool(self.server.fails) and self.server.fails in json.dumps(given)
        if given.get("stream") and not fails:
            return self.stream(self.server.reply_to(self.path, given))
        said = json.dumps({"error": {"message": "as planned"}} if fails else self.server.reply_to(self.path, given))
        self.send_response(400 if fails else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())
        return None

    def stream(self, reply: dict[str, Any]) -> None:
        """Answer a chat with a stream of two texts and the reason of the end."""
        said = reply.pop("choices")[0]["message"]["content"]
        parts: list[Any] = [({"content": text}, None) for text in (said[:3], said[3:])]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in [*parts, ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            event = {**reply, "object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self) -> None:
        self.server.note(f"get {self.path}")
        is_lost = bool(self.server.loses) and self.server.loses in self.path
        said = json.dumps({"found": self.path, "items": [self.path, self.headers.get("x-key")]})
        self.send_response(404 if is_lost else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *args: Any) -> None:
        pass


def vector(text: str) -> list[float]:
    return [float(byte) for byte in hashlib.sha256(text.encode()).digest()[:8]]


@contextmanager
def served() -> Iterator[Service]:
    """A service that runs."""
    _keep_async_clients()
    with Service() as service:
        # it looks that often whether it is to end, and each test waits for that
        thread = threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def _keep_async_clients() -> None:
    """Let LangChain keep all its clients: of those it drops, connections of cancelled requests are found unclosed."""
    module = sys.modules.get("langchain_openai.chat_models._client_utils")
    cached = getattr(module, "_cached_async_httpx_client", None)
    if cached is not None and cached.cache_parameters()["maxsize"] is not None:
        vars(module)["_cached_async_httpx_client"] = functools.cache(cached.__wrapped__)


@contextmanager
def counted(service: Service) -> Iterator[Counter[str]]:
    service.forget()
    found: Counter[str] = Counter()
    yield found
    found.update(service.asked)


def invoked(app: Any) -> Any:
    return app.invoke({})


def asked_side_by_side(
    service: Service, app: Any, first: str, last: str, call: Callable[[Any], Any] = invoked
) -> Report:
    """Call a pipeline, original and optimized: the reply to `first` comes once `last` is asked; all else is equal."""
    with counted(service) as original:
        plain = call(app)
    fast = optimize(app)
    assert call(fast) == plain
    service.holds, service.awaits = first, last
    with counted(service) as made:
        assert call(fast) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())
    return report
