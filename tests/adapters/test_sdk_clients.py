"""OpenAI's own clients in functions: requests in turn are sent at once, and nobody else's client is touched."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypedDict
from unittest import mock

import httpx
import openai
import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import AzureChatOpenAI, ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.embeddings.openai import OpenAIEmbedding as LlamaIndexEmbedding
from openai import AsyncOpenAI, AzureOpenAI, OpenAI
from openai.resources.chat.completions import Completions
from pydantic import BaseModel, field_validator

from teola_plugin import optimize
from teola_plugin.adapters import sdk_clients
from teola_plugin.adapters.interception import interception
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Stalled
from teola_plugin.engines import Done
from teola_plugin.seams import Reply, active
from tests.adapters.reader.langchain_reading import Recording, read
from tests.support.hosted_service import Service, asked_side_by_side, counted

RAN: list[Any] = []


class State(TypedDict, total=False):
    plan: str
    found: list[str]
    said: str


class Parts(BaseModel):
    parts: list[str]


class Checked(BaseModel):
    parts: list[str]

    @field_validator("parts")
    @classmethod
    def checked(cls, value: list[str]) -> list[str]:
        RAN.append(value)
        return value


@pytest.fixture(autouse=True)
def _nothing_of_the_users_runs_early() -> Iterator[None]:
    RAN.clear()
    with interception.installed():
        sdk_clients.instrument_loaded()
        yield
    assert not RAN


def user(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def settings(service: Service) -> dict[str, Any]:
    return {"api_key": "none", "base_url": service.url, "max_retries": 0}


def app_of(ask: Callable[[str], Any]) -> Any:
    """A model plans, is asked about each part in a loop, and is told what was found."""

    def plan(state: State) -> dict[str, Any]:
        return {"plan": ask("Split it.")}

    def research(state: State) -> dict[str, Any]:
        found = []
        for part in state["plan"].split("\n"):
            said = ask(part)
            found.append(said.strip())
        return {"found": found}

    def say(state: State) -> dict[str, Any]:
        return {"said": ask("\n".join(state["found"]))}

    builder = StateGraph(State).add_node("planned", plan).add_node("finding", research).add_node("saying", say)
    builder.add_edge(START, "planned").add_edge("planned", "finding").add_edge("finding", "saying")
    return builder.add_edge("saying", END).compile()


def made_before(service: Service) -> Callable[[str], Any]:
    client = OpenAI(**settings(service))

    def ask(text: str) -> Any:
        reply = client.chat.completions.create(model="m", messages=user(text), temperature=0)
        return reply.choices[0].message.content

    return ask


def made_for_each(service: Service) -> Callable[[str], Any]:
    given = settings(service)
    return lambda text: (
        openai.OpenAI(**given).chat.completions.create(messages=user(text), model="m").choices[0].message.content
    )


def of_azure(service: Service) -> Callable[[str], Any]:
    client = AzureOpenAI(azure_endpoint=service.url, api_key="none", api_version="1")
    return lambda text: client.chat.completions.create(model="m", messages=user(text)).choices[0].message.content


@pytest.mark.parametrize("make", [made_before, made_for_each, of_azure])
def test_requests_in_turn_run_side_by_side(service: Service, make: Any) -> None:
    asked_side_by_side(service, app_of(make(service)), "chat hive 1", "chat hive 3")


def test_awaited_requests_in_turn_run_side_by_side(service: Service) -> None:
    async def research(state: State) -> dict[str, Any]:
        client = AsyncOpenAI(**settings(service))
        found = []
        for part in ("a", "b", "c"):
            reply = await client.chat.completions.create(model="m", messages=user(part))
            found.append(reply.choices[0].message.content)
        return {"found": found}

    app = StateGraph(State).add_node("finding", research).add_edge(START, "finding").add_edge("finding", END).compile()
    asked_side_by_side(service, app, "chat a", "chat c", lambda app: asyncio.run(app.ainvoke({})))


class Answering:
    """An object that asks by a method of its own, and keeps what it was asked."""

    def __init__(self, service: Service) -> None:
        self.client = OpenAI(**settings(service))
        self.history: list[str] = []

    def answer(self, text: str) -> Any:
        reply = self.client.chat.completions.create(model="m", messages=user(text))
        self.history.append(text)
        return reply.choices[0].message.content

    def run(self, given: Any) -> Any:
        return [self.answer(each) for each in ("a", "b", "c")]


def test_a_function_of_a_chain_asks_side_by_side(service: Service) -> None:
    asked_side_by_side(service, RunnableLambda(Answering(service).run), "chat a", "chat c")


class Asking(Workflow):  # type: ignore[misc]
    client: Any = None

    @step
    async def ask(self, event: StartEvent) -> StopEvent:
        found = []
        for part in ("a", "b", "c"):
            reply = self.client.chat.completions.create(model="m", messages=user(part))
            found.append(reply.choices[0].message.content)
        return StopEvent(result=found)


def test_steps_of_llamaindex_ask_side_by_side(service: Service) -> None:
    flow = Asking()
    flow.client = OpenAI(**settings(service))

    async def run(flow: Any) -> Any:
        return await flow.run()

    asked_side_by_side(service, flow, "chat a", "chat c", lambda flow: asyncio.run(run(flow)))


# --- what is read ----------------------------------------------------------------------------------------------------


def split_by_class(client: Any, text: str) -> Any:
    reply = client.beta.chat.completions.parse(model="m", messages=user(text), response_format=Parts)
    return [client.embeddings.create(model="e", input=each).data[0].embedding for each in split(reply)]


def split(reply: Any) -> Any:
    return reply.choices[0].message.parsed.parts


def responses(client: Any, text: str) -> Any:
    return [client.responses.create(model="m", input=each).output_text for each in text.split()]


def about_a_reply(client: Any, text: str) -> Any:
    reply = client.chat.completions.create(model="m", messages=user(text))
    second = client.chat.completions.create(model="m", messages=user("other"))
    messages = [*user(text), reply.choices[0].message, *user(f"{second.choices[0].message.content}?")]
    return client.chat.completions.create(model="m", messages=messages).choices[0].message.content, reply.model


@pytest.mark.parametrize(
    ("program", "text", "rounds"),
    [(split_by_class, "Split", [1, 2]), (responses, "a b c", [3]), (about_a_reply, "a", [2, 1])],
)
def test_what_is_asked_is_known(service: Service, program: Any, text: str, rounds: list[int]) -> None:
    client = OpenAI(**settings(service))
    service.reply_to = _replying(service.reply_to)  # type: ignore[method-assign]
    found = read(lambda text: program(client, text), text)
    assert (found.shown, found.stopped) == (rounds, "")
    assert all(map(all, found.certain))
    assert found.value == program(client, text)


def _replying(before: Any) -> Any:
    def reply_to(path: str, given: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/responses"):
            said = {"type": "output_text", "text": f"<{given['input']}>", "annotations": []}
            message = {"type": "message", "id": "1", "role": "assistant", "status": "completed", "content": [said]}
            return {"id": "1", "object": "response", "created_at": 1, "model": "m", "output": [message], "tools": []}
        reply: dict[str, Any] = before(path, given)
        if "response_format" in given:
            reply["choices"][0]["message"]["content"] = json.dumps({"parts": ["a", "b"]})
        return reply

    return reply_to


def strip_at_once(client: Any, text: str) -> Any:
    one = client.chat.completions.create(model="m", messages=user(text)).choices[0].message.content.strip()
    return one, client.embeddings.create(model="e", input="x")


def test_a_reply_may_have_no_text(service: Service) -> None:
    """A model that calls a tool, or refuses, says nothing: the program may raise."""
    client = OpenAI(**settings(service))
    found = read(lambda text: strip_at_once(client, text), "a")
    assert found.certain[0] == [True, False]


# --- what is not read ------------------------------------------------------------------------------------------------


class Counting(OpenAI):
    def post(self, *args: Any, **kwargs: Any) -> Any:
        RAN.append(args)
        return super().post(*args, **kwargs)


def hooked(service: Service) -> Any:
    return OpenAI(**settings(service), http_client=httpx.Client(event_hooks={"request": [RAN.append]}))


def replaced(service: Service) -> Any:
    client = OpenAI(**settings(service))
    client.chat.completions.create = lambda **kwargs: RAN.append(kwargs)  # type: ignore[method-assign,assignment]
    return client


def with_a_function(service: Service) -> Any:
    return OpenAI(**{**settings(service), "api_key": lambda: RAN.append("key") or "none"})


def with_a_bound_function(service: Service) -> Any:
    return OpenAI(**{**settings(service), "api_key": partial(RAN.append, "key")})


def with_a_token(service: Service) -> Any:
    token = partial(RAN.append, "token")
    return AzureOpenAI(azure_endpoint=service.url, azure_ad_token_provider=token, api_version="1")  # type: ignore[arg-type]


def with_a_sender(service: Service) -> Any:
    client = OpenAI(**settings(service))
    client.request = lambda *args, **kwargs: RAN.append(args)  # type: ignore[method-assign,assignment]
    return client


@pytest.mark.parametrize(
    "make",
    [
        hooked, replaced, with_a_function, with_a_bound_function, with_a_token, with_a_sender,
        lambda service: Counting(**settings(service)),
    ],
)  # fmt: skip
def test_clients_with_code_of_the_users_are_left_alone(service: Service, make: Any) -> None:
    client = make(service)
    found = read(lambda text: client.chat.completions.create(model="m", messages=user(text)), "a")
    assert found.stopped
    assert not service.asked


@pytest.mark.parametrize(
    "given",
    [{"stream": True}, {"store": True}, {"extra_body": {"stream": True}}, {"extra_headers": {"a": "b"}}],
)
def test_requests_that_are_no_whole_replies_are_left_alone(service: Service, given: dict[str, Any]) -> None:
    client = OpenAI(**settings(service))
    found = read(lambda text: client.chat.completions.create(model="m", messages=user(text), **given), "a")
    assert "not read" in found.stopped
    assert not service.asked


def test_a_class_with_a_check_of_its_own_is_not_made(service: Service) -> None:
    client = OpenAI(**settings(service))
    found = read(
        lambda text: client.chat.completions.parse(model="m", messages=user(text), response_format=Checked), "a"
    )
    assert "code of its own" in found.stopped
    assert not service.asked


def test_a_method_that_a_test_replaced_is_not_called(service: Service) -> None:
    client = OpenAI(**settings(service))
    with mock.patch.object(Completions, "create", side_effect=RAN.append):
        found = read(lambda text: client.chat.completions.create(model="m", messages=user(text)), "a")
    assert "not read" in found.stopped


def test_a_method_that_was_put_back_without_ours_is_not_asked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's own request would not take the reply."""
    client = OpenAI(**settings(service))
    monkeypatch.setattr(Completions, "create", vars(Completions.create)["__teola_original__"])
    run = Run(LangChainAsker())
    ask = run.load(lambda text: client.chat.completions.create(model="m", messages=user(text)))
    with pytest.raises(Barrier, match="not read"):
        call(run, ask, ("a",), {})


