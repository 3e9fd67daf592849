"""LangChain for the reader: how a program calls, makes and combines LangChain's components.

    asker = LangChainAsker(context)
    asker.run_component(run, chain, value, {}, is_async=False, source=chain)

A component of a user's class is unknown here: the reader reads its methods, or stops.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBinding, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore

from teola_plugin.adapters import sdk_clients, web_clients, web_httpx, web_pages
from teola_plugin.adapters.handlers import noted_by
from teola_plugin.adapters.langchain import hosted_embeddings, models
from teola_plugin.adapters.langchain import reading_builders as builders
from teola_plugin.adapters.langchain import reading_classic as classic
from teola_plugin.adapters.langchain import reading_counters as counters
from teola_plugin.adapters.langchain import reading_made_retrievers as made_retrievers
from teola_plugin.adapters.langchain import reading_splitters as splitters
from teola_plugin.adapters.langchain import reading_tokens as tokens
from teola_plugin.adapters.langchain.quiet import aapart, apart
from teola_plugin.adapters.langchain.reading_builders import Builder, can_construct
from teola_plugin.adapters.langchain.reading_models import Settings, Way, round_of
from teola_plugin.adapters.langchain.reading_parts import is_total, stock_class
from teola_plugin.adapters.langchain.reading_retrievers import SEARCHES, act, makes_retrievers, providers_of
from teola_plugin.adapters.langchain.reading_runnables import (
    Function,
    configurable_of,
    handlers_in,
    require_plain_config,
    run_batch,
    run_component,
)
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Opaque,
    Pending,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)
from teola_plugin.value_keys import Same

_PACKAGES = frozenset({"langchain_core", "langchain", "langchain_classic", "langchain_community", "teola_plugin"})

NO_ARGUMENTS: Mapping[str, Any] = {}

_RUNS = ("run", "arun")
"""Methods of tools: older names of `invoke` and `ainvoke`."""

_STREAMS = frozenset({
    "stream", "astream", "transform", "atransform", "astream_events", "astream_log", "batch_as_completed",
    "abatch_as_completed", "stream_events", "generate", "agenerate", "generate_prompt", "agenerate_prompt",
})  # fmt: skip

_EMBEDS = frozenset({"embed_query", "embed_documents", "aembed_query", "aembed_documents"})


class LangChainAsker:
    """Implements `asking.Asker` for one call. `context`: the caller's; `is_async`: whether the call is async.

    `is_configured`: the config of the call may choose among alternatives. `heard`: see `Entered`. `own_config`: the
    config of the context, where known, for components that are called without a config.
    """

    own_config: Mapping[str, Any] | None = None

    def __init__(
        self, context: Context | None = None, *, is_async: bool = False, is_configured: bool = True,
        heard: frozenset[Hashable] = frozenset(),
    ) -> None:  # fmt: skip
        self._context = context if context is not None else copy_context()
        self._is_async = is_async
        self._is_configured = is_configured
        self._builder = Builder()
        self._settings = Settings()
        self.heard = self._settings.heard
        self.heard.update(heard)

    def run_component(
        self, run: Run, component: Any, value: Any, kwargs: Mapping[str, Any], *, is_async: bool, source: Any
    ) -> Any:
        """Return the result of a runnable for a value, any part of which may be unknown.

        Raises: Barrier, Stalled, and the program's own errors.
        """
        way = self._way(source, is_async, False, kwargs)
        return run_component(run, component, value, way)

    def _way(
        self, source: Any, is_async: bool, is_batch: bool = False, kwargs: Mapping[str, Any] = NO_ARGUMENTS
    ) -> Way:
        source = round_of(self._builder.kind_of(source))
        return Way(source, self._context, self._settings, is_async, is_batch, self._is_configured, kwargs)

    # --- attributes --------------------------------------------------------------------------------------------------

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `asking.Asker`."""
        held = owner.held
        if foreign.is_kind_of(held, BaseCallbackHandler):  # a handler hears of requests and may note them
            return run.unknown(holds=counters.kind_of(held, name), is_safe=True)
        if foreign.is_class(held):
            return self._of_class(held, name)
        if foreign.is_kind_of(held, Runnable) and _is_known(held):
            return self._of_runnable(run, held, name)
        if foreign.is_kind_of(held, Embeddings) and name in _EMBEDS:
            if "documents" in name and hosted_embeddings.provider_spec(held):
                return NOT_MINE  # only queries are shared
            return self._reading(held, name)
        if foreign.is_kind_of(held, VectorStore):
            if name == "as_retriever" and makes_retrievers(held):
                return self._making(held, name)
            return self._reading(held, name) if name in SEARCHES or name.removeprefix("a") in SEARCHES else NOT_MINE
        if web_clients.searches(held, name):
            return web_clients.searching(held, name, round_of, partial(apart, self._context))
        if (found := web_pages.attribute(owner, name)) is not NOT_MINE:
            return found
        early = partial(apart, self._context), partial(aapart, self._context)
        if (found := web_httpx.attribute(run, owner, name, round_of, *early)) is not NOT_MINE:
            return found
        if (found := sdk_clients.attribute(owner, name, round_of, *early)) is not NOT_MINE:
            return found
        if name in splitters.METHODS and splitters.is_splitter(held):
            return Callee(lambda run, args, kwargs: splitters.split(run, held, name, args, kwargs), name)
        return NOT_MINE

    def _of_class(self, cls: type, name: str) -> Any:
        if name in classic.MAKING and (classic.is_chain_class(cls) or made_retrievers.is_stock_class(cls)):
            return self._making(cls, name)
        if foreign.is_subtype(cls, BaseRetriever):
            return NOT_MINE
        if name in builders.OF_CLASSES and can_construct(cls) and not foreign.is_subtype(cls, BaseLLMOutputParser):
            if name == "assign" and cls is not RunnablePassthrough:
                return NOT_MINE
            return self._making(cls, name)
        return NOT_MINE

    def _of_runnable(self, run: Run, held: Any, name: str) -> Any:
        if name in builders.SENDING:
            return self._sending(held, name)
        if name in _RUNS and foreign.in_mro(stock_class(held), name) is foreign.in_mro(BaseTool, name):
            return self._running(held, name)
        if classic.is_read_chain(held):
            return classic.method(run, held, name, self._way(held, False), run_component)
        if name in _STREAMS:
            return _refusing(f"it calls {name} of {type_name(type(held))}", "call invoke")
        if name in tokens.METHODS and tokens.counts(held):
            return tokens.counting(held, name)
        cls = stock_class(held)
        if name in builders.OF_MODELS and _is_delegated(cls, name) and _is_model(stock_class(held.bound)):
            return self._of_runnable(run, held.bound, name)
        if (
            name in builders.OF_RUNNABLES
            or (name in builders.OF_MODELS and _is_model(cls) and self._settings.holds(_only_asks, held))
            or (name in builders.OF_PROMPTS and foreign.is_subtype(cls, BasePromptTemplate))
            or (name in builders.OF_PARSERS and foreign.is_subtype(cls, BaseLLMOutputParser))
        ):
            return self._making(held, name)
        return NOT_MINE

    def _sending(self, held: Any, name: str) -> Callee:
        is_async, is_batch = name.startswith("a"), name.endswith("batch")

        def send(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            value, rest = _given(args, kwargs, "inputs" if is_batch else "input")
            configs = rest.pop("config", None)
            for config in configs if type(configs) is list and is_batch else [configs]:
                if type(config) is Unknown:
                    raise Barrier("a config is not known")
                require_plain_config(config)
                self.heard.update(noted_by(handlers_in(config)))
            returns_errors = is_batch and rest.pop("return_exceptions", False)
            run.require_known(returns_errors)
            given = run.load(self.own_config) if configs is None and self.own_config is not None else configs
            way = replace(self._way(held, is_async, is_batch, rest), configurable=configurable_of(given))

            def force() -> Any:
                if is_batch:
                    return _batch(run, held, value, way, returns_errors=bool(returns_errors))
                return run_component(run, held, value, way)

            return Pending(force) if is_async else force()

        return Callee(send, f"{type_name(type(held))}.{name}")

    def _running(self, tool: Any, name: str) -> Callee:
        """Return `run` or `arun` of a tool: for an input alone they do what `invoke` does, but with a tool call."""
        invoke = self._sending(tool, "ainvoke" if name == "arun" else "invoke")

        def run_tool(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            given = [*args, *kwargs.values()]
            if len(given) != 1 or not kwargs.keys() <= {"tool_input"}:
                raise Barrier(f"it calls {name} of a tool with options")
            if type(given[0]) is dict and "type" in given[0]:
                raise Barrier(f"it calls {name} of a tool with what may be a tool call", "call invoke")
            return invoke.handler(run, (given[0],), {})

        return Callee(run_tool, invoke.name)

    def _reading(self, held: Any, name: str) -> Any:
        providers = providers_of(held)
        if providers is None:
            return _refusing(f"it calls {name} of {type_name(type(held))}", "")
        is_async = name.startswith("a")

        def read(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            way = self._way(held, is_async)
            method = name.removeprefix("a") if is_async else name

            def force() -> Any:
                return act(run, held, method, args, kwargs, way, providers)

            return Pending(force) if is_async else force()

        return Callee(read, f"{type_name(type(held))}.{name}")

    def _making(self, held: Any, name: str) -> Callee:
        def make(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            try:
                return self._builder.method(run, held, name, args, kwargs)
            except Undecided:
                if name not in ("format", "format_messages", "format_prompt"):
                    raise
                holds = "text" if name == "format" and not _is_chat(held) else "any"
                return unknown_from(run, kwargs, holds, is_safe=is_total(held) and not _missing(held, kwargs))

        return Callee(make, name)

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `asking.Asker`."""
        if classic.is_read_chain(callee.held) and len(args) == 1 and not kwargs:
            return run_component(run, callee.held, args[0], self._way(callee.held, False))
        if callee.held is set_llm_cache:  # models look in each call for the cache
            raise Barrier("it sets a response cache", "set the cache before the call")
        if counters.is_counter(callee.held) and not args and not kwargs:
            self._settings.are_tokens_heard = True
            return counters.counting()
        if _is_init_chat_model(callee.held):
            return self._builder.chat_model(run, callee.held, args, kwargs)
        if web_pages.method_of_call(callee.held):
            source = round_of(Same(callee.held))
            return web_pages.requesting(run, callee.held, tuple(args), kwargs, source, partial(apart, self._context))
        if web_httpx.is_get(callee.held):
            source = round_of(Same(callee.held))
            return web_httpx.requesting(run, callee.held, tuple(args), kwargs, source, partial(apart, self._context))
        return NOT_MINE

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `asking.Asker`."""
        if not foreign.is_class(cls):
            return NOT_MINE
        if splitters.is_splitter_class(cls):
            return splitters.made(run, cls, args, kwargs)
        if web_clients.is_client_class(cls):
            return web_clients.made(run, cls, args, kwargs)
        if web_httpx.is_client_class(cls):
            return web_httpx.made(run, cls, tuple(args), kwargs)
        if web_httpx.is_timeout_class(cls):
            return web_httpx.made_timeout(run, tuple(args), kwargs)
        if sdk_clients.is_client_class(cls):
            return sdk_clients.made(run, cls, tuple(args), kwargs)
        if not can_construct(cls):
            return NOT_MINE
        return self._builder.construct(run, cls, args, kwargs)

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `asking.Asker`."""
        if not any(isinstance_of(each, Opaque) and foreign.is_kind_of(each.held, Runnable) for each in (left, right)):
            return NOT_MINE
        return self._builder.combine(run, left, right)


def _is_known(held: Any) -> bool:
    """Whether the component is a model, a tool, a retriever, a stand-in for a function, or of a framework's class."""
    cls = stock_class(held)
    if cls is Function or _is_model(cls) or foreign.is_subtype(cls, BaseTool):
        return True
    if foreign.is_subtype(cls, BaseRetriever):
        return True
    return foreign.module_of(cls).split(".")[0] in _PACKAGES


def _only_asks(model: Any) -> bool:
    return models.is_ours(model) or models.is_stateless(model)


def _is_delegated(cls: type, name: str) -> bool:
    """Whether a binding delegates the method to its bound component."""
    return foreign.is_library_class(cls) and issubclass(cls, RunnableBinding) and foreign.in_mro(cls, name) is MISSING


def _is_model(cls: type) -> bool:
    return foreign.is_subtype(cls, BaseChatModel) or foreign.is_subtype(cls, BaseLLM)


def _is_chat(template: Any) -> bool:
    return foreign.is_kind_of(template, BasePromptTemplate) and hasattr(template, "messages")


def _missing(template: Any, kwargs: Mapping[str, Any]) -> bool:
    return bool(set(template.input_variables) - kwargs.keys())


def _given(args: Arguments, kwargs: Mapping[str, Any], name: str) -> tuple[Any, dict[str, Any]]:
    """Return the input, and the other arguments of `invoke` and its like by name."""
    rest = dict(kwargs)
    names = (name, "config")
    if len(args) > 2:
        raise TypeError("takes 2 positional arguments")
    for known, value in zip(names, args, strict=False):
        if known in rest:
            raise TypeError(f"got multiple values for argument {known!r}")
        rest[known] = value
    if name not in rest:
        raise TypeError(f"missing 1 required positional argument: {name!r}")
    return rest.pop(name), rest


def _batch(run: Run, held: Any, value: Any, way: Way, *, returns_errors: bool) -> Any:
    if run.is_unknown(value):
        return unknown_from(run, value, "any", is_safe=False)
    if type(value) not in (list, tuple):
        raise Barrier("it calls batch with something that is no list")
    ways = [replace(way, source=round_of(way.source.component)) for _ in value]
    raised = run.raised
    made = run_batch(run, held, list(value), ways, returns_errors=returns_errors)
    if not returns_errors or run.raised == raised:
        return made
    return [each if isinstance_of(each, Exception) else run.unknown(each, is_safe=True) for each in made]


def _refusing(what: str, hint: str) -> Callee:
    def refuse(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        raise Barrier(what, hint)

    return Callee(refuse, what)


def _is_init_chat_model(held: Any) -> bool:
    module = sys.modules.get("langchain.chat_models.base")
    return module is not None and vars(module).get("init_chat_model") is held
