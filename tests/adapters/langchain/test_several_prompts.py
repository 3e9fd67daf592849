"""`generate` with several prompts: all of them are sent at once, where nothing but the service can refuse one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.chains import LLMChain
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import PromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from teola_plugin import optimize, optimized, pure
from tests.support.hosted_service import Service, asked_side_by_side, counted

PROMPT = PromptTemplate.from_template("say {x}")
NAMES = ("one", "two", "two", "three")


def chat(service: Service, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0, **settings)


def texts(result: Any) -> list[str]:
    return [each[0].text for each in result.generations]


def messages() -> list[Any]:
    return [[HumanMessage(f"say {name}")] for name in NAMES]


CALLS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "messages": lambda llm: lambda x: texts(llm.generate(messages())),
    "prompts": lambda llm: lambda x: texts(llm.generate_prompt([PROMPT.invoke({"x": name}) for name in NAMES])),
    "stop words and settings": lambda llm: (
        lambda x: texts(llm.generate(messages(), ["so"], tags=["a"], temperature=0.5))
    ),
    "a chain": lambda llm: lambda x: LLMChain(llm=llm, prompt=PROMPT).apply([{"x": name} for name in NAMES]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_prompts_are_sent_side_by_side(name: str, is_streaming: bool, service: Service) -> None:
    call = CALLS[name](chat(service, streaming=is_streaming))
    report = asked_side_by_side(service, RunnableLambda(call), "say one", "say three")
    assert report.hosted_hits >= 3


class Strict(BaseCallbackHandler):
    raise_error = True

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.2)  # time enough to ask
        raise PermissionError


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.heard.append(token)


def test_nothing_is_sent_where_a_handler_refuses(service: Service) -> None:
    llm = chat(service)
    fast = optimize(RunnableLambda(lambda x: texts(llm.generate(messages(), callbacks=[Strict()]))))
    with counted(service) as made, pytest.raises(PermissionError):
        fast.invoke("")
    assert not made


@pytest.mark.parametrize("callbacks", [[[]], []])
def test_nothing_is_sent_behind_what_the_client_or_langchain_refuses(callbacks: list[Any], service: Service) -> None:
    service.lasts_s = 0.05
    llm = chat(service)
    given = [*messages()[:2], [RemoveMessage(id="1")], *messages()[2:]]

    def call(x: Any) -> Any:
        try:
            return texts(llm.generate(given, callbacks=callbacks))
        except (AttributeError, TypeError) as e:
            time.sleep(0.2)  # time enough to ask
            return type(e)

    with counted(service) as original:
        plain = call("")
    with counted(service) as made:
        assert optimize(RunnableLambda(call)).invoke("") == plain
    assert made == original


def test_a_limit_of_requests_at_once_is_kept(service: Service) -> None:
    llm = chat(service)
    fast = optimize(RunnableLambda(lambda x: texts(llm.generate(messages()))))
    fast.invoke("", {"max_concurrency": 1})
    assert not optimized(fast).reports[-1].hosted_hits


def test_models_of_a_class_that_is_made_later_share_early_requests(service: Service) -> None:
    made: list[Any] = [chat(service)]
    asked: list[str] = []
    fast = optimize(RunnableLambda(lambda x: texts(made[-1].generate(messages()))))

    @pure
    class Late(BaseChatModel):
        _llm_type = "late"

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            asked.append(messages[0].content)
            time.sleep(0.05)
            return ChatResult(generations=[ChatGeneration(message=AIMessage(messages[0].content))])

    made.append(Late())
    assert fast.invoke("") == [f"say {name}" for name in NAMES]
    assert sorted(asked) == sorted(f"say {name}" for name in NAMES)
    assert optimized(fast).reports[-1].hits >= 3


def test_who_hears_tokens_hears_those_of_the_only_requests(service: Service) -> None:
    llm = chat(service, streaming=True)

    def call(x: Any) -> Any:
        heard = Heard()
        return texts(llm.generate(messages(), callbacks=[heard])), heard.heard

    with counted(service) as original:
        plain = call("")
    with counted(service) as made:
        assert optimize(RunnableLambda(call)).invoke("") == plain
    assert made == original
    assert plain[1]


@pytest.mark.parametrize(
    "settings", [{"cache": InMemoryCache()}, {"rate_limiter": InMemoryRateLimiter(requests_per_second=1e6)}]
)
def test_models_with_a_cache_or_a_limit_are_left_to_the_framework(settings: dict[str, Any], service: Service) -> None:
    llm = chat(service, **settings)
    fast = optimize(RunnableLambda(lambda x: texts(llm.generate(messages()))))
    with counted(service) as made:
        fast.invoke("")
    assert set(made.values()) == {1 if "cache" in settings else 2, 1}
    assert not optimized(fast).reports[-1].hosted_hits
