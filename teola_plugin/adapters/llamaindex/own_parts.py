"""The pipeline's components with user functions, prepared for reading."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Mapping, Set
from itertools import chain, permutations
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    RouterQueryEngine,
    SubQuestionQueryEngine,
    ToolRetrieverRouterQueryEngine,
)
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import QueryFusionRetriever, RouterRetriever
from llama_index.core.workflow import StartEvent, Workflow

from teola_plugin.adapters.llamaindex.entries import methods_of
from teola_plugin.adapters.llamaindex.observers import observe_overrides
from teola_plugin.adapters.llamaindex.parts import OwnMethods, OwnPart, OwnSteps
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.llamaindex.reading_models import ASKING
from teola_plugin.adapters.llamaindex.reading_parts import (
    METHODS,
    class_of,
    function_of,
    is_read,
    may_ask,
    overrides_of,
    replacements_of,
)
from teola_plugin.adapters.llamaindex.reading_workflows import is_simple, may_send
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.mentions import functions_in
from teola_plugin.adapters.reader.reach import alters
from teola_plugin.adapters.reader.values import Barrier, type_name
from teola_plugin.adapters.source import node_of, origin_of
from teola_plugin.trace import Reading


def own_parts(components: Iterable[Any], root: Any = None) -> list[OwnPart]:
    """Return the components whose user functions may make requests, prepared for reading.

    `root`: the component among them whose entry methods `own_methods` returns.
    """
    held = [*components]
    gathered = {id(part) for each in held if isinstance(each, _GATHERING) for part in reachable(each)[1:]}
    return [_own_part(each, gathered, has_methods=each is not root) for each in held if is_read(each)]


_GATHERING = (
    QueryFusionRetriever, RouterRetriever, RouterQueryEngine, SubQuestionQueryEngine, ToolRetrieverRouterQueryEngine,
)  # fmt: skip
"""Components with coroutines which gather coroutines of inner components."""


def _own_part(component: Any, gathered: Set[int], *, has_methods: bool) -> OwnPart:
    name, function = type_name(class_of(component)), function_of(component) or function_of(component, is_async=True)
    reading = None if function is None else Reading(f"{name}: {origin_of(function)}", origin_of(function))
    overrides = overrides_of(component) if has_methods else {}
    observe_overrides(component, overrides)
    return OwnPart(component, reading, _readings_of(component, overrides), id(component) in gathered)


def _readings_of(component: Any, functions: Mapping[str, types.FunctionType]) -> dict[str, Reading]:
    name, origins = type_name(class_of(component)), {each: origin_of(function) for each, function in functions.items()}
    return {each: Reading(f"{name}.{each}: {origin}", origin) for each, origin in origins.items()}


def own_methods(pipeline: Any) -> OwnMethods | None:
    """Return the user's overrides of entry methods (`retrieve`, ...), if requests are possible there."""
    if not isinstance(pipeline, _WITH_METHODS):
        return None
    try:
        found = replacements_of(pipeline, methods_of(class_of(pipeline)))
        if not found or not may_ask(pipeline, list(found.values())):
            return None
    except Barrier:  # the class is unreadable
        return None
    return OwnMethods(pipeline, _readings_of(pipeline, found))


_WITH_METHODS = (BaseRetriever, BaseQueryEngine, BaseSynthesizer, BaseNodePostprocessor, BaseChatEngine)


def own_steps(pipeline: Any) -> OwnSteps | None:
    """Return the steps of a user's workflow, if they may make requests."""
    if not isinstance(pipeline, Workflow):
        return None
    try:
        cls: Any = class_of(pipeline)
        functions = {} if foreign.is_library_class(cls) else _steps_in(cls)
        own = {name: f for name, f in functions.items() if not foreign.is_of_library(f)}
        given = any(map(_is_given_resources, own.values())) or any(map(_asks_what_it_is_given, own.values()))
        if not own or not (given or may_ask(pipeline, list(own.values()))):
            return None
    except Barrier:  # the class is unreadable
        return None
    origins = {name: origin_of(f) for name, f in own.items()}
    readings = {name: Reading(f"{type_name(cls)}.{name}: {origin}", origin) for name, origin in origins.items()}
    is_whole = len(own) == len(functions) and not cls._step_functions
    configs: dict[str, Any] = {name: getattr(each, "_step_config", None) for name, each in own.items()}
    using = {name for name, each in own.items() if _uses_context(each, configs[name])}
    storing = {name for name, each in own.items() if _stores(each)}
    undisturbed, apart = (_never_beside(own, configs, some) for some in (using, storing))
    return OwnSteps(pipeline, own, readings, undisturbed, apart, is_whole)


def _stores(function: types.FunctionType) -> bool:
    """Whether a step changes what it did not make, as far as its source tells."""
    return any((node := node_of(each)) is None or alters(node) for each in functions_in(function))


def _is_given_resources(function: types.FunctionType) -> bool:
    """Whether a step gets objects made by the workflow, for example a model: `Annotated[LLM, Resource(make)]`."""
    return bool(getattr(getattr(function, "_step_config", None), "resources", None))


def _asks_what_it_is_given(function: types.FunctionType) -> bool:
    """Whether a step may ask a component that comes with an event, as far as the names in its code tell."""
    return any(not _METHODS.isdisjoint(each.__code__.co_names) for each in functions_in(function))


_METHODS = frozenset(chain.from_iterable((name, f"a{name}") for names in METHODS.values() for name in names)) | ASKING


def _never_beside(
    functions: Mapping[str, types.FunctionType], configs: Mapping[str, Any], some: Set[str]
) -> frozenset[str]:
    """Return the steps that never run beside some other steps.

    Steps run side by side where an event leads to several steps, and so do their successors. Nothing is known where a
    step sends or collects events.
    """
    if not some:
        return frozenset(functions)
    if any(map(may_send, functions.values())) or not all(map(is_simple, configs.values())):
        return frozenset()
    produced = {
        name: [each for each in config.return_types if isinstance(each, type)] for name, config in configs.items()
    }
    starts = {each for config in configs.values() for each in config.accepted_events if issubclass(each, StartEvent)}
    led_to = {event: _acceptors(configs, event) for event in {*chain.from_iterable(produced.values()), *starts}}
    after = {name: set(chain.from_iterable(led_to[event] for event in events)) for name, events in produced.items()}
    disturbed = set[str]()
    for together in (*led_to.values(), set(chain.from_iterable(led_to[event] for event in starts))):
        ways = {name: _reached(name, after) for name in together}
        for name, others in permutations(ways, 2):
            if not some.isdisjoint(ways[others]):
                disturbed |= ways[name]
    return frozenset(functions.keys() - disturbed)


def _acceptors(configs: Mapping[str, Any], event: type) -> set[str]:
    return {name for name, config in configs.items() if any(issubclass(event, each) for each in config.accepted_events)}


def _reached(name: str, after: Mapping[str, set[str]]) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        if (each := todo.pop()) not in found:
            found.add(each)
            todo += after[each]
    return found


def _uses_context(function: types.FunctionType, config: Any) -> bool:
    name = config.context_parameter
    code = function.__code__
    return name in code.co_cellvars or any(each.argval == name for each in dis.get_instructions(code))


def _steps_in(cls: Any) -> dict[str, types.FunctionType]:
    """Return the methods that are steps. LlamaIndex's own search for steps reads all properties of the workflow."""
    names = {name for each in foreign.mro_of(cls) for name in foreign.namespace_of(each)}
    found = {name: foreign.in_mro(cls, name) for name in sorted(names)}
    return {name: f for name, f in found.items() if type(f) is types.FunctionType and "_step_config" in f.__dict__}
