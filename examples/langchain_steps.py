"""A LangChain chain whose steps stand one after the other, though two of them do not need each other.

    python examples/langchain_steps.py

The engine waits as long as a 7B model on a GPU would (published figures) and answers with fixed words, so this runs
anywhere. For a real model write VllmEngine("/path/to/model") instead.
"""

from __future__ import annotations

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from teola_plugin import compare, explain, optimize
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM

llm = EngineChatModel(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=16)


def ask(template: str):  # type: ignore[no-untyped-def]
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


chain = (
    RunnablePassthrough.assign(summary=ask("Summarize in one line: {text}"))
    | RunnablePassthrough.assign(keywords=ask("Three keywords for: {text}"))
    | ask("Write a headline.\nSummary: {summary}\nKeywords: {keywords}")
)

if __name__ == "__main__":
    text = {"text": "The heap queue algorithm keeps the smallest element at the front of a list."}
    print(explain(optimize(chain), analyze=text))
    print()
    print(compare(chain, [text], repeats=3))
