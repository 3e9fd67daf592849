"""Tools that a model calls: which may start early, and how the framework's run shares what ran ahead.

A tool *only reads* if the user says so (`@pure` or `@reads(...)` on its function, `pure` on its class, or the hint
`readOnlyHint` of MCP in its `metadata`), or if its function does nothing but ask models and stores that we know.

    early:      tool.invoke(call)  in a session of its own, heard by nobody  -> the value of `_run` lands in a slot
    framework:  tool.invoke(call)  its callbacks, its `_run`                 <- finds it there

Of a tool that asks runnables inside, only what those ask is shared: its own run tells the callbacks of theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param
from pydantic import BaseModel

from teola_plugin.adapters.langchain.finish import OUTSIDE
from teola_plugin.adapters.langchain.quiet import aapart, apart, told
from teola_plugin.adapters.langchain.trace import asked_by
from teola_plugin.adapters.purity import effects_of
from teola_plugin.effects import declared_effects
from teola_plugin.engines import EngineSpec, freeze
from teola_plugin.resources import IdentityMap
from teola_plugin.seams import Reply, ashare, current, instrument, is_unheard, share

NOT_GIVEN = ("config", "run_manager", "callbacks")
"""Arguments of a tool's `_run` that the framework adds."""

_talkative: IdentityMap[bool] = IdentityMap()


class TalkedError(Exception):
    """The value is no use to the framework's run: it must tell of the runnables that were asked."""


@dataclass(frozen=True)
class EarlyTool:
    """A tool that only reads. `is_so_still` is asked before each call. `is_outside`: it asks hosted models."""

    tool: BaseTool
    is_so_still: Callable[[], bool] = lambda: True
    is_outside: bool = False

    def begin(
        self, name: str, arguments: Mapping[str, Any], is_async: bool, context: Context
    ) -> tuple[Callable[[], Any], bool]:
        """What makes the call as the framework will and returns the tool's message, and if it is a coroutine function.

        `context`: the caller's.
        """
        call = {"name": name, "args": dict(arguments), "id": "early", "type": "tool_call"}
        if is_async and _has_coroutine(self.tool):
            return lambda: aapart(context, lambda: self.tool.ainvoke(call)), True
        return lambda: apart(context, lambda: self.tool.invoke(call)), False


def read_tool(tool: BaseTool) -> EarlyTool | str:
    """The tool, or why no call of it may start early."""
    if tool._injected_args_keys:
        return f"it is given {', '.join(sorted(tool._injected_args_keys))}"
    functions = _functions(tool)
    if any(_get_runnable_config_param(function) for function in functions):
        return "it takes the call's config"
    if _is_said_to_read(tool):
        return EarlyTool(tool, lambda: not _talkative.get(tool))
    if not functions:
        return "nobody said that it only reads"
    effects = [effects_of(function, asked_by) for function in functions]
    if why := next((e.why for e in effects if not e.pure), ""):
        return why
    if not all(e.asks for e in effects):
        return "it only computes, and nothing is gained by that"
    is_outside = any(OUTSIDE in e.reads for e in effects)
    return EarlyTool(tool, lambda: all(e.is_so_still() for e in effects), is_outside)


def instrument_tool(cls: type[BaseTool]) -> None:
    """Let calls of a tool's class share what ran ahead."""
    instrument(cls, "_run", _sharing_run)
    instrument(cls, "_arun", _sharing_arun)


def _functions(tool: BaseTool) -> list[Callable[..., Any]]:
    """The user's functions behind a stock tool."""
    if isinstance(tool, StructuredTool | Tool):
        return [function for function in (tool.func, tool.coroutine) if function is not None]
    return []


def _has_coroutine(tool: BaseTool) -> bool:
    if isinstance(tool, StructuredTool | Tool):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _is_said_to_read(tool: BaseTool) -> bool:
    if (tool.metadata or {}).get("readOnlyHint") is True:
        return True
    declared = [declared_effects(subject) for subject in (type(tool), *_functions(tool))]
    said = [effects for effects in declared if effects is not None]
    return bool(said) and all(effects.pure for effects in said)


def _claim(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool) -> tuple[Reply, bool] | None:
    session = current()
    if session is None or _talkative.get(tool) or not _is_said_to_read(tool):
        return None
    given = {name: _plain(value) for name, value in kwargs.items() if name not in NOT_GIVEN}
    try:
        key = (freeze([_plain(value) for value in args]), freeze(given), is_async)
        hash(key)
    except TypeError:  # arguments that cannot be compared
        return None
    return session.claim(EngineSpec("python", tool, tool.name), "tool", key, {})


def _plain(value: Any) -> Any:
    return (type(value), value.model_dump()) if isinstance(value, BaseModel) else value


def _sharing_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
        claimed = _claim(self, args, kwargs, is_async=False)
        if claimed is None:
            return original(self, *args, **kwargs)

        def compute() -> Any:
            with told() as names:
                value = original(self, *args, **kwargs)
            _check(self, names)
            return value

        return share(claimed, compute)

    return _run


def _sharing_arun(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def _arun(self: Any, *args: Any, **kwargs: Any) -> Any:
        claimed = _claim(self, args, kwargs, is_async=True)
        if claimed is None:
            return await original(self, *args, **kwargs)

        async def compute() -> Any:
            with told() as names:
                value = await original(self, *args, **kwargs)
            _check(self, names)
            return value

        return await ashare(claimed, compute)

    return _arun


def _check(tool: Any, told_of: list[Any]) -> None:
    """Raises: TalkedError where callbacks would have heard of more than the tool."""
    if told_of and is_unheard():
        _talkative.get_or_make(tool, lambda: True)
        raise TalkedError(tool.name)
