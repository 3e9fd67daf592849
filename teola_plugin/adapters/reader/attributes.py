"""Attributes of all values, read and stored: user code is interpreted or not read, never run."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

from teola_plugin.adapters.reader import (
    arrays,
    dataframe_uses,
    dataframes,
    foreign,
    methods,
    natives_files,
    natives_rich,
    natives_tokens,
    outlets,
    record_methods,
    records,
)
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.changes import is_of_program
from teola_plugin.adapters.reader.facts import Facts, facts_of, is_dunder, is_stock_record_class, is_user_code
from teola_plugin.adapters.reader.foreign import (
    MISSING,
    describe,
    in_mro,
    is_class,
    is_environment,
    is_kind_of,
    namespace_of,
)
from teola_plugin.adapters.reader.heap import FUNCTION
from teola_plugin.adapters.reader.instances import type_of
from teola_plugin.adapters.reader.made_classes import is_made_by_reader
from teola_plugin.adapters.reader.outer import outside
from teola_plugin.adapters.reader.values import (
    Barrier,
    Callee,
    Method,
    Opaque,
    Super,
    Undecided,
    Unknown,
    isinstance_of,
)

_MODULE: Any = vars(types.ModuleType)["__dict__"]
_ARGS = BaseException.__dict__["args"]
_MODULE_TEXTS = frozenset(["__name__", "__doc__", "__file__", "__version__"])
_OF_EVENTS = frozenset(["get", "keys", "items", "values"])
"""Methods of a workflow event that belong to the dict inside of the event."""

_OF_FIELDS = frozenset(["name", "init", "repr", "compare", "kw_only", "type"])
"""Attributes of a dataclass field that are read directly."""

_RECORDS = ("record", "slots", "tuple")


def attribute(run: Any, value: Any, name: str) -> Any:
    """Return `value.name`. Raises: AttributeError, Undecided, Barrier, and errors of a property."""
    if type(value) is Unknown:
        return methods.unknown_field(run, value, name)
    if type(value) is Super:
        return _attribute_behind(run, value, name)
    if type(value) is dataframes.OfPandas:
        return dataframe_uses.attribute(run, value, name)
    if isinstance_of(value, Opaque):
        return _opaque_attribute(run, value, name)
    if run.is_unknown(value):
        raise Undecided
    if name == "__class__":
        return type_of(run, value)
    if is_dunder(name) and name != "__doc__":
        raise Barrier(f"it uses {name}")
    cls = type(value)
    if id(cls) in foreign.BUILTINS and not is_kind_of(value, BaseException):
        return methods.field(run, value, name)
    facts = facts_of(cls)
    if facts.kind in _RECORDS:
        return _record_attribute(run, value, name, facts)
    if facts.kind == "enum":
        return _member_attribute(run, value, name)
    if is_kind_of(value, BaseException):
        return _exception_attribute(run, value, name)
    return methods.field(run, value, name)


def bound(run: Any, function: Any, value: Any, name: str) -> Method:
    """Return a bound method: a callable that gets the object as the first argument."""
    loaded = run.load(function)
    return Method(lambda inner, args, kwargs: call(inner, loaded, (value, *args), kwargs), name, loaded)


def super_of(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Super:
    """Return the value of `super()`, called without arguments in a method of a class of the user's."""
    frame = run.levels[-1].frame
    function = frame[FUNCTION]
    if args or kwargs or type(function) is not types.FunctionType:
        raise Barrier("it uses super() in an unusual way")
    code = function.__code__
    is_inside = any("super" in each.co_names for each in code.co_consts if type(each) is types.CodeType)
    value = frame.get(code.co_varnames[0]) if code.co_argcount else None
    cls: Any = outside(function, "__class__") if "__class__" in code.co_freevars else None
    if is_inside or not is_class(cls) or value is None:
        raise Barrier("it uses super() in an unusual way")
    if type(value) is Unknown:
        raise Undecided
    return Super(value, cls)


