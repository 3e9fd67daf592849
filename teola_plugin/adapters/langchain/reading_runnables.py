"""LangChain's composites over values that may be unknown, in LangChain's own order.

Only LangChain's own classes are read, never a user's subclass. Features that only the framework may run (streams,
limits, histories, configurable parts) are a barrier.
"""

from __future__ import annotations

import operator as python_operator
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableBinding,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableEach
from langchain_core.runnables.config import CONFIG_KEYS
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable
from langchain_core.tools import BaseTool

from teola_plugin.adapters.langchain.reading_classic import is_read_chain, read_chain
from teola_plugin.adapters.langchain.reading_models import Sent, Way, ask_again, ask_model, one_of_many
from teola_plugin.adapters.langchain.reading_parts import (
    format_prompt,
    parse,
    parse_structured,
    stock_class,
    structured_schema,
    texts_for,
)
from teola_plugin.adapters.langchain.reading_retrievers import retrieve, use_tool
from teola_plugin.adapters.langchain.watched import hears_tokens, may_refuse
from teola_plugin.adapters.reader import foreign, operators
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.calls import FunctionValue, chosen, is_coroutine_function, returned
from teola_plugin.adapters.reader.companions import beside
from teola_plugin.adapters.reader.heap import RUN, Frame
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import NOWHERE, Run
from teola_plugin.adapters.reader.values import (
    Barrier,
    Opaque,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)
from teola_plugin.value_keys import Same


class Function(Runnable[Any, Any]):
    """The stand-in for a program's function in a composite made by the program; the function is read, never run."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """Raise Barrier: the stand-in is never run."""
        raise Barrier("a function that is read was run")


class GivenConfig:
    """The config that LangChain gives to a function with a config parameter."""


CONFIG = Opaque(GivenConfig(), is_own=True)


def run_component(run: Run, component: Any, value: Any, way: Way) -> Any:
    """Return the result of a component. Raises: Barrier, Stalled, Undecided, the program's own errors."""
    run.tick()
    require_own_methods(component)
    try:
        return _run_component(run, component, value, way)
    except Undecided:
        return unknown_from(run, value, "any", is_safe=False)


_CALLED = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


def require_own_methods(component: Any) -> None:
    """Raises: Barrier if an object of a library's class holds other methods than the class, as tests put in."""
    if foreign.is_replaced(component, *_CALLED):
        raise Barrier(f"it runs an object of the class {type_name(type(component))} with a method replaced")


def _run_component(run: Run, component: Any, value: Any, way: Way) -> Any:
    cls = stock_class(component)
    read = _COMPOSITES.get(cls)
    if read is not None:
        return read(run, component, value, way)
    if foreign.is_subtype(cls, BaseChatModel) or foreign.is_subtype(cls, BaseLLM):
        return _model(run, component, value, way)
    for base, read_part in _PARTS.items():
        if foreign.is_subtype(cls, base):
            return read_part(run, component, value, way)
    if _is_binding(cls):
        return _binding(run, component, value, way)
    if foreign.is_subtype(cls, DynamicRunnable) and foreign.is_library_class(cls):
        return _configurable(run, component, value, way)
    if is_read_chain(component):
        return read_chain(run, component, value, way, run_component)
    raise Barrier(f"it runs an object of the class {type_name(cls)}")


# --- several inputs --------------------------------------------------------------------------------------------------

_WORKERS = min(32, (os.cpu_count() or 1) + 4)
"""The number of inputs that LangChain begins at once: `ThreadPoolExecutor`'s own number."""


