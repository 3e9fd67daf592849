"""Calls of a model's class share early requests before a call of the pipeline begins, or nothing runs ahead in it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from pydantic import PrivateAttr

from teola_plugin import optimize, pure
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.reading_models import Settings
from teola_plugin.adapters.methods import is_shared
from teola_plugin.adapters.reader.prediction import Prediction
from tests.adapters.langchain.test_langchain_foreign import Hosted, report_of


def made() -> type[Hosted]:
    """Return a class of models that nothing has met yet."""

    class Fresh(Hosted):
        _begun: threading.Event = PrivateAttr(default_factory=threading.Event)
        _may_end: threading.Event = PrivateAttr(default_factory=threading.Event)

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            self._begun.set()
            assert self._may_end.wait(10)
            return super()._generate(*args, **kwargs)

    return Fresh


class Holder:
    """Holds a model where only the function that is read finds it."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def ask(self, text: str) -> list[str]:
        return [str(self.model.invoke(f"{text} {number}").content) for number in range(3)]


def test_declared_models_share_calls_once_a_pipeline_is_optimized() -> None:
    cls = pure(made())
    assert not is_shared(cls, "_generate")
    chain = optimize(RunnableLambda(Holder(cls()).ask))
    assert is_shared(cls, "_generate")
    assert chain is not None


def test_a_model_whose_calls_are_not_shared_yet_is_not_asked_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the framework's run, which is in its first call already, and the reading would ask the same."""
    monkeypatch.setattr(models, "instrument_loaded", lambda: None)  # as if the class were imported later
    model = pure(made())()
    chain = optimize(RunnableLambda(Holder(model).ask))
    evaluate = Prediction._evaluate
    met: list[bool] = []
    of = Settings.of

    def late(prediction: Prediction) -> None:
        assert model._begun.wait(10)
        evaluate(prediction)
        model._may_end.set()

    def noted(settings: Settings, model: Any) -> Any:
        met.append(True)
        return of(settings, model)

    monkeypatch.setattr(Prediction, "_evaluate", late)
    monkeypatch.setattr(Settings, "of", noted)
    chain.invoke("first")
    assert met
    assert len(model._calls) == 3
    assert _ahead(chain) == 0
    model._may_end.clear()
    chain.invoke("second")
    assert len(model._calls) == 6
    assert _ahead(chain) > 0


def _ahead(chain: Any) -> int:
    """Return how many replies of the latest call were asked early, or while the framework's run asked the same."""
    report = report_of(chain)
    return report.hits + report.shared


FIRST = """
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from teola_plugin.adapters.langchain.trace import trace
store = InMemoryVectorStore(OpenAIEmbeddings(api_key="none"))
retriever = MultiQueryRetriever.from_llm(store.as_retriever(), ChatOpenAI(api_key="none"))
print([each.code for each in trace(retriever).breaks])
"""


def test_a_retriever_is_read_in_the_first_pipeline_of_a_process() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