def _attribute_behind(run: Any, of: Super, name: str) -> Any:
    """Return a method that an object has behind a class in its MRO."""
    held = of.value.held if type(of.value) is Opaque else of.value
    function = run.levels[-1].frame[FUNCTION]
    is_making = name == "__init__" and type(of.value) is Opaque and of.value.is_own
    is_init = type(function) is types.FunctionType and function.__code__.co_name == "__init__"
    refused = Barrier(f"it uses {name} of super()")
    if (is_dunder(name) and not (is_making and is_init)) or not foreign.has_plain_lookup(type(held)):
        raise refused
    classes = foreign.mro_of(type(held))
    at = next((number for number, each in enumerate(classes) if each is of.cls), len(classes))
    behind = (each for each in classes[at + 1 :] if name in namespace_of(each))
    owner = next(behind, None)
    if owner is object and is_making:
        return Callee(_begin, name)
    found = namespace_of(owner)[name] if owner is not None else None
    find = getattr(run.asker, "inherited", None) if type(of.value) is Opaque else None
    if find is not None and (known := find(run, of.value, found, name)) is not NOT_MINE:
        return known
    found = found if owner is not None and not foreign.is_library_class(owner) else None
    if type(found) is not types.FunctionType or not is_user_code(name, found):
        raise refused
    return bound(run, found, of.value, name)


