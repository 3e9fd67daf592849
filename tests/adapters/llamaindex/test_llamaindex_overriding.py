"""User's classes with methods in the place of LlamaIndex's entry methods: `retrieve`, `query`, `chat` themselves."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever, VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import teola_plugin
from teola_plugin.api import optimized as behind
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import local_index, notes, rag
from tests.support.llamaindex_reading import read_call
from tests.support.llamaindex_world import QUESTION


def index_of(stage: Stage, count: int = 6) -> VectorStoreIndex:
    """An index of nodes that know no others."""
    nodes = [TextNode(text=f"On bees {n}.", id_=f"bees-{n}") for n in range(count)]
    return VectorStoreIndex(nodes, embed_model=stage.engines.embedding, callback_manager=stage.callback_manager)


class Sleeping:
    """Takes a moment, so that there is time to read."""

    async def wait(self) -> None:
        await asyncio.sleep(0.1)


def slowly() -> Stage:
    stage = Stage()
    stage.engines.llm.gate = stage.engines.embedder.gate = Sleeping()  # type: ignore[assignment]
    return stage


def asked(component: Any, stage: Stage) -> Any:
    """What was asked, so that nothing is asked more often, and what the component keeps."""
    kept = getattr(component, "last", None)
    return sorted(stage.engines.llm.seen), sorted(map(str, stage.engines.embedder.seen)), kept


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the user's."""

    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        print("found", len(found))
        return found

    return around


# --- retrievers ------------------------------------------------------------------------------------------------------


class Expanding(BaseRetriever):
    """Asks three times, and searches for each reply."""

    def __init__(self, stage: Stage) -> None:
        self.llm = stage.engines.model
        self.inner = index_of(stage).as_retriever(similarity_top_k=2)
        self.last: list[str] = []
        super().__init__(callback_manager=stage.callback_manager)

    def _write(self, query: str) -> list[str]:
        return [self.llm.complete(f"{number}: {query}").text for number in range(3)]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.last = self._write(query_bundle.query_str)
        found = []
        for each in self.last:
            found += self.inner.retrieve(f"passage: {each}")
        return found

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(QueryBundle(query_str=query))

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        found = []
        for number in range(3):
            text = (await self.llm.acomplete(f"{number}: {query}")).text
            found += await self.inner.aretrieve(f"passage: {text}")
        return found


class Decorated(Expanding):
    """Under a decorator."""

    @timed
    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(QueryBundle(query_str=query))


class Otherwise(Expanding):
    """Another signature."""

    def retrieve(self, query: Any, *, count: int = 3, prefix: str = "about ") -> list[NodeWithScore]:  # type: ignore[override]
        return self._retrieve(QueryBundle(prefix + query))[:count]


