"""Nodes that log beside their requests, and that make models, chains and schemas in their body or in classes."""
# ruff: noqa: PERF401,UP045
# ruff: noqa: I001

import functools
import logging
import uuid
from datetime import datetime
from functools import cached_property, lru_cache
from pprint import pprint
from typing import Any, Literal, Optional, TypedDict

from langchain.chat_models import init_chat_model
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from tqdm import tqdm

from tests.adapters.reader.forms_world import LLM, Form, State
from tests.adapters.reader.forms_common import CHAIN, FORMS, GRADER, GRADING, MODELS, PROMPT, Grade, Verdict, form, log

# --- beside the requests ----------------------------------------------------------------------------------------------


@form(4)
def prints(state: State) -> Any:
    print("---ASK---")
    one = LLM.invoke("one " + state["question"])
    print("one", one.content)
    two = LLM.invoke("two " + state["question"])
    print(f"two: {two.content!r}", len(two.content), end="\n\n")
    return {"out": [one.content, two.content]}


@form(4)
def pretty_prints_and_logs(state: State) -> Any:
    pprint(state["documents"])
    log.info("asked %s", state["question"])
    logging.getLogger("x").debug("about to ask")
    one = LLM.invoke("one " + state["question"])
    one.pretty_print()
    log.warning("one: %s", one.content)
    two = CHAIN.invoke({"question": state["question"]})
    return {"out": two + one.content}


@form(5)
def progress_bar(state: State) -> Any:
    found = []
    for each in tqdm(state["documents"], disable=True):
        found.append(LLM.invoke("sum up " + each).content)
    return {"out": found}


@form(5)
def updates_a_dict_by_comprehensions(state: State) -> Any:
    found = {}
    for each in state["documents"]:
        words = LLM.invoke("words of " + each).content.split()
        found.update({f"{word} of it": each for word in words})
    return {"out": sorted(found)}


@form(2, varies=True)
def time_of_day_in_the_prompt(state: State) -> Any:
    return {"out": LLM.invoke(f"It is {datetime.now():%H:%M:%S.%f}. {state['question']}").content}


@form(3, varies=True)
def time_of_day_beside(state: State) -> Any:
    started = datetime.now()
    reply = LLM.invoke("one " + state["question"])
    log.info("took %s", datetime.now() - started)
    return {"out": reply.content}


@form(3, varies=True)
def new_id_beside(state: State) -> Any:
    reply = LLM.invoke("one " + state["question"])
    return {"out": reply.content, "steps": len(str(uuid.uuid4()))}


# --- made in the body -------------------------------------------------------------------------------------------------


@form(4)
def chain_in_the_body(state: State) -> Any:
    prompt = ChatPromptTemplate.from_template("Write about {question} in {n} words")
    chain = prompt | LLM | StrOutputParser()
    more = ChatPromptTemplate.from_messages([("system", "Be short."), ("human", "{question}")]) | LLM
    return {"out": chain.invoke({"question": state["question"], "n": 3}) + more.invoke(state["question"]).content}


@form(4)
def template_in_the_body(state: State) -> Any:
    prompt = PromptTemplate.from_template("Tell {question}")
    one = LLM.invoke(prompt.format(question=state["question"]))
    two = LLM.invoke(PROMPT.format_messages(question=state["question"]))
    return {"out": [one.content, two.content]}


@form(3)
def prompt_value(state: State) -> Any:
    value = PROMPT.invoke({"question": state["question"]})
    return {"out": LLM.invoke(value).content}


@form(4)
def model_in_the_body(state: State) -> Any:
    llm = ChatOpenAI(model="gpt-4o-mini", temperature=0)
    one = llm.invoke("one " + state["question"])
    two = llm.invoke([SystemMessage(content="Be kind."), HumanMessage(content=state["question"])])
    return {"out": one.content + two.content}


@form(3)
def model_by_name(state: State) -> Any:
    llm = init_chat_model("gpt-4o-mini", model_provider="openai", temperature=0)
    return {"out": llm.invoke("one " + state["question"]).content}


@tool
def search(query: str) -> str:
    """Search."""
    return query.upper()


@form(3)
def tools_in_the_body(state: State) -> Any:
    reply = LLM.bind_tools([search]).invoke(state["messages"])
    return {"messages": [reply]}


