"""Applications of many authors.

Their text is without the cells that show results, install packages and index what the stand-ins hold already; what was
`langchain_core.pydantic_v1` is pydantic, as LangChain says that it is to be replaced.
"""

from __future__ import annotations

from langchain_core.messages import HumanMessage

from public.case import Case
from public.graph_cases import messages, question
from public.replies import Script, choose

ELASTIC = "elastic/elasticsearch-labs@77567655e834"

AUTHORS: tuple[Case, ...] = (
    Case(
        "csv_crag",
        "athina-ai/rag-cookbooks@ab087e8ff35f agentic_rag_techniques/corrective_rag.ipynb (MIT)",
        question,
    ),
    Case(
        "onboarding_chatbot",
        "LangChain-OpenTutorial/LangChain-OpenTutorial@27ae47c3423a 19-Cookbook/07-Agent/"
        "19-NewEmployeeOnboardingChatbot.ipynb (MIT)",
        lambda given: given,
        "chat_bot",
        script=Script(
            texts=(
                ("output 'yes'; otherwise", lambda prompt, seed: choose(("yes", "yes", "no"), seed)),
                ("refine and decompose", "first @1?\nsecond @2?"),
            )
        ),
    ),
    Case(
        "multi_query_chatbot",
        f"{ELASTIC} notebooks/langchain/multi-query-retriever-examples/chatbot-with-multi-query-retriever.ipynb"
        " (Apache-2.0)",
        lambda given: given,
        "chain",
        script=Script(texts=(("different versions", "how @1\nwhat @2\nwhy @3"),)),
    ),
    Case(
        "next_question",
        f"{ELASTIC} supporting-blog-content/langraph-retrieval-agent-template-demo/src (Apache-2.0)",
        messages,
        "graph",
        module="retrieval_graph.graph",
        form="ainvoke",
        config={
            "configurable": {
                "user_id": "u",
                "embedding_model": "openai/m",
                "query_model": "openai/gpt-4o",
                "response_model": "openai/gpt-4o",
            }
        },
    ),
    Case(
        "mixture_of_models",
        "LangChain-OpenTutorial/LangChain-OpenTutorial@27ae47c3423a 19-Cookbook/07-Agent/14-MoARAG.ipynb (MIT)",
        lambda given: {"messages": [HumanMessage(given)]},
        form="ainvoke",
    ),
    Case(
        "research_team",
        "adam-eques/langgraph-research-agent@31aa50398add src (MIT)",
        lambda given: {"query": given, "messages": [("user", given)]},
        lambda module: module.build_graph(),
        module="research_agent.graph",
    ),
)
