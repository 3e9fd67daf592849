"""A LlamaIndex sub-question engine: each question is asked as soon as it is written, beside those before it.

    python examples/llamaindex_sub_questions.py

LlamaIndex waits for the whole list, and then asks in turn (or, with use_async=True, at once).
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from llama_index.core import VectorStoreIndex, get_response_synthesizer
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.schema import TextNode
from llama_index.core.tools import QueryEngineTool

from teola_plugin import optimize
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM
from teola_plugin.runtime.engines.simulated_text import complete

TOOLS = {"heaps": "A heap keeps its smallest item first.", "deques": "A deque is fast at both ends."}


def reply(prompt: str, settings: Mapping[str, Any]) -> str:
    """What a model would write; the engine only takes its time for it. VllmEngine(...) is a real one."""
    asked = [{"sub_question": f"What are {name} good at?", "tool_name": name} for name in TOOLS]
    return json.dumps({"items": asked}) if "sub-questions" in prompt else str(complete(prompt, settings))


llm = EngineLLM(engine=ProfileLLM("llm", PAPER_LLM["7b"], reply=reply), max_tokens=64)
short = EngineLLM(engine=llm.engine, max_tokens=8)
embedding = EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding_logs"]))


def tool(name: str, note: str) -> QueryEngineTool:
    index = VectorStoreIndex([TextNode(text=note)], embed_model=embedding)
    return QueryEngineTool.from_defaults(index.as_query_engine(llm=short), name, f"Notes on {name}")


tools = [tool(name, note) for name, note in TOOLS.items()]
questions, last = LLMQuestionGenerator.from_defaults(llm), get_response_synthesizer(llm=short)
engine = SubQuestionQueryEngine.from_defaults(tools, llm, questions, last, verbose=False, use_async=False)


def timed(engine: SubQuestionQueryEngine, question: str) -> str:
    started_s = time.perf_counter()
    answer = str(engine.query(question))
    print(f"{time.perf_counter() - started_s:.2f} s")
    return answer


if __name__ == "__main__":
    question = "Which is better for a queue?"
    print("equal:", timed(engine, question) == timed(optimize(engine), question))
