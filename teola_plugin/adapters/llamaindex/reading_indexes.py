"""Retrievers and query engines that a program makes of an index: `index.as_retriever()`, `index.as_query_engine()`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode

from teola_plugin.adapters.llamaindex.models import is_model, is_of_package
from teola_plugin.adapters.llamaindex.reading_parts import class_of, original_of
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.foreign import ATOMS
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Opaque
from teola_plugin.adapters.rehearsal import outcome

MAKES = ("as_retriever", "as_query_engine")

_PLAIN = frozenset([*ATOMS, ResponseMode])


class Indexes:
    """The components made of indexes, each once in a call unless the nodes of the index change.

    Making a component leaves nothing behind and makes no request.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Any, list[str], Opaque]] = {}

    def attribute(self, held: Any, name: str) -> Callee:
        """Return the method of an index that makes a component."""

        def make(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
            llm = _model_in(kwargs.get("llm")) if name == "as_query_engine" else None
            given = {key: value for key, value in kwargs.items() if llm is None or key != "llm"}
            run.require_known(*args, *given.values())
            if args or any(type(each) not in _PLAIN for each in given.values()) or given.get("streaming"):
                raise Barrier(f"it calls {name} of an index in an unusual way")
            settings = foreign.own_attributes(Settings) or {}
            if name == "as_query_engine" and not is_model(settings.get("_llm") if llm is None else llm):
                raise Barrier("it makes an engine without a known model")
            if llm is not None and llm.callback_manager is not settings.get("_callback_manager"):
                raise Barrier("it makes an engine, which sets the callbacks of its model")
            index: Any = original_of(held)
            told = [id(held), name, id(llm), *((key, type(each), each) for key, each in sorted(given.items()))]
            key, nodes = tuple(told), list(index.index_struct.nodes_dict.values())
            if key not in self._made or self._made[key][1] != nodes:
                made = outcome(lambda: _made(index, name, llm, given))
                self._made[key] = (held, llm), nodes, Opaque(made, is_own=True)
            return self._made[key][2]

        return Callee(make, name)


def _made(index: Any, name: str, llm: Any, given: dict[str, Any]) -> Any:
    """Return the component. `as_query_engine` would first set the model's callbacks to the index's."""
    if llm is None:
        return getattr(VectorStoreIndex, name)(index, **given)
    retriever = VectorStoreIndex.as_retriever(index, **given)
    return RetrieverQueryEngine.from_args(retriever, llm=llm, **given)


def _model_in(value: Any) -> Any:
    return value.held if type(value) is Opaque and foreign.is_kind_of(value.held, LLM) else None


def makes(held: Any, name: str) -> bool:
    """Whether the object is an index whose method is LlamaIndex's own."""
    if name not in MAKES or not foreign.is_kind_of(held, VectorStoreIndex) or class_of(held) is not VectorStoreIndex:
        return False
    is_replaced = any(each in (foreign.own_attributes(held) or MAKES) for each in MAKES)
    return not is_replaced and is_of_package(foreign.in_mro(VectorStoreIndex, name))