@pytest.mark.parametrize("given", [{}, {"model": "m", "mesages": []}, {"model": 1, "messages": []}])
def test_what_the_client_may_refuse_comes_before_nothing(service: Service, given: dict[str, Any]) -> None:
    client = OpenAI(**settings(service))

    def program(text: str) -> Any:
        return client.chat.completions.create(**given), client.embeddings.create(model="e", input=text)

    run = Run(LangChainAsker())
    with suppress(Stalled):
        call(run, run.load(program), ("a",), {})
    assert [ask.is_certain for ask in run.asks.values()] == [True, False]


# --- the framework's side --------------------------------------------------------------------------------------------


class Claiming(Recording):
    """A session whose early reply is there already."""

    def __init__(self, reply: Any) -> None:
        super().__init__()
        self.payloads: list[Any] = []
        self._reply = Reply()
        self._reply.put(Done(reply))

    def claim(self, spec: Any, op: str, payload: Any, settings: Any) -> tuple[Reply, bool]:
        self.payloads.append(payload)
        return self._reply, False


def test_reader_and_program_get_copies_of_their_own(service: Service) -> None:
    client = OpenAI(**settings(service))
    reply = client.chat.completions.create(model="m", messages=user("a"))
    with active(Claiming(reply)):
        client.chat.completions.create(model="m", messages=user("a")).choices.clear()
        again = client.chat.completions.create(model="m", messages=user("a"))
    assert again == reply
    assert again.choices
    assert again is not reply


