"""Objects made by the program: user code is interpreted, stock constructors are imitated; neither is run."""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import amounts, foreign, hints, open_models, records, stock_records
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import Facts, facts_of, is_stock_record_class
from teola_plugin.adapters.reader.foreign import MISSING, READER, describe, in_mro, is_subtype, namespace_of
from teola_plugin.adapters.reader.generated import dataclass_fields, kind_of_field, made_by_dataclass
from teola_plugin.adapters.reader.old_models import is_clean_old_model
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_model
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def construct(run: Any, callee: Opaque, args: Arguments, kwargs: Keywords) -> Any:
    """Return the result of calling a class. Raises: errors of the constructor, Undecided, Barrier."""
    cls = callee.held
    if not foreign.has_known_classes(cls):
        raise Barrier(f"it makes an object of {describe(callee)}, which has a metaclass")
    found = run.asker.construct(run, cls, args, kwargs)
    if found is not NOT_MINE:
        return found
    if type(cls) in foreign.TYPED_DICT_METAS:
        return call(run, run.load(dict), args, kwargs)
    facts = facts_of(cls)
    if facts.kind == "component" and is_clean_old_model(cls):
        return _old_model(run, cls, args, kwargs)
    maker = _MAKERS.get(facts.kind)
    if maker is None or foreign.is_abstract(cls):
        raise Barrier(f"it makes an object of {describe(callee)}")
    return maker(run, callee, facts, args, kwargs)


# --- without fields --------------------------------------------------------------------------------------------------


