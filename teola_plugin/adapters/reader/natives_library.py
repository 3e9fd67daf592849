"""Handlers of functions of the standard library."""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import copy
import datetime
import decimal
import fractions
import hashlib
import html
import json
import logging
import math
import operator
import os
import pprint
import random
import re
import secrets
import statistics
import string
import textwrap
import time
import traceback
import typing
import urllib.parse
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.handlers import noted_by
from teola_plugin.adapters.reader import (
    amounts,
    bounds,
    classes,
    contexts,
    days,
    foreign,
    heap,
    methods,
    natives_files,
    operators,
    outlets,
    regexes,
    taking,
    texts,
)
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.natives_builtins import shows
from teola_plugin.adapters.reader.table import (
    Aware,
    called,
    gives,
    handled,
    is_text,
    kind_of,
    known,
    reads,
    register,
    require_no_decimals,
    require_no_wait,
    require_order,
    unknown_atom,
    unknown_number,
    unknowns,
)
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Handler,
    Lazy,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
)

# --- readers of plain values -----------------------------------------------------------------------------------------

_COLLECTING: tuple[Callable[..., Any], ...] = (
    math.fsum, math.prod, statistics.mean, statistics.median, statistics.median_low, statistics.median_high,
    statistics.mode, statistics.multimode, statistics.stdev, statistics.pstdev, statistics.variance,
    statistics.pvariance, statistics.fmean, statistics.harmonic_mean,
)  # fmt: skip
_READING: tuple[Callable[..., Any], ...] = (
    math.acos, math.asin, math.atan, math.atan2, math.ceil, math.copysign, math.cos, math.degrees, math.dist, math.exp,
    math.fabs, math.floor, math.fmod, math.gcd, math.hypot, math.isclose, math.isfinite, math.isinf, math.isnan,
    math.isqrt, math.lcm, math.log, math.log10, math.log1p, math.log2, math.modf, math.pow, math.radians, math.sin,
    math.sqrt, math.tan, math.tanh, math.trunc,
    textwrap.dedent, textwrap.indent, textwrap.shorten,
    string.capwords, ast.literal_eval, binascii.hexlify, binascii.unhexlify,
    base64.b64encode, base64.b64decode, base64.urlsafe_b64encode, base64.urlsafe_b64decode,
    os.path.basename, os.path.dirname, os.path.join, os.path.normpath, os.path.split, os.path.splitext,
    os.path.isabs, os.path.commonprefix,
    urllib.parse.quote, urllib.parse.quote_plus, urllib.parse.unquote, urllib.parse.unquote_plus,
    urllib.parse.urljoin, urllib.parse.parse_qs, urllib.parse.parse_qsl,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, datetime.date.fromisoformat,
    datetime.datetime.fromisoformat, datetime.datetime.strptime, datetime.datetime.combine, datetime.time.fromisoformat,
    datetime.datetime.fromtimestamp, datetime.date.fromtimestamp,
    uuid.UUID, hashlib.md5, hashlib.sha1, hashlib.sha256,
)  # fmt: skip


