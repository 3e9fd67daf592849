"""A plain function and a plain class: no chain, graph or engine of a framework is around the calls.

    python examples/plain_function.py

The function searches and judges, one after the other. The optimized function does the same; its requests go out as soon
as it is certain that it will make them: the three parts at once, then the three judgements.
"""

from __future__ import annotations

from teola_plugin import compare, explain, optimize
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM

llm = EngineChatModel(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=12)  # VllmEngine(...) for a real one


def answer(question: str) -> str:
    parts = [llm.invoke(f"Part {number} of: {question}").text for number in range(3)]
    kept = []
    for part in parts:
        judged = llm.invoke(f"Does this help with {question!r}? {part}").text
        if "no" not in judged.split():
            kept.append(part)
    return llm.invoke(f"{question}\n{kept}").text


class Research:
    def __init__(self, model: EngineChatModel) -> None:
        self.model = model
        self.calls = 0

    def run(self, topic: str) -> str:
        self.calls += 1
        pro, contra = self._ask(f"For {topic}"), self._ask(f"Against {topic}")
        return self._ask(f"Weigh {pro} and {contra}")

    def _ask(self, text: str) -> str:
        return self.model.invoke(text).text


if __name__ == "__main__":
    print(explain(optimize(answer), analyze="How do bees dance?"))
    print(compare(answer, ["How do bees dance?"], repeats=3))
    research = optimize(Research(llm))  # still a Research, with the same attributes
    print(research.run("hives"), research.calls)
