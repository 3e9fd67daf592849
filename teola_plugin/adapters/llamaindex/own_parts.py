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
from teola_plugin.adapters.reader.values import type_name
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
    if not isinstance(pipeline, Workflow) or foreign.is_library_class(class_of(pipeline)):
        return None
    cls, named = class_of(pipeline), list(pipeline._get_steps())
    functions = {name: f for name in named if type(f := foreign.in_mro(cls, name)) is types.FunctionType}
    own = {name: f for name, f in functions.items() if not foreign.is_of_library(f)}
    if not own or not may_ask(pipeline, list(own.values())):
        return None
    title = type_name(cls)
    readings = {name: Reading(f"{title}.{name}: {origin_of(f)}", origin_of(f)) for name, f in own.items()}
    configs = [getattr(f, "_step_config", None) for f in own.values()]
    is_linear = not any(may_send(f) for f in own.values()) and not any(
        config is None or getattr(config, "is_fan_out", False) for config in configs
    )
    accepted = [event for config in configs for event in getattr(config, "accepted_events", ())]
    is_linear = is_linear and all(accepted.count(each) == 1 for each in accepted)
    return OwnSteps(pipeline, own, readings, is_linear, is_whole=len(own) == len(named))
