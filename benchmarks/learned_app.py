"""An adaptive RAG as public LangGraph code writes it: a router, retrieval, graders, an answer, and two checks of it."""

from __future__ import annotations

import os
from typing import Literal, TypedDict

import httpx
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field


class Source(BaseModel):
    """Where to look for an answer."""

    source: Literal["manual", "web"] = Field(description="manual or web")


class Relevance(BaseModel):
    """Whether a page helps with the question."""

    relevant: Literal["yes", "no"] = Field(description="yes or no")


class Grounding(BaseModel):
    """Whether the answer follows from the pages."""

    grounded: Literal["yes", "no"] = Field(description="yes or no")


class Usefulness(BaseModel):
    """Whether the answer settles the question."""

    useful: Literal["yes", "no"] = Field(description="yes or no")


class Manual(BaseRetriever):
    """Finds the pages that share the most words with a question."""

    pages: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        words = set(query.lower().split())
        ranked = [(len(words & set(page.page_content.lower().split())), page) for page in self.pages]
        return [page for _, page in sorted(ranked, key=lambda each: -each[0])[:4]]


llm = ChatOpenAI(model="gpt-4o-mini", temperature=0)
subjects = ("lists", "files", "errors", "text", "dates")
retriever = Manual(pages=[Document(f"Page {n} of the manual, about {each}.") for n, each in enumerate(subjects)])


def asks(prompt: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages([("system", prompt), ("human", "{question}")])


router = asks("Say where to look: in the manual or on the web.") | llm.with_structured_output(Source)
grader = asks("Does this page help?\n{page}") | llm.with_structured_output(Relevance)
writer = asks("Answer from these pages.\n{pages}") | llm | StrOutputParser()
grounder = asks("Pages: {pages}\nAnswer: {answer}\nIs it grounded?") | llm.with_structured_output(Grounding)
checker = asks("Answer: {answer}\nDoes it settle the question?") | llm.with_structured_output(Usefulness)
rewriter = asks("Put the question in other words.") | llm | StrOutputParser()


class State(TypedDict):
    question: str
    pages: list[Document]
    answer: str


def route(state: State) -> str:
    print("--- where to look")
    found = router.invoke({"question": state["question"]})
    if found.source == "web":
        return "search"
    return "retrieve"


def retrieve(state: State) -> dict:
    print("--- retrieve")
    return {"pages": retriever.invoke(state["question"])}


def search(state: State) -> dict:
    print("--- search")
    reply = httpx.post(os.environ["SEARCH_URL"], json={"query": state["question"]}, timeout=60).json()
    return {"pages": [Document(each["content"]) for each in reply["results"]]}


def grade(state: State) -> dict:
    print("--- grade")
    kept = []
    for page in state["pages"]:
        found = grader.invoke({"question": state["question"], "page": page.page_content})
        if found.relevant == "yes":
            kept.append(page)
    return {"pages": kept}


def write(state: State) -> dict:
    print("--- write")
    pages = "\n\n".join(page.page_content for page in state["pages"])
    return {"answer": writer.invoke({"question": state["question"], "pages": pages})}


def rewrite(state: State) -> dict:
    print("--- rewrite")
    return {"question": rewriter.invoke({"question": state["question"]})}


def has_pages(state: State) -> str:
    return "write" if state["pages"] else "rewrite"


def check(state: State) -> str:
    pages = "\n\n".join(page.page_content for page in state["pages"])
    grounded = grounder.invoke({"question": state["question"], "pages": pages, "answer": state["answer"]})
    if grounded.grounded == "no":
        return "write again"
    useful = checker.invoke({"question": state["question"], "answer": state["answer"]})
    return "done" if useful.useful == "yes" else "rewrite"


graph = StateGraph(State)
for node in (retrieve, search, grade, write, rewrite):
    graph.add_node(node)
graph.add_conditional_edges(START, route, ["retrieve", "search"])
graph.add_edge("retrieve", "grade")
graph.add_edge("search", "write")
graph.add_conditional_edges("grade", has_pages, ["write", "rewrite"])
graph.add_edge("rewrite", "retrieve")
graph.add_conditional_edges("write", check, {"done": END, "rewrite": "rewrite", "write again": "write"})
app = graph.compile()
