"""Equal prompts, differing settings: whatever a hosted model could tell apart is told apart by the run-ahead.

The service answers with a digest of all that it is sent. Two requests have the same text; the one that the pipeline
makes later runs ahead first:

    ahead       first | second               second: its text is in the input
    framework   first | first again | second  first again: its text is what the model said to the first
                        ^ must not find what ran ahead for the second
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from threading import Event
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, Runnable, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI

from teola_plugin import optimize, optimized, pure

TEXT = "again"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in "ab"
]


@pure
class Mirror(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers with a digest of the whole request, and to the first one with the text of the others.

    `order`: the first one is answered only when another has come, which then ran ahead.
    """

    def __init__(self, *, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        self.other = Event()
        self.made = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.made += 1
        sent = request.read()
        said = TEXT
        if json.loads(sent)["messages"][-1]["content"] != "first":
            said = hashlib.sha256(sent).hexdigest()
            self.other.set()
        elif self.is_ordered:
            assert self.other.wait(10), "nothing ran ahead"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await asyncio.to_thread(self.handle_request, request)


def model_of(service: Mirror, **settings: Any) -> ChatOpenAI:
    given: dict[str, Any] = {"model": "m", "api_key": "none", "base_url": "http://service/v1", "max_retries": 0}
    return ChatOpenAI(
        http_client=httpx.Client(transport=service), http_async_client=httpx.AsyncClient(transport=service),
        **{**given, **settings},
    )  # fmt: skip


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no stop words": ({"stop": ["x"]}, {}),
    "other stop words": ({"stop": ["x"]}, {"stop": ["y"]}),
    "one stop word more": ({"stop": ["x", "y"]}, {"stop": ["x"]}),
    "stop words in another order": ({"stop": ["x", "y"]}, {"stop": ["y", "x"]}),
    "seed": ({"seed": 1}, {"seed": 2}),
    "no seed": ({"seed": 1}, {}),
    "temperature": ({"temperature": 0.1}, {"temperature": 0.2}),
    "user": ({"user": "a"}, {"user": "b"}),
    "tools": ({"tools": TOOLS}, {"tools": TOOLS[:1]}),
    "tools in another order": ({"tools": TOOLS}, {"tools": TOOLS[::-1]}),
    "tool choice": ({"tools": TOOLS, "tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "none"}),
    "logit bias": ({"logit_bias": {"7": 1}}, {"logit_bias": {"7": -1}}),
}
ASK = ChatPromptTemplate.from_template("{x}")


def with_settings(model: BaseChatModel, settings: dict[str, Any]) -> Runnable[Any, Any]:
    return ASK | model.bind(**settings) | StrOutputParser()


def pipeline(model: BaseChatModel, again: Runnable[Any, Any], second: Runnable[Any, Any]) -> Runnable[Any, Any]:
    first = ChatPromptTemplate.from_template("{q}") | model | StrOutputParser() | {"x": RunnablePassthrough()}
    return RunnablePassthrough.assign(first=first | again) | RunnablePassthrough.assign(second=second)


def answers(is_optimized: bool, form: str, make: Any) -> tuple[Any, int]:
    service = Mirror(is_ordered=is_optimized)
    chain = make(service)
    if is_optimized:
        chain = optimize(chain)
    given = {"q": "first", "x": TEXT}
    said = chain.invoke(given) if form == "invoke" else asyncio.run(chain.ainvoke(given))
    if is_optimized:
        assert optimized(chain).reports[-1].fallbacks == ()
    return said, service.made


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize("difference", SETTINGS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_bound_settings(difference: str, form: str, is_turned: bool) -> None:
    one, other = SETTINGS[difference][:: -1 if is_turned else 1]

    def make(service: Mirror) -> Runnable[Any, Any]:
        model = model_of(service)
        return pipeline(model, with_settings(model, one), with_settings(model, other))

    said, made = answers(True, form, make)
    assert (said, made) == answers(False, form, make)
    assert said["first"] != said["second"]


@pytest.mark.parametrize("difference", [{"model": "n"}, {"temperature": 0.7}, {"seed": 3}, {"max_tokens": 5}])
def test_two_models(difference: dict[str, Any]) -> None:
    def make(service: Mirror) -> Runnable[Any, Any]:
        one, other = model_of(service), model_of(service, **difference)
        return pipeline(one, with_settings(one, {}), with_settings(other, {}))

    said, made = answers(True, "invoke", make)
    assert (said, made) == answers(False, "invoke", make)
    assert said["first"] != said["second"]


MESSAGES = {
    "a system message": [SystemMessage("brief")],
    "another role": [AIMessage("brief")],
    "a name": [HumanMessage("brief", name="ann")],
    "another name": [HumanMessage("brief", name="bob")],
    "additional arguments": [AIMessage("brief", additional_kwargs={"refusal": "no"})],
    "no name": [HumanMessage("brief")],
    "two parts": [HumanMessage([{"type": "text", "text": "brie"}, {"type": "text", "text": "f"}])],
    "an identity": [HumanMessage("brief", id="1")],
}


@pytest.mark.parametrize("before", MESSAGES)
def test_messages_before_an_equal_text(before: str) -> None:
    """Each kind of message against the next one; what the service cannot see, such as an identity, is no difference."""
    kinds = list(MESSAGES)
    pair = before, kinds[(kinds.index(before) + 1) % len(kinds)]

    def asking(model: BaseChatModel, kind: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate([*MESSAGES[kind], ("human", "{x}")]) | model | StrOutputParser()

    def make(service: Mirror) -> Runnable[Any, Any]:
        model = model_of(service)
        return pipeline(model, *(asking(model, kind) for kind in pair))

    said, made = answers(True, "invoke", make)
    assert (said, made) == answers(False, "invoke", make)


def test_a_setting_that_a_config_chooses() -> None:
    """A configurable model holds the config itself, and is not asked under its usual settings besides."""

    def make(service: Mirror) -> Runnable[Any, Any]:
        length = ConfigurableField("length")
        chosen = model_of(service).configurable_fields(max_tokens=length).with_config(configurable={"length": 3})
        return RunnableParallel(a=ASK | chosen | StrOutputParser(), b=ASK | model_of(service) | StrOutputParser())

    said, made = answers(True, "invoke", make)
    assert (said, made) == answers(False, "invoke", make)
    assert said["a"] != said["b"]
