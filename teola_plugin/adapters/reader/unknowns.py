"""Methods and fields of unknown values, by the kind of the later value."""

from __future__ import annotations

import dataclasses
import datetime
import re
import types
from collections.abc import Hashable
from typing import Any

from teola_plugin.adapters.reader import (
    amounts,
    arrays,
    dataframes,
    days,
    foreign,
    graphs,
    natives_pandas,
    ordering,
    regexes,
    texts,
)
from teola_plugin.adapters.reader.annotations import field_of
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import are_published, facts_of, is_stock_record_class, is_user_code
from teola_plugin.adapters.reader.pydantic_schemas import dumped_fields
from teola_plugin.adapters.reader.table import is_key, is_text, kind_of, may_be_shared, words
from teola_plugin.adapters.reader.values import (
    FOUND,
    Arguments,
    Barrier,
    BracketPlace,
    Stalled,
    Undecided,
    Unknown,
    type_name,
)

_FIELDS: dict[str, dict[str, str]] = {
    "message": {
        "content": "text", "tool_calls": "any", "invalid_tool_calls": "any", "response_metadata": "any",
        "additional_kwargs": "any", "usage_metadata": "any", "id": "any", "name": "any", "type": "text",
    },
    "document": {"page_content": "text", "metadata": "dict", "id": "any", "type": "text"},
    "found node": {
        "node": "text node", "score": "any", "text": "text", "metadata": "dict", "node_id": "text", "id_": "text",
    },
    "judgement": {"passing": "bool", "score": "real64", "feedback": "text"},
    "response": {"response": "text", "source_nodes": "found nodes", "metadata": "any"},
    "text node": {"text": "text", "metadata": "dict", "node_id": "text", "id_": "text"},
}  # fmt: skip
"""The fields of frameworks' objects; "dict": of a dict whose items are not known, "found nodes": of a list of these."""

CHANGING = words(
    "append extend insert pop remove clear reverse sort update popitem setdefault add discard "
    "appendleft extendleft popleft "
    "rotate move_to_end subtract difference_update intersection_update symmetric_difference_update"
)

_READING = frozenset(
    name
    for each in (str, bytes, int, float, list, tuple, dict, set, datetime.datetime, datetime.timedelta, re.Match)
    for name in dir(each)
) | words(
    "model_dump model_dump_json dict json model_copy pretty_repr pretty_print get_content get_text to_string "
    "to_messages"
)
"""Methods of values that only hold data: any other method may be a function of the program."""


def unknown_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of `value.name(*args, **kwargs)`."""
    if dataframes.is_table(value.holds):
        return natives_pandas.unknown_method(run, value, name, args, kwargs)
    if (own := _of_program(value, name)) is not None:
        if (known := graphs.method_of(value.holds, own)) is not None:
            return known(run, (value, *args), kwargs)
        run.raises(value.sources)
        if type(own) is staticmethod:
            return call(run, run.load(own.__func__), args, kwargs)
        if type(own) is not types.FunctionType:
            raise Stalled(f"it is not known what {name} does")
        return call(run, run.load(own), (value, *args), kwargs)
    if arrays.is_array(value):
        return arrays.method(run, value, name, args, kwargs)
    if (found := run.got(value, name, args, kwargs)) is not None:
        return found[0]
    if value.is_dict and name == "get" and len(args) in (1, 2) and type(args[0]) is str and not kwargs:
        return run.unknown(value, *args[1:], is_safe=True)
    if value.holds == amounts.JSON and name == "get" and len(args) in (1, 2) and not kwargs:
        is_plain = args[1:] in ((), (None,)) or amounts.is_plain(amounts.holds_of(args[1]))
        error = AttributeError if is_key(args[0]) else Exception
        return run.unknown(value, *args, holds=amounts.JSON if is_plain else "any", error=error)
    if name in CHANGING or name[:2] == "__":
        run.forget_truth(value)
    if value.of is FOUND and (stored := _stored_in_found(run, value, name, args, kwargs)) is not None:
        return stored[0]
    if name in CHANGING and may_be_shared(value):
        raise Barrier(f"it calls {name} of a value that is not known yet and may be another's")
    if kind_of(value) == "match":
        return regexes.unknown_match_method(run, value, name, args, kwargs)
    if kind_of(value) == "text":
        return texts.unknown_text_method(run, value, name, args, kwargs)
    if kind_of(value) == "texts":
        return _texts_method(run, value, name, args, kwargs)
    if kind_of(value) == "message" and name == "text" and not args and not kwargs:
        return run.unknown(value, holds="text", is_safe=True)
    if kind_of(value) in ("found node", "text node") and name == "get_content" and not args and not kwargs:
        return run.unknown(value, holds="text", is_safe=True)
    if kind_of(value) == "message" and name == "pretty_print" and not args and not kwargs:
        return None
    if kind_of(value) in texts.SAMPLES and name in _OF_SAMPLES:
        return _sampled(run, value, name, args, kwargs)
    if name == "model_dump" and not args and not kwargs and (fields := dumped_fields(value.holds)) is not None:
        run.raises(value.sources)
        return {each: run.unknown(value, holds=_dumped(value.holds, each), is_safe=True) for each in fields}
    if kind_of(value) == "any" and name not in _READING:
        raise Stalled(f"it is not known whose {name} it calls")
    raise Undecided


def _stored_in_found(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Return the result of a method that stores texts and numbers in a found document's metadata; None if not so."""
    if name == "setdefault" and len(args) == 2 and not kwargs and stores_in_found(run, value, *args):
        return (run.unknown(value, args[1], is_safe=True),)
    items = args[0] if len(args) == 1 else {}
    is_update = name == "update" and len(args) < 2 and type(items) is dict and not run.is_unknown(items)
    if is_update and all(map(_is_stored, items, items.values())) and all(map(is_key, kwargs.values())):
        run.store_in_found(value)
        return (None,)
    return None


