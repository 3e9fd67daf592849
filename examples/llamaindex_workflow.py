"""A LlamaIndex workflow: its steps are the user's own and stay as they are; the query engine in them runs ahead.

    python examples/llamaindex_workflow.py

A step asks three questions at once, but LlamaIndex's HyDE transform waits for its model on the event loop, where the
others wait with it. In the optimized workflow nothing holds up the loop.
"""

import asyncio
import time

from llama_index.core import VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.query_engine import BaseQueryEngine, TransformQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM

NAMES = ("heap", "deque", "counter")
llm = EngineLLM(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=12)
embedding = EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding_logs"]))
index = VectorStoreIndex([TextNode(text=f"A {name} is a container.") for name in NAMES], embed_model=embedding)


class Answers(Event):
    texts: list[str]


class Report(Workflow):
    def __init__(self, engine: BaseQueryEngine) -> None:
        super().__init__()
        self.engine = engine

    @step
    async def ask(self, start: StartEvent) -> Answers:
        questions = [f"What is a {name} good at?" for name in start.names]
        return Answers(texts=[str(answer) for answer in await asyncio.gather(*map(self.engine.aquery, questions))])

    @step
    async def report(self, answers: Answers) -> StopEvent:
        return StopEvent(result=str(await llm.acomplete("Report on: " + ", ".join(answers.texts))))


async def main() -> None:
    report = Report(TransformQueryEngine(index.as_query_engine(llm=llm), HyDEQueryTransform(llm)))
    for name, workflow in {"original": report, "optimized": optimize(report)}.items():
        started_s = time.perf_counter()
        answer = await workflow.run(names=NAMES)
        print(f"{name}: {time.perf_counter() - started_s:.2f} s\n{answer}")


if __name__ == "__main__":
    asyncio.run(main())
