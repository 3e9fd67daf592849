"""Agents made up at random: some of the tools, and a graph of some kind around them and the model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
    after_model,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from pydantic import BaseModel

from tests.support import agents_doing_tools, agents_reading_tools
from tests.support.agents_world import Arguments, Script, World

TEXTS = ["bees", "hive 3", "Wer hält Bienen? 🐝", 'a "quoted"\nline', "", "a {b} \\ c", "2 < 3 </tool_call> 4"]

TOOLS = {**agents_reading_tools.TOOLS, **agents_doing_tools.TOOLS}

RARE = ("refuses_loudly", "breaks", "asks_human", "asks_human_quietly", "final")
ONLY_ASYNC = ("alook",)
ONLY_WITH_SAVER = ("asks_human", "asks_human_quietly")


# --- what tools are called with ---------------------------------------------------------------------------------------


def some_text(chance: random.Random) -> str:
    return chance.choice(TEXTS) if chance.random() < 0.5 else chance.choice(TEXTS[:2])


def one_query(chance: random.Random) -> dict[str, Any]:
    return {"query": some_text(chance)}


def some_filters(chance: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = one_query(chance)
    if chance.random() < 0.7:
        made["tags"] = chance.choice([[], ["x", "y"], ["x"]])
    if chance.random() < 0.5:
        made["range"] = {"low": chance.choice([0, 0.0, -0.0, 1]), "high": 2}
    if chance.random() < 0.5:
        made["limit"] = chance.choice([1, 2, 0])
    return made


def some_mutated(chance: random.Random) -> dict[str, Any]:
    return {"query": some_text(chance), "tags": ["b", "a"], "more": {"deep": [1, 2]}}


def some_single(chance: random.Random) -> dict[str, Any]:
    return {"__arg1": some_text(chance)}


def some_ordered(chance: random.Random) -> dict[str, Any]:
    return {"fields": chance.choice([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": True}])}


ARGUMENTS: dict[str, Arguments] = {
    "look": one_query, "alook": one_query, "both": one_query, "reader": one_query, "hinted": one_query,
    "filtered": some_filters, "nested": lambda c: {"filters": some_filters(c)}, "mutates": some_mutated,
    "artifact": one_query, "refuses": one_query, "refuses_loudly": one_query, "breaks": one_query,
    "told_of_errors": one_query, "talks": one_query, "talks_unmarked": one_query, "retrieves": one_query,
    "note": one_query, "anote": one_query, "half_marked": one_query, "knows_state": one_query,
    "knows_runtime": one_query, "knows_config": one_query, "knows_id": one_query, "final": one_query,
    "commands": one_query, "writes_stream": one_query, "dispatches": one_query, "asks_human": one_query,
    "asks_human_quietly": one_query, "reads_config": one_query, "ensures_config": one_query,
    "telling_reader": one_query, "configured_reader": one_query, "single": some_single, "lists": one_query,
    "zero": lambda c: {"x": c.choice([0.0, -0.0, 1])}, "order": some_ordered, "messages": one_query,
}  # fmt: skip
"""Of each tool."""


# --- agents -----------------------------------------------------------------------------------------------------------


class Verdict(BaseModel):
    """What came of it."""

    summary: str
    score: int


class Maker:
    """An agent made up from a seed. `agent()` makes it anew each time, on the same world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(seed)
        self.is_async = chance.random() < 0.5
        self.has_saver = chance.random() < 0.5
        self.kind = chance.choice(["create_agent"] * 5 + ["by_hand", "react v1", "react v2", "subgraph", "subgraph"])
        self.script = Script(seed, chance.randint(1, 4), {}, fails=chance.random() < 0.15)
        self.world = World(self.script)
        may = [
            name for name in ARGUMENTS
            if (self.is_async or name not in ONLY_ASYNC) and (self.has_saver or name not in ONLY_WITH_SAVER)
        ]  # fmt: skip
        names = chance.sample([n for n in may if n not in RARE], chance.randint(2, 5))
        if chance.random() < 0.3:
            names.append(chance.choice([n for n in may if n in RARE]))
        if chance.random() < 0.3 and "note" not in names:
            names.append("note")
        self.tools = names
        self.script.known.update({name: ARGUMENTS[name] for name in names})
        self.middleware = self._middleware(chance)
        self.has_verdict = self.kind in ("create_agent", "subgraph") and chance.random() < 0.2
        if self.has_verdict:
            self.script.final = "Verdict"
        self.options: dict[str, Any] = {}
        if chance.random() < 0.5 and self.kind in ("create_agent", "subgraph"):
            self.options["system_prompt"] = "You keep bees."
        self.interrupts: dict[str, Any] = {}
        if self.has_saver and chance.random() < 0.15:
            self.interrupts = {
                chance.choice(["interrupt_before", "interrupt_after"]): [chance.choice([self.model_node, "tools"])]
            }
        self.handles_errors = chance.random() < 0.5

    @property
    def model_node(self) -> str:
        """The name of the node that asks the model."""
        return "agent" if self.kind.startswith("react") else "model"

    def _middleware(self, chance: random.Random) -> Callable[[], Sequence[AgentMiddleware[Any, Any]]]:
        effects, names = self.world.effects, list(self.script.known)
        if self.kind not in ("create_agent", "subgraph") or chance.random() < 0.5:
            return lambda: ()

        def wrapping() -> Any:
            @wrap_tool_call
            def renames(request: Any, handler: Any) -> Any:
                effects.append(f"wrapped {request.tool_call['name']}")
                return handler(request)

            @wrap_tool_call
            async def arenames(request: Any, handler: Any) -> Any:
                effects.append(f"wrapped {request.tool_call['name']}")
                return await handler(request)

            return [arenames if self.is_async else renames]

        def after() -> Any:
            @after_model
            def counts(state: Any, runtime: Any) -> Any:
                effects.append(f"after {len(state['messages'])}")
                last = state["messages"][-1]
                if len(last.tool_calls) > 3:  # refuses them
                    return {"messages": [AIMessage("too many", id=last.id)]}
                return None

            return [counts]

        def wrapping_model() -> Any:
            def changed(response: Any) -> Any:
                (message,) = response.result[:1]
                if len(message.tool_calls) > 2:
                    message.tool_calls = message.tool_calls[1:]
                for call in message.tool_calls:
                    if call["args"].get("query") == "bees":
                        call["args"]["query"] = "wasps"
                return response

            @wrap_model_call
            def changes(request: Any, handler: Any) -> Any:
                return changed(handler(request))

            @wrap_model_call
            async def achanges(request: Any, handler: Any) -> Any:
                return changed(await handler(request))

            return [achanges if self.is_async else changes]

        choices: list[Any] = [wrapping, after, wrapping_model, lambda: [_retrying()]]
        if self.has_saver:
            asked = dict.fromkeys(names[: len(names) // 2 + 1], True)
            choices += [lambda: [HumanInTheLoopMiddleware(interrupt_on=asked)]] * 2  # type: ignore[arg-type]
        made: Callable[[], Any] = chance.choice(choices)
        return made

    def agent(self) -> Any:
        """The agent, made anew."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # create_react_agent is deprecated
            return self._agent()

    def _agent(self) -> Any:
        tools = [TOOLS[name](self.world) for name in self.tools]
        saver: dict[str, Any] = {"checkpointer": InMemorySaver()} if self.has_saver else {}
        match self.kind:
            case "react v1" | "react v2":
                version: Any = self.kind[-2:]
                return create_react_agent(self.world.chat, tools, version=version, **saver, **self.interrupts)
            case "by_hand":
                return self._by_hand(tools).compile(**saver, **self.interrupts)
            case "subgraph":
                outer: Any = StateGraph(MessagesState)
                outer.add_node("inner", self._created(tools, {}))
                outer.add_node("last", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} messages")]})
                outer.add_edge(START, "inner").add_edge("inner", "last")
                return outer.compile(**saver)
            case _:
                return self._created(tools, {**saver, **self.interrupts})

    def _created(self, tools: list[BaseTool], options: dict[str, Any]) -> Any:
        if self.has_verdict:
            options["response_format"] = Verdict
        return create_agent(self.world.chat, tools, middleware=self.middleware(), **self.options, **options)

    def _by_hand(self, tools: list[BaseTool]) -> Any:
        asked = self.world.chat.bind_tools(tools)

        def model(state: MessagesState) -> Any:
            return {"messages": [asked.invoke(state["messages"])]}

        async def amodel(state: MessagesState) -> Any:
            return {"messages": [await asked.ainvoke(state["messages"])]}

        builder: Any = StateGraph(MessagesState)
        builder.add_node("model", amodel if self.is_async else model)
        builder.add_node("tools", ToolNode(tools, **({"handle_tool_errors": True} if self.handles_errors else {})))
        builder.add_edge(START, "model").add_edge("tools", "model")
        builder.add_conditional_edges("model", tools_condition, ["tools", END])
        return builder


def _retrying() -> Any:
    return ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False, backoff_factor=0.0)
