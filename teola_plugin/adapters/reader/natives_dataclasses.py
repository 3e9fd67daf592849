"""The functions of `dataclasses`, on the reader's own records."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from teola_plugin.adapters.reader import records
from teola_plugin.adapters.reader.attributes import attribute
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import describe, in_mro, is_class
from teola_plugin.adapters.reader.generated import dataclass_fields, kind_of_field
from teola_plugin.adapters.reader.table import register, unknown_atom
from teola_plugin.adapters.reader.values import Arguments, Barrier, Opaque, Undecided, Unknown, isinstance_of


def _fields(run: Any, value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass object. Raises: TypeError for objects without fields, Undecided, Barrier."""
    if type(value) is Unknown or run.is_unknown(value):
        raise Undecided
    if isinstance_of(value, Opaque):
        raise Barrier(f"it uses a function of dataclasses on {describe(value)}")
    if not facts_of(type(value)).is_dataclass:
        raise TypeError("it should be called on dataclass instances")
    return {name: attribute(run, value, name) for name in facts_of(type(value)).fields}


def _fields_of(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `dataclasses.fields`, of a class or an object."""
    if len(args) != 1 or kwargs:
        raise Barrier("it calls fields() in an unusual way")
    (given,) = args
    if isinstance_of(given, Opaque):
        cls = given.held if is_class(given.held) else None
    elif type(given) is Unknown:
        raise Undecided
    else:
        cls = type(given)
    noted = dataclass_fields(cls) if cls is not None and facts_of(cls).is_dataclass else None
    if noted is None:
        raise Barrier(f"it calls fields() of {describe(given)}")
    return tuple(run.load(field) for field in noted.values() if kind_of_field(field) == "field")


def _asdict(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise Barrier("it calls asdict() in an unusual way")
    return {name: _plain(run, each) for name, each in _fields(run, args[0]).items()}


def _plain(run: Any, value: Any) -> Any:
    """Copy the value of a field as `asdict` does."""
    run.tick()
    kind = type(value)
    if run.is_unknown(value):
        if unknown_atom(value):
            return value
        raise Undecided
    if kind is list or kind is tuple:
        return kind(_plain(run, each) for each in value)
    if kind is dict:
        return {_plain(run, key): _plain(run, each) for key, each in value.items()}
    if not isinstance_of(value, Opaque) and facts_of(kind).is_dataclass:
        return {name: _plain(run, each) for name, each in _fields(run, value).items()}
    run.require_known(value)
    if records.fields_of(value) is not None or facts_of(kind).kind == "tuple":
        raise Barrier("it calls asdict() on an object that holds others")
    return value if facts_of(kind).kind == "enum" else copy.deepcopy(value)


def _replace(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        raise Barrier("it calls replace() in an unusual way")
    held = _fields(run, args[0])
    cls = type(args[0])
    noted = dataclass_fields(cls)
    if noted is None or any(kind_of_field(field) == "init" for field in noted.values()):
        raise Barrier("it calls replace() in an unusual way")
    for name, field in noted.items():
        if kind_of_field(field) == "field" and not field.init and name in kwargs:
            raise ValueError(f"field {name} is declared with init=False, it cannot be specified with replace()")
    given = {name: each for name, each in held.items() if noted[name].init}
    return call(run, run.load(cls), (), {**given, **kwargs})


def _is_dataclass(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or type(args[0]) is Unknown or isinstance_of(args[0], Opaque):
        raise Barrier("it calls is_dataclass() in an unusual way")
    return type(in_mro(type(args[0]), "__dataclass_fields__")) is dict


register(_fields_of, dataclasses.fields)
register(_asdict, dataclasses.asdict)
register(_replace, dataclasses.replace)
register(_is_dataclass, dataclasses.is_dataclass)