def stores_in_found(run: Any, held: Any, at: Any, value: Any) -> bool:
    """Store a text or number in the metadata of a found document, whose items stay unknown. Returns whether it is."""
    is_found = type(held) is Unknown and held.of is FOUND and _is_stored(at, value)
    if is_found:
        run.store_in_found(held)
    return is_found


def _is_stored(at: Any, value: Any) -> bool:
    return is_text(at) and type(value) is not tuple and is_key(value)


def _of_program(value: Unknown, name: str) -> Any:
    """Return the value of the name in the value's later class, if the class is the program's."""
    holds: Any = value.holds
    found = foreign.in_mro(holds, name) if foreign.is_class(holds) else foreign.MISSING
    return found if found is not foreign.MISSING and is_user_code(name, found) else None


def _dumped(cls: Any, name: str) -> str:
    """Return the kind of a field after output: models become dicts."""
    holds = field_of(cls, name)
    return holds if isinstance(holds, str) else "any"


_TYPES: dict[str, type] = {"text": str, "texts": list, "list": list, "bool": bool}


def surely_has(run: Any, value: Unknown, name: str) -> bool:
    """Whether reading the attribute cannot raise."""
    kind = kind_of(value)
    if arrays.is_array(value):
        return arrays.has_method(name)
    if kind == "match":
        return run.is_true(value) and hasattr(re.Match, name)
    if kind in texts.SAMPLES:
        return hasattr(texts.SAMPLES[kind], name)
    if graphs.is_graph_class(value.holds):
        return graphs.method_of(value.holds, foreign.in_mro(value.holds, name)) is not None  # type: ignore[arg-type]
    return (value.is_dict and hasattr(dict, name)) or (kind in _TYPES and hasattr(_TYPES[kind], name))


def _texts_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if name == "sort" and ordering.sorts_unknown(run, value, args, kwargs):
        return None
    if name == "extend" and len(args) == 1 and not kwargs and (each := run.each_of(args[0])) and each.holds == "text":
        value.sources |= each.sources
        return None
    if kwargs or any(type(each) is Unknown for each in args if name not in ("append", "count")):
        if name in CHANGING:  # such as `insert` of a number
            value.holds = "any"
            value.sources |= run.sources(*args, *kwargs.values())
        raise Undecided
    if name == "copy" and not args:
        return run.unknown(value, holds="texts", is_safe=True)
    if name == "count" and len(args) == 1:
        return run.unknown(value, holds=amounts.COUNT, is_safe=True)
    if name == "append" and len(args) == 1:
        value.sources |= run.sources(args[0])
        if not is_text(args[0]):
            value.holds = "any"
        return None
    if name == "pop":
        error = IndexError if len(args) <= 1 and all(type(at) is int for at in args) else Exception
        return run.unknown(value, holds="text", error=error)
    if name in ("reverse", "clear") and not args:
        return None
    if name in CHANGING:
        value.holds = "any"
    raise Undecided