def _exponent(run: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse exponents of four digits or more: a short text may stand for a very large number."""
    for each in (*args, *kwargs.values()):
        if type(each) is str and re.search(r"[eE][+-]?\d{4,}", each.replace("_", "")):
            raise Barrier("it computes a very large number")


def _environment(run: Any, *args: Any, **kwargs: Any) -> None:
    run.environment()


_DIGITS = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)


def _exact(run: Any, value: Any = "0", *args: Any, **kwargs: Any) -> None:
    """Allow a Decimal of a plain number, which does not depend on the context."""
    _exponent(run, value)
    if args or kwargs or type(value) not in (str, int) or (type(value) is str and not _DIGITS.fullmatch(value)):
        raise Barrier("it makes a Decimal, by the context of its thread")


def _without_decimals(run: Any, *args: Any, **kwargs: Any) -> None:
    require_no_decimals(*(each for held in args if type(held) in (list, tuple) for each in held))


def _texts_given(run: Any, *args: Any, **kwargs: Any) -> None:
    for each in (*args, *kwargs.values()):
        if type(each) is str:
            bounds.characters(run, len(each))
            run.tick(len(each) // 100)
        if type(each) is int and abs(each) > 1_000_000:
            raise Barrier("it formats with a great width")


def _in_order(run: Any, *args: Any, **kwargs: Any) -> None:
    require_order(run, *texts.inside([args, kwargs]))


# --- effects, and changing values-------------------------------------------------------------------------------------

_LEVELS = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING,
    "error": logging.ERROR, "exception": logging.ERROR, "critical": logging.CRITICAL, "log": None,
}  # fmt: skip
_OF_LOGGING = frozenset(["exc_info", "stack_info", "stacklevel", "extra"])
_OF_RECORDS = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}


def _logs(level: int | None, *, is_method: bool) -> Handler:
    """Handle a function that logs; `level`: None if the first argument is the level."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        logger, args = (args[0], args[1:]) if is_method else (run.load(logging.root), args)
        held = logger.held if type(logger) is Opaque else None
        at, args = (level, args) if level is not None else (args[0] if args else None, args[1:])
        if not args and "msg" not in kwargs:
            raise TypeError("missing 1 required positional argument: 'msg'")
        held = held.logger if type(held) is logging.LoggerAdapter else held
        is_certain, is_caught = outlets.logs(held, at if type(at) is int else None)
        users = outlets.users_hearing(held) if is_certain else []
        if not run.heard.issuperset(map(id, users)):
            run.heard.update(noted_by(users))
        extra = kwargs.get("extra")
        is_plain = extra is None or (type(extra) is dict and extra.keys().isdisjoint(_OF_RECORDS))
        if not (is_certain and is_plain and type(at) is int and kwargs.keys() <= _OF_LOGGING):
            run.raises()
        if not is_caught:
            _formatted(run, *args)
        elif any(map(_runs_shown, texts.inside(list(args)))) or any(map(_is_used, kwargs.values())):
            run.raises()

    return handle


def _is_used(value: Any) -> bool:
    """Whether an option is a foreign object whose code may run, such as `__index__` or `__bool__`; no error has any."""
    return type(value) is Opaque and not foreign.is_kind_of(value.held, BaseException)


def _runs_shown(value: Any) -> bool:
    """Whether converting a foreign object to text runs code of the program, which may change something."""
    return type(value) is Opaque and not texts.is_class_shown(type(value.held))


def _formatted(run: Any, message: Any = "", *args: Any) -> None:
    """Format a record as logging does; a handler may raise if formatting fails."""
    shows(run, message, *args)
    if not args:
        return
    try:
        operators.binary(run, "%", message, args[0] if len(args) == 1 and type(args[0]) is dict and args[0] else args)
    except (Exception, Barrier, Undecided):
        run.raises()


def _warn(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    shows(run, *args)
    if _is_used(kwargs.get("stacklevel")):
        run.raises()
    category = args[1] if len(args) > 1 else kwargs.get("category")
    held: Any = UserWarning if category is None else category.held if type(category) is Opaque else None
    is_known = foreign.is_class(held) and facts_of(held).kind == "exception" and foreign.is_subtype(held, Warning)
    if not (args and is_text(args[0]) and is_known and outlets.warns(held)):
        run.raises()


def _error_text(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the unknown text of the error that is handled, whose `__str__` may raise: it is caught."""
    if args or kwargs:
        raise Barrier("it shows an error in another way than by default")
    return run.unknown(holds="text", is_safe=True)


def _print_error(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    _error_text(run, args, kwargs)
    if not outlets.prints([None], "stderr"):
        run.raises()


def _get_logger(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return an existing logger: making a logger would be an effect."""
    run.require_known(*args, *kwargs.values())
    name = args[0] if args else kwargs.get("name")
    if name is None:
        return run.load(logging.root)
    found = logging.root.manager.loggerDict.get(name) if type(name) is str else None
    if type(found) is not logging.Logger:
        raise Barrier("it makes a logger", hint="make it at the top of the module")
    return run.load(found)


def _pretty_print(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 or kwargs.keys() - {"indent", "width", "depth", "compact", "sort_dicts"}:
        raise Barrier("it calls pprint() in an unusual way")
    known(run, *kwargs.values())
    if any(type(each) not in (int, bool, type(None)) or each == 0 for each in kwargs.values()):
        run.raises()
    shows(run, *args)


def _sleep(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if args and type(args[0]) in (int, float) and args[0] < 0:
        raise ValueError("sleep length must be non-negative")
    require_no_wait(run, args[0] if args else kwargs.get("secs"))


def _has_no_arguments(run: Any, args: Arguments) -> bool:
    return not args


def _random(holds: str | type, is_safe: Callable[[Any, Arguments], bool] = _has_no_arguments) -> Handler:
    """Handle functions with a different value each time. `is_safe`: whether positional arguments raise for sure not."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        given = [*args, *kwargs.values()]
        return run.unknown(*given, holds=holds, is_safe=not kwargs and is_safe(run, args))

    return handle


def _is_length(run: Any, args: Arguments) -> bool:
    return len(args) == 1 and type(args[0]) is int and args[0] in range(10_000)


def _is_length_if_any(run: Any, args: Arguments) -> bool:
    return not args or _is_length(run, args)


def _is_one_text(run: Any, args: Arguments) -> bool:
    return len(args) == 1 and type(args[0]) is str and args[0].isascii() and args[0].isprintable()


def _are_numbers(run: Any, args: Arguments) -> bool:
    return len(args) == 2 and all(type(each) in (int, float) and abs(each) < 1e9 for each in args)


def _drawn(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the unknown part of `random.sample`, which raises where fewer are there."""
    count: Any = kwargs.get("k", args[1] if len(args) == 2 else None)
    is_usual = len(args) + len(kwargs) == 2 and len(args) > 0 and {*kwargs} <= {"k"}
    is_safe = is_usual and type(count) is int and count >= 0 and _has_at_least(run, args[0], count)
    return run.unknown(*args, *kwargs.values(), is_safe=is_safe)


def _drawn_again(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the unknown picks of `random.choices`, which raises where nothing is there."""
    is_safe = len(args) == 1 and {*kwargs} <= {"k"} and type(kwargs.get("k", 1)) is int
    return run.unknown(*args, *kwargs.values(), is_safe=is_safe and _has_at_least(run, args[0], 1))


def _has_at_least(run: Any, sequence: Any, count: int) -> bool:
    return type(sequence) in (list, tuple, str, range) and not run.is_tainted(sequence) and len(sequence) >= count


def _seed(run: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
    if kwargs or len(args) > 1 or any(type(each) not in (int, float, str, bytes, type(None)) for each in args):
        run.raises()


def _now(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the unknown time of day, with a zone if there is an argument."""
    given = [*args, *kwargs.values()]
    is_safe = len(given) <= 1 and all(type(each) in (datetime.timezone, type(None)) for each in given)
    found: Unknown = run.unknown(*given, holds=Aware if given else datetime.datetime, is_safe=is_safe)
    return days.present(found, given[0] if given else None) if is_safe else found


def _now_without_zone(zone: datetime.timezone | None) -> Handler:
    """Handle the present time in a zone, as a time that tells no zone."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        found: Unknown = run.unknown(*args, *kwargs.values(), holds=datetime.datetime, is_safe=not (args or kwargs))
        return days.present(found, zone)

    return handle


def _today(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    now = days.today() if not (args or kwargs) else None
    if now is not None:
        return now.date()
    found: Unknown = run.unknown(*args, *kwargs.values(), holds=datetime.date, is_safe=not (args or kwargs))
    return days.present(found, None)


def _time_text(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `time.strftime`."""
    is_known = len(args) == 1 and not kwargs
    text = days.shown(days.present(Unknown(), None), args[0]) if is_known else None
    return text or _random("any", _is_one_text)(run, args, kwargs)


def _chosen(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    known(run, *args)
    sequence = args[0] if args else ()
    if type(sequence) not in (list, tuple, str, range):
        raise Undecided
    holds = "text" if sequence and all(map(is_text, sequence)) else "any"
    return run.unknown(holds=holds, is_safe=bool(sequence))


def _between(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    is_safe = len(args) == 2 and all(type(each) is int for each in args) and args[0] <= args[1]
    holds = amounts.any_of(map(amounts.holds_of_number, args)) if is_safe else "int"
    return run.unknown(*args, holds=holds, is_safe=is_safe)


def _shuffled(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or type(args[0]) is not list:
        raise Barrier("it shuffles what is no list")
    run.touch(args[0])
    if len(args[0]) > 1:
        run.taint(args[0])


# --- json ------------------------------------------------------------------------------------------------------------


def _dumps(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs.get("cls") is not None:
        raise Barrier("it calls json.dumps() in an unusual way")
    named = dict(kwargs)
    if named.get("default") is not None:
        named["default"] = called(run, named["default"])
    run.require_known(*[value for name, value in named.items() if name != "default"])
    if type(named.get("indent")) is int and named["indent"] > 100:
        raise Barrier("it writes a very large text")
    if found := unknowns(run, args[0]):
        is_safe = all(is_text(each) or kind_of(each) == "texts" or unknown_number(each) for each in found)
        is_safe = is_safe and named.get("allow_nan", True) is True
        return run.unknown(*found, holds="text", is_safe=is_safe and _has_plain_shape(args[0]))
    run.require_known(*args)
    return json.dumps(*args, **named)


def _dump(run: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
    file = args[1] if len(args) > 1 else kwargs.get("fp")
    if len(args) > 2 or not natives_files.is_output(file):
        raise Barrier("it calls json.dump() in an unusual way")
    natives_files.write(run, file, _dumps(run, args[:1], {name: held for name, held in kwargs.items() if name != "fp"}))


def _has_plain_shape(value: Any, depth: int = 0) -> bool:
    """Whether json.dumps does not raise for the types in the value."""
    if depth > 20:
        return False
    if type(value) in (list, tuple):
        return all(_has_plain_shape(each, depth + 1) for each in value)
    if type(value) is dict:
        return all(type(key) is str and _has_plain_shape(each, depth + 1) for key, each in value.items())
    return type(value) in (str, int, bool, float, type(None), Unknown)


_HOOKS = ("object_hook", "object_pairs_hook", "parse_float", "parse_int", "parse_constant")


def _loads(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("cls") is not None:
        raise Barrier("it gives json.loads() a class")
    if len(args) == 1 and not kwargs and kind_of(args[0]) == "text":
        found = run.unknown(args[0], holds=amounts.JSON, error=json.JSONDecodeError)
        begins = heap.opening_of(args[0])
        if begins is None:
            return found
        each = heap.Each("text", found.sources, amounts.JSON)
        each = each if begins == "{" else heap.Each(amounts.JSON, found.sources)
        return run.taint_with({} if begins == "{" else [], each)
    known(run, *args)
    run.require_known(*args, *[value for name, value in kwargs.items() if name not in _HOOKS])
    named = {name: called(run, value) if name in _HOOKS else value for name, value in kwargs.items()}
    if args and type(args[0]) in (str, bytes):
        run.tick(1 + len(args[0]) // 200)
        bounds.items(run, len(args[0]))
    return json.loads(*args, **named)


# --- operator, copy --------------------------------------------------------------------------------------------------

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and_": "&",
    "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "matmul": "@",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "is_": "is", "is_not": "is not"}


def _two(operation: Callable[..., Any], symbol: str) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or kwargs:
            raise TypeError("it takes two arguments")
        return operation(run, symbol, *args)

    return handle


def _contains(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs:
        raise TypeError("contains takes two arguments")
    return operators.compare(run, "in", args[1], args[0])


def _operand(symbol: str) -> Handler:
    return lambda run, args, kwargs: operators.unary(run, symbol, *args)


def _item_getter(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not args or kwargs:
        raise TypeError("itemgetter takes items")

    def get(r: Any, given: Arguments, named: dict[str, Any]) -> Any:
        if len(given) != 1 or named:
            raise TypeError("it takes one argument")
        found = tuple(operators.subscript(r, given[0], each) for each in args)
        return found[0] if len(args) == 1 else found

    return handled(get, "an itemgetter")


def _attribute_getter(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not args or kwargs or not all(type(each) is str for each in args):
        raise TypeError("attrgetter takes names")

    def read(r: Any, value: Any, path: str) -> Any:
        for name in path.split("."):
            value = classes.attribute(r, value, name)
        return value

    def get(r: Any, given: Arguments, named: dict[str, Any]) -> Any:
        if len(given) != 1 or named:
            raise TypeError("it takes one argument")
        found = tuple(read(r, given[0], each) for each in args)
        return found[0] if len(args) == 1 else found

    return handled(get, "an attrgetter")


def _method_caller(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not args or type(args[0]) is not str:
        raise TypeError("methodcaller takes a name")
    name, rest = args[0], args[1:]

    def get(r: Any, given: Arguments, named: dict[str, Any]) -> Any:
        if len(given) != 1 or named:
            raise TypeError("it takes one argument")
        if methods.has_method(type(given[0]), name):
            return methods.method(r, given[0], name, rest, kwargs)
        if type(given[0]) is Unknown:
            return methods.unknown_method(r, given[0], name, rest, kwargs)
        return call(r, classes.attribute(r, given[0], name), rest, kwargs)

    return handled(get, "a methodcaller")


def _copied(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise TypeError("copy takes one argument")
    value = args[0]
    if type(value) is Unknown:
        is_safe = kind_of(value) not in ("any", amounts.JSON)  # perhaps nested too deeply
        return value if unknown_atom(value) else run.unknown(value, holds=value.holds, is_safe=is_safe)
    known(run, value)
    if isinstance_of(value, Opaque) or type(value) is Lazy:
        raise Barrier("it copies an object that is no plain data")
    return copy.copy(value)


def _deep_copied(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise Barrier("it calls deepcopy() in an unusual way")
    try:
        run.require_known(args[0])
    except Undecided:
        return _deep_copy(run, args[0], {})
    return copy.deepcopy(args[0])


def _deep_copy(run: Any, value: Any, made: dict[int, Any]) -> Any:
    """Return a deep copy of a value with unknown parts."""
    kind = type(value)
    if id(value) in made:
        return made[id(value)]
    if kind is Unknown:
        return _copied(run, (value,), {})
    known(run, value)
    run.tick()
    if kind is list:
        new: Any = made.setdefault(id(value), [])
        new.extend(_deep_copy(run, each, made) for each in value)
        return new
    if kind is dict:
        new = made.setdefault(id(value), {})
        for key, each in value.items():
            new[_deep_copy(run, key, made)] = _deep_copy(run, each, made)
        return new
    if kind is tuple:
        parts = [_deep_copy(run, each, made) for each in value]
        return value if all(one is two for one, two in zip(value, parts, strict=True)) else tuple(parts)
    run.require_known(value)
    return copy.deepcopy(value)


def _cast(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    if len(given) != 2:
        raise TypeError("cast takes two arguments")
    return kwargs.get("val", given[-1])


# --- registration ----------------------------------------------------------------------------------------------------


def _register_contexts() -> None:
    register(contexts.null, contextlib.nullcontext)
    register(lambda run, args, kwargs: call(run, Opaque(contexts.suppressing), args, kwargs), contextlib.suppress)


def _register_effects() -> None:
    for name, level in _LEVELS.items():
        method = _logs(level, is_method=True)
        register(method, getattr(logging.Logger, name), getattr(logging.LoggerAdapter, name, None))
        register(_logs(level, is_method=False), getattr(logging, name))
    register(_get_logger, logging.getLogger)
    register(_warn, warnings.warn)
    register(_error_text, traceback.format_exc)
    register(_print_error, traceback.print_exc)
    register(_pretty_print, pprint.pprint, pprint.pp)
    register(_sleep, time.sleep)
    register(_now, datetime.datetime.now)
    register(_now_without_zone(datetime.UTC), datetime.datetime.utcnow)
    register(_now_without_zone(None), datetime.datetime.today)
    register(_today, datetime.date.today)
    register(_random(float), time.time, time.monotonic, time.perf_counter, time.process_time, random.random)
    register(_random(amounts.COUNT), time.time_ns, time.monotonic_ns, time.perf_counter_ns)
    register(_random("any"), time.localtime, time.gmtime)
    register(_random("text"), time.ctime, time.asctime)
    register(_random("any", _is_length), os.urandom)
    register(_random("any", _is_length_if_any), secrets.token_bytes)
    register(_random("text", _is_length_if_any), secrets.token_hex, secrets.token_urlsafe)
    register(_random(uuid.UUID), uuid.uuid4, uuid.uuid1)
    register(_random("any", _are_numbers), random.gauss, random.uniform)
    register(_time_text, time.strftime)
    register(_drawn, random.sample)
    register(_drawn_again, random.choices)
    register(_chosen, random.choice, secrets.choice)
    register(_between, random.randint)
    register(_shuffled, random.shuffle)
    register(_seed, random.seed)


def _register_readers() -> None:
    for function in _COLLECTING:
        register(reads(function, collects=taking.number, size=_without_decimals), function)
    for function in _READING:
        register(reads(function, size=_texts_given), function)
    register(reads(urllib.parse.urlencode, size=_in_order), urllib.parse.urlencode)
    register(reads(os.getenv, size=_environment), os.getenv)
    register(reads(decimal.Decimal, size=_exact), decimal.Decimal)
    register(reads(fractions.Fraction, size=_exponent), fractions.Fraction)
    for function in (html.escape, html.unescape):
        register(_text_to_text(function), function)
    for name in ("match", "search", "fullmatch", "findall", "finditer", "split", "sub", "subn"):
        register(regexes.function(name), getattr(re, name))
    register(regexes.compiled, re.compile)
    register(regexes.escaped, re.escape)
    register(_wrapped(textwrap.wrap, "texts"), textwrap.wrap)
    register(_wrapped(textwrap.fill, "text"), textwrap.fill)
    register(_dumps, json.dumps)
    register(_dump, json.dump)
    register(_loads, json.loads)


def _text_to_text(function: Callable[..., Any]) -> Handler:
    read = reads(function, size=_texts_given)
    safe = gives("text", function)

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        is_text = len(args) == 1 and kind_of(args[0]) == "text"
        return (safe if is_text else read)(run, args, kwargs)

    return handle


def _wrapped(function: Callable[..., Any], holds: str) -> Handler:
    """Handle `textwrap.wrap` and `fill`, which raise nothing for any text if the width is a number above 0."""
    read = reads(function, size=_texts_given)

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        width = args[1] if len(args) == 2 else kwargs.get("width", 70)
        is_usual = 1 <= len(args) <= 2 and kwargs.keys() <= {"width"} and type(width) is int and width > 0
        if is_usual and len(args) + len(kwargs) <= 2 and kind_of(args[0]) == "text":
            return run.unknown(args[0], holds=holds, is_safe=True)
        return read(run, args, kwargs)

    return handle


def _register_operators() -> None:
    for name, symbol in _SYMBOLS.items():
        register(_two(operators.binary, symbol), getattr(operator, name))
    for name, symbol in (("iadd", "+"), ("isub", "-"), ("imul", "*"), ("ior", "|"), ("iand", "&")):
        register(_two(operators.in_place, symbol), getattr(operator, name))
    for name, symbol in _COMPARISONS.items():
        register(_two(operators.compare, symbol), getattr(operator, name))
    for name, symbol in (("neg", "-"), ("pos", "+"), ("invert", "~"), ("not_", "not")):
        register(_operand(symbol), getattr(operator, name))
    register(_contains, operator.contains)
    register(lambda run, args, kwargs: operators.subscript(run, *args), operator.getitem)
    register(lambda run, args, kwargs: operators.truth(run, *args), operator.truth)
    register(_item_getter, operator.itemgetter)
    register(_attribute_getter, operator.attrgetter)
    register(_method_caller, operator.methodcaller)
    register(_copied, copy.copy)
    register(_deep_copied, copy.deepcopy)
    register(_cast, typing.cast)


_register_contexts()
_register_effects()
_register_readers()
_register_operators()
