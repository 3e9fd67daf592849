"""Code that may be called ahead of the framework's own run: functions declared by the user, and code of libraries.

All remaining code waits: undeclared user functions, and special methods, properties, validators and factories of user
classes. Components with undeclared code are left to the framework's own run.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from pydantic import SecretBytes, SecretStr

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import ATOMS
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_schema
from teola_plugin.adapters.reader.values import Barrier
from teola_plugin.effects import declared_effects

MOST = 2_000
"""The number of values inspected in a component; a larger component is not known to be free of code."""

_TOOLS = frozenset(["teola_plugin", "tiktoken", "nltk", "transformers", "tokenizers"])
"""Packages, beside the frameworks, whose objects call no user code: ours, and tokenizers."""

_SECRETS = (SecretStr, SecretBytes)
"""Texts that are not shown."""

_MODELS = "teola_plugin.models."
"""Our models, whose functions hold their engine, of any class."""

_UNHEARD = frozenset(["callback_manager", "callbacks"])
"""Attributes whose callbacks are muted for early calls."""

_MAKERS = (str, int, float, bool, list, dict, set, tuple)


def is_harmless(function: Any) -> bool:
    """Whether a function may be called early: declared free of effects, or a library's that holds no user code."""
    return _is_free([function])


def is_free_of_code(*values: Any) -> bool:
    """Whether the values hold only data, and code that may be called early."""
    return _is_free([*values])


def _is_free(values: list[Any]) -> bool:
    seen: set[int] = set()
    try:
        for _ in range(MOST):
            if not values:
                return True
            value = values.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            held = _held_by(value)
            if held is None:
                return False
            values += held
    except Barrier:  # the class is unreadable
        pass
    return False


def _held_by(value: Any) -> list[Any] | None:
    """Return the values to inspect beside the value itself; None if the value is, or may hold, undeclared code."""
    kind = type(value)
    if type(kind) is type and kind in ATOMS:
        return []
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return [*value]
    if kind is dict:
        return [*value, *value.values()]
    declared = declared_effects(value)
    if declared is not None:
        return [] if declared.pure and not declared.reads else None
    if foreign.is_class(value):
        return [] if _is_clean_class(value) else None
    if kind is types.FunctionType:
        is_library = _stands_in_a_library(value)
        if is_library and str(value.__globals__["__name__"]).startswith(_MODELS):
            return []
        return [cell.cell_contents for cell in value.__closure__ or ()] if is_library else None
    if kind is types.MethodType:
        return [value.__func__, value.__self__]
    if kind is types.ModuleType or kind in _SECRETS:
        return []
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    return _held_by_object(value, kind)


def _held_by_object(value: Any, kind: type) -> list[Any] | None:
    facts = facts_of(kind)
    if facts.kind == "enum":
        return []
    if _is_of(_TOOLS, foreign.module_of(kind), foreign.name_of_class(kind), kind):
        return []
    if not foreign.is_library_class(kind) and (facts.kind != "record" or facts.user_names):
        return None
    own = foreign.own_attributes(value)
    private = foreign.private_of(value) if _is_model(kind) else {}
    return None if own is None else [held for name, held in {**own, **private}.items() if name not in _UNHEARD]


def _is_model(cls: type) -> bool:
    model = foreign.base_model()
    return model is not None and foreign.is_subtype(cls, model)


def _is_clean_class(cls: type) -> bool:
    """Whether making an object of the class runs no user code."""
    if any(cls is maker for maker in _MAKERS) or foreign.is_library_class(cls):
        return True
    return facts_of(cls).kind == "enum" or is_clean_schema(cls)


def _stands_in_a_library(function: types.FunctionType) -> bool:
    """Whether a function is a library's, by its globals; the closure is checked elsewhere."""
    own = function.__globals__
    name = own.get("__name__")
    if type(name) is not str or not (name.split(".")[0] in _TOOLS or foreign.is_in_library(name)):
        return False
    module = sys.modules.get(name)
    return type(module) is types.ModuleType and module.__dict__ is own


def _is_of(packages: frozenset[str], module: str, name: str, cls: type) -> bool:
    """Whether a class is held by its module, in one of the packages, under the class's name."""
    held = sys.modules.get(module) if module.split(".")[0] in packages else None
    return type(held) is types.ModuleType and held.__dict__.get(name) is cls
