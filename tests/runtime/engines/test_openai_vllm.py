"""vLLM's own server, asked through the OpenAI-compatible engine: the answers of the same model in this process."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool

from benchmarks.vllm_server import MODEL, START_S, vllm_server
from teola_plugin import runtime
from teola_plugin.engines import Batch, Completion, Delta, Done, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineError, EngineUnavailable
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.openai import OpenAIEngine
from teola_plugin.runtime.engines.vllm import VllmEngine

pytestmark = [pytest.mark.real, pytest.mark.timeout(START_S + 200)]  # the first test starts the server

GREEDY = {"temperature": 0.0, "ignore_eos": True}
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who dances?"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # see vllm_core.py: one import of vLLM fewer
        with vllm_server(keeps_prefixes=True) as url:
            yield url


@pytest.fixture
def engine(url: str) -> Iterator[OpenAIEngine]:
    engine = OpenAIEngine(MODEL, url)
    yield engine
    on_host(engine.close())


def on_host(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, runtime.host.loop).result()


def run(engine: Any, op: str, *items: Item | str, **settings: Any) -> list[Any]:
    """The values of items on the host's loop, where both engines live."""
    told: dict[int, Outcome] = {}
    batch = Batch(op, settings, tuple(i if isinstance(i, Item) else Item(i, id=-n) for n, i in enumerate(items)))
    on_host(engine.run(batch, told.__setitem__))
    for outcome in told.values():
        if isinstance(outcome, Failed):
            raise outcome.error
    return [outcome.value for _, outcome in sorted(told.items()) if isinstance(outcome, Done)]


