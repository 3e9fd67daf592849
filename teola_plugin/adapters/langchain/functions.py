"""The user's functions in a pipeline: which keys they read, and whether they may run ahead."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import accepts_config, accepts_run_manager

from teola_plugin.adapters.keys import ReadKeys, read_keys
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.quiet import aapart, apart
from teola_plugin.adapters.langchain.values import Constant, Holds, Prompt, Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.plain import is_unchanging, on_own_copies
from teola_plugin.adapters.purity import Asks, effects_of
from teola_plugin.effects import ASSUMED, Effects, declared_effects
from teola_plugin.graph import OUTSIDE

DECLARE = "declare it: @teola_plugin.pure, @reads(...) or @writes(...)"


def not_runnable(value: Any) -> Any:
    """The value. Raises: LookupError for a runnable, which LangChain runs; the run-ahead does not know how."""
    if isinstance(value, Runnable):
        raise LookupError("the function returned a runnable")
    return value


def trace_function(
    draft: Draft, component: Any, function: Callable[..., Any], given: Symbol, name: str, asks: Asks, *,
    prepare: Callable[[Any], Any] | None = None, is_running: bool = False, unknown: frozenset[str] = frozenset(),
    check: Callable[[Any], Any] = not_runnable,
) -> Symbol:  # fmt: skip
    """What the function of a component makes of its input.

    `prepare` makes an object of the dict that its input is.
    `is_running`: the framework runs it now anyhow, and will tell. `unknown`: keys of which nothing is known.
    `check` returns what the function returned, or raises where the framework would do anything else with it.

    Raises: Untraceable.
    """
    keys = None if prepare else read_keys(function)
    if keys and keys.is_getter and not isinstance(given, Prompt) and not is_running:
        return draft.field(given, keys.required[0])
    shown = _name(function)
    fn = shown if shown != "function" else name or shown
    effects = _effects(function, asks)
    if effects is ASSUMED:
        draft.origin += ", assumed pure"
    if not effects.pure or is_running:
        if not (effects.pure or effects.writes):
            draft.leave("TB101", component, f"{shown}: {effects.why}", DECLARE)
        writes = effects.writes or None
        read = _mentioned(draft, given, keys)
        return draft.await_run(name or shown, component, fn, read, writes, is_pure=effects.pure)
    if missing := unknown if keys is None else unknown.intersection((*keys.required, *keys.optional)):
        raise Untraceable("TB120", ", ".join(sorted(missing)))
    call, args = _arguments(draft, function, given, keys, prepare)
    if declared_effects(function) is None:
        call = on_own_copies(call)
    is_async = inspect.iscoroutinefunction(function)
    if effects.asks or is_async:
        call = _asking(call, effects, is_async, may_be_stale=draft.is_behind_effects)
        args = [draft.bindings.mode(), *args]
    identity = ("function", id(component), tuple(a.name for a in args))
    holds: Holds = "text" if _says_text(function) else "any"
    return draft.call(
        name or shown, fn, _checked(call, check, is_async), *args, identity=identity, is_glue=False,
        reads=effects.reads, holds=holds, asks=effects.asks, is_async=is_async,
    )  # fmt: skip


def _says_text(function: Any) -> bool:
    """Its annotation says that it returns a text; if that is not true, a guess of the run-ahead is wrong."""
    return getattr(function, "__annotations__", {}).get("return") in (str, "str")


def _asking(
    function: Callable[..., Any], effects: Effects, is_async: bool, *, may_be_stale: bool
) -> Callable[..., Any]:
    """The function as one of the call's `Entered` and its arguments, in a copy of the caller's context.

    Clients of hosted models take credentials from there; LangChain's own config is the framework's run's alone.
    """

    def enter(entered: Entered, args: Sequence[Any]) -> Context:
        if may_be_stale and OUTSIDE in effects.reads and not all(map(is_unchanging, args)):
            raise LookupError("an effect before it may have changed, in place, what it is given")
        if OUTSIDE in effects.reads and entered.mode == "events":
            raise LookupError("its models' replies are streamed")
        if not effects.is_so_still():
            raise LookupError("it holds other models by now")
        return entered.context

    def call(entered: Entered, *args: Any) -> Any:
        return apart(enter(entered, args), partial(function, *args))

    async def acall(entered: Entered, *args: Any) -> Any:
        return await aapart(enter(entered, args), partial(function, *args))

    return acall if is_async else call


def _effects(function: Callable[..., Any], asks: Asks) -> Effects:
    declared = declared_effects(function)
    if declared is not None:
        return declared
    if isinstance(function, operator.itemgetter):
        return Effects(pure=True)
    if inspect.isgeneratorfunction(function):
        return Effects(pure=False, why="it is a generator function")
    if accepts_config(function) or accepts_run_manager(function):
        return Effects(pure=False, why="it takes the call's config")
    return effects_of(function, asks)


def _arguments(
    draft: Draft, function: Callable[..., Any], given: Symbol, keys: ReadKeys | None,
    prepare: Callable[[Any], Any] | None = None,
) -> tuple[Callable[..., Any], list[Value]]:  # fmt: skip
    """The function as one of the values it really reads, and those values."""

    def of_whole(value: Any) -> Any:
        return function(prepare(value) if prepare else value)

    if keys is None or not isinstance(given, Record | Root):
        return of_whole, [draft.value(given)]
    fields = given.fields if isinstance(given, Record) else {}
    rest = given.rest if isinstance(given, Record) else given
    if rest is not None and any(k not in fields for k in keys.optional):
        return of_whole, [draft.value(given)]  # whether a key is there is known at run time only
    names = [*keys.required, *(k for k in keys.optional if k in fields)]
    symbols = {k: draft.field(given, k) for k in names}
    constants: Mapping[str, Any] = {k: s.value for k, s in symbols.items() if isinstance(s, Constant)}
    held = [k for k in names if k not in constants]

    def call(*values: Any) -> Any:
        return function({**constants, **dict(zip(held, values, strict=True))})

    return call, [draft.value(symbols[k], k) for k in held]


def _mentioned(draft: Draft, given: Symbol, keys: ReadKeys | None) -> list[Value]:
    """The values that a component reads and that are in the graph anyhow: it is shown behind them."""
    match given:
        case Value():
            return [given]
        case Root():
            if keys is None or keys.optional:
                return [draft.bindings.whole()]
            return [draft.bindings.key(k) for k in keys.required]
        case Record(fields, rest):
            named = (
                fields if keys is None else {k: v for k, v in fields.items() if k in (*keys.required, *keys.optional)}
            )
            found = [v for s in named.values() for v in _mentioned(draft, s, None)]
            if isinstance(rest, Root) and keys is not None:
                found += [draft.bindings.key(k) for k in keys.required if k not in fields]
            return _distinct(found)
        case Prompt(_, variables):
            return _distinct([v for s in variables.values() for v in _mentioned(draft, s, None)])
        case Constant():
            return []


def mentioned(draft: Draft, given: Symbol) -> list[Value]:
    """The values of the graph that an input is made of."""
    return _mentioned(draft, given, None)


def _distinct(values: list[Value]) -> list[Value]:
    return list({v.name: v for v in values}.values())


def _checked(function: Callable[..., Any], check: Callable[[Any], Any], is_async: bool) -> Callable[..., Any]:
    async def acall(*args: Any) -> Any:
        return check(await function(*args))

    return acall if is_async else lambda *args: check(function(*args))


def _name(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "function" if name in ("<lambda>", "partial", "itemgetter") else str(name)
