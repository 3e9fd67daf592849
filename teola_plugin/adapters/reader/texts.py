"""Texts made of values that may be unknown: formatting, `%`, f-strings, and the methods of str."""

from __future__ import annotations

import datetime
import gc
import math
import re
import string
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from teola_plugin.adapters.reader import (
    bounds,
    dataframe_uses,
    dataframes,
    days,
    foreign,
    natives_files,
    records,
)
from teola_plugin.adapters.reader.amounts import COUNT, PLACE
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import facts_of, is_user_code
from teola_plugin.adapters.reader.table import (
    ORDERED_VIEWS,
    VIEWS,
    is_text,
    is_unknown,
    kind_of,
    known,
    require_no_decimals,
    require_order,
    unknown_atom,
    unknowns,
    whole,
    words,
)
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    BracketPlace,
    Callee,
    Lazy,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)

_SHOWN = (str, int, float, bool, type(None))


def readable(run: Any, *values: Any) -> list[Any]:
    """Return the unknown parts of the values' text forms, including errors that the program did not make."""
    if all(type(value) in _SHOWN for value in values):
        return []
    found = unknowns(run, *values)
    todo, seen = list(values), set[int]()
    for value in todo:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance_of(value, BaseException) and not run.is_own_exception(value):
            found.append(value)
        elif isinstance_of(value, BaseException):
            args = BaseException.args.__get__(value)  # type: ignore[attr-defined]
            todo += args
            found += unknowns(run, *args)
        elif type(value) in (list, tuple):
            todo += value
        elif type(value) is dict:
            todo += value.values()
            todo += (key for key in value if type(key) not in _SHOWN)
        elif type(value) not in _SHOWN and not found:
            _only_shown(run, value)
            held = inside(value)
            require_order(run, *held)
            require_no_decimals(*(each for each in held if type(each) is Decimal and "E" in str(each).upper()))
    return found


def inside(value: Any) -> list[Any]:
    """Return a value and all nested parts."""
    found, seen = [value], {id(value)}
    for each in found:
        if type(each) not in _SHOWN and not isinstance_of(each, Opaque):
            parts = gc.get_referents(each) if type(each) in _HOLDERS else (records.fields_of(each) or {}).values()
            new = [part for part in parts if id(part) not in seen]
            seen.update(map(id, new))
            found += new
    return found


_HOLDERS = (set, frozenset, deque, OrderedDict, Counter, defaultdict, dict, list, tuple, *VIEWS, *ORDERED_VIEWS)


def _only_shown(run: Any, value: Any) -> None:
    run.require_known(value)
    if type(value) is Lazy:
        raise Barrier("it shows an iterator")


def text_of(run: Any, convert: Callable[[Any], str], value: Any) -> Any:
    """Return the result of str, repr or ascii for a value; none of these raises."""
    if type(value) is str:
        bounds.characters(run, len(value))
        return convert(value)
    if (path := natives_files.path_in(value)) is not None and convert in (str, format):
        return str(path)
    if type(value) is dataframes.OfPandas:
        return dataframe_uses.text_of(run, convert, value)
    if type(value) is Opaque and value.is_own and convert in (str, format):
        shows = run.asker.attribute(run, value, "__str__")
        if type(shows) is Callee:
            return call(run, shows, (), {})
    try:
        found = readable(run, value)
    except Barrier:
        if convert not in (str, format) or (shows := _showing(value)) is None:
            raise
        return call(run, run.load(shows), (value,), {})
    if found:
        return run.unknown(*found, holds="text", is_safe=all(map(is_shown, found)))
    return convert(value)


def _showing(value: Any) -> Any:
    """Return the `__str__` of a record's class, such as the reply of a model with the service's own object inside."""
    shows = foreign.in_mro(type(value), "__str__") if records.is_record(value) else None
    return shows if type(shows) is types.FunctionType else None


def is_shown(value: Any) -> bool:
    """Whether converting the value to text runs no code of the program, which may raise."""
    if kind_of(value) != "object":
        return True
    cls: Any = value.holds
    return dataframes.is_table(cls) or is_class_shown(cls)


