"""The LangChain adapter: LCEL runnables, chat models, retrievers."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable

from teola_plugin.adapters import Calls
from teola_plugin.adapters.langchain import interrupted, quiet, several_prompts, tools, twin
from teola_plugin.adapters.langchain.trace import trace
from teola_plugin.trace import Traced


class LangChainAdapter:
    """Implements `adapters.Adapter`."""

    name = "langchain"

    def knows(self, pipeline: Any) -> bool:
        """See `adapters.Adapter.knows`. (Compiled graphs are runnables too; LangGraph's adapter is asked first.)"""
        return isinstance(pipeline, Runnable)

    def trace(self, pipeline: Any) -> Traced:
        """See `adapters.Adapter.trace`."""
        return trace(pipeline)

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        """See `adapters.Adapter.twin`."""
        return twin.make_twin(pipeline, calls)

    def calls_of(self, pipeline: Any) -> Calls | None:
        """See `adapters.Adapter.calls_of`."""
        return twin.calls_of(pipeline)


interrupted.install()
quiet.install()
several_prompts.install()
tools.install()
adapter = LangChainAdapter()
