"""Agents made up at random: scripted replies that call tools, tools of every kind, graphs around them.

A reply is chosen by its prompt: the same conversation goes on the same way every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
    after_model,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.tools import ToolRuntime
from langchain_core.callbacks import CallbackManagerForToolRun, dispatch_custom_event
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import (
    BaseTool,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    create_retriever_tool,
    tool,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel, Field

from teola_plugin import pure, reads
from teola_plugin.engines import Batch, Completion, Delta, Done, Emit, Failed
from teola_plugin.models.langchain import EngineChatModel
from tests.langchain_world import Engines, digest
from tests.langgraph_world import Boom, Patient

TEXTS = ["bees", "hive 3", "Wer hält Bienen? 🐝", 'a "quoted"\nline', "", "a {b} \\ c", "2 < 3 </tool_call> 4"]

Arguments = Callable[[random.Random], dict[str, Any]]

_store: list[Any] = []


def store() -> Any:
    """One collection for all agents."""
    if not _store:
        _store.append(Engines().store("agents"))
    return _store[0]


# --- the model -------------------------------------------------------------------------------------------------------


class Writing(Patient):
    """Writes in small pieces, now and then with a pause; what ends in an error is streamed up to there."""

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        self.running += 1
        try:
            if batch.op != "decoding":
                for position in range(len(batch.items)):
                    emit(position, Done(1))
                return
            await asyncio.gather(*(self._write(at, str(item.payload), emit) for at, item in enumerate(batch.items)))
        finally:
            self.running -= 1

    async def _write(self, position: int, prompt: str, emit: Emit) -> None:
        error = None
        try:
            text = self.answer(prompt)
        except Boom as e:
            error, text = e, "I fail <tool_call>{"
        chance = random.Random(without_ids(prompt))
        pieces = []
        while text:
            cut = chance.randint(1, 40)
            pieces.append(text[:cut])
            text = text[cut:]
            emit(position, Delta(pieces[-1]))
            await asyncio.sleep(chance.choice([0, 0, 0.0005]))
        emit(position, Failed(error) if error else Done(Completion("".join(pieces), pieces=pieces)))


@dataclass
class Script:
    """What the model replies: up to `turns` replies with calls, then a final one."""

    seed: int
    turns: int
    known: dict[str, Arguments]
    final: str = ""
    fails: bool = False

    def reply(self, prompt: str) -> str:
        """By its prompt alone."""
        prompt = without_ids(prompt)
        chance = random.Random(f"{self.seed} {prompt}")
        if not prompt.startswith("Tools,"):  # asked by a tool
            return " ".join(digest(prompt)[i : i + 5] for i in range(0, 15, 5))
        if self.fails and chance.random() < 0.1:
            raise Boom("the engine failed")
        turn = prompt.rpartition("\nUser:")[2].count("\nAssistant:") - 1
        if turn >= self.turns or chance.random() < 0.1:
            return f"{self.ending(chance)}{digest(prompt)[:8]} 🐝 done."
        return self.calling(chance)

    def ending(self, chance: random.Random) -> str:
        """How a final reply begins."""
        if not self.final:
            return ""
        score = chance.choice([3, 3, 3, "many"])
        return written({"name": self.final, "arguments": {"summary": "all is well", "score": score}}) + "\n"

    def calling(self, chance: random.Random) -> str:
        """A reply with calls."""
        parts = [chance.choice(["", "", "I look it up.\n", "Ich schaue nach… "])]
        calls: list[str] = []
        for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
            if calls and chance.random() < 0.3:
                calls.append(calls[-1])
            else:
                calls.append(self.call(chance))
        for call in calls:
            parts += [call, chance.choice(["\n", "", "\nand "])]
        text = "".join(parts).rstrip() if calls else f"{parts[0]}Nothing to look up."
        return text.removesuffix("</tool_call>") if chance.random() < 0.05 else text

    def call(self, chance: random.Random) -> str:
        """One call, at times a bad one."""
        name = chance.choice(list(self.known))
        call = {"name": name, "arguments": self.known[name](chance)}
        match chance.randint(0, 24):
            case 0:
                return written({**call, "name": "unknown"})
            case 1:
                return written(call).replace('"arguments": {', '"arguments": {,')
            case 2:
                return written({**call, "arguments": "bees"})
            case 3:
                return written({**call, "arguments": {"query": {"not": "text"}, "limit": "many"}})
            case 4:
                return written({"name": name})
            case 5:
                return "<tool_call>no call at all</tool_call>"
            case _:
                return written(call)


def without_ids(prompt: str) -> str:
    """`create_agent` tells the model of the ids of invalid calls."""
    return re.sub(r"call_[0-9a-f]{20}", "call_", prompt)


def written(call: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


# --- tools -----------------------------------------------------------------------------------------------------------


def some_text(chance: random.Random) -> str:
    return chance.choice(TEXTS) if chance.random() < 0.5 else chance.choice(TEXTS[:2])


def one_query(chance: random.Random) -> dict[str, Any]:
    return {"query": some_text(chance)}


class Range(BaseModel):
    low: float = 0.0
    high: float = 1.0


class Filters(BaseModel):
    query: str
    tags: list[str] = Field(default_factory=list)
    range: Range = Field(default_factory=Range)
    limit: int = Field(default=3, ge=1)
    secret: str = Field(default="", exclude=True)


def some_filters(chance: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = one_query(chance)
    if chance.random() < 0.7:
        made["tags"] = chance.choice([[], ["x", "y"], ["x"]])
    if chance.random() < 0.5:
        made["range"] = {"low": chance.choice([0, 0.0, -0.0, 1]), "high": 2}
    if chance.random() < 0.5:
        made["limit"] = chance.choice([1, 2, 0])
    return made


class Readers(BaseTool):
    """A tool that is a class of its own, which `pure` stands on."""

    name: str = "reader"
    description: str = "Reads."
    world: Any = None

    def _run(self, query: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        return self.world.did(self.name, query)


@pure
class PureReader(Readers):
    pass


@pure
class TellingReader(Readers):
    name: str = "telling_reader"

    def _run(self, query: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        if run_manager:
            run_manager.on_text(f"reading {query}")
        return self.world.did(self.name, query)


@pure
class ConfiguredReader(Readers):
    name: str = "configured_reader"

    def _run(self, query: str, config: RunnableConfig) -> str:
        return self.world.did(self.name, query, config.get("configurable", {}).get("who"))


@dataclass
class World:
    """The engine, the model on it, and what tools leave behind. `ran`: how often each tool did its work."""

    script: Script
    engine: Any = None
    chat: Any = None
    effects: list[str] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)
    at_work: int = 0

    def __post_init__(self) -> None:
        self.engine = Writing(self.script.reply)
        self.chat = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)

    def reset(self) -> None:
        """Before each conversation."""
        self.engine.batches.clear()
        self.effects.clear()
        self.ran.clear()

    def did(self, name: str, *args: Any) -> str:
        """The work of a tool: it takes a moment."""
        shown = f"{name} {args}"
        self.ran[shown] += 1
        time.sleep(int(digest(shown)[0], 16) * 0.0002)
        return f"{name} found {digest(shown)[:6]}"

    async def adid(self, name: str, *args: Any) -> str:
        """`did` for a coroutine."""
        shown = f"{name} {args}"
        self.ran[shown] += 1
        await asyncio.sleep(int(digest(shown)[0], 16) * 0.0002)
        return f"{name} found {digest(shown)[:6]}"

    def tools(self) -> dict[str, tuple[Callable[[], BaseTool], Arguments]]:
        """All tools by name, and what they are called with."""
        makers: dict[str, Arguments] = {
            "look": one_query, "alook": one_query, "both": one_query, "reader": one_query, "hinted": one_query,
            "filtered": some_filters, "nested": lambda c: {"filters": some_filters(c)}, "mutates": self._mutated,
            "artifact": one_query, "refuses": one_query, "refuses_loudly": one_query, "breaks": one_query,
            "told_of_errors": one_query, "talks": one_query, "talks_unmarked": one_query, "retrieves": one_query,
            "note": one_query, "anote": one_query, "half_marked": one_query, "knows_state": one_query,
            "knows_runtime": one_query, "knows_config": one_query, "knows_id": one_query, "final": one_query,
            "commands": one_query, "writes_stream": one_query, "dispatches": one_query, "asks_human": one_query,
            "asks_human_quietly": one_query, "reads_config": one_query, "ensures_config": one_query,
            "telling_reader": one_query, "configured_reader": one_query, "single": self._single, "lists": one_query,
            "zero": lambda c: {"x": c.choice([0.0, -0.0, 1])}, "order": self._ordered, "messages": one_query,
        }  # fmt: skip
        return {name: (getattr(self, f"_{name}_tool"), arguments) for name, arguments in makers.items()}

    @staticmethod
    def _mutated(chance: random.Random) -> dict[str, Any]:
        return {"query": some_text(chance), "tags": ["b", "a"], "more": {"deep": [1, 2]}}

    @staticmethod
    def _single(chance: random.Random) -> dict[str, Any]:
        return {"__arg1": some_text(chance)}

    @staticmethod
    def _ordered(chance: random.Random) -> dict[str, Any]:
        return {"fields": chance.choice([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": True}])}

    # those that only read

    def _look_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def look(query: str) -> str:
            """Look something up."""
            return self.did("look", query)

        return look

    def _alook_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        async def alook(query: str) -> str:
            """Look something up."""
            return await self.adid("alook", query)

        return alook

    def _both_tool(self) -> BaseTool:
        @reads("kb")
        def both(query: str) -> str:
            """Look something up."""
            return self.did("both", query)

        @reads("kb")
        async def aboth(query: str) -> str:
            return await self.adid("both", query)

        return StructuredTool.from_function(both, aboth)

    def _half_marked_tool(self) -> BaseTool:
        """Only one of its functions is declared; the other has an effect."""

        @reads("kb")
        def half_marked(query: str) -> str:
            """Look something up."""
            return self.did("half_marked", query)

        async def ahalf_marked(query: str) -> str:
            self.effects.append(f"half_marked {query}")
            return await self.adid("half_marked", query)

        return StructuredTool.from_function(half_marked, ahalf_marked)

    def _reader_tool(self) -> BaseTool:
        return PureReader(world=self)

    def _telling_reader_tool(self) -> BaseTool:
        return TellingReader(world=self)

    def _configured_reader_tool(self) -> BaseTool:
        return ConfiguredReader(world=self)

    def _hinted_tool(self) -> BaseTool:
        def hinted(query: str) -> str:
            """Look something up."""
            return self.did("hinted", query)

        return StructuredTool.from_function(hinted, metadata={"readOnlyHint": True})

    def _single_tool(self) -> BaseTool:
        return Tool("single", pure(lambda query: self.did("single", query)), "Looks up.")

    def _filtered_tool(self) -> BaseTool:
        @tool(args_schema=Filters)
        @reads("kb")
        def filtered(query: str, tags: list[str], range: Range, limit: int, secret: str = "") -> str:
            """Look something up."""
            return self.did("filtered", query, tags, range, limit, secret)

        return filtered

    def _nested_tool(self) -> BaseTool:
        @tool
        @pure
        def nested(filters: Filters) -> dict[str, Any]:
            """Look something up."""
            return {"found": self.did("nested", filters), "tags": filters.tags}

        return nested

    def _mutates_tool(self) -> BaseTool:
        @tool
        @pure
        def mutates(query: str, tags: list[str], more: dict[str, Any]) -> list[str]:
            """Look something up."""
            tags.sort()
            more["deep"].append(len(tags))
            return [self.did("mutates", query, tags, more)]

        return mutates

    def _zero_tool(self) -> BaseTool:
        @tool
        @pure
        def zero(x: float) -> str:
            """Shows a number."""
            return self.did("zero", x)

        return zero

    def _order_tool(self) -> BaseTool:
        @tool
        @pure
        def order(fields: dict[str, Any]) -> str:
            """Shows fields in their order."""
            return self.did("order", json.dumps(fields))

        return order

    def _artifact_tool(self) -> BaseTool:
        @tool(response_format="content_and_artifact")
        @reads("kb")
        def artifact(query: str) -> tuple[str, Any]:
            """Look something up."""
            return self.did("artifact", query), {"query": query, "rows": [1, 2]}

        return artifact

    def _lists_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def lists(query: str) -> list[dict[str, str]]:
            """Blocks of content."""
            return [{"type": "text", "text": self.did("lists", query)}, {"type": "text", "text": "end"}]

        return lists

    def _messages_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def messages(query: str) -> Any:
            """Makes its message itself."""
            return ToolMessage(self.did("messages", query), tool_call_id="of its own", artifact=[query])

        return messages

    def _refuses_tool(self) -> BaseTool:
        @reads("kb")
        def refuses(query: str) -> str:
            """Look something up."""
            if "hive" in self.did("refuses", query) + query:
                raise ToolException(f"no {query}")
            return query

        return StructuredTool.from_function(refuses, handle_tool_error=True, handle_validation_error="be valid")

    def _refuses_loudly_tool(self) -> BaseTool:
        @reads("kb")
        def refuses_loudly(query: str) -> str:
            """Look something up."""
            if digest(self.did("refuses_loudly", query))[0] in "012":
                raise ToolException("refused", query)
            return query

        return StructuredTool.from_function(refuses_loudly)

    def _told_of_errors_tool(self) -> BaseTool:
        def handler(error: ToolException) -> str:
            self.effects.append(f"handled {error}")
            return f"handled {error}"

        @reads("kb")
        def told_of_errors(query: str) -> str:
            """Look something up."""
            if "hive" in query:
                raise ToolException(f"no {query}")
            return self.did("told_of_errors", query)

        return StructuredTool.from_function(told_of_errors, handle_tool_error=handler)

    def _breaks_tool(self) -> BaseTool:
        @tool
        @pure
        def breaks(query: str) -> str:
            """Look something up."""
            if digest(self.did("breaks", query))[0] in "01":
                raise ValueError(f"cannot do {query}")
            return query

        return breaks

    # those that ask

    def _talks_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def talks(query: str) -> str:
            """Asks a model."""
            self.ran[f"talks {query}"] += 1
            return str(self.chat.invoke(f"Sum up {query}").content)

        return talks

    def _talks_unmarked_tool(self) -> BaseTool:
        chat = self.chat

        @tool
        def talks_unmarked(query: str) -> str:
            """Asks a model."""
            return str(chat.invoke("Sum up " + query).content)

        return talks_unmarked

    def _retrieves_tool(self) -> BaseTool:
        retriever = store().as_retriever(search_kwargs={"k": 2})
        return create_retriever_tool(retriever, "retrieves", "Finds notes.")

    # those that may do anything

    def _note_tool(self) -> BaseTool:
        @tool
        def note(query: str) -> str:
            """Takes a note."""
            self.effects.append(f"note {query}")
            return "noted"

        return note

    def _anote_tool(self) -> BaseTool:
        def anote(query: str) -> str:
            """Takes a note."""
            self.effects.append(f"anote {query}")
            return "noted"

        async def aanote(query: str) -> str:
            self.effects.append(f"aanote {query}")
            return "noted"

        return StructuredTool.from_function(anote, aanote)

    def _knows_state_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def knows_state(query: str, state: Annotated[Any, InjectedState]) -> str:
            """Look something up."""
            return self.did("knows_state", query, len(state["messages"]))

        return knows_state

    def _knows_runtime_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def knows_runtime(query: str, runtime: ToolRuntime) -> str:
            """Look something up."""
            runtime.stream_writer({"knows_runtime": query})
            return self.did("knows_runtime", query, len(runtime.state["messages"]))

        return knows_runtime

    def _knows_config_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def knows_config(query: str, config: RunnableConfig) -> str:
            """Look something up."""
            return self.did("knows_config", query, config["configurable"].get("who"))

        return knows_config

    def _knows_id_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def knows_id(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
            """Look something up."""
            return self.did("knows_id", query) + tool_call_id[-1]

        return knows_id

    def _reads_config_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def reads_config(query: str) -> str:
            """Look something up for whoever asks."""
            return self.did("reads_config", query, get_config()["configurable"].get("who"))

        return reads_config

    def _ensures_config_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def ensures_config(query: str) -> str:
            """Look something up for whoever asks."""
            config = ensure_config()
            return self.did("ensures_config", query, config["metadata"].get("who"), "mine" in config["tags"])

        return ensures_config

    def _final_tool(self) -> BaseTool:
        @tool(return_direct=True)
        @reads("kb")
        def final(query: str) -> str:
            """Look something up."""
            return self.did("final", query)

        return final

    def _commands_tool(self) -> BaseTool:
        @tool
        def commands(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
            """Changes the state."""
            self.effects.append(f"commands {query}")
            return Command(update={"messages": [ToolMessage(f"commanded {query}", tool_call_id=tool_call_id)]})

        return commands

    def _writes_stream_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def writes_stream(query: str) -> str:
            """Look something up."""
            get_stream_writer()({"looking": query})
            return self.did("writes_stream", query)

        return writes_stream

    def _dispatches_tool(self) -> BaseTool:
        @tool
        @reads("kb")
        def dispatches(query: str) -> str:
            """Look something up."""
            dispatch_custom_event("looking", {"query": query})
            return self.did("dispatches", query)

        return dispatches

    def _asks_human_tool(self) -> BaseTool:
        @tool
        def asks_human(query: str) -> str:
            """Asks a human."""
            said = interrupt({"query": query})
            self.effects.append(f"asks_human {query} {said}")
            return f"human said {said}"

        return asks_human

    def _asks_human_quietly_tool(self) -> BaseTool:
        @tool
        @reads("humans")
        def asks_human_quietly(query: str) -> str:
            """Asks a human."""
            return f"human said {interrupt({'query': query})}"

        return asks_human_quietly


RARE = ("refuses_loudly", "breaks", "asks_human", "asks_human_quietly", "final")
ONLY_ASYNC = ("alook",)
ONLY_WITH_SAVER = ("asks_human", "asks_human_quietly")


# --- agents ----------------------------------------------------------------------------------------------------------


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
        known = self.world.tools()
        may = [
            name for name in known
            if (self.is_async or name not in ONLY_ASYNC) and (self.has_saver or name not in ONLY_WITH_SAVER)
        ]  # fmt: skip
        names = chance.sample([n for n in may if n not in RARE], chance.randint(2, 5))
        if chance.random() < 0.3:
            names.append(chance.choice([n for n in may if n in RARE]))
        if chance.random() < 0.3 and "note" not in names:
            names.append("note")
        self.makers = {name: known[name][0] for name in names}
        self.script.known.update({name: known[name][1] for name in names})
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
        tools = [make() for make in self.makers.values()]
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