class Inherited(Expanding):
    """LlamaIndex's own method around, by `super`."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        notes = [self.llm.complete(f"{word} {query}").text for word in ("Why", "How")]
        return super(Expanding, self).retrieve(f"{query} {' '.join(notes)}")


class Searching(VectorIndexRetriever):
    """A stock retriever, asked for better words."""

    def use(self, stage: Stage) -> Searching:
        self.llm = stage.engines.model
        return self

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        words = [self.llm.complete(f"{word} {query}").text for word in ("Short", "Long", "Old")]
        return super().retrieve(" ".join(words))[:1]


def searching(stage: Stage) -> Any:
    return Searching(index_of(stage), similarity_top_k=3, callback_manager=stage.callback_manager).use(stage)


@pytest.mark.parametrize(
    ("build", "hits"),
    [(Expanding, 5), (Decorated, 5), (Otherwise, 5), (Inherited, 2), (searching, 2)],
)
def test_a_retriever_with_a_method_of_its_own_is_read(build: Any, hits: int) -> None:
    same(build, lambda component: component.retrieve(QUESTION), look=asked, least_hits=hits)


def test_arguments_of_another_signature_are_those_of_the_call() -> None:
    same(Otherwise, lambda component: component.retrieve(QUESTION, count=1, prefix="on "), look=asked, least_hits=5)


def test_a_coroutine_of_its_own_is_read() -> None:
    same(Expanding, lambda component: component.aretrieve(QUESTION), exact=False, look=asked)
    twin: Any = teola_plugin.optimize(Expanding(slowly()))
    asyncio.run(twin.aretrieve(QUESTION))
    (report,) = behind(twin).reports
    assert (report.hits + report.shared, report.misses, report.wasted) == (6, 0, 0)


def test_it_stays_what_it_was() -> None:
    stage = Stage()
    own = Expanding(stage)
    twin: Any = teola_plugin.optimize(own)
    assert twin is not own
    assert isinstance(twin, Expanding)
    assert type(twin).__name__ == "Expanding"
    found = twin.retrieve(QUESTION)
    assert [each.node_id for each in found] == [each.node_id for each in own.retrieve(QUESTION)]
    assert twin.last is own.last
    assert "Expanding.retrieve: retrieve (test_llamaindex_overriding.py:" in twin.explain()


class Coroutine(Expanding):
    """A coroutine in the place of a function, which nobody may ever await."""

    async def retrieve(self, query: Any) -> list[NodeWithScore]:  # type: ignore[override]
        self.last = [(await self.llm.acomplete(f"{number}: {query}")).text for number in range(3)]
        return []


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_coroutine_that_is_not_awaited_asks_nothing(is_awaited: bool) -> None:
    async def act(component: Any) -> Any:
        made = component.retrieve(QUESTION)
        await asyncio.sleep(0.05)
        return await made if is_awaited else made.close()

    same(Coroutine, act, exact=False, look=asked)


class Closing(Expanding):
    """Closes something in the end."""

    def use(self, closed: list[str]) -> Closing:
        self.closed = closed
        return self

    def __del__(self) -> None:
        self.closed.append("closed")


def test_the_end_of_the_optimized_object_is_not_that_of_the_users() -> None:
    closed: list[str] = []
    own: Any = Closing(Stage()).use(closed)
    twin: Any = teola_plugin.optimize(own)
    assert twin is not own
    del twin
    gc.collect()
    assert closed == []
    twin = teola_plugin.optimize(own)
    del own
    gc.collect()
    assert closed == []
    del twin
    gc.collect()
    assert closed == ["closed"]


def test_a_method_that_is_replaced_later_runs() -> None:
    def change(own: Any) -> None:
        own.retrieve = lambda query: own._retrieve(QueryBundle(f"other {query}"))

    same(Expanding, lambda component: component.retrieve(QUESTION), change=change, look=asked)


def test_a_failing_model_fails_in_its_place() -> None:
    def build(stage: Stage) -> Any:
        made = Expanding(stage)
        stage.engines.llm.answer = _second_fails
        return made

    same(build, lambda component: component.retrieve(QUESTION), exact=False, look=lambda own, stage: own.last)


def _second_fails(prompt: str) -> str:
    if "1: " in prompt:
        raise RuntimeError("the model broke")
    return "some words"


# --- inside of other pipelines ---------------------------------------------------------------------------------------


class Fewer(VectorIndexRetriever):
    """Goes on with what LlamaIndex's own method finds."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return super().retrieve(query)[:1]

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        return (await super().aretrieve(query))[:1]


class FewerLater(VectorIndexRetriever):
    """A coroutine that waits for LlamaIndex's synchronous method."""

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        return super().retrieve(query)[:1]


def fewer_kept(stage: Stage) -> Any:
    """A method of the object's own."""
    made = VectorIndexRetriever(index_of(stage), similarity_top_k=3, callback_manager=stage.callback_manager)
    whole = made.retrieve
    made.retrieve = lambda query: whole(query)[:1]  # type: ignore[method-assign]
    return made


class FewerKept(BaseNodePostprocessor):
    """Keeps fewer than LlamaIndex's own method."""

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> list[NodeWithScore]:
        return nodes

    def postprocess_nodes(self, nodes: list[NodeWithScore], *args: Any, **kwargs: Any) -> list[NodeWithScore]:
        return super().postprocess_nodes(nodes, *args, **kwargs)[:1]


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["compact", "accumulate"])
@pytest.mark.parametrize("cls", [Fewer, FewerLater, fewer_kept])
def test_what_a_method_leaves_out_is_not_asked_about(cls: Any, mode: str, form: str) -> None:
    def build(stage: Stage) -> Any:
        made = cls(stage) if cls is fewer_kept else cls(index_of(stage), similarity_top_k=3)
        return rag(stage, mode=mode, retriever=made)

    same(build, lambda engine: getattr(engine, form)(QUESTION), exact=False, look=asked)


def test_what_a_postprocessor_leaves_out_is_not_asked_about() -> None:
    def build(stage: Stage) -> Any:
        inner = index_of(stage).as_retriever(similarity_top_k=3)
        return rag(stage, mode="accumulate", retriever=inner, postprocessors=[FewerKept()])

    same(build, lambda engine: engine.query(QUESTION), exact=False, look=asked)


