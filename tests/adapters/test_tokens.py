"""Texts measured in tokens in nodes: read where the table is there, which is not fetched early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
import tiktoken
import tiktoken.registry
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.test_langgraph import llm
from tests.support.langgraph_reading import Found, read

TEXT = "one two three four five six"
MODEL = ChatOpenAI(model="gpt-4", api_key="none")
COUNTED: list[str] = []


own = eval("lambda text: COUNTED.append(text) or [1, 2]", {"COUNTED": COUNTED})
"""A function without source."""


class Own(ChatOpenAI):
    def get_token_ids(self, text: str) -> list[int]:
        return own(text)


GIVEN = ChatOpenAI(model="gpt-4", api_key="none", custom_get_token_ids=own)
WRITTEN = Own(model="gpt-4", api_key="none")
UNKNOWN = ChatOpenAI(model="some-other", api_key="none")
UNLOADED = ChatOpenAI(model="gpt-4o", api_key="none")


class State(TypedDict, total=False):
    text: str
    found: Any


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> tiktoken.Encoding:
    """A table of single characters and of the three letters that come most often."""
    ranks = {bytes([each]): each for each in range(256)} | {b"th": 256, b"re": 257, b"ree": 258}
    made = tiktoken.Encoding(
        "cl100k_base", pat_str=r"\S+|\s", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300}
    )
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {"cl100k_base": made})
    COUNTED.clear()
    return made


def by_the_model(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{MODEL.get_num_tokens(state['text'])} tokens").content}


def ids_of_the_model(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{len(MODEL.get_token_ids(text=state['text']))} tokens").content}


def by_the_table_of_a_model(state: State) -> dict[str, Any]:
    encoding = tiktoken.encoding_for_model("gpt-4")
    return {"found": llm.invoke(f"{len(encoding.encode(state['text']))} tokens").content}


def by_a_table(state: State) -> dict[str, Any]:
    encoding = tiktoken.get_encoding(encoding_name="cl100k_base")
    return {"found": llm.invoke(f"{len(encoding.encode_ordinary(state['text']))} tokens").content}


def of_a_reply(state: State) -> dict[str, Any]:
    texts = [llm.invoke(each).content for each in ("draft", "sketch")]
    return {"found": llm.invoke(f"{sum(MODEL.get_num_tokens(text) for text in texts)} tokens").content}


def counting(model: Any) -> Callable[[State], dict[str, Any]]:
    def node(state: State) -> dict[str, Any]:
        return {"found": llm.invoke(f"{model.get_num_tokens(state['text'])} tokens").content}

    return node


def of_the_end(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{MODEL.get_num_tokens(state['text'] + '<|endoftext|>')} tokens").content}


def of_much(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{MODEL.get_num_tokens(state['text'] * 100_000)} tokens").content}


BOOK = "word " * 30_000


def of_a_book(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{len(tiktoken.encoding_for_model('gpt-4').encode(BOOK))} tokens").content}


def by_another_table(state: State) -> dict[str, Any]:
    return {"found": llm.invoke(f"{len(tiktoken.get_encoding('p50k_base').encode(state['text']))} tokens").content}


def reading(node: Callable[[State], dict[str, Any]]) -> Found:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return read(graph.compile(), {"text": TEXT}, answer=lambda prompt: "three trees")


@pytest.mark.parametrize("node", [by_the_model, ids_of_the_model, by_the_table_of_a_model, by_a_table])
def test_tokens_are_counted_as_the_run_counts_them(
    node: Callable[[State], dict[str, Any]], table: tiktoken.Encoding
) -> None:
    found = reading(node)
    assert (found.rounds, found.barrier) == ([[f"{len(table.encode(TEXT))} tokens"]], "")


def test_tokens_of_replies_are_counted_once_they_are_there(table: tiktoken.Encoding) -> None:
    found = reading(of_a_reply)
    assert found.rounds == [["draft", "sketch"], [f"{2 * len(table.encode('three trees'))} tokens"]]


@pytest.mark.parametrize(
    "node",
    [
        *map(counting, (GIVEN, WRITTEN, UNKNOWN, UNLOADED)), of_the_end, of_much, of_a_book, by_another_table,
    ],
)  # fmt: skip
def test_what_is_counted_otherwise_or_not_here_is_left_to_the_run(node: Callable[[State], dict[str, Any]]) -> None:
    found = reading(node)
    assert found.barrier
    assert not found.asked
    assert not COUNTED


@pytest.mark.parametrize("name", ["get_num_tokens", "get_token_ids", "_get_encoding_model"])
def test_a_model_that_was_changed_is_left_to_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatOpenAI, name, lambda self, *text: own(*text))
    found = reading(by_the_model)
    assert found.barrier
    assert not found.asked
    assert not COUNTED


@pytest.mark.parametrize("is_one", [False, True])
def test_a_table_that_was_changed_is_left_to_the_run(
    is_one: bool, table: tiktoken.Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table if is_one else tiktoken.Encoding, "encode", lambda *given: own(given[-1]))
    assert not reading(by_the_model).asked
    assert not reading(by_the_table_of_a_model).asked
    assert not COUNTED
