"""Tools called by a model: which tools may start early, and how the framework's run shares an early call.

A tool *only reads* if the user says so (`@pure` or `@reads(...)` on its function, `pure` on its class, or the hint
`readOnlyHint` of MCP in its `metadata`), or as a stock client of a web search. Search clients are asked as
hosted models are: only for certain requests.

    early:      tool.invoke(call)  in a session of its own, heard by nobody  -> the value of `_run` lands in a slot
    framework:  tool.invoke(call)  its callbacks, its `_run`                 <- finds it there

For a tool with runnables inside, only the inner requests are shared: the tool's own run reports the inner callbacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from operator import is_
from pathlib import PurePath
from types import FunctionType
from typing import Any
from uuid import UUID

from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param
from pydantic import BaseModel

from teola_plugin.adapters import search_classes, web_clients
from teola_plugin.adapters.configured import stand_in
from teola_plugin.adapters.early import is_free_of_code, is_harmless
from teola_plugin.adapters.interception import Alone, Met, sharing
from teola_plugin.adapters.langchain import reading_retrievers
from teola_plugin.adapters.langchain.models import is_published
from teola_plugin.adapters.langchain.quiet import aapart, apart, told
from teola_plugin.adapters.langchain.trace import trace
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.methods import is_shared
from teola_plugin.adapters.plain import is_plain
from teola_plugin.adapters.reader.facts import plain_text
from teola_plugin.adapters.reader.foreign import is_class, is_of_library
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_schema
from teola_plugin.effects import Effects, declared_effects
from teola_plugin.engines import EngineSpec
from teola_plugin.graph import OUTSIDE, PIPELINE
from teola_plugin.resources import IdentityMap
from teola_plugin.seams import Session, is_unheard
from teola_plugin.value_keys import configuration_key, is_comparable

NOT_GIVEN = ("config", "run_manager", "callbacks")
"""Arguments of a tool's `_run` that the framework adds."""

_talkative: IdentityMap[bool] = IdentityMap()


class TalkedError(Exception):
    """The value alone is no use: the framework's run must report runnables, has a config, or changes arguments."""


@dataclass(frozen=True)
class EarlyTool:
    """A tool that only reads. `is_so_still` is asked before each call.

    `is_outside`: the tool asks hosted models. `is_changeless`: no write could change the tool's value unnoticed.
    """

    tool: BaseTool
    is_so_still: Callable[[], bool] = lambda: True
    is_outside: bool = False
    is_changeless: bool = False

    def begin(
        self, name: str, arguments: Mapping[str, Any], is_async: bool, context: Context
    ) -> tuple[Callable[[], Any], bool]:
        """Return a function that makes the framework's call, and whether the function is a coroutine function.

        `context`: the caller's.
        """
        call = {"name": name, "args": dict(arguments), "id": "early", "type": "tool_call"}
        if is_async and reading_retrievers.has_coroutine(self.tool):
            return lambda: aapart(context, lambda: self.tool.ainvoke(call)), True
        return lambda: apart(context, lambda: self.tool.invoke(call)), False


def read_tool(tool: BaseTool) -> EarlyTool | str:
    """Return the early tool, or the reason why no call of the tool may start early."""
    if tool._injected_args_keys:
        return f"it is given {', '.join(sorted(tool._injected_args_keys))}"
    functions = _functions(tool)
    if any(_get_runnable_config_param(function) for function in functions or (tool._run, tool._arun)):
        return "it takes the call's config"
    handlers = [handler for handler in (tool.handle_tool_error, tool.handle_validation_error) if callable(handler)]
    if not all(map(is_harmless, handlers)):
        return "what handles its errors is not declared free of effects"
    if not is_said_to_read(tool):
        return _read_library_tool(tool, functions) or "nobody said that it only reads"
    if not _checks_arguments_alone(tool):
        return "code of the user's checks its arguments"
    is_pure = _is_declared(tool, lambda effects: effects.pure and not effects.reads)

    def is_so_still() -> bool:
        return is_said_to_read(tool) and not _talkative.get(tool)

    return EarlyTool(tool, is_so_still, is_outside=_is_search(tool), is_changeless=is_pure)


