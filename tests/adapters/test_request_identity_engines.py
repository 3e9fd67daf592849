"""sentence-transformers and Chroma: what changes a value makes another request, be it an argument or set on the object.

The arguments are those of the libraries' own signatures, and what the library returns says whether they matter.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import pytest
from chromadb.api.models.Collection import Collection

from teola_plugin.adapters import chroma, sentence_transformers
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.seams import active
from tests.support.real_models import collection, cross_encoder, minilm
from tests.support.request_variants import arguments_of, assert_all_differ, keys_asked

pytestmark = pytest.mark.real

TEXT = "why do bees dance, and for whom"
WRAPPING = {"convert_to_numpy", "convert_to_tensor", "show_progress_bar", "batch_size", "device", "chunk_size", "pool"}
"""Arguments that say how a value is computed and handed over, not which."""

NAMED: dict[str, tuple[Any, ...]] = {
    "prompt_name": ("passage", "query"), "truncate_dim": (16, 8), "normalize_embeddings": (True, 1),
    "prompt": ("passage: ", "query: "),
}  # fmt: skip
"""Values that some arguments are made for, beside those that are for none."""

PROMPTS = {"passage": "passage: ", "query": "query: "}


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def calls() -> dict[str, tuple[Any, Callable[..., Any]]]:
    embedder, reranker = minilm(), cross_encoder()
    sentence_transformers.instrument_sentence_transformers()
    return {
        "encode": (embedder, lambda **kwargs: embedder.encode(TEXT, **kwargs)),
        "predict": (reranker, lambda **kwargs: reranker.predict([TEXT, "because"], **kwargs)),
    }


@pytest.fixture(params=["encode", "predict"])
def model_and_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Callable[..., Any]]:
    model, call = calls()[request.param]
    monkeypatch.setattr(model, "prompts", PROMPTS)
    monkeypatch.setattr(model, "default_prompt_name", None)
    return model, call


def asked(call: Callable[..., Any], **kwargs: Any) -> tuple[Hashable, ...]:
    """Its keys; none if the library makes the call itself, or refuses it."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return keys_asked(lambda: call(**kwargs))
    return ()


def same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def test_arguments_that_change_a_value_make_another_request(model_and_call: tuple[Any, Callable[..., Any]]) -> None:
    model, call = model_and_call
    method = getattr(type(model), "encode" if hasattr(model, "encode") else "predict")
    plain, found = call(), {asked(call): call()}
    assert len(asked(call)) == 1
    told = 0
    for name in arguments_of(method, ("inputs", "sentences", *WRAPPING)):
        for value in (None, True, 1, "a", *NAMED.get(name, ())):
            keys = asked(call, **{name: value})
            try:
                returned = call(**{name: value})
            except Exception:  # the library refuses it, and so does the engine
                continue
            if not keys:
                continue
            known = found.setdefault(keys, returned)
            assert same(known, returned), f"{name}={value!r}"
            told += not same(plain, returned)
    assert told >= 3
    assert len(found) >= 3


def test_prompts_that_are_set_on_the_model_count(
    model_and_call: tuple[Any, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, call = model_and_call
    keys = {"none": asked(call)}
    for name in PROMPTS:
        monkeypatch.setattr(model, "default_prompt_name", name)
        keys[name] = asked(call)
    monkeypatch.setattr(model, "prompts", {**PROMPTS, "query": "other: "})
    keys["another prompt"] = asked(call)
    if hasattr(model, "truncate_dim"):
        monkeypatch.setattr(model, "truncate_dim", 16)
        keys["truncated"] = asked(call)
    assert_all_differ(keys)


@pytest.mark.parametrize("name", ["encode", "predict"])
def test_what_ran_ahead_of_another_length_is_not_taken(host: LocalHost, name: str) -> None:
    """How much of a text the model reads is set on the model, and in no call."""
    model, call = calls()[name]
    spec = sentence_transformers.spec_of(model)
    assert spec
    before = model.max_seq_length
    session = Session(host)
    op, payload = ("embedding", TEXT) if name == "encode" else ("reranking", (TEXT, "because"))
    ahead = session.submit_ahead(spec, op, [payload], {}, NEXT)[0]
    first = ahead.result()
    try:
        model.max_seq_length = 4
        with active(session):
            returned = call()
        assert same(returned, call())
        assert not same(returned, first)
    finally:
        model.max_seq_length = before
    assert session.close().stale == 1


def test_another_module_in_a_model_is_another_version() -> None:
    model = cross_encoder()
    spec = sentence_transformers.spec_of(model)
    assert spec
    engine: Any = engine_for(spec)
    before, kept = engine.stamp(), model.activation_fn
    assert engine.stamp() == before
    try:
        import torch

        model.activation_fn = torch.nn.Identity()
        assert engine.stamp() != before
    finally:
        model.activation_fn = kept
    assert engine.stamp() == before


# --- Chroma -----------------------------------------------------------------------------------------------------------

WHERE: dict[str, tuple[Any, ...]] = {
    "n_results": (1, 2, 10),
    "where": ({"parity": 1}, {"parity": 1.0}, {"parity": True}, {"parity": {"$eq": 1}},
              {"$and": [{"parity": 1}, {"parity": 0}]}, {"$and": [{"parity": 0}, {"parity": 1}]}),
    "where_document": ({"$contains": "1"}, {"$contains": "2"}, {"$not_contains": "1"}),
    "include": (["documents"], ["metadatas"], ["documents", "embeddings"], ["distances"]),
}  # fmt: skip


def test_each_argument_of_a_query_counts() -> None:
    made = collection()
    chroma.instrument_chroma()
    vectors = {"one": [1.0, 0.0], "turned": [0.0, 1.0], "near": [1.0, 1e-30], "minus": [1.0, -0.0]}
    keys = {name: keys_asked(lambda v=v: made.query(query_embeddings=[v])) for name, v in vectors.items()}
    names = arguments_of(Collection.query, ("query_embeddings", "query_texts", "query_images", "query_uris", "ids"))
    assert set(names) == set(WHERE)
    usual = {"n_results": 10}
    for name in names:
        for value in WHERE[name]:
            if usual.get(name) != value:
                keys[f"{name}={value!r}"] = keys_asked(
                    lambda name=name, value=value: made.query(query_embeddings=[vectors["one"]], **{name: value})
                )
    keys["another collection"] = keys_asked(lambda: collection().query(query_embeddings=[vectors["one"]]))
    assert_all_differ(keys)
    assert all(keys.values())
    assert keys_asked(lambda: made.query(query_embeddings=[vectors["one"]], n_results=10)) == keys["one"]


def test_a_search_that_ran_ahead_of_a_write_is_made_again(host: LocalHost) -> None:
    made = collection()
    spec = chroma.spec_of(made)
    assert spec
    session = Session(host)
    vector = np.array([1.0, 1.0], np.float32)
    settings = {"top_k": 1}
    first = session.submit_ahead(spec, "searching", [vector], settings, NEXT)[0].result()
    made.add(ids=["new"], embeddings=[[1.0, 1.0]], documents=["new"])
    made.delete(ids=["1"])
    second = session.ask(spec, "searching", [vector], settings)[0].result()
    assert (first["documents"], second["documents"]) == (["document 1"], ["new"])
    session.close()
