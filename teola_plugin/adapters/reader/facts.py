"""The kind of a class, which decides the allowed uses of the objects.

    record     objects only hold fields; operators, conversions and comparisons run no user code
    slots      the same, in `__slots__`
    tuple      a NamedTuple
    enum       members of an Enum
    exception  an exception without code of its own
    component  a framework's class that is no record, or a user's subclass of a framework's class
    object     any other class with the usual lookup of attributes: methods are interpreted
    ""         objects are never used

Classes can be changed at any time, so facts are stored with the parts of the class, and the parts are compared.
"""

from __future__ import annotations

import enum
import operator
import sys
import types
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters import search_classes
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.foreign import MISSING, in_mro, is_subtype, mro_of, namespace_of
from teola_plugin.adapters.reader.generated import (
    dataclass_fields,
    kind_of_field,
    made_by_dataclass,
    made_by_namedtuple,
)
from teola_plugin.adapters.reader.values import Barrier

STOCK_MODULES = (
    "langchain_core.documents.", "langchain_core.messages.", "langchain_core.prompt_values", "langchain_core.outputs.",
    "langchain_core.agents", "langchain_core.load.serializable", "langgraph.types", "llama_index.core.schema",
    "llama_index.core.base.llms.types", "llama_index.core.base.response.schema", "pydantic.main", "pydantic.root_model",
    "typing", "abc", "enum", "typing_extensions", "dataclasses_json.api", "workflows.events", "openai.types.",
    "llama_index.core.vector_stores.types", "langchain.agents.middleware.types",
)  # fmt: skip
"""Modules whose classes only hold data."""

_STOCK_COMPONENTS = (
    "TransformComponent", "BaseDocumentTransformer", "BaseDocumentCompressor", "BlobLoader", "VectorStore",
    "BasePydanticVectorStore", "AgentMiddleware",
)  # fmt: skip
"""Classes of these modules that do more."""

_NO_RECORDS = frozenset(["StreamingResponse", "AsyncStreamingResponse", "GraphOutput", "PregelExecutableTask"])

_DATA_DUNDERS = foreign.words(
    "__module__ __doc__ __qualname__ __annotations__ __dict__ __weakref__ __slots__ __match_args__ "
    "__orig_bases__ __parameters__ __abstractmethods__ __class_vars__ __private_attributes__ __signature__ "
    "__firstlineno__ __final__ __static_attributes__ __annotate__ __annotate_func__ __annotations_cache__ "
    "__slotnames__ __type_params__ __is_protocol__ __protocol_attrs__ __non_callable_proto_members__ __deprecated__"
)  # fmt: skip
"""Names that a class may have for data of any kind."""

_MAKING = frozenset(["__init__", "__post_init__", "__init_subclass__", "__class_getitem__", "__set_name__"])
"""Special methods that are never run on an existing object."""

_C_TYPES = frozenset(
    map(id, [
        types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType, types.GetSetDescriptorType,
        types.MemberDescriptorType, types.ClassMethodDescriptorType, type(vars(namedtuple("T", "a"))["a"]),
    ])
)  # fmt: skip


MODEL_SLOTS = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""The slots of a pydantic model besides the fields."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Known facts about a class. `user_names`: methods and properties that a user has written.

    `members`: for pydantic models, the descriptors of `MODEL_SLOTS`. `is_event`: an event of a workflow, whose objects
    keep data under other names than those of the fields. `is_computed`: a record but for computed fields, which run
    when an object is shown or written out.
    """

    kind: str
    is_model: bool = False
    is_dataclass: bool = False
    fields: tuple[str, ...] = ()
    user_names: frozenset[str] = frozenset()
    members: tuple[Any, ...] = ()
    is_event: bool = False
    is_computed: bool = False


NOTHING = Facts("")

_known: dict[int, tuple[type, int, list[foreign.Seen], Facts]] = {}


def facts_of(cls: type) -> Facts:
    """Return the known facts about a class."""
    known = _known.get(id(cls))
    if known is not None and known[0] is cls and known[1] == foreign.epoch():
        return known[3]
    now = foreign.epoch()
    try:
        seen = list(map(foreign.seen, mro_of(cls)))
    except Barrier:
        return NOTHING
    if known is not None and known[0] is cls and _are_same(known[2], seen):
        found = known[3]
    else:
        try:
            found = _inspected(cls)
        except Barrier:
            found = NOTHING
    if len(_known) >= foreign.MOST_CLASSES:
        _known.clear()
    _known[id(cls)] = cls, now, seen, found
    foreign.note_kept(_known, id(cls), cls)
    return found


def _are_same(one: list[foreign.Seen], two: list[foreign.Seen]) -> bool:
    return len(one) == len(two) and all(map(operator.is_, one, two))


def kind_of(cls: type) -> str:
    """Return the kind of a class; see the module."""
    return facts_of(cls).kind


def is_stock_record_class(cls: type) -> bool:
    """Whether the class is a framework's own and only holds data."""
    if not foreign.is_library_class(cls):
        return False
    name, module = foreign.name_of_class(cls), foreign.module_of(cls)
    if module == "openai":  # which shows its classes as its own, wherever they stand
        return name == "BaseModel"
    return module.startswith(STOCK_MODULES) and name not in _STOCK_COMPONENTS