def test_requests_are_told_apart(service: Service) -> None:
    """By what is asked, and by the settings of the client; a client made anew with equal settings is the same."""
    given = settings(service)
    clients = [OpenAI(**given, **more) for more in ({}, {"timeout": 3}, {"default_headers": {"a": "b"}}, {})]
    session = Claiming(None)
    with active(session):
        for client in clients:
            client.chat.completions.create(model="m", messages=user("a"))
        for more in ({"n": 2}, {"temperature": 0}, {"temperature": 0.0}, {"stop": ["a"]}):
            clients[0].chat.completions.create(model="m", messages=user("a"), **more)  # type: ignore[call-overload]
    keys = [each.key for each in session.payloads]
    assert keys[0] == keys[3]
    assert len(set(keys)) == len(keys) - 1


class Noting(Recording):
    """A session that notes the operations asked."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def claim(self, spec: Any, op: str, payload: Any, settings: Any) -> tuple[Reply, bool]:
        self.ops.append(op)
        return Reply(), True


def test_a_model_of_langchain_asks_as_a_whole(service: Service) -> None:
    model = ChatOpenAI(model="m", **settings(service))
    session = Noting()
    with active(session):
        assert model.invoke("a").content == "<a>"
        assert model.root_client.with_raw_response.chat.completions.create(model="m", messages=user("a")).parse()
        assert "tool" not in session.ops
        model.root_client.chat.completions.create(model="m", messages=user("a"))
    assert session.ops[-1:] == ["tool"]


def test_models_that_use_a_client_directly_ask_as_a_whole(service: Service) -> None:
    session = Noting()
    given = settings(service)
    with active(session):
        OpenAIEmbeddings(model="e", check_embedding_ctx_length=False, **given).embed_query("a")
        LlamaIndexEmbedding(api_key="none", api_base=service.url).get_text_embedding("a")
    assert "tool" not in session.ops


def test_a_function_for_a_token_runs_where_the_original_runs_it(service: Service) -> None:
    """A model of LangChain's whose client calls a partial of a function before each request."""
    ran_in: list[threading.Thread] = []

    def token(name: str) -> str:
        ran_in.append(threading.current_thread())
        return name

    llm: Any = AzureChatOpenAI(
        azure_endpoint=service.url, azure_deployment="m", api_version="1", azure_ad_token_provider=partial(token, "t")
    )
    app = RunnableLambda(lambda text: [llm.invoke(f"{text} {n}").content for n in range(3)])
    plain, before = app.invoke("a"), [*ran_in]
    fast = optimize(app)
    for _ in range(3):
        ran_in.clear()
        assert fast.invoke("a") == plain
        assert ran_in == before


