"""What engines do with a batch, on models and stores of these tests: settings, order, errors, what is kept."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import Batch, Delta, Done, EngineSpec, Failed, Foreign, Item, Outcome
from teola_plugin.errors import Cancelled, EngineClosed, EngineError
from teola_plugin.resources import lock_for, writing
from teola_plugin.runtime.engines import engine_for, run_here, run_on
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.encoders import prompted
from teola_plugin.runtime.engines.item_tasks import ItemTasks
from teola_plugin.runtime.engines.kv_demand import KvDemand
from teola_plugin.runtime.engines.openai_protocol import fields_of
from teola_plugin.runtime.engines.openai_stream import Answer
from teola_plugin.runtime.engines.prefix_cache import PrefixCache
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.sampling import held_back_chars, is_continuable, sampling_params
from teola_plugin.runtime.engines.worker import Worker, isolate
from tests.support.fakes import FakeEngine


async def outcomes(engine: Any, op: str, payloads: Sequence[Any], owners: Sequence[int] = (), **settings: Any) -> Any:
    """The last outcome of each item."""
    owners = owners or [1] * len(payloads)
    items = tuple(Item(payload, owner, id=n) for n, (payload, owner) in enumerate(zip(payloads, owners, strict=True)))
    told: dict[int, Outcome] = {}
    await engine.run(Batch(op, settings, items), told.__setitem__)
    return [told[n] for n in range(len(payloads))]


# --- models ----------------------------------------------------------------------------------------------------------


class Encoder:
    """A model of sentence-transformers, as far as an engine asks it. It notes what it was asked, and who else was."""

    device = types.SimpleNamespace(type="cuda")

    def __init__(self, default_prompt_name: str | None = None) -> None:
        self.default_prompt_name = default_prompt_name
        self.asked: list[tuple[list[Any], dict[str, Any]]] = []
        self.was_locked: list[bool] = []

    def encode(self, texts: list[str], **more: Any) -> Any:
        self.asked.append((texts, more))
        free: list[bool] = []
        other = threading.Thread(target=lambda: free.append(lock_for(self).acquire(blocking=False)))
        other.start()
        other.join()
        self.was_locked.append(not free[0])
        return np.array([[len(text)] for text in texts], np.float32)

    predict = encode


@pytest.mark.parametrize("kind", [EmbeddingEngine, RerankingEngine])
async def test_a_model_is_asked_once_for_a_batch_with_all_settings_and_nobody_else_computes(kind: Any) -> None:
    model = Encoder()
    engine = kind(model)
    is_pairs = kind is RerankingEngine
    payloads: list[Any] = [("q", "passage"), ("q", "p")] if is_pairs else ["text", "t"]
    found = await outcomes(engine, "reranking" if is_pairs else "embedding", payloads, normalize=True)
    assert [np.ravel(each.value).tolist() for each in found] == ([[2.0], [2.0]] if is_pairs else [[4.0], [1.0]])
    texts = [["q", "passage"], ["q", "p"]] if is_pairs else ["text", "t"]
    assert model.asked == [(texts, {"show_progress_bar": False, "normalize": True})]
    assert model.was_locked == [True]
    (wrong,) = await outcomes(engine, "decoding", ["x"])
    assert isinstance(wrong.error, EngineError)
    await engine.close()


def test_no_prompt_is_none_whatever_the_models_default() -> None:
    assert prompted(Encoder("query"), {}) == {"prompt": ""}
    assert prompted(Encoder("query"), {"prompt": "p: "}) == {"prompt": "p: "}
    assert prompted(Encoder(), {"a": 1}) == {"a": 1}


def test_an_object_has_one_engine_and_may_run_elsewhere() -> None:
    spec, other = (EngineSpec("sentence_transformer", Encoder()) for _ in range(2))
    engine = engine_for(spec)
    assert engine_for(spec) is engine
    assert engine_for(other) is not engine
    far = FakeEngine()
    run_on(spec, far)
    assert engine_for(spec) is far
    run_here(spec)
    assert engine_for(spec) is engine


# --- stores ----------------------------------------------------------------------------------------------------------


class Collection:
    """A collection of Chroma's, as far as an engine asks it."""

    def __init__(self, name: str = "kb") -> None:
        self.id = self.name = name
        self.texts: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def add(self, *, ids: list[str], embeddings: list[Any], documents: list[str]) -> None:
        assert len(ids) == len(set(ids)) == len(embeddings)
        self.texts += documents

    def query(self, *, query_embeddings: list[Any], n_results: int, **more: Any) -> dict[str, Any]:
        self.asked.append({"n_results": n_results, **more})
        rows = [[f"{vector[0]:g} of {self.name}"] for vector in query_embeddings]
        found = [self.texts[:n_results]] * len(rows)
        return {"ids": rows, "documents": found, "distances": rows, "data": None, "included": ["ids"]}


