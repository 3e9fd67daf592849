"""User's classes with methods in the place of LlamaIndex's entry methods: `retrieve`, `query`, `chat` themselves."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

import teola_plugin
from teola_plugin.api import optimized as behind
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import local_index, notes, rag
from tests.support.llamaindex_reading import read_call
from tests.support.llamaindex_world import QUESTION, digest


def index_of(stage: Stage, count: int = 6) -> VectorStoreIndex:
    """An index of nodes that know no others."""
    nodes = [TextNode(text=f"On bees {n}.", id_=f"bees-{n}") for n in range(count)]
    return VectorStoreIndex(nodes, embed_model=stage.engines.embedding, callback_manager=stage.callback_manager)


class Sleeping:
    """Takes a moment, so that there is time to read."""

    async def wait(self) -> None:
        await asyncio.sleep(0.2)


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


class Hooked(BaseRetriever):
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


class Expanding(Hooked):
    """Methods of its own in the place of LlamaIndex's."""

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


class OnlySync(Hooked):
    """The method alone: LlamaIndex's coroutine calls the hook."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(query)


class OnlyAsync(Hooked):
    """The coroutine alone: LlamaIndex's method calls the hook."""

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(query)


class Beneath(Hooked):
    """LlamaIndex's own methods around the hook, with better words, and fewer nodes."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        words = [self.llm.complete(f"{word} {query}").text for word in ("Why", "How")]
        return super().retrieve(" ".join(words))[:2]

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        words = [(await self.llm.acomplete(f"{word} {query}")).text for word in ("Why", "How")]
        return (await super().aretrieve(QueryBundle(" ".join(words))))[:2]


class Below(Beneath):
    """A user's method around another user's."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return super().retrieve(f"{query}")[:1]


class Again(Expanding):
    """Calls itself with a part of the question, and then a method of a class above."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        if type(query) is QueryBundle:
            return self.retrieve(query.query_str[:3]) + Expanding.retrieve(self, query.query_str)
        return super().retrieve(query)[:1]


class Changing(Expanding):
    """Changes the question that the engine goes on with."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        found = self._retrieve(query)[:1]
        query.query_str = "What else?"
        return found


def of_retriever(retriever: Any, stage: Stage) -> Any:
    return asked(retriever, stage)


def fusion(stage: Stage, **settings: Any) -> Any:
    inner = [Expanding(stage), index_of(stage).as_retriever()]
    return QueryFusionRetriever(inner, llm=stage.engines.model, num_queries=1, **settings)  # type: ignore[arg-type]


def routed(stage: Stage, engine: BaseQueryEngine) -> RouterQueryEngine:
    stage.engines.llm.answer = _chooses
    tool = QueryEngineTool.from_defaults(engine, name="notes", description="all notes")
    selector = LLMSingleSelector.from_defaults(llm=stage.engines.model)
    return RouterQueryEngine(selector=selector, query_engine_tools=[tool], llm=stage.engines.model)


def _chooses(prompt: str) -> str:
    return '[{"choice": 1, "reason": "only one"}]' if "choice" in prompt.lower() else digest(prompt)


def chat_engine(stage: Stage) -> Any:
    memory = ChatMemoryBuffer.from_defaults(llm=stage.engines.model)
    return ContextChatEngine.from_defaults(Expanding(stage), llm=stage.engines.model, memory=memory)


FORMS = ("sync", "async")


def called(name: str, form: str) -> Callable[[Any], Any]:
    return lambda component: getattr(component, name if form == "sync" else f"a{name}")(QUESTION)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("build", "name", "hits"),
    [
        (lambda stage: rag(stage, retriever=Expanding(stage)), "query", 4),
        (lambda stage: rag(stage, retriever=Decorated(stage)), "query", 4),
        (lambda stage: rag(stage, retriever=OnlySync(stage)), "query", 4),
        (lambda stage: rag(stage, retriever=Beneath(stage)), "query", 4),
        (lambda stage: rag(stage, retriever=Below(stage)), "query", 4),
        (lambda stage: rag(stage, retriever=OnlyAsync(stage)), "query", 4),
        (lambda stage: routed(stage, rag(stage, retriever=Expanding(stage))), "query", 4),
        (lambda stage: fusion(stage, use_async=False), "retrieve", 4),
        (chat_engine, "chat", 4),
    ],
)
def test_a_retriever_with_a_method_of_its_own_is_read_in_a_stock_pipeline(
    build: Any, name: str, hits: int, form: str
) -> None:
    read_in_a_call(build, called(name, form), hits)