def _exception(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    cls = callee.held
    if is_subtype(cls, BaseExceptionGroup):
        raise Barrier(f"it makes an object of {describe(callee)}")
    for each in foreign.mro_of(cls):
        if id(each) not in foreign.BUILTINS and any(n in namespace_of(each) for n in ("__init__", "__new__")):
            raise Barrier(f"it makes an object of {describe(callee)}")
    if is_subtype(cls, OSError) or is_subtype(cls, SyntaxError) or is_subtype(cls, UnicodeError) or kwargs:
        run.require_known(*args, *kwargs.values())
    return run.made_exception(cls(*args, **kwargs))


def _member(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    """Return the member of an enum with a value."""
    cls = callee.held
    members = in_mro(cls, "_value2member_map_")
    if len(args) != 1 or kwargs or is_subtype(cls, enum.Flag) or type(members) is not dict:
        raise Barrier(f"it calls {describe(callee)} in an unusual way")
    value = args[0]
    if run.is_unknown(value):
        is_compared = all(map(foreign.is_atom, members)) and amounts.is_atom(amounts.holds_of(value))
        return run.unknown(value, holds=cls, error=ValueError if is_compared else Exception)
    if facts_of(type(value)).kind == "enum" and type(value) is cls:
        return value
    if not foreign.is_atom(value) or not all(foreign.is_atom(each) for each in members):
        raise Barrier(f"it calls {describe(callee)} in an unusual way")
    if value not in members:
        raise ValueError(f"not a valid {foreign.name_of_class(cls)}")
    return members[value]


def _tuple(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    defaults = in_mro(callee.held, "_field_defaults")
    if type(defaults) is not dict:
        raise Barrier(f"it makes an object of {describe(callee)}")
    given = bound_fields(facts.fields, (), args, kwargs)
    values = []
    for name in facts.fields:
        if name not in given and name not in defaults:
            raise TypeError(f"missing argument {name!r}")
        values.append(given[name] if name in given else run.load(defaults[name]))
    return tuple.__new__(callee.held, values)


def bound_fields(names: tuple[str, ...], by_name: tuple[str, ...], args: Arguments, kwargs: Keywords) -> Keywords:
    """Return the arguments by field name. `by_name`: the keyword-only fields. Raises: TypeError."""
    if len(args) > len(names):
        raise TypeError("too many positional arguments")
    found = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in found or (name not in names and name not in by_name):
            raise TypeError(f"unexpected argument {name!r}")
        found[name] = value
    return found


# --- dataclasses -----------------------------------------------------------------------------------------------------


def _record(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    cls = callee.held
    if is_stock_record_class(cls):
        if foreign.module_of(cls) != _AGENTS:
            return stock_records.stock_record(run, cls, args, kwargs)
        if foreign.name_of_class(cls) == "ModelRequest":
            return _model_request(callee, args, kwargs)
        return _dataclass(run, callee, facts, args, kwargs)
    if facts.is_model:
        return _model(run, callee, args, kwargs)
    if "__init__" in facts.user_names:
        made = records.new_object(cls)
        call(run, run.load(in_mro(cls, "__init__")), (made, *args), kwargs)
        return made
    return _dataclass(run, callee, facts, args, kwargs)


def _dataclass(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    """Make an object as the `__init__` that `dataclass` writes: fields in order, then `__post_init__`."""
    cls = callee.held
    owner = foreign.owner_in_mro(cls, "__init__")
    fields = None if owner is None else dataclass_fields(owner)
    has_post_init = in_mro(cls, "__post_init__") is not MISSING
    if owner is None or fields is None or not made_by_dataclass(owner, {"__init__"}, _had_post_init(owner)):
        raise Barrier(f"it makes an object of {describe(callee)}")
    if any(kind_of_field(field) == "init" for field in fields.values()) or in_mro(cls, "__new__") is not _NEW:
        raise Barrier(f"it makes an object of {describe(callee)}")
    own = [field for field in fields.values() if kind_of_field(field) == "field"]
    made = records.new_object(cls)
    values = _values(run, own, facts.kind == "slots", args, kwargs)
    if facts.kind == "slots":
        made = records.new_record(cls, values)
    else:
        object.__getattribute__(made, "__dict__").update(values)
    held = made if facts.kind in ("record", "slots") else Opaque(made, is_own=True)
    if has_post_init and _had_post_init(owner):
        call(run, run.load(in_mro(cls, "__post_init__")), (held,), {})
    return held


_NEW = object.__dict__["__new__"]

_AGENTS = "langchain.agents.middleware.types"
_REQUEST: Keywords = {"system_message": None, "tool_choice": None, "response_format": None}
_REQUIRED = frozenset({"model", "messages", "tools", "state", "runtime"})


def _model_request(callee: Opaque, args: Arguments, kwargs: Keywords) -> Any:
    """Return the request for a model as LangChain's agents make the request: the arguments become fields.

    LangChain's `__init__` changes the filters of warnings while storing. Raises: Barrier for other arguments, and for
    an `__init__` with other parameters.
    """
    code = in_mro(callee.held, "__init__").__code__
    known = {*_REQUIRED, *_REQUEST, "model_settings"}
    taken = {*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]}
    are_usual = _REQUIRED <= kwargs.keys() <= known and all(kwargs[name] is not None for name in _REQUIRED)
    if args or taken != {*known, "system_prompt"} or not are_usual:
        raise Barrier(f"it makes an object of {describe(callee)}")
    return records.new_record(callee.held, {**_REQUEST, "model_settings": {}, **kwargs})


def _had_post_init(cls: type) -> bool:
    return in_mro(cls, "__post_init__") is not MISSING


def _values(
    run: Any, fields: list[dataclasses.Field[Any]], has_slots: bool, args: Arguments, kwargs: Keywords
) -> Keywords:
    given = bound_fields(
        tuple(field.name for field in fields if field.init and not field.kw_only),
        tuple(field.name for field in fields if field.init and field.kw_only),
        args,
        kwargs,
    )
    for field in fields:
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.init and field.name not in given and not has_default:
            raise TypeError(f"missing argument {field.name!r}")
    values: Keywords = {}
    for field in fields:
        if field.name in given:
            values[field.name] = given[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = call(run, run.load(field.default_factory), (), {})
        elif field.default is not dataclasses.MISSING and (field.init or has_slots):
            values[field.name] = run.load(field.default)  # else the class keeps the default
    return values


# --- pydantic --------------------------------------------------------------------------------------------------------


def _model(run: Any, callee: Opaque, args: Arguments, kwargs: Keywords) -> Any:
    cls = callee.held
    if not args and in_mro(cls, "__new__") is _NEW and not (is_clean_model(cls) and _are_known(run, kwargs)):
        made = open_models.open_model(run, cls, kwargs)
        if made is not None:
            return made
    if not is_clean_model(cls) or in_mro(cls, "__new__") is not _NEW:
        raise Barrier(
            f"it makes an object of {describe(callee)}, which has code for that",
            hint="a model without validators, factories and __init__ is read",
        )
    try:
        run.require_known(*args, *kwargs.values())
    except Undecided:
        return run.unknown(*_unknowns(args, kwargs), holds=cls)
    run.tick(10)
    return cls(*args, **kwargs)


def _old_model(run: Any, cls: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Return an object of a model of pydantic 1, which is read as a component's reply of that class is."""
    try:
        run.require_known(*args, *kwargs.values())
    except Undecided:
        return run.unknown(*_unknowns(args, kwargs))
    run.tick(10)
    return Opaque(copy.deepcopy(cls(*args, **kwargs)))


def _are_known(run: Any, kwargs: Keywords) -> bool:
    try:
        run.require_known(*kwargs.values())
    except (Undecided, Barrier):
        return False
    return True


def _unknowns(args: Arguments, kwargs: Keywords) -> list[Any]:
    """Return the unknown values in arguments, down to three levels."""
    found: list[Any] = []
    todo = [(each, 0) for each in (*args, *kwargs.values())]
    while todo:
        value, depth = todo.pop()
        if type(value) is Unknown:
            found.append(value)
        elif depth < 3 and (type(value) is list or type(value) is tuple):
            todo += [(each, depth + 1) for each in value]
        elif depth < 3 and type(value) is dict:
            todo += [(each, depth + 1) for each in value.values()]
    return found if found and len(todo) == 0 else [Unknown()]


# --- classes with code -----------------------------------------------------------------------------------------------


def _object(run: Any, callee: Opaque, facts: Facts, args: Arguments, kwargs: Keywords) -> Any:
    cls = callee.held
    if in_mro(cls, "__new__") is not _NEW or in_mro(cls, "__dict__") is MISSING:
        raise Barrier(f"it makes an object of {describe(callee)}")
    init = in_mro(cls, "__init__")
    if type(init) is types.FunctionType and "__init__" in facts.user_names:
        held = Opaque(records.new_object(cls), is_own=True)
        if call(run, run.load(init), (held, *args), kwargs) is not None:
            raise TypeError("__init__() should return None")
        return held
    if facts.is_dataclass:
        return _dataclass(run, callee, facts, args, kwargs)
    if init is not object.__dict__["__init__"]:
        raise Barrier(f"it makes an object of {describe(callee)}")
    if args or kwargs:
        raise TypeError(f"{foreign.name_of_class(cls)}() takes no arguments")
    return Opaque(records.new_object(cls), is_own=True)


_MAKERS: dict[str, Callable[[Any, Opaque, Facts, Arguments, Keywords], Any]] = {
    "exception": _exception,
    "enum": _member,
    "tuple": _tuple,
    "record": _record,
    "slots": _record,
    "object": _object,
}


def call_object(run: Any, callee: Opaque, args: Arguments, kwargs: Keywords) -> Any:
    """Call an object that is neither function nor class by interpreting `__call__`. Returns the result."""
    cls = type(callee.held)
    facts = facts_of(cls)
    found = in_mro(cls, "__call__")
    if facts.kind not in ("object", "component") or "__call__" not in facts.user_names:
        raise Barrier(f"it calls {describe(callee)}")
    if type(found) is not types.FunctionType:
        raise Barrier(f"it calls {describe(callee)}")
    return call(run, run.load(found), (callee, *args), kwargs)


# --- classes made in a body ------------------------------------------------------------------------------------------


DEFINE_OUTSIDE = "define it outside of the function"


def make_class(
    run: Any, qualified: str, bases: Arguments, namespace: Keywords, annotations: Keywords, decorators: Arguments = ()
) -> Any:
    """Return the class of a `class` statement that only holds data. Raises: Barrier."""
    is_dataclass, name = bool(decorators), qualified.rpartition(".")[2]
    if is_dataclass and name == qualified:  # its objects show the qualified name
        raise Barrier("it defines a class in a function that the program made", hint=DEFINE_OUTSIDE)
    if is_dataclass and not all(type(each) is Opaque and each.held is dataclasses.dataclass for each in decorators):
        raise Barrier("it defines a class with a decorator", hint=DEFINE_OUTSIDE)
    if bases if is_dataclass else len(bases) != 1 or type(bases[0]) is not Opaque or not _is_data_base(bases[0].held):
        raise Barrier("it defines a class", hint=DEFINE_OUTSIDE)
    if not is_dataclass and foreign.is_class(bases[0].held):  # a model, not `TypedDict`, which is a function
        _require_plain_names(bases[0].held, (*namespace, *annotations))
    own: Keywords = {"__module__": READER, "__qualname__": qualified}
    for each, value in namespace.items():
        if foreign.is_kind_of(value, Opaque):
            value = _field_info(value)
        else:
            run.require_known(value)
        own[each] = value
    own["__annotations__"] = {each: _annotation(value) for each, value in annotations.items()}
    run.tick(1000)
    made = types.new_class(name, tuple(base.held for base in bases), {}, lambda target: target.update(own))
    return Opaque(dataclasses.dataclass(made) if is_dataclass else made, is_own=True)


def _require_plain_names(base: type, names: tuple[str, ...]) -> None:
    """Raises: Barrier if pydantic warns of a field, or keeps the value apart."""
    for name in names:
        is_plain = not name.startswith(("_", "model_")) and in_mro(base, name) is MISSING
        if not (is_plain or name in ("__doc__", "model_config")):
            raise Barrier(f"it defines a class with a field of the name {name}", hint=DEFINE_OUTSIDE)


def _is_data_base(base: Any) -> bool:
    typed = [module.__dict__.get("TypedDict") for module in _modules("typing", "typing_extensions")]
    return base is foreign.base_model() or any(base is each for each in typed)


def _modules(*names: str) -> list[types.ModuleType]:
    return [sys.modules[name] for name in names if name in sys.modules]


def _field_info(value: Opaque) -> Any:
    held = value.held
    if value.is_own and foreign.is_library_class(type(held)) and foreign.name_of_class(type(held)) == "FieldInfo":
        return held
    raise Barrier("it defines a class with code in it", hint=DEFINE_OUTSIDE)


def _annotation(value: Any) -> Any:
    if type(value) is str or value is None:
        if value is None:
            return None
        raise Barrier("it defines a class with annotations in quotes")
    held = value.held if type(value) is Opaque else None
    if _is_plain_hint(held):
        return held
    raise Barrier("it defines a class with an annotation that is not read", hint=DEFINE_OUTSIDE)


def _is_plain_hint(held: Any, depth: int = 0) -> bool:
    kind = type(held)
    if held is None or held is type(None) or held is Ellipsis or any(held is each for each in _HINTS):
        return True
    if hints.is_annotated(held):
        return depth < 5 and _is_plain_hint(held.__origin__, depth + 1)
    if foreign.is_class(held):
        return is_clean_model(held) or facts_of(held).kind == "enum"
    if kind is types.GenericAlias or foreign.module_of(kind) == "typing":
        args = held.__args__ if hasattr(held, "__args__") else ()
        if getattr(held, "__origin__", None) is typing.Literal:
            return all(foreign.is_atom(each) for each in args)
        return depth < 5 and all(_is_plain_hint(each, depth + 1) for each in args)
    return kind is types.UnionType and all(_is_plain_hint(each, depth + 1) for each in held.__args__)


_HINTS = (str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object, typing.Any)
