"""How people write a node: with models, prompts and helpers of the module, and with what they make in the body."""
# ruff: noqa: PERF401, UP045, UP042, UP007, SIM108, I001

import asyncio
import functools
import json
import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property, lru_cache, partial, wraps
from operator import itemgetter
from pprint import pprint
from string import Template
from typing import Annotated, Any, Literal, Optional, TypedDict, Union, cast

from langchain.chat_models import init_chat_model
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, MessagesState
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, StreamWriter
from pydantic import BaseModel, Field
from tqdm import tqdm

from tests.reader.forms_world import LLM, RETRIEVER, STORE, Form, State

FORMS: dict[str, Form] = {}
log = logging.getLogger(__name__)

PROMPT = ChatPromptTemplate.from_messages([("system", "You help."), ("human", "Answer {question}")])
TEXT_PROMPT = PromptTemplate(template="Say {question}", input_variables=["question"])
CHAIN = PROMPT | LLM | StrOutputParser()
INSTRUCTIONS = "You are a helper. Question: {question}"
MODELS = {"small": LLM, "large": ChatOpenAI(model="large")}


class Grade(BaseModel):
    """A score."""

    score: str = Field(description="yes or no")


class Plan(BaseModel):
    steps: list[str] = Field(description="what to do", default_factory=list)


class Verdict(TypedDict):
    score: Annotated[str, ..., "yes or no"]


GRADER = LLM.with_structured_output(Grade)
GRADING = PROMPT | GRADER
PLANNER = LLM.with_structured_output(Plan)


def form(first: int, why: str = "", **options: Any) -> Callable[..., Any]:
    """Puts a node into the table."""

    def put(node: Callable[..., Any]) -> Callable[..., Any]:
        is_async = asyncio.iscoroutinefunction(node)
        FORMS[node.__name__] = Form(node, first, why, **{"is_async": is_async, **options})
        return node

    return put


# --- beside the requests ---------------------------------------------------------------------------------------------


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


@form(1, "it makes an object of the class tqdm")
def progress_bar(state: State) -> Any:
    found = []
    for each in tqdm(state["documents"], disable=True):
        found.append(LLM.invoke("sum up " + each).content)
    return {"out": found}


@form(2, varies=True)
def time_of_day_in_the_prompt(state: State) -> Any:
    return {"out": LLM.invoke(f"Today is {datetime.now():%Y}. {state['question']}").content}


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


# --- made in the body ------------------------------------------------------------------------------------------------


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


@form(1, "a class that is made in the function")
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


# --- classes ---------------------------------------------------------------------------------------------------------


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


# --- parameters ------------------------------------------------------------------------------------------------------


@form(3)
def config_not_used(state: State, config: RunnableConfig) -> Any:
    return {"out": LLM.invoke("one " + state["question"], config).content}


@form(3)
def config_used(state: State, config: RunnableConfig) -> Any:
    name = config["configurable"].get("name", "nobody")
    return {"out": LLM.invoke(f"{name}: {state['question']}", config=config).content}


@form(3)
def config_get(state: State, config: RunnableConfig) -> Any:
    configurable = config.get("configurable", {})
    user = configurable.get("user_id")
    return {"out": LLM.invoke(f"{user}: {state['question']}").content}


@form(3)
def runtime_not_used(state: State, runtime: Runtime[Any]) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


@form(3)
def writer_used(state: State, writer: StreamWriter) -> Any:
    writer({"at": "begin"})
    reply = LLM.invoke("one " + state["question"])
    writer({"said": reply.content})
    return {"out": reply.content}


# --- what they return ------------------------------------------------------------------------------------------------


@form(3)
def returns_the_state(state: State) -> Any:
    state["out"] = LLM.invoke("one " + state["question"]).content
    return state


@form(3)
def spreads_the_state(state: State) -> Any:
    reply = CHAIN.invoke({"question": state["question"]})
    return {**state, "out": reply, "steps": state["steps"] + 1}


@form(3)
def names_the_reply(state: State) -> Any:
    reply = LLM.invoke(state["messages"])
    reply.name = "helper"
    return {"messages": [reply]}


@form(3)
def adds_to_messages(state: State) -> Any:
    messages = [SystemMessage(content="Be kind.")] + state["messages"]
    reply = LLM.invoke(messages)
    return {"messages": state["messages"] + [reply]}


