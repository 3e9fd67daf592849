"""`optimize(VectorStoreIndex)`: a class whose indexes are built with early embeddings, and are optimized."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from llama_index.core import Settings
from llama_index.core.ingestion import IngestionPipeline

from teola_plugin.adapters import Calls
from teola_plugin.adapters.llamaindex.ingestion import ingesting
from teola_plugin.seams import active

MAKES = ("from_documents", "from_vector_store")


def make_class_twin(cls: Any, calls: Calls) -> Any:
    """Return a class of the same name whose instances are twins of instances of `cls`.

    Instances of `cls` count as instances of the class. User subclasses behave as if derived from `cls`.
    """

    def new(here: Any, *args: Any, **kwargs: Any) -> Any:
        if here is not twin:
            return object.__new__(here) if cls.__new__ is object.__new__ else cls.__new__(here, *args, **kwargs)
        with _made_ahead(kwargs, calls):
            return calls.again(cls(*args, **kwargs))

    def making(name: str) -> Any:
        def method(here: Any, *args: Any, **kwargs: Any) -> Any:
            if here is not twin:
                return inspect.getattr_static(cls, name).__get__(None, here)(*args, **kwargs)
            with _made_ahead(kwargs, calls):
                return calls.again(getattr(cls, name)(*args, **kwargs))

        method.__name__, method.__doc__ = name, getattr(cls, name).__doc__
        return classmethod(method)

    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__teola__": True,
        "__teola_calls__": calls,
        "__new__": new,
        "__subclasshook__": classmethod(lambda here, other: (here is twin and cls in other.__mro__) or NotImplemented),
        **{name: making(name) for name in MAKES if hasattr(cls, name)},
    }
    twin = type(cls)(cls.__name__, (cls,), namespace)
    return twin


@contextlib.contextmanager
def _made_ahead(kwargs: Mapping[str, Any], calls: Calls) -> Iterator[None]:
    """Surround the building of an index with a call for its transformations and its embedding model."""
    try:
        stages = [
            *(kwargs.get("transformations") or Settings.transformations),
            kwargs.get("embed_model") or Settings.embed_model,
        ]
        made = calls.again(IngestionPipeline(transformations=stages, disable_cache=True))
        opened: Calls | None = vars(type(made)).get("__teola_calls__")
    except Exception:  # building the index will raise the same
        opened = None
    if opened is None:
        yield
        return
    call = opened.open(lambda: [None])
    try:
        with active(call.session), ingesting(made, {}):
            yield
    finally:
        call.close()