def is_class_shown(cls: type) -> bool:
    """Whether converting an object of the class to text runs no code of the program, but for its parts."""
    return not any(is_user_code(name, foreign.in_mro(cls, name)) for name in ("__str__", "__repr__", "__format__"))


def are_shown(value: Any) -> bool:
    """Whether converting a value of the reader's, with all parts, to text certainly runs no code of the program."""
    return all(map(_is_part_shown, inside(value)))


def _is_part_shown(value: Any) -> bool:
    if type(value) is Unknown:
        return is_shown(value)
    if isinstance_of(value, Opaque):
        return False
    if foreign.is_atom(value) or foreign.is_one_of(type(value), _HOLDERS):
        return True
    return facts_of(type(value)).kind in ("record", "slots", "tuple", "enum")


_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


def formatted(run: Any, value: Any, spec: Any, conversion: str) -> Any:
    """Return a part of an f-string: `{value!conversion:spec}`."""
    if conversion:
        value = text_of(run, _CONVERSIONS[conversion], value)
    known(run, spec)
    if type(spec) is not str:
        raise TypeError("format() argument 2 must be str")
    if type(value) is str and not spec:
        return value
    if not spec:
        return text_of(run, format, value)
    bounds.spec(spec)
    if type(value) is dataframes.OfPandas:
        return dataframe_uses.text_of(run, format, value, spec)
    if type(value) is Unknown:
        text = days.shown(value, spec)
        return _formatted_unknown(run, value, spec) if text is None else text
    if readable(run, value):
        raise Undecided
    require_no_decimals(value)
    return format(value, spec)


def _formatted_unknown(run: Any, value: Unknown, spec: str) -> Unknown:
    """Format an unknown value: safe if formatting a sample of each possible type does not raise."""
    given = _samples_of(value)
    try:
        for sample in given:
            format(sample, spec)
        is_safe = bool(given)
    except (TypeError, ValueError, OverflowError):
        is_safe = False
    return run.unknown(value, holds="text", is_safe=is_safe)  # type: ignore[no-any-return]


SAMPLES: dict[str, Any] = {
    type_name(type(each)): each
    for each in (
        datetime.datetime(2024, 5, 17, 10, 30, 15, 123456), datetime.date(2024, 5, 17), datetime.time(10, 30, 15),
        datetime.timedelta(days=3, seconds=5), uuid.UUID(int=5), 1.5,
    )
}  # fmt: skip
"""A sample of each class whose objects behave alike."""


def samples(kind: str) -> tuple[Any, ...]:
    """Return values that raise wherever any value of the kind does; none if unknown."""
    if kind in SAMPLES:
        return (SAMPLES[kind],)
    whole = (1, True, -1)
    return {"text": ("", "a"), "number": (*whole, 1.5), "int": whole, "bool": (True,)}.get(kind, ())


def _samples_of(value: Any) -> tuple[Any, ...]:
    """Return values that raise, where one is shown as text, wherever any value in the place of this one does."""
    if type(value) is not Unknown:
        return (value,) if type(value) in _SHOWN else ()
    large: tuple[Any, ...] = (math.inf, math.nan) if value.holds in (float, "mixed") else ()
    return samples(kind_of(value)) + ((10**400,) if value.holds in ("int", "count", "number") else large)


