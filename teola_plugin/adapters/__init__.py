"""Adapters: one for each framework, found through the modules that are already loaded.

An adapter reads a pipeline (`trace`) and makes the object that the user gets back (`twin`): a copy of the root whose
class is a same-named subclass. The twin's entry methods open a call and run the framework's own method inside the call:

    call = calls.open(lambda: [input], loop=None)
    try:
        with seams.active(call.session):
            return cls.invoke(self, input, config)
    finally:
        call.close()

A stream keeps its call open until the stream is exhausted or closed; `active` surrounds each step of the generator.
Inside a call (`seams.current()` is not None) a twin is plain.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from teola_plugin.seams import Session
from teola_plugin.trace import Traced

SUPPORTED = (
    "LangChain runnables (langchain_core.runnables.Runnable; compiled LangGraph state graphs) and LlamaIndex components"
    " (query and chat engines, retrievers, synthesizers, ingestion pipelines, indexes, workflows), and functions,"
    " methods and objects of plain classes that use these"
)
"""The supported frameworks, in words."""


class Call(Protocol):
    """One call of an optimized pipeline. `session` is None if the original is to run unchanged (the stance switch)."""

    @property
    def session(self) -> Session | None: ...

    def close(self) -> None:
        """End the call. Idempotent."""
        ...


class Calls(Protocol):
    """The optimizer, as a twin calls back into it. `traced`: the pipeline as its adapter traced it."""

    @property
    def traced(self) -> Traced: ...

    def open(
        self, inputs: Callable[[], Sequence[Any]], *, count: int = 1, loop: asyncio.AbstractEventLoop | None = None,
        is_lockstep: bool = False,
    ) -> Call:  # fmt: skip
        """Begin a call with `count` inputs (several for a batch). `loop`: the caller's, in an async call.

        `inputs` is called if something may run ahead; it returns the inputs, or none if the call is to run as it is.
        `is_lockstep`: the batch ends at the first error.
        """
        ...

    def again(self, pipeline: Any) -> Any:
        """Optimize a pipeline derived from the twin's (`|`, `bind`, ...) with the same options."""
        ...

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        """See `teola_plugin.explain`; the twin's own `explain` method delegates here."""
        ...


class Adapter(Protocol):
    """The adapter of one framework."""

    name: str

    def knows(self, pipeline: Any) -> bool:
        """Whether the object is a pipeline of this framework."""
        ...

    def trace(self, pipeline: Any) -> Traced:
        """Return the p-graph. Never runs user code; never raises for a supported pipeline."""
        ...

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        """Return an object of the same type whose entry methods go through `calls`."""
        ...

    def calls_of(self, pipeline: Any) -> Calls | None:
        """Return the `calls` of a twin, None for any other object."""
        ...


_FRAMEWORKS = {"langgraph.pregel": "langgraph", "langchain_core": "langchain", "llama_index.core": "llamaindex"}
"""A framework's module, loaded wherever its objects exist -> our package, whose `adapter` is the Adapter."""


def adapter_for(pipeline: Any) -> Adapter | None:
    """Return the adapter for the object. Imports no framework beyond the frameworks in use."""
    for module, ours in _FRAMEWORKS.items():
        if module in sys.modules:
            adapter: Adapter = importlib.import_module(f"teola_plugin.adapters.{ours}").adapter
            if adapter.knows(pipeline):
                return adapter
    functions: Adapter = importlib.import_module("teola_plugin.adapters.functions").adapter
    return functions if functions.knows(pipeline) else None
