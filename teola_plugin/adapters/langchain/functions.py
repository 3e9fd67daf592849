"""The user's functions in a pipeline: declared functions run ahead, all others are read (adapters/reader)."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

from teola_plugin.adapters.keys import ReadKeys, read_keys
from teola_plugin.adapters.langchain import reading_retrievers
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.quiet import aapart
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langchain.reading_made_retrievers import asks_often as class_asks_often
from teola_plugin.adapters.langchain.reading_retrievers import asks_often, is_read, own_search_of
from teola_plugin.adapters.langchain.templates import is_transparent
from teola_plugin.adapters.langchain.values import Constant, Holds, Prompt, Record, Root, Symbol, Value
from teola_plugin.adapters.reader import arrays
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calls import compiled
from teola_plugin.adapters.reader.foreign import is_class, is_kind_of
from teola_plugin.adapters.reader.mentions import mentioned
from teola_plugin.adapters.reader.natives import native_of
from teola_plugin.adapters.reader.prediction import CallLine, acted_at_once, read_whole
from teola_plugin.adapters.reader.reach import Reach, reach_of
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.adapters.source import origin_of, unwrapped
from teola_plugin.effects import ASSUMED, Effects, declared_effects
from teola_plugin.seams import Reply, current
from teola_plugin.trace import Asides, Reading

DECLARE = "declare it: @teola_plugin.pure, @reads(...) or @writes(...)"


def trace_function(draft: Draft, component: Any, function: Callable[..., Any], given: Symbol, name: str) -> Symbol:
    """Return the result of a component's function: declared functions run ahead, all others are read.

    Raises: Untraceable.
    """
    draft.runs[_code_of(function)] += 1 if draft.level == 0 else 2
    keys = read_keys(function)
    if keys and keys.is_getter and not isinstance(given, Prompt):
        return draft.field(given, keys.required[0])
    shown = _name(function)
    fn = shown if shown != "function" else name or shown
    effects = Effects(pure=True) if isinstance(function, operator.itemgetter) else declared_effects(function)
    if effects is ASSUMED:
        draft.origin += ", assumed pure"
    why = _unreadable(draft, function) if effects is None else "" if effects.pure else "it writes"
    if why:
        writes = effects.writes or None if effects else None
        if not writes:
            _note_beside(draft)
            draft.has_unread = True
            draft.leave("TB101", component, f"{shown}: {why}", DECLARE)
        return draft.await_run(name or shown, component, fn, _mentioned(draft, given, keys), writes)
    call, args = _arguments(draft, component if effects is None else function, given, keys)
    identity = ("function", id(component), tuple(a.name for a in args))
    holds: Holds = "text" if _says_text(function) else "any"
    if effects is None:
        origin = origin_of(function)
        reading = draft.reading(Reading(f"{name or shown}: {origin}" if name else origin, origin, ahead=None))
        read = _read_by(draft, component, function, call, reading)
        reach = _reach_of(function)
        if reach.changes:
            _note_beside(draft)
        return draft.read(
            name or shown, component, fn, read, draft.bindings.mode(), *args,
            identity=identity, holds=holds, reach=reach,
        )  # fmt: skip
    is_async = inspect.iscoroutinefunction(function)
    if is_async:
        call, args = _apart(call), [draft.bindings.mode(), *args]
    return draft.call(
        name or shown, fn, _checked(call, is_async), *args, identity=identity, is_glue=False, reads=effects.reads,
        holds=holds, is_async=is_async,
    )  # fmt: skip


def trace_by_reading(draft: Draft, retriever: Any, given: Symbol, name: str) -> Symbol | None:
    """Return the documents of a retriever with a hosted model or a user's search function; None for any other."""
    own = own_search_of(retriever)
    reading_retrievers.instrument_loaded()
    if draft.is_behind_effects or not (own or is_read(retriever)) or (own and _unreadable(draft, own)):
        return None
    call, args = _arguments(draft, retriever, given, None)
    reach = Reach(asks=True, acts=False, changes=False, repeats=asks_often(retriever))
    draft.runs[_code_of(own)] += 1 if draft.level == 0 else 2
    bound = types.MethodType(own, retriever) if own else None
    if own:  # requests come from the retriever's attributes and methods, which the function does not name
        reach = replace(_reach_of(own), asks=True, repeats=_reach_of(bound).repeats)
    fn = type(retriever).__name__
    read = _read_by(draft, retriever, bound, call, Reading(fn))
    return draft.read(
        name or "docs", retriever, fn, read, draft.bindings.mode(), *args,
        identity=("retriever", id(retriever)), holds="any", reach=reach,
    )  # fmt: skip


def _reach_of(function: Any) -> Reach:
    reach = reach_of(function, _is_plain_template)
    named = list(mentioned(function))
    retrievers = [each for each in named if is_kind_of(each, BaseRetriever)]
    repeats = any(map(asks_often, retrievers)) or any(is_class(each) and class_asks_often(each) for each in named)
    return replace(reach, repeats=reach.repeats or repeats)


def _is_plain_template(value: Any) -> bool:
    """Whether the value is a prompt template of LangChain's own that only concatenates texts."""
    kind = type(value)
    return (kind is PromptTemplate or kind is ChatPromptTemplate) and is_transparent(value)