@form(3)
def tuple_messages(state: State) -> Any:
    reply = LLM.invoke([("system", "Be kind."), ("user", state["question"])])
    return {"messages": [("assistant", reply.content)], "out": reply.content}


@form(3)
def dict_messages(state: State) -> Any:
    reply = LLM.invoke([{"role": "system", "content": "Be kind."}, {"role": "user", "content": state["question"]}])
    return {"messages": [{"role": "assistant", "content": reply.content}]}


@form(3)
def message_of_the_reply(state: State) -> Any:
    reply = LLM.invoke(state["messages"])
    return {"messages": [AIMessage(content=f"Answer: {reply.content}", name="a")]}


@form(3)
def last_message(state: MessagesState) -> Any:
    last = state["messages"][-1]
    return {"messages": [LLM.invoke("about " + last.content)]}


@form(3)
def command(state: State) -> Command[Literal["after", "other"]]:
    reply = LLM.invoke("one " + state["question"])
    return Command(update={"out": reply.content})


# --- texts -----------------------------------------------------------------------------------------------------------


@form(4)
def prompts_of_texts(state: State) -> Any:
    one = LLM.invoke(INSTRUCTIONS.format(question=state["question"]))
    two = LLM.invoke("%s: %d" % (state["question"], state["steps"]))  # noqa: UP031
    return {"out": one.content + two.content}


@form(3)
def string_template(state: State) -> Any:
    text = Template("Say $question to $name").substitute(question=state["question"], name="me")
    return {"out": LLM.invoke(text).content}


@form(3)
def joined_documents(state: State) -> Any:
    context = "\n\n".join(doc for doc in state["documents"])
    numbered = "\n".join(f"{i}. {doc}" for i, doc in enumerate(state["documents"], 1))
    return {"out": LLM.invoke(f"{context}\n{numbered}\n{state['question']}").content}


@form(3)
def global_prompt_format(state: State) -> Any:
    system = TEXT_PROMPT.format(question=state["question"])
    return {"out": LLM.invoke([SystemMessage(content=system), *state["messages"]]).content}


@form(3)
def partial_prompt(state: State) -> Any:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be {style}."), MessagesPlaceholder(variable_name="messages")]
    ).partial(style="kind")
    return {"out": (prompt | LLM).invoke({"messages": state["messages"]}).content}


# --- replies ---------------------------------------------------------------------------------------------------------


@form(2)
def json_reply(state: State) -> Any:
    reply = LLM.invoke("JSON " + state["question"])
    data = json.loads(reply.content)
    data["seen"] = True
    return {"out": data}


@form(2)
def json_reply_guarded(state: State) -> Any:
    reply = LLM.invoke("JSON " + state["question"])
    try:
        data = json.loads(reply.content)
    except json.JSONDecodeError:
        data = {"score": "no"}
    return {"out": data.get("score", "no") if isinstance(data, dict) else "no"}


@form(2)
def regex_reply(state: State) -> Any:
    text = LLM.invoke("LINES " + state["question"]).content
    found = re.findall(r"Query: (\w+)", text)
    match = re.search(r"(\w+)$", text)
    return {"out": found, "steps": len(match.group(1)) if match else 0}


@form(2)
def lines_of_the_reply(state: State) -> Any:
    text = LLM.invoke("LINES " + state["question"]).content
    lines = [line.strip("- ").strip() for line in text.split("\n") if line.strip()]
    return {"out": lines}


@form(2)
def parsers(state: State) -> Any:
    chain = PromptTemplate.from_template("JSON {question}") | LLM | JsonOutputParser()
    found = chain.invoke({"question": state["question"]})
    return {"out": found["score"]}


@form(2)
def pydantic_parser(state: State) -> Any:
    parser = PydanticOutputParser(pydantic_object=Grade)
    prompt = PromptTemplate(
        template="JSON {question}\n{format}", input_variables=["question"],
        partial_variables={"format": parser.get_format_instructions()},
    )  # fmt: skip
    return {"out": (prompt | LLM | parser).invoke({"question": state["question"]}).score}


@form(3)
def walrus(state: State) -> Any:
    if (reply := LLM.invoke("one " + state["question"])) and reply.content:
        return {"out": reply.content}
    return {"out": ""}


@form(3)
def compared_reply(state: State) -> Any:
    reply = LLM.invoke("yes or no: " + state["question"]).content.strip().lower()
    return {"out": "good" if "yes" in reply or reply.startswith("y") else "bad"}


