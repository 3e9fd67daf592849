"""Retrievers and query engines that a program makes of an index: `index.as_retriever()`, `index.as_query_engine()`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llama_index.core import Settings, VectorStoreIndex

from teola_plugin.adapters.llamaindex.models import is_model, is_of_package
from teola_plugin.adapters.llamaindex.reading_parts import class_of, original_of
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.foreign import ATOMS
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Opaque
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.value_keys import value_key

MAKES = ("as_retriever", "as_query_engine")


class Indexes:
    """The components made of indexes, each once in a call unless the nodes of the index change.

    Making a component leaves nothing behind and makes no request.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Any, list[str], Opaque]] = {}

    def attribute(self, held: Any, name: str) -> Callee:
        """Return the method of an index that makes a component."""

        def make(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
            run.require_known(*args, *kwargs.values())
            if args or any(type(each) not in ATOMS for each in kwargs.values()) or kwargs.get("streaming"):
                raise Barrier(f"it calls {name} of an index in an unusual way")
            if name == "as_query_engine" and not is_model((foreign.own_attributes(Settings) or {}).get("_llm")):
                raise Barrier("it makes an engine without a known model in Settings")
            index: Any = original_of(held)
            key, nodes = (id(held), name, value_key(kwargs)), list(index.index_struct.nodes_dict.values())
            if key not in self._made or self._made[key][1] != nodes:
                made = outcome(lambda: getattr(VectorStoreIndex, name)(index, **kwargs))
                self._made[key] = held, nodes, Opaque(made, is_own=True)
            return self._made[key][2]

        return Callee(make, name)


def makes(held: Any, name: str) -> bool:
    """Whether the object is an index whose method is LlamaIndex's own."""
    if name not in MAKES or not foreign.is_kind_of(held, VectorStoreIndex) or class_of(held) is not VectorStoreIndex:
        return False
    is_replaced = any(each in (foreign.own_attributes(held) or MAKES) for each in MAKES)
    return not is_replaced and is_of_package(foreign.in_mro(VectorStoreIndex, name))