# --- code ------------------------------------------------------------------------------------------------------------


def runs_at_end(cls: type) -> bool:
    """Whether user code runs when an object of the class ends."""
    ends = in_mro(cls, "__del__")
    return ends is not MISSING and is_user_code("__del__", ends)


def is_user_code(name: str, value: Any) -> bool:
    """Whether reading or using the attribute of a class may run user code."""
    kind = type(value)
    if kind is types.FunctionType:
        return not foreign.is_of_library(value)
    if kind is staticmethod or kind is classmethod:
        return is_user_code(name, value.__func__)
    if kind is property or kind is types.DynamicClassAttribute or kind is enum.property:
        return any(each is not None and is_user_code(name, each) for each in (value.fget, value.fset, value.fdel))
    if id(kind) in _C_TYPES:
        return False
    if foreign.is_descriptor(value):
        return not (foreign.is_library_class(kind) and foreign.module_of(kind).startswith("pydantic."))
    if not is_dunder(name):
        return False
    if name == "__hash__" and value is None:
        return False
    return not (name in _DATA_DUNDERS or name.startswith(("__pydantic_", "__dataclass_")))


def are_published(cls: type, names: Iterable[str]) -> bool:
    """Whether reading these attributes of an object runs no code but that of the class's package, if any."""
    found = [(name, in_mro(cls, name)) for name in names]
    kinds = (types.FunctionType, property)
    is_theirs = all(each is MISSING or (type(each) in kinds and not is_user_code(name, each)) for name, each in found)
    return is_theirs and foreign.has_plain_lookup(cls)


def is_dunder(name: str) -> bool:
    """Whether a name is of the form reserved for the language."""
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def _user_names(cls: type) -> dict[str, type]:
    """Return the names in the MRO that stand for user code, with the defining class of each."""
    found: dict[str, type] = {}
    seen: set[str] = set()
    for each in mro_of(cls):
        if id(each) in foreign.BUILTINS:
            seen.update(namespace_of(each))
            continue
        namespace = namespace_of(each)
        own = {name for name, value in namespace.items() if is_user_code(name, value)}
        own -= generated_names(each, own)
        for name in own:
            if name not in seen or is_dunder(name):  # a library's method may call that of `super()`
                found.setdefault(name, each)
        if own and foreign.is_library_class(each):  # the class was changed
            found.update(dict.fromkeys(own, each))
        seen.update(namespace)
    return found


_GENERATED = foreign.words(
    "__init__ __repr__ __eq__ __lt__ __le__ __gt__ __ge__ __hash__ __setattr__ __delattr__ __replace__"
)


def generated_names(cls: type, names: set[str]) -> set[str]:
    """Return the names whose functions `dataclass` or `NamedTuple` has written."""
    namespace = namespace_of(cls)
    if "_fields" in namespace and "__new__" in names and made_by_namedtuple(cls):
        return {"__new__"}
    if "__dataclass_fields__" not in namespace:
        return set()
    has_post_init = in_mro(cls, "__post_init__") is not MISSING
    return {name for name in names & _GENERATED if made_by_dataclass(cls, {name}, has_post_init)}


# --- kinds -----------------------------------------------------------------------------------------------------------


def _inspected(cls: type) -> Facts:
    if not foreign.has_known_classes(cls) or not foreign.has_plain_lookup(cls):
        return NOTHING
    meta = type(cls)
    if meta in foreign.TYPED_DICT_METAS or is_subtype(cls, type) or is_subtype(cls, types.ModuleType):
        return NOTHING
    user = _user_names(cls)
    dunders = {name for name in user if is_dunder(name)} - _MAKING
    names = frozenset(user)
    if is_subtype(cls, BaseException):
        return Facts("exception" if not dunders and "__init__" not in user else "", user_names=names)
    if is_subtype(cls, enum.Enum):
        odd = dunders | (names & {"_missing_", "name", "value", "_name_", "_value_"})
        return Facts("enum" if meta is enum.EnumMeta and not odd else "", user_names=names)
    if is_subtype(cls, tuple):
        return _tuple(cls, dunders, names)
    if any(id(each) in foreign.BUILTINS and each is not object for each in mro_of(cls)):
        return NOTHING
    return _record(cls, dunders, names) or _other(cls, user)


