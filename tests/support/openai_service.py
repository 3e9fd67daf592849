"""Small OpenAI-compatible servers on loopback, of each kind, with every fault that a test plans."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

MODEL = "tiny"
ANSWER = ["Bees ", "dance", ", ", "they ", "say."]
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp", "hosted": "system"}


@dataclass
class Refuse:
    """An error in place of an answer."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    code: Any = None

    def response(self) -> Response:
        body = {"error": {"message": self.message, "type": "error", "code": self.code}}
        return JSONResponse(body, self.status, self.headers)


@dataclass
class Raw:
    """These bytes in place of an answer."""

    body: bytes = b""
    media_type: str = "text/event-stream"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, self.media_type)


@dataclass
class Break:
    """The connection ends after so many pieces; with `error`, the stream first tells one. `quiet`: as if at its end."""

    after: int
    error: dict[str, Any] | None = None
    quiet: bool = False


@dataclass
class Service:
    """`faults`: what the next requests get. `gate`: answers stop after their first piece until it is set."""

    kind: str = "vllm"
    endpoints: tuple[str, ...] = ("completions", "chat/completions")
    models: tuple[str, ...] = (MODEL, "other")
    key: str = ""
    keeps_prefixes: bool = True
    lists_models: bool = True
    answer: list[str] = field(default_factory=lambda: list(ANSWER))
    calls: list[tuple[str, str]] = field(default_factory=list)
    check: Callable[[str, dict[str, Any]], Refuse | None] = lambda path, body: None
    faults: deque[Refuse | Break | Raw] = field(default_factory=deque)
    gate: threading.Event | None = None
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    probed: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    url: str = ""
    moved_to: str = ""
    """Where all that is only read is said to be."""

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/{path:path}", self.get, methods=["GET"])
        app.add_api_route("/v1/{path:path}", self.post, methods=["POST"])
        return app

    async def get(self, path: str, request: Request) -> Response:
        self.probed.append(path)
        if self.moved_to:
            return Raw(status=307, headers={"Location": f"{self.moved_to}/{path}"}).response()
        self.headers.append(dict(request.headers))
        if self.key and path == "v1/models" and request.headers["authorization"] != f"Bearer {self.key}":
            return Refuse(401, f"wrong key {request.headers['authorization']}").response()
        match self.kind, path:
            case _, "v1/models" if self.lists_models:
                more = {"max_model_len": 512} if self.kind == "vllm" else {}
                return JSONResponse(
                    {"data": [{"id": model, "owned_by": OWNERS[self.kind], **more} for model in self.models]}
                )
            case "vllm", "version":
                return JSONResponse({"version": "0.32.0"})
            case "vllm", "metrics":
                return PlainTextResponse(f'vllm:cache_config_info{{enable_prefix_caching="{self.keeps_prefixes}"}} 1.0')
            case "sglang", "get_server_info":
                return JSONResponse({"model_path": "x", "disable_radix_cache": not self.keeps_prefixes})
            case "llama.cpp", "props":
                return JSONResponse({"default_generation_settings": {"n_ctx": 512}})
        return Refuse(404, "Not Found").response()

    async def post(self, path: str, request: Request) -> Response:
        body = await request.json()
        self.seen.append((path, body))
        self.headers.append(dict(request.headers))
        if path not in self.endpoints:
            return Refuse(404, f"no {path} for this model").response()
        if refusal := self.check(path, body):
            return refusal.response()
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, Refuse | Raw):
            return fault.response()
        return StreamingResponse(self.stream(path, body, fault), media_type="text/event-stream")

    async def stream(self, path: str, body: dict[str, Any], fault: Break | None) -> AsyncIterator[str]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async for event in self.events(path, body, fault):
                yield f"data: {json.dumps(event)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.open -= 1

    async def events(self, path: str, body: dict[str, Any], fault: Break | None) -> AsyncIterator[dict[str, Any]]:
        is_chat = path.startswith("chat")
        answer = self.answer[: body.get("max_tokens")]
        if is_chat:
            yield event(delta={"role": "assistant", "content": ""})
        for n, piece in enumerate(answer):
            if fault and n == fault.after:
                if fault.quiet:
                    return
                if fault.error:
                    yield {"error": fault.error}
                raise ConnectionError("as planned")
            ids = {"token_ids": [n]} if body.get("return_token_ids") else {}
            yield event(**({"delta": {"content": piece}} if is_chat else {"text": piece}), **ids)
            while self.gate and not self.gate.is_set():  # noqa: ASYNC110  set by another thread
                await asyncio.sleep(0.002)
        for n, (name, arguments) in enumerate(self.calls):
            for part in ({"name": name, "arguments": ""}, {"arguments": arguments[:3]}, {"arguments": arguments[3:]}):
                yield event(delta={"tool_calls": [{"index": n, "function": part}]})
        last = {"delta": {}} if is_chat else {"text": ""}
        reason = "tool_calls" if self.calls else "length" if len(answer) < len(self.answer) else "stop"
        yield event(**last, finish_reason=reason)
        if body.get("stream_options"):
            yield {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(answer), "total_tokens": 9}}


def event(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **choice}]}


@contextmanager
def served(service: Service) -> Iterator[Service]:
    """The service, answering at `service.url`."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()  # who comes before the server runs is served, not refused
        service.url = f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        config = uvicorn.Config(service.app(), log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            yield service
        finally:
            if service.gate:
                service.gate.set()
            server.should_exit = True
            thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