def _read_library_tool(tool: BaseTool, functions: list[Callable[..., Any]]) -> EarlyTool | None:
    """Return the early tool if its functions are LangChain's and ask a known retriever: `create_retriever_tool`."""
    if not functions or not _checks_arguments_alone(tool):
        return None
    asked: list[BaseRetriever] = []
    for function in functions:
        if type(function) is not FunctionType or not is_of_library(function):
            return None
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        asked += (retrievers := [each for each in held if isinstance(each, BaseRetriever)])
        if not retrievers or not is_free_of_code(*(each for each in held if not isinstance(each, BaseRetriever))):
            return None
    read = [trace(retriever) for retriever in asked]
    if any(traced.breaks or any(p.engine == PIPELINE for p in traced.graph.primitives) for traced in read):
        return None
    is_outside = any(OUTSIDE in p.reads for traced in read for p in traced.graph.primitives)

    def is_so_still() -> bool:
        now = _functions(tool)
        return len(now) == len(functions) and all(map(is_, now, functions))

    return EarlyTool(tool, is_so_still, is_outside, is_changeless=True)


def _checks_arguments_alone(tool: BaseTool) -> bool:
    """Whether no user code runs before the tool's function, beside code declared with its class."""
    schema: Any = tool.args_schema
    if is_class(schema) and not is_clean_schema(schema):
        return False
    if declared_effects(type(tool)) or _is_hinted(tool) or _is_search(tool):
        return True
    return any(is_stock(tool, cls) for cls in (StructuredTool, Tool))


def instrument_tool(cls: type[BaseTool]) -> None:
    """Make calls of a tool's class share early calls."""
    _SHARED.replace(cls, "_run", coroutines=["_arun"])


def _functions(tool: BaseTool) -> list[Callable[..., Any]]:
    """Return the user's functions behind a stock tool."""
    if isinstance(tool, StructuredTool | Tool):
        return [function for function in (tool.func, tool.coroutine) if function is not None]
    return []


def is_said_to_read(tool: BaseTool) -> bool:
    """Whether the tool only reads, by declaration, by MCP's hint, or as a stock client of a web search."""
    if _is_search(tool):
        return True
    declared = _declared(tool)
    is_all_pure = all(said.pure for said in declared if said)
    return is_all_pure if _is_hinted(tool) else _is_declared(tool, lambda said: said.pure)


def _is_search(tool: BaseTool) -> bool:
    """Whether the tool is a published tool of searches, without user code."""
    if not _is_search_class(type(tool)):
        return False
    held = [value for name, value in vars(tool).items() if name != "callbacks"]
    clients = [value for value in held if not is_free_of_code(value)]
    return is_published(tool, _CALLED) and all(_is_client(client) for client in clients)


def _is_search_class(cls: type) -> bool:
    return search_classes.tool_of(cls.__module__, cls.__name__) is not None


_CALLED = ("invoke", "ainvoke", "run", "arun", "_run", "_arun", "_parse_input", "_to_args_and_kwargs")
"""Methods used in a call of a tool."""


def _is_client(held: Any) -> bool:
    """Whether the object is a published client of a package with search tools, with only data inside."""
    cls = type(held)
    if cls.__module__.split(".")[0] not in search_classes.PACKAGES or not is_free_of_code(*vars(held).values()):
        return False
    return is_published(held, [name for name, member in vars(cls).items() if callable(member) and name[:2] != "__"])


def _is_hinted(tool: BaseTool) -> bool:
    return (tool.metadata or {}).get("readOnlyHint") is True


def _is_declared(tool: BaseTool, holds: Callable[[Effects], bool]) -> bool:
    """Whether the condition holds for the user's declarations of the class or of all functions."""
    declared = _declared(tool)
    return bool(declared) and all(said is not None and holds(said) for said in declared)


def _declared(tool: BaseTool) -> list[Effects | None]:
    """Return the declarations of the class and of marked functions, or of each function."""
    of_class, of_functions = declared_effects(type(tool)), [declared_effects(f) for f in _functions(tool)]
    return [of_class, *(said for said in of_functions if said)] if of_class else of_functions


