"""LangGraph applications."""

from __future__ import annotations

from typing import Any

from public.case import Case
from public.replies import Script, choose, mark

TUTORIALS = "langchain-ai/langgraph@23961cff61a4 docs/docs/tutorials"
ACADEMY = "langchain-ai/langchain-academy@fa15bec4a51c"


def question(text: str) -> dict[str, Any]:
    return {"question": text}


def messages(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def rewoo_plan(prompt: str, seed: str) -> str:
    """Four steps, of which the third needs the first."""
    tools = [choose(("Google", "Google", "LLM"), f"{seed}{n}") for n in range(4)]
    needs = ["", "", " given #E1", choose(("", " given #E3"), seed)]
    return "\n".join(
        f"Plan: Look up part {n} of it. #E{n + 1} = {tool}[part {mark(f'{seed}{n}')}{needs[n]}]"
        for n, tool in enumerate(tools)
    )


SCHEMA = {
    "title": "company",
    "description": "Facts about a company",
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "Its name"},
        "founder": {"type": "string", "description": "Who founded it"},
    },
}

STUDENT = "JustCodeIt7/LangGraph_101@f7f57b506288"


def interview(text: str, module: Any) -> dict[str, Any]:
    editor = module.Editor(affiliation="a journal", name="Ada", role="editor", description=text)
    return {
        "editor": editor,
        "messages": [module.AIMessage(f"So you write about {text}", name="Subject_Matter_Expert")],
    }


def with_retries(text: str) -> dict[str, Any]:
    return {"question": text, "max_retries": 2}


def graded(prompt: str, seed: str) -> str:
    """The verdict of a judge in JSON."""
    verdict = choose(("yes", "yes", "yes", "yes", "no"), seed)
    return f'{{"score": "{verdict}", "binary_score": "{verdict}", "explanation": "{mark(seed)}"}}'


def routed(prompt: str, seed: str) -> str:
    return f'{{"datasource": "{choose(("vectorstore", "vectorstore", "websearch"), seed)}"}}'


GROUNDED = Script(fields={"GradeHallucinations.binary_score": ("yes",)})
SURE = Script(fields={"GradeHallucinations.binary_score": (True,)})
"""The same answer to the same question for ever is no end of a loop."""
JSON_MODE = Script(texts=(("expert at routing", routed), ("JSON", graded)))


