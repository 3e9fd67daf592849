"""Tools that ask models, know of the call they are in, or leave something behind; by name in `TOOLS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from langchain.tools import ToolRuntime
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, create_retriever_tool, tool
from langgraph.config import get_config, get_stream_writer
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt

from teola_plugin import reads
from tests.support.agents_world import World
from tests.support.langchain_world import Engines

_store: list[Any] = []


def store() -> Any:
    """One collection for all agents."""
    if not _store:
        _store.append(Engines().store("agents"))
    return _store[0]


# --- those that ask --------------------------------------------------------------------------------------------------


def talks(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def talks(query: str) -> str:
        """Asks a model."""
        world.ran[f"talks {query}"] += 1
        return str(world.chat.invoke(f"Sum up {query}").content)

    return talks


def talks_unmarked(world: World) -> BaseTool:
    chat = world.chat

    @tool
    def talks_unmarked(query: str) -> str:
        """Asks a model."""
        return str(chat.invoke("Sum up " + query).content)

    return talks_unmarked


def retrieves(world: World) -> BaseTool:
    retriever = store().as_retriever(search_kwargs={"k": 2})
    return create_retriever_tool(retriever, "retrieves", "Finds notes.")


# --- those that may do anything --------------------------------------------------------------------------------------


def note(world: World) -> BaseTool:
    @tool
    def note(query: str) -> str:
        """Takes a note."""
        world.effects.append(f"note {query}")
        return "noted"

    return note


def anote(world: World) -> BaseTool:
    def anote(query: str) -> str:
        """Takes a note."""
        world.effects.append(f"anote {query}")
        return "noted"

    async def aanote(query: str) -> str:
        world.effects.append(f"aanote {query}")
        return "noted"

    return StructuredTool.from_function(anote, aanote)


def knows_state(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def knows_state(query: str, state: Annotated[Any, InjectedState]) -> str:
        """Look something up."""
        return world.did("knows_state", query, len(state["messages"]))

    return knows_state


def knows_runtime(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def knows_runtime(query: str, runtime: ToolRuntime) -> str:
        """Look something up."""
        runtime.stream_writer({"knows_runtime": query})
        return world.did("knows_runtime", query, len(runtime.state["messages"]))

    return knows_runtime


def knows_config(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def knows_config(query: str, config: RunnableConfig) -> str:
        """Look something up."""
        return world.did("knows_config", query, config["configurable"].get("who"))

    return knows_config


def knows_id(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def knows_id(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Look something up."""
        return world.did("knows_id", query) + tool_call_id[-1]

    return knows_id


def reads_config(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def reads_config(query: str) -> str:
        """Look something up for whoever asks."""
        return world.did("reads_config", query, get_config()["configurable"].get("who"))

    return reads_config


def ensures_config(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def ensures_config(query: str) -> str:
        """Look something up for whoever asks."""
        config = ensure_config()
        return world.did("ensures_config", query, config["metadata"].get("who"), "mine" in config["tags"])

    return ensures_config


def final(world: World) -> BaseTool:
    @tool(return_direct=True)
    @reads("kb")
    def final(query: str) -> str:
        """Look something up."""
        return world.did("final", query)

    return final


def commands(world: World) -> BaseTool:
    @tool
    def commands(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Changes the state."""
        world.effects.append(f"commands {query}")
        return Command(update={"messages": [ToolMessage(f"commanded {query}", tool_call_id=tool_call_id)]})

    return commands


def writes_stream(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def writes_stream(query: str) -> str:
        """Look something up."""
        get_stream_writer()({"looking": query})
        return world.did("writes_stream", query)

    return writes_stream


def dispatches(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def dispatches(query: str) -> str:
        """Look something up."""
        dispatch_custom_event("looking", {"query": query})
        return world.did("dispatches", query)

    return dispatches


def asks_human(world: World) -> BaseTool:
    @tool
    def asks_human(query: str) -> str:
        """Asks a human."""
        said = interrupt({"query": query})
        world.effects.append(f"asks_human {query} {said}")
        return f"human said {said}"

    return asks_human


def asks_human_quietly(world: World) -> BaseTool:
    @tool
    @reads("humans")
    def asks_human_quietly(query: str) -> str:
        """Asks a human."""
        return f"human said {interrupt({'query': query})}"

    return asks_human_quietly


TOOLS: dict[str, Callable[[World], BaseTool]] = {
    make.__name__: make
    for make in (
        talks, talks_unmarked, retrieves, note, anote, knows_state, knows_runtime, knows_config, knows_id,
        reads_config, ensures_config, final, commands, writes_stream, dispatches, asks_human,
        asks_human_quietly,
    )
}  # fmt: skip