def run_batch(
    run: Run, component: Any, values: list[Any], ways: list[Way], *, returns_errors: bool = False
) -> list[Any]:
    """Return a component's results for several inputs at once, as from LangChain's `batch`.

    A sequence takes all inputs through one step before any through the next. `returns_errors`: the program's errors are
    returned in place of results. Raises: as `run_component`.
    """
    cls = stock_class(component)
    if cls is RunnableSequence:
        return _in_lockstep(run, component.steps, values, ways, returns_errors)
    if cls in (RunnableRetry, RunnableWithFallbacks):
        bound = component.bound if cls is RunnableRetry else component.runnable
        try:
            return run_batch(run, bound, values, [_bound_way(run, component, way) for way in ways])
        except Exception as e:
            raise Barrier(f"it goes on after a {type_name(type(e))}") from e
    if _is_binding(cls):
        ways = [_bound_way(run, component, way) for way in ways]
        return run_batch(run, component.bound, values, ways, returns_errors=returns_errors)
    if foreign.is_subtype(cls, DynamicRunnable) and foreign.is_library_class(cls) and ways:
        _require_default(component, ways[0])
        return run_batch(run, component.default, values, ways, returns_errors=returns_errors)
    works = [partial(run_component, run, component, value, way) for value, way in zip(values, ways, strict=True)]
    if returns_errors:
        return _begun_together(run, [partial(_value_or_error, work) for work in works], values, len(works))
    is_async = bool(ways) and ways[0].is_async
    return _begun_together(run, works, values, 1 if is_async else _WORKERS, are_cancelled=is_async)


