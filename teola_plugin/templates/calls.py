"""Components which call a user function, a tool, a web search, or a custom engine.

    Apply(strip_markup, of="document", to="text")
    WebSearch(top_k=4)                                   queries or question -> results
    Tool(of="calls", to="observations")                  each of the calls, side by side
    Operation("tool", of="text", to="entities", engine="tagger", settings={"language": "en"})

A function runs on a thread. A function counts as pure unless `reads=` or `writes=`, or the decorators
`teola_plugin.reads` and `writes`, name its resources; calls with the same resource keep their order. A coroutine
function runs on a separate event loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import WRITES
from teola_plugin.errors import GraphError
from teola_plugin.graph import KINDS
from teola_plugin.templates.flow import Component, names_of
from teola_plugin.templates.options import Takes, number
from teola_plugin.templates.part import Part

ENGINE_OPS = ("embedding", "ingestion", "searching", "reranking", "decoding", "websearch", "tool")
"""The operations of engines; a custom engine uses the closest."""

assert set(ENGINE_OPS) <= set(KINDS)


def Apply(
    function: Callable[..., Any], of: str | Sequence[str], to: str, *, makes_list: bool = False, scope: str = "request",
    reads: Sequence[str] = (), writes: Sequence[str] = (), name: str = "",
) -> Component:  # fmt: skip
    """Return a component which computes `to` by the function from the values called `of`.

    `makes_list`: the result is a list, whose items may be taken one by one.
    """
    if not callable(function):
        raise GraphError(f"component {name or to!r}: function: expected a function, got {function!r:.80}")
    names = names_of(of)
    call = _in_thread(function)
    effects = {key: tuple(value) for key, value in (("reads", reads), ("writes", writes)) if value}

    def rule(part: Part) -> None:
        values = [part.value(each) for each in names]
        part.give("value", part.call(call, *values, fn=part.name, named="value", makes_list=makes_list, **effects))

    return Component(name or f"make_{to}", rule, {each: Takes((each,)) for each in names}, {"value": to}, scope=scope)


def Tool(
    of: str | Sequence[str] = "calls", to: str = "observations", *, engine: str = "tools",
    reads: Sequence[str] | None = None, writes: Sequence[str] | None = None, scope: str = "", batchable: bool = True,
    name: str = "tool", settings: Mapping[str, Any] | None = None,
) -> Component:  # fmt: skip
    """Return a component with the answers of the tools' engine to each call.

    By default the tools write a resource with the engine's name.
    """
    return Operation(
        "tool", of, to, engine=engine, reads=reads, writes=writes, scope=scope, batchable=batchable, name=name,
        settings=settings,
    )  # fmt: skip


def WebSearch(
    top_k: int = 4, *, engine: str = "search", batchable: bool = True, name: str = "websearch",
    takes: Mapping[str, str] | None = None, gives: Mapping[str, str] | None = None,
) -> Component:  # fmt: skip
    """Return a component which finds `top_k` pages for each query: texts of title, snippet and address."""

    def rule(part: Part) -> None:
        queries, top_k = part.value("queries"), part.option("top_k")
        pages = part.add("websearch", queries, engine="search", levels=queries.levels, top_k=top_k, named="pages")
        results = part.call("documents", pages, levels=queries.levels, named="results", makes_list=True, most=top_k)
        part.give("results", results)

    return Component(
        name, rule, {"queries": Takes(("queries", "question"))}, {"results": "results"}, {"search": engine},
        {"top_k": number(top_k, "web_top_k")}, batchable=batchable,
    ).named(takes, gives)  # fmt: skip


def Operation(
    op: str, of: str | Sequence[str], to: str, *, engine: str, reads: Sequence[str] | None = None,
    writes: Sequence[str] | None = None, scope: str = "", batchable: bool = True, name: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Component:  # fmt: skip
    """Return a component which computes `to` by the engine's `op`, for each item of the values `of` or of `scope`.

    By default tools and ingestions write, and searches read, a resource with the engine's name.

    Raises: GraphError for an operation unknown to graphs.
    """
    name, names = name or f"{op}_{to}", names_of(of)
    if op not in ENGINE_OPS:
        raise GraphError(f"component {name!r}: op: expected one of {', '.join(ENGINE_OPS)}, got {op!r}")

    if reads is None and writes is None:
        reads = (engine,) if op == "searching" else ()
        writes = (engine,) if op in WRITES else ()
    touched: dict[str, Any] = {"reads": tuple(reads or ()), "writes": tuple(writes or ())}

    def rule(part: Part) -> None:
        values = [part.value(each) for each in names]
        levels = part.levels if scope else part.deepest(*values)
        made = part.add(op, *values, engine="engine", levels=levels, named="value", **touched, **(settings or {}))
        part.give("value", made)

    return Component(
        name, rule, {each: Takes((each,)) for each in names}, {"value": to}, {"engine": engine}, scope=scope,
        batchable=batchable,
    )  # fmt: skip


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return asyncio.run(function(*args))

    return run
