"""LangChain applications."""

from __future__ import annotations

from typing import Any

from public.case import Case
from public.replies import Script, choose

TEMPLATES = "langchain-ai/langchain, as kept in mth93/langchain@27dca2d92fbd templates"
COOKBOOK = "langchain-ai/langchain, as kept in mth93/langchain@27dca2d92fbd docs/docs/expression_language"
LINES = "how to do it @1\nwhat it is @2\nwhy it is so @3"


def text(given: str) -> str:
    return given


def question(given: str) -> dict[str, Any]:
    return {"question": given}


def template(name: str, folder: str, given: Any, **more: Any) -> Case:
    package = folder.replace("-", "_")
    return Case(name, f"{TEMPLATES}/{folder} (MIT)", given, "chain", more.pop("module", f"{package}.chain"), **more)


RESEARCH = Script(
    texts=(
        ("Write 3 google search queries", '["what is @1", "who made @2", "why is @3"]'),
        ("auto_agent_instructions", '{"server": "agent", "agent_role_prompt": "You are the expert @1."}'),
        ("determine which agent", '{"server": "agent", "agent_role_prompt": "You are the expert @1."}'),
        ("This task involves researching", '{"server": "agent", "agent_role_prompt": "You are the expert @1."}'),
    )
)

CHAINS: tuple[Case, ...] = (
    template("rag_fusion", "rag-fusion", text, script=Script(texts=(("multiple search queries", LINES),))),
    template("stepback", "stepback-qa-prompting", question),
    template("hyde", "hyde", question),
    template("rewrite_retrieve_read", "rewrite-retrieve-read", text),
    template(
        "rag_conversation", "rag-conversation",
        lambda given: {"question": given, "chat_history": [("What is a list?", "A sequence.")]},
    ),
    template(
        "skeleton_of_thought", "skeleton-of-thought", question,
        script=Script(texts=(("giving the skeleton", "first @1\n2. second @2\n3. third @3"),)),
    ),
    template("critique_revise", "basic-critique-revise", lambda given: {"query": given, "max_revisions": 2}),
    template("chain_of_note", "chain-of-note-wiki", text),
    template("multi_index_fusion", "rag-multi-index-fusion", text),
    template("multi_index_router", "rag-multi-index-router", text),
    template(
        "multi_query", "rag-pinecone-multi-query", text, script=Script(texts=(("different versions", LINES),))
    ),
    template("research_assistant", "research-assistant", question, script=RESEARCH),
    Case(
        "multiple_chains", f"{COOKBOOK}/cookbook/multiple_chains.ipynb (MIT)", lambda given: {"input": given}, "chain",
    ),
    Case(
        "routing", f"{COOKBOOK}/how_to/routing.ipynb (MIT)", question, "full_chain",
        script=Script(texts=(("classify it", lambda prompt, seed: choose(("LangChain", "Anthropic", "Other"), seed)),)),
    ),
)  # fmt: skip
