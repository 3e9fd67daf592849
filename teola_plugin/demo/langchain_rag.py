"""Two RAG pipelines as a LangChain user writes them; nothing here knows of `optimize`.

advanced   writes 3 queries, searches 16 passages for each, reranks to the best 3, answers and refines twice.
           A document given with the question is stored first.
naive      searches the 3 nearest passages, takes a note from each, and answers from the notes.
"""

from __future__ import annotations

import hashlib
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import VectorStore

import teola_plugin
from teola_plugin.demo.corpus import split

QUERIES = ChatPromptTemplate.from_messages([
    ("system", "You prepare searches in the reference of a programming language."),
    ("human", "Write three different search queries for this question, one per line.\n\n{question}"),
])  # fmt: skip
ANSWER = ChatPromptTemplate.from_messages([
    ("system", "You answer questions about a programming language from its reference, in one sentence."),
    ("human", "Question: {question}\n\nReference:\n{passage}"),
])  # fmt: skip
REFINE = ChatPromptTemplate.from_messages([
    ("system", "You improve answers to questions about a programming language, and keep them to one sentence."),
    ("human", "Question: {question}\n\nMore of the reference:\n{passage}\n\nThe answer so far: {answer}"),
])  # fmt: skip
NOTE = ChatPromptTemplate.from_template("Note what matters for the question {question!r} in:\n\n{passage}")
COMBINE = ChatPromptTemplate.from_template("Question: {question}\n\nNotes:\n{notes}\n\nAnswer in one sentence.")


def advanced(
    llm: Runnable[Any, Any], writer: Runnable[Any, Any], store: VectorStore, reranker: BaseDocumentCompressor
) -> Runnable[dict[str, str], str]:
    """Takes `{"question": ..., "document": ...}`. `writer` is the LLM made to write three lines."""

    @teola_plugin.writes("kb")
    def keep(given: dict[str, str]) -> int:
        texts = split(given["document"])
        store.add_texts(texts, ids=[hashlib.sha1(text.encode()).hexdigest() for text in texts])
        return len(texts)

    found = ContextualCompressionRetriever(
        base_compressor=reranker,
        base_retriever=MultiQueryRetriever(
            retriever=store.as_retriever(search_kwargs={"k": 16}),
            llm_chain=QUERIES | writer | LineListOutputParser(),
        ),
    )
    return (
        RunnablePassthrough.assign(kept=keep)
        | RunnablePassthrough.assign(passages=itemgetter("question") | found)
        | RunnablePassthrough.assign(passage=lambda x: x["passages"][0].page_content)
        | RunnablePassthrough.assign(answer=ANSWER | llm | StrOutputParser())
        | RunnablePassthrough.assign(passage=lambda x: x["passages"][1].page_content)
        | RunnablePassthrough.assign(answer=REFINE | llm | StrOutputParser())
        | RunnablePassthrough.assign(passage=lambda x: x["passages"][2].page_content)
        | REFINE
        | llm
        | StrOutputParser()
    )


def naive(llm: Runnable[Any, Any], store: VectorStore) -> Runnable[dict[str, str], str]:
    """Takes `{"question": ...}`."""

    def to_read(given: dict[str, Any]) -> list[dict[str, str]]:
        passages: list[Document] = given["passages"]
        return [{"question": given["question"], "passage": p.page_content} for p in passages]

    note = NOTE | llm | StrOutputParser()
    return (
        RunnablePassthrough.assign(passages=itemgetter("question") | store.as_retriever(search_kwargs={"k": 3}))
        | RunnablePassthrough.assign(notes=to_read | note.map() | (lambda notes: "\n".join(notes)))
        | COMBINE
        | llm
        | StrOutputParser()
    )