def _value_or_error(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as e:  # of the program that is read
        return e


def _in_lockstep(run: Run, steps: list[Any], values: list[Any], ways: list[Way], returns_errors: bool) -> list[Any]:
    found = dict(enumerate(values))
    going = dict(enumerate(ways))
    for step in steps:
        before = run.gates
        results = run_batch(run, step, [found[at] for at in going], list(going.values()), returns_errors=returns_errors)
        found.update(zip(going, results, strict=True))
        going = {
            at: replace(way, kwargs={})
            for at, way in going.items()
            if not (returns_errors and isinstance_of(found[at], Exception))
        }
        for at in going if returns_errors and step is not steps[-1] else ():
            if type(found[at]) is Unknown and found[at].holds == "any":  # perhaps an error that the step returned
                run.raises(run.sources(found[at]))
        run.gates = before | {("of all inputs", gate) for gate in run.gates - before}  # not of this round alone
    return list(found.values())


def _begun_together(
    run: Run, works: Sequence[Callable[[], Any]], given: Sequence[Any], most: int, *, are_cancelled: bool = False
) -> list[Any]:
    """Return the results of several works; the first `most` begin regardless of errors in the others.

    `given`: the inputs of the works. `are_cancelled`: an error in a work may end the other works at the next request.
    """
    before = after = run.gates
    made: list[Any] = []
    raised: BaseException | None = None
    where, run.where = run.where, NOWHERE
    with beside(run, [[each] for each in given], are_cancelled=are_cancelled) as companions:
        for at, work in enumerate(works):
            if at < most:
                run.gates = before
            elif raised is not None:
                break
            try:
                with companions.one():
                    made.append(work())
            except (Exception, Barrier, Stalled) as e:
                if isinstance(raised, None | Stalled) or isinstance(e, Barrier):
                    raised = e
            after |= run.gates
    run.gates, run.where = after, where
    if raised is not None:
        try:
            raise raised
        finally:
            raised = None  # else the error would refer to this frame, which refers to the error
    return made


# --- leaves ----------------------------------------------------------------------------------------------------------


def _model(run: Run, model: Any, value: Any, way: Way) -> Any:
    if way.is_batch and not foreign.is_kind_of(model, BaseChatModel):
        raise Barrier(f"{type_name(type(model))} is asked for several replies at once")
    return ask_model(run, model, value, way)


def _no_kwargs(way: Way) -> None:
    if way.kwargs:
        raise Barrier(f"a component is given the arguments {', '.join(way.kwargs)}")


def _prompt(run: Run, template: Any, value: Any, way: Way) -> Any:
    _no_kwargs(way)
    return format_prompt(run, template, value)


def _parser(run: Run, parser: Any, value: Any, way: Way) -> Any:
    _no_kwargs(way)
    return parse(run, parser, value)


def _retriever(run: Run, retriever: Any, value: Any, way: Way) -> Any:
    _no_kwargs(way)
    return retrieve(run, retriever, value, way, run_component)


def _tool(run: Run, tool: Any, value: Any, way: Way) -> Any:
    _no_kwargs(way)
    return use_tool(run, tool, value, way)


_PARTS: dict[type, Callable[[Run, Any, Any, Way], Any]] = {
    BasePromptTemplate: _prompt,
    BaseLLMOutputParser: _parser,
    BaseRetriever: _retriever,
    BaseTool: _tool,
}


# --- composites ------------------------------------------------------------------------------------------------------


def _sequence(run: Run, component: Any, value: Any, way: Way) -> Any:
    steps = component.steps
    at = 0
    while at < len(steps):
        if _is_prompted(steps[at : at + 2]):
            value, at = _prompted(run, steps[at], steps[at + 1], value, way), at + 2
        else:
            value, at = run_component(run, steps[at], value, way), at + 1
        way = replace(way, kwargs={})
    return value


def _is_prompted(steps: Sequence[Any]) -> bool:
    """Whether these are a template and a model, maybe with bound arguments."""
    if len(steps) < 2 or not foreign.is_subtype(stock_class(steps[0]), BasePromptTemplate):
        return False
    model = steps[1]
    while _is_binding(stock_class(model)):
        model = model.bound
    return foreign.is_kind_of(model, BaseChatModel)


def _prompted(run: Run, template: Any, model: Any, value: Any, way: Way) -> Any:
    """Return the reply of a model to a prompt. For equal texts the request is put together once in a call."""
    _no_kwargs(way)
    texts = texts_for(run, template, value)
    since = run.as_first_read(template, "since when it is read", object())  # what is not read may change it
    key = since, Same(model), way.is_async, len(way.settings.heard), texts
    known = way.settings.prompted.get(key) if texts is not None else None
    if known is not None:
        run.heard = way.settings.heard
        return ask_again(run, known, way)
    noted: list[Sent] = []
    prompt = run_component(run, template, value, way)
    try:
        return run_component(run, model, prompt, replace(way, noted=noted))
    finally:
        if noted and texts is not None:
            way.settings.prompted[key] = noted[0]


def _parallel(run: Run, component: Any, value: Any, way: Way) -> Any:
    return _side_by_side(run, component.steps__, value, replace(way, kwargs={}))


def _side_by_side(run: Run, steps: Mapping[str, Any], value: Any, way: Way) -> dict[str, Any]:
    """Return the result of each component for one input: all begin, regardless of errors."""
    works = [partial(run_component, run, step, value, way) for step in steps.values()]
    made = _begun_together(run, works, [value] * len(works), len(works), are_cancelled=way.is_async)
    return dict(zip(steps, made, strict=True))


def _assign(run: Run, component: Any, value: Any, way: Way) -> Any:
    if type(value) is not dict:
        if not run.is_unknown(value):
            raise ValueError("The input to RunnablePassthrough.assign() must be a dict.")
        run.raises(value.sources if type(value) is Unknown else frozenset())
    made = _side_by_side(run, component.mapper.steps__, value, way)
    if run.is_unknown(value):
        return unknown_from(run, [value, made], "any", is_safe=True)
    return {**value, **made}


def _pick(run: Run, component: Any, value: Any, way: Way) -> Any:
    _no_kwargs(way)
    if run.is_unknown(value):
        raise Undecided
    if type(value) is not dict:
        raise ValueError("The input to RunnablePassthrough.assign() must be a dict.")
    if isinstance(component.keys, str):
        return value.get(component.keys)
    return {key: value[key] for key in component.keys if key in value} or None


def _passthrough(run: Run, component: Any, value: Any, way: Way) -> Any:
    function = component.afunc if way.is_async and component.afunc is not None else component.func
    if function is None and component.afunc is not None:
        raise Barrier("it passes its input to a coroutine function")
    if function is not None:
        _called(run, run.load(function), value, way)
    return value


def _lambda(run: Run, component: Any, value: Any, way: Way) -> Any:
    held = foreign.own_attributes(component) or {}
    function = held.get("afunc") if way.is_async and held.get("afunc") is not None else held.get("func")
    if function is None:
        raise TypeError("Cannot invoke a coroutine function synchronously.")
    schema = structured_schema(function)
    if schema is not None:
        return parse_structured(run, function, schema, value)
    if type(function) is python_operator.itemgetter:
        return _item(run, function, value)
    return _called(run, run.load(function), value, way)


def _item(run: Run, getter: Any, value: Any) -> Any:
    found = tuple(operators.subscript(run, value, key) for key in getter.__reduce__()[1])
    return found[0] if len(found) == 1 else found


def _read(run: Run, component: Any, value: Any, way: Way) -> Any:
    return _called(run, component.value, value, way)


def _called(run: Run, function: Any, value: Any, way: Way) -> Any:
    """Return the result of a user function; a returned runnable is run with the same input."""
    kwargs = {
        **way.kwargs,
        **{name: _given_by_langchain(name, way) for name in _wanted(function) if name not in way.kwargs},
    }
    made = call(run, function, (value,), kwargs)
    made = returned(made, is_awaited=way.is_async and is_coroutine_function(function))
    if type(made) is Opaque and foreign.is_kind_of(made.held, Runnable):
        return run_component(run, made.held, value, replace(way, kwargs={}))
    return made


def _given_by_langchain(name: str, way: Way) -> Any:
    """Return the config or the run manager of a function; only what the program configured is known of a config."""
    if name != "config" or way.configurable is None:
        return CONFIG
    unknown = {key: Unknown() for key in ("metadata", "tags", "run_name", "run_id", "recursion_limit")}
    return {**unknown, "callbacks": CALLBACKS, "configurable": dict(way.configurable)}


def configurable_of(config: Any) -> dict[Any, Any] | None:
    """Return what a config that a program gave says of configurable parts; None if that is not known."""
    if type(config) is not dict or not config.keys() <= {*CONFIG_KEYS}:
        return None
    found = config.get("configurable")
    return found if type(found) is dict else None


def _wanted(function: Any) -> tuple[str, ...]:
    """Return which of the config and the run manager a function takes."""
    names: tuple[str, ...] = ()
    if type(function) is FunctionValue:
        names = (*function.code.names, *function.code.keyword_only)
    elif type(function) is Opaque and foreign.is_one_of(type(function.held), (types.FunctionType, types.MethodType)):
        code = function.held.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in ("config", "run_manager") if name in names)


