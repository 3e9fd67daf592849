"""Settings of components, set by a program.

    retriever.similarity_top_k = 8
    found = retriever.retrieve(question)

The reader sets nothing: the framework's run does, once, and who else holds the component sees the setting then. What
the program asks in between is asked of a copy with the setting, known until the next request like what is stored. Once
a program sets something, the component itself is asked nothing early: the setting may change at any moment.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import VectorIndexRetriever

from teola_plugin.adapters.llamaindex.models import is_of_package
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.llamaindex.rehearsal import stand_in
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Undecided, type_name

_TOP_K = "_similarity_top_k"
_PROPERTY: property = vars(VectorIndexRetriever)["similarity_top_k"]


def setting(held: Any, name: str) -> str | None:
    """Return the attribute set by storing `held.name`; None if the statement may do more."""
    is_stock = foreign.in_mro(type(held), name) is _PROPERTY and is_of_package(_PROPERTY.fset)
    is_plain = foreign.in_mro(type(held), "__setattr__") is object.__dict__["__setattr__"]
    return _TOP_K if is_stock and is_plain and _TOP_K in (foreign.own_attributes(held) or ()) else None


def places_set(run: Run, component: Any) -> dict[Hashable, Any]:
    """Return the retrievers set by the program, among the retrievers in reach of a component, by the place."""
    if all(type(place) is not tuple or place[1] != _TOP_K for place in run.changes.changed or ()):
        return {}
    held = [each for each in reachable(component, (VectorIndexRetriever,)) if isinstance(each, VectorIndexRetriever)]
    places = {(id(foreign.own_attributes(each)), _TOP_K): each for each in held}
    return {place: each for place, each in places.items() if run.changes.holds(place)}


def as_set(run: Run, component: Any, places: dict[Hashable, Any]) -> tuple[Any, Hashable]:
    """Return a component with the settings of the program, and a key for the settings.

    Raises: Undecided if a setting is not known, Barrier if the component hands on what it is set to.
    """
    if not places:
        return component, None
    ((place, retriever), *others) = places.items()
    engine = None if component is retriever else component
    is_engine = type(engine) is RetrieverQueryEngine and engine._retriever is retriever
    if others or not (engine is None or is_engine):
        raise Barrier(f"it sets a {type_name(type(retriever))} that another component holds")
    found = run.changed_value(place, lambda: vars(retriever)[_TOP_K], error=AttributeError)
    if type(found) is not int:
        raise Undecided
    made = stand_in(retriever, **{_TOP_K: found})
    return made if engine is None else stand_in(engine, _retriever=made), found
