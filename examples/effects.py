"""What the user may say about functions: which are pure, and which write what.

    python examples/effects.py

Without the decorators the chain gives the same answers, but what is not known to be harmless is left to the framework,
in the framework's order. `explain` says so.
"""

from __future__ import annotations

import random

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from teola_plugin import explain, optimize, pure, writes
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM

llm = EngineChatModel(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=8)
visits: list[str] = []


@writes("visits")
def note(given: dict[str, str]) -> int:
    """Runs once, where it stands in the chain."""
    visits.append(given["question"])
    return len(visits)


@pure
def seed(given: dict[str, str]) -> float:
    """Same question, same number: it may run early, although it looks random."""
    return random.Random(given["question"]).random()


def unknown(answer: str) -> str:
    """Prints, so it is left to the framework."""
    print(f"answered {len(visits)} questions")
    return answer


chain = (
    RunnablePassthrough.assign(visit=note)
    | RunnablePassthrough.assign(seed=seed)
    | ChatPromptTemplate.from_template("{question} (seed {seed})")
    | llm
    | StrOutputParser()
    | RunnableLambda(unknown)
)

if __name__ == "__main__":
    print(explain(optimize(chain), analyze={"question": "What is a heap?"}))
