"""Reads a LangChain pipeline or function, and runs it, and tells what each asked for and came to.

Reading is repeated with the replies that have come, as a prediction does. The engines are asked in this thread.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langchain.reading_retrievers import instrument_loaded
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.run import Answer, Given, Run
from teola_plugin.adapters.reader.values import Barrier, Pending, Stalled, Undecided, Unknown
from teola_plugin.engines import Batch, Done, EngineSpec, Failed, Foreign, Item
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.engines import engine_for
from teola_plugin.seams import Reply, Session, active
from tests.support.fakes import FakeTransport
from tests.support.langchain_world import digest

SENT: list[dict[str, Any]] = []
"""Bodies of the requests that the hosted service got."""


def _answer(request: httpx.Request) -> httpx.Response:
    body = json.loads(request.content)
    SENT.append(body)
    text = digest(json.dumps(body["messages"]))[:8]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if "response_format" in body:
        message["content"] = json.dumps({"score": "yes" if text < "8" else "no"})
    if "tools" in body:
        name = body["tools"][0]["function"]["name"]
        call = {"name": name, "arguments": json.dumps({"score": "yes" if text < "8" else "no"})}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
    reply = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip
    return httpx.Response(200, json=reply)


CLIENT = httpx.Client(transport=FakeTransport(_answer))
ASYNC_CLIENT = httpx.AsyncClient(transport=FakeTransport(_answer))


def hosted(**fields: Any) -> ChatOpenAI:
    """A model on a service that answers with a digest of the messages."""
    given: dict[str, Any] = {"model": "m", "api_key": "key", "base_url": "http://service/v1", **fields}
    return ChatOpenAI(http_client=CLIENT, http_async_client=ASYNC_CLIENT, **given)


# --- the framework's own run -----------------------------------------------------------------------------------------


@dataclass
class Recording(Session):
    """A session that has everything computed at once, and notes the keys."""

    keys: Counter[Hashable] = field(default_factory=Counter)
    is_unheard: bool = False

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.keys.update(request_key(spec, op, payload, settings) for payload in payloads)
        return [replied(lambda payload=payload: _value(spec, op, payload, settings)) for payload in payloads]

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        if op == "decoding":  # a search that is read is one request, whatever it asks for itself
            self.keys[request_key(spec, op, payload, settings)] += 1
        return Reply(), True


def replied(compute: Callable[[], Any]) -> Reply:
    reply = Reply()
    try:
        reply.put(Done(compute()))
    except Exception as e:
        reply.put(Failed(e))
    return reply


def _value(spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> Any:
    """What an engine makes of one item."""
    if isinstance(payload, Foreign):
        with active(None):
            return _run(payload.call()) if payload.is_async else payload.call()
    outcomes: list[Any] = []

    async def run() -> None:
        await engine_for(spec).run(
            Batch(op, dict(settings), (Item(payload),)), lambda at, outcome: outcomes.append(outcome)
        )

    _run(run())
    last = outcomes[-1]
    if isinstance(last, Failed):
        raise last.error
    return last.value


def _run(work: Any) -> Any:
    """The result of a coroutine, also where a loop runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """`rounds`: what was newly asked in each evaluation; `value`: what it came to; `stopped`: why not."""

    rounds: list[list[Request]] = field(default_factory=list)
    certain: list[list[bool]] = field(default_factory=list)
    value: Any = None
    stopped: str = ""
    raised: Exception | None = None

    @property
    def keys(self) -> Counter[Hashable]:
        """Of the requests of engines."""
        return Counter(request.key for each in self.rounds for request in each if request.act is None)

    @property
    def shown(self) -> list[int]:
        """How many requests came in each evaluation."""
        return [len(each) for each in self.rounds]


def read(program: Any, value: Any, *, is_async: bool = False, most: int = 20) -> Found:
    """What reading a runnable, or a function of one value, asks for and comes to."""
    instrument_loaded()
    asker = LangChainAsker(is_async=is_async)
    given = Given()
    start = given.copy(value)
    answers: dict[Hashable, Answer] = {}
    found = Found()
    for _ in range(most):
        run = Run(asker, answers=answers, given=given)
        found.stopped, found.raised = "", None
        try:
            made = _evaluate(run, asker, program, start, is_async)
            found.value = "unknown" if _is_open(run, made) else Given().copy(made)
        except Barrier as e:
            found.stopped = e.what
        except (Stalled, Undecided) as e:
            found.stopped = f"{type(e).__name__} {e.__cause__ or ''}"
        except Exception as e:
            found.raised = e
        finally:
            run.put_back()
        if not run.asks:
            return found
        found.rounds.append([ask.request for ask in run.asks.values()])
        found.certain.append([ask.is_certain for ask in run.asks.values()])
        for ask in run.asks.values():
            answers[ask.key] = _answered(ask.request, given)
    raise AssertionError("it asks for ever")


def _evaluate(run: Run, asker: LangChainAsker, program: Any, value: Any, is_async: bool) -> Any:
    if isinstance(program, Runnable):
        return asker.run_component(run, program, value, {}, is_async=is_async, source=program)
    made = call(run, run.load(program), (value,), {})
    return made.force() if type(made) is Pending else made


def _is_open(run: Run, value: Any) -> bool:
    """Whether something in a value is not known, but for ids."""
    if isinstance(value, BaseMessage):
        return any(_is_open(run, held) for name, held in vars(value).items() if name != "id")
    if type(value) is list or type(value) is tuple:
        return any(_is_open(run, each) for each in value)
    if type(value) is dict:
        return any(_is_open(run, each) for each in value.values())
    return type(value) is Unknown


def _answered(request: Request, given: Given) -> Answer:
    if request.act is not None:
        return Answer(given.copy(request.value(request.act())))
    reply = _value(request.spec, request.op, request.payload, request.settings)
    try:
        return Answer(given.copy(request.value(reply)))
    except Exception as e:
        return Answer(error=e)


# --- comparing -------------------------------------------------------------------------------------------------------


def real(program: Any, value: Any, *, is_async: bool = False) -> tuple[Any, Counter[Hashable]]:
    """What the framework's own run comes to (its error, if it raises), and the keys of its requests."""
    instrument_loaded()
    recording = Recording()
    with active(recording):
        try:
            if isinstance(program, Runnable):
                made = asyncio.run(program.ainvoke(value)) if is_async else program.invoke(value)
            else:
                made = asyncio.run(program(value)) if is_async else program(value)
        except Exception as e:
            made = e
    return made, recording.keys


def seen(value: Any) -> Any:
    """A value without the ids that are made up in each run."""
    if isinstance(value, BaseMessage):
        fields = {name: seen(held) for name, held in vars(value).items() if name != "id"}
        return type(value).__name__, fields
    if isinstance(value, dict):
        return {key: seen(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [seen(each) for each in value]
    return value


def check(program: Any, value: Any, *, is_async: bool = False) -> Found:
    """Reading asks for what the framework's own run asks for, and comes to the same."""
    expected, keys = real(program, value, is_async=is_async)
    found = read(program, value, is_async=is_async)
    assert not found.stopped, found.stopped
    if isinstance(expected, Exception):
        assert type(found.raised) is type(expected), (found.raised, expected)
    else:
        assert found.raised is None, repr(found.raised)
        assert seen(found.value) == seen(expected)
    assert found.keys == keys
    return found


def stopped(program: Any, value: Any) -> str:
    """Why a program is not read to its end."""
    with suppress(AssertionError):
        return read(program, value).stopped
    return ""