class Client:
    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}

    def create_collection(self, name: str, embedding_function: Any) -> Collection:
        return self.collections.setdefault(name, Collection(name))

    def delete_collection(self, name: str) -> None:
        del self.collections[name]


async def test_a_search_goes_to_the_store_with_all_its_settings_and_each_gets_its_own() -> None:
    collection = Collection()
    engine = ChromaEngine(collection)
    vectors = [np.array([n], np.float32) for n in (1, 2)]
    found = await outcomes(engine, "searching", vectors, top_k=3, where={"year": 2000}, include=("ids",))
    assert collection.asked == [{"n_results": 3, "where": {"year": 2000}, "include": ["ids"]}]
    assert [each.value["ids"] for each in found] == [["1 of kb"], ["2 of kb"]]
    assert [(each.value["data"], each.value["included"]) for each in found] == [(None, ["ids"])] * 2
    before = engine.stamp()
    assert engine.stamp() == before
    with writing(collection.id):
        pass
    assert engine.stamp() != before
    await engine.close()


async def test_documents_belong_to_their_query_and_go_with_it() -> None:
    client = Client()
    engine = ChromaDocumentsEngine(client)
    vector = np.zeros(1, np.float32)
    await outcomes(engine, "ingestion", [(vector, "a1"), (vector, "b1"), (vector, "a2")], owners=[1, 2, 1])
    found = await outcomes(engine, "searching", [vector] * 3, owners=[1, 2, 3], top_k=9)
    assert [each.value["documents"] for each in found] == [["a1", "a2"], ["b1"], []]
    engine.release(1)
    late = await outcomes(engine, "ingestion", [(vector, "late")], owners=[1])
    assert isinstance(late[0].error, Cancelled)
    assert [collection.texts for collection in client.collections.values()] == [["b1"]]
    (nobody,) = await outcomes(engine, "searching", [vector], owners=[0], top_k=1)
    assert isinstance(nobody.error, EngineError)
    await engine.close()
    assert client.collections == {}


# --- batches that fail -----------------------------------------------------------------------------------------------


def test_what_fails_in_a_batch_fails_alone_and_in_its_place() -> None:
    asked: list[list[str]] = []

    def compute(payloads: Sequence[str]) -> list[str]:
        asked.append(list(payloads))
        if "bad" in payloads:
            raise ValueError("bad")
        return [payload.upper() for payload in payloads]

    found = isolate(compute, ["a", "b", "bad", "c", "d"])
    assert [each.value if isinstance(each, Done) else type(each.error) for each in found] == [
        "A", "B", ValueError, "C", "D",
    ]  # fmt: skip
    assert asked[0] == ["a", "b", "bad", "c", "d"]
    assert ["bad"] in asked


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_model_that_gives_too_many_or_too_few_values_fails(count: int) -> None:
    found = isolate(lambda payloads: ["x"] * (len(payloads) if len(payloads) == 1 else count), ["a", "b"])
    assert [each.value if isinstance(each, Done) else "failed" for each in found] == ["x", "x"]
    (alone,) = isolate(lambda payloads: ["x"] * 2, ["a"])
    assert isinstance(alone, Failed)


async def test_work_on_a_thread_sees_nothing_of_its_caller() -> None:
    seen = contextvars.ContextVar("seen", default="nothing")
    seen.set("the caller's")
    worker = Worker("test")
    assert await worker.call(seen.get) == "nothing"
    worker.stop()
    assert await worker.call(lambda: "again") == "again"


