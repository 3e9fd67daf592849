"""Nodes by their parameters, by what they return, how they write prompts and read replies."""
# ruff: noqa: UP031,UP045
# ruff: noqa: I001

import json
import re
from dataclasses import dataclass, field, fields
from string import Template
from typing import Any, Literal, Optional

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableConfig, chain, ensure_config
from langgraph.config import get_config
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime
from langgraph.types import Command, StreamWriter

from tests.adapters.reader.forms_world import LLM, State
from tests.adapters.reader.forms_common import CHAIN, INSTRUCTIONS, TEXT_PROMPT, Grade, form

# --- parameters -------------------------------------------------------------------------------------------------------


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


@chain
def named(question: str, config: RunnableConfig) -> Any:
    return LLM.invoke(f"{config['configurable'].get('name', 'nobody')}: {question}").content


@form(3)
def config_of_an_inner_function(state: State, config: RunnableConfig) -> Any:
    return {"out": named.invoke(state["question"], config)}


@form(3)
def config_of_the_context_of_an_inner_function(state: State) -> Any:
    return {"out": named.invoke(state["question"])}


@form(3)
def config_made_for_an_inner_function(state: State) -> Any:
    return {"out": named.invoke(state["question"], {"configurable": {"name": "own"}})}


@dataclass(kw_only=True)
class Configuration:
    user_id: str = field(default="nobody", metadata={"description": "Who asks."})
    style: str = "short"

    @classmethod
    def from_runnable_config(cls, config: Optional[RunnableConfig] = None) -> "Configuration":
        config = ensure_config(config)
        configurable = config.get("configurable") or {}
        _fields = {f.name for f in fields(cls) if f.init}
        return cls(**{k: v for k, v in configurable.items() if k in _fields})


@form(3)
def config_of_a_dataclass(state: State, config: RunnableConfig) -> Any:
    configuration = Configuration.from_runnable_config(config)
    return {"out": LLM.invoke(f"{configuration.style}, {configuration.user_id}: {state['question']}").content}


@form(1, "it makes a config of its own")
def config_of_its_own(state: State) -> Any:
    config = ensure_config({"configurable": {"user_id": "me"}})
    return {"out": LLM.invoke(f"{len(config)} {config['configurable']['user_id']}: {state['question']}").content}


@form(3)
def config_around(state: State) -> Any:
    configuration = Configuration.from_runnable_config()
    user = get_config()["configurable"].get("user_id", "nobody")
    return {"out": LLM.invoke(f"{configuration.user_id} {user}: {state['question']}").content}


@form(3)
def runtime_not_used(state: State, runtime: Runtime[Any]) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


@form(3)
def writer_used(state: State, writer: StreamWriter) -> Any:
    writer({"at": "begin"})
    reply = LLM.invoke("one " + state["question"])
    writer({"said": reply.content})
    return {"out": reply.content}


# --- what they return -------------------------------------------------------------------------------------------------


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


# --- texts ------------------------------------------------------------------------------------------------------------


@form(4)
def prompts_of_texts(state: State) -> Any:
    one = LLM.invoke(INSTRUCTIONS.format(question=state["question"]))
    two = LLM.invoke("%s: %d" % (state["question"], state["steps"]))
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


# --- replies ----------------------------------------------------------------------------------------------------------


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


@form(3)
def regex_reply(state: State) -> Any:
    text = LLM.invoke("LINES " + state["question"]).content
    found = re.findall(r"Query: (\w+)", text)
    match = re.search(r"(\w+)$", text)
    return {"out": found, "steps": len(match.group(1)) if match else 0}


@form(3)
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


@form(4)
def any_of_the_words(state: State) -> Any:
    reply = LLM.invoke(state["question"]).content
    is_sure = any(word in reply.lower() for word in ("sure", "yes"))
    is_plain = all(sign not in reply for sign in "<>") and any([sign in reply for sign in "abc"])  # noqa: C419  a list
    return {"out": f"{LLM.invoke('again').content} {is_sure} {is_plain}"}
