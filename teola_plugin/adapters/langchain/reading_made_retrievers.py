"""Retrievers of the user's classes that a program makes: `Reranking(vectorstore=store, k=5)`.

Such an object is really made, where nothing but pydantic and LangChain runs for that, from data that cannot change and
objects that were made before. Its search is read like that of any retriever of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from teola_plugin.adapters.reader import foreign, pydantic_schemas
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of, shown, type_name

_MAKING = frozenset({
    "__init__", "__new__", "__setattr__", "__getattribute__", "model_post_init", "__init_subclass__",
})  # fmt: skip

_COMPONENTS = (Runnable, VectorStore, Embeddings)


def is_users_class(cls: type) -> bool:
    """Whether the class is a retriever of the user's, of which pydantic and LangChain alone make objects."""
    if not foreign.has_known_classes(cls) or not foreign.is_subtype(cls, BaseRetriever):
        return False
    if foreign.is_library_class(cls) or foreign.is_abstract(cls):
        return False
    facts = facts_of(cls)
    if facts.kind != "component" or facts.user_names & _MAKING or foreign.in_mro(cls, "__private_attributes__"):
        return False
    return pydantic_schemas.is_made_by_libraries(cls)


def require_fields(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises: Barrier unless all arguments are fields, with values that do not change behind the object's back."""
    fields = foreign.in_mro(cls, "__pydantic_fields__")
    if args or not kwargs.keys() <= fields.keys():
        raise Barrier(f"it makes an object of the class {type_name(cls)} in an unusual way")
    for name, value in kwargs.items():
        if not _is_kept(value):
            raise Barrier(f"it hands {shown(value)} to an object of the class {type_name(cls)}, as {name}")


def _is_kept(value: Any) -> bool:
    if not isinstance_of(value, Opaque):
        return foreign.is_atom(value)
    held = value.held
    if isinstance_of(held, Opaque) or not foreign.has_plain_lookup(type(held)):
        return False
    return not value.is_own or any(foreign.is_kind_of(held, each) for each in _COMPONENTS)


def given(run: Run, exchange: Any, value: Any) -> Any:
    """Return what the object gets for an argument."""
    return value.held if isinstance_of(value, Opaque) else exchange.out(value)
