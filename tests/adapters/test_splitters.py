"""Splitters of texts in nodes: what is asked about each piece is known before the run; nothing of the user's runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.documents import Document
from langchain_text_splitters import CharacterTextSplitter, RecursiveCharacterTextSplitter
from langgraph.graph import START, StateGraph

from teola_plugin.adapters.langchain.reading_splitters import _pieces
from tests.adapters.langgraph.test_langgraph import llm
from tests.support.langgraph_reading import Found, read

TEXT = "one two three\n\nfour five six\nseven eight nine ten"
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=14, chunk_overlap=2)
MEASURED: list[str] = []


class State(TypedDict, total=False):
    text: str
    found: Any


def measured(text: str) -> int:
    MEASURED.append(text)
    return len(text)


class Loud(RecursiveCharacterTextSplitter):
    def split_text(self, text: str) -> list[str]:
        MEASURED.append(text)
        return super().split_text(text)


MEASURING = RecursiveCharacterTextSplitter(chunk_size=14, chunk_overlap=2, length_function=measured)
LOUD = Loud(chunk_size=14, chunk_overlap=2)
PATTERN = RecursiveCharacterTextSplitter(["(a+)+$"], chunk_size=14, chunk_overlap=2, is_separator_regex=True)
LINES = CharacterTextSplitter(separator="\n", chunk_size=4, chunk_overlap=0)


def made(state: State) -> dict[str, Any]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=14, chunk_overlap=2, length_function=len)
    return {"found": [llm.invoke(piece).content for piece in splitter.split_text(state["text"])]}


def shared(state: State) -> dict[str, Any]:
    return {"found": [llm.invoke(piece).content for piece in SPLITTER.split_text(state["text"])]}


def of_documents(state: State) -> dict[str, Any]:
    documents = SPLITTER.split_documents([Document(state["text"], metadata={"page": 1})])
    return {"found": [llm.invoke(f"{d.page_content} {d.metadata['page']}").content for d in documents]}


def of_texts(state: State) -> dict[str, Any]:
    documents = SPLITTER.create_documents([state["text"]], metadatas=[{"page": 2}])
    return {"found": [llm.invoke(f"{d.page_content} {d.metadata['page']}").content for d in documents]}


def of_a_reply(state: State) -> dict[str, Any]:
    pieces = SPLITTER.split_text(llm.invoke("draft").content)
    return {"found": [llm.invoke(piece).content for piece in pieces]}


def refused(state: State) -> dict[str, Any]:
    try:
        RecursiveCharacterTextSplitter(chunk_size=2, chunk_overlap=3)
    except ValueError:
        return {"found": llm.invoke("smaller").content}
    return {}


def by_a_function(state: State) -> dict[str, Any]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=14, chunk_overlap=2, length_function=measured)
    return {"found": [llm.invoke(piece).content for piece in splitter.split_text(state["text"])]}


def by_a_pattern(state: State) -> dict[str, Any]:
    splitter = RecursiveCharacterTextSplitter(["(a+)+$"], chunk_size=14, is_separator_regex=True, chunk_overlap=2)
    return {"found": [llm.invoke(piece).content for piece in splitter.split_text(state["text"])]}


def of_much(state: State) -> dict[str, Any]:
    return {"found": [llm.invoke(piece).content for piece in SPLITTER.split_text(state["text"] * 20_000)]}


def held(splitter: Any) -> Callable[[State], dict[str, Any]]:
    def node(state: State) -> dict[str, Any]:
        return {"found": [llm.invoke(piece).content for piece in splitter.split_text(state["text"])]}

    return node


def graph_of(node: Callable[[State], dict[str, Any]]) -> Any:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile()


def reading(node: Callable[[State], dict[str, Any]]) -> Found:
    return read(
        graph_of(node), {"text": TEXT}, answer=lambda prompt: "a reply of two words" if prompt == "draft" else "x"
    )


@pytest.mark.parametrize("node", [made, shared, of_documents, of_texts, of_a_reply, refused])
def test_pieces_are_asked_about_at_once(node: Callable[[State], dict[str, Any]]) -> None:
    found = reading(node)
    assert not found.barrier
    pieces = SPLITTER.split_text("a reply of two words" if node is of_a_reply else TEXT)
    expected = {
        of_documents: [[f"{piece} 1" for piece in pieces]],
        of_texts: [[f"{piece} 2" for piece in pieces]],
        of_a_reply: [["draft"], pieces],
        refused: [["smaller"]],
    }
    assert found.rounds == [sorted(each) for each in expected.get(node, [pieces])]


@pytest.mark.parametrize(
    "node", [by_a_function, by_a_pattern, held(MEASURING), held(LOUD), held(PATTERN), held(LINES), of_much]
)
def test_code_of_the_user_s_and_what_takes_long_is_left_to_the_run(node: Callable[[State], dict[str, Any]]) -> None:
    MEASURED.clear()
    found = reading(node)
    assert found.barrier
    assert not found.asked
    assert not MEASURED


def test_a_splitter_that_was_changed_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    split_text = eval("lambda self, text: MEASURED.append(text) or [text]", {"MEASURED": MEASURED})
    MEASURED.clear()
    monkeypatch.setattr(RecursiveCharacterTextSplitter, "split_text", split_text)
    assert reading(shared).barrier
    assert reading(made).barrier
    assert not MEASURED


def test_texts_and_documents_of_the_state_stay_as_they_are() -> None:
    document = Document(TEXT, metadata={"page": [1]})

    def node(state: State) -> dict[str, Any]:
        pieces = SPLITTER.split_documents(state["found"])
        for piece in pieces:
            piece.metadata["page"].append(2)
        return {"text": llm.invoke(f"{pieces[-1].metadata}").content}

    assert read(graph_of(node), {"found": [document]}).rounds == [["{'page': [1, 2]}"]]
    assert document.metadata == {"page": [1]}


def in_turn(state: State) -> dict[str, Any]:
    said = ""
    for piece in RecursiveCharacterTextSplitter(chunk_size=13, chunk_overlap=2).split_text(state["text"]):
        said = llm.invoke(f"{said} {piece}").content
    return {"found": said}


def of_large_chunks(state: State) -> dict[str, Any]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=40_000, chunk_overlap=10)
    return {"found": [llm.invoke(piece).content for piece in splitter.split_text("a word " * 6_000)]}


def of_small_chunks(state: State) -> dict[str, Any]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=21_000, chunk_overlap=10)
    return {"found": [llm.invoke(piece[:10]).content for piece in splitter.split_text("a word\n\n" * 3_000)]}


def test_a_text_is_cut_once_for_all_readings() -> None:
    before = _pieces.cache_info().misses
    found = reading(in_turn)
    assert len(found.rounds) == len(RecursiveCharacterTextSplitter(chunk_size=13, chunk_overlap=2).split_text(TEXT))
    assert _pieces.cache_info().misses == before + 1


def test_a_text_that_takes_long_is_left_to_the_run() -> None:
    assert reading(of_large_chunks).barrier == "it computes for too long"
    assert len(reading(of_small_chunks).rounds) == 1