@form(3)
def upper_and_length(state: State) -> Any:
    reply = LLM.invoke("one " + state["question"])
    return {"out": reply.content.upper()[:20], "steps": len(reply.content.split())}


# --- several requests ------------------------------------------------------------------------------------------------


@form(4)
def judged_documents(state: State) -> Any:
    kept = []
    for each in state["documents"]:
        score = GRADER.invoke(f"JSON {each} {state['question']}")
        if score.score == "yes":
            print("---GRADE: RELEVANT---")
            kept.append(each)
        else:
            print("---GRADE: NOT RELEVANT---")
            continue
    return {"documents": kept, "out": state["question"]}


@form(5)
def asks_in_a_comprehension(state: State) -> Any:
    return {"out": [LLM.invoke(f"sum up {each}").content for each in state["documents"]]}


@form(5)
def batch(state: State) -> Any:
    prompts = [{"question": each} for each in state["documents"]]
    return {"out": CHAIN.batch(prompts)}


@form(5)
def batch_of_messages(state: State) -> Any:
    replies = LLM.batch([[HumanMessage(each)] for each in state["documents"]])
    return {"out": "\n".join(reply.content for reply in replies)}


@form(4)
def parallel_in_a_node(state: State) -> Any:
    both = RunnableParallel(one=TEXT_PROMPT | LLM, two=PROMPT | LLM | StrOutputParser())
    found = both.invoke({"question": state["question"]})
    return {"out": found["one"].content + found["two"]}


@form(3)
def chain_with_lambdas(state: State) -> Any:
    chain = (
        {"question": itemgetter("question"), "again": lambda x: x["question"].upper()}
        | RunnablePassthrough.assign(size=lambda x: len(x["again"]))
        | RunnableLambda(lambda x: f"{x['question']} {x['again']} {x['size']}")
        | LLM
        | StrOutputParser()
    )
    return {"out": chain.invoke({"question": state["question"]})}


@form(3)
def dependent_asks(state: State) -> Any:
    draft = LLM.invoke("draft " + state["question"]).content
    return {"out": LLM.invoke("improve " + draft).content}


@form(1, "it searches by an object of the class VectorStoreRetriever")
def retrieved(state: State) -> Any:
    documents = RETRIEVER.invoke(state["question"])
    context = "\n".join(doc.page_content for doc in documents)
    return {"documents": documents, "out": LLM.invoke(f"{context}: {state['question']}").content}


@form(1, "it calls similarity_search of InMemoryVectorStore")
def searched(state: State) -> Any:
    documents = STORE.similarity_search(state["question"], k=2)
    return {"documents": [doc.page_content for doc in documents]}


@form(3)
def made_documents(state: State) -> Any:
    text = LLM.invoke("one " + state["question"]).content
    return {"documents": [*state["documents"], Document(page_content=text, metadata={"source": "model"})]}


# --- control flow ----------------------------------------------------------------------------------------------------


@form(3)
def guarded_ask(state: State) -> Any:
    try:
        reply = LLM.invoke("one " + state["question"]).content
    except Exception as e:
        log.exception("failed")
        reply = f"Error: {e}"
    return {"out": reply}


@form(2)
def guarded_structured(state: State) -> Any:
    try:
        found = GRADER.invoke("JSON " + state["question"])
        return {"out": found.score}
    except Exception as e:
        print(f"error {e}")
        return {"out": "no"}


@form(3)
def finally_logs(state: State) -> Any:
    try:
        return {"out": LLM.invoke("one " + state["question"]).content}
    finally:
        log.info("done")


@form(3)
def raises_without_a_question(state: State) -> Any:
    if not state.get("question"):
        raise ValueError("no question")
    return {"out": LLM.invoke(state["question"]).content}


@form(3)
def either_or(state: State) -> Any:
    if state["steps"] > 1:
        prompt = "many " + state["question"]
    else:
        prompt = "few " + state["question"]
    reply = LLM.invoke(prompt).content
    answer = "long" if len(reply) > 100 else "short"
    return {"out": answer}


@form(3)
def matches(state: State) -> Any:
    match state["question"]:
        case "why" | "how":
            prompt = "explain"
        case _:
            prompt = "tell"
    return {"out": LLM.invoke(prompt).content}


