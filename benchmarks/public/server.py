"""An OpenAI-compatible service with a web search that takes a fixed time for each request, however many there are.

    python -m public.server APP      serves replies as APP wants them; prints its address

`POST /control` sets its times and hands over what was asked since the last time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from public.replies import (
    HOSTS,
    MARK,
    Script,
    digest,
    embedded_text,
    found,
    identity,
    mark,
    message,
    prompt_of,
    text,
    vector,
)  # fmt: skip


@dataclass
class Asked:
    """One request: what it was, and when. `uses` and `gives`: the marks in it and in its reply."""

    kind: str
    key: str
    text: str
    uses: list[str]
    start_s: float
    end_s: float = 0.0
    gives: list[str] = field(default_factory=list)


class Service:
    """Replies after the time of the request's kind. `asked`: finished and open requests in their order."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.delays_s = {"chat": 0.0, "embed": 0.0, "search": 0.0}
        self.asked: list[Asked] = []
        self.open = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"])
        app.add_api_route("/v1/completions", self.complete, methods=["POST"])
        app.add_api_route("/v1/embeddings", self.embeddings, methods=["POST"])
        app.add_api_route("/search", self.search, methods=["POST"])
        app.add_api_route("/brave", self.brave, methods=["GET"])
        app.add_api_route("/page/{name}", self.page, methods=["GET"])
        app.add_api_route("/control", self.control, methods=["POST"])
        return app

    async def control(self, request: Request) -> Response:
        """Waits until no request is open, so that what was asked for nothing is not taken for the next run's."""
        body = await request.json()
        while self.open:  # noqa: ASYNC110  rarely, and not for long
            await asyncio.sleep(0.002)
        self.delays_s = body.get("delays_s", self.delays_s)
        asked, self.asked = self.asked, []
        return JSONResponse([asdict(each) for each in asked])

    def script_of(self, body: dict[str, Any]) -> Script:
        return self.script

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        is_streamed = bool(body.get("stream"))

        def reply() -> tuple[str, Any]:
            told = json.dumps(message(self.script_of(body), body))
            told = told.replace("http://service", str(request.base_url).rstrip("/"))
            return told, json.loads(told)

        said = await self.answered("chat", [digest(identity(body)), is_streamed], prompt_of(body), reply)
        if is_streamed:
            return StreamingResponse(_streamed(said), media_type="text/event-stream")
        reason = "tool_calls" if said.get("tool_calls") else "stop"
        return JSONResponse(
            {**_head("chat.completion"), "choices": [_choice(message=said, reason=reason)], "usage": USAGE}
        )

    async def complete(self, request: Request) -> Response:
        """Models that continue a text: as many as were sent in one request."""
        body = await request.json()
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        script, seeds = self.script_of(body), [digest(prompt) for prompt in prompts]

        def reply() -> tuple[str, Any]:
            texts = [text(script, prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
            return "\n".join(texts), texts

        texts = await self.answered("chat", prompts, "\n".join(prompts), reply)
        choices = [
            {"index": n, "text": each, "finish_reason": "stop", "logprobs": None} for n, each in enumerate(texts)
        ]
        return JSONResponse({**_head("text_completion"), "choices": choices, "usage": USAGE})

    async def embeddings(self, request: Request) -> Response:
        body = await request.json()
        items = body["input"] if isinstance(body["input"], list) else [body["input"]]
        texts = [embedded_text(each) for each in ([items] if items and isinstance(items[0], int) else items)]
        vectors = await self.answered("embed", texts, "\n".join(texts), lambda: ("", [vector(each) for each in texts]))
        data = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(vectors)]
        return JSONResponse({"object": "list", "data": data, "model": body.get("model"), "usage": USAGE})

    async def search(self, request: Request) -> Response:
        query = str((await request.json()).get("query"))

        def reply() -> tuple[str, Any]:
            results = found(query, str(request.base_url).rstrip("/"))
            return json.dumps(results), results

        return JSONResponse(await self.answered("search", query, query, reply))

    async def brave(self, q: str, request: Request) -> Response:
        """As Brave's interface answers."""

        def reply() -> tuple[str, Any]:
            results = found(q, str(request.base_url).rstrip("/"))
            told = [{**each, "description": each["content"]} for each in results["results"]]
            return json.dumps(results), {"web": {"results": told}}

        return JSONResponse(await self.answered("search", q, q, reply))

    async def page(self, name: str) -> Response:
        text = f"The page {name} is about {mark(name)}."
        return PlainTextResponse(await self.answered("search", name, name, lambda: (text, text)))

    async def answered(self, kind: str, key: Any, text: str, reply: Callable[[], tuple[str, Any]]) -> Any:
        asked = Asked(kind, digest([kind, key]), text, MARK.findall(text), time.perf_counter())
        self.asked.append(asked)
        self.open += 1
        try:
            given, value = reply()
            asked.gives = MARK.findall(given)
            await asyncio.sleep(asked.start_s + self.delays_s[kind] - time.perf_counter())
        finally:
            self.open -= 1
            asked.end_s = time.perf_counter()
        return value


USAGE = {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14}


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": "gpt-4o"}


def _choice(reason: str | None = None, **said: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, "logprobs": None, **said}


async def _streamed(said: dict[str, Any]) -> AsyncIterator[str]:
    """The message in pieces: the time was spent before the first."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece + " "} for piece in (said["content"] or "").split(" ")]
    if said["content"]:
        deltas[-1]["content"] = deltas[-1]["content"][:-1]
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(said.get("tool_calls") or ())]
    for delta in deltas:
        yield _event(choices=[_choice(delta=delta)])
    yield _event(choices=[_choice("tool_calls" if said.get("tool_calls") else "stop", delta={})])
    yield _event(choices=[], usage=USAGE)
    yield "data: [DONE]\n\n"


def _event(**more: Any) -> str:
    return f"data: {json.dumps({**_head('chat.completion.chunk'), **more})}\n\n"


def main(name: str) -> None:
    from public.cases import CASES

    service = Service(CASES[name].script)
    with contextlib.ExitStack() as opened:
        doors = [opened.enter_context(socket.socket()) for _ in range(HOSTS)]
        for n, door in enumerate(doors):
            door.bind((f"127.0.0.{n + 1}", doors[0].getsockname()[1] if n else 0))
            door.listen()
        print(f"http://127.0.0.1:{doors[0].getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(service.app(), log_config=None, lifespan="off", ws="none"))
        server.run(sockets=doors)


if __name__ == "__main__":
    main(sys.argv[1])