def _tuple(cls: type, dunders: set[str], names: frozenset[str]) -> Facts:
    fields = in_mro(cls, "_fields")
    owner = foreign.owner_in_mro(cls, "_fields")
    if owner is None or dunders or in_mro(cls, "__dict__") is not MISSING or not made_by_namedtuple(owner):
        return NOTHING
    if foreign.owner_in_mro(cls, "__new__") is not owner:
        return NOTHING
    return Facts("tuple", fields=fields, user_names=names)


def _record(cls: type, dunders: set[str], names: frozenset[str]) -> Facts | None:
    """Return the facts of a record; None for any other class."""
    if dunders or foreign.name_of_class(cls) in _NO_RECORDS or not all(map(_may_be_of_record, mro_of(cls))):
        return None
    if any(search_classes.client_of(foreign.module_of(each), foreign.name_of_class(each)) for each in mro_of(cls)):
        return None
    model = foreign.base_model()
    if model is not None and is_subtype(cls, model):
        return _model(cls, model, names)
    if foreign.module_of(cls) == "langgraph.types" and foreign.name_of_class(cls) == "Send":
        return Facts("slots", fields=("node", "arg", "timeout"))
    owner = foreign.owner_in_mro(cls, "__dataclass_fields__")
    noted = None if owner is None else dataclass_fields(owner)
    if noted is None:
        return None
    fields = tuple(name for name, field in noted.items() if kind_of_field(field) == "field")
    if any("__slots__" in namespace_of(each) for each in mro_of(cls) if _has_slots(each)):
        is_whole = all(type(in_mro(cls, name)) is types.MemberDescriptorType for name in fields)
        return Facts("slots", is_dataclass=True, fields=fields, user_names=names) if is_whole else None
    if any(_hides(cls, name) for name in fields) or in_mro(cls, "__dict__") is MISSING:
        return None
    return Facts("record", is_dataclass=True, fields=fields, user_names=names)


def _model(cls: type, model: type, names: frozenset[str]) -> Facts | None:
    fields = in_mro(cls, "__pydantic_fields__")
    computed = in_mro(cls, "__pydantic_computed_fields__")
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        return None
    decorators = in_mro(cls, "__pydantic_decorators__")
    noted = getattr(decorators, "computed_fields", None) if foreign.is_library_class(type(decorators)) else MISSING
    own = namespace_of(model)
    if any(name in own and name != "model_post_init" for name in names - _MAKING) or any(
        _hides(cls, name) for name in fields
    ):
        return None
    if any(_has_slots(each) for each in mro_of(cls) if each is not model):
        return None
    if (computed is not MISSING and computed) or noted:
        return Facts("component", is_model=True, user_names=names, is_computed=True)
    members = tuple([in_mro(cls, name) for name in MODEL_SLOTS])
    if not all(type(member) is types.MemberDescriptorType for member in members):
        return None
    like_dict = foreign.of_workflows("DictLikeModel")
    is_event = like_dict is not None and is_subtype(cls, like_dict)
    return Facts("record", True, False, tuple(fields), names, members, is_event)


def _may_be_of_record(cls: type) -> bool:
    return cls is object or is_stock_record_class(cls) or not _is_of_framework(cls)


def _is_of_framework(cls: type) -> bool:
    return foreign.is_in_library(foreign.module_of(cls))


def _has_slots(cls: type) -> bool:
    slots = namespace_of(cls).get("__slots__", ())
    if type(slots) is not tuple and type(slots) is not list:
        return True
    return not all(type(name) is str and name in ("__dict__", "__weakref__") for name in slots)


def _hides(cls: type, name: str) -> bool:
    """Whether the class has a descriptor under the name of a field."""
    found = in_mro(cls, name)
    return found is not MISSING and foreign.is_descriptor(found)


def _other(cls: type, user: dict[str, type]) -> Facts:
    names = frozenset(user)
    if "__del__" in user or in_mro(cls, "__dict__") is MISSING:
        return NOTHING
    if any(_is_of_framework(each) and not is_stock_record_class(each) for each in mro_of(cls)):
        return NOTHING if "__getattr__" in user else Facts("component", user_names=names)
    model = foreign.base_model()
    if model is not None and is_subtype(cls, model):
        return NOTHING if "__getattr__" in user else Facts("component", is_model=True, user_names=names)
    if in_mro(cls, "__getattr__") is not MISSING or any(map(_has_slots, mro_of(cls))):
        return NOTHING
    return Facts("object", user_names=names, is_dataclass=in_mro(cls, "__dataclass_fields__") is not MISSING)


def text_accessor() -> type | None:
    """Return the class of the texts in `message.text` of LangChain."""
    module = sys.modules.get("langchain_core.messages.base")
    return None if module is None else module.__dict__.get("TextAccessor")


def plain_text(value: Any) -> Any:
    """Return a text of LangChain's as a `str`, which services cannot tell from it; any other value unchanged."""
    return str.__str__(value) if type(value) is text_accessor() else value