def _note_beside(draft: Draft) -> None:
    """Note that a function may change something while other functions run: of other branches, or for other inputs."""
    draft.changes = True
    for changing, branch in draft.beside:
        changing.add(branch)


def _says_text(function: Any) -> bool:
    """Whether the annotation promises a text; if wrong, a prediction fails."""
    return getattr(function, "__annotations__", {}).get("return") in (str, "str")


def _unreadable(draft: Draft, function: Callable[..., Any]) -> str:
    """Return why a function is left to the framework's run; "" for a readable function."""
    if draft.is_behind_effects:
        return "it stands behind something with effects"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "it is a generator function"
    reading_retrievers.instrument_loaded()
    source = unwrapped(function)
    if native_of(function) is None and (source is None or compiled(source) is None):
        return "its source cannot be read"
    return ""


def _read_by(
    draft: Draft, component: Any, function: Any, given: Callable[..., Any], reading: Reading
) -> Callable[..., Any]:
    """Return the reader of a component's function, as a function of the call's `Entered` and the arguments."""
    code, roots, beside, is_mapped = _code_of(function), [function or component], draft.beside, draft.level > 0

    def listen(entered: Entered, call: Asides) -> None:
        entered.notes.add(roots)
        if entered.is_only and draft.runs[code] == 1:  # several runs cannot be told apart
            entered.listeners[id(component)] = listener = Listener(is_only=True, code=code, roots=roots)
            call.when_asked(listener.hear)

    draft.on_call(listen)

    def read(entered: Entered, *args: Any) -> Any:
        if entered.mode == "events":
            raise LookupError("its models' replies are streamed")
        is_async = entered.mode in ("ainvoke", "abatch", "astream")
        inputs = Given()
        inputs.notes, inputs.is_quiet = entered.notes, entered.context.copy().run(arrays.is_quiet)
        value = inputs.copy(given(*args))
        asker = LangChainAsker(entered.context, is_async=is_async, heard=entered.heard)

        def program(run: Run) -> Any:
            run.is_beside = True
            is_beside = any(changing - {branch} for changing, branch in beside)
            is_beside_itself = draft.changes and (is_mapped or not entered.is_only)
            if (is_beside or is_beside_itself) and (draft.has_unread or not entered.notes.are_lasting):
                run.begin_beside_unread()
                run.forget_shared([[value], [value]] if is_beside else [])
            return asker.run_component(run, component, value, {}, is_async=is_async, source=component)

        call = getattr(current(), "asides", None)
        later = None if call is None else CallLine(call)
        listener = entered.listeners.get(id(component))
        return read_whole(asker, _ask, program, inputs, reading.note, later=later, listener=listener)

    return read


def _code_of(function: Any) -> Any:
    return getattr(unwrapped(function), "__code__", None)


def _ask(request: Request) -> Reply | None:
    """Make the request that the function was read for."""
    session = current()
    if session is None:
        return None
    if request.act is None:
        return session.ask(request.spec, request.op, [request.payload], request.settings)[0]
    return acted_at_once(request)


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a declared coroutine function as a function of `Entered` and arguments, run in the caller's context."""

    async def acall(entered: Entered, *args: Any) -> Any:
        return await aapart(entered.context, partial(function, *args))

    return acall


def _arguments(
    draft: Draft, function: Any, given: Symbol, keys: ReadKeys | None
) -> tuple[Callable[..., Any], list[Value]]:
    """Return a function of only the values read, and the values; for a component, the function returns its input."""
    call = function if not isinstance(function, Runnable) else lambda value: value
    if keys is None or not isinstance(given, Record | Root):
        return call, [draft.value(given)]
    fields = given.fields if isinstance(given, Record) else {}
    rest = given.rest if isinstance(given, Record) else given
    if rest is not None and any(k not in fields for k in keys.optional):
        return call, [draft.value(given)]  # whether a key is present is known at run time only
    names = [*keys.required, *(k for k in keys.optional if k in fields)]
    symbols = {k: draft.field(given, k) for k in names}
    constants: Mapping[str, Any] = {k: s.value for k, s in symbols.items() if isinstance(s, Constant)}
    held = [k for k in names if k not in constants]

    def of_fields(*values: Any) -> Any:
        return call({**constants, **dict(zip(held, values, strict=True))})

    return of_fields, [draft.value(symbols[k], k) for k in held]


def _mentioned(draft: Draft, given: Symbol, keys: ReadKeys | None) -> list[Value]:
    """Return the graph values read by a component, shown as the component's predecessors."""
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


def made_of(draft: Draft, given: Symbol) -> list[Value]:
    """Return the graph values that an input is made of."""
    return _mentioned(draft, given, None)


def _distinct(values: list[Value]) -> list[Value]:
    return list({v.name: v for v in values}.values())


def _checked(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """Return a declared function with a check: LookupError for a returned runnable, which LangChain would run."""

    def check(value: Any) -> Any:
        if isinstance(value, Runnable):
            raise LookupError("the function returned a runnable")
        return value

    async def acall(*args: Any) -> Any:
        return check(await function(*args))

    return acall if is_async else lambda *args: check(function(*args))


def _name(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "function" if name in ("<lambda>", "partial", "itemgetter") else str(name)