def read_in_a_call(build: Any, act: Callable[[Any], Any], hits: int) -> None:
    """The same is seen, and as many requests are early at least."""
    same(build, act, exact=False, look=asked)
    stage = slowly()
    twin: Any = teola_plugin.optimize(build(stage))
    found = act(twin)
    if inspect.isawaitable(found):
        asyncio.run(_awaited(found))
    (report,) = behind(twin).reports
    assert report.hits + report.shared >= hits
    assert report.wasted == 0


async def _awaited(found: Any) -> Any:
    return await found


def test_what_a_retriever_with_a_method_of_its_own_found_is_gone_on_with_at_once() -> None:
    def build(stage: Stage) -> Any:
        return rag(stage, mode="accumulate", retriever=FewerOf(index_of(stage), similarity_top_k=3))

    same(build, lambda engine: engine.query(QUESTION), look=asked, least_hits=1)


class FewerOf(VectorIndexRetriever):
    """Two of three, by the hook."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(query)[:2]


class FewerYet(FewerOf):
    """One of two, in a class below another that is read."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return super().retrieve(query)[:1]


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("cls", [FewerYet, Again, Changing])
def test_only_what_the_method_returns_in_the_end_is_asked_about(cls: Any, form: str) -> None:
    def build(stage: Stage) -> Any:
        above = FewerOf(index_of(stage), similarity_top_k=3)
        stage.kept["above"] = teola_plugin.optimize(rag(stage, mode="accumulate", retriever=above))
        made = cls(index_of(stage), similarity_top_k=3) if cls is FewerYet else cls(stage)
        return rag(stage, mode="accumulate", retriever=made)

    same(build, lambda engine: getattr(engine, form)(QUESTION), exact=False, look=_asked_whatever_is_equal)


def _asked_whatever_is_equal(engine: Any, stage: Stage) -> Any:
    """What was asked; equal prompts of an engine of ours are asked once."""
    return sorted(set(stage.engines.llm.seen)), sorted(map(str, stage.engines.embedder.seen))


class Later(Hooked):
    """Methods that a decorator is put around later."""

    def retrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(QueryBundle(query_str=str(query)))

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        return self._retrieve(QueryBundle(query_str=str(query)))


def preceded(method: Any) -> Any:
    """Asks before the method, and leaves out some of what it finds."""

    @functools.wraps(method)
    def retrieve(self: Any, query: Any) -> Any:
        return method(self, self.llm.complete("First").text)[:1]

    @functools.wraps(method)
    async def aretrieve(self: Any, query: Any) -> Any:
        return (await method(self, (await self.llm.acomplete("First")).text))[:1]

    return aretrieve if inspect.iscoroutinefunction(method) else retrieve


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["compact", "accumulate"])
def test_a_method_that_is_decorated_later_runs(mode: str, form: str) -> None:
    methods = {name: vars(Later)[name] for name in ("retrieve", "aretrieve")}

    def build(stage: Stage) -> Any:
        for name, method in methods.items():
            setattr(Later, name, method)
        return rag(stage, mode=mode, retriever=Later(stage))

    def change(engine: Any) -> None:
        for name in methods:
            setattr(Later, name, preceded(vars(Later)[name]))

    try:
        same(build, lambda engine: getattr(engine, form)(QUESTION), exact=False, change=change, look=asked)
    finally:
        for name, method in methods.items():
            setattr(Later, name, method)
        teola_plugin.uninstall()