@form(2)
def schema_in_the_body(state: State) -> Any:
    class Answer(BaseModel):
        """An answer."""

        score: str = Field(description="yes or no")
        reason: str = Field(default="")

    found = LLM.with_structured_output(Answer).invoke("JSON " + state["question"])
    return {"out": found.score}


@form(2)
def schema_with_types(state: State) -> Any:
    class Answer(BaseModel):
        score: Literal["yes", "no"]
        items: list[str] = Field(default_factory=list)
        note: Optional[str] = None
        size: Optional[str] = None

    found = LLM.with_structured_output(Answer, method="function_calling").invoke("answer " + state["question"])
    return {"out": found.score}


@form(2)
def typed_dict_in_the_body(state: State) -> Any:
    class Answer(TypedDict):
        score: str

    found = LLM.with_structured_output(Answer).invoke("JSON " + state["question"])
    return {"out": found["score"]}


@form(2)
def structured_global(state: State) -> Any:
    grade = GRADER.invoke("JSON " + state["question"])
    other = GRADING.invoke({"question": "JSON other"})
    return {"out": [grade.score, other.score]}


@form(2)
def structured_typed_dict(state: State) -> Any:
    return {"out": LLM.with_structured_output(Verdict).invoke("JSON " + state["question"])["score"]}


@form(2)
def structured_in_the_body(state: State) -> Any:
    grader = ChatOpenAI(model="m2", temperature=0).with_structured_output(Grade)
    prompt = ChatPromptTemplate.from_messages([("system", "Grade."), ("human", "{question}")])
    score = (prompt | grader).invoke({"question": state["question"]})
    if score.score == "yes":
        return {"out": "relevant"}
    return {"out": "not relevant"}


def make_llm(temperature: float = 0.0) -> ChatOpenAI:
    return ChatOpenAI(model="made", temperature=temperature)


@lru_cache
def kept_llm(name: str = "kept") -> ChatOpenAI:
    return ChatOpenAI(model=name)


@functools.cache
def kept_chain() -> Any:
    return PROMPT | ChatOpenAI(model="chain") | StrOutputParser()


def make_chain(instruction: str) -> Any:
    return ChatPromptTemplate.from_messages([("system", instruction), ("human", "{question}")]) | LLM


@form(4)
def factories(state: State) -> Any:
    one = make_llm().invoke("one " + state["question"])
    two = make_chain("Be brief").invoke({"question": state["question"]})
    return {"out": one.content + two.content}


@form(4)
def cached_factories(state: State) -> Any:
    one = kept_llm().invoke("one " + state["question"])
    two = kept_chain().invoke({"question": state["question"]})
    return {"out": one.content + two}


@form(4)
def models_in_a_dict(state: State) -> Any:
    one = MODELS["small"].invoke("one " + state["question"])
    two = MODELS["large"].invoke("two " + state["question"])
    return {"out": one.content + two.content}


# --- classes ----------------------------------------------------------------------------------------------------------


class Helper:
    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.prompt = PROMPT
        self.style = "kind"

    @cached_property
    def chain(self) -> Any:
        return self.prompt | self.llm

    @property
    def grader(self) -> Any:
        return self.llm.with_structured_output(Grade)

    def say(self, text: str) -> str:
        return self.llm.invoke(f"{self.style} {text}").content

    def node(self, state: State) -> Any:
        one = self.say(state["question"])
        two = (self.prompt | self.llm).invoke({"question": state["question"]}).content
        return {"out": self._joined(one, two)}

    @staticmethod
    def _joined(*parts: str) -> str:
        return "; ".join(parts)

    def properties(self, state: State) -> Any:
        return {"out": self.grader.invoke("JSON " + state["question"]).score}

    def cached(self, state: State) -> Any:
        return {"out": self.chain.invoke({"question": state["question"]}).content}

    def __call__(self, state: State) -> Any:
        return {"out": self.say("call " + state["question"])}


class Agent:
    def __init__(self) -> None:
        self.model = ChatOpenAI(model="agent")

    def run(self, text: str) -> str:
        return self.model.invoke(text).content


HELPER = Helper(LLM)
FORMS["method"] = Form(HELPER.node, 4)
FORMS["property"] = Form(HELPER.properties, 2)
FORMS["cached_property"] = Form(HELPER.cached, 3)
FORMS["callable_object"] = Form(HELPER, 3)


@form(3)
def object_in_the_body(state: State) -> Any:
    return {"out": Agent().run("one " + state["question"])}
