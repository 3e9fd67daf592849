"""Faults planted in twins, each of which the comparison of original and optimized must notice."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import QueryBundle

from teola_plugin.adapters import Calls
from teola_plugin.adapters.llamaindex import LlamaIndexAdapter, twin
from teola_plugin.api import OpenCall
from tests.adapters.llamaindex.test_llamaindex_chat_engines import condense_plus_context, remembered, talking
from tests.adapters.llamaindex.test_llamaindex_engines import built
from tests.adapters.llamaindex.test_llamaindex_ingestion import make_pipeline, running, stored
from tests.support.llamaindex_comparing import Stage, asking, retrieving, same
from tests.support.llamaindex_parts import documents, vector_retriever
from tests.support.llamaindex_query_engines import ENGINES, fusion_rag
from tests.support.llamaindex_replies import failing, reply
from tests.support.llamaindex_world import QUESTION

pytestmark = pytest.mark.skipif(os.environ.get("TEOLA_COMPARE") == "original", reason="nothing is optimized")

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def plant(monkeypatch: pytest.MonkeyPatch, method: str, wrap: Wrap) -> None:
    """Wrap this entry method of all twins made from now on."""
    really = LlamaIndexAdapter.twin

    def make(self: LlamaIndexAdapter, pipeline: Any, calls: Calls) -> Any:
        made = really(self, pipeline, calls)
        assert made is not pipeline
        entry = getattr(type(made), method)
        setattr(type(made), method, functools.wraps(entry)(wrap(entry)))
        return made

    monkeypatch.setattr(LlamaIndexAdapter, "twin", make)


def caught(saying: str, build: Callable[[Stage], Any], act: Callable[[Any], Any], **settings: Any) -> None:
    """The comparison fails, and says of what."""
    with pytest.raises(AssertionError, match=saying):
        same(build, act, **settings)


def engine(name: str, *, streaming: bool = False, answer: Callable[[str], Any] = reply) -> Callable[[Stage], Any]:
    return built(ENGINES[name], streaming, answer=answer)


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fusion_rag", "router", "sub_question", "citation"])
def test_reversed_source_nodes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(*args: Any, **kwargs: Any) -> Any:
            response = entry(*args, **kwargs)
            response.source_nodes.reverse()
            return response

        return query

    plant(monkeypatch, "query", wrap)
    caught("outcome", engine(name), asking("query", QUESTION))


@pytest.mark.parametrize("form", ["retrieve", "aretrieve"])
def test_reversed_nodes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def retrieve(*args: Any, **kwargs: Any) -> Any:
            return entry(*args, **kwargs)[::-1]

        async def aretrieve(*args: Any, **kwargs: Any) -> Any:
            return (await entry(*args, **kwargs))[::-1]

        return retrieve if form == "retrieve" else aretrieve

    plant(monkeypatch, form, wrap)
    caught("outcome", built(vector_retriever), retrieving(form, QUESTION), exact=form == "retrieve")


def test_scores_that_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(*args: Any, **kwargs: Any) -> Any:
            response = entry(*args, **kwargs)
            response.source_nodes[-1].score += 1e-4
            return response

        return query

    plant(monkeypatch, "query", wrap)
    caught("outcome", engine("fusion_rag"), asking("query", QUESTION))


@pytest.mark.parametrize("name", ["fusion_rag", "router", "multi_step"])
def test_a_swallowed_exception(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(*args: Any, **kwargs: Any) -> Any:
            try:
                return entry(*args, **kwargs)
            except RuntimeError:
                return Response("Empty Response")

        return query

    plant(monkeypatch, "query", wrap)
    broken = engine(name, answer=failing("answers", RuntimeError("the model broke")))
    caught("outcome", broken, asking("query", QUESTION))


def test_an_exception_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(*args: Any, **kwargs: Any) -> Any:
            try:
                return entry(*args, **kwargs)
            except RuntimeError as e:
                raise type("EngineError", (RuntimeError,), {})(*e.args) from e

        return query

    plant(monkeypatch, "query", wrap)
    broken = engine("router", answer=failing("answers", RuntimeError("the model broke")))
    caught("outcome", broken, asking("query", QUESTION))


def test_a_stream_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(*args: Any, **kwargs: Any) -> Any:
            response = entry(*args, **kwargs)
            stream = response.response_gen
            response.response_gen = ("".join(each) for each in [stream])
            return response

        return query

    plant(monkeypatch, "query", wrap)
    caught("outcome", engine("router", streaming=True), asking("streaming", QUESTION))


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["query", "aquery"])
def test_a_doubled_span(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        @get_dispatcher().span
        def query(self: Any, *args: Any, **kwargs: Any) -> Any:
            return entry(self, *args, **kwargs)

        @get_dispatcher().span
        async def aquery(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await entry(self, *args, **kwargs)

        doubled = query if form == "query" else aquery
        return lambda *args, **kwargs: doubled(*args, **kwargs)

    plant(monkeypatch, form, wrap)
    for name in ("fusion_rag", "sub_question"):
        caught("said", engine(name), asking(form, QUESTION), exact=form == "query")


def test_a_doubled_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    really = CallbackManager.on_event_start

    def twice(self: CallbackManager, *args: Any, **kwargs: Any) -> str:
        if is_planted:
            really(self, *args, **kwargs)
        return really(self, *args, **kwargs)

    is_planted: list[bool] = []
    plant(monkeypatch, "query", lambda entry: lambda *args, **kwargs: is_planted.append(True) or entry(*args, **kwargs))
    monkeypatch.setattr(CallbackManager, "on_event_start", twice)
    caught("said", engine("fusion_rag"), asking("query", QUESTION))


def test_something_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, "query", lambda entry: lambda *args, **kwargs: print("hit!") or entry(*args, **kwargs))
    caught("noise", engine("router"), asking("query", QUESTION))


# --- what is left behind ----------------------------------------------------------------------------------------------


def _copied(cls: Any, original: Any) -> Any:
    made = cls.__new__(cls)
    object.__setattr__(made, "__dict__", dict(original.__dict__))
    for name in ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"):
        if hasattr(original, name):
            object.__setattr__(made, name, getattr(original, name))
    return made


def test_copied_instead_of_shared_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "_sharing", _copied)
    caught(
        "outcome", engine("multi_step"), asking("query", QUESTION),
        change=lambda own: setattr(own, "_num_steps", 1),
    )  # fmt: skip


def test_a_callers_query_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle is the caller's: what the original writes on it is to be seen, and nothing else."""

    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def query(self: Any, bundle: QueryBundle) -> Any:
            response = entry(self, bundle)
            bundle.custom_embedding_strs = ["mine"]
            return response

        return query

    def act(component: Any) -> Any:
        bundle = QueryBundle(QUESTION)
        return [str(component.query(bundle)), bundle]

    same(built(fusion_rag, False), act)
    plant(monkeypatch, "query", wrap)
    caught("outcome", built(fusion_rag, False), act)


