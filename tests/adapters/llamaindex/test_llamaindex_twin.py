"""A twin of a LlamaIndex object is that object: same type and state, no second span, plain copies, closed calls."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

import pytest
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from teola_plugin.adapters.llamaindex import adapter
from teola_plugin.graph import Graph
from teola_plugin.seams import current
from teola_plugin.trace import Traced
from tests.support.fakes import collect_garbage
from tests.support.llamaindex_world import Record


class Session:
    """Any object will do as a session for components that have no leaves."""

    is_closed = False
    is_unheard = False


class Call:
    def __init__(self) -> None:
        self.session: Any = Session()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Calls:
    traced = Traced(Graph((), (), ()))

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.calls: list[Call] = []

    def open(self, inputs: Callable[[], Sequence[Any]], **options: Any) -> Call:
        self.inputs += inputs()
        self.calls.append(Call())
        return self.calls[-1]

    def again(self, pipeline: Any) -> Any:
        return adapter.twin(pipeline, self)

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        return f"explained as {format}"


class Retriever(BaseRetriever):
    """Notes in which session it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Any] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.sessions.append(current())
        return [NodeWithScore(node=TextNode(text=query_bundle.query_str, id_="n"), score=0.5)]


class Synthesizer(BaseSynthesizer):
    """Streams the session of each step, so that one can see in which it runs."""

    def __init__(self, streaming: bool = False) -> None:
        from llama_index.core.llms import MockLLM

        super().__init__(llm=MockLLM(), streaming=streaming)
        self.sessions: list[Any] = []

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None: ...

    def get_response(self, query_str: str, text_chunks: Sequence[str], **kwargs: Any) -> Any:
        if not self._streaming:
            return "answer"

        def stream() -> Generator[str, None, None]:
            for word in ("a", "b", "c"):
                self.sessions.append(current())
                yield word

        return stream()

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **kwargs: Any) -> Any:
        if not self._streaming:
            return "answer"

        async def stream() -> AsyncGenerator[str, None]:
            for word in ("a", "b", "c"):
                self.sessions.append(current())
                yield word

        return stream()


def pipeline(streaming: bool = False) -> tuple[RetrieverQueryEngine, Any, Calls]:
    engine = RetrieverQueryEngine(Retriever(), Synthesizer(streaming))
    calls = Calls()
    return engine, adapter.twin(engine, calls), calls


def test_it_is_of_the_same_type_and_shares_its_state() -> None:
    engine, twin, _ = pipeline()
    assert isinstance(twin, RetrieverQueryEngine)
    assert (type(twin).__name__, type(twin).__qualname__, type(twin).__module__) == (
        RetrieverQueryEngine.__name__,
        RetrieverQueryEngine.__qualname__,
        RetrieverQueryEngine.__module__,
    )
    assert repr(twin).split(" at ")[0] == repr(engine).split(" at ")[0]
    assert inspect.signature(twin.query) == inspect.signature(engine.query)
    assert inspect.iscoroutinefunction(twin.aquery)
    assert twin.retriever is engine.retriever
    twin._response_synthesizer._streaming = True
    engine._node_postprocessors = ["changed"]
    assert engine._response_synthesizer._streaming is True
    assert twin._node_postprocessors == ["changed"]
    assert type(engine) is RetrieverQueryEngine


def test_copies_and_pickles_are_plain() -> None:
    engine, twin, _ = pipeline()
    assert type(copy.copy(twin)) is RetrieverQueryEngine
    deep = copy.deepcopy(twin)
    assert type(deep) is RetrieverQueryEngine
    assert deep.retriever is not engine.retriever
    retriever = adapter.twin(engine.retriever, Calls())
    assert type(pickle.loads(pickle.dumps(retriever))) is Retriever


def test_entry_methods_open_one_call_and_close_it() -> None:
    engine, twin, calls = pipeline()
    assert str(twin.query("q")) == "answer"
    assert asyncio.run(twin.aquery("q")).response == "answer"
    assert [n.node_id for n in twin.retrieve(QueryBundle("q"))] == ["n"]
    assert twin.synthesize(QueryBundle("q"), [NodeWithScore(node=TextNode(text="x"))]).response == "answer"
    assert [c.closed for c in calls.calls] == [1, 1, 1, 1]
    assert [(i.is_async, i.retrieves, i.answers) for i in calls.inputs] == [
        (False, True, True),
        (True, True, True),
        (False, True, False),
        (False, False, True),
    ]
    assert engine.retriever.sessions == [calls.calls[0].session, calls.calls[1].session, calls.calls[2].session]
    assert current() is None


def test_inside_a_call_a_twin_is_plain() -> None:
    inner = Calls()
    outer = Calls()
    retriever = adapter.twin(Retriever(), inner)
    engine = adapter.twin(RetrieverQueryEngine(retriever, Synthesizer()), outer)
    engine.query("q")
    assert (len(inner.calls), len(outer.calls)) == (0, 1)