@form(4)
def while_loop(state: State) -> Any:
    found, n = [], 0
    while n < state["steps"]:
        found.append(LLM.invoke(f"{n}: {state['question']}").content)
        n += 1
    return {"out": found}


@form(2)
def improves_until_good(state: State) -> Any:
    draft = state["question"]
    for n in range(2):
        grade = GRADER.invoke(f"JSON {n} {draft}")
        if grade.score == "yes":
            break
        draft = LLM.invoke("improve " + draft).content
    return {"out": draft}


# --- functions -------------------------------------------------------------------------------------------------------


def say(llm: Any, text: str, *, style: str = "kind") -> str:
    return llm.invoke([SystemMessage(content=f"Be {style}."), HumanMessage(content=text)]).content


def format_docs(docs: list[str]) -> str:
    return "\n\n".join(docs)


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        log.info("begin %s", function.__name__)
        made = function(*args, **kwargs)
        log.info("end")
        return made

    return inner


def retried(times: int = 2) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(times):
                try:
                    return function(*args, **kwargs)
                except Exception:
                    if attempt == times - 1:
                        raise
            return None

        return inner

    return decorate


@form(4)
def helpers(state: State) -> Any:
    one = say(LLM, format_docs(state["documents"]))
    two = say(LLM, state["question"], style="short")
    return {"out": one + two}


@form(4)
def nested_function(state: State) -> Any:
    def about(text: str) -> str:
        return LLM.invoke(f"{text} of {state['question']}").content

    return {"out": [about("origin"), about("purpose")]}


@form(4)
def partial_and_map(state: State) -> Any:
    kind = partial(say, LLM, style="rude")
    return {"out": list(map(kind, ["one", "two"]))}


@form(3)
@traced
def decorated(state: State) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


@form(3)
@retried(times=3)
def retrying(state: State) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


def made_node(name: str, llm: Any) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        return {"out": llm.invoke(f"{name}: {state['question']}").content}

    return node


FORMS["closure"] = Form(made_node("kim", LLM), 3)
FORMS["partial_node"] = Form(partial(lambda state, llm: {"out": llm.invoke(state["question"]).content}, llm=LLM), 3)
FORMS["lambda"] = Form(lambda state: {"out": LLM.invoke(state["question"]).content}, 3)
FORMS["chain_as_node"] = Form((lambda state: {"question": state["question"]}) | CHAIN | (lambda text: {"out": text}), 3)


def pieces(texts: list[str]) -> Any:
    for at, text in enumerate(texts):
        yield f"{at}: {text}"


@form(1, "pieces is a generator function")
def generator(state: State) -> Any:
    return {"out": [LLM.invoke(piece).content for piece in pieces(state["documents"])]}


# --- asynchronous ----------------------------------------------------------------------------------------------------


@form(4)
async def awaits(state: State) -> Any:
    one = await LLM.ainvoke("one " + state["question"])
    two = await CHAIN.ainvoke({"question": state["question"]})
    return {"out": one.content + two}


@form(5)
async def gathers(state: State) -> Any:
    replies = await asyncio.gather(*(LLM.ainvoke(f"sum up {each}") for each in state["documents"]))
    return {"out": [reply.content for reply in replies]}


@form(4)
async def tasks(state: State) -> Any:
    one = asyncio.create_task(LLM.ainvoke("one " + state["question"]))
    two = asyncio.create_task(LLM.ainvoke("two " + state["question"]))
    return {"out": [(await one).content, (await two).content]}


async def asay(text: str) -> str:
    reply = await LLM.ainvoke(text)
    return reply.content


@form(5)
async def gathers_helpers(state: State) -> Any:
    async def about(text: str) -> str:
        return await asay(f"{text} of {state['question']}")

    work = [about(each) for each in state["documents"]]
    return {"out": await asyncio.gather(*work)}


@form(5)
async def abatch(state: State) -> Any:
    replies = await LLM.abatch([[("user", each)] for each in state["documents"]])
    return {"out": [reply.content for reply in replies]}


FORMS["sync_node_in_an_async_graph"] = replace(FORMS["chain_in_the_body"], is_async=True)


# --- routers ---------------------------------------------------------------------------------------------------------


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


# --- states ----------------------------------------------------------------------------------------------------------


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


FORMS["pydantic_state"] = Form(by_attributes, 2, state=Model)
FORMS["dataclass_state"] = Form(by_attributes, 3, state=Data)


# --- more ------------------------------------------------------------------------------------------------------------


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
