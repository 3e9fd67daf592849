"""Methods and fields of plain values, by closed lists: methods not listed are not read."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from teola_plugin.adapters.reader import amounts, bounds, ordering, regexes, taking, texts, unknowns
from teola_plugin.adapters.reader.amounts import holds_of, is_atom
from teola_plugin.adapters.reader.heap import ITEMS, KEYS, MAPPINGS, VALUES, Each, has_own_hash
from teola_plugin.adapters.reader.operators import stored
from teola_plugin.adapters.reader.table import (
    ORDERED_VIEWS,
    VIEWS,
    handled,
    is_collection,
    is_key,
    is_open_key,
    is_unknown,
    known,
    lazy,
    require_order,
    unknown_atom,
    walked,
    whole,
    words,
)
from teola_plugin.adapters.reader.values import Arguments, Barrier, Lazy, Opaque, Undecided, Unknown, isinstance_of

unknown_method = unknowns.unknown_method
unknown_field = unknowns.unknown_field

HASHES = tuple({type(make()) for make in (hashlib.md5, hashlib.sha1, hashlib.sha256)})


_DICT_READ = words("get items keys values copy")
_SET_READ = words("copy difference intersection issubset issuperset isdisjoint symmetric_difference union")
_DATE_READ = "isoformat strftime weekday isoweekday isocalendar replace timetuple toordinal ctime"

READ: dict[type, frozenset[str]] = {
    str: frozenset(texts.GIVES),
    bytes: words("decode hex split strip lstrip rstrip startswith endswith find join replace lower upper splitlines "
                  "count index rfind partition rpartition isdigit isalpha removeprefix removesuffix"),
    int: words("bit_length bit_count to_bytes as_integer_ratio conjugate"),
    bool: words("bit_length bit_count to_bytes as_integer_ratio conjugate"),
    float: words("is_integer as_integer_ratio hex conjugate"),
    complex: words("conjugate"),
    list: words("count index copy"),
    tuple: words("count index"),
    dict: _DICT_READ,
    OrderedDict: _DICT_READ,
    defaultdict: _DICT_READ,
    Counter: _DICT_READ | words("most_common elements total"),
    set: _SET_READ,
    frozenset: _SET_READ,
    deque: words("count index copy"),
    range: words("index count"),
    slice: words("indices"),
    re.Pattern: words("match search findall finditer fullmatch split sub subn"),
    re.Match: words("group groups groupdict span start end expand"),
    datetime.datetime: words(_DATE_READ + " date time timetz timestamp utctimetuple utcoffset tzname dst"),
    datetime.date: words(_DATE_READ),
    datetime.time: words("isoformat strftime replace utcoffset tzname dst"),
    datetime.timedelta: words("total_seconds"),
    datetime.timezone: words("utcoffset tzname dst"),
    decimal.Decimal: words("is_nan is_zero is_finite is_infinite is_signed as_tuple as_integer_ratio copy_abs"),
    Fraction: words("limit_denominator as_integer_ratio"),
    **dict.fromkeys(HASHES, words("hexdigest digest copy")),
    **dict.fromkeys((*VIEWS, *ORDERED_VIEWS), words("isdisjoint")),
}  # fmt: skip

_LIST_WRITE = "append extend insert pop remove clear reverse"
_DICT_WRITE = "update pop popitem setdefault clear"
WRITE: dict[type, frozenset[str]] = {
    list: words(_LIST_WRITE + " sort"),
    dict: words(_DICT_WRITE),
    OrderedDict: words(_DICT_WRITE + " move_to_end"),
    defaultdict: words(_DICT_WRITE),
    Counter: words(_DICT_WRITE + " subtract"),
    set: words("add discard remove pop clear update difference_update intersection_update "
                "symmetric_difference_update"),
    deque: words(_LIST_WRITE + " appendleft extendleft popleft rotate"),
    **dict.fromkeys(HASHES, words("update")),
}  # fmt: skip

FIELDS: dict[type, frozenset[str]] = {
    int: words("real imag numerator denominator"),
    bool: words("real imag numerator denominator"),
    float: words("real imag"),
    complex: words("real imag"),
    range: words("start stop step"),
    slice: words("start stop step"),
    deque: words("maxlen"),
    re.Pattern: words("pattern flags groups groupindex"),
    re.Match: words("string pos endpos lastindex lastgroup re"),
    datetime.datetime: words("year month day hour minute second microsecond tzinfo fold"),
    datetime.date: words("year month day"),
    datetime.time: words("hour minute second microsecond tzinfo fold"),
    datetime.timedelta: words("days seconds microseconds"),
    decimal.Decimal: words("real imag"),
    Fraction: words("numerator denominator real imag"),
    uuid.UUID: words("hex int bytes urn version variant fields time node"),
    **dict.fromkeys(HASHES, words("name digest_size block_size")),
}


def has_method(kind: type, name: str) -> bool:
    """Whether a plain type has a method that is read."""
    return (kind in READ and name in READ[kind]) or (kind in WRITE and name in WRITE[kind])


def field(run: Any, value: Any, name: str) -> Any:
    """Return an attribute of a value of a builtin type: data, or a bound method. Raises: AttributeError, Barrier."""
    kind = type(value)
    if has_method(kind, name):
        return handled(lambda run, args, kwargs: method(run, value, name, args, kwargs), name)
    known(run, value)
    if name in FIELDS.get(kind, ()):
        return _field_value(value, name)
    for each in type.__dict__["__mro__"].__get__(kind):
        if name in type.__dict__["__dict__"].__get__(each):
            raise Barrier(f"it uses {name} of a {kind.__name__}")
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def _field_value(value: Any, name: str) -> Any:
    found = getattr(value, name)
    return dict(found) if type(found) is types.MappingProxyType else found


# --- calls -----------------------------------------------------------------------------------------------------------


def method(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of `value.name(*args, **kwargs)`."""
    kind = type(value)
    if kind is str:
        return texts.text_method(run, value, name, args, kwargs)
    if kind in WRITE and name in WRITE[kind]:
        return _write(run, value, name, args, kwargs)
    if (found := run.got(value, name, args, kwargs)) is not None:
        return found[0]
    is_copied = name == "copy" and kind in (list, set) and not args and not kwargs
    if is_copied and run.is_tainted(value) and (each := run.each_of(value)) is not None:
        return run.taint_with(kind(), each)
    if run.is_tainted(value) and kind in MAPPINGS and (read := _of_dict(run, value, name, args, kwargs)) is not None:
        return read
    known(run, value)
    if name in ("items", "keys", "values") and kind in WRITE and not args and not kwargs:
        return getattr(value, name)()
    special = _SPECIAL.get((kind, name))
    if special is not None:
        return special(run, value, name, args, kwargs)
    if kind is re.Pattern:
        return regexes.pattern_method(run, value, name, args, kwargs)
    return _read(run, value, name, args, kwargs)