def test_a_call_that_raises_is_closed() -> None:
    engine, twin, calls = pipeline()
    error = RuntimeError("no notes")

    def fail(bundle: Any) -> Any:
        raise error

    engine.retriever._retrieve = fail
    with pytest.raises(RuntimeError) as caught:
        twin.query("q")
    assert caught.value is error
    with pytest.raises(RuntimeError):
        asyncio.run(twin.aquery("q"))
    assert [c.closed for c in calls.calls] == [1, 1]


def test_a_stream_keeps_its_call_open_to_its_end() -> None:
    engine, twin, calls = pipeline(streaming=True)
    response = twin.query("q")
    assert type(response) is StreamingResponse
    assert isinstance(response.response_gen, Generator)
    assert next(response.response_gen) == "a"
    assert current() is None
    assert calls.calls[0].closed == 0
    assert str(response) == "bc"
    assert calls.calls[0].closed > 0
    assert engine._response_synthesizer.sessions == [calls.calls[0].session] * 3


@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_is_left_closes_its_call(begun: bool) -> None:
    _, twin, calls = pipeline(streaming=True)
    response = twin.query("q")
    if begun:
        next(response.response_gen)
    del response
    collect_garbage()
    assert calls.calls[0].closed > 0


async def test_an_async_stream_keeps_its_call_open_to_its_end() -> None:
    engine, twin, calls = pipeline(streaming=True)
    response = await twin.aquery("q")
    assert type(response) is AsyncStreamingResponse
    assert isinstance(response.response_gen, AsyncGenerator)
    assert calls.calls[0].closed == 0
    assert [word async for word in response.async_response_gen()] == ["a", "b", "c"]
    assert calls.calls[0].closed > 0
    assert engine._response_synthesizer.sessions == [calls.calls[0].session] * 3


async def test_an_async_stream_that_is_closed_early_closes_its_call() -> None:
    _, twin, calls = pipeline(streaming=True)
    response = await twin.aquery("q")
    assert await anext(response.response_gen) == "a"
    await response.response_gen.aclose()
    assert calls.calls[0].closed > 0


@pytest.mark.parametrize("streaming", [False, True])
def test_no_second_span_and_no_event_more(streaming: bool) -> None:
    engine, twin, _ = pipeline(streaming)
    said = []
    for each in (engine, twin):
        with Record() as record:
            str(each.query("q"))
            each.retrieve(QueryBundle("q"))
        said.append(record.said)
    assert said[0] == said[1]
    assert said[0].count(("enter", "RetrieverQueryEngine.query", None)) == 1


class Replies:
    """Chats, and is no class of LlamaIndex: what it brings is in no span."""

    def chat(self, message: str, chat_history: Any = None) -> AgentChatResponse:
        return AgentChatResponse(response=f"heard {message}")


class Chat(Replies, BaseChatEngine):
    chat_history: Any = ()
    stream_chat: Any = None
    astream_chat: Any = None

    def reset(self) -> None: ...

    async def achat(self, message: str, chat_history: Any = None) -> AgentChatResponse:
        return self.chat(message)


def test_a_method_that_is_in_no_span_is_in_none_with_a_twin() -> None:
    engine, calls = Chat(), Calls()
    twin = adapter.twin(engine, calls)
    said = []
    for each in (engine, twin):
        with Record() as record:
            assert str(each.chat("q")) == "heard q"
            assert str(asyncio.run(each.achat("q"))) == "heard q"
        said.append(record.said)
    assert said[0] == said[1]
    assert [what for what, name, *_ in said[0] if name == "Chat.achat"] == ["enter", "exit"]
    assert len(calls.calls) == 2


def test_what_a_twin_makes_of_itself_is_a_twin() -> None:
    _, twin, calls = pipeline()
    other = twin.with_retriever(Retriever())
    other.query("q")
    assert len(calls.calls) == 1
    assert twin.explain("html") == "explained as html"


def test_a_subclass_keeps_its_own_methods() -> None:
    class Mine(RetrieverQueryEngine):
        def query(self, str_or_query_bundle: Any) -> Any:
            return Response(f"mine: {super().query(str_or_query_bundle)}")

    calls = Calls()
    twin = adapter.twin(Mine(Retriever(), Synthesizer()), calls)
    assert str(twin.query("q")) == "mine: answer"
    assert len(calls.calls) == 1


def test_pydantic_objects_have_twins_too() -> None:
    class Echo(CustomQueryEngine):
        prefix: str = "> "

        def custom_query(self, query_str: str) -> str:
            return self.prefix + query_str

    calls = Calls()
    twin = adapter.twin(Echo(), calls)
    assert str(twin.query("q")) == "> q"
    assert [c.closed for c in calls.calls] == [1]
    assert isinstance(twin, Echo)
    assert type(copy.deepcopy(twin)) is Echo
