"""Vector stores of FAISS: a search embeds the query, and looks into an index and documents in this process.

Searches that run early use the same index as the framework's run, which may add to it meanwhile. FAISS allows
concurrent searches, but no search beside a change. So changes wait for the early searches under way, which take no
more than the look into the index: the query is embedded before.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from teola_plugin import forks
from teola_plugin.adapters.interception import around
from teola_plugin.adapters.methods import are_installed, is_replaced_by_us
from teola_plugin.adapters.reader import foreign
from teola_plugin.seams import is_unheard

_STORE = "langchain_community.vectorstores.faiss"
_DOCUMENTS = "langchain_community.docstore.in_memory"

_LOOKING = ("similarity_search_with_score_by_vector", "max_marginal_relevance_search_with_score_by_vector")
_CHANGING = ("_FAISS__add", "delete", "merge_from")


def instrument_loaded() -> None:
    """Let changes of stores wait for early searches, if the class is loaded."""
    if (cls := vars(sys.modules.get(_STORE, types)).get("FAISS")) is not None:
        _LOOKS.replace(cls, *_LOOKING)
        _CHANGES.replace(cls, *_CHANGING)


def is_faiss(store: Any) -> bool:
    """Whether a search of the store is code of LangChain's and FAISS's own, on documents in memory."""
    cls = type(store)
    if cls is not vars(sys.modules.get(_STORE, types)).get("FAISS"):
        return False
    held = foreign.own_attributes(store) or {}
    index, documents = held.get("index"), held.get("docstore")
    is_known = held.keys().isdisjoint(vars(cls)) and are_installed(cls, vars(cls)) and _is_guarded(cls)
    return is_known and _is_index(index) and _are_documents(documents)


def _is_guarded(cls: type) -> bool:
    return all(is_replaced_by_us(cls, name) for name in (*_LOOKING, *_CHANGING))


def _is_index(index: Any) -> bool:
    names = {"search", "search_and_reconstruct", "reconstruct"}
    is_plain = names.isdisjoint(foreign.own_attributes(index) or {}) and are_installed(type(index), names)
    return foreign.module_of(type(index)).split(".")[0] == "faiss" and is_plain


def _are_documents(documents: Any) -> bool:
    if type(documents) is not vars(sys.modules.get(_DOCUMENTS, types)).get("InMemoryDocstore"):
        return False
    held = vars(documents)
    return "search" not in held and type(held.get("_dict")) is dict and are_installed(type(documents), ["search"])


_lock = threading.RLock()


def _begin_anew() -> None:
    global _lock
    _lock = threading.RLock()


forks.in_child(_begin_anew)


@contextlib.contextmanager
def _changing(store: Any, args: Any, kwargs: Any, is_async: bool) -> Iterator[None]:
    with _lock:
        yield


def _looking(store: Any, args: Any, kwargs: Any, is_async: bool) -> AbstractContextManager[None] | None:
    return _changing(store, args, kwargs, is_async) if is_unheard() else None


_LOOKS, _CHANGES = around(_looking), around(_changing)
