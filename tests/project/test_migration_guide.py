"""The code that migration_guide.md recommends runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer

from teola_plugin import optimize
from tests.support.llamaindex_world import QUESTION, Engines, apart, index_of

GUIDE = Path(__file__).parents[2] / "migration_guide.md"
AFTER = [block.split("# after", 1)[1] for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
         if "# after" in block]  # fmt: skip


def test_there_is_code() -> None:
    assert len(AFTER) == 2


@pytest.mark.parametrize("code", AFTER)
def test_what_takes_the_place_of_a_query_pipeline(code: str) -> None:
    engines = Engines()
    names: dict[str, Any] = {
        "optimize": optimize, "RetrieverQueryEngine": RetrieverQueryEngine, "asyncio": asyncio, "question": QUESTION,
        "retriever": index_of(engines).as_retriever(), "rerank": engines.rerank, "llm": engines.model,
        "synthesizer": get_response_synthesizer(llm=engines.model), "prompt": PromptTemplate("{question} {notes}"),
        "rewrite": PromptTemplate("Rewrite {question}"),
    }  # fmt: skip
    compiled = compile("#" + code, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    def run() -> None:
        ran = types.FunctionType(compiled, names)()
        if inspect.iscoroutine(ran):
            asyncio.run(ran)

    apart(run)
    assert str(names["answer"])
