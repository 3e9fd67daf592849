"""The engines that need no LLM: a batch is as good as single calls, and what is poisoned fails alone."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import Batch, Done, EngineSpec, Failed, Foreign, Item
from teola_plugin.errors import Cancelled, EngineClosed, EngineError
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.worker import Worker, isolate
from teola_plugin.seams import active, current
from tests.support.fakes import collect_garbage
from tests.support.real_models import (
    TEXTS,
    InlineSession,
    collection,
    cross_encoder,
    minilm,
    outcomes,
    same,
    values,
)


class FakeModel:
    """Embeds a text as its length; `poison` fails the call it is in."""

    default_prompt_name: str | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[str], dict[str, Any]]] = []
        self.threads: set[str] = set()

    def encode(self, texts: Sequence[str], show_progress_bar: bool, **settings: Any) -> np.ndarray[Any, Any]:
        self.calls.append((texts, settings))
        self.threads.add(threading.current_thread().name)
        for text in texts:
            if "poison" in text:
                raise ValueError(text)
        return np.array([[len(text), 0] for text in texts], dtype=np.float32)


def ran(engine: Any, op: str, payloads: Sequence[Any], **settings: Any) -> list[Done | Failed]:
    """How each item ends."""
    found: dict[int, Any] = {}

    async def run() -> None:
        await engine.run(Batch(op, settings, tuple(map(Item, payloads))), found.__setitem__)
        await engine.close()

    asyncio.run(run())
    return [found[at] for at in range(len(payloads))]


# --- batches and poison --------------------------------------------------------------------------------------


def test_a_worker_starts_a_thread_only_when_all_are_busy() -> None:
    worker = Worker("test", threads=3)
    names = {worker.submit(lambda: threading.current_thread().name).result() for _ in range(20)}
    assert len(names) <= 2, "the second call may come before the first thread is idle again"
    together = threading.Barrier(3)
    for busy in [worker.submit(lambda: together.wait(10)) for _ in range(3)]:
        busy.result()


def test_a_batch_is_one_call_on_the_engines_own_thread() -> None:
    model = FakeModel()
    engine = EmbeddingEngine(model, name="e")
    rows = values(engine, "embedding", ["a", "bb", "ccc"], normalize_embeddings=True)
    values(engine, "embedding", ["d"])
    assert [row.tolist() for row in rows] == [[1, 0], [2, 0], [3, 0]]
    assert model.calls == [(["a", "bb", "ccc"], {"normalize_embeddings": True}), (["d"], {})]
    assert model.threads == {"teola-e-1"}


@pytest.mark.parametrize("poisoned", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_poisoned_items_fail_alone_with_their_own_errors(poisoned: set[int]) -> None:
    texts = [f"poison {i}" if i in poisoned else f"text {i}" for i in range(7)]
    said = outcomes(EmbeddingEngine(FakeModel()), "embedding", texts)
    assert {i for i, outcome in enumerate(said) if isinstance(outcome, Failed)} == poisoned
    assert [str(said[i].error) for i in sorted(poisoned)] == [texts[i] for i in sorted(poisoned)]  # type: ignore[union-attr]


def test_what_fails_in_company_only_succeeds() -> None:
    def compute(payloads: Sequence[int]) -> list[int]:
        if len(payloads) > 2:
            raise MemoryError
        return [p * 10 for p in payloads]

    assert isolate(compute, [1, 2, 3, 4, 5]) == [Done(p * 10) for p in (1, 2, 3, 4, 5)]


def test_an_exit_of_the_model_is_the_error_of_its_item() -> None:
    def compute(payloads: Sequence[str]) -> Sequence[str]:
        if "exit" in payloads:
            sys.exit("model")
        return payloads

    good, bad = isolate(compute, ["text", "exit"])
    assert good == Done("text")
    assert isinstance(bad, Failed)
    assert isinstance(bad.error, SystemExit)


def test_a_model_that_loses_items_is_found_out() -> None:
    assert all(isinstance(outcome, Failed) for outcome in isolate(lambda payloads: [], [1, 2]))


class OddModel:
    """Gives `rows(texts)`, whether that is right or not."""

    default_prompt_name: str | None = None

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def encode(self, texts: Sequence[str], show_progress_bar: bool, **settings: Any) -> Any:
        return self.rows(texts)

    predict = encode


@pytest.mark.parametrize("engine_of", [EmbeddingEngine, RerankingEngine])
@pytest.mark.parametrize("by", [-1, 1, 5])
def test_rows_of_another_number_are_nobodys(engine_of: Any, by: int) -> None:
    """Not even of those that they could belong to."""
    op, payloads = (
        ("embedding", ["a", "b"]) if engine_of is EmbeddingEngine else ("reranking", [("a", "b"), ("c", "d")])
    )
    model = OddModel(lambda texts: np.ones((max(0, len(texts) + by), 2)))
    for outcome in ran(engine_of(model), op, payloads):
        assert isinstance(outcome, Failed)
        with pytest.raises(EngineError, match=f"gave {1 + by} values for 1 items"):
            raise outcome.error


@pytest.mark.parametrize("odd", [np.nan, np.inf, -0.0])
def test_odd_numbers_of_a_model_are_its_values(odd: float) -> None:
    model = OddModel(lambda texts: np.array([[odd, 1], [2, 3]], dtype=np.float64))
    found = [outcome.value for outcome in ran(EmbeddingEngine(model), "embedding", ["a", "b"])]  # type: ignore[union-attr]
    np.testing.assert_array_equal(found, [[odd, 1], [2, 3]])
    assert found[0].dtype == np.float64


class OddCollection:
    """Finds for each vector what `found(vectors)` says."""

    id = "odd"

    def __init__(self, found: Any) -> None:
        self.found = found

    def query(self, query_embeddings: Sequence[Any], n_results: int) -> Any:
        return self.found(query_embeddings)


@pytest.mark.parametrize("by", [-1, 1])
def test_results_for_another_number_of_vectors_are_nobodys(by: int) -> None:
    def found(vectors: Sequence[Any]) -> dict[str, Any]:
        return {"ids": [["a"]] * len(vectors), "documents": [["x"]] * (len(vectors) + by), "embeddings": None}

    for outcome in ran(ChromaEngine(OddCollection(found)), "searching", [np.zeros(2), np.ones(2)], top_k=1):
        assert isinstance(outcome, Failed)
        with pytest.raises(EngineError, match=f"Chroma gave {1 + by} rows of documents for 1 vectors"):
            raise outcome.error


def test_no_prompt_means_none_also_to_a_model_with_a_default() -> None:
    model = FakeModel()
    model.default_prompt_name = "query"
    engine = EmbeddingEngine(model)
    values(engine, "embedding", ["a"])
    values(engine, "embedding", ["a"], prompt="query: ")
    assert [settings for _, settings in model.calls] == [{"prompt": ""}, {"prompt": "query: "}]


def test_an_unknown_operation_fails_and_says_what_is_known() -> None:
    (said,) = outcomes(EmbeddingEngine(FakeModel()), "decoding", ["x"])
    assert isinstance(said, Failed)
    assert "'embedding'" in str(said.error)


def test_a_closed_engine_starts_again() -> None:
    engine = EmbeddingEngine(FakeModel())
    values(engine, "embedding", ["a"])
    asyncio.run(engine.close())
    assert len(values(engine, "embedding", ["a"])) == 1


# --- identity and life ---------------------------------------------------------------------------------------


def test_one_object_has_one_engine_for_its_life() -> None:
    model, other = FakeModel(), FakeModel()
    engine = engine_for(EngineSpec("sentence_transformer", model))
    assert engine_for(EngineSpec("sentence_transformer", model, "another name")) is engine
    assert engine_for(EngineSpec("sentence_transformer", other)) is not engine
    assert engine_for(EngineSpec("engine", engine)) is engine


def test_an_engine_goes_with_its_model_and_ends_its_thread() -> None:
    model = FakeModel()
    engine = engine_for(EngineSpec("sentence_transformer", model, "short-lived"))
    values(engine, "embedding", ["a"])
    thread = next(t for t in threading.enumerate() if t.name == "teola-short-lived-1")
    gone = weakref.ref(engine)
    del engine, model
    collect_garbage()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_an_engine_whose_model_is_gone_says_so() -> None:
    model = FakeModel()
    engine = engine_for(EngineSpec("sentence_transformer", model))
    del model
    collect_garbage()
    (said,) = outcomes(engine, "embedding", ["a"])
    assert isinstance(said, Failed)
    assert isinstance(said.error, EngineClosed)


def test_specs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(EngineError, match="no kind of engine"):
        engine_for(EngineSpec("quantum", object()))
    with pytest.raises(EngineError, match="can stand on a int"):
        engine_for(EngineSpec("sentence_transformer", 7))


def test_foreign_calls_of_objects_that_cannot_be_held_share_an_engine() -> None:
    assert engine_for(EngineSpec("python", 7)) is engine_for(EngineSpec("python", None))


# --- foreign calls -------------------------------------------------------------------------------------------

_trace: ContextVar[str] = ContextVar("trace", default="empty")


def test_foreign_calls_run_side_by_side_in_an_empty_context() -> None:
    both = threading.Barrier(2)

    def call() -> tuple[str, object]:
        both.wait(10)
        return _trace.get(), current()

    _trace.set("the framework's")
    with active(InlineSession()):
        found = values(PythonEngine(), "decoding", [Foreign("a", call), Foreign("b", call)])
    assert found == [("empty", None)] * 2
    _trace.set("empty")


def test_a_call_leaves_nothing_in_the_context_of_the_next() -> None:
    def call() -> str:
        before = _trace.get()
        _trace.set("a call's")
        return before

    assert values(PythonEngine(max_items=1), "decoding", [Foreign("a", call), Foreign("b", call)]) == ["empty"] * 2


def test_a_foreign_error_is_the_same_object() -> None:
    error = ValueError("theirs")

    def call() -> None:
        raise error

    (said,) = outcomes(PythonEngine(), "call", [Foreign("a", call)])
    assert isinstance(said, Failed)
    assert said.error is error


def test_foreign_calls_are_told_apart_by_their_keys() -> None:
    assert Foreign("a", print) == Foreign("a", repr)
    assert len({Foreign("a", print), Foreign("a", repr), Foreign("b", print)}) == 2


async def test_a_coroutine_runs_on_the_callers_loop_in_an_empty_context() -> None:
    loop = asyncio.get_running_loop()

    async def call() -> tuple[bool, str]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is loop, _trace.get()

    _trace.set("the framework's")
    foreign = Foreign("a", call, is_async=True, loop=loop)
    (found,) = await asyncio.to_thread(values, PythonEngine(), "decoding", [foreign])
    assert found == (True, "empty")


@pytest.mark.parametrize("has_loop", [False, True])
def test_a_coroutine_without_a_running_loop_fails(has_loop: bool) -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def call() -> None: ...

    foreign = Foreign("a", call, is_async=True, loop=loop if has_loop else None)
    (said,) = outcomes(PythonEngine(), "decoding", [foreign])
    assert isinstance(said, Failed)
    assert isinstance(said.error, EngineClosed)


async def test_an_aborted_coroutine_is_cancelled_on_its_loop() -> None:
    engine = PythonEngine()
    begun, cancelled = asyncio.Event(), asyncio.Event()
    said: list[Any] = []

    async def call() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    foreign = Foreign("a", call, is_async=True, loop=asyncio.get_running_loop())
    batch = Batch("decoding", {}, (Item(foreign, id=5),))
    running = asyncio.create_task(engine.run(batch, lambda _, outcome: said.append(outcome)))
    await begun.wait()
    engine.abort([5, 6])
    await running
    await cancelled.wait()
    assert isinstance(said[0].error, Cancelled)


# --- real models ---------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("settings", [{}, {"normalize_embeddings": True, "prompt": "q: ", "truncate_dim": 64}])
def test_a_batch_of_embeddings_equals_single_ones(settings: dict[str, Any]) -> None:
    rows = values(EmbeddingEngine(minilm()), "embedding", TEXTS, **settings)
    assert same(rows, [minilm().encode(text, **settings) for text in TEXTS])


@pytest.mark.real
def test_batches_are_small_where_few_threads_compute() -> None:
    import torch

    for engine in (EmbeddingEngine(minilm()), RerankingEngine(cross_encoder())):
        assert engine.capabilities.max_items == min(32, 4 * torch.get_num_threads())
    assert EmbeddingEngine(minilm(), max_items=5).capabilities.max_items == 5
    assert EmbeddingEngine(FakeModel()).capabilities.max_items == 32


@pytest.mark.real
def test_a_batch_of_scores_equals_single_ones() -> None:
    pairs = [("what sat?", text) for text in TEXTS] + [("what retires?", text) for text in TEXTS]
    scores = values(RerankingEngine(cross_encoder()), "reranking", pairs)
    assert same(scores, [cross_encoder().predict(pair) for pair in pairs])
    assert len({float(score) for score in scores}) > 4  # else they would equal each other in any order


@pytest.mark.real
@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 3},
        {"top_k": 2, "where": {"parity": 1}},
        {"top_k": 9, "where_document": {"$contains": "3"}, "include": ["embeddings"]},
    ],
)
def test_a_batch_of_searches_equals_single_ones(settings: dict[str, Any]) -> None:
    engine = ChromaEngine(kb := collection())
    vectors = [np.array([x, 1], dtype=np.float32) for x in (0.0, 4.2, 9.0)]
    found = values(engine, "searching", vectors, **settings)
    arguments = {("n_results" if k == "top_k" else k): v for k, v in settings.items()}
    for vector, columns in zip(vectors, found, strict=True):
        single = kb.query(query_embeddings=[vector], **arguments)
        assert list(columns) == list(single)
        for name, column in columns.items():
            if name == "included" or single[name] is None:
                assert column == single[name]
            elif name == "embeddings":
                assert same(column, single[name][0])
            else:
                assert column == single[name][0]


@pytest.mark.real
def test_a_vector_that_does_not_fit_fails_alone() -> None:
    vectors = [np.ones(2, dtype=np.float32), np.ones(5, dtype=np.float32), np.zeros(2, dtype=np.float32)]
    said = outcomes(ChromaEngine(collection()), "searching", vectors, top_k=1)
    assert [type(outcome) for outcome in said] == [Done, Failed, Done]
    assert "dimension" in str(said[1].error)  # type: ignore[union-attr]
