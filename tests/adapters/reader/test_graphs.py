"""Graphs of networkx: adding to them holds nothing back, and what they hold is not known."""

from __future__ import annotations

import json
from typing import Any

import networkx
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, SecretStr

from teola_plugin import reads
from tests.adapters.reader.langchain_reading import hosted, read
from tests.support.hosted_service import Service, asked_side_by_side

LLM = hosted()
KINDS = [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph]


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_a_function_fills(kind: Any) -> None:
    def fill(x: str) -> Any:
        graph = kind()
        for each in x:
            reply = LLM.invoke(each).content
            graph.add_node(reply, text=each, found=[reply])
            graph.add_edge(each, reply, relation=reply)
        if graph.number_of_nodes() > 9 or graph.number_of_edges() == 0:
            return "odd"
        return LLM.invoke("sum").content

    assert read(fill, "ab").certain[0] == [True, True, False]


@reads("graph")
def size_of(graph: Any) -> int:
    return len(graph)


def test_a_graph_of_outside_is_filled_by_the_run_alone(service: Service) -> None:
    llm = ChatOpenAI(model="m", api_key=SecretStr("key"), base_url=service.url, max_retries=0)
    graph = networkx.Graph()

    def fill(text: str) -> Any:
        for each in ("a", "b"):
            graph.add_edge(each, llm.invoke(f"{text} {each}").content)
        return llm.invoke(f"{text} {size_of(graph)}").content

    def call(made: Any) -> Any:
        graph.clear()
        return made("hive"), list(graph.edges)

    asked_side_by_side(service, fill, "hive a", "hive b", call)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_graph_is_filled(kind: Any) -> None:
    given = kind([("a", "b")])

    def fill(x: str) -> Any:
        graph = given.copy()
        for each in x:
            graph.add_edge(each, LLM.invoke(each).content)
        other = graph.copy()
        other.add_node(LLM.invoke("more").content)
        return LLM.invoke("sum").content

    assert read(fill, "ab").certain[0] == [True, True, True, True]


@pytest.mark.parametrize("node", [lambda reply: json.loads(reply), lambda reply: [reply], lambda reply: None])
def test_what_may_be_no_node_holds_back_what_follows(node: Any) -> None:
    def fill(x: str) -> Any:
        graph = networkx.Graph()
        graph.add_node(node(LLM.invoke(x).content))
        return LLM.invoke("next").content

    assert read(fill, "a").certain[0] != [True, True]


class Frozen(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    graph: networkx.Graph = networkx.freeze(networkx.Graph())


class Counting(networkx.Graph):  # type: ignore[type-arg]
    def add_node(self, node: Any, **attributes: Any) -> None:
        raise ValueError(node)


class Hidden(networkx.Graph):  # type: ignore[type-arg]
    """A class that says that it is networkx's own, and is frozen as it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.add_node = networkx.frozen


Hidden.__module__ = "networkx.classes.graph"


def in_a_frozen_one(reply: str) -> None:
    Frozen().graph.add_node(reply)


def in_one_of_the_program_s(reply: str) -> None:
    Counting().add_node(reply)


def in_a_hidden_one(reply: str) -> None:
    Hidden().add_node(reply)


def in_one_of_a_reply(reply: str) -> None:
    graph: Any = networkx.Graph()
    if reply == "yes":
        graph = networkx.Graph()
    graph.add_node(reply)


@pytest.mark.parametrize("add", [in_a_frozen_one, in_one_of_the_program_s, in_a_hidden_one, in_one_of_a_reply])
def test_a_graph_that_may_raise_or_be_another_s_holds_back_what_follows(add: Any) -> None:
    def fill(x: str) -> Any:
        add(LLM.invoke(x).content)
        return LLM.invoke("next").content

    assert read(fill, "a").certain[0] != [True, True]


def raises(node: Any) -> bool:
    raise ValueError(node)


VIEW = networkx.subgraph_view(networkx.Graph([("a", "b")]), filter_node=raises)


def in_an_edge_with_a_key_without_a_hash(reply: str) -> None:
    networkx.MultiGraph().add_edge("a", reply, key=reply.split())


def with_an_attribute_of_the_name_of_the_node(reply: str) -> None:
    networkx.Graph().add_node(reply, **{"node_for_adding": reply})


def with_an_attribute_of_the_name_of_an_end(reply: str) -> None:
    networkx.DiGraph().add_edge(reply, "a", **{"u_of_edge": reply})


def in_the_nodes_that_a_view_shows(reply: str) -> None:
    VIEW.number_of_nodes()


def in_the_edges_that_a_view_shows(reply: str) -> None:
    VIEW.size()


def in_the_copy_of_a_view(reply: str) -> None:
    VIEW.copy()


def in_a_view_for_a_copy(reply: str) -> None:
    networkx.Graph().copy(as_view=True).add_node(reply)


def in_one_of_the_program_s_that_copies(reply: str) -> None:
    Copying().copy().add_node(reply)


class Copying(networkx.Graph):  # type: ignore[type-arg]
    def copy(self, as_view: bool = False) -> Any:
        return networkx.freeze(super().copy())


@pytest.mark.parametrize(
    "use",
    [
        in_the_copy_of_a_view,
        in_a_view_for_a_copy,
        in_one_of_the_program_s_that_copies,
        in_an_edge_with_a_key_without_a_hash,
        with_an_attribute_of_the_name_of_the_node,
        with_an_attribute_of_the_name_of_an_end,
        in_the_nodes_that_a_view_shows,
        in_the_edges_that_a_view_shows,
    ],
)
def test_what_raises_in_a_graph_holds_back_what_follows(use: Any) -> None:
    def fill(x: str) -> Any:
        use(LLM.invoke(x).content)
        return LLM.invoke("next").content

    assert read(fill, "a").certain[0] != [True, True]


def test_a_key_that_is_a_text_holds_nothing_back() -> None:
    def fill(x: str) -> Any:
        reply = LLM.invoke(x).content
        networkx.MultiDiGraph().add_edge("a", "b", key=reply, found=[reply])
        return LLM.invoke("next").content

    assert read(fill, "a").certain[0] == [True, True]