class Control(VectorIndexRetriever):
    """The hook, and not the method around it."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super()._retrieve(query_bundle)[:3]


@pytest.mark.parametrize("mode", ["compact", "accumulate"])
def test_what_a_hook_finds_of_nodes_that_know_each_other_is_gone_on_with(mode: str) -> None:
    def build(stage: Stage) -> Any:
        return rag(stage, mode=mode, retriever=Control(local_index(stage), similarity_top_k=4))

    same(build, lambda engine: engine.query(QUESTION), exact=False, look=asked, least_hits=1)


def test_an_engine_around_it_answers_the_same() -> None:
    same(lambda stage: rag(stage, retriever=Expanding(stage)), lambda engine: engine.query(QUESTION), look=_of_engine)


class Answering(CustomQueryEngine):
    """A program around an engine."""

    engine: Any
    llm: Any

    def custom_query(self, query_str: str) -> str:
        return str(self.llm.complete(f"Improve {self.engine.query(query_str)}"))


def test_what_a_function_in_an_object_makes_of_an_answer_is_asked_about() -> None:
    def build(stage: Stage) -> Any:
        inner = rag(stage)
        whole = inner.query
        inner.query = lambda query: Response(str(whole(query))[:5])  # type: ignore[method-assign]
        return Answering(engine=inner, llm=stage.engines.model)

    assert "not known that it only asks" in read_call(build(Stage()), "query", QUESTION).barrier
    same(build, lambda engine: engine.query(QUESTION), exact=False, look=asked)


class Around(CustomQueryEngine):
    """A program around such a retriever."""

    retriever: Any
    llm: Any

    def custom_query(self, query_str: str) -> str:
        found = self.retriever.retrieve(query_str)
        other = self.retriever.retrieve(f"not {query_str}")
        return str(self.llm.complete(f"{len(found)} {len(other)} {query_str}"))


def test_a_program_around_it_is_read_on() -> None:
    def build(stage: Stage) -> Any:
        return Around(retriever=Expanding(stage), llm=stage.engines.model)

    same(
        build, lambda engine: engine.query(QUESTION), look=lambda own, stage: asked(own.retriever, stage), least_hits=11
    )


def test_a_function_around_it_is_read_on() -> None:
    stage = slowly()
    retriever = Expanding(stage)

    def answer(query: str) -> int:
        return len(retriever.retrieve(query)) + len(retriever.retrieve(f"not {query}"))

    fast: Any = teola_plugin.optimize(answer)
    assert fast(QUESTION) == 12
    (report,) = behind(fast).reports
    assert (report.hits + report.shared, report.misses, report.wasted) == (12, 0, 0)


def _of_engine(engine: RetrieverQueryEngine, stage: Stage) -> Any:
    return asked(engine._retriever, stage)


# --- engines, and others ---------------------------------------------------------------------------------------------


class Querying(BaseQueryEngine):
    """`query` itself."""

    def __init__(self, stage: Stage) -> None:
        self.llm = stage.engines.model
        super().__init__(callback_manager=stage.callback_manager)

    def query(self, query: Any) -> Any:
        parts = [self.llm.complete(f"{word} {query}").text for word in ("Why", "How", "When")]
        return Response(self.llm.complete(" ".join(parts)).text)

    def _query(self, query_bundle: QueryBundle) -> Any:
        raise NotImplementedError

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        raise NotImplementedError

    def _get_prompt_modules(self) -> Any:
        return {}


class Chatting(BaseChatEngine):
    """`chat` itself, as all chat engines of users."""

    def __init__(self, stage: Stage) -> None:
        self.llm = stage.engines.model
        self.said: list[str] = []

    def reset(self) -> None:
        self.said.clear()

    def chat(self, message: str, chat_history: Any = None) -> Any:
        parts = [self.llm.complete(f"{word} {message}").text for word in ("Why", "How", "When")]
        self.said.append(message)
        return AgentChatResponse(response=" ".join(parts))

    async def achat(self, message: str, chat_history: Any = None) -> Any:
        parts = [(await self.llm.acomplete(f"{word} {message}")).text for word in ("Why", "How", "When")]
        self.said.append(message)
        return AgentChatResponse(response=" ".join(parts))

    def stream_chat(self, message: str, chat_history: Any = None) -> Any:
        raise NotImplementedError

    async def astream_chat(self, message: str, chat_history: Any = None) -> Any:
        raise NotImplementedError

    @property
    def chat_history(self) -> Any:
        return []


class Judging(BaseNodePostprocessor):
    """`postprocess_nodes` itself."""

    llm: Any = None

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: Any = None) -> list[NodeWithScore]:
        return nodes

    def postprocess_nodes(self, nodes: list[NodeWithScore], query: str = "") -> list[NodeWithScore]:  # type: ignore[override]
        prompt = f"Is this about {query}? "
        return [each for each in nodes if "a" in self.llm.complete(prompt + each.node.get_content()).text]


@pytest.mark.parametrize(
    ("build", "act", "hits"),
    [
        (Querying, lambda engine: engine.query(QUESTION), 3),
        (Chatting, lambda engine: engine.chat(QUESTION), 2),
        (Chatting, lambda engine: engine.achat(message=QUESTION), 2),
        (
            lambda stage: Judging(llm=stage.engines.model),
            lambda judge: judge.postprocess_nodes([NodeWithScore(node=each) for each in notes("bees")], "bees"),
            5,
        ),
    ],
)
def test_other_components_with_methods_of_their_own_are_read(build: Any, act: Any, hits: int) -> None:
    same(build, act, exact=False, look=asked, least_hits=hits)
