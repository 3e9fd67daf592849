"""Adapters: one for each framework, found through the modules that are already loaded.

An adapter reads a pipeline (`trace`) and makes the object that the user gets back (`twin`): a copy of the root whose
class is a same-named subclass. The twin's entry methods open a call and run the framework's own method inside it:

    call = calls.open([input], loop=None)
    try:
        with seams.active(call.session):
            return cls.invoke(self, input, config)
    finally:
        call.close()

A stream keeps its call open until it is exhausted or closed, and `active` surrounds each step of the generator.
Inside a call (`seams.current()` is not None) a twin is plain.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from teola_plugin.seams import Session
from teola_plugin.trace import Traced

SUPPORTED = (
    "LangChain runnables (langchain_core.runnables.Runnable; compiled LangGraph state graphs) and LlamaIndex components"
    " (query and chat engines, retrievers, synthesizers, ingestion pipelines, indexes, workflows)"
)
"""Of what there are adapters, in words."""


class Call(Protocol):
    """One call of an optimized pipeline. `session` is None if the original is to run as it is (the stance switch)."""

    @property
    def session(self) -> Session | None: ...

    def close(self) -> None:
        """The call is over; asking twice does no harm."""
        ...


class Calls(Protocol):
    """What a twin asks of the optimizer."""

    def open(
        self, inputs: Sequence[Any], *, loop: asyncio.AbstractEventLoop | None = None, is_lockstep: bool = False
    ) -> Call:
        """Begin a call with these inputs (several for a batch). `loop`: the caller's, in an async call.

        `is_lockstep`: the batch ends with the first input that raises.
        """
        ...

    def again(self, pipeline: Any) -> Any:
        """Another pipeline made from this one (`|`, `bind`, ...), optimized with the same options."""
        ...

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        """See `teola_plugin.explain`; the twin's own `explain` method passes on to it."""
        ...


class Adapter(Protocol):
    """One framework."""

    name: str

    def knows(self, pipeline: Any) -> bool:
        """The object is a pipeline of this framework."""
        ...

    def trace(self, pipeline: Any) -> Traced:
        """The p-graph. Never runs the user's code; never raises for a pipeline it knows."""
        ...

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        """A same-type object whose entry methods go through `calls`."""
        ...

    def calls_of(self, pipeline: Any) -> Calls | None:
        """The `calls` of a twin, None for anything else."""
        ...


_FRAMEWORKS = {"langgraph.pregel": "langgraph", "langchain_core": "langchain", "llama_index.core": "llamaindex"}
"""Module that must be loaded for an object to be of that framework -> our package, whose `adapter` is the Adapter."""


def adapter_for(pipeline: Any) -> Adapter | None:
    """The adapter that knows the object; imports no framework that is not in use already."""
    for module, ours in _FRAMEWORKS.items():
        if module in sys.modules:
            adapter: Adapter = importlib.import_module(f"teola_plugin.adapters.{ours}").adapter
            if adapter.knows(pipeline):
                return adapter
    return None
