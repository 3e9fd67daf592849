"""What a retriever and a query engine in memory find is known in kind, so what stands behind is asked beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import Accumulate, BaseSynthesizer
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from pydantic import BaseModel

from teola_plugin import optimize
from tests.support.hosted_service import Service, asked_side_by_side, counted, served


class World:
    def __init__(self, service: Service) -> None:
        own: dict[str, Any] = {"api_base": service.url, "api_key": "x", "max_retries": 0}
        self.service, self.llm = service, OpenAI(model="gpt-4o-mini", **own)
        self.embeddings = OpenAIEmbedding(**own)
        self.index = VectorStoreIndex.from_documents(
            [Document(text=f"text {n}", metadata={"file": f"f{n}"}) for n in range(3)], embed_model=self.embeddings
        )
        self.retriever, self.engine = self.index.as_retriever(), self.index.as_query_engine(self.llm)

    def of_nodes(self, *nodes: Any) -> Any:
        return VectorStoreIndex([*nodes], embed_model=self.embeddings).as_retriever()

    def said(self) -> Any:
        return self.llm.complete("last").text


@pytest.fixture
def world() -> Iterator[World]:
    with served() as service:
        yield World(service)


def of(form: Callable[[World], Any], world: World) -> Callable[[], Any]:
    def app() -> Any:
        return form(world)

    return app


def asked_until_it_raises(form: Callable[[World], Any], world: World) -> list[Counter[str]]:
    """What the original asks for, and then the optimized function, twice; each raises."""
    plain, found = of(form, world), list[Counter[str]]()
    fast = optimize(plain)
    world.service.lasts_s = 0.1
    for app in (plain, fast, fast):
        with counted(world.service) as asked, pytest.raises(Exception):  # noqa: B017, PT011
            app()
        found.append(asked)
    return found


# --- asked beside ----------------------------------------------------------------------------------------------------


def contents(world: World) -> Any:
    return "\n".join([each.get_content() for each in world.retriever.retrieve("first")]), world.said()


def of_their_nodes(world: World) -> Any:
    return [(each.score, each.node.get_content(), each.node.text) for each in world.retriever.retrieve("first")], (
        world.said()
    )


def texts(world: World) -> Any:
    found = world.retriever.retrieve("first")
    return [f"{each.metadata.get('file')}: {each.text.strip()}" for each in found[:2]], world.said()


def answered(world: World) -> Any:
    return str(world.engine.query("first")).strip(), world.said()


def answered_with_text(world: World) -> Any:
    found: Any = world.engine.query("first")
    return found.response.strip(), [each.node.get_content() for each in found.source_nodes], world.said()


def by_id(world: World) -> Any:
    found = {each.id_: each for each in world.retriever.retrieve("first")}
    return "\n".join([each.get_content() for each in found.values()]), world.said()


def stored_by_id(world: World) -> Any:
    found: dict[str, Any] = {}
    for each in world.retriever.retrieve("first"):
        found[each.id_] = each
    return [each.get_content().strip() for each in found.values()], world.said()


def added_by_id(world: World) -> Any:
    found: dict[str, Any] = {}
    found.update({each.node.node_id: each.node for each in world.retriever.retrieve("first")})
    return [f"{name}: {each.text.strip()}" for name, each in found.items()], world.said()


@pytest.mark.parametrize(
    "form", [contents, of_their_nodes, texts, answered, answered_with_text, by_id, stored_by_id, added_by_id]
)
def test_what_stands_behind_is_asked_beside_it(form: Callable[[World], Any], world: World) -> None:
    asked_side_by_side(world.service, of(form, world), "embed ['first']", "last", lambda app: app())


# --- not asked -------------------------------------------------------------------------------------------------------


def missing_key(world: World) -> Any:
    return [each.metadata["nothing"] for each in world.retriever.retrieve("first")], world.said()


def missing_field(world: World) -> Any:
    return [each.nothing for each in world.retriever.retrieve("first")], world.said()  # type: ignore[attr-defined]


def unlike_a_text(world: World) -> Any:
    return [each.score.strip() for each in world.retriever.retrieve("first")], world.said()  # type: ignore[union-attr]


def text_of_a_document(world: World) -> Any:
    retriever = world.documents  # type: ignore[attr-defined]
    return [each.text for each in retriever.retrieve("first")], world.said()


def by_id_with_others(world: World) -> Any:
    found: dict[str, Any] = {each.id_: each for each in world.retriever.retrieve("first")}
    found["none"] = None
    return [each.get_content() for each in found.values()], world.said()


def by_id_of_another(world: World) -> Any:
    found: dict[str, Any] = {each.id_: each for each in world.retriever.retrieve("first")}
    return found["none"].get_content(), world.said()


@pytest.mark.parametrize(
    "form", [missing_key, missing_field, unlike_a_text, text_of_a_document, by_id_with_others, by_id_of_another]
)
def test_nothing_is_asked_behind_what_raises(form: Callable[[World], Any], world: World) -> None:
    world.documents = world.of_nodes(Document(text="text"))  # type: ignore[attr-defined]
    assert asked_until_it_raises(form, world) == [{"embed ['first'] None": 1}] * 3


def content_of_images(world: World) -> Any:
    found = world.others.retrieve("first")  # type: ignore[attr-defined]
    return [each.get_content() for each in found], world.said()


@pytest.mark.parametrize("kind", ["document", "image", "index"])
def test_of_other_nodes_nothing_is_known(kind: str, world: World) -> None:
    other: Any = {
        "document": Document(text="text"),
        "image": ImageNode(text="text", image="x"),
        "index": IndexNode(text="text", index_id="i", obj=NodeWithScore(node=TextNode(text="inner"), score=1.0)),
    }[kind]
    world.others = world.of_nodes(other)  # type: ignore[attr-defined]
    plain = of(content_of_images, world)
    fast = optimize(plain)
    world.service.lasts_s = 0.1
    with counted(world.service) as original:
        answer = plain()
    for _ in range(2):
        with counted(world.service) as asked:
            assert fast() == answer
        assert asked == original


def test_a_method_that_was_replaced_may_raise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def content(self: Any, **settings: Any) -> str:
        raise ValueError("as planned")

    plain = of(contents, world)
    fast = optimize(plain)
    fast()
    world.service.lasts_s = 0.1
    monkeypatch.setattr(NodeWithScore, "get_content", content)
    for app in (plain, fast, fast):
        with counted(world.service) as asked, pytest.raises(ValueError, match="as planned"):
            app()
        assert asked == {"embed ['first'] None": 1}


class Own(BaseSynthesizer):
    """Answers with what is no text."""

    def _get_prompts(self) -> Any:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def get_response(self, query_str: str, text_chunks: Any, **kwargs: Any) -> Any:
        return None

    async def aget_response(self, query_str: str, text_chunks: Any, **kwargs: Any) -> Any:
        return None


def answered_otherwise(world: World) -> Any:
    found: Any = world.other_engine.query("first")  # type: ignore[attr-defined]
    return found.response.strip(), [each.text for each in found.source_nodes], world.said()


class Summary(BaseModel):
    """What a model answers, as an object."""

    text: str = "text"


class Documents(BaseNodePostprocessor):
    """Leaves one node, of which NodeWithScore has no text."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return [NodeWithScore(node=Document(text="text"))]


