"""Tools that only look something up, in all ways in which a tool can be written; by name in `TOOLS`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException, tool
from pydantic import BaseModel, Field

from teola_plugin import pure, reads
from tests.support.agents_world import World
from tests.support.langchain_world import digest


class Range(BaseModel):
    low: float = 0.0
    high: float = 1.0


class Filters(BaseModel):
    query: str
    tags: list[str] = Field(default_factory=list)
    range: Range = Field(default_factory=Range)
    limit: int = Field(default=3, ge=1)
    secret: str = Field(default="", exclude=True)


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


def look(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def look(query: str) -> str:
        """Look something up."""
        return world.did("look", query)

    return look


def alook(world: World) -> BaseTool:
    @tool
    @reads("kb")
    async def alook(query: str) -> str:
        """Look something up."""
        return await world.adid("alook", query)

    return alook


def both(world: World) -> BaseTool:
    @reads("kb")
    def both(query: str) -> str:
        """Look something up."""
        return world.did("both", query)

    @reads("kb")
    async def aboth(query: str) -> str:
        return await world.adid("both", query)

    return StructuredTool.from_function(both, aboth)


def half_marked(world: World) -> BaseTool:
    """Only one of its functions is declared; the other has an effect."""

    @reads("kb")
    def half_marked(query: str) -> str:
        """Look something up."""
        return world.did("half_marked", query)

    async def ahalf_marked(query: str) -> str:
        world.effects.append(f"half_marked {query}")
        return await world.adid("half_marked", query)

    return StructuredTool.from_function(half_marked, ahalf_marked)


def reader(world: World) -> BaseTool:
    return PureReader(world=world)


def telling_reader(world: World) -> BaseTool:
    return TellingReader(world=world)


def configured_reader(world: World) -> BaseTool:
    return ConfiguredReader(world=world)


def hinted(world: World) -> BaseTool:
    def hinted(query: str) -> str:
        """Look something up."""
        return world.did("hinted", query)

    return StructuredTool.from_function(hinted, metadata={"readOnlyHint": True})


def single(world: World) -> BaseTool:
    return Tool("single", pure(lambda query: world.did("single", query)), "Looks up.")


def filtered(world: World) -> BaseTool:
    @tool(args_schema=Filters)
    @reads("kb")
    def filtered(query: str, tags: list[str], range: Range, limit: int, secret: str = "") -> str:
        """Look something up."""
        return world.did("filtered", query, tags, range, limit, secret)

    return filtered


def nested(world: World) -> BaseTool:
    @tool
    @pure
    def nested(filters: Filters) -> dict[str, Any]:
        """Look something up."""
        return {"found": world.did("nested", filters), "tags": filters.tags}

    return nested


def mutates(world: World) -> BaseTool:
    @tool
    @pure
    def mutates(query: str, tags: list[str], more: dict[str, Any]) -> list[str]:
        """Look something up."""
        tags.sort()
        more["deep"].append(len(tags))
        return [world.did("mutates", query, tags, more)]

    return mutates


def zero(world: World) -> BaseTool:
    @tool
    @pure
    def zero(x: float) -> str:
        """Shows a number."""
        return world.did("zero", x)

    return zero


def order(world: World) -> BaseTool:
    @tool
    @pure
    def order(fields: dict[str, Any]) -> str:
        """Shows fields in their order."""
        return world.did("order", json.dumps(fields))

    return order


def artifact(world: World) -> BaseTool:
    @tool(response_format="content_and_artifact")
    @reads("kb")
    def artifact(query: str) -> tuple[str, Any]:
        """Look something up."""
        return world.did("artifact", query), {"query": query, "rows": [1, 2]}

    return artifact


def lists(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def lists(query: str) -> list[dict[str, str]]:
        """Blocks of content."""
        return [{"type": "text", "text": world.did("lists", query)}, {"type": "text", "text": "end"}]

    return lists


def messages(world: World) -> BaseTool:
    @tool
    @reads("kb")
    def messages(query: str) -> Any:
        """Makes its message itself."""
        return ToolMessage(world.did("messages", query), tool_call_id="of its own", artifact=[query])

    return messages


def refuses(world: World) -> BaseTool:
    @reads("kb")
    def refuses(query: str) -> str:
        """Look something up."""
        if "hive" in world.did("refuses", query) + query:
            raise ToolException(f"no {query}")
        return query

    return StructuredTool.from_function(refuses, handle_tool_error=True, handle_validation_error="be valid")


def refuses_loudly(world: World) -> BaseTool:
    @reads("kb")
    def refuses_loudly(query: str) -> str:
        """Look something up."""
        if digest(world.did("refuses_loudly", query))[0] in "012":
            raise ToolException("refused", query)
        return query

    return StructuredTool.from_function(refuses_loudly)


def told_of_errors(world: World) -> BaseTool:
    def handler(error: ToolException) -> str:
        world.effects.append(f"handled {error}")
        return f"handled {error}"

    @reads("kb")
    def told_of_errors(query: str) -> str:
        """Look something up."""
        if "hive" in query:
            raise ToolException(f"no {query}")
        return world.did("told_of_errors", query)

    return StructuredTool.from_function(told_of_errors, handle_tool_error=handler)


def breaks(world: World) -> BaseTool:
    @tool
    @pure
    def breaks(query: str) -> str:
        """Look something up."""
        if digest(world.did("breaks", query))[0] in "01":
            raise ValueError(f"cannot do {query}")
        return query

    return breaks


TOOLS: dict[str, Callable[[World], BaseTool]] = {
    make.__name__: make
    for make in (
        look, alook, both, half_marked, reader, telling_reader, configured_reader, hinted, single, filtered,
        nested, mutates, zero, order, artifact, lists, messages, refuses, refuses_loudly, told_of_errors,
        breaks,
    )
}  # fmt: skip