GRAPHS: tuple[Case, ...] = (
    Case("crag", f"{TUTORIALS}/rag/langgraph_crag.ipynb (MIT)", question),
    Case("adaptive_rag", f"{TUTORIALS}/rag/langgraph_adaptive_rag.ipynb (MIT)", question, script=GROUNDED),
    Case("self_rag", f"{TUTORIALS}/rag/langgraph_self_rag.ipynb (MIT)", question, script=GROUNDED),
    Case(
        "rewoo",
        f"{TUTORIALS}/rewoo/rewoo.ipynb (MIT)",
        lambda text: {"task": text},
        script=Script(texts=(("make plans that can solve the problem", rewoo_plan),)),
    ),
    Case(
        "plan_and_execute",
        f"{TUTORIALS}/plan-and-execute/plan-and-execute.ipynb (MIT)",
        lambda text: {"input": text},
        form="ainvoke",
        script=Script(lengths={"steps": (2, 3)}),
    ),
    Case(
        "reflection",
        f"{TUTORIALS}/reflection/reflection.ipynb (MIT)",
        messages,
        pipeline="graph",
        form="ainvoke",
        threads=True,
    ),
    Case(
        "self_discover",
        f"{TUTORIALS}/self-discover/self-discover.ipynb (MIT)",
        lambda text: {"task_description": text, "reasoning_modules": "1. Simplify it. 2. Think step by step."},
    ),
    Case(
        "code_assistant",
        f"{TUTORIALS}/code_assistant/langgraph_code_assistant.ipynb (MIT)",
        lambda text: {"messages": [("user", text)], "iterations": 0, "error": ""},
        script=Script(
            fields={
                "imports": ("import math", "import json", "import no_such_module"),
                "code": ("x = 1  # @1", "x = 1 / 0  # @1"),
            }
        ),
    ),
    Case(
        "academy_map_reduce",
        f"{ACADEMY}/module-4/studio/map_reduce.py (MIT)",
        lambda text: {"topic": text},
        pipeline="graph",
        script=Script(fields={"id": (0, 1, 2)}),
    ),
    Case("academy_parallelization", f"{ACADEMY}/module-4/studio/parallelization.py (MIT)", question, pipeline="graph"),
    Case(
        "academy_research_assistant",
        f"{ACADEMY}/module-4/studio/research_assistant.py (MIT)",
        lambda text: {"topic": text, "max_analysts": 2},
        pipeline=lambda module: module.builder.compile(),
        script=Script(lengths={"analysts": (2,)}),
    ),
    Case(
        "academy_summarization",
        f"{ACADEMY}/module-2/studio/chatbot.py (MIT)",
        lambda text: {"messages": [("user" if n % 2 == 0 else "ai", f"{text} {n}") for n in range(7)]},
        pipeline="graph",
    ),
    Case(
        "rag_research_agent",
        "langchain-ai/rag-research-agent-template@39f3ce6ad9ca src (MIT)",
        messages,
        module="retrieval_graph.graph",
        pipeline="graph",
        form="ainvoke",
        script=Script(fields={"type": ("langchain", "langchain", "langchain", "general")}),
        config={"configurable": {"query_model": "openai/gpt-4o-mini", "response_model": "openai/gpt-4o"}},
    ),
    Case(
        "company_researcher",
        "langchain-ai/company-researcher@d62bcbfd7e2b src (MIT, says pyproject.toml)",
        lambda text: {"company": text, "extraction_schema": SCHEMA, "user_notes": ""},
        module="agent.graph",
        pipeline="graph",
        form="ainvoke",
    ),
    Case(
        "agentic_rag",
        "langchain-ai/langgraph@1f1d032430a2 docs/docs/tutorials/rag/langgraph_agentic_rag.ipynb (MIT)",
        messages,
        pipeline="graph",
    ),
    Case(
        "storm_interview",
        "langchain-ai/langgraph@af80d6b33976 docs/docs/tutorials/storm/storm.ipynb (MIT)",
        interview,
        pipeline="interview_graph",
        form="ainvoke",
        needs_module=True,
        script=Script(lengths={"queries": (3,)}),
    ),
    Case(
        "course_agentic_rag",
        "emarco177/langgraph-course@823de33a8038 (Apache-2.0, says the main branch)",
        question,
        module="graph.graph",
        script=SURE,
    ),
    Case(
        "course_reflexion",
        "emarco177/langgraph-course@8dc50e69bd78 (Apache-2.0)",
        messages,
        module="main",
        pipeline="graph",
    ),
    Case(
        "report_generator",
        f"{STUDENT}/03-Agent_Design_Patterns/22-Orchestration_Agent (MIT)",
        lambda text: {"topic": text},
        script=Script(texts=(("report planning expert", "Introduction @1\nAnalysis @2\nOutlook @3\nConclusion @4"),)),
    ),
    Case(
        "deep_research",
        f"{STUDENT}/04-Apps/12-DeepResearch_Agent (MIT)",
        lambda text: {"topic": text, "max_iterations": 0},
        pipeline="graph",
        script=Script(
            texts=(
                ("Generate 5 sub-questions", "@1?\n@2?\n@3?\n@4?\n@5?"),
                ("Rate the credibility", lambda prompt, seed: str(5 + int(seed[0], 16) % 5)),
            )
        ),
    ),
    Case(
        "parallel_agents",
        f"{STUDENT}/03-Agent_Design_Patterns/21-Multi-Agent_Parallel (MIT)",
        lambda text: {"topic": text},
        script=Script(texts=(("Output as a JSON object", '{"output": ["@1", "@2"]}'),)),
    ),
    Case(
        "evaluator_optimizer",
        f"{STUDENT}/03-Agent_Design_Patterns/23-Evaluator-Optimizer (MIT)",
        lambda text: {"topic": text, "iteration": 0},
        pipeline="graph",
        script=Script(fields={"score": (6, 8, 9, 10)}),
    ),
    Case(
        "legal_analyzer",
        f"{STUDENT}/04-Apps/07-Legal_Document_Analyzer_Agent (MIT)",
        lambda text: {"document_content": text, "analysis_type": "full_analysis", "parameters": {}, "messages": []},
        pipeline=lambda module: module.LegalDocumentAnalyzer().workflow,
    ),
    Case(
        "data_enrichment",
        "langchain-ai/data-enrichment@028fd9a96a11 src (MIT)",
        lambda text: {"topic": text, "extraction_schema": SCHEMA},
        module="enrichment_agent.graph",
        pipeline="graph",
        form="ainvoke",
        config={"configurable": {"model": "openai/gpt-4o"}},
        script=Script(fields={"url": ("http://service/page/@1",)}),
    ),
    Case(
        "retrieval_agent_template",
        "langchain-ai/retrieval-agent-template@8f4025541ba9 src (MIT)",
        messages,
        module="retrieval_graph.graph",
        pipeline="graph",
        form="ainvoke",
        config={"configurable": {"user_id": "u", "query_model": "openai/gpt-4o", "response_model": "openai/gpt-4o"}},
    ),
    Case(
        "local_deep_researcher",
        "langchain-ai/local-deep-researcher@0be4c86ea71e src (MIT)",
        lambda text: {"research_topic": text},
        module="ollama_deep_researcher.graph",
        pipeline="graph",
        config={"configurable": {"search_api": "tavily"}},
    ),
    Case(
        "adaptive_rag_local",
        f"{TUTORIALS}/rag/langgraph_adaptive_rag_local.ipynb (MIT)",
        with_retries,
        pipeline="graph",
        script=JSON_MODE,
    ),
    Case(
        "crag_local",
        f"{TUTORIALS}/rag/langgraph_crag_local.ipynb (MIT)",
        lambda text: {"question": text, "steps": []},
        pipeline="custom_graph",
        script=JSON_MODE,
    ),
    Case(
        "nvidia_agentic_rag",
        "langchain-ai/langchain-nvidia@47a96a45a21b studio/agentic_rag_nvidia.py (MIT)",
        with_retries,
        pipeline="graph",
    ),
    Case(
        "mistral_adaptive_rag",
        "mistralai/cookbook@1cf863b8a356 third_party/langchain/adaptive_rag_mistral.ipynb (MIT)",
        with_retries,
        pipeline="graph",
    ),
    Case(
        "email_assistant",
        "langchain-ai/agents-from-scratch@edf2c479191d src/email_assistant (MIT)",
        lambda text: {"email_input": {"author": "Ada", "to": "Bob", "subject": text, "email_thread": text}},
        pipeline="email_assistant",
        module="email_assistant.email_assistant",
        script=Script(fields={"classification": ("respond", "respond", "notify", "ignore")}, last="Done"),
    ),
)