def unknown_field(run: Any, value: Unknown, name: str) -> Any:
    """Return `value.name`, without a call."""
    holds = value.holds
    if arrays.is_array(value) and (of_array := arrays.field(run, value, name)) is not None:
        return of_array
    if isinstance(holds, str):
        if (field := _FIELDS.get(holds, {}).get(name)) is not None:
            made = _kept_field(run, value, name, field)
            if (holds, field) == ("document", "dict"):
                made.of = FOUND
            return made
        if holds in _TYPES and not hasattr(_TYPES[holds], name):
            run.raises()
        raise Undecided
    if dataframes.is_table(holds):
        raise Undecided
    if kind_of(value) in texts.SAMPLES:
        return _sampled_field(run, value, name)
    if type(own := _of_program(value, name)) is property and own.fget is not None:
        return call(run, run.load(own.fget), (value,), {})
    if name in ("name", "value") and foreign.is_class(holds) and facts_of(holds).kind == "enum":
        members = [foreign.own_attributes(each) or {} for each in foreign.in_mro(holds, "_member_map_").values()]
        found = amounts.any_of(amounts.holds_of(each.get(f"_{name}_")) for each in members)
        if found is not None and amounts.is_atom(found):
            return run.unknown(value, holds=found, is_safe=True)
    declared = field_of(holds, name)
    if declared is None and (type_name(holds), name) == ("ChatMessage", "content") and is_stock_record_class(holds):
        declared = "any" if are_published(holds, [name]) else None
    if declared is None:
        raise Undecided
    return run.unknown(value, holds=declared, is_safe=True)


def _kept_field(run: Any, value: Unknown, name: str, kind: str) -> Unknown:
    """Return what stands for a field; for a text, the same as before until a store into some field."""
    if kind != "text" or run.is_beside_others:
        return _field(run.sources(value), kind)
    _, found = run.texts_of.setdefault((id(value), name), (value, _field(run.sources(value), kind)))
    return found  # type: ignore[no-any-return]


def _field(sources: frozenset[Hashable], kind: str) -> Unknown:
    if kind == "found nodes":
        return Unknown("list", sources, over=("found node",))
    found = Unknown("any" if kind == "dict" else kind, sources)
    found.is_dict = kind == "dict"
    return found


# --- values that behave alike ----------------------------------------------------------------------------------------

_OF_SAMPLES = words(
    "isoformat strftime date time timetz timestamp weekday isoweekday isocalendar ctime toordinal total_seconds "
    "utcoffset tzname"
)


def _holds_by(value: Any) -> str | type:
    """Return the kind of a result, by a sample of the result."""
    kind = type(value)
    if type_name(kind) in texts.SAMPLES:
        return kind
    return {str: "text", bool: "bool", int: "int128"}.get(kind, "any")  # such as the number of a UUID


def _sampled(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    run.require_known(*args, *kwargs.values())
    if (found := days.method(value, name, args, kwargs)) is not days.MISSING:
        return found
    sample = texts.SAMPLES[kind_of(value)]
    if not hasattr(sample, name):
        raise AttributeError(name)
    return run.unknown(value, holds=_holds_by(getattr(sample, name)(*args, **kwargs)), is_safe=True)


def _sampled_field(run: Any, value: Unknown, name: str) -> Any:
    if (known := days.field(value, name)) is not days.MISSING:
        return known
    found = getattr(texts.SAMPLES[kind_of(value)], name)
    if callable(found):
        raise Undecided
    return run.unknown(value, holds=_holds_by(found) if found is not None else "any", is_safe=True)


def arithmetic(run: Any, name: str, a: Any, b: Any) -> Unknown | None:
    """Return the result of an operation on nearby times and on numbers; None for other operands."""
    one, two = (kind_of(each) for each in (a, b))
    if one in ("datetime", "date") and type(b) is datetime.timedelta and name in ("+", "-"):
        present = days.shifted(a, b if name == "+" else -b)
        time: Unknown = run.unknown(a, holds=a.holds, is_safe=present is not None, error=OverflowError)
        time.of = present
        return time
    if one == two == "datetime" and name == "-" and a.holds is b.holds is datetime.datetime:
        return run.unknown(a, b, holds=datetime.timedelta, is_safe=True)  # type: ignore[no-any-return]
    if (of_json := amounts.computed_of_json(name, *map(amounts.holds_of, (a, b)))) is not None:
        return run.unknown(a, b, holds=of_json)  # type: ignore[no-any-return]
    if (found := amounts.computed(name, a, b)) is None:
        return None
    holds, is_safe = found
    if name in ("/", "//", "%") and not run.is_true(b):
        return run.unknown(a, b, holds=holds, error=ZeroDivisionError if is_safe else ArithmeticError)  # type: ignore[no-any-return]
    made: Unknown = run.unknown(a, b, holds=holds, is_safe=is_safe, error=OverflowError)
    if type(a) is Unknown and type(a.of) is BracketPlace and name == "+" and type(b) is int and b == 1:
        made.of = dataclasses.replace(a.of, is_behind=True)
    made.is_true = amounts.is_positive(name, a, b, (run.is_true(a), run.is_true(b)))
    return made
