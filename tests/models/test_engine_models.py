"""Our models in every form their frameworks call them, on a fake engine; and once on vLLM."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages import ChatMessage as RoleMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.callbacks.schema import EventPayload
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from teola_plugin import runtime
from teola_plugin.chat import render_plainly
from teola_plugin.engines import Completion, Failed
from teola_plugin.errors import EngineError
from teola_plugin.models import langchain as lc
from teola_plugin.models import llamaindex as li
from teola_plugin.models.langchain_messages import for_template
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.seams import active
from teola_plugin.value_keys import value_key
from tests.support.fakes import FakeEngine, says

MESSAGES = [SystemMessage("Be short."), HumanMessage("Who?"), AIMessage("I."), HumanMessage("Why?")]
PROMPT = "System: Be short.\nUser: Who?\nAssistant: I.\nUser: Why?\nAssistant:"
ANSWER = says("because it is so")
PIECES = ["because ", "it ", "is ", "so"]


def counted(payload: Any) -> Completion:
    return Completion(ANSWER, pieces=PIECES, token_ids=[1, 2, 3, 4], finish_reason="length", prompt_tokens=7)


@pytest.fixture(autouse=True)
def fresh_host() -> Iterator[None]:
    yield
    runtime.host.close()


def llm(answer: Callable[[Any], Any] = counted) -> FakeEngine:
    return FakeEngine(answer, name="llm", concurrent=True)


# --- LangChain -----------------------------------------------------------------------------------------------


def chat_forms(model: Any, value: Any) -> dict[str, Any]:
    async def read() -> list[Any]:
        return [chunk async for chunk in model.astream(value)]

    return {
        "invoke": model.invoke(value),
        "ainvoke": asyncio.run(model.ainvoke(value)),
        "stream": sum_of(model.stream(value)),
        "astream": sum_of(asyncio.run(read())),
        "batch": model.batch([value, value])[1],
        "abatch": asyncio.run(model.abatch([value, value]))[1],
    }


def sum_of(chunks: Any) -> Any:
    first, *rest = list(chunks)
    for chunk in rest:
        first = first + chunk
    return first


def test_a_langchain_chat_model_says_the_same_in_every_form() -> None:
    engine = llm()
    for form, message in chat_forms(lc.EngineChatModel(engine=engine, max_tokens=4), MESSAGES).items():
        assert message.content == "because it is so", form
        assert type(message.content) is str
        assert message.response_metadata["finish_reason"] == "length", form
        assert message.usage_metadata == {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11}, form
    assert {*engine.seen} == {PROMPT}
    assert {value_key(b.settings) for b in engine.batches} == {value_key({"temperature": 0.0, "max_tokens": 4})}


def test_a_langchain_stream_has_one_chunk_per_token() -> None:
    chunks = list(lc.EngineChatModel(engine=llm()).stream("Why?"))
    assert [c.content for c in chunks] == [*PIECES, ""]
    assert [c.chunk_position for c in chunks] == [None] * 4 + ["last"]
    assert list(lc.EngineLLM(engine=llm()).stream("Why?")) == [*PIECES, ""]


@pytest.mark.parametrize(("kind", "given"), [(lc.EngineChatModel, MESSAGES), (lc.EngineLLM, "Why?")])
def test_a_run_manager_hears_each_token_of_a_langchain_stream(kind: Any, given: Any) -> None:
    heard: list[tuple[str, Any]] = []

    class Manager:
        def on_llm_new_token(self, token: str, *, chunk: Any) -> None:
            heard.append((token, chunk))

    class AsyncManager:
        async def on_llm_new_token(self, token: str, *, chunk: Any) -> None:
            heard.append((token, chunk))

    async def read() -> list[Any]:
        return [chunk async for chunk in kind(engine=llm())._astream(given, run_manager=AsyncManager())]

    chunks = list(kind(engine=llm())._stream(given, run_manager=Manager()))
    assert heard == list(zip(PIECES, chunks, strict=False))
    heard.clear()
    chunks = asyncio.run(read())
    assert heard == list(zip(PIECES, chunks, strict=False))


def test_langchain_messages_as_chat_templates_take_them() -> None:
    calls: Any = [{"name": "find", "args": {"x": 1}, "id": "call_7"}]
    given = [
        RoleMessage(role="critic", content="No."),
        AIMessage("", tool_calls=calls),
        ToolMessage("12", tool_call_id="call_7", name="find"),
    ]
    assert [for_template(message) for message in given] == [
        {"role": "critic", "content": "No."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "call_7", "function": {"name": "find", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "12", "tool_call_id": "call_7", "name": "find"},
    ]


def test_a_langchain_llm_says_the_same_in_every_form() -> None:
    engine = llm()
    for form, text in chat_forms(lc.EngineLLM(engine=engine), "Why?").items():
        assert text == "because it is so", form
        assert type(text) is str
    assert {*engine.seen} == {"Why?"}
    batched = lc.EngineLLM(engine=llm()).generate(["Who?", "Why?"])
    assert batched.llm_output["token_usage"] == {"prompt_tokens": 14, "completion_tokens": 8, "total_tokens": 22}


@pytest.mark.parametrize("kind", [lc.EngineChatModel, lc.EngineLLM])
def test_langchain_settings_come_from_the_model_and_the_call(kind: Any) -> None:
    engine = llm()
    model = kind(engine=engine, temperature=0.5, max_tokens=None, settings={"top_k": 3, "seed": 1})
    model.bind(seed=2, max_tokens=9, stop=["x"], ignore_eos=True).invoke("Why?")
    settings = {"temperature": 0.5, "max_tokens": 9, "top_k": 3, "seed": 2, "stop": ["x"], "ignore_eos": True}
    assert engine.batches[0].settings == settings
    prompt, asked = model.request_for("Why?", stop=["x"], seed=2, max_tokens=9, ignore_eos=True)
    assert (prompt, asked) == (engine.seen[0], settings)
    kind(engine=engine, temperature=None, max_tokens=None, stop=["y"]).invoke("Why?")
    assert engine.batches[1].settings == {"stop": ["y"]}


@pytest.mark.parametrize("kind", [lc.EngineChatModel, lc.EngineLLM, li.EngineLLM])
def test_a_model_that_is_told_nothing_is_greedy_and_ends_after_256_tokens(kind: Any) -> None:
    assert kind(engine=llm()).request_for("Why?")[1] == {"temperature": 0.0, "max_tokens": 256}


@pytest.mark.parametrize("kind", [lc.EngineChatModel, lc.EngineLLM, li.EngineLLM])
def test_every_stop_word_reaches_the_engine(kind: Any) -> None:
    model = kind(engine=llm(), temperature=None, max_tokens=None, stop=["own", "other"])
    assert model.request_for("Why?")[1] == {"stop": ["own", "other"]}
    assert model.request_for("Why?", stop=["one", "two"])[1] == {"stop": ["one", "two"]}
    assert model.request_for("Why?", stop=("one", "two"))[1] == {"stop": ["one", "two"]}
    assert model.request_for("Why?", stop="one")[1] == {"stop": ["one"]}
    assert model.request_for("Why?", stop=[])[1] == {}


def with_model(model: str) -> FakeEngine:
    engine = llm(lambda prompt: says(f"{model} says"))
    engine.model = model  # type: ignore[attr-defined]
    return engine


@pytest.mark.parametrize("kind", [lc.EngineChatModel, lc.EngineLLM])
def test_two_langchain_models_share_no_entry_of_a_response_cache(kind: Any) -> None:
    set_llm_cache(InMemoryCache())
    try:
        chains = [kind(engine=with_model(model)) | StrOutputParser() for model in ("a", "b", "a")]
        assert [chain.invoke("Why?") for chain in chains] == ["a says", "b says", "a says"]
        assert chains[2].first.engine.seen == []
        first, second = (kind(engine=llm(), temperature=t) for t in (0.0, 1.0))
        assert [m.invoke("Who?") and len(m.engine.seen) for m in (first, second, first)] == [1, 1, 1]
    finally:
        set_llm_cache(None)
    engines = [VllmEngine(f"/models/{model}") for model in "ab"]
    assert [kind(engine=e)._identifying_params["model"] for e in engines] == ["/models/a", "/models/b"]


@pytest.mark.parametrize(("kind", "type_"), [(lc.EngineChatModel, "chat"), (lc.EngineLLM, "llm")])
def test_traces_name_a_langchain_model_as_its_replies_do(kind: Any, type_: str) -> None:
    said = kind(engine=llm(), max_tokens=4)._get_ls_params(stop=["x"])
    assert said == {
        "ls_provider": "teola", "ls_model_name": "llm", "ls_model_type": type_, "ls_temperature": 0.0,
        "ls_max_tokens": 4, "ls_stop": ["x"],
    }  # fmt: skip


def test_a_llamaindex_embedding_is_called_after_its_model() -> None:
    assert li.EngineEmbedding(engine=with_model("a")).model_name == "llm/a"
    assert li.EngineEmbedding(engine=llm()).model_name == "llm"
    assert li.EngineLLM(engine=with_model("a")).to_dict() != li.EngineLLM(engine=with_model("b")).to_dict()


def test_a_langchain_chain_over_a_chat_prompt() -> None:
    prompt = ChatPromptTemplate([("system", "Be short."), ("human", "{question}")])
    chain = prompt | lc.EngineChatModel(engine=llm()) | StrOutputParser()
    assert chain.invoke({"question": "Why?"}) == "because it is so"
    assert list(chain.stream({"question": "Why?"})) == [*PIECES, ""]


def test_content_that_is_not_text_is_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    model = lc.EngineChatModel(engine=llm())
    assert model.invoke([HumanMessage([{"type": "text", "text": "Wh"}, "y?"])]).content == "because it is so"
    with pytest.raises(EngineError, match="image_url"):
        model.invoke([HumanMessage([image])])
    with pytest.raises(EngineError, match="image"):
        li.EngineLLM(engine=llm()).chat([ChatMessage(blocks=[ImageBlock(url="http://x/y.png")])])


@pytest.mark.parametrize("form", ["stream", "astream"])
@pytest.mark.parametrize("framework", ["langchain", "llamaindex"])
def test_closing_a_stream_early_aborts(form: str, framework: str) -> None:
    class Endless(FakeEngine):
        async def run(self, batch: Any, emit: Any) -> None:
            self.batches.append(batch)
            while not self.aborted:
                emit(0, self.delta)
                await asyncio.sleep(0)

    from teola_plugin.engines import Delta

    engine = Endless(name="llm", concurrent=True)
    engine.delta = Delta("on and ")  # type: ignore[attr-defined]
    chat = lc.EngineChatModel(engine=engine)
    complete = li.EngineLLM(engine=engine)
    if form == "stream":
        stream = chat.stream("Why?") if framework == "langchain" else complete.stream_complete("Why?")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    else:

        async def read_one() -> None:
            stream: Any
            stream = chat.astream("Why?") if framework == "langchain" else await complete.astream_complete("Why?")
            await anext(stream)
            await stream.aclose()

        asyncio.run(read_one())
    settle()
    assert engine.aborted == [engine.batches[0].items[0].id]


def settle() -> None:
    """The host has done what it was told before."""

    async def nothing() -> None:
        return

    asyncio.run_coroutine_threadsafe(nothing(), runtime.host.loop).result()


@pytest.mark.parametrize("framework", ["langchain", "llamaindex"])
async def test_cancelling_a_call_aborts(framework: str) -> None:
    engine = llm()
    engine.gate = asyncio.Event()
    model: Any = lc.EngineChatModel(engine=engine) if framework == "langchain" else li.EngineLLM(engine=engine)
    call = asyncio.ensure_future(model.ainvoke("Why?") if framework == "langchain" else model.acomplete("Why?"))
    while not engine.batches:  # noqa: ASYNC110  the engine runs on another loop
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    settle()
    assert engine.aborted == [engine.batches[0].items[0].id]


class Uneven(FakeEngine):
    """Refuses one prompt at once, and writes on all others for ever."""

    def __init__(self) -> None:
        super().__init__(name="llm", concurrent=True, max_items=8)
        self.began = threading.Event()

    async def run(self, batch: Any, emit: Any) -> None:
        """Both prompts may come in one batch, or each in one of its own."""
        self.batches.append(batch)
        payloads = [item.payload for item in batch.items]
        if "Why?" in payloads:
            self.began.set()
        if "refuse" in payloads:
            await asyncio.to_thread(self.began.wait, 10)
            emit(payloads.index("refuse"), Failed(ValueError("refused")))
        if "Why?" in payloads:
            while not self.aborted:  # noqa: ASYNC110  told by another thread
                await asyncio.sleep(0)
            emit(payloads.index("Why?"), Failed(ValueError("aborted")))


@pytest.mark.parametrize("is_async", [False, True])
def test_when_one_prompt_of_several_fails_the_others_are_aborted(is_async: bool) -> None:
    engine = Uneven()
    model = lc.EngineLLM(engine=engine)
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(model.agenerate(["refuse", "Why?"])) if is_async else model.generate(["refuse", "Why?"])
    settle()
    assert engine.aborted == [item.id for batch in engine.batches for item in batch.items if item.payload == "Why?"]


def test_an_engine_s_error_reaches_the_caller_as_it_is() -> None:
    error = ValueError("the prompt has too many tokens")

    def refuse(payload: Any) -> Any:
        raise error

    for call in (
        lambda: lc.EngineChatModel(engine=llm(refuse)).invoke("x"),
        lambda: list(lc.EngineLLM(engine=llm(refuse)).stream("x")),
        lambda: li.EngineLLM(engine=llm(refuse)).complete("x"),
        lambda: lc.EngineEmbeddings(llm(refuse)).embed_query("x"),
    ):
        with pytest.raises(ValueError, match="too many tokens") as raised:
            call()
        assert raised.value is error


def test_langchain_embeddings() -> None:
    engine = FakeEngine(lambda text: np.full(2, len(text), np.float32), name="embedder")
    model = lc.EngineEmbeddings(engine)
    assert model.embed_documents(["a", "bb"]) == [[1.0, 1.0], [2.0, 2.0]]
    assert model.embed_query("abc") == [3.0, 3.0]
    assert asyncio.run(model.aembed_documents(["a", "bb"])) == model.embed_documents(["a", "bb"])
    assert asyncio.run(model.aembed_query("abc")) == [3.0, 3.0]
    assert model.embed_documents([]) == []
    assert len(engine.batches[0].items) == 2
    assert model.request_for("a") == ("a", {})
    lc.EngineEmbeddings(engine, normalize=True).embed_query("abc")
    assert engine.batches[-1].settings == {"normalize": True}


def test_a_langchain_reranker_keeps_the_best() -> None:
    engine = FakeEngine(lambda pair: float(len(pair[1]) % 3), name="reranker")
    documents = [Document("a" * n, metadata={"n": n}, id=str(n)) for n in range(1, 8)]
    model = lc.EngineReranker(engine=engine, top_n=3)
    best = model.compress_documents(documents, "q")
    assert [(d.id, d.metadata) for d in best] == [
        ("2", {"n": 2, "relevance_score": 2.0}),
        ("5", {"n": 5, "relevance_score": 2.0}),
        ("1", {"n": 1, "relevance_score": 1.0}),
    ]
    assert documents[1].metadata == {"n": 2}
    assert asyncio.run(model.acompress_documents(documents, "q")) == best
    assert model.compress_documents([], "q") == []
    assert model.request_for("q", documents[0]) == (("q", "a"), {})
    assert engine.seen[0] == ("q", "a")


# --- LlamaIndex ----------------------------------------------------------------------------------------------


def completion_forms(model: li.EngineLLM, call: str, value: Any) -> dict[str, Any]:
    async def read() -> list[Any]:
        return [r async for r in await getattr(model, f"astream_{call}")(value)]

    return {
        call: getattr(model, call)(value),
        f"a{call}": asyncio.run(getattr(model, f"a{call}")(value)),
        f"stream_{call}": list(getattr(model, f"stream_{call}")(value)),
        f"astream_{call}": asyncio.run(read()),
    }


@pytest.mark.parametrize("call", ["chat", "complete"])
def test_a_llamaindex_llm_says_the_same_in_every_form(call: str) -> None:
    engine = llm()
    model = li.EngineLLM(engine=engine, max_tokens=4)
    messages = [
        ChatMessage(role=MessageRole.SYSTEM, content="Be short."),
        ChatMessage(role=MessageRole.USER, content="Who?"),
        ChatMessage(role=MessageRole.ASSISTANT, content="I."),
        ChatMessage(role=MessageRole.USER, content="Why?"),
    ]
    for form, said in completion_forms(model, call, messages if call == "chat" else "Why?").items():
        if isinstance(said, list):
            assert [r.delta for r in said] == [*PIECES, ""], form
            told = [r.message.content if call == "chat" else r.text for r in said]
            assert told[:2] == ["because ", "because it "], form
            said = said[-1]
        text = said.message.content if call == "chat" else said.text
        assert text == "because it is so", form
        assert type(text) is str
        assert said.raw["finish_reason"] == "length", form
        assert said.additional_kwargs == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}, form
    assert {*engine.seen} == {PROMPT if call == "chat" else "Why?"}
    assert {value_key(b.settings) for b in engine.batches} == {value_key({"temperature": 0.0, "max_tokens": 4})}


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_llamaindex_predicts_by_the_metadata(is_chat_model: bool) -> None:
    engine = llm()
    model = li.EngineLLM(engine=engine, is_chat_model=is_chat_model)
    assert model.predict(PromptTemplate("Why {what}?"), what="so") == "because it is so"
    assert "".join(model.stream(PromptTemplate("Why {what}?"), what="so")) == "because it is so"
    assert {*engine.seen} == {"User: Why so?\nAssistant:" if is_chat_model else "Why so?"}


def test_llamaindex_settings_come_from_the_model_and_the_call() -> None:
    engine = llm()
    model = li.EngineLLM(engine=engine, temperature=0.5, settings={"top_k": 3}, completion_to_prompt=lambda p: f"<{p}>")
    model.complete("Why?", stop=["x"], max_tokens=9)
    assert engine.batches[0].settings == {"temperature": 0.5, "max_tokens": 9, "top_k": 3, "stop": ["x"]}
    assert model.request_for("Why?", stop=["x"], max_tokens=9) == (engine.seen[0], dict(engine.batches[0].settings))
    assert engine.seen == ["<Why?>"]
    assert model.request_for("Why?", formatted=True)[0] == "Why?"
    own = li.EngineLLM(engine=engine, messages_to_prompt=lambda messages: "; ".join(str(m.content) for m in messages))
    assert own.request_for([ChatMessage("a"), ChatMessage("b")])[0] == "a; b"


def test_llamaindex_sizes_its_prompts_by_the_model() -> None:
    known = li.EngineLLM(engine=llm(), context_window=100, max_tokens=7).metadata
    assert (known.context_window, known.num_output, known.model_name) == (100, 7, "llm")


def test_llamaindex_embedding() -> None:
    engine = FakeEngine(lambda text: np.full(2, len(text), np.float32), name="embedder", max_items=64)
    model = li.EngineEmbedding(engine=engine, embed_batch_size=20)
    assert model.model_name == "embedder"
    assert model.get_text_embedding_batch(["a", "bb"]) == [[1.0, 1.0], [2.0, 2.0]]
    assert len(engine.batches[0].items) == 2
    assert model.get_query_embedding("abc") == model.get_text_embedding("abc") == [3.0, 3.0]
    assert asyncio.run(model.aget_query_embedding("abc")) == [3.0, 3.0]
    assert asyncio.run(model.aget_text_embedding_batch(["a", "bb"])) == [[1.0, 1.0], [2.0, 2.0]]


def test_a_llamaindex_reranker_keeps_the_best() -> None:
    engine = FakeEngine(lambda pair: float(len(pair[1]) % 3), name="reranker")
    model = li.EngineRerank(engine=engine, top_n=2, keep_retrieval_score=True)

    def nodes() -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="a" * n, id_=str(n)), score=0.1 * n) for n in range(1, 8)]

    best = model.postprocess_nodes(nodes(), query_str="q")
    assert [(n.node_id, n.score) for n in best] == [("2", 2.0), ("5", 2.0)]
    assert best[0].node.metadata["retrieval_score"] == pytest.approx(0.2)
    debug = LlamaDebugHandler(print_trace_on_end=False)
    heard = li.EngineRerank(engine=engine, callback_manager=CallbackManager([debug]))
    best = heard.postprocess_nodes(nodes(), query_str="q")
    assert debug.get_event_pairs(CBEventType.RERANKING)[0][1].payload == {EventPayload.NODES: best}
    other = asyncio.run(model.apostprocess_nodes(nodes(), QueryBundle("q")))
    assert [(n.node_id, n.score) for n in other] == [("2", 2.0), ("5", 2.0)]
    assert model.request_for("q", nodes()[0]) == (engine.seen[0], {})
    described = TextNode(text="a", metadata={"title": "T", "page": 1}, excluded_embed_metadata_keys=["page"])
    assert model.request_for("q", NodeWithScore(node=described))[0] == ("q", "title: T\n\na")
    with pytest.raises(ValueError, match="query"):
        model.postprocess_nodes(nodes())


# --- both ----------------------------------------------------------------------------------------------------


def test_an_answer_that_is_not_streamed_comes_in_one_piece() -> None:
    engine = llm(lambda payload: "all at once")  # a rehearsal, or an engine that cannot stream
    assert [c.content for c in lc.EngineChatModel(engine=engine).stream("x")] == ["all at once", ""]
    assert [r.delta for r in li.EngineLLM(engine=engine).stream_complete("x")] == ["all at once", ""]


def test_models_ask_the_session_of_the_call() -> None:
    from teola_plugin.runtime.session.session import Session

    engine = llm()
    session = Session(runtime.host)
    with active(session):
        lc.EngineChatModel(engine=engine).invoke("Why?")
        li.EngineLLM(engine=engine).complete("Why?")
    assert session.close().misses == 2


def test_the_models_of_one_engine_name_the_same_slot() -> None:
    engine = llm()
    models = [lc.EngineChatModel(engine=engine), lc.EngineLLM(engine=engine), li.EngineLLM(engine=engine)]
    assert len({model.spec.key for model in models}) == 1


def test_a_conversation_without_a_template() -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    assert render_plainly(messages) == "User: Hello\nAssistant: Hi\nAssistant:"
    assert render_plainly([*messages, {"role": "user", "content": "x"}]).startswith(
        render_plainly(messages).removesuffix("Assistant:")
    )


@pytest.mark.real
@pytest.mark.timeout(400)
def test_both_frameworks_get_the_same_answer_from_vllm(vllm_engine: VllmEngine) -> None:
    chat = lc.EngineChatModel(engine=vllm_engine, max_tokens=8, settings={"ignore_eos": True})
    index = li.EngineLLM(engine=vllm_engine, max_tokens=8, settings={"ignore_eos": True})
    expected = chat.invoke("Why?")
    assert expected.usage_metadata is not None
    assert expected.usage_metadata["output_tokens"] == 8
    chunks = list(chat.stream("Why?"))
    assert len(chunks) == 9
    assert "".join(c.text for c in chunks) == expected.content
    assert index.chat([ChatMessage("Why?")]).message.content == expected.content
    assert [r.delta for r in index.stream_chat([ChatMessage("Why?")])] == [c.content for c in chunks]
