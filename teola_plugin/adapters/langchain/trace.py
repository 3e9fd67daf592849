"""From a LangChain runnable to its p-graph, by symbolic execution: no user code runs.

LangChain's composing runnables are read for the use of their input, then part by part. Dicts stay separated into
fields, so a step waits only for the keys read by the step:

    assign(a=f) | assign(b=g)      g starts with f, unless it reads "a"

An unreadable component (or a component barred from running ahead) becomes a primitive `@ pipeline`: the framework's own
run computes and reports the value in program order, and running ahead continues from there. Each is a break with a
code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable

from teola_plugin.adapters.langchain.changes import Components, replaced_method
from teola_plugin.adapters.langchain.classic import is_chain, trace_chain
from teola_plugin.adapters.langchain.draft import Draft, describe, snake
from teola_plugin.adapters.langchain.functions import made_of, trace_by_reading, trace_function
from teola_plugin.adapters.langchain.models import trace_model
from teola_plugin.adapters.langchain.parsers import is_list_parser, trace_parser
from teola_plugin.adapters.langchain.prompts import trace_prompt
from teola_plugin.adapters.langchain.retrievers import trace_retriever
from teola_plugin.adapters.langchain.values import Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.langchain.watched import hears_tokens, may_refuse, wants_streams
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.plain import on_plain_data
from teola_plugin.adapters.reader.reach import reach_of
from teola_plugin.adapters.source import origin_of
from teola_plugin.graph import When
from teola_plugin.trace import Traced

log = logging.getLogger(__name__)

_HARMLESS = (BaseRetriever, BaseChatModel, BaseLLM, BasePromptTemplate)
"""Components that may be unreadable, but change no store."""


def trace(pipeline: Runnable[Any, Any]) -> Traced:
    """Return the p-graph of a runnable."""
    tracer = Tracer()
    traced = tracer.draft.traced(tracer.trace(pipeline, Root(), "answer"))
    return replace(traced, check=tracer.components.check)


@dataclass
class Tracer:
    """`streams`: a streamed call of the pipeline streams this component. `is_configured`: by a binding."""

    draft: Draft = field(default_factory=Draft)
    streams: bool = True
    is_configured: bool = False
    components: Components = field(default_factory=Components)

    def trace(
        self, component: Runnable[Any, Any], given: Symbol, name: str = "", kwargs: Mapping[str, Any] | None = None
    ) -> Symbol:
        """Return the result of a component; `name`: the component's name in the pipeline, if any."""
        return self.attempt(lambda: self._read(component, given, name, kwargs or {}), component, given, name)

    def attempt(self, read: Callable[[], Symbol], component: Runnable[Any, Any], given: Symbol, name: str) -> Symbol:
        """Return the result of `read`, or a value to be reported by the framework's own run of the component."""
        with self._at(component):
            try:
                if name_of_method := replaced_method(component):
                    raise Untraceable("TB102", f"{name_of_method} of {type(component).__name__} was replaced")
                return read()
            except Untraceable as e:
                why = e
            except Exception as e:  # the framework's own code, rehearsed; its run will raise the same in its own place
                log.debug("tracing %s ended with %r", describe(component), e)
                why = Untraceable("TB213", f"{type(e).__name__}: {e}")
            self.draft.leave(why.code, component, why.detail, why.hint)
            fn = describe(component)
            is_pure = isinstance(component, _HARMLESS)
            return self.draft.await_run(name or snake(fn), component, fn, made_of(self.draft, given), None, is_pure)

    def _read(self, component: Runnable[Any, Any], given: Symbol, name: str, kwargs: Mapping[str, Any]) -> Symbol:
        match component:
            case BaseChatModel() | BaseLLM():
                return trace_model(self.draft, component, given, kwargs, name, self.streams)
            case BasePromptTemplate() if _is_stock(component, BasePromptTemplate):
                return trace_prompt(self.draft, component, given)
            case RunnableBinding() if _is_stock(component, RunnableBinding):
                return self._binding(component, given, name, {**component.kwargs, **kwargs})
            case RunnableRetry() if _is_stock(component, RunnableRetry):
                return self.trace(component.bound, given, name, {**component.kwargs, **kwargs})
            case RunnableSequence() if _is_stock(component, RunnableSequence):
                return self._sequence(component, given, name, kwargs)
            case RunnableWithFallbacks() if _is_stock(component, RunnableWithFallbacks):
                return self.trace(component.runnable, given, name, kwargs)
            case DynamicRunnable() if type(component).__module__ == "langchain_core.runnables.configurable":
                config = component.config or {}
                if self.is_configured or config.get("configurable") or config.get("max_concurrency") is not None:
                    raise Untraceable("TB112")
                return self.trace(component.default, given, name, kwargs)
            case _ if kwargs:
                raise Untraceable("TB110", f"bound to {', '.join(kwargs)}")
            case _:
                return self._read_plain(component, given, name)

    def _read_plain(self, component: Runnable[Any, Any], given: Symbol, name: str) -> Symbol:
        """Read a component without bound arguments."""
        match component:
            case RunnableParallel() if _is_stock(component, RunnableParallel):
                return self._parallel(component, given)
            case RunnableAssign() if _is_stock(component, RunnableAssign):
                return self._assign(component, given)
            case RunnablePick() if _is_stock(component, RunnablePick):
                if isinstance(component.keys, str):
                    return self.draft.field(given, component.keys)
                return Record({k: self.draft.field(given, k) for k in component.keys})
            case RunnablePassthrough() if _is_stock(component, RunnablePassthrough):
                return self._passthrough(component, given)
            case RunnableLambda() if _is_stock(component, RunnableLambda):
                function, coroutine = getattr(component, "func", None), getattr(component, "afunc", None)
                if function and coroutine:
                    raise Untraceable("TB101", "it has a form for coroutines besides")
                return trace_function(self.draft, component, function or coroutine, given, name)  # type: ignore[arg-type]
            case RunnableBranch() if _is_stock(component, RunnableBranch):
                return self._branch(component, given, name)
            case RouterRunnable() if _is_stock(component, RouterRunnable):
                return self._router(component, given, name)
            case RunnableEach() if _is_stock(component, RunnableEach):
                return self._each(component, given, name)
            case BaseLLMOutputParser():
                parsed = trace_parser(self.draft, component, given, name)
                if parsed is None:
                    raise Untraceable("TB101", f"the parser {type(component).__name__} may have effects")
                return parsed
            case BaseRetriever():
                with self._not_streamed():
                    return self._retriever(component, given, name)
            case RunnableWithMessageHistory():
                raise Untraceable("TB102", "its history is the framework's to read and write", "optimize what it wraps")
            case _ if is_chain(component):
                with self._not_streamed():
                    return trace_chain(self.draft, component, given, name, self.trace)
            case _:
                raise Untraceable("TB102", f"{type(component).__module__}.{type(component).__qualname__}")

    def _retriever(self, component: BaseRetriever, given: Symbol, name: str) -> Symbol:
        try:
            return trace_retriever(self.draft, component, given, name, self.trace)
        except Untraceable:
            found = trace_by_reading(self.draft, component, given, name)
            if found is None:
                raise
            return found

    # --- composites --------------------------------------------------------------------------------------------------

    def _binding(self, component: Any, given: Symbol, name: str, kwargs: Mapping[str, Any]) -> Symbol:
        if component.config.get("max_concurrency") is not None:
            raise Untraceable("TB112")
        if may_refuse(component.config.get("callbacks")):
            raise Untraceable("TB103", "one of its callbacks may refuse")
        if any(reach_of(each, lambda _: False).changes for each in _listeners(component)):
            raise Untraceable("TB103", "a listener may change what follows")
        callbacks = component.config.get("callbacks")
        if wants_streams(callbacks) or hears_tokens(callbacks):
            raise Untraceable("TB103", "its replies are streamed")
        outer = self.is_configured
        self.is_configured = outer or bool(component.config.get("configurable"))
        try:
            return self.trace(component.bound, given, name, kwargs)
        finally:
            self.is_configured = outer

    def _sequence(self, component: Any, given: Symbol, name: str, kwargs: Mapping[str, Any]) -> Symbol:
        steps = component.steps
        named = len(steps) - 1
        while named and is_list_parser(steps[named]):
            named -= 1  # the parser's value is the model's, so they share the name
        for i, step in enumerate(steps):
            given = self.trace(step, given, name if i >= named else "", kwargs if i == 0 else None)
        return given

    def _parallel(self, component: Any, given: Symbol) -> Record:
        fields: dict[str, Symbol] = {}
        with self.draft.side_by_side() as branch:
            for key, step in component.steps__.items():
                branch()
                fields[key] = self.trace(step, given, key)
        return Record(fields)

    def _assign(self, component: Any, given: Symbol) -> Record:
        if not isinstance(given, Record | Root | Value):
            raise Untraceable("TB108", "its input is no dict")
        if isinstance(given, Root):
            self.draft.bindings.require_dict()
        elif isinstance(given, Value):
            self.draft.call("is_dict", "is_dict", _is_dict, given, identity="is_dict")
        with self._at(component.mapper):
            added = self._parallel(component.mapper, given)
        known = given if isinstance(given, Record) else Record({}, given)
        return replace(known, fields={**known.fields, **added.fields}, whole=None)

    def _passthrough(self, component: Any, given: Symbol) -> Symbol:
        if component.func is not None or component.afunc is not None:
            function = component.func or component.afunc
            self.draft.leave("TB101", component, f"passes its input to {origin_of(function)}")
            self.draft.await_run(
                "passed", component, origin_of(function).split(" ")[0], made_of(self.draft, given), None
            )
        return given

    def _each(self, component: Any, given: Symbol, name: str) -> Symbol:
        item = self.draft.items(given)
        self.draft.level += 1
        with self._not_streamed():
            made = self.trace(component.bound, item, name)
        self.draft.level -= 1
        value = made if isinstance(made, Value) else self.draft.value(made, name)
        if value.level < item.level:  # the same for each item
            value = self.draft.call(name or "each", "second", _second, item, value, identity="second", is_total=True)
        return replace(value, level=item.level - 1)

    def _branch(self, component: Any, given: Symbol, name: str) -> Symbol:
        def test(condition: Runnable[Any, Any]) -> Callable[[], Symbol]:
            return lambda: self.trace(condition, given, "condition")

        choices = [(str(n), test(c), runnable) for n, (c, runnable) in enumerate(component.branches, 1)]
        return self._choose([*choices, ("else", None, component.default)], given, name or "branch")

    def _router(self, component: Any, given: Symbol, name: str) -> Symbol:
        key = self.draft.value(self.draft.field(given, "key"), "key")

        def test(known: str) -> Callable[[], Symbol]:
            return lambda: self.draft.call(
                "condition", "is_key", on_plain_data(lambda key: key == known), key, is_total=True
            )

        is_known = on_plain_data(partial(_known_key, frozenset(component.runnables)))
        self.draft.call("known_key", "known_key", is_known, key)
        choices = [(k, test(k), runnable) for k, runnable in component.runnables.items()]
        return self._choose(choices, self.draft.field(given, "input"), name or "routed")

    def _choose(
        self, choices: Sequence[tuple[str, Callable[[], Symbol] | None, Runnable[Any, Any]]], given: Symbol, name: str
    ) -> Symbol:
        """Return the result of the first runnable whose condition holds; a choice: name, condition, runnable."""
        if self.draft.level:
            raise Untraceable("TB111")
        outer = self.draft.guard
        made: list[tuple[When, Symbol, int, int]] = []
        guard = outer
        for which, condition, runnable in choices:
            self.draft.guard = guard
            if condition:
                with self._not_streamed():
                    truth = self.draft.value(condition())
                truth = self.draft.as_condition(truth, "condition")
                self.draft.guard, guard = When(truth.name, True), When(truth.name, False)
            assert self.draft.guard is not None
            since = len(self.draft)
            made.append((self.draft.guard, self.trace(runnable, given, f"{name}_{which}"), since, len(self.draft)))
        values = self._alike(made)
        self.draft.guard = outer
        joined = self.draft.add(name, "aggregate", values, {}, "")
        return replace(joined, holds=values[0].holds)

    def _alike(self, made: list[tuple[When, Symbol, int, int]]) -> list[Value]:
        """Return the alternatives as values of one sort, each computed under its own condition."""
        holds = {symbol.holds if isinstance(symbol, Value) and not symbol.is_list else None for _, symbol, _, _ in made}
        values: list[Value] = []
        for guard, symbol, since, until in made:
            self.draft.guard = guard
            if isinstance(symbol, Value) and len(holds) == 1 and None not in holds:
                value = symbol
            else:
                since = len(self.draft) if not isinstance(symbol, Value) else since
                value = self.draft.value(symbol)
                until = max(until, len(self.draft))
            if not self.draft.is_between(value.name, since, until):
                value = self.draft.call("same", "same", _same, value, identity="same", holds=value.holds, is_total=True)
            values.append(value if len(holds) == 1 else replace(value, holds="any"))
        return values

    # --- where we are ------------------------------------------------------------------------------------------------

    @contextmanager
    def _at(self, component: Runnable[Any, Any]) -> Iterator[None]:
        self.components.add(component)
        outer = self.draft.origin
        function = getattr(component, "func", None) or getattr(component, "afunc", None)
        is_one = function is not None and not isinstance(component, RunnablePassthrough)
        self.draft.origin = origin_of(function) if is_one else _shown(component)
        try:
            yield
        finally:
            self.draft.origin = outer

    @contextmanager
    def _not_streamed(self) -> Iterator[None]:
        outer, self.streams = self.streams, False
        try:
            yield
        finally:
            self.streams = outer


def _shown(component: Runnable[Any, Any]) -> str:
    name = getattr(component, "name", None)
    return f"{describe(component)} {name!r}" if isinstance(name, str) else describe(component)


def _same(value: Any) -> Any:
    return value


def _second(_: Any, value: Any) -> Any:
    return value


def _known_key(keys: frozenset[str], key: Any) -> None:
    """Raises: LookupError where a router does."""
    if key not in keys:
        raise LookupError(f"no runnable for the key {key!r}")


def _listeners(binding: Any) -> list[Any]:
    """Return the functions passed to `with_listeners`."""
    cells = (cell for factory in binding.config_factories for cell in factory.__closure__ or ())
    return [cell.cell_contents for cell in cells if callable(cell.cell_contents)]


def _is_dict(value: Any) -> None:
    """Raises: LookupError where an assign does."""
    if not isinstance(value, dict):
        raise LookupError("the input of an assign is no dict")


def _is_stock(component: object, base: type) -> bool:
    """Whether the component runs as `base` does."""
    return is_stock(component, base, "invoke", "ainvoke")