def decode(engine: Any, *items: Item | str, **settings: Any) -> list[Completion]:
    return run(engine, "decoding", *items, **{**GREEDY, "max_tokens": 12, **settings})


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics") as response:
        lines = response.read().decode()
    return sum(float(number) for number in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", lines, re.MULTILINE))


def hits(url: str) -> float:
    return metric(url, "prefix_cache_hits_total")


def passage(seed: int) -> str:
    """About 700 tokens, whose first block is no other's."""
    return f"Number {seed}. " + "".join(f"Bee {n * seed} met bee {n + seed}. " for n in range(80))


def test_the_server_says_what_it_is(engine: OpenAIEngine) -> None:
    server = on_host(engine.start())
    assert (server.kind, server.models, server.max_model_len, server.keeps_prefixes) == ("vllm", (MODEL,), 4096, True)


@pytest.mark.parametrize(
    "settings", [{}, {"max_tokens": 1}, {"repetition_penalty": 1.3, "min_tokens": 3}, {"logit_bias": {5: 100.0}},
                 {"stop": ["e"]}, {"structured_outputs": {"regex": "[a-c]{5}"}, "ignore_eos": False}], ids=str,
)  # fmt: skip
def test_texts_are_completed_as_in_this_process(
    vllm_engine: VllmEngine, engine: OpenAIEngine, settings: dict[str, Any]
) -> None:
    prompts = ["Who dances?", "Größe 東京 🙂", "Stop here:"]
    here, there = decode(vllm_engine, *prompts, **settings), decode(engine, *prompts, **settings)
    assert there == here
    assert [c.token_ids for c in there] == [c.token_ids for c in here]
    assert [(c.finish_reason, c.prompt_tokens) for c in there] == [(c.finish_reason, c.prompt_tokens) for c in here]
    assert ["".join(c.pieces) for c in there] == here


@tool
def search(query: str) -> str:
    """Find it."""
    return query


def test_chats_are_answered_as_in_this_process(vllm_engine: VllmEngine, engine: OpenAIEngine) -> None:
    (here,), (there,) = (decode(e, e.render_chat(CHAT)) for e in (vllm_engine, engine))
    assert (there, there.token_ids, there.prompt_tokens) == (here, here.token_ids, here.prompt_tokens)
    for tools in ([], [search]):
        said = []
        for e in (vllm_engine, engine):
            model = EngineChatModel(engine=e, max_tokens=12, settings={"ignore_eos": True}).bind_tools(tools)
            message = model.invoke([SystemMessage("Be short."), HumanMessage("Who dances?")])
            said.append((message.content, message.usage_metadata))
        assert said[0] == said[1]


def test_a_tool_that_must_be_called_is_called(engine: OpenAIEngine) -> None:
    model = EngineChatModel(engine=engine, max_tokens=200).bind_tools([search], tool_choice="any")
    message = model.invoke("Who dances?")
    assert message.tool_calls[0]["name"] == "search"
    assert not message.content


def test_abort_in_mid_answer_stops_the_server(engine: OpenAIEngine, url: str) -> None:
    told: list[tuple[int, Outcome]] = []

    async def abort_once_it_writes() -> None:
        items = tuple(Item(f"Number {n}", id=-n) for n in range(4))
        batch = Batch("decoding", {**GREEDY, "max_tokens": 4000}, items)
        work = asyncio.ensure_future(engine.run(batch, lambda position, outcome: told.append((position, outcome))))
        while {position for position, _ in told} != {0, 1, 2, 3}:  # noqa: ASYNC110  the test's own timeout ends it
            await asyncio.sleep(0.01)
        engine.abort([item.id for item in items])
        await work

    on_host(abort_once_it_writes())
    ended = [outcome for _, outcome in told if not isinstance(outcome, Delta)]
    assert [type(outcome.error) for outcome in ended if isinstance(outcome, Failed)] == [Cancelled] * 4
    while metric(url, "num_requests_running") or metric(url, "num_requests_waiting"):
        pass
    assert metric(url, "generation_tokens_total") < 4 * 4000
    assert len(decode(engine, "And then")[0].token_ids) == 12


def test_a_prefix_that_was_computed_ahead_is_found_again(engine: OpenAIEngine, url: str) -> None:
    before = hits(url)
    (answer,) = decode(engine, f"{passage(1)} Who?")
    assert hits(url) == before  # it is new
    assert answer.prompt_tokens > 400
    (computed,) = run(engine, "partial_prefilling", passage(2))
    assert computed > 400
    before = hits(url)
    decode(engine, f"{passage(2)} Who?")
    assert hits(url) - before >= 384  # in blocks of 128


def test_the_prefix_of_a_chat_is_found_again(engine: OpenAIEngine, url: str) -> None:
    messages = [CHAT[0], {"role": "user", "content": f"{passage(3)} Who?"}]
    text = engine.render_chat(messages)
    (computed,) = run(engine, "partial_prefilling", text[: -len("Who?\x04")])
    before = hits(url)
    (answer,) = decode(engine, text)
    assert hits(url) - before >= 384
    assert computed <= answer.prompt_tokens
    before = hits(url)
    decode(engine, Item(text, tenant="another"))
    assert hits(url) == before


def test_what_the_server_refuses_fails_alone(engine: OpenAIEngine) -> None:
    for payload, settings, said in (
        ("word " * 9000, {}, r"400.*the model takes 4096 tokens"),
        ("", {}, "must be provided and non-empty"),  # in this process, BOS alone is a prompt
        ("x", {"temperature": -1}, "temperature"),
        ("x", {"tempreature": 1}, "no setting tempreature"),
        ("x", {"structured_outputs": {"regex": "("}}, "regex|grammar|400"),
    ):
        with pytest.raises(EngineError, match=said):
            decode(engine, payload, **settings)
    with pytest.raises(UnicodeEncodeError):
        decode(engine, "lone \ud800")
    assert len(decode(engine, Item("fine", priority=-3))[0].token_ids) == 12


def test_a_model_that_is_not_served_is_named_with_the_one_that_is(url: str) -> None:
    with pytest.raises(EngineUnavailable, match="no model 'tinny'; it has 'tiny'"):
        on_host(OpenAIEngine("tinny", url).start())
