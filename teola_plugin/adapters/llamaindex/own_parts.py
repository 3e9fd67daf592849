"""The components of a pipeline whose functions are the user's, made ready to be read."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding

from teola_plugin.adapters.llamaindex.parts import OwnPart
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.llamaindex.reading_parts import class_of, function_of, is_own
from teola_plugin.adapters.reader.calls import compiled
from teola_plugin.adapters.reader.mentions import functions_in, is_harmless, mentioned
from teola_plugin.adapters.reader.values import type_name
from teola_plugin.adapters.source import origin_of
from teola_plugin.trace import Reading


def own_parts(pipeline: Any) -> list[OwnPart]:
    """Those in which something may be asked."""
    return [part for each in reachable(pipeline) if is_own(each) and (part := _own_part(each)) is not None]


def _own_part(component: Any) -> OwnPart | None:
    functions = {each for each in (function_of(component), function_of(component, is_async=True)) if each is not None}
    if not functions or not may_ask(component, functions):
        return None
    for function in functions:
        for each in functions_in(function):
            compiled(each)
    origin = origin_of(function_of(component))
    return OwnPart(component, Reading(f"{type_name(class_of(component))}: {origin}", origin))


def may_ask(component: Any, functions: Any) -> bool:
    """Whether anything may be asked in these functions of a component: it holds something to ask, or they name it."""
    if len(reachable(component, (BaseEmbedding,))) > 1:
        return True
    return any(not is_harmless(value) for function in functions for value in mentioned(function))
