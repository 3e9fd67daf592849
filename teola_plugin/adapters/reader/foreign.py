"""Questions about foreign objects and classes, answered without running their code.

Attributes of a class are looked up in the dictionaries of the classes in the MRO, through descriptors of `type`;
`isinstance`, `getattr` and similar functions would ask metaclasses, `__getattribute__`, `__class__` and properties.
"""

from __future__ import annotations

import abc
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import operator
import os
import re
import sys
import types
import typing
import uuid
from collections.abc import Iterable
from typing import Any

import typing_extensions

from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of, shown, type_name

MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda self: "MISSING"})()
"""The result of a lookup that finds nothing."""

ATOMS: frozenset[type] = frozenset([
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented),
    decimal.Decimal, fractions.Fraction, uuid.UUID, datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, datetime.timezone, re.Pattern, re.Match, re.RegexFlag, uuid.SafeUUID,
])  # fmt: skip
"""Types of immutable values without parts."""

_MRO = type.__dict__["__mro__"]
_NAMESPACE = type.__dict__["__dict__"]
_FLAGS = type.__dict__["__flags__"]
_PLAIN_LOOKUP = frozenset(map(id, (object, str, int, float, bytes, tuple, list, dict, set, frozenset, BaseException)))
_CLASS = object.__dict__["__class__"]
_IS_ABSTRACT = 1 << 20
TYPED_DICT_METAS = frozenset([typing._TypedDictMeta, typing_extensions._TypedDictMeta])  # type: ignore[attr-defined]
PROTOCOL_METAS = frozenset([
    type(typing.Protocol),
    type(typing_extensions.Protocol),
])  # fmt: skip
ENUM_META = enum.EnumMeta
_METAS = (type, abc.ABCMeta, enum.EnumMeta, *TYPED_DICT_METAS, *PROTOCOL_METAS)
_KNOWN_METAS = frozenset(map(id, _METAS))
BUILTINS = frozenset(id(each) for each in vars(sys.modules["builtins"]).values() if isinstance(each, type))
"""Ids of classes, which are compared by `is`: a metaclass may define `__eq__` and `__hash__`."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def _is_model_meta(meta: type) -> bool:
    """Whether the class is the metaclass of models of pydantic, or of pydantic 1."""
    for name in _OF_MODELS:
        module = sys.modules.get(name)
        if module is not None and module.__dict__.get("ModelMetaclass") is meta:
            return True
    return False


_OF_MODELS = ("pydantic._internal._model_construction", "pydantic.v1.main")


def base_model() -> type | None:
    """`pydantic.BaseModel`, None if pydantic is not imported."""
    module = sys.modules.get("pydantic.main")
    return None if module is None else module.__dict__.get("BaseModel")


def old_model() -> type | None:
    """`pydantic.v1.BaseModel`, None if pydantic.v1 is not imported."""
    module = sys.modules.get("pydantic.v1.main")
    return None if module is None else module.__dict__.get("BaseModel")


def mro_of(cls: type) -> tuple[type, ...]:
    """Return the classes in which attributes are looked up, in order."""
    return _MRO.__get__(cls)  # type: ignore[no-any-return]


class Seen:
    """The parts of a class when first looked at; `is_unchanged` compares them with the parts now."""

    __slots__ = ("caching", "cls", "codes", "epoch", "functions", "names", "namespace", "values")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.epoch = -1 if id(cls) in BUILTINS else _epoch[0]
        self.namespace: types.MappingProxyType[str, Any] = _NAMESPACE.__get__(cls)
        self.names, self.values = tuple(self.namespace), tuple(self.namespace.values())
        for name in self.names:
            if type(name) is not str:
                raise Barrier(f"it uses the class {type_name(cls)}, whose attributes have names that are no texts")
        self.caching = [name for name, each in self.namespace.items() if type(each) is functools.cached_property]
        module = self.namespace.get("__module__")
        is_of_others = type(module) is not str or not is_in_library(module)
        self.functions = [each for each in self.values if is_of_others and type(each) is types.FunctionType]
        self.codes = [each.__code__ for each in self.functions]

    def is_unchanged(self) -> bool:
        """Whether the class still consists of the same objects."""
        return (
            len(self.namespace) == len(self.names)
            and all(map(operator.is_, self.namespace, self.names))
            and all(map(operator.is_, self.namespace.values(), self.values))
            and all(map(operator.is_, map(_CODE, self.functions), self.codes))
        )


MOST_CLASSES = 5_000
"""Classes that are kept in a table."""

_CODE = operator.attrgetter("__code__")
_seen: dict[int, Seen] = {}
_epoch = [0]
_epochs = itertools.count(1)


def begin() -> None:
    """Let known facts about classes be checked again, as classes may have changed. Called at the start of a run."""
    _epoch[0] = next(_epochs)
    while _kept_of_local:
        try:
            table, key = _kept_of_local.pop()
        except IndexError:  # another thread has emptied the list
            break
        table.pop(key, None)


_kept_of_local: list[tuple[dict[Any, Any], Any]] = []


def note_kept(table: dict[Any, Any], key: Any, cls: type) -> None:
    """Note that a table of known facts keeps a class: classes made in functions are kept until the next `begin`."""
    if is_local(cls):
        _kept_of_local.append((table, key))


def is_local(cls: type) -> bool:
    """Whether a class was made in the body of a function, by the class's own account, or by the reader for one."""
    return (
        "<locals>" in type.__dict__["__qualname__"].__get__(cls) or _NAMESPACE.__get__(cls).get("__module__") == READER
    )


