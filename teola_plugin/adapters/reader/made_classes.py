"""Pydantic models that a function defines in its body: each call makes the model anew, and so does the reader.

Two such models are alike if pydantic validates with the same core schema, and describes both to a service by the same
JSON schema. Requests for objects of alike models are equal, and each maker validates the reply by its own model.
"""

from __future__ import annotations

from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import READER
from teola_plugin.adapters.reader.pydantic_schemas import KEYS, is_clean_model


def is_made_by_reader(cls: Any) -> bool:
    """Whether the reader has made the class, in the place of a function of the program."""
    return foreign.is_class(cls) and foreign.module_of(cls) == READER


def is_made_in_function(cls: Any) -> bool:
    """Whether a class is a pydantic model from the body of a function, with nothing but fields."""
    model = foreign.base_model()
    if model is None or not foreign.is_class(cls) or type(cls) is not type(model):
        return False
    is_plain = foreign.is_local(cls) and type.__dict__["__bases__"].__get__(cls) == (model,)
    return is_plain and is_clean_model(cls) and not facts_of(cls).user_names


def likeness(cls: Any) -> Any:
    """Return the parts of a model by which alike models are equal; None if the model is like no other."""
    if not is_made_in_function(cls):
        return None
    telling = _Telling()
    schema = telling.told(foreign.namespace_of(cls)["__pydantic_core_schema__"])
    names = [foreign.name_of_class(each) for each in telling.classes]
    if len(set(names)) < len(names):  # the JSON schema then has names of modules
        return None
    try:
        return foreign.name_of_class(cls), schema, cls.model_json_schema()
    except Exception:  # of pydantic, for which the class has no such schema
        return None


class _Telling:
    """The description of a core schema, with numbers in the place of references and of classes made in a function."""

    def __init__(self) -> None:
        self.classes: list[type] = []
        self._references: dict[str, int] = {}

    def told(self, part: Any) -> Any:
        """Return the description of a part."""
        if type(part) is list or type(part) is tuple:
            return type(part)(map(self.told, part))
        if type(part) is not dict:
            return part
        if type(part.get("type")) is not str:  # fields or choices, by name
            return {key: self.told(held) for key, held in part.items()}
        return {key: self._item(key, held) for key, held in part.items() if key != "metadata"}

    def _item(self, key: str, held: Any) -> Any:
        if key in ("ref", "schema_ref") and type(held) is str:
            return self._references.setdefault(held, len(self._references))
        if key == "cls" and foreign.is_class(held):
            at = next((at for at, each in enumerate(self.classes) if each is held), len(self.classes))
            if at == len(self.classes):
                self.classes.append(held)
            return at if is_made_in_function(held) else held
        return self.told(held) if key in KEYS else held
