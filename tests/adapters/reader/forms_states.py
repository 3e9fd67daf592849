"""Routers, states that are no dicts, and what else people write."""
# ruff: noqa: UP042,UP007,UP045,PERF401
# ruff: noqa: I001

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Optional, Union, cast

from langchain_core.messages import AIMessage, trim_messages
from langgraph.graph import END
from langgraph.types import Send
from pydantic import BaseModel, Field

from tests.adapters.reader.forms_world import LLM, Form, State
from tests.adapters.reader.forms_common import FORMS, GRADER, PLANNER, PROMPT, Grade, form, log
from tests.adapters.reader.forms_making import search

# --- routers ----------------------------------------------------------------------------------------------------------


def route_by_steps(state: State) -> Literal["after", "other"]:
    print("---ROUTE---")
    if state["steps"] > 5:
        return "other"
    return "after"


def route_by_content(state: State) -> str:
    return "after" if "zz" not in state["out"] else "other"


def route_by_model(state: State) -> str:
    source = GRADER.invoke("JSON route " + state["question"])
    return "after" if source.score == "yes" else "other"


def route_by_tools(state: State) -> str:
    last = state["messages"][-1]
    if hasattr(last, "tool_calls") and last.tool_calls:
        return "other"
    return "after"


def route_by_sends(state: State) -> list[Send]:
    return [Send("after", {"question": each}) for each in state["documents"]]


def just_asks(state: State) -> Any:
    reply = LLM.invoke(state["messages"])
    return {"out": reply.content, "messages": [reply]}


def adds_nothing(state: State) -> Any:
    return {"steps": state["steps"] + 1}


FORMS["router_known"] = Form(just_asks, 3, router=route_by_steps)
FORMS["router_by_content"] = Form(just_asks, 2, router=route_by_content)
FORMS["router_by_model"] = Form(just_asks, 3, router=route_by_model)
FORMS["router_by_tools"] = Form(just_asks, 2, router=route_by_tools)
FORMS["router_by_lambda"] = Form(just_asks, 3, router=lambda state: "after" if len(state["documents"]) > 1 else "other")
FORMS["router_ends"] = Form(just_asks, 3, router=lambda state: END if not state["documents"] else "after")


# --- states -----------------------------------------------------------------------------------------------------------


class Model(BaseModel):
    question: str = ""
    documents: list[str] = Field(default_factory=list)
    steps: int = 0
    out: Any = None
    beside: Any = None
    after: Any = None


@dataclass
class Data:
    question: str = ""
    documents: list[str] | None = None
    steps: int = 0
    out: Any = None
    beside: Any = None
    after: Any = None


def by_attributes(state: Any) -> Any:
    steps = state.steps + 1
    one = LLM.invoke(f"{steps}: {state.question}").content
    return {"out": one, "steps": steps}


FORMS["pydantic_state"] = Form(by_attributes, 3, state=Model)
FORMS["dataclass_state"] = Form(by_attributes, 3, state=Data)


# --- more -------------------------------------------------------------------------------------------------------------


class Route(str, Enum):
    web = "web"
    store = "store"


@form(3)
def enums(state: State) -> Any:
    route = Route.web if state["steps"] > 1 else Route.store
    return {"out": LLM.invoke(f"search {route.value}: {state['question']}").content}


@form(3)
def dataclass_in_the_body(state: State) -> Any:
    @dataclass
    class Piece:
        text: str
        score: int = 1

    pieces = [Piece(each) for each in state["documents"]]
    log.info("pieces: %s", pieces)
    return {"out": LLM.invoke(" ".join(f"{piece.text} {piece.score} {piece}" for piece in pieces)).content}


@form(3)
def types_in_the_body(state: State) -> Any:
    found: list[str] = []
    either: Union[str, None] = None
    kinds = [dict[str, list[int]], Optional[Grade], Literal["a", "b"], int | None]
    for each in state["documents"]:
        found.append(cast(list[str], each).title())
    return {"out": LLM.invoke(f"{found} {either} {len(kinds)}").content}


@form(3)
def trimmed(state: State) -> Any:
    messages = trim_messages(
        state["messages"], strategy="last", token_counter=len, max_tokens=5, start_on="human", include_system=True
    )
    return {"messages": [LLM.invoke(messages)]}


@form(3)
def tool_called(state: State) -> Any:
    found = search.invoke({"query": state["question"]})
    return {"out": LLM.invoke(f"{found} {state['question']}").content}


@form(2)
def plan_steps(state: State) -> Any:
    plan = PLANNER.invoke("plan " + state["question"])
    return {"out": plan.steps, "steps": len(plan.steps)}


@form(3)
def set_and_sorted(state: State) -> Any:
    unique = sorted(set(state["documents"]), key=len, reverse=True)
    return {"out": LLM.invoke(str(unique)).content}


@form(3)
def deletes_and_pops(state: State) -> Any:
    documents = list(state["documents"])
    last = documents.pop()
    return {"out": LLM.invoke(f"{last} {len(documents)}").content, "documents": documents}


@form(2)
def model_dump(state: State) -> Any:
    grade = GRADER.invoke("JSON " + state["question"])
    return {"out": grade.model_dump()}


@form(2)
def getattr_of_reply(state: State) -> Any:
    reply = LLM.invoke(state["messages"])
    return {"out": getattr(reply, "content", ""), "steps": len(getattr(reply, "tool_calls", []))}


@form(3)
def isinstance_of_reply(state: State) -> Any:
    reply = LLM.invoke(state["messages"])
    text = reply.content if isinstance(reply, AIMessage) else str(reply)
    return {"out": text if isinstance(text, str) else ""}


@form(3)
def with_config_and_retry(state: State) -> Any:
    chain = (PROMPT | LLM).with_config({"run_name": "asked", "tags": ["x"]})
    return {"out": chain.invoke({"question": state["question"]}).content}


@form(3)
def bound_arguments(state: State) -> Any:
    return {"out": LLM.bind(stop=["\n"]).invoke(state["question"]).content}


@form(3)
def imports_in_the_body(state: State) -> Any:
    import json as j
    from langchain_core.messages import HumanMessage as Human

    return {"out": LLM.invoke([Human(content=j.dumps({"q": state["question"]}))]).content}


@form(4)
def counts(state: State) -> Any:
    state["steps"] = state.get("steps", 0) + 1
    one = LLM.invoke(f"{state['steps']} {state['question']}")
    two = LLM.invoke("again")
    return {"steps": state["steps"], "out": {"one": one.content, "two": two.content}}


@form(1, "it calls stream of ChatOpenAI")
def streams(state: State) -> Any:
    text = ""
    for chunk in LLM.stream("one " + state["question"]):
        text += chunk.content
    return {"out": text}