READER = "reader"
"""The `__module__` of classes that the reader makes."""


def epoch() -> int:
    """Return a number that changes with `begin`."""
    return _epoch[0]


def seen(cls: type) -> Seen:
    """Return the parts of a class, a new object after a change. Raises: Barrier if lookups could run code."""
    known = _seen.get(id(cls))
    if known is not None and known.cls is cls:
        if known.epoch == _epoch[0] or known.epoch < 0:
            return known
        if known.is_unchanged():
            known.epoch = _epoch[0]
            return known
    if len(_seen) >= MOST_CLASSES:
        _seen.clear()
    made = _seen[id(cls)] = Seen(cls)
    note_kept(_seen, id(cls), cls)
    return made


def namespace_of(cls: type) -> types.MappingProxyType[str, Any]:
    """Return the class's own names. Raises: Barrier if a lookup could run code (names of a subclass of `str`)."""
    return seen(cls).namespace


def in_mro(cls: type, name: str) -> Any:
    """Return the value of a name in a class or the first base with the name, or MISSING."""
    for each in mro_of(cls):
        namespace = seen(each).namespace
        if name in namespace:
            return namespace[name]
    return MISSING


def caching_in(cls: type) -> set[str]:
    """Return the names of a class's attributes that are a `functools.cached_property`."""
    found = set[str]()
    for each in reversed(mro_of(cls)):
        parts = seen(each)
        if found or parts.caching:
            found = found.difference(parts.namespace).union(parts.caching)
    return found


def owner_in_mro(cls: type, name: str) -> type | None:
    """Return the first class in the MRO that defines the name."""
    for each in mro_of(cls):
        if name in namespace_of(each):
            return each
    return None


def name_of_class(cls: type) -> str:
    """Return the name of a class, without asking the metaclass."""
    return type_name(cls)


def module_of(cls: type) -> str:
    """Return the name of the module that the class claims to be from, "" without a claim."""
    module = namespace_of(cls).get("__module__")
    return module if type(module) is str else ""


def is_class(value: Any) -> bool:
    """Whether the value is a class, by the value's type alone."""
    return isinstance_of(value, type)


def is_kind_of(value: Any, cls: type) -> bool:
    """Whether the value is an object of the class, by the value's type alone: `__class__` is not asked."""
    return isinstance_of(value, cls)


def is_subtype(cls: type, of: type) -> bool:
    """Whether `of` is among the bases of a class."""
    return any(each is of for each in mro_of(cls))


def is_atom(value: Any) -> bool:
    """Whether the value is immutable without parts. Safe for any object: metaclasses are not asked."""
    cls = type(value)
    return type(cls) is type and cls in ATOMS


