"""What a component asks with changes while a function runs: in place or by a handler; gathered coroutines."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import OpenAI
from tavily import TavilyClient

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, served
from tests.support.late_readings import late_until

Kind = tuple[Callable[[str], Any], Callable[[int], None]]


class Told(Service):
    """Notes whole requests."""

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(path + json.dumps(given, sort_keys=True))
        return super().reply_to(path, given)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr("tests.support.hosted_service.Service", Told)
    with served() as service:
        service.requests, service.lasts_s = [], 0.05
        yield service


def chat(service: Service, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=service.url, api_key="x", max_retries=0, **settings)


def body(service: Service) -> Kind:
    llm = chat(service, extra_body={"seed": 0})
    return lambda text: llm.invoke(text).content, lambda number: llm.extra_body.update(seed=number)


def nested(service: Service) -> Kind:
    llm = chat(service, extra_body={"limits": {"most": 0}})
    return lambda text: llm.invoke(text).content, lambda number: llm.extra_body["limits"].update(most=number)


def bound(service: Service) -> Kind:
    llm: Any = chat(service).bind(seed=0)
    return lambda text: llm.invoke(text).content, lambda number: llm.kwargs.update(seed=number)


def template(service: Service) -> Kind:
    prompt = ChatPromptTemplate.from_template("{n} {text}").partial(n="0")
    chain = prompt | chat(service) | StrOutputParser()
    return lambda text: chain.invoke({"text": text}), lambda number: prompt.partial_variables.update(n=str(number))


def client(service: Service) -> Kind:
    sdk = OpenAI(base_url=service.url, api_key="x", max_retries=0, default_query={"a": "0"})

    def ask(text: str) -> Any:
        told = [{"role": "user", "content": text}]
        return sdk.chat.completions.create(model="m", messages=told).choices[0].message.content

    return ask, lambda number: sdk._custom_query.update(a=str(number))


def search(service: Service) -> Kind:
    tavily = TavilyClient("key", api_base_url=service.url)
    return lambda text: tavily.search(text), lambda number: tavily.headers.update(x=str(number))


def embeddings(service: Service) -> Kind:
    model = OpenAIEmbeddings(
        base_url=service.url, api_key="x", max_retries=0, check_embedding_ctx_length=False, dimensions=8
    )

    def change(number: int) -> None:
        model.dimensions = 8 + number

    return lambda text: model.embed_query(text), change


def user(service: Service) -> Kind:
    model = OpenAIEmbeddings(
        base_url=service.url, api_key="x", max_retries=0, check_embedding_ctx_length=False, model_kwargs={"user": "0"}
    )
    return lambda text: model.embed_query(text), lambda number: model.model_kwargs.update(user=str(number))


@pytest.mark.parametrize("kind", [body, nested, bound, template, client, search, embeddings, user])
def test_a_late_reading_asks_nothing_again_with_settings_changed_in_place(
    kind: Callable[[Service], Kind], service: Service
) -> None:
    ask, put = kind(service)
    changed = threading.Event()

    def answer(text: str) -> Any:
        found = [ask(f"{text} 1")]
        with open(os.devnull):
            put(1)
        changed.set()
        return [*found, ask(f"{text} 2"), ask(f"{text} 3")]

    fast, asked = optimize(answer), list[Counter[str]]()
    for is_late, app in ((False, answer), (False, fast), (True, fast), (True, fast)):
        put(0)
        changed.clear()
        service.requests.clear()
        with late_until(changed) if is_late else nullcontext():
            app("hives")
        asked.append(Counter(service.requests))
    assert asked[0].total() == 3
    assert asked[1:] == [asked[0]] * 3


def test_a_component_that_begins_late_asks_nothing_with_settings_changed_since_it_was_read(service: Service) -> None:
    ask, put = embeddings(service)
    changed = threading.Event()

    def answer(text: str) -> Any:
        found = [ask(f"{text} 1")]
        with open(os.devnull):
            put(1)
        changed.set()
        time.sleep(0.2)
        return [*found, ask(f"{text} 2")]

    fast = optimize(answer)
    for _ in range(2):
        put(0)
        changed.clear()
        service.requests.clear()
        with late_until(changed, ["begin"]):
            fast("hives")
        assert len(service.requests) == 2


class Cools(BaseCallbackHandler):
    """Sets the temperature of a model at each reply."""

    def __init__(self, llm: ChatOpenAI) -> None:
        self.llm = llm

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.llm.temperature = 0.5


@pytest.mark.parametrize("is_given", [False, True])
def test_a_model_whose_settings_a_handler_sets_is_not_asked_ahead(service: Service, is_given: bool) -> None:
    llm = chat(service, temperature=1)
    cools = Cools(llm)
    llm.callbacks = None if is_given else [cools]
    config: Any = {"callbacks": [cools]} if is_given else {}

    def answer(text: str) -> Any:
        return [llm.invoke(f"{text} {n}", config).content for n in range(3)]

    asked = []
    for app in (answer, optimize(answer)):
        llm.temperature = 1
        service.requests.clear()
        app("hives")
        asked.append(Counter(service.requests))
    assert asked[1] == asked[0]


def test_gathered_coroutines_behind_barriers_ask_as_often_as_by_themselves(service: Service) -> None:
    llm = chat(service)

    async def note(text: str) -> list[Any]:
        found = (await llm.ainvoke(text)).content
        with open(os.devnull):  # noqa: ASYNC230
            pass
        return [found, (await llm.ainvoke(f"then {text}")).content, (await llm.ainvoke("same")).content]

    async def answer(text: str) -> Any:
        first = (await llm.ainvoke("first")).content
        return first, await asyncio.gather(note(text), note(text), note("others"))

    fast, asked = optimize(answer), list[Counter[str]]()
    for app in (answer, fast, fast, fast):
        service.requests.clear()
        asyncio.run(app("hives"))
        asked.append(Counter(service.requests))
    assert asked[1:] == [asked[0]] * 3
    assert optimized(fast).reports[-1].hits > 0