def test_a_leaked_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        async def aquery(*args: Any, **kwargs: Any) -> Any:
            leaked.append(asyncio.ensure_future(asyncio.sleep(60)))
            return await entry(*args, **kwargs)

        return aquery

    leaked: list[Any] = []
    plant(monkeypatch, "aquery", wrap)
    caught("tasks_left", engine("router"), asking("aquery", QUESTION), exact=False)


def test_a_call_that_is_never_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[OpenCall] = []
    really = OpenCall.close
    monkeypatch.setattr(OpenCall, "close", lambda call: calls.append(call))
    caught("never closed", engine("fusion_rag"), asking("query", QUESTION))
    assert calls
    for call in calls:
        really(call)


# --- chat engines and ingestion ---------------------------------------------------------------------------------------


def test_a_history_that_lacks_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def chat(self: Any, *args: Any, **kwargs: Any) -> Any:
            response = entry(self, *args, **kwargs)
            self._memory.set(self._memory.get_all()[:-1])
            return response

        return chat

    plant(monkeypatch, "chat", wrap)
    caught("outcome|state", built(condense_plus_context), talking("chat"), look=remembered)


def test_nodes_that_are_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            nodes = entry(self, *args, **kwargs)
            self.vector_store.add([nodes[0].model_copy(update={"id_": "again"})])
            return nodes

        return run

    plant(monkeypatch, "run", wrap)
    caught("state", make_pipeline, running("run", {"documents": documents()}), look=stored)