def _each(run: Run, component: Any, value: Any, way: Way) -> Any:
    if run.is_unknown(value):
        return unknown_from(run, value, "any", is_safe=False)
    if type(value) is not list:
        raise Barrier("it maps over something that is no list")
    return run_batch(run, component.bound, value, [one_of_many(way, component) for _ in value])


def _branch(run: Run, component: Any, value: Any, way: Way) -> Any:
    return _first_true(run, component, value, way, 0)


def _first_true(run: Run, component: Any, value: Any, way: Way, at: int) -> Any:
    if at == len(component.branches):
        return run_component(run, component.default, value, way)
    condition, runnable = component.branches[at]
    found = run_component(run, condition, value, replace(way, kwargs={}))
    try:
        is_true = operators.truth(run, found)
    except Undecided:
        frame = Frame({0: None, 1: None, 2: None, RUN: run})
        return chosen(
            run,
            frame,
            lambda _: run_component(run, runnable, value, way),
            lambda _: _first_true(run, component, value, way, at + 1),
            found,
        )
    return run_component(run, runnable, value, way) if is_true else _first_true(run, component, value, way, at + 1)


def _router(run: Run, component: Any, value: Any, way: Way) -> Any:
    key, given = operators.subscript(run, value, "key"), operators.subscript(run, value, "input")
    if key not in component.runnables:
        raise ValueError(f"No runnable associated with key '{key}'")
    return run_component(run, component.runnables[key], given, replace(way, kwargs={}))


def _is_binding(cls: type) -> bool:
    return foreign.is_subtype(cls, RunnableBinding) and foreign.is_library_class(cls)


def _binding(run: Run, component: Any, value: Any, way: Way) -> Any:
    return run_component(run, component.bound, value, _bound_way(run, component, way))


def _bound_way(run: Run, component: Any, way: Way) -> Way:
    """Return the mode for the bound component of a binding."""
    if foreign.is_kind_of(component, RunnableWithFallbacks):
        return way
    require_plain_config(component.config)
    if component.config_factories:
        raise Barrier("it runs a component with listeners")
    bound = {name: run.load(held) for name, held in component.kwargs.items()}
    configured = way.is_configured or bool((component.config or {}).get("configurable"))
    known = None if component.config else way.configurable
    return replace(way, kwargs={**bound, **way.kwargs}, is_configured=configured, configurable=known)


