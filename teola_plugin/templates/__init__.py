"""Applications without a framework: components of the paper, joined to a template, run on shared engines.

    from teola_plugin.templates import App, Chunking, Embedding, Ingestion, Searching, Synthesis

    rag = Chunking() >> Embedding() >> Ingestion() >> Searching(top_k=3) >> Synthesis(mode="tree")
    app = App("naive RAG", rag, {"llm": llm, "embedder": embedder, "store": store})
    answer = app.run(question="What is new?", document=text, chunk_size=512)

    template --decompose--> p-graph --passes--> e-graph --plan--> run on the host

Source: arXiv 2407.00326, section 3.2. docs/templates.md is the guide.
"""

from __future__ import annotations

from teola_plugin.templates.app import App, Configured
from teola_plugin.templates.calls import Apply, Operation, Tool, WebSearch
from teola_plugin.templates.flow import Branches, Chain, Component, Condition, Loop, Step
from teola_plugin.templates.generation import Generation, QueryExpansion, Synthesis
from teola_plugin.templates.options import Option, Takes
from teola_plugin.templates.part import Part
from teola_plugin.templates.retrieval import Chunking, Embedding, Ingestion, Reranking, Searching, Situating
from teola_plugin.templates.values import Value

__all__ = [
    "App", "Apply", "Branches", "Chain", "Chunking", "Component", "Condition", "Configured", "Embedding", "Generation",
    "Ingestion", "Loop", "Operation", "Option", "Part", "QueryExpansion", "Reranking", "Searching", "Situating", "Step",
    "Synthesis", "Takes", "Tool", "Value", "WebSearch",
]  # fmt: skip
