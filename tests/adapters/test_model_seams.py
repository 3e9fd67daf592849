"""The seams of sentence-transformers and Chroma return what the library returns, to the type; outside a session they
are not there."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from teola_plugin.adapters import chroma, sentence_transformers
from teola_plugin.adapters.chroma import searching_settings
from teola_plugin.adapters.sentence_transformers import embedding_settings, reranking_settings
from teola_plugin.demo.tiny_model import minilm_path
from teola_plugin.errors import EngineClosed
from teola_plugin.processor import Processor
from teola_plugin.resources import lock_for, version
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.seams import active
from teola_plugin.value_keys import value_key
from tests.support.real_models import TEXTS, InlineSession, collection, cross_encoder, minilm, same

pytestmark = pytest.mark.real

PAIRS = [("what sat?", text) for text in TEXTS]


@pytest.fixture
def session() -> InlineSession:
    assert sentence_transformers.spec_of(minilm())
    assert sentence_transformers.spec_of(cross_encoder())
    return InlineSession()


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


# --- sentence-transformers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [TEXTS, tuple(TEXTS), TEXTS[:1], TEXTS[0], "", np.str_("numpy")])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"normalize_embeddings": True, "batch_size": 2, "show_progress_bar": False, "device": "cpu"},
        {"prompt": "passage: ", "truncate_dim": 32, "precision": None},
    ],
)
def test_encode_in_a_session_returns_the_same(session: InlineSession, inputs: Any, arguments: Any) -> None:
    plain = minilm().encode(inputs, **arguments)
    with active(session):
        asked = minilm().encode(inputs, **arguments)
    assert same(asked, plain)
    assert len(session.asked) == (1 if isinstance(inputs, str) else len(inputs))


def test_vectors_are_normalised_where_that_is_asked(session: InlineSession) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=list(minilm())[:2], device="cpu")  # without the step that normalises them all
    plain = model.encode(TEXTS, normalize_embeddings=True), model.encode(TEXTS)
    with active(session):
        asked = model.encode(TEXTS, normalize_embeddings=True), model.encode(TEXTS)
    assert all(map(same, asked, plain))
    assert not same(*plain)
    assert len(session.asked) == 2 * len(TEXTS)


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ([], {}),
        (np.array(TEXTS), {}),
        ([["what sat?", text] for text in TEXTS], {}),
        (TEXTS, {"output_value": "token_embeddings"}),
        (TEXTS, {"output_value": None}),
        (TEXTS, {"precision": "int8"}),
        (TEXTS, {"precision": "ubinary"}),
        (TEXTS, {"processing_kwargs": {"text": {"max_length": 4, "truncation": True}}}),
    ],
)
def test_encode_calls_that_items_cannot_express_are_plain(session: InlineSession, inputs: Any, arguments: Any) -> None:
    plain = minilm().encode(inputs, **arguments)
    with active(session):
        asked = minilm().encode(inputs, **arguments)
    assert type(asked) is type(plain)
    assert str(asked) == str(plain)
    assert not session.asked


@pytest.mark.parametrize(
    "arguments", [{"prompt_name": "nowhere"}, {"batch_size": 0}, {"precision": "odd"}, {"unknown": 1}, {"prompt": 3}]
)
def test_encode_raises_the_same_error(session: InlineSession, arguments: Any) -> None:
    with pytest.raises(Exception) as plain:  # noqa: PT011  whatever the library raises
        minilm().encode(TEXTS, **arguments)
    with active(session), pytest.raises(type(plain.value)) as asked:
        minilm().encode(TEXTS, **arguments)
    assert str(asked.value) == str(plain.value)


def test_positional_arguments_and_methods_that_come_down_to_encode_are_understood(session: InlineSession) -> None:
    plain = minilm().encode(TEXTS, None, "passage: ", 2), minilm().encode_query(TEXTS)
    with active(session):
        asked = minilm().encode(TEXTS, None, "passage: ", 2), minilm().encode_query(TEXTS)
    assert all(map(same, asked, plain))
    assert [s for _, _, _, s in session.asked[:: len(TEXTS)]] == [{"prompt": "passage: "}, {"task": "query"}]


@pytest.mark.parametrize("inputs", [PAIRS, list(map(list, PAIRS)), tuple(PAIRS), PAIRS[:1], PAIRS[0], list(PAIRS[0])])
@pytest.mark.parametrize("arguments", [{}, {"convert_to_tensor": True}, {"convert_to_numpy": False}, {"batch_size": 1}])
def test_predict_in_a_session_returns_the_same(session: InlineSession, inputs: Any, arguments: Any) -> None:
    plain = cross_encoder().predict(inputs, **arguments)
    with active(session):
        asked = cross_encoder().predict(inputs, **arguments)
    assert same(asked, plain)
    assert len(session.asked) in (1, len(PAIRS))


def test_predict_calls_that_items_cannot_express_are_plain(session: InlineSession) -> None:
    import torch

    with active(session):
        logits = cross_encoder().predict(PAIRS, activation_fn=torch.nn.Identity())
        empty = cross_encoder().predict([])
    assert same(logits, cross_encoder().predict(PAIRS, activation_fn=torch.nn.Identity()))
    assert empty.shape == (0,)
    assert not session.asked


def test_rank_comes_down_to_predict(session: InlineSession) -> None:
    plain = cross_encoder().rank("what sat?", TEXTS)
    with active(session):
        asked = cross_encoder().rank("what sat?", TEXTS)
    assert [r["corpus_id"] for r in asked] == [r["corpus_id"] for r in plain]
    assert {type(r["score"]) for r in asked} == {float}
    assert len(session.asked) == len(TEXTS)


def test_settings_are_what_decides_the_values() -> None:
    model = copy.copy(minilm())
    model.prompts, model.default_prompt_name = {"query": "q: ", "text": "", "none": None}, None
    assert embedding_settings(model) == {}
    assert embedding_settings(model, batch_size=7, show_progress_bar=True, convert_to_tensor=True) == {}
    assert embedding_settings(model, prompt_name="text") == embedding_settings(model, prompt_name="none") == {}
    assert (
        embedding_settings(model, prompt_name="query") == embedding_settings(model, prompt="q: ") == {"prompt": "q: "}
    )
    assert embedding_settings(model, prompt="p: ", prompt_name="query") == {"prompt": "p: "}
    assert embedding_settings(model, prompt_name="nowhere") is None
    assert embedding_settings(model, pool={}) is None
    assert embedding_settings(model, device="cuda:7") is None
    model.default_prompt_name = "query"
    assert embedding_settings(model) == {"prompt": "q: "}
    assert embedding_settings(model, prompt="") == {}
    with model.truncate_embeddings(16):
        assert embedding_settings(model, prompt="") == {"truncate_dim": 16}
    assert reranking_settings(cross_encoder(), apply_softmax=True) == {"apply_softmax": True}


def test_modes_of_the_callers_thread_are_honoured(session: InlineSession) -> None:
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = minilm().encode(TEXTS, convert_to_tensor=True)
        with active(session):
            asked = minilm().encode(TEXTS, convert_to_tensor=True)
    assert torch.equal(asked, plain)
    assert not session.asked


def test_subclasses_with_an_encode_of_their_own_are_plain(session: InlineSession) -> None:
    from sentence_transformers import SentenceTransformer

    class Shouting(SentenceTransformer):
        def encode(self, inputs: Any, **arguments: Any) -> Any:
            return super().encode([text.upper() + "!" for text in inputs], **arguments)

    model = Shouting(modules=list(minilm()), device="cpu")
    assert sentence_transformers.spec_of(model) is None
    with active(session):
        asked = model.encode(["a"])
    assert same(asked, minilm().encode(["A!"]))
    assert not session.asked


def test_a_model_that_the_user_has_changed_is_not_stock() -> None:
    from sentence_transformers import SentenceTransformer

    class Watched(SentenceTransformer):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    replaced = copy.copy(minilm())
    replaced.encode = lambda inputs, **arguments: minilm().encode(inputs.upper(), **arguments)
    assert sentence_transformers.spec_of(replaced) is None
    assert sentence_transformers.spec_of(Watched(modules=list(minilm()), device="cpu")) is None


def test_a_fault_of_ours_is_not_seen(session: InlineSession) -> None:
    session.broken = lambda: EngineClosed("shut down")
    with active(session):
        assert same(minilm().encode(TEXTS), minilm().encode(TEXTS))


def test_an_error_of_the_engine_is_the_same_object(session: InlineSession) -> None:
    error = RuntimeError("out of memory")
    session.broken = lambda: error
    with active(session), pytest.raises(RuntimeError) as raised:
        minilm().encode(TEXTS)
    assert raised.value is error


def test_a_plain_call_waits_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence_transformers.instrument_sentence_transformers()
    model = minilm()
    engine_for(sentence_transformers.spec_of(model))  # type: ignore[arg-type]
    lock: Any = lock_for(model)
    thread = threading.Thread(target=lambda: model.encode("a"))
    forward, is_its_own = model.forward, []

    def noting(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is thread:
            is_its_own.append(lock._is_owned())
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", noting)
    with lock:
        thread.start()
        model.encode("b")  # the lock is ours: no waiting
    thread.join(60)
    assert is_its_own == [True]


def test_many_threads_share_a_model_with_the_engine(host: LocalHost) -> None:
    sentence_transformers.instrument_sentence_transformers()
    expected = minilm().encode(TEXTS)
    results: list[Any] = []
    sessions = [Session(host), None, Session(host), None]

    def call(session: Session | None) -> None:
        with active(session):
            results.extend(minilm().encode(TEXTS) for _ in range(3))

    threads = [threading.Thread(target=call, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 12
    assert all(same(result, expected) for result in results)


def test_the_library_looks_the_same_once_instrumented() -> None:
    from sentence_transformers import SentenceTransformer

    sentence_transformers.instrument_sentence_transformers()
    once = SentenceTransformer.encode
    sentence_transformers.instrument_sentence_transformers()
    assert SentenceTransformer.encode is once
    assert once.__qualname__ == "SentenceTransformer.encode"
    assert "normalize_embeddings" in inspect.signature(once).parameters


@pytest.mark.parametrize("stranger", [None, 7, "text", object(), np.zeros(2)])
def test_strangers_have_no_spec(stranger: object) -> None:
    assert sentence_transformers.spec_of(stranger) is None
    assert chroma.spec_of(stranger) is None


# --- Chroma --------------------------------------------------------------------------------------------------

VECTORS: list[Any] = [
    [[0.0, 1.0], [4.2, 1.0]],
    [2.0, 1.0],
    np.array([2.0, 1.0]),
    np.array([[2.0, 1.0], [3.3, 1.0]], dtype=np.float32),
    [np.array([2.0, 1.0], dtype=np.float32)],
]
QUERIES: list[dict[str, Any]] = [
    {},
    {"n_results": 2, "query_texts": None, "where": None},
    {"where": {"$and": [{"parity": 1}, {"parity": {"$gte": 0}}]}, "where_document": {"$contains": "document"}},
    {"include": ["embeddings", "uris"]},
    {"include": []},
    {"n_results": 1, "where": {"parity": 9}},
]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("arguments", QUERIES)
def test_a_query_in_a_session_returns_the_same(vectors: Any, arguments: dict[str, Any]) -> None:
    kb, session = collection(), InlineSession()
    assert chroma.spec_of(kb)
    plain = kb.query(query_embeddings=vectors, **arguments)
    with active(session):
        asked = kb.query(query_embeddings=vectors, **arguments)
    assert list(asked) == list(plain)
    assert _comparable(asked) == _comparable(plain)
    assert asked["included"] is plain["included"] or asked["included"] == plain["included"]
    assert session.asked


class Parity(IntEnum):
    EVEN, ODD = 0, 1


def _comparable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype, value.tolist())
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items()}
    return [_comparable(v) for v in value] if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"query_embeddings": [[0.0, 1.0]], "ids": ["1", "2"]},
        {"query_embeddings": [[0.0, 1.0]], "include": ["documents", "data", "uris"]},
        {"query_embeddings": [[0.0, 1.0]], "where": {"parity": Parity.ODD}},
    ],
)
def test_queries_that_items_cannot_express_are_plain(arguments: dict[str, Any]) -> None:
    kb, session = collection(), InlineSession()
    assert chroma.spec_of(kb)
    plain = kb.query(**copy.deepcopy(arguments))
    with active(session):
        asked = kb.query(**copy.deepcopy(arguments))
    assert asked == plain
    assert not session.asked


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query_embeddings": []},
        {"query_embeddings": [[True, 1.0]]},
        {"query_embeddings": (0.0, 1.0)},
        {"query_embeddings": [[1.0, 1.0, 1.0]]},
        {"query_embeddings": [[1.0, 1.0], [1.0]]},
        {"query_embeddings": [[0.0, 1.0]], "n_results": 0},
        {"query_embeddings": [[0.0, 1.0]], "n_results": 1.5},
        {"query_embeddings": [[0.0, 1.0]], "where": {}},
        {"query_embeddings": [[0.0, 1.0]], "include": ["nonsense"]},
        {"nonsense": 1},
    ],
)
def test_a_query_raises_the_same_error(arguments: dict[str, Any]) -> None:
    kb = collection()
    assert chroma.spec_of(kb)
    with pytest.raises(Exception) as plain:  # noqa: PT011  whatever the library raises
        kb.query(**arguments)
    with active(InlineSession()), pytest.raises(type(plain.value)) as asked:
        kb.query(**arguments)
    if len(arguments.get("query_embeddings", ())) == 1:  # of several the first one's error, not the whole call's
        assert str(asked.value) == str(plain.value)


def test_every_caller_gets_copies() -> None:
    kb, session = collection(), InlineSession()
    assert chroma.spec_of(kb)
    value = {"ids": ["0"], "metadatas": [{"tags": ["a"]}], "included": []}
    session.ask = lambda *_: [_reply(value)]  # type: ignore[method-assign, misc]
    for _ in range(2):
        with active(session):
            found = kb.query(query_embeddings=[[0.0, 1.0]])
        assert found["metadatas"][0][0] == {"tags": ["a"]}
        found["metadatas"][0][0]["tags"].append("b")
        found["ids"][0].clear()


def test_a_query_without_its_engine_is_the_librarys() -> None:
    kb, session = collection(), InlineSession()
    assert chroma.spec_of(kb)
    plain = kb.query(query_embeddings=[[0.0, 1.0]])
    session.broken = lambda: EngineClosed("shut down")
    with active(session):
        assert kb.query(query_embeddings=[[0.0, 1.0]]) == plain


def test_a_store_on_a_server_is_outside_this_process() -> None:
    from chromadb.api.fastapi import FastAPI

    here = collection()
    there = copy.copy(here)
    there._client = object.__new__(FastAPI)
    assert not chroma.spec_of(here).is_outside  # type: ignore[union-attr]
    assert chroma.spec_of(there).provider == here.id  # type: ignore[union-attr]


def _reply(value: Any) -> Any:
    from teola_plugin.engines import Done
    from teola_plugin.seams import Reply

    reply = Reply()
    reply.put(Done(value))
    return reply


def test_objects_of_one_collection_share_an_engine() -> None:
    import chromadb

    kb = collection()
    again = chromadb.EphemeralClient().get_collection(kb.name)
    assert again is not kb
    assert chroma.spec_of(again).key == chroma.spec_of(kb).key  # type: ignore[union-attr]
    assert chroma.spec_of(collection()).key != chroma.spec_of(kb).key  # type: ignore[union-attr]


def test_filters_that_python_calls_equal_are_told_apart() -> None:
    frozen = {value_key(searching_settings(where={"flag": value})) for value in (True, 1, 1.0)}
    assert len(frozen) == 3
    assert searching_settings(include=["documents", "distances", "metadatas"]) == {"top_k": 10}
    assert searching_settings(n_results=np.int64(3)) is None  # type: ignore[arg-type]


WRITES: list[Callable[[Any], Any]] = [
    lambda kb: kb.add(ids=["9"], embeddings=[[0.0, 1.0]]),
    lambda kb: kb.upsert(ids=["1"], embeddings=[[0.0, 1.0]]),
    lambda kb: kb.update(ids=["1"], metadatas=[{"parity": 7}]),
    lambda kb: kb.delete(ids=["1"]),
    lambda kb: kb.modify(metadata={"note": "new"}),
]


@pytest.mark.parametrize("write", WRITES)
def test_what_ran_ahead_of_a_write_is_searched_anew(write: Callable[[Any], Any], host: LocalHost) -> None:
    kb = collection()
    spec, session = chroma.spec_of(kb), Session(host)
    settings = searching_settings(n_results=9)
    assert spec is not None
    assert settings is not None
    vector = np.array([0.0, 1.0], dtype=np.float32)
    for reply in session.submit_ahead(spec, "searching", [vector, vector], settings, NEXT):
        reply.result()
    with active(session):
        kb.query(query_embeddings=[[0.0, 1.0]], n_results=9)
        write(kb)
        asked = kb.query(query_embeddings=[[0.0, 1.0]], n_results=9)
    report = session.close()
    assert asked == kb.query(query_embeddings=[[0.0, 1.0]], n_results=9)
    assert (report.hits, report.stale, report.misses) == (1, 1, 0)


@pytest.mark.parametrize(("calls", "searched_by_the_engine"), [(1, 0), (2, 1)])
def test_a_search_goes_to_the_engine_if_other_calls_may_search_too(
    calls: int, searched_by_the_engine: int, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    chroma.instrument_chroma()
    kb, session = collection(), Session(host)
    expected = kb.query(query_embeddings=[[0.0, 1.0]], n_results=2)
    session.be_alone()
    monkeypatch.setattr(chroma, "processor", Processor())
    for _ in range(calls):
        chroma.processor.begin()
    submitted: list[Any] = []
    submit = session.ask
    monkeypatch.setattr(session, "ask", lambda *given: submitted.append(given) or submit(*given))
    with active(session):
        assert kb.query(query_embeddings=[[0.0, 1.0]], n_results=2) == expected
    assert len(submitted) == searched_by_the_engine
    assert session.close().misses == 1


def test_a_search_is_not_made_alone_once_something_runs_ahead_meanwhile(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread begins to run ahead as the collection is about to be searched, by the same search."""
    chroma.instrument_chroma()
    kb, session = collection(), Session(host)
    spec, settings = chroma.spec_of(kb), searching_settings(n_results=2)
    assert spec is not None
    assert settings is not None
    expected = kb.query(query_embeddings=[[0.0, 1.0]], n_results=2)
    session.rest()

    class Busy:
        @property
        def has_one_call(self) -> bool:
            session.request(spec, "searching", np.array([0.0, 1.0], dtype=np.float32), settings)
            return True

    monkeypatch.setattr(chroma, "processor", Busy())
    with active(session):
        assert kb.query(query_embeddings=[[0.0, 1.0]], n_results=2) == expected
    report = session.close()
    assert (report.hits, report.misses, report.wasted) == (1, 0, 0)