def _of_dict(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of reading a dict of unknown content; None for other methods."""
    each = run.each_of(value)
    if kwargs or each is None:
        return None
    if name in (KEYS, VALUES, ITEMS) and not args:
        return Unknown("any", run.sources(value), over=({"keys": KEYS, "values": VALUES, "items": ITEMS}[name], value))
    if name == "copy" and not args:
        made = defaultdict(value.default_factory) if type(value) is defaultdict else type(value)()
        return run.taint_with(made, each)
    is_new = name == "get" and len(args) == 2 and run.is_new(args[1])
    if is_new and (lists := run.lists_for(value, each, run.sources(args[0]))) is not None:
        _require_key(run, args[0])
        run.put_into(lists, args[1])
        return run.listed(lists, run.sources(value, *args))
    if name == "get" and len(args) in (1, 2) and is_key(args[0]):
        holds = _either(each.value, args[1] if len(args) == 2 else None)
        return run.unknown(value, *args, holds=holds, is_safe=True)
    if name == "most_common" and len(args) <= 1 and all(type(count) is int for count in args):
        is_safe = each.value is None or amounts.parts_of(each.value) is not None
        run.unknown(value, is_safe=is_safe)
        return run.list_of(Unknown("any", run.sources(value), over=(ITEMS, value)))
    return None


def _either(holds: str | type | None, default: Any) -> str | type:
    """Return the kind of a value of a dict, whose values are of one kind, or of a default."""
    found = amounts.any_of([holds_of(default)] if holds is None else [holds, holds_of(default)]) or "any"
    return found if is_atom(found) else "any"


def _read(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if type(value) in (set, frozenset, bytes, *VIEWS):
        check = taking.stops if name in ("isdisjoint", "issuperset") else taking.hashed
        args = tuple([whole(run, each, check if type(value) is not bytes else None) for each in args])
    if name == "index" and len(args) == 1 and not kwargs and unknown_atom(args[0]) and _are_atoms(value):
        return run.unknown(args[0], value, holds=amounts.COUNT, error=ValueError)
    known(run, *args)
    run.require_known(*args, *kwargs.values())
    if type(value) in (list, tuple, deque) and name in ("count", "index"):
        _comparable(run, value)
    if type(value) is bytes and name == "replace" and len(args) > 1 and type(args[0]) is type(args[1]) is bytes:
        bounds.characters(run, len(value) + value.count(args[0]) * len(args[1]))
    if type(value) in (int, bool) and name == "to_bytes" and args and type(args[0]) is int:
        bounds.characters(run, args[0])
    if hasattr(value, "__len__"):
        run.tick(1 + len(value) // 50)
    found = getattr(value, name)(*args, **kwargs)
    return run.keep_order(found, value, *args) if type(found) in (set, frozenset) else found


def _are_atoms(value: Any) -> bool:
    return type(value) in (list, tuple) and all(is_atom(holds_of(each)) for each in value)


def _comparable(run: Any, elements: Any) -> None:
    """Require known parts of the elements, since C compares the elements."""
    for each in elements:
        if type(each) is not Unknown and not isinstance_of(each, Opaque):
            run.require_known(each)


def _get(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if args and is_open_key(run, args[0]):
        is_safe = is_key(args[0]) and len(args) <= 2
        if is_safe and not value:
            return args[1] if len(args) == 2 else None
        each = run.each_of(value)
        holds = _either(each.value, args[1] if len(args) == 2 else None) if each is not None else "any"
        return run.unknown(args[0], value, *args[1:], holds=holds, is_safe=is_safe)
    run.require_known(*args[:1])
    return value.get(*args, **kwargs)


def _copy(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    bounds.items(run, len(value))
    made = value.copy(*args, **kwargs)
    return run.keep_order(made, value) if type(made) is set else made


def _elements(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    run.require_known(value)
    return lazy(run, value.elements(*args, **kwargs))


def _counted(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    run.require_known(value, *args)
    bounds.items(run, len(value))
    return getattr(value, name)(*args, **kwargs)


_Method = Callable[[Any, Any, str, Arguments, dict[str, Any]], Any]

_SPECIAL: dict[tuple[type, str], _Method] = {
    **{(kind, "get"): _get for kind in (dict, OrderedDict, defaultdict, Counter)},
    **{(kind, "copy"): _copy for kind in WRITE if kind not in HASHES},
    (Counter, "elements"): _elements,
    (Counter, "most_common"): _counted,
    (Counter, "total"): _counted,
}


# --- changes ---------------------------------------------------------------------------------------------------------


def _write(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Run a method that changes the value. If the change is unknown, the whole content is unknown from there on."""
    if type(value) in HASHES:
        raise Barrier("it changes a hash object", hint="give all of the data to the constructor")
    run.touch(value)
    run.escapes(value, *args, *kwargs.values())
    run.changes.changes(name, value, (args[1:] or (None,)) if name == "setdefault" else ())
    is_extended = name == "extend" and type(value) in (list, deque) and len(args) == 1 and not kwargs
    if is_extended and (type(args[0]) is Unknown or (is_collection(args[0]) and is_unknown(run, args[0]))):
        return taking.grow(run, value, args[0])
    if name == "update" and type(value) is dict and len(args) == 1 and not kwargs and _is_dict_to_come(args[0]):
        return run.taint(value)
    if type(value) in MAPPINGS and args and not kwargs and (own := run.each_of(value)) is not None:
        if name == "setdefault" and len(args) <= 2 and (is_open_key(run, args[0]) or is_unknown(run, value)):
            return _set_default(run, value, own, *args)
        if name == "update" and len(args) == 1 and (each := _updated(run, value, args[0], own)) is not None:
            run.taint_with(value, each)
            return None
    if is_unknown(run, value):
        return _write_unknown(run, value, name, args, kwargs)
    try:
        return _changed(run, value, name, args, kwargs)
    except Undecided:
        run.taint(value)
        raise


def _require_key(run: Any, at: Any) -> None:
    """Note that a key may have no hash. Raises: TypeError, Barrier."""
    if not is_key(at):
        taking.hashed(run, at)


def _set_default(run: Any, value: Any, each: Each, at: Any, default: Any = None) -> Any:
    """Return the result of `setdefault` where the key or the content of the dict is unknown."""
    _require_key(run, at)
    new = stored(run, value, at, default, each, is_new=run.is_new(default))
    run.taint_with(value, known_now := each.joined(new))
    run.note_key(value, at)
    if known_now.lists is not None:
        return run.listed(known_now.lists, run.sources(value, at))
    holds = known_now.value
    return run.unknown(value, at, default, holds=holds if is_atom(holds) else "any", is_safe=True)


def _updated(run: Any, value: Any, items: Any, own: Each) -> Each | None:
    """Return what is known of a dict updated by more items; None if the update may raise, or all items are known."""
    is_open = is_unknown(run, value) or is_unknown(run, items)
    new = run.each_of(items) if is_open and is_collection(items) else None
    if new is None:
        return None
    if type(value) is not Counter:
        return own.joined(new) if type(items) in MAPPINGS else None
    if type(items) in MAPPINGS:
        return None
    parts = ("count", None) if own.value is None else amounts.parts_of(own.value)
    if parts is None or parts[0] not in ("count", "int") or not (new.holds is None or is_atom(new.holds)):
        return None
    return own.joined(Each(new.holds, new.sources, parts[0]))  # of any size, as there may be any number


def _is_dict_to_come(value: Any) -> bool:
    return type(value) is Unknown and value.is_dict


def _write_unknown(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    kind = type(value)
    if name in ("append", "appendleft") and len(args) == 1 and not kwargs:
        run.gain(value, *args)
        return None
    if name in ("clear", "reverse") and not args and not kwargs:
        return None
    if name == "sort" and ordering.sorts_unknown(run, value, args, kwargs):
        return None
    if (each := run.each_of(value)) is not None and (done := _with_each(run, value, each, name, args, kwargs)):
        return done[0]
    if name in ("extend", "update") and len(args) == 1 and not kwargs:
        given = type(args[0])
        if given is kind or (name == "extend" and given is tuple):
            return None
    if name in ("add", "discard") and len(args) == 1 and (args[0] is None or is_atom(holds_of(args[0]))):
        return None
    check = taking.hashed if kind in (set, Counter) else taking.paired if isinstance_of(value, dict) else None
    for each in args:
        whole(run, each, check)
    return run.unknown(value, *args)


def _with_each(
    run: Any, value: Any, each: Each, name: str, args: Arguments, kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Return the result of a method, in a tuple, that leaves something known of the items; None for other methods."""
    run.taint(value)
    if kwargs or len(args) > 1 or isinstance_of(value, dict):
        return None
    if name == "pop" and type(value) is list and all(type(at) is int for at in args):
        run.taint_with(value, each)
        return (run.unknown(value, holds=each.holds or "any", error=IndexError),)
    if name == "discard" and is_atom(holds_of(args[0])):
        run.taint_with(value, each)
        return (None,)
    if name == "add" and is_atom(holds_of(args[0])):
        run.taint_with(value, each)
        run.gain(value, args[0])
        return (None,)
    if name in ("extend", "update") and type(value) is not dict:
        new = run.each_of(args[0]) if type(args[0]) is type(value) else None
        if name == "extend" and type(args[0]) is tuple:
            new = run.each_of(list(args[0]))
        if new is not None:
            run.taint_with(value, each.joined(new))
            return (None,)
    return None


def _changed(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    kind = type(value)
    if name == "sort":
        return _sort(run, value, args, kwargs)
    if name == "add" and len(args) == 1 and unknown_atom(args[0]) and not kwargs:
        each = run.each_of(value)
        run.taint_with(value, each)
        run.gain(value, args[0])
        return None
    if name in ("append", "appendleft"):
        run.tick()
        return getattr(value, name)(*args, **kwargs)
    if name == "insert" and len(args) == 2:
        known(run, args[0])
        return value.insert(*args, **kwargs)
    if name in ("extend", "extendleft") and len(args) == 1 and not kwargs:
        return getattr(value, name)(_elements_of(run, args[0]))
    if name == "setdefault" and args:
        run.require_known(args[0])
        return value.setdefault(*args, **kwargs)
    if name == "update" and kind not in (set, Counter):
        return _update(run, value, args, kwargs)
    if name == "pop" and kind in (dict, OrderedDict, defaultdict) and args:
        run.require_known(args[0])
        return value.pop(*args, **kwargs)
    if name == "remove" and kind in (list, deque):
        _comparable(run, value)
    if kind is Counter and name in ("update", "subtract"):
        run.require_known(value)
    given = tuple([whole(run, each, taking.hashed) for each in args]) if kind in (set, Counter) else args
    known(run, *given)
    run.require_known(*given, *kwargs.values())
    if kind is set:
        if name == "pop":
            require_order(run, value)
        if name not in ("add", "remove", "discard"):
            run.keep_order(value, value, *given)
        elif not all(map(has_own_hash, given)):
            run.forget_order(value)
    else:
        require_order(run, *given)
    return getattr(value, name)(*given, **kwargs)


def _elements_of(run: Any, value: Any) -> Any:
    """Return the elements to iterate while a container grows; types that C may treat specially are kept."""
    known(run, value)
    require_order(run, value)
    if isinstance_of(value, Opaque) or type(value) is Lazy:
        return walked(run, value)
    if hasattr(value, "__len__"):
        bounds.items(run, len(value))
    return value


def _update(run: Any, value: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
    known(run, *args)
    require_order(run, *args)
    if len(args) == 1 and not isinstance_of(args[0], dict):
        pairs = whole(run, args[0], taking.paired)
        if isinstance_of(pairs, Opaque):
            raise Barrier("it updates a dict with an object that is no plain data")
        if type(pairs) in (list, tuple):
            known(run, *pairs)
        args = (pairs,)
    if args and hasattr(args[0], "__len__"):
        bounds.items(run, len(args[0]))
    value.update(*args, **kwargs)


def _sort(run: Any, value: list[Any], args: Arguments, kwargs: dict[str, Any]) -> None:
    """Sort a list. As in CPython, the list is empty while the keys are computed."""
    if args or not kwargs.keys() <= {"key", "reverse"}:
        raise TypeError("sort() takes no such arguments")
    elements = value[:]
    value.clear()
    try:
        result = ordering.ordered(run, elements, kwargs)
    except BaseException:
        value[:] = elements
        run.taint(value)  # in an order that is not known
        raise
    value[:] = result