def is_one_of(value: Any, kinds: Iterable[Any]) -> bool:
    """Whether the value is identical to one of the objects. Safe: `in` would ask for `__eq__` or `__hash__`."""
    return any(value is kind for kind in kinds)


def has_known_metaclass(cls: type) -> bool:
    """Whether using the class runs no metaclass of the user's."""
    meta = type(cls)
    return id(meta) in _KNOWN_METAS or _is_model_meta(meta) or (meta is not type and meta is _workflow_meta())


def has_known_classes(cls: type) -> bool:
    """Whether no class in the MRO has a metaclass of the user's."""
    return all(map(has_known_metaclass, mro_of(cls)))


def is_abstract(cls: type) -> bool:
    """Whether `cls()` raises a TypeError because methods are missing."""
    return bool(_FLAGS.__get__(cls) & _IS_ABSTRACT)


def describe(value: Any) -> str:
    """Return the name of a value for messages."""
    held = value.held if isinstance_of(value, Opaque) else value
    if is_class(held):
        return f"the class {type_name(held)}"
    if type(held) is types.ModuleType:
        return "a module"
    if type(held) is types.FunctionType:
        return f"the function {held.__code__.co_name}"
    return shown(value)


# --- attributes ------------------------------------------------------------------------------------------------------


def has_plain_lookup(cls: type) -> bool:
    """Whether lookups of attributes, and of `__class__`, in objects of the class follow the rules of `object`."""
    if not has_known_classes(cls) or id(owner_in_mro(cls, "__getattribute__")) not in _PLAIN_LOOKUP:
        return False
    own = in_mro(cls, "__dict__")
    return in_mro(cls, "__class__") is _CLASS and (own is MISSING or type(own) is types.GetSetDescriptorType)


def private_of(value: Any) -> dict[str, Any]:
    """Return the private attributes of a pydantic object."""
    member = in_mro(type(value), "__pydantic_private__")
    if type(member) is not types.MemberDescriptorType:
        return {}
    try:
        private = member.__get__(value)
    except AttributeError:
        return {}
    return private if type(private) is dict else {}


def private_attribute(value: Any, name: str) -> Any:
    """Return a declared private attribute of a pydantic object; MISSING if a lookup could run code."""
    model, cls = base_model(), type(value)
    if model is None or in_mro(cls, "__getattr__") is not in_mro(model, "__getattr__"):
        return MISSING
    declared = in_mro(cls, "__private_attributes__")
    found = declared.get(name) if type(declared) is dict else None
    is_plain = found is not None and module_of(type(found)) == "pydantic.fields" and not is_descriptor(found.default)
    return private_of(value).get(name, MISSING) if is_plain else MISSING


def own_attributes(value: Any) -> dict[str, Any] | None:
    """Return the `__dict__` of an object with plain lookup; None without one, or if lookups could run code."""
    if type(in_mro(type(value), "__dict__")) is not types.GetSetDescriptorType:
        return None
    return plain_attributes(value)


def is_replaced(value: Any, *names: str) -> bool:
    """Whether an object of a library's class holds anything in the place of one of these methods."""
    own = own_attributes(value)
    if not own or own.keys().isdisjoint(names) or not is_library_class(type(value)):
        return False
    return any(name in own and type(in_mro(type(value), name)) is types.FunctionType for name in names)


def plain_attributes(value: Any) -> dict[str, Any] | None:
    """`own_attributes` for an object whose class is known to give `__dict__` as `object` does."""
    own = object.__getattribute__(value, "__dict__")
    if type(own) is not dict:
        return None
    for name in own:
        if type(name) is not str:
            return None
    return own


def is_descriptor(value: Any) -> bool:
    """Whether reading the value as an attribute of a class may run the value's code."""
    return any(in_mro(type(value), name) is not MISSING for name in ("__get__", "__set__", "__delete__"))


def is_data_descriptor(value: Any) -> bool:
    """Whether the value, as an attribute of a class, precedes an object's attribute of the same name."""
    return any(in_mro(type(value), name) is not MISSING for name in ("__set__", "__delete__"))


# --- owners of code ---------------------------------------------------------------------------------------------------

