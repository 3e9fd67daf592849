"""The components of a pipeline whose functions are the user's, made ready to be read."""

from __future__ import annotations

import types
from typing import Any

from llama_index.core.workflow import Workflow

from teola_plugin.adapters.llamaindex.parts import OwnPart, OwnSteps
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.llamaindex.reading_parts import class_of, function_of, is_read, may_ask
from teola_plugin.adapters.llamaindex.reading_workflows import may_send
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.values import Barrier, type_name
from teola_plugin.adapters.source import origin_of
from teola_plugin.trace import Reading


def own_parts(pipeline: Any) -> list[OwnPart]:
    """Those in which something may be asked."""
    return [_own_part(each) for each in reachable(pipeline) if is_read(each)]


def _own_part(component: Any) -> OwnPart:
    origin = origin_of(function_of(component))
    return OwnPart(component, Reading(f"{type_name(class_of(component))}: {origin}", origin))


def own_steps(pipeline: Any) -> OwnSteps | None:
    """The steps of a workflow of the user's, if something may be asked in them."""
    if not isinstance(pipeline, Workflow):
        return None
    try:
        cls: Any = class_of(pipeline)
        functions = {} if foreign.is_library_class(cls) else _steps_in(cls)
        own = {name: f for name, f in functions.items() if not foreign.is_of_library(f)}
        if not own or not may_ask(pipeline, list(own.values())):
            return None
    except Barrier:  # a class that cannot be looked at
        return None
    origins = {name: origin_of(f) for name, f in own.items()}
    readings = {name: Reading(f"{type_name(cls)}.{name}: {origin}", origin) for name, origin in origins.items()}
    is_whole = len(own) == len(functions) and not cls._step_functions
    return OwnSteps(pipeline, own, readings, _are_linear(list(own.values())), is_whole)


def _are_linear(functions: list[types.FunctionType]) -> bool:
    """Whether one step runs at a time: none sends events, and each event leads to one step."""
    configs = [getattr(each, "_step_config", None) for each in functions]
    if any(map(may_send, functions)) or any(getattr(config, "is_fan_out", True) for config in configs):
        return False
    accepted = [event for config in configs for event in getattr(config, "accepted_events", ())]
    return all(accepted.count(each) == 1 for each in accepted)


def _steps_in(cls: Any) -> dict[str, types.FunctionType]:
    """The methods that are steps. LlamaIndex's own look at them reads all properties of the workflow."""
    names = {name for each in foreign.mro_of(cls) for name in foreign.namespace_of(each)}
    found = {name: foreign.in_mro(cls, name) for name in sorted(names)}
    return {name: f for name, f in found.items() if type(f) is types.FunctionType and "_step_config" in f.__dict__}
