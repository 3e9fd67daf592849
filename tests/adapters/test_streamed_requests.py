"""A hosted model gets the requests of the original, whole or as a stream, in each way of calling.

Each pipeline has a slow step of our own engine, behind which a request could run ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langchain_core.tracers._streaming import _V2StreamingCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.cache.memory import InMemoryCache
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Command, Send

from teola_plugin import optimize, optimized, pure
from teola_plugin.adapters.langchain.watched import wants_streams
from teola_plugin.engines import Batch
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.adapters.langgraph.test_langgraph_differential import gather, settle
from tests.support.langchain_world import answer, ask
from tests.support.langgraph_world import Patient, State

GIVEN: Any = {"question": "Who keeps hive 3?"}
ROUNDS = 3


class Slow(Patient):
    """Takes longer than it takes to ask another."""

    async def hold(self, batch: Batch) -> None:
        await asyncio.sleep(0.02)


class Pipelines:
    """Their models: one that is slow and ours, one that is hosted."""

    def __init__(self, hosted: Hosted) -> None:
        self.engine = Slow(answer)
        self.slow = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)
        self.hosted = hosted

    def step(self, key: str, model: Any, about: str = "question") -> Any:
        return RunnableParallel({key: ask(f"{key} {{{about}}}") | model | StrOutputParser()})

    def builder(self, nodes: dict[str, Any]) -> Any:
        builder: Any = StateGraph(State)
        for name, node in nodes.items():
            builder.add_node(name, node)
        return builder

    def graph(self) -> Any:
        """d need not wait for b."""
        hosted = self.hosted
        builder = self.builder({
            "b": self.step("k0", self.slow), "c": RunnableParallel(k1=lambda state: state["question"]),
            "d": self.step("k2", hosted), "e": lambda state: {"k3": hosted.invoke("e " + state["question"]).content},
        })  # fmt: skip
        for edge in ((START, "b"), (START, "c"), ("c", "d"), ("c", "e")):
            builder.add_edge(*edge)
        return builder.compile()

    def chain(self, model: Any = None) -> Any:
        first = RunnablePassthrough.assign(a=ask("a {question}") | self.slow | StrOutputParser())
        return first | RunnablePassthrough.assign(b=ask("b {question}") | (model or self.hosted) | StrOutputParser())

    def requests(self, pipeline: Any, call: Callable[[Any], Any]) -> list[Counter[Any]]:
        for _ in range(ROUNDS):
            if hasattr(type(pipeline), "__teola__"):
                optimized(pipeline).wake()
            with contextlib.redirect_stdout(io.StringIO()):
                call(pipeline)
            settle(self.engine)
        return [Counter(self.hosted._calls), self.engine.asked]


class Tap(BaseCallbackHandler):
    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        return output

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output


class Marked(BaseCallbackHandler, _V2StreamingCallbackHandler):
    pass


hooked: ContextVar[Any] = ContextVar("hooked", default=None)
register_configure_hook(hooked, inheritable=False)


def with_hook(pipeline: Any) -> Any:
    token = hooked.set(Tap())
    try:
        return pipeline.invoke(GIVEN)
    finally:
        hooked.reset(token)


def streamed(**options: Any) -> Callable[[Any], Any]:
    return lambda pipeline: list(pipeline.stream(GIVEN, **options))


def astreamed(**options: Any) -> Callable[[Any], Any]:
    return lambda pipeline: asyncio.run(gather(pipeline.astream(GIVEN, **options)))


BOTH: dict[str, Callable[[Any], Any]] = {
    "stream": streamed(),
    "astream": astreamed(),
    "events": lambda p: asyncio.run(gather(p.astream_events(GIVEN, version="v2"))),
    "tap": lambda p: p.invoke(GIVEN, {"callbacks": [Tap()]}),
    "marked": lambda p: p.invoke(GIVEN, {"callbacks": [Marked()]}),
    "config": lambda p: p.with_config(callbacks=[Tap()]).invoke(GIVEN),
    "hook": with_hook,
}
OF_GRAPHS: dict[str, Callable[[Any], Any]] = BOTH | {
    "messages": streamed(stream_mode="messages"),
    "several": streamed(stream_mode=["messages", "updates"]),
    "subgraphs": streamed(stream_mode="messages", subgraphs=True),
    "v2": streamed(stream_mode="messages", version="v2"),
    "tools": streamed(stream_mode="tools"),
    "printed": streamed(stream_mode="updates", print_mode="messages"),
    "amessages": astreamed(stream_mode="messages"),
    "invoke": lambda p: p.invoke(GIVEN, stream_mode="messages"),
    "ainvoke": lambda p: asyncio.run(p.ainvoke(GIVEN, stream_mode="messages")),
    "batch": lambda p: p.batch([GIVEN, GIVEN], stream_mode="messages"),
}


@pytest.mark.parametrize("form", OF_GRAPHS)
def test_a_graph_asks_hosted_models_as_the_original_does(form: str) -> None:
    plain, fast = Pipelines(Hosted()), Pipelines(Hosted())
    expected = plain.requests(plain.graph(), OF_GRAPHS[form])
    assert fast.requests(optimize(fast.graph()), OF_GRAPHS[form]) == expected


@pytest.mark.parametrize("form", BOTH)
def test_a_chain_asks_hosted_models_as_the_original_does(form: str) -> None:
    plain, fast = Pipelines(Hosted()), Pipelines(Hosted())
    expected = plain.requests(plain.chain(), BOTH[form])
    assert fast.requests(optimize(fast.chain()), BOTH[form]) == expected


@pure
class Streaming(Hosted):
    streaming: bool = False


@pytest.mark.parametrize("kind", ["graph", "chain"])
@pytest.mark.parametrize("model", [
    lambda: Streaming(streaming=True), lambda: Hosted(callbacks=[Tap()]), lambda: Hosted(callbacks=[Marked()]),
])  # fmt: skip
@pytest.mark.parametrize("is_later", [False, True])
def test_a_model_that_is_always_streamed(kind: str, model: Any, is_later: bool) -> None:
    """`is_later`: its settings change after the pipeline was optimized."""
    requests = []
    for is_fast in (False, True):
        made = model()
        pipelines = Pipelines(type(made)() if is_later else made)
        pipeline = getattr(pipelines, kind)()
        pipeline = optimize(pipeline) if is_fast else pipeline
        if is_later:
            pipelines.hosted.callbacks = made.callbacks
            if isinstance(pipelines.hosted, Streaming):
                pipelines.hosted.streaming = True
        requests.append(pipelines.requests(pipeline, lambda p: p.invoke(GIVEN)))
    assert requests[1] == requests[0]
    assert all(how == "stream" for how, _ in requests[0][0])


@pytest.mark.parametrize("bind", [
    lambda model: model.with_config(callbacks=[Tap()]), lambda model: model.bind(stream=True),
])  # fmt: skip
def test_a_binding_that_has_replies_streamed(bind: Any) -> None:
    plain, fast = Pipelines(Hosted()), Pipelines(Hosted())
    expected = plain.requests(plain.chain(bind(plain.hosted)), lambda p: p.invoke(GIVEN))
    assert fast.requests(optimize(fast.chain(bind(fast.hosted))), lambda p: p.invoke(GIVEN)) == expected


def test_a_function_that_asks_for_a_stream() -> None:
    def outcome(make: Any) -> Any:
        pipelines = Pipelines(Hosted())
        hosted = pipelines.hosted
        builder = pipelines.builder({
            "b": pipelines.step("k0", pipelines.slow), "c": RunnableParallel(k1=lambda state: state["question"]),
            "d": lambda state: {"k2": hosted.invoke("d " + state["question"], stream=True).content},
        })  # fmt: skip
        for edge in ((START, "b"), (START, "c"), ("c", "d")):
            builder.add_edge(*edge)
        return pipelines.requests(make(builder.compile()), lambda p: p.invoke(GIVEN))

    assert outcome(optimize) == outcome(lambda graph: graph)


# --- what LangGraph decides ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("how", ["edge", "command"])
def test_a_node_that_is_sent_its_input_is_not_asked_with_the_state(count: int, how: str) -> None:
    def outcome(make: Any) -> Any:
        pipelines = Pipelines(Hosted())
        parts = [Send("b", {"question": f"part {n}"}) for n in range(count)]
        sends = Command(goto=parts) if how == "command" else {}
        logs = self_logging(pipelines.slow)
        builder = pipelines.builder({"a": lambda state: sends, "b": logs, "d": pipelines.step("k1", pipelines.slow)})
        builder.add_edge(START, "a")
        if how == "edge":
            builder.add_conditional_edges("a", lambda state: parts, ["b"])
        builder.add_edge("b", "d")
        return pipelines.requests(make(builder.compile()), lambda p: p.invoke(GIVEN))

    assert outcome(optimize) == outcome(lambda graph: graph)


def self_logging(model: Any) -> Any:
    return RunnableParallel(log=ask("b {question}") | model | StrOutputParser() | (lambda text: [text]))


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_nothing_is_asked_beyond_the_recursion_limit(limit: int) -> None:
    def outcome(make: Any) -> Any:
        pipelines = Pipelines(Hosted())
        nodes = {f"n{n}": pipelines.step(f"k{n}", pipelines.slow) for n in range(4)}
        builder = pipelines.builder(nodes)
        for start, end in zip([START, *nodes], nodes, strict=False):
            builder.add_edge(start, end)

        def call(graph: Any) -> None:
            with contextlib.suppress(GraphRecursionError):
                graph.invoke(GIVEN, {"recursion_limit": limit})

        return pipelines.requests(make(builder.compile()), call)

    assert outcome(optimize) == outcome(lambda graph: graph)


@pytest.mark.parametrize("place", ["node", "graph", "inner"])
def test_what_a_cache_answers_is_not_asked(place: str) -> None:
    def outcome(make: Any) -> Any:
        pipelines = Pipelines(Hosted())
        cached = {"cache_policy": CachePolicy(key_func=lambda state: str(state["question"]))}

        def compiled(builder: Any) -> Any:
            for edge in ((START, "b"), (START, "c"), ("c", "d")):
                builder.add_edge(*edge)
            graph = builder.compile(cache=InMemoryCache())
            if place == "graph":
                graph.cache_policy = cached["cache_policy"]
            return graph

        nodes = {
            "b": pipelines.step("k0", pipelines.slow), "c": RunnableParallel(k1=lambda state: state["question"]),
            "d": pipelines.step("k2", pipelines.slow),
        }  # fmt: skip
        if place == "graph":
            return pipelines.requests(make(compiled(pipelines.builder(nodes))), lambda p: p.invoke(GIVEN))
        inner = nodes.pop("d")
        if place == "inner":
            within: Any = StateGraph(State)
            within.add_node("only", inner, **cached)
            inner = within.add_edge(START, "only").compile(cache=InMemoryCache())
        builder = pipelines.builder(nodes)
        builder.add_node("d", inner, **({} if place == "inner" else cached))
        return pipelines.requests(make(compiled(builder)), lambda p: p.invoke(GIVEN))

    assert outcome(optimize) == outcome(lambda graph: graph)


@pytest.mark.parametrize("kind", ["handlers", "inheritable_handlers"])
@pytest.mark.parametrize("handler", [Tap, Marked])
def test_handlers_of_a_manager_want_streams(kind: str, handler: Any) -> None:
    assert wants_streams(CallbackManager(**{"handlers": [], kind: [handler()]}))
    assert not wants_streams(CallbackManager(**{"handlers": [], kind: [BaseCallbackHandler()]}))
