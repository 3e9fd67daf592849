"""A hosted model on loopback, and graphs of two supersteps around the node whose form is tried.

    START -> form, beside -> after -> END

All three ask the model. Where `form` is read whole, what `after` asks is found before `form` has run.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from typing_extensions import TypedDict

from teola_plugin import optimize
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langgraph.front import Way
from teola_plugin.adapters.langgraph.inside import LangGraphAsker
from teola_plugin.adapters.reader.run import Answer, Given, Run
from teola_plugin.adapters.reader.values import Barrier, Stalled, Undecided
from tests.adapters.reader.langchain_reading import _answered, _is_open, real, seen
from tests.support.langchain_world import digest

SENT: list[str] = []
"""What the service was asked, as texts."""


class _Handler(BaseHTTPRequestHandler):
    wbufsize = -1  # one packet for each reply

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        SENT.append(json.dumps(body, sort_keys=True))
        reply = _embedded(body) if self.path.endswith("embeddings") else _said(body)
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def _embedded(body: dict[str, Any]) -> dict[str, Any]:
    vectors = [[int(digest(json.dumps(each))[at], 16) / 15 for at in range(8)] for each in body["input"]]
    data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(vectors)]
    return {"object": "list", "model": "e", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def _said(body: dict[str, Any]) -> dict[str, Any]:
    asked = json.dumps(body["messages"])
    text = digest(asked)[:8]
    score = {"score": "yes" if text < "8" else "no"}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if "JSON" in asked:
        message["content"] = json.dumps({**score, "items": [text[:3], text[3:]]})
    if "LINES" in asked:
        message["content"] = f"Query: {text[:3]}\nQuery: {text[3:]}"
    if "response_format" in body:
        message["content"] = json.dumps(_filled(body["response_format"]["json_schema"]["schema"], text))
    if "tools" in body:
        function = body["tools"][0]["function"]
        called = {"name": function["name"], "arguments": json.dumps(_filled(function["parameters"], text))}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": called}],
        }
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip


def _filled(schema: dict[str, Any], text: str) -> Any:
    """An object of the schema."""
    values = {"string": "yes" if text < "8" else "no", "integer": 3, "number": 0.5, "boolean": text < "8"}
    filled = {}
    for name, each in schema.get("properties", {}).items():
        filled[name] = [text[:3], text[3:]] if each.get("type") == "array" else values.get(each.get("type"), "no")
        filled[name] = each["enum"][0] if "enum" in each else filled[name]
    return filled


_server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
_server.daemon_threads = True
threading.Thread(target=_server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{_server.server_port}/v1"
os.environ.update(OPENAI_API_KEY="key", OPENAI_API_BASE=URL, OPENAI_BASE_URL=URL)

LLM = ChatOpenAI(model="m")
STORE = InMemoryVectorStore(OpenAIEmbeddings(check_embedding_ctx_length=False))
STORE.add_texts([f"note {n}" for n in range(6)], ids=[str(n) for n in range(6)])
RETRIEVER = STORE.as_retriever(search_kwargs={"k": 2})


class State(TypedDict, total=False):
    """What the forms read and write."""

    question: str
    documents: list[Any]
    messages: Annotated[list[AnyMessage], add_messages]
    out: Any
    beside: Any
    after: Any
    steps: int


GIVEN: dict[str, Any] = {
    "question": "why",
    "documents": ["one", "two", "three"],
    "messages": [("user", "hello")],
    "steps": 2,
}


@dataclass(frozen=True)
class Form:
    """`node` is tried. `first`: the certain requests of the first reading, `after` and `beside` included.

    `why`: the barrier where it is not read. `router`: a conditional edge in the place of that from `form` to `after`.
    `varies`: what it asks or returns is another each time.
    """

    node: Callable[..., Any]
    first: int
    why: str = ""
    router: Callable[..., Any] | None = None
    state: Any = State
    is_async: bool = False
    varies: bool = False


def beside(state: Any) -> dict[str, Any]:
    return {"beside": LLM.invoke("beside " + _of(state, "question")).content}


def after(state: Any) -> dict[str, Any]:
    return {"after": LLM.invoke("after " + _of(state, "question")).content}


def _of(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


def graph_of(form: Form) -> Any:
    builder = StateGraph(form.state)
    builder.add_node("form", form.node)
    builder.add_node("beside", beside)
    builder.add_node("after", after)
    builder.add_node("other", lambda state: {"out": "other"})
    builder.add_edge(START, "form")
    builder.add_edge(START, "beside")
    if form.router is not None:
        builder.add_conditional_edges("form", form.router, ["after", "other"])
    else:
        builder.add_edge("form", "after")
    builder.add_edge("after", END)
    builder.add_edge("other", END)
    return builder.compile()


@dataclass
class Found:
    """What reading a graph came to."""

    rounds: list[int] = field(default_factory=list)
    keys: Counter[Hashable] = field(default_factory=Counter)
    value: Any = None
    stopped: str = ""
    raised: Exception | None = None


def read(graph: Any, value: Any, *, is_async: bool = False) -> Found:
    """Reading a graph to its end; `rounds`: the certain requests of each reading."""
    langchain = LangChainAsker(is_async=is_async)
    way = Way(is_async, {"configurable": {}, "recursion_limit": 25}, Runtime())
    asker = LangGraphAsker(langchain, way)
    given = Given()
    start = given.copy(value)
    answers: dict[Hashable, Answer] = {}
    found = Found()
    for _ in range(12):
        run = Run(asker, answers=answers, given=given)
        found.stopped, found.raised = "", None
        try:
            made = asker.run_component(run, graph, start, {}, is_async=is_async, source=graph)
            found.value = "unknown" if _is_open(run, made) else Given().copy(made)
        except Barrier as e:
            found.stopped = f"{e.what} ({e.where.rsplit('/', 1)[-1]})"
        except (Stalled, Undecided) as e:
            found.stopped = f"{type(e).__name__} {e.__cause__ or ''}"
        except Exception as e:
            found.raised = e
        finally:
            run.put_back()
        asked = [ask for ask in run.asks.values() if ask.is_certain]
        if not asked:
            return found
        found.rounds.append(len(asked))
        for ask in asked:
            answers[ask.key] = _answered(ask.request, given)
            if ask.request.act is None:
                found.keys[ask.request.key] += 1
    raise AssertionError("it asks for ever")


def given_of(form: Form) -> Any:
    return {key: value for key, value in GIVEN.items() if form.state is State or key in _names_of(form.state)}


def _names_of(state: Any) -> Any:
    return getattr(state, "model_fields", None) or state.__annotations__


def called(form: Form, pipeline: Any) -> tuple[Any, list[str], str]:
    """What a call comes to, what was asked for it, and what it printed."""
    SENT.clear()
    shown = StringIO()
    with redirect_stdout(shown):
        try:
            given = given_of(form)
            made = asyncio.run(pipeline.ainvoke(given)) if form.is_async else pipeline.invoke(given)
        except Exception as e:
            made = (type(e), str(e))
    return seen(made), sorted(SENT), shown.getvalue()


def check(form: Form) -> Found:
    """The optimized graph does what the original does, and reading finds what it asks for."""
    graph = graph_of(form)
    original = called(form, graph)
    optimized = called(form, optimize(graph))
    if form.varies:
        assert len(optimized[1]) == len(original[1])
        return read(graph, given_of(form), is_async=form.is_async)
    assert optimized == original
    expected, keys = real(graph, given_of(form), is_async=form.is_async)
    found = read(graph, given_of(form), is_async=form.is_async)
    if not found.stopped:
        assert found.keys == keys
        if isinstance(expected, Exception):
            assert type(found.raised) is type(expected)
        else:
            assert found.raised is None, repr(found.raised)
            assert seen(found.value) == seen(expected)
    return found