def moving(client: Any) -> Callable[[str], list[Any]]:
    """A function that sends the second half of its requests elsewhere."""

    def ask(given: str) -> list[Any]:
        found = []
        for n in range(4):
            if n == 2:
                client.base_url = f"{client.base_url}other/"
            found.append(client.chat.completions.create(model="m", messages=user(f"{given} {n}")))
        client.base_url = str(client.base_url).removesuffix("other/")
        return [each.choices[0].message.content for each in found]

    return ask


def patching(client: Any) -> Callable[[str], list[Any]]:
    """A function that has a part of its requests noted, by a replaced method."""

    def ask(given: str) -> list[Any]:
        def create(self: Any, **kwargs: Any) -> Any:
            noted.append(kwargs["messages"][0]["content"])
            return before(self, **kwargs)

        noted: list[Any] = []
        found = [client.chat.completions.create(model="m", messages=user(f"{given} {n}")) for n in range(2)]
        before = Completions.create
        with mock.patch.object(Completions, "create", create):
            found += [client.chat.completions.create(model="m", messages=user(f"{given} {n}")) for n in (2, 3)]
        return [*noted, *(each.choices[0].message.content for each in found)]

    return ask


def moving_in_rounds(client: Any) -> Callable[[str], list[Any]]:
    """A function that sends the requests of each round elsewhere."""

    def ask(given: str) -> list[Any]:
        found, before = [], str(client.base_url)
        for n in range(3):
            client.base_url = f"{before}{n}/"
            found += [client.chat.completions.create(model="m", messages=user(f"{given} {each}")) for each in range(3)]
        client.base_url = before
        return [each.choices[0].message.content for each in found]

    return ask