def _begin(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Handle `object.__init__`."""
    if args or kwargs:
        raise TypeError("object.__init__() takes exactly one argument")


# --- plain objects ---------------------------------------------------------------------------------------------------


def _record_attribute(run: Any, value: Any, name: str, facts: Facts) -> Any:
    cls = type(value)
    if facts.kind == "record":
        own = object.__getattribute__(value, "__dict__")
        if name in own and name in facts.fields:
            return own[name]
    else:
        own = records.fields_of(value) or {}
        if name in facts.fields:
            if name not in own:
                raise AttributeError(name)
            return own[name]
    found = in_mro(cls, name)
    if type(found) is property:
        return _property_of_record(run, value, name, found)
    if name in own and (found is MISSING or not foreign.is_data_descriptor(found)):
        return own[name]
    data = records.data_of_event(value) if facts.is_event else None
    if data is not None and name in (_OF_EVENTS if found is not MISSING else data):
        if run.is_unknown(data):
            raise Undecided
        return data[name] if found is MISSING else methods.field(run, data, name)
    if found is MISSING:
        extra = records.model_slot(value, "__pydantic_extra__") if facts.is_model else None
        if type(extra) is dict and name in extra:
            if run.is_unknown(extra):
                raise Undecided
            return extra[name]
        if facts.is_model and name.startswith("_"):
            raise Barrier(f"it uses the private attribute {name}")
        raise AttributeError(f"{foreign.name_of_class(cls)!r} object has no attribute {name!r}")
    if type(found) is types.FunctionType and not is_user_code(name, found):
        return record_methods.record_method(run, value, name)
    return _from_class(run, value, cls, name, found)


def _property_of_record(run: Any, value: Any, name: str, found: property) -> Any:
    if is_user_code(name, found):
        return _property(run, value, name, found)
    return record_methods.stock_property(run, value, name, attribute)


def _member_attribute(run: Any, value: Any, name: str) -> Any:
    """Return an attribute of a member of an enum without special methods."""
    if name in ("value", "name"):
        own = foreign.own_attributes(value)
        if own is None or f"_{name}_" not in own:
            raise Barrier(f"it uses {name} of {describe(value)}")
        return run.load(own[f"_{name}_"])
    cls = type(value)
    for plain, convert in ((str, str.__str__), (int, int.__int__)):
        if is_kind_of(value, plain) and methods.has_method(plain, name) and in_mro(cls, name) is in_mro(plain, name):
            return methods.field(run, convert(value), name)
    found = in_mro(cls, name)
    own = foreign.own_attributes(value)
    if type(found) is property:
        return _property(run, value, name, found)
    if found is MISSING or not foreign.is_data_descriptor(found):
        if own is not None and name in own:
            return run.load(own[name])
        if found is MISSING:
            raise AttributeError(name)
        return _from_class(run, value, cls, name, found)
    raise Barrier(f"it uses {name} of {describe(value)}")


def _exception_attribute(run: Any, value: BaseException, name: str) -> Any:
    if name == "args":
        if run.is_own_exception(value):
            return _ARGS.__get__(value)
        return run.unknown(is_safe=True)
    found = in_mro(type(value), name)
    if found is MISSING or type(found) is types.FunctionType or not foreign.is_descriptor(found):
        own = foreign.own_attributes(value)
        if own is not None and found is not MISSING and name not in own:
            return _from_class(run, value, type(value), name, found)
    raise Barrier(f"it uses {name} of an exception")


def _property(run: Any, value: Any, name: str, found: property) -> Any:
    if found.fget is None:
        raise AttributeError(name)
    return call(run, run.load(found.fget), (value,), {})


def _from_class(run: Any, value: Any, cls: type, name: str, found: Any) -> Any:
    """Return an attribute of an object's class: a method, or data."""
    kind = type(found)
    if kind is types.FunctionType:
        return bound(run, found, value, name)
    if kind is staticmethod:
        return run.load(found.__func__)
    if kind is classmethod:
        return _class_method(run, cls, name, found)
    if foreign.is_descriptor(found):
        raise Barrier(f"it uses {name} of {describe(value)}")
    return run.load_attribute(cls, name, found)


def _class_method(run: Any, cls: type, name: str, found: Any) -> Any:
    if not is_user_code(name, found):
        return record_methods.class_method(run, cls, name)
    return bound(run, found.__func__, run.load(cls), name)


# --- foreign objects -------------------------------------------------------------------------------------------------


def _opaque_attribute(run: Any, value: Opaque, name: str) -> Any:
    held = value.held
    if isinstance_of(held, Opaque):
        if name == "__name__" and type(held) is not Opaque and isinstance_of(held, Callee):
            return held.name
        raise Barrier(f"it uses {name} of a function or coroutine")
    kind = type(held)
    if kind is types.ModuleType:
        return _module_attribute(run, held, name)
    if arrays.is_array(value):
        return _array_attribute(run, value, name)
    found = run.asker.attribute(run, value, name)
    if found is not NOT_MINE:
        return found
    if is_class(held):
        return _class_attribute(run, value, held, name)
    if kind is types.FunctionType:
        return _function_attribute(run, held, name)
    if kind is dataclasses.Field and name in _OF_FIELDS:
        return run.load(getattr(held, name))
    if natives_tokens.is_table(held) and (method := natives_tokens.attribute(held, name)) is not None:
        return method
    if (method := natives_files.attribute(value, name)) is not None:
        return method
    if (method := natives_rich.attribute(value, name)) is not None:
        return method
    if name == "get" and is_environment(held):
        return Callee(_environment, name)
    if name == "flush" and outlets.flushes(run, held):
        return Callee(_flush, name)
    facts = facts_of(kind)
    if name == "__class__" and foreign.has_plain_lookup(kind):
        return type_of(run, value)
    if is_dunder(name):
        raise Barrier(f"it uses {name} of {describe(value)}")
    if is_kind_of(held, BaseException):
        raise Barrier(f"it uses {name} of {describe(value)}")
    if name in ("value", "name") and type(kind) is foreign.ENUM_META and foreign.has_plain_lookup(kind):
        return _opaque_member_attribute(run, held, name)
    if facts.kind not in ("object", "component", "record"):
        raise Barrier(f"it uses {name} of {describe(value)}")
    return _object_attribute(run, value, name, facts)


def _array_attribute(run: Any, value: Opaque, name: str) -> Any:
    if arrays.has_method(name):
        return Callee(lambda inner, args, kwargs: arrays.method(inner, value, name, args, kwargs), name)
    if (found := arrays.field(run, value, name)) is None:
        raise Barrier(f"it uses {name} of an array")
    return found


def _environment(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run.environment(*args, *kwargs.values()).get(*args, **kwargs)


def _flush(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Do nothing: the framework's run empties the standard stream."""
    if args or kwargs:
        raise TypeError("flush() takes no arguments")


def _module_attribute(run: Any, module: types.ModuleType, name: str) -> Any:
    own = _MODULE.__get__(module)
    if is_dunder(name) and name not in _MODULE_TEXTS:
        raise Barrier(f"it uses {name} of a module")
    if run.changes.holds((id(own), name)):
        return run.changed_value((id(own), name), lambda: own[name], error=AttributeError)
    if name in own:
        return run.load_attribute(module, name, own[name])
    if "__getattr__" in own:
        raise Barrier(f"it uses {name} of a module that makes its attributes", hint="import it where it is defined")
    raise AttributeError(f"module has no attribute {name!r}")


def _function_attribute(run: Any, function: types.FunctionType, name: str) -> Any:
    if name == "__name__" or name == "__qualname__":
        return str.__str__(function.__name__ if name == "__name__" else function.__qualname__)
    if name == "__doc__":
        return run.load(function.__doc__)
    own = function.__dict__
    if type(own) is dict and all(type(each) is str for each in own) and not is_dunder(name):
        if name in own:
            return run.load_attribute(function, name, own[name])
        raise AttributeError(name)
    raise Barrier(f"it uses {name} of a function")


def _object_attribute(run: Any, value: Opaque, name: str, facts: Facts) -> Any:
    held, cls = value.held, type(value.held)
    if run.is_unknown(held):
        raise Undecided
    own = foreign.own_attributes(held)
    if own is None:
        raise Barrier(f"it uses {name} of {describe(value)}")
    found = in_mro(cls, name)
    is_code = found is not MISSING and is_user_code(name, found)
    if type(found) is property and (is_code or facts.kind == "object"):
        return _property(run, value, name, found)
    if found is not MISSING and foreign.is_data_descriptor(found):
        raise Barrier(f"it uses {name} of {describe(value)}")
    if not value.is_own:
        if run.changes.changed and run.changes.holds((id(own), name)):
            return run.changed_value((id(own), name), lambda: own[name], error=AttributeError, default=found)
        run.require_as_noted((id(own), name), held, name, own.get(name, MISSING))
    if name in own:
        return own[name] if value.is_own and facts.kind == "object" else run.load_attribute(held, name, own[name])
    if found is MISSING:
        private = foreign.private_attribute(held, name)
        if private is not MISSING and not is_user_code("__getattr__", in_mro(cls, "__getattr__")):
            run.require_as_noted((id(foreign.private_of(held)), name), held, name, private)
            return run.load_attribute(held, name, private)
        if in_mro(cls, "__getattr__") is not MISSING:
            raise Barrier(f"it uses {name} of {describe(value)}")
        raise AttributeError(f"{foreign.name_of_class(cls)!r} object has no attribute {name!r}")
    if facts.kind != "object" and foreign.is_descriptor(found) and not is_code:
        raise Barrier(f"it calls {name} of {describe(value)}")
    return _from_class(run, value, cls, name, found)


def _opaque_member_attribute(run: Any, held: Any, name: str) -> Any:
    """Return `value` or `name` of a member of an enum with special methods, which neither attribute uses."""
    own = foreign.own_attributes(held)
    if own is None or is_user_code(name, in_mro(type(held), name)) or f"_{name}_" not in own:
        raise Barrier(f"it uses {name} of {describe(held)}")
    return run.load(own[f"_{name}_"])


# --- classes ---------------------------------------------------------------------------------------------------------


def _class_attribute(run: Any, value: Opaque, cls: type, name: str) -> Any:
    if not foreign.has_known_classes(cls):
        raise Barrier(f"it uses {describe(value)}, which has a metaclass")
    if name in ("__name__", "__qualname__"):
        found = str.__str__(type.__dict__[name].__get__(cls))
        if name == "__qualname__" and is_made_by_reader(cls) and "." not in found:  # in an inner function
            raise Barrier(f"it uses {name} of {describe(value)}")
        return found
    if name == "__class__":
        return run.load(type(cls))
    if name == "__doc__":
        doc = namespace_of(cls).get("__doc__")
        if doc is None or type(doc) is str:
            return doc
    if is_dunder(name):
        raise Barrier(f"it uses {name} of {describe(value)}")
    if type(cls) is foreign.ENUM_META:
        members = namespace_of(cls).get("_member_map_")
        if type(members) is dict and name in members:
            return run.load(members[name])
    if name == "model_fields" and facts_of(cls).is_model:
        return run.load(in_mro(cls, "__pydantic_fields__"))
    found = in_mro(cls, name)
    if found is MISSING:
        if in_mro(type(cls), name) is not MISSING or in_mro(type(cls), "__getattr__") is not MISSING:
            raise Barrier(f"it uses {name} of {describe(value)}")
        raise AttributeError(f"the class has no attribute {name!r}")
    kind = type(found)
    if kind is staticmethod:
        return run.load(found.__func__)
    if kind is classmethod:
        return _class_method(run, cls, name, found)
    if kind is types.ClassMethodDescriptorType:
        return run.load(found.__get__(None, cls))
    if kind is types.FunctionType or kind is types.MethodDescriptorType or not foreign.is_descriptor(found):
        return run.load_attribute(cls, name, found)
    raise Barrier(f"it uses {name} of {describe(value)}")


# --- stores ----------------------------------------------------------------------------------------------------------


def set_attribute(run: Any, value: Any, name: str, new: Any) -> None:
    """Store `value.name = new`. Raises: AttributeError, Barrier, Renewed."""
    if type(value) is Unknown:
        _set_unknown(run, value, name, new)
        return
    if is_dunder(name):
        raise Barrier(f"it stores the attribute {name}")
    if isinstance_of(value, Opaque):
        _set_of_object(run, value, name, new)
        return
    facts = facts_of(type(value))
    if facts.kind == "record":
        _set_of_record(run, value, name, new, facts)
    elif facts.kind in ("slots", "enum") or is_kind_of(value, BaseException):
        raise Barrier(f"it stores the attribute {name} of {describe(value)}")
    else:
        raise AttributeError(f"it stores the attribute {name} of {describe(value)}")


def _set_unknown(run: Any, value: Unknown, name: str, new: Any) -> None:
    """Allow a store into an unknown reply, which stays unknown: later reads must find the kind that was predicted."""
    is_text = type(new) is str or (type(new) is Unknown and new.holds == "text")
    if value.holds == "message" and ((name == "content" and is_text) or (name in ("name", "id") and is_text)):
        run.texts_of.clear()  # also of replies that may be the same
        return
    if value.holds == "document" and name == "page_content" and is_text:
        run.texts_of.clear()
        run.store_in_found(value)
        return
    raise Barrier(f"it stores the attribute {name} of a value that is not known yet")


def _set_of_object(run: Any, value: Opaque, name: str, new: Any) -> None:
    held = value.held
    refused = Barrier(f"it stores the attribute {name} of {describe(value)}")
    if isinstance_of(held, Opaque) or foreign.is_one_of(type(held), _NO_OBJECTS) or is_class(held):
        raise refused
    find = None if value.is_own else getattr(run.asker, "setting", None)
    if find is not None and (setting := find(held, name)) is not None:
        run.store((id(foreign.own_attributes(held)), setting), held, new, refused.what)
        return
    if facts_of(type(held)).kind != "object" and (value.is_own or not is_of_program(held, name)):
        raise refused
    if in_mro(type(held), "__setattr__") is not object.__dict__["__setattr__"]:
        raise refused
    found = in_mro(type(held), name)
    if type(found) is property and found.fset is not None:
        call(run, run.load(found.fset), (value, new), {})
        return
    own = foreign.own_attributes(held)
    if own is None or (found is not MISSING and foreign.is_data_descriptor(found)):
        raise refused
    if not value.is_own:
        run.store((id(own), name), held, new, refused.what)
        return
    run.touch(held)
    run.escapes(held, new)
    own[name] = new


_NO_OBJECTS = (types.ModuleType, types.FunctionType, types.MethodType)


def _set_of_record(run: Any, value: Any, name: str, new: Any, facts: Facts) -> None:
    cls = type(value)
    if facts.is_event:
        raise Barrier(f"it stores the attribute {name} of an event")
    run.touch(value)
    run.escapes(value, new)
    found = in_mro(cls, name)
    if found is not MISSING and foreign.is_descriptor(found):
        raise Barrier(f"it stores the attribute {name} of {describe(value)}")
    if facts.is_model:
        _set_of_model(run, value, name, new, facts)
        return
    if in_mro(cls, "__setattr__") is not object.__dict__["__setattr__"]:
        if is_stock_record_class(cls):  # which warns, say
            raise Barrier(f"it stores the attribute {name} of {describe(value)}")
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__getattribute__(value, "__dict__")[name] = new


def _set_of_model(run: Any, value: Any, name: str, new: Any, facts: Facts) -> None:
    config = in_mro(type(value), "model_config")
    if type(config) is not dict or config.get("frozen") or config.get("validate_assignment") or name.startswith("_"):
        raise Barrier(f"it stores the attribute {name} of a model that checks it")
    if name in facts.fields:
        info = in_mro(type(value), "__pydantic_fields__")[name]
        if not foreign.is_library_class(type(info)) or info.frozen:
            raise Barrier(f"it stores the attribute {name} of a model that checks it")
        _note_field(run, value, name)
        object.__getattribute__(value, "__dict__")[name] = new
        return
    extra = records.model_slot(value, "__pydantic_extra__")
    if in_mro(type(value), name) is not MISSING:
        raise Barrier(f"it stores the attribute {name} of {describe(value)}")
    if config.get("extra") != "allow" or type(extra) is not dict:
        raise ValueError(f"object has no field {name!r}")
    run.touch(extra)
    extra[name] = new
    if _notes_extra():
        _note_field(run, value, name)


def _note_field(run: Any, value: Any, name: str) -> None:
    names = records.model_slot(value, "__pydantic_fields_set__")
    if name not in names:
        run.touch(names)
        names.add(name)


@functools.cache
def _notes_extra() -> bool:
    """Whether this release of pydantic counts undeclared fields among the set fields."""
    from pydantic import BaseModel

    class Probe(BaseModel, extra="allow"):
        pass

    probe = Probe()
    probe.field = 1  # type: ignore[attr-defined]
    return "field" in probe.model_fields_set