def of_objects(world: World) -> Any:
    writer = Accumulate(llm=world.llm, output_cls=Summary)
    return world.index.as_query_engine(world.llm, response_synthesizer=writer)


OTHERS: dict[str, Callable[[World], Any]] = {
    "a stream": lambda world: world.index.as_query_engine(world.llm, streaming=True),
    "an object": of_objects,
    "a synthesizer": lambda world: world.index.as_query_engine(world.llm, response_synthesizer=Own(llm=MockLLM())),
    "a postprocessor": lambda world: world.index.as_query_engine(world.llm, node_postprocessors=[Documents()]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_of_other_engines_nothing_is_known(other: str, world: World) -> None:
    world.other_engine = OTHERS[other](world)  # type: ignore[attr-defined]
    assert not any("chat last" in asked for asked in asked_until_it_raises(answered_otherwise, world))


def test_what_a_store_shares_with_found_nodes_is_read_up_to_a_change(world: World) -> None:
    """Nodes are made for each search, but with the lists that the store holds."""
    retriever, llm = world.of_nodes(TextNode(text="text", metadata={"kept": []})), world.llm
    (row,) = retriever._docstore._kvstore._collections_mappings["docstore/data"].values()

    def app() -> Any:
        for each in retriever.retrieve("first"):
            each.metadata["kept"].append("seen")
        return llm.complete(str([each.metadata for each in retriever.retrieve("last")])).text

    fast, found = optimize(app), list[Any]()
    world.service.lasts_s = 0.1
    for each in (app, fast, fast):
        row["__data__"]["metadata"]["kept"].clear()
        with counted(world.service) as asked:
            said = each()
        found.append((said, asked))
    assert found[1] == found[2] == found[0]