def moving_within_rounds(client: Any) -> Callable[[str], list[Any]]:
    """A function that sends some requests of each round elsewhere."""

    def ask(given: str) -> list[Any]:
        found, before = [], str(client.base_url)
        for n in range(3):
            found.append(client.chat.completions.create(model="m", messages=user(given)))
            client.base_url = f"{before}other/" if n else before
            found.append(client.chat.completions.create(model="m", messages=user(given)))
            found.append(client.chat.completions.create(model="m", messages=user(f"{given} {n}")))
            client.base_url = before
        return [each.choices[0].message.content for each in found]

    return ask


def moving_two(client: Any) -> Callable[[str], list[Any]]:
    """A function with a second client, which is sent elsewhere in each round."""
    other = client.with_options(timeout=50)

    def ask(given: str) -> list[Any]:
        found, before = [], str(other.base_url)
        for n in range(4):
            if n != 1:
                other.base_url = f"{before}{n}/"
            found.append(client.chat.completions.create(model="m", messages=user(given)))
            found.append(other.chat.completions.create(model="m", messages=user(given)))
            found.append(client.chat.completions.create(model="m", messages=user(f"{given} {n // 2}")))
            found.append(other.chat.completions.create(model="m", messages=user(f"{given} {n // 2}")))
        other.base_url = before
        return [each.choices[0].message.content for each in found]

    return ask


MOVING = [moving, patching, moving_in_rounds, moving_within_rounds, moving_two]


@pytest.mark.parametrize("make", MOVING)
def test_a_change_on_the_way_asks_nothing_twice(service: Service, make: Any) -> None:
    """What was foreseen, and read again with the settings from behind the change, is another request."""
    app = RunnableLambda(make(OpenAI(**settings(service))))
    with counted(service) as original:
        plain = app.invoke("a")
    fast = optimize(app)
    for _ in range(6):
        with counted(service) as made:
            assert fast.invoke("a") == plain
        assert made == original


def test_nothing_of_a_reply_is_taken_for_granted(service: Service) -> None:
    client = OpenAI(**settings(service))

    def program(text: str) -> Any:
        choice = client.chat.completions.create(model="m", messages=user(text)).choices[0]
        return client.embeddings.create(model="e", input=f"{choice.index} {choice.message.role}")

    assert read(program, "a").shown == [1, 1]


def test_no_request_is_lost_or_repeated_when_the_service_fails(service: Service) -> None:
    app = app_of(made_before(service))
    fast = optimize(app)
    fast.invoke({})
    service.fails = "hive 2"
    with counted(service) as original, pytest.raises(openai.BadRequestError):
        app.invoke({})
    with counted(service) as made, pytest.raises(openai.BadRequestError):
        fast.invoke({})
    assert original - made == {}
    assert sum((made - original).values()) <= 1  # the third, under way when the second failed


def test_all_is_put_back() -> None:
    create = Completions.create
    with interception.installed():
        assert hasattr(Completions.create, "__teola_original__")
    assert Completions.create is create


def _names_another_key(client: OpenAI) -> None:
    client.api_key = "other"


def _names_another_key_by_setattr(client: OpenAI) -> None:
    setattr(client, "api_key", "other")  # noqa: B010  another way in the reader


@pytest.mark.parametrize("change", [_names_another_key, _names_another_key_by_setattr])
def test_a_client_that_the_function_changes_is_asked_once(service: Service, change: Callable[[OpenAI], None]) -> None:
    client = OpenAI(**settings(service))

    def told(text: str) -> Any:
        return client.chat.completions.create(model="m", messages=user(text)).choices[0].message.content

    def answer(text: str) -> Any:
        first = told(f"{text} 1")
        change(client)
        return first, told(f"{text} 2"), told(f"{text} 3")

    app = RunnableLambda(answer) | RunnableLambda(lambda found: found)
    fast = optimize(app)
    for pipeline in (app, fast, fast):
        client.api_key = "none"
        with counted(service) as asked:
            pipeline.invoke("hives")
        if pipeline is app:
            original = asked
        assert asked == original