def _retry(run: Run, component: Any, value: Any, way: Way) -> Any:
    try:
        return _binding(run, component, value, way)
    except Exception as e:
        raise Barrier(f"it tries again after a {type_name(type(e))}") from e


def _fallbacks(run: Run, component: Any, value: Any, way: Way) -> Any:
    try:
        return run_component(run, component.runnable, value, way)
    except Exception as e:
        raise Barrier(f"it falls back after a {type_name(type(e))}") from e


def _configurable(run: Run, component: Any, value: Any, way: Way) -> Any:
    _require_default(component, way)
    return run_component(run, component.default, value, way)


def _require_default(component: Any, way: Way) -> None:
    if way.is_configured or (component.config or {}).get("configurable"):
        raise Barrier("it runs a configurable component, which the config of the call may make another one")
    require_plain_config(component.config)


_COMPOSITES: dict[type, Callable[[Run, Any, Any, Way], Any]] = {
    RunnableSequence: _sequence,
    RunnableParallel: _parallel,
    RunnableAssign: _assign,
    RunnablePick: _pick,
    RunnablePassthrough: _passthrough,
    RunnableLambda: _lambda,
    Function: _read,
    RunnableEach: _each,
    RunnableBranch: _branch,
    RouterRunnable: _router,
    RunnableBinding: _binding,
    RunnableRetry: _retry,
    RunnableWithFallbacks: _fallbacks,
}


# --- configs ---------------------------------------------------------------------------------------------------------

CALLBACKS = Unknown()
"""The call's own handlers in the config of a node: if one of them may refuse, nothing is read."""

_TAPS = ("tap_output_iter", "tap_output_aiter")


_PLAIN = {"tags": list, "metadata": dict, "configurable": dict, "run_name": str}
"""The classes of values that LangChain merges with other configs."""


def require_plain_config(config: Any) -> None:
    """Raises: Barrier if a config replaces a component, limits concurrency, streams replies, or may be refused."""
    if config is None or config is CONFIG or type(config) is Opaque:
        return
    if type(config) is not dict:
        raise Barrier("a config is not known")
    if config.get("max_concurrency") is not None:
        raise Barrier("a config limits how much runs at once")
    tags = config.get("tags")
    if type(tags) is list and not all(type(tag) is str for tag in tags):  # LangChain sorts the tags
        raise Barrier("a config has tags that are no texts")
    if any(type(config.get(key)) not in (cls, types.NoneType, Unknown) for key, cls in _PLAIN.items()):
        raise Barrier("a config has values of other classes than LangChain's")
    if any(_may_stream(handler) for handler in _handlers(config.get("callbacks"))):
        raise Barrier("a config has callbacks that may have replies streamed, or refuse")


def handlers_in(config: Any) -> list[Any]:
    """Return the handlers of a config that the program gives."""
    given = _handlers(config.get("callbacks")) if type(config) is dict else []
    return [each.held if type(each) is Opaque else each for each in given]


def _handlers(callbacks: Any) -> list[Any]:
    held = callbacks.held if type(callbacks) is Opaque else callbacks
    if held is CALLBACKS:
        return []
    if held is None or type(held) is list:
        return held or []
    if not foreign.is_library_class(type(held)):
        return [held]
    own = foreign.own_attributes(held) or {}
    return [*own.get("handlers", ()), *own.get("inheritable_handlers", ())]


def _may_stream(handler: Any) -> bool:
    """Whether a handler may stream, hear tokens or refuse, by its class alone: see `watched`."""
    held = handler.held if type(handler) is Opaque else handler
    cls = type(held)
    if (
        may_refuse([held])
        or foreign.in_mro(cls, "raise_error") is not False
        or "raise_error" in (foreign.own_attributes(held) or ())
    ):
        return True
    taps = any(foreign.in_mro(cls, name) is not foreign.MISSING for name in _TAPS)
    return (
        taps
        or hears_tokens([held])
        or any(type_name(each) == "_V2StreamingCallbackHandler" for each in foreign.mro_of(cls))
    )
