"""A LangChain RAG chain: two questions are asked of the model while the passages are found.

    python examples/langchain_rag.py

Engines wait as long as published profiles say, so this runs anywhere. With HuggingFaceEmbeddings and VllmEngine the
same chain runs on real models.
"""

from __future__ import annotations

from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from teola_plugin import compare, explain, optimize
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM

llm = EngineChatModel(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=16)
store = Chroma("bees", EngineEmbeddings(ProfileEmbedding(64, PAPER["embedding"])))
store.add_texts(["Bees dance to tell where flowers are.", "A hive has one queen.", "Drones do not sting."])


def format_docs(docs: list[Document]) -> str:
    return "\n".join(d.page_content for d in docs)


def step_back(given: dict[str, str]) -> str:
    """A function that asks a model it holds runs ahead like any step."""
    return llm.invoke(f"What is the general question behind: {given['question']}").text


chain = (
    RunnablePassthrough.assign(general=step_back)
    | RunnablePassthrough.assign(notes=lambda given: format_docs(retriever.invoke(given["question"])))
    | ChatPromptTemplate.from_template("{notes}\nIn general: {general}\nAnswer: {question}")
    | llm
    | StrOutputParser()
)
retriever = store.as_retriever(search_kwargs={"k": 2})

if __name__ == "__main__":
    fast = optimize(chain)
    print(explain(fast, analyze={"question": "How do bees talk?"}))
    print(compare(chain, [{"question": "How do bees talk?"}], repeats=2))
