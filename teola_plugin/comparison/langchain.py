"""Records the callbacks of one run of a LangChain pipeline."""

from __future__ import annotations

import re
import threading
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from teola_plugin.comparison.trees import Node
from teola_plugin.finalizers import kept_off

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Identities of LangGraph's tasks, which differ in each run."""


class Recorder(BaseCallbackHandler):
    """A callback handler which keeps each run as a node of a tree."""

    run_inline = True

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._lock = threading.Lock()

    def _start(
        self, kind: str, serialized: dict[str, Any] | None, run_id: UUID, parent: UUID | None, **more: Any
    ) -> None:
        name = more.get("name") or (serialized or {}).get("name") or ((serialized or {}).get("id") or ["?"])[-1]
        metadata = {k: _UUID.sub("*", v) if isinstance(v, str) else v for k, v in (more.get("metadata") or {}).items()}
        facts = {"tags": sorted(more.get("tags") or ()), "metadata": metadata}
        with kept_off, self._lock:
            self.nodes[str(run_id)] = Node(kind, str(name), str(parent) if parent else None, facts)

    def _note(self, run_id: UUID, fact: str, value: Any) -> None:
        with kept_off, self._lock:
            if node := self.nodes.get(str(run_id)):
                node.facts[fact] = value

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._start("chain", serialized, run_id, parent_run_id, **kwargs)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._start("chat_model", serialized, run_id, parent_run_id, **kwargs)

    def on_llm_start(
        self, serialized: Any, prompts: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._start("llm", serialized, run_id, parent_run_id, **kwargs)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._start("retriever", serialized, run_id, parent_run_id, **kwargs)

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._start("tool", serialized, run_id, parent_run_id, **kwargs)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with kept_off, self._lock:
            if node := self.nodes.get(str(run_id)):
                node.facts["tokens"] = node.facts.get("tokens", 0) + 1

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", "ok")

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", "ok")

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", f"{len(documents)} documents")

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", "ok")

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", type(error).__name__)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", type(error).__name__)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", type(error).__name__)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._note(run_id, "ended", type(error).__name__)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with kept_off, self._lock:
            parent = str(run_id)
            self.nodes[f"{parent}/{len(self.nodes)}"] = Node("custom", name, parent)