def template(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle the function `format`."""
    if kwargs or not 1 <= len(args) <= 2:
        raise TypeError("format() takes one or two arguments")
    return formatted(run, args[0], args[1] if len(args) == 2 else "", "")


# --- % ---------------------------------------------------------------------------------------------------------------

_PERCENT = re.compile(
    r"%(\((?P<name>[^()]*)\))?[-+ #0]*(?P<width>\*|\d+)?(\.(?P<digits>\*|\d*))?[hlL]?(?P<kind>.)", re.DOTALL
)


def percent(run: Any, a: Any, b: Any) -> Any:
    """Return `a % b` of a text or bytes."""
    known(run, a, *([] if unknown_atom(b) else [b]))
    if type(a) is bytes:
        run.require_known(b)
    wanted = [each for each in _PERCENT.finditer(a if type(a) is str else a.decode("latin-1")) if each["kind"] != "%"]
    if any(each["width"] == "*" or each["digits"] == "*" for each in wanted):
        raise Barrier("it formats with a width that is computed")
    if any(len(each[part] or "") > 4 for each in wanted for part in ("width", "digits")):
        raise Barrier("it formats with a great width")
    found = readable(run, *(b if type(b) is tuple else (b,)))
    if found:
        return run.unknown(*found, holds="text", is_safe=type(a) is str and _always_formats(a, wanted, b))
    made = a % b
    bounds.characters(run, len(made))
    return made


def _always_formats(template: str, wanted: list[re.Match[str]], b: Any) -> bool:
    """Whether formatting succeeds for all possible values."""
    if "%" in _PERCENT.sub("", template):
        return False
    if any(each["kind"] not in "sra" for each in wanted):
        return _formats_samples(template, b if type(b) is tuple else (b,))
    if type(b) is dict:
        return all(each["name"] is not None and each["name"] in b for each in wanted)
    if any(each["name"] is not None for each in wanted):
        return False
    return len(wanted) == (len(b) if type(b) is tuple else 1)


def _formats_samples(template: str, values: tuple[Any, ...]) -> bool:
    given = [_samples_of(each) for each in values]
    if not all(given):
        return False
    try:
        for at in range(max(map(len, given))):
            template % tuple(each[at % len(each)] for each in given)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


# --- str.format ------------------------------------------------------------------------------------------------------

_PLAIN_FIELDS = (list, tuple, dict, str, int, float, bool, type(None))


def format_text(run: Any, template: str, args: Arguments, kwargs: Any) -> Any:
    """Return `template.format(*args, **kwargs)`; `kwargs` may be any plain mapping."""
    known(run, kwargs)
    fields = _fields(template)
    if any("{" in spec or any(c in name for c in ".[") for name, spec, _ in fields):
        run.require_known(*args, *kwargs.values())
        if any(type(each) not in _PLAIN_FIELDS for each in (*args, *kwargs.values())):
            raise Barrier("it formats a text with fields of objects")
        require_order(run, *inside([args, kwargs]))
        for _, spec, _ in fields:
            bounds.spec(spec)
            if "{" in spec:
                raise Barrier("it formats with a width that is computed")
        return template.format(*args, **kwargs)
    used = _used(fields, args, kwargs)
    if used is None:
        return template.format(*args, **kwargs)  # for CPython's errors
    parts = [formatted(run, value, spec, conversion) for value, (_, spec, conversion) in zip(used, fields, strict=True)]
    if found := [part for part in parts if type(part) is Unknown]:
        return run.unknown(*found, holds="text", is_safe=True)
    bounds.characters(run, sum(map(len, parts)) + len(template))
    shown = iter(parts)
    return "".join(
        literal + (next(shown) if name is not None else "")
        for literal, name, _, _ in string.Formatter().parse(template)
    )


def _fields(template: str) -> list[tuple[str, str, str]]:
    """Return name, specification and conversion of each field. Raises: ValueError."""
    found = string.Formatter().parse(template)
    return [(name, spec or "", conversion or "") for _, name, spec, conversion in found if name is not None]


def _used(fields: list[tuple[str, str, str]], args: Arguments, kwargs: Any) -> list[Any] | None:
    """Return the values of the fields, in order; None if a value is missing or the template is wrong."""
    used, automatic = list[Any](), 0
    for name, _, conversion in fields:
        if conversion not in ("", "s", "r", "a"):
            return None
        if name == "":
            name, automatic = str(automatic), automatic + 1
        elif name.isdecimal() and automatic:
            return None
        if name.isdecimal():
            if int(name) >= len(args):
                return None
            used.append(args[int(name)])
        elif name in kwargs:
            used.append(kwargs[name])
        else:
            return None
    if automatic and any(name.isdecimal() for name, _, _ in fields):
        return None
    return used


# --- methods ---------------------------------------------------------------------------------------------------------

_GIVES = {
    "text": "capitalize casefold center expandtabs join ljust lower lstrip removeprefix removesuffix replace rjust "
            "rstrip strip swapcase title translate upper zfill format format_map",
    "texts": "split rsplit splitlines",
    "bool": "endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
            "istitle isupper startswith",
    COUNT: "count",
    PLACE: "find rfind index rindex",
    "any": "encode partition rpartition maketrans",
}  # fmt: skip
GIVES: dict[str, str] = {name: holds for holds, names in _GIVES.items() for name in names.split()}
"""The kind of a method's result, by the name of the method of str."""

_SAFE_WITH_TEXTS = words("count endswith find lstrip removeprefix removesuffix replace rfind rstrip startswith strip")
_MAY_RAISE = words("encode index rindex format format_map translate maketrans join")
_PADS = words("center ljust rjust zfill expandtabs")


def text_method(run: Any, value: str, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call a method of str."""
    if name == "join":
        return _join(run, value, args, kwargs)
    if name == "format":
        return format_text(run, value, args, kwargs)
    if name == "format_map" and len(args) == 1 and not kwargs:
        return _format_map(run, value, args[0])
    if name == "replace" and len(args) >= 2:
        return _replace(run, value, args, kwargs)
    try:
        known(run, *args)
        run.require_known(*args, *kwargs.values())
    except Undecided:
        return _unknown_arguments(run, value, name, args, kwargs)
    _bound(run, value, name, args, kwargs)
    return getattr(value, name)(*args, **kwargs)


def _bound(run: Any, value: str, name: str, args: Arguments, kwargs: dict[str, Any]) -> None:
    size = len(value)
    if name in _PADS:
        width = args[0] if args else kwargs.get("tabsize", 8)
        if type(width) is int:
            size = max(size, width * max(1, value.count("\t")) + size)
    elif name == "translate" and args and type(args[0]) is dict:
        size *= max((len(each) for each in args[0].values() if type(each) is str), default=1)
    bounds.characters(run, size)


def _unknown_arguments(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call a method of a text with unknown parts."""
    shown = [value, *args]
    is_safe = name in _SAFE_WITH_TEXTS and not kwargs and all(is_text(each) for each in args[:2])
    if len(args) > 2 and is_safe:
        is_safe = all(type(each) is int or each is None for each in args[2:])
    is_safe = is_safe and _takes(name, args)
    return run.unknown(*shown, *kwargs.values(), holds=GIVES[name], is_safe=is_safe)


def _takes(name: str, args: Arguments) -> bool:
    """Whether the method accepts the arguments, whatever the texts among them."""
    try:
        getattr("a", name)(*["a" if type(each) is Unknown else each for each in args])
    except TypeError:
        return False
    return True


def _replace(run: Any, value: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    old, new = args[0], args[1]
    if type(old) is str and is_text(new) and len(args) == 2 and not kwargs:
        times = value.count(old)
        if type(new) is Unknown:
            return run.unknown(new, holds="text", is_safe=True) if times else value
        bounds.characters(run, len(value) + times * max(0, len(new) - len(old)))
        return value.replace(old, new)
    try:
        run.require_known(*args)
        known(run, *args)
    except Undecided:
        return _unknown_arguments(run, value, "replace", args, kwargs)
    if type(old) is str and type(new) is str:
        bounds.characters(run, len(value) + value.count(old) * max(0, len(new) - len(old)))
    return value.replace(*args, **kwargs)


def _join(run: Any, value: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return value.join(*args, **kwargs)
    if is_unknown(run, args[0]):
        each = run.each_of(args[0])
        is_safe = kind_of(args[0]) == "text" or (each is not None and each.holds in ("text", None))
        return run.unknown(args[0], holds="text", is_safe=is_safe)
    if isinstance_of(args[0], Opaque):
        raise Barrier("it joins an object that is no plain data")
    require_order(run, args[0])
    elements = list(whole(run, args[0]))
    missing = [each for each in elements if not is_text(each)]
    unknown = [each for each in elements if type(each) is Unknown]
    if any(isinstance_of(each, Opaque) for each in missing):
        raise Barrier("it joins objects that are no plain data")
    if any(type(each) is not Unknown for each in missing):
        return value.join(each for each in elements if type(each) is not Unknown)  # raises a TypeError
    if unknown:
        return run.unknown(*unknown, holds="text", is_safe=not missing)
    bounds.characters(run, sum(map(len, elements)) + len(value) * len(elements))
    run.tick(1 + len(elements) // 50)
    return value.join(elements)


def _format_map(run: Any, value: str, mapping: Any) -> Any:
    if isinstance_of(mapping, Opaque) or not isinstance_of(mapping, dict):
        raise Barrier("it formats with a mapping that is no plain dict")
    known(run, mapping)
    if type(mapping) is not dict:
        run.require_known(mapping)
        run.touch(mapping)  # a missing key may be added to a defaultdict
        if any(spec or any(c in name for c in ".[") for name, spec, _ in _fields(value)):
            raise Barrier("it formats a text with fields of objects")
        return value.format_map(mapping)
    if any(not name or name.isdecimal() for name, _, _ in _fields(value)):
        run.require_known(mapping)
        return value.format_map(mapping)  # for CPython's errors
    return format_text(run, value, (), mapping)


def unknown_text_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call a method of an unknown text."""
    args = tuple([whole(run, each) for each in args])
    operands = [value, *args, *kwargs.values()]
    if name not in GIVES:
        if not hasattr("", name):
            run.raises()
        raise Undecided
    if name in _MAY_RAISE:
        is_safe = name == "join" and len(args) == 1 and type(args[0]) is list and all(map(is_text, args[0]))
        error = ValueError if name in _PLACES and len(args) == 1 and is_text(args[0]) else Exception
        return _placed(run.unknown(*operands, holds=GIVES[name], is_safe=is_safe, error=error), value, name, args)
    if unknowns(run, *args, *kwargs.values()):
        found: Unknown = _unknown_arguments(run, value, name, args, kwargs)
        return found
    if name in _PADS:
        return run.unknown(*operands, holds="text")
    made = getattr("", name)(*args, **kwargs)  # raises where these arguments do with any text
    if type(made) is tuple:
        return tuple([run.unknown(value, holds="text", is_safe=True) for _ in made])
    found = run.unknown(value, holds=GIVES[name], is_safe=True)
    if made == [""]:  # split at a separator
        run.note_truth(found, True)
        if (parts := _split_in_parts(run, value, found, args, kwargs)) is not None:
            return parts
    if name in ("startswith", "endswith") and len(args) == 1 and type(args[0]) is str and args[0]:
        found.of = run.shown(value, True, args[0])
    if type(value.of) is str and _keeps_opening(value.of, name, args):
        found.of = value.of
    return _placed(found, value, name, args)


def _split_in_parts(run: Any, text: Unknown, found: Unknown, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Note that a text is split in two parts at least; return the parts if there are exactly two."""
    given = {**dict(zip(("sep", "maxsplit"), args, strict=False)), **kwargs}
    separator, most = given.get("sep"), given.get("maxsplit", -1)
    if type(separator) is not str or most == 0 or not run.has_part(text, separator):
        return None
    if most == 1:
        return [run.unknown(text, holds="text", is_safe=True) for _ in range(2)]
    run.note_key(found, 1)
    return None


_BRACKETS = {"{": "}", "[": "]"}


def _placed(found: Unknown, text: Unknown, name: str, args: Arguments) -> Unknown:
    """Note of a number that it is the place of a bracket."""
    if name in _PLACES and len(args) == 1 and type(args[0]) is str and args[0] in (*_BRACKETS, *_BRACKETS.values()):
        found.of = BracketPlace(text, args[0], name)
    return found


_PLACES = words("find rfind index rindex")


def _keeps_opening(bracket: str, name: str, args: Arguments) -> bool:
    """Whether the result of a method, but for white space, begins with the bracket with which the text does."""
    if name == "replace" and len(args) == 2:
        return bracket not in args[0] and bool(args[0].strip() or not args[1].strip())
    return name in ("strip", "lstrip", "rstrip") and not args


def opening_between(text: Unknown, at: slice) -> str | None:
    """Return the bracket with which `text[at]` begins unless it is no JSON, by the places in `at`; None if unknown.

    `text[text.find("{") : text.rfind("}") + 1]` is "" or "}" where there is no "{".
    """
    start, end = (each.of if type(each) is Unknown else None for each in (at.start, at.stop))
    if at.step is not None or type(start) is not BracketPlace or start.is_behind or start.text is not text:
        return None
    if start.bracket not in _BRACKETS:
        return None
    is_end = type(end) is BracketPlace and end.text is text and end.bracket == _BRACKETS[start.bracket]
    return start.bracket if is_end or start.name in ("index", "rindex") else None
