"""Interception of Chroma's `Collection.query` with vectors, and of the writes that make its results out of date.

In a session a query becomes one item per vector. Its `QueryResult` is built from copies of the items' columns, because
callers modify results. A query by texts, images or ids goes to Chroma unchanged; a rehearsal ends there, and at
`Collection.get`.

The result of an early search must not be used once the collection has changed. Therefore every write (`add`,
`upsert`, `update`, `delete`, `modify`, in a session or not, sync or async) changes the collection's version when the
write begins and when it ends. Dropping a collection or resetting a client changes all versions:

    search submitted: version 0 ... add begins: 1 ... add ends: 2 ... framework asks: 2 -> searched anew

The version goes by the collection's own id, a UUID, which all `Collection` objects of one collection share. A write by
another process is not seen; whether a search comes before or after such a write was never determined.
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from teola_plugin.adapters.interception import around, intercept
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.rehearsal import end_rehearsal
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import TeolaError
from teola_plugin.finalizers import kept_off
from teola_plugin.processor import processor
from teola_plugin.resources import resetting, writing
from teola_plugin.seams import alone, current

log = logging.getLogger(__name__)

WRITES = ("add", "upsert", "update", "delete", "modify")
RESETS = ("delete_collection", "reset")
DEFAULT_INCLUDE = ("metadatas", "documents", "distances")
COLUMNS = (*DEFAULT_INCLUDE, "embeddings", "uris")

_first: weakref.WeakValueDictionary[tuple[int, Any], Any] = weakref.WeakValueDictionary()
_choosing = threading.Lock()


def instrument_chroma() -> None:
    """Make searches ask the session, and make writes change versions. Does nothing until Chroma is imported."""
    for module, name, forms, sync, coroutines in (
        ("chromadb.api.models.Collection", "Collection", _WRITE, WRITES, ()),
        ("chromadb.api.models.AsyncCollection", "AsyncCollection", _WRITE, (), WRITES),
        ("chromadb.api.client", "Client", _RESET, RESETS, ()),
        ("chromadb.api.async_client", "AsyncClient", _RESET, (), RESETS),
    ):
        if module in sys.modules:
            forms.replace(getattr(sys.modules[module], name), *sync, coroutines=coroutines)
    if cls := _collection_class():
        intercept(cls, "query", _asking_query)
        intercept(cls, "get", _plain_get)


def spec_of(collection: object) -> EngineSpec | None:
    """Return the engine of a collection, and instrument Chroma. None for any other object.

    Two objects of a collection on the same server share the engine of the object met first.
    """
    instrument_chroma()
    return _spec_of(collection)


def _spec_of(collection: Any) -> EngineSpec | None:
    cls = _collection_class()
    if cls is None or not is_stock(collection, cls, "query"):
        return None
    is_on_server = type(collection._client).__module__ == "chromadb.api.fastapi"
    return EngineSpec("chroma", _first_met(collection), "chroma", collection.id if is_on_server else None)


def _collection_class() -> Any:
    return getattr(sys.modules.get("chromadb.api.models.Collection"), "Collection", None)


def _first_met(collection: Any) -> Any:
    # The object met first keeps its server alive, so that `id` is not reused while the entry stands.
    with kept_off, _choosing:
        return _first.setdefault((id(collection._client), collection.id), collection)


# --- settings -----------------------------------------------------------------------------------------------


def searching_settings(
    *, n_results: int = 10, where: Any = None, where_document: Any = None,
    include: Sequence[str] = DEFAULT_INCLUDE, **others: Any,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the settings of a `query` call from its keyword arguments. None: items cannot express the call."""
    if any(value is not None for value in others.values()) or type(n_results) is not int:
        return None
    if not set(include) <= set(COLUMNS) or not _is_literal(where) or not _is_literal(where_document):
        return None
    settings: dict[str, Any] = {"top_k": n_results}
    if where is not None:
        settings["where"] = where
    if where_document is not None:
        settings["where_document"] = where_document
    if set(include) != set(DEFAULT_INCLUDE):
        settings["include"] = sorted(include)
    return settings


def _is_literal(value: Any) -> bool:
    match value:
        case dict():
            return all(type(k) is str and _is_literal(v) for k, v in value.items())
        case list():
            return all(map(_is_literal, value))
        case _:
            return value is None or type(value) in (str, int, float, bool)


def _vectors(query_embeddings: Any) -> list[Any] | None:
    """Return the vectors of a query as read by Chroma; None where Chroma would refuse."""
    from chromadb.api.types import normalize_embeddings

    try:
        rows = normalize_embeddings(query_embeddings)
    except (ValueError, TypeError, IndexError):  # Chroma raises its own error
        return None
    if not rows or not all(isinstance(r, np.ndarray) and r.ndim == 1 and r.dtype.kind == "f" for r in rows):
        return None
    return [np.array(row, dtype=np.float32) for row in rows]


# --- seams --------------------------------------------------------------------------------------------------


def _asking_query(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    default_include = signature.parameters["include"].default

    def query(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        spec = None if session is None else _spec_of(self)
        if session is not None and spec:
            # No early search, and no search of another call, could be made together with a search that is asked alone:
            # in the engine's thread it would take twice the CPU time, about 1 ms more.
            if processor.has_one_call and (request := session.ask_alone(lambda: (spec.name, None), "searching")):
                end_rehearsal()
                return alone(request, lambda: original(self, *args, **kwargs), lambda: True)
            arguments = _arguments(signature, self, args, kwargs)
            vectors = _vectors(arguments.pop("query_embeddings", None))
            settings = searching_settings(**arguments)
            if vectors is not None and settings is not None:
                try:
                    values = [reply.result() for reply in session.ask(spec, "searching", vectors, settings)]
                    return _query_result(values, arguments.get("include", default_include))
                except TeolaError as e:  # our fault must not reach the framework
                    log.warning("a query is made without its engine: %s", e)
        end_rehearsal()
        return original(self, *args, **kwargs)

    return query


def _plain_get(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        end_rehearsal()
        return original(self, *args, **kwargs)

    return get


def _arguments(
    signature: inspect.Signature, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(self, *args, **kwargs).arguments
    except TypeError:  # the original raises the better error
        return {}
    return {name: value for name, value in bound.items() if name != "self"}


def _query_result(values: Sequence[Mapping[str, Any]], include: Any) -> dict[str, Any]:
    """Join the results of several vectors into one `QueryResult`, of copies."""

    def joined(name: str) -> Any:
        if name == "included":
            return include
        columns = [value[name] for value in values]
        return None if columns[0] is None else copy.deepcopy(columns)

    return {name: joined(name) for name in values[0]}


def _write(collection: Any, args: Any, kwargs: Any, is_async: bool) -> AbstractContextManager[None]:
    return writing(collection.id)


def _reset(client: Any, args: Any, kwargs: Any, is_async: bool) -> AbstractContextManager[None]:
    return resetting()


_WRITE, _RESET = around(_write), around(_reset)
