"""Components that call something else: a function of yours, a tool, a search of the web, an engine of yours.

    Apply(strip_markup, of="document", to="text")
    WebSearch(top_k=4)                                   queries or question -> results
    Tool(of="calls", to="observations")                  each of the calls, side by side
    Operation("tool", of="text", to="entities", engine="tagger", settings={"language": "en"})

A function runs on a thread. It counts as pure unless `reads=` or `writes=`, or the decorators `teola_plugin.reads` and
`writes`, say what it touches: what is touched is kept in the order in which it is written. A coroutine function runs on
an event loop of its own.
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
"""What engines may be asked; an engine of one's own picks what comes closest."""

assert set(ENGINE_OPS) <= set(KINDS)


def Apply(
    function: Callable[..., Any], of: str | Sequence[str], to: str, *, makes_list: bool = False, scope: str = "request",
    reads: Sequence[str] = (), writes: Sequence[str] = (), name: str = "",
) -> Component:  # fmt: skip
    """`to` is what the function makes of the values called `of`. `makes_list`: a list, of items to be taken singly."""
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
    """What the tools' engine answers to each call. If nothing is said, it writes what is named as its engine."""
    return Operation(
        "tool", of, to, engine=engine, reads=reads, writes=writes, scope=scope, batchable=batchable, name=name,
        settings=settings,
    )  # fmt: skip


def WebSearch(
    top_k: int = 4, *, engine: str = "search", batchable: bool = True, name: str = "websearch",
    takes: Mapping[str, str] | None = None, gives: Mapping[str, str] | None = None,
) -> Component:  # fmt: skip
    """Finds `top_k` pages for each query: texts of title, snippet and address."""

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
    """`to` is what the engine answers to `op` of the values called `of`, for each item of them or of `scope`.

    If nothing is said, tools and ingestions write, and searches read, a resource that is named as the engine.

    Raises: GraphError for an operation that graphs do not have.
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