def test_a_search_during_a_write_is_stale_after_it() -> None:
    from teola_plugin.resources import writing

    kb = collection()
    engine: Any = engine_for(chroma.spec_of(kb))  # type: ignore[arg-type]
    before = engine.stamp()
    with writing(kb.id):
        during = engine.stamp()
    assert len({before, during, engine.stamp()}) == 3


def test_writes_through_another_object_and_dropped_collections_are_noticed() -> None:
    import chromadb

    kb, client = collection(), chromadb.EphemeralClient()
    engine: Any = engine_for(chroma.spec_of(kb))  # type: ignore[arg-type]
    before = engine.stamp()
    client.get_collection(kb.name).add(ids=["9"], embeddings=[[0.0, 1.0]])
    after = engine.stamp()
    assert before != after
    client.delete_collection(kb.name)
    assert engine.stamp() != after


def test_a_write_that_is_a_coroutine_is_noticed_too() -> None:
    from chromadb.api.models.AsyncCollection import AsyncCollection

    chroma.instrument_chroma()
    assert inspect.iscoroutinefunction(AsyncCollection.add)
    kb = collection()
    double: Any = object.__new__(AsyncCollection)
    double._model = kb._model
    before = version(kb.id)
    with pytest.raises(AttributeError):  # it has no client: all that matters is that it was tried
        asyncio.run(double.add(ids=["1"], embeddings=[[0.0, 1.0]]))
    assert version(kb.id) != before


def test_an_embedding_engine_names_its_model() -> None:
    engine = engine_for(sentence_transformers.spec_of(minilm()))
    assert engine.model == str(minilm_path())  # type: ignore[attr-defined]