def _resource_of(tool: BaseTool) -> object:
    """Return the identity of a tool: web searches with equal settings are the same, also if made for one call each."""
    settings = configuration_key(tool) if _is_search(tool) else None
    return stand_in((type(tool), settings)) if settings is not None and is_comparable(settings) else tool


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """Return the key of a call; None for arguments that cannot be compared."""
    try:
        return (_exact(args), _exact({name: value for name, value in kwargs.items() if name not in NOT_GIVEN}))
    except TypeError:
        return None


def _exact(value: Any) -> Hashable:
    """Return a key, equal for arguments indistinguishable to tools: 0.0 differs from -0.0, and dicts by order.

    Raises: TypeError for a value without an exact comparison.
    """
    value = plain_text(value)
    match value:
        case None | str() | int() | bytes() | Enum():
            return (type(value), value)
        case float() | Decimal() | date() | time() | timedelta() | UUID() | PurePath():
            return (type(value), repr(value))
        case BaseModel():
            fields = (vars(value), value.__pydantic_extra__, value.__pydantic_private__, value.model_fields_set)
            return (type(value), *map(_exact, fields))
        case dict():
            return (type(value), tuple((_exact(k), _exact(v)) for k, v in value.items()))
        case list() | tuple():
            return (type(value), tuple(map(_exact, value)))
        case set() | frozenset():
            return (type(value), frozenset(map(_exact, value)))
        case _:
            raise TypeError(type(value).__name__)


@dataclass(frozen=True, slots=True)
class _Call(Met):
    """A call of a tool. `key`: the call's identity; `names`: effects so far that only the framework's run can have."""

    tool: BaseTool
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: Hashable
    names: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """See `Met.asking`."""
        with told(self.kwargs.get("run_manager")) as names, web_clients.in_tool():
            yield
        self.names.extend(names)

    def reply(self, value: Any) -> Any:
        """See `Met.reply`. Raises: TalkedError if the call had effects beside the value."""
        is_more = self.names or _key(self.args, self.kwargs) != self.key or not _is_told_without_code(self.tool, value)
        if is_more and is_unheard():
            _talkative.get_or_make(self.tool, lambda: True)
            raise TalkedError(self.tool.name)
        return value


def _meet(
    session: Session, original: Callable[..., Any], tool: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> _Call | Alone | None:  # fmt: skip
    if _is_search_class(type(tool)) and (request := session.ask_alone(partial(_named, tool), "tool")):
        return Alone(request, partial(_is_search, tool), web_clients.in_tool)
    key = _key(args, kwargs)
    if key is None or _talkative.get(tool) or not is_said_to_read(tool):
        return None
    spec = EngineSpec("python", _resource_of(tool), *_named(tool))
    return _Call(session.claim(spec, "tool", (key, is_async), {}), tool, args, kwargs, key)


def _named(tool: BaseTool) -> tuple[str, Hashable]:
    """Return the name of the tool's engine, and the service."""
    return tool.name, reading_retrievers.provider_of_tool(tool)


_SHARED = sharing(_meet)


def _is_told_without_code(tool: BaseTool, value: Any) -> bool:
    """Whether writing the value as the text of a message runs no user code."""
    is_pair = tool.response_format == "content_and_artifact" and type(value) is tuple and len(value) == 2
    return is_plain(value[0] if is_pair else value)


def _shares(tool: BaseTool) -> bool:
    """Whether a program's call of the tool may start early: not if the framework's run may be in an unshared call."""
    if not isinstance(read_tool(tool), EarlyTool):
        return False
    cls = type(tool)
    was_shared = is_shared(cls, "_run")
    instrument_tool(cls)
    return was_shared


def _instrument_loaded() -> None:
    """Make calls of all loaded classes of tools that may only read share early calls."""
    todo: list[Any] = [BaseTool]
    while todo:
        cls = todo.pop()
        todo += type.__subclasses__(cls)
        is_search = search_classes.tool_of(cls.__module__, cls.__name__) is not None
        if cls in (StructuredTool, Tool) or is_search or declared_effects(cls):
            instrument_tool(cls)


def install() -> None:
    """Let programs that are read use read-only tools."""
    reading_retrievers.install(_shares, _instrument_loaded)