def test_a_method_of_the_object_that_is_set_later_runs() -> None:
    def change(engine: Any) -> None:
        retriever = engine._retriever
        retriever.retrieve = lambda query: retriever._retrieve(QueryBundle("other"))[:1]

    for mode in ("compact", "accumulate"):
        same(
            lambda stage, mode=mode: rag(stage, mode=mode, retriever=Expanding(stage)),  # type: ignore[misc]
            lambda engine: engine.query(QUESTION),
            change=change,
            look=_of_engine,
        )


def test_the_class_is_as_before_when_the_optimized_object_is_gone() -> None:
    class Own(Expanding):
        def retrieve(self, query: Any) -> list[NodeWithScore]:
            return self._retrieve(QueryBundle(query_str=str(query)))

    before, stage = vars(Own)["retrieve"], Stage()
    twin: Any = teola_plugin.optimize(rag(stage, retriever=Own(stage)))
    assert vars(Own)["retrieve"] is not before
    assert Own.retrieve.__qualname__ == before.__qualname__
    teola_plugin.uninstall()
    assert vars(Own)["retrieve"] is before
    assert str(twin.query(QUESTION))


def test_what_is_read_is_told() -> None:
    stage = slowly()
    twin: Any = teola_plugin.optimize(rag(stage, retriever=Expanding(stage)))
    assert "TB201" not in twin.explain()
    twin.query(QUESTION)
    assert "Expanding.retrieve: retrieve (test_llamaindex_overriding.py:" in twin.explain()
    (report,) = behind(twin).reports
    assert (report.hits + report.shared, report.wasted) == (7, 0)


def test_a_method_that_fails_fails_in_its_place_in_an_engine() -> None:
    def build(stage: Stage) -> Any:
        made = rag(stage, retriever=Expanding(stage))
        stage.engines.llm.answer = _second_fails
        return made

    same(build, lambda engine: engine.query(QUESTION), exact=False, look=lambda own, stage: own._retriever.last)


# --- engines, and others ---------------------------------------------------------------------------------------------


class Querying(BaseQueryEngine):
    """`query` itself."""

    async def aquery(self, query: Any) -> Any:
        parts = [(await self.llm.acomplete(f"{word} {query}")).text for word in ("Why", "How", "When")]
        return Response((await self.llm.acomplete(" ".join(parts))).text)

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


class Asking(CustomQueryEngine):
    """`query` itself, of a class with fields."""

    llm: Any

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError

    def query(self, query: Any) -> Any:
        return Response(" ".join(self.llm.complete(f"{word} {query}").text for word in ("Why", "How", "When")))

    async def aquery(self, query: Any) -> Any:
        return Response(" ".join([(await self.llm.acomplete(f"{word} {query}")).text for word in ("Why", "How")]))


class JudgingAll(Judging):
    """LlamaIndex's signature."""

    def postprocess_nodes(  # type: ignore[override]
        self, nodes: list[NodeWithScore], query_bundle: Any = None, query_str: Any = None
    ) -> list[NodeWithScore]:
        prompt = f"Is this about {query_bundle.query_str}? "
        return [each for each in nodes if "a" in self.llm.complete(prompt + each.node.get_content()).text]

    async def apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: Any = None, query_str: Any = None
    ) -> list[NodeWithScore]:
        prompt = f"Is this about {query_bundle.query_str}? "
        return [each for each in nodes if "a" in (await self.llm.acomplete(prompt + each.node.get_content())).text]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("build", "hits"),
    [
        (lambda stage: routed(stage, Querying(stage)), 3),
        (lambda stage: routed(stage, Asking(llm=stage.engines.model)), 2),
        (
            lambda stage: rag(
                stage, retriever=index_of(stage).as_retriever(similarity_top_k=4),
                postprocessors=[JudgingAll(llm=stage.engines.model)],
            ),
            5,
        ),
    ],
)  # fmt: skip
def test_other_components_with_methods_of_their_own_are_read_in_a_stock_pipeline(
    build: Any, hits: int, form: str
) -> None:
    read_in_a_call(build, called("query", form), hits)