async def test_an_item_has_its_own_deadline_its_own_error_and_its_own_end() -> None:
    tasks, told = ItemTasks(), dict[int, Outcome]()
    never = asyncio.Event()

    async def work(item: Item, tell: Any) -> Any:
        if item.payload == "fails":
            raise ValueError("no")
        if item.payload == "waits":
            await never.wait()
        return item.payload

    now_s = asyncio.get_running_loop().time()
    items = (
        Item("fine", id=1), Item("fails", id=2), Item("waits", id=3, deadline_s=now_s + 0.05), Item("waits", id=4),
    )  # fmt: skip
    running = asyncio.ensure_future(tasks.run("e", Batch("x", {}, items), told.__setitem__, work, lambda e: e))
    await asyncio.sleep(0.2)
    assert set(told) == {0, 1, 2}
    tasks.abort([4, 99])
    await asyncio.wait_for(running, 5)
    assert told[0] == Done("fine")
    assert [type(told[n].error) for n in (1, 2, 3)] == [ValueError, TimeoutError, Cancelled]  # type: ignore[union-attr]
    assert not tasks


# --- foreign calls ---------------------------------------------------------------------------------------------------


def exits() -> Any:
    raise SystemExit(3)


async def test_foreign_calls_come_to_what_they_come_to() -> None:
    engine = PythonEngine()

    async def acall() -> str:
        return "later"

    loop = asyncio.get_running_loop()
    calls = [
        Foreign("a", lambda: "said"), Foreign("b", exits), Foreign("c", acall, is_async=True, loop=loop),
        Foreign("d", acall, is_async=True),
    ]  # fmt: skip
    found = await outcomes(engine, "decoding", calls)
    assert [each.value for each in (found[0], found[2])] == ["said", "later"]
    assert [type(found[n].error) for n in (1, 3)] == [SystemExit, EngineClosed]
    await engine.close()


async def test_a_foreign_call_that_nobody_waits_for_is_cancelled_and_its_stream_stopped() -> None:
    engine = PythonEngine()
    stopped, told = threading.Event(), list[Outcome]()
    go_on, begun = threading.Event(), threading.Event()

    def stream(tell: Any) -> str:
        tell("first")
        begun.set()
        go_on.wait(10)
        try:
            tell("second")
        except Cancelled:
            stopped.set()
            raise
        return "whole"

    foreign = Foreign("a", lambda: "whole", stream=stream, is_streamed=True)
    batch = Batch("decoding", {}, (Item(foreign, id=1),))
    running = asyncio.ensure_future(engine.run(batch, lambda at, outcome: told.append(outcome)))
    while not begun.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    engine.abort([1])
    await asyncio.wait_for(running, 5)
    go_on.set()
    assert await asyncio.to_thread(stopped.wait, 5)
    assert told[0] == Delta("first")
    assert [type(each.error) for each in told[1:]] == [Cancelled]  # type: ignore[union-attr]
    await engine.close()


# --- settings of LLMs ------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What of vLLM the settings become."""
    module = types.ModuleType("vllm.sampling_params")
    module.RequestOutputKind = types.SimpleNamespace(DELTA="delta")  # type: ignore[attr-defined]
    module.SamplingParams = lambda **given: types.SimpleNamespace(**given)  # type: ignore[attr-defined]
    module.StructuredOutputsParams = lambda **given: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("stop", "words"), [("END", ["END"]), (["END", "STOP"], ["END", "STOP"]), (("a",), ["a"]), ([], None), (None, None)]
)
def test_vllm_is_told_all_stop_words(stop: Any, words: list[str] | None) -> None:
    params = sampling_params({"stop": stop, "max_tokens": 5})
    assert getattr(params, "stop", None) == words
    assert params.detokenize is bool(words)
    assert params.max_tokens == 5


@pytest.mark.usefixtures("vllm")
def test_vllm_is_told_each_setting_as_it_is_and_unknown_ones_are_refused() -> None:
    params = sampling_params(
        {"logit_bias": {"7": 1}, "stop_token_ids": (1, 2), "structured_outputs": {"regex": "a+"}, "seed": 0}
    )
    assert (params.logit_bias, params.stop_token_ids, params.structured_outputs) == ({7: 1.0}, [1, 2], {"regex": "a+"})
    assert params.seed == 0
    with pytest.raises(EngineError, match="unknown setting best_of"):
        sampling_params({"best_of": 3})