LIBRARIES = words(
    "abc enum dataclasses typing typing_extensions collections functools contextlib warnings builtins "
    "pydantic pydantic_core langchain_core langchain langchain_classic langchain_text_splitters langgraph "
    "llama_index llama_index_instrumentation dataclasses_json annotated_types openai"
)  # fmt: skip
"""Packages whose classes run no user code, unless the user passes some in."""


def is_environment(value: object) -> bool:
    """Whether a value holds the environment variables of the process."""
    return value is os.environ and type(value) is os._Environ


def is_in_library(module: str) -> bool:
    """Whether a module belongs to `LIBRARIES`, or to the package from which LlamaIndex takes workflows.

    Users' own packages may have the name `workflows` too, so the package is checked.
    """
    root = module.split(".")[0]
    return root in LIBRARIES or (root == "workflows" and of_workflows("Event") is not None)


def of_workflows(name: str) -> Any:
    """Return the value of a name in `workflows.events`, if the module is LlamaIndex's own; else None."""
    events, handed_on = sys.modules.get("workflows.events"), sys.modules.get("llama_index.core.workflow")
    if type(events) is not types.ModuleType or type(handed_on) is not types.ModuleType:
        return None
    is_same = events.__dict__.get("Event") is handed_on.__dict__.get("Event")
    return events.__dict__.get(name) if is_same else None


def _workflow_meta() -> type | None:
    """Return the metaclass of LlamaIndex's workflows, None if workflows are not imported."""
    module = sys.modules.get("workflows.workflow")
    return module.__dict__.get("WorkflowMeta") if module is not None and is_in_library("workflows.workflow") else None


def is_standard(function: types.FunctionType) -> bool:
    """Whether a function stands in a module of the standard library."""
    own = function.__globals__
    name = str(own.get("__name__"))
    is_named = name.split(".")[0] in sys.stdlib_module_names - {"__main__"}
    return is_named and getattr(sys.modules.get(name), "__dict__", None) is own


def is_of_library(function: types.FunctionType, depth: int = 0) -> bool:
    """Whether a function stands in a module of `LIBRARIES`, by the function's globals, and wraps only library code."""
    own = function.__globals__
    name = own.get("__name__")
    if type(name) is not str or not is_in_library(name) or depth > 5:
        return False
    module = sys.modules.get(name)
    if type(module) is not types.ModuleType or _MODULE.__get__(module) is not own:
        return False
    return all(_is_of_library_too(cell, depth + 1) for cell in function.__closure__ or ())


_MODULE: Any = vars(types.ModuleType)["__dict__"]


_HOLDERS = (dict, list, tuple, set, operator.itemgetter)  # the last is in the hash of a frozen model of pydantic's


def _is_of_library_too(cell: types.CellType, depth: int) -> bool:
    """Whether the contents of a closure cell of a library's function run no user code."""
    try:
        held = cell.cell_contents
    except ValueError:  # empty
        return True
    kind = type(held)
    if kind is types.FunctionType:
        return is_of_library(held, depth)
    if kind is property:
        return all(each is None or is_of_library(each, depth) for each in (held.fget, held.fset, held.fdel))
    if kind is classmethod or kind is staticmethod:
        return type(held.__func__) is types.FunctionType and is_of_library(held.__func__, depth)
    is_data = is_atom(held) or is_class(held) or any(kind is each for each in _HOLDERS)
    return is_data or (has_known_classes(kind) and is_library_class(kind))


def methods_of(cls: type) -> list[types.FunctionType]:
    """Return the plain functions in a class and its bases."""
    return [each for one in mro_of(cls) for each in namespace_of(one).values() if type(each) is types.FunctionType]


def is_of_transport(cls: type) -> bool:
    """Whether objects of a class are the inside of a client's connections: no object of the program's is in there."""
    return module_of(cls).partition(".")[0] in ("httpcore", "anyio", "h11", "h2", "ssl") and has_plain_lookup(cls)


def is_library_class(cls: type) -> bool:
    """Whether a class is the object that the module, one of `LIBRARIES`, has under the class's name."""
    name = module_of(cls)
    if not is_in_library(name):
        return False
    module = sys.modules.get(name)
    if type(module) is not types.ModuleType:
        return False
    found = module.__dict__.get(type_name(cls))
    return found is cls