def test_what_may_begin_a_stop_word_is_held_back() -> None:
    of = types.SimpleNamespace
    assert held_back_chars(of(stop=["END", "STOP"], include_stop_str_in_output=False)) == 3
    assert held_back_chars(of(stop=["END"], include_stop_str_in_output=True)) == 0
    assert held_back_chars(of(stop=[], include_stop_str_in_output=False)) == 0


@pytest.mark.parametrize(
    ("settings", "is_so"),
    [({"temperature": 0, "max_tokens": 9}, True), ({"stop": ["a"]}, False), ({"stop": []}, True), ({"seed": 1}, False)],
)
def test_which_requests_may_continue_an_open_prefill(settings: dict[str, Any], is_so: bool) -> None:
    assert is_continuable(settings) is is_so


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp", "unknown"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_servers_are_told_all_that_was_asked_for(kind: Any, is_chat: bool) -> None:
    asked = {"stop": ["a", "b"], "temperature": 0.0, "seed": None, "logit_bias": {3: 1}, "extra_body": {"mine": 1}}
    expected = {"stop": ["a", "b"], "temperature": 0.0, "logit_bias": {"3": 1.0}, "mine": 1}
    assert fields_of(asked, kind, is_chat=is_chat) == expected
    assert fields_of({"stop": "word"}, kind, is_chat=is_chat) == {"stop": "word"}
    with pytest.raises(EngineError, match="no setting best_of"):
        fields_of({"best_of": 2}, kind, is_chat=is_chat)


def chunk(**choice: Any) -> Any:
    of = types.SimpleNamespace
    calls = [of(function=of(name=name, arguments=text)) for name, text in choice.pop("calls", ())]
    delta = of(content=choice.pop("content", None), tool_calls=calls)
    return of(usage=choice.pop("usage", None), choices=[of(delta=delta, finish_reason=choice.pop("reason", None))])


def test_calls_that_come_in_pieces_are_whole_and_apart() -> None:
    said: list[Outcome] = []
    answer = Answer(said.append)
    for each in (
        chunk(content="Let me see."), chunk(calls=[("find", '{"q": ')]), chunk(calls=[(None, '"bees"}')]),
        chunk(calls=[("count", "")]), chunk(reason="tool_calls"),
    ):  # fmt: skip
        answer.read(each)
    text = str(answer.completion())
    assert text.startswith("Let me see.")
    assert '{"name": "find", "arguments": {"q": "bees"}}' in text
    assert '{"name": "count", "arguments": {}}' in text
    assert answer.completion().finish_reason == "stop"
    assert "".join(each.text for each in said if isinstance(each, Delta)) == text


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_how_an_answer_ended_is_told(reason: str) -> None:
    answer = Answer(lambda outcome: None)
    answer.read(chunk(content="a", reason=reason))
    assert answer.completion().finish_reason == reason
    answer.begin()
    assert (answer.pieces, answer.finish_reason) == ([], "")


# --- room ------------------------------------------------------------------------------------------------------------


def test_kv_cache_is_asked_for_in_whole_blocks_up_to_what_the_model_takes() -> None:
    demand = KvDemand()
    demand.block_tokens, demand.max_model_len = 16, 100
    assert demand.guess("x" * 10, 10) == 16
    assert demand.guess("x" * 10, 20) == 32
    assert demand.guess("x" * 10_000, None) == 112
    assert demand.of_item("partial_prefilling", "x" * 10, {}) == 16
    assert demand.of_item("decoding", object(), {}) == 0


def test_a_prefix_cache_holds_whole_blocks_and_drops_what_was_used_least_lately() -> None:
    cache = PrefixCache(max_blocks=3, block_tokens=2)
    cache.add("abcd")
    assert cache.hit_tokens("abcd") == 2, "the last token is always computed"
    assert cache.hit_tokens("abcde") == 4
    assert cache.hit_tokens("xbcd") == 0
    cache.add("ef")
    assert cache.hit_tokens("abcde") == 4
    cache.add("gh")
    assert (cache.hit_tokens("efx"), cache.hit_tokens("abcde"), cache.hit_tokens("ghx")) == (0, 4, 2)
    cache.add("ij")
    assert cache.hit_tokens("abcde") == 2, "a block goes before the one that it follows"
