"""Regular expressions: functions of `re` and methods of patterns, with limits on the time."""

from __future__ import annotations

import re
from typing import Any

from teola_plugin.adapters.reader import bounds
from teola_plugin.adapters.reader.table import called, kind_of, known, lazy
from teola_plugin.adapters.reader.values import Arguments, Barrier, Handler, Opaque, Undecided, Unknown, isinstance_of

_FLAGS_AT = {"match": 2, "search": 2, "fullmatch": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4, "subn": 4}
_ANCHORED = ("match", "fullmatch")


def pattern_method(run: Any, pattern: re.Pattern[Any], name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call a method of a compiled pattern."""
    text_at = 1 if name in ("sub", "subn") else 0
    if len(args) <= text_at or isinstance_of(args[text_at], Opaque):
        raise Barrier(f"it calls {name} of a pattern in an unusual way")
    text = args[text_at]
    rest = (*args[text_at + 1 :], *kwargs.values())
    known(run, *rest)
    run.require_known(*rest)
    if type(text) is Unknown:
        return _unknown_text(run, pattern, name, args[:text_at], text, rest)
    known(run, *args)
    if type(text) in (str, bytes) and type(text) is type(pattern.pattern):
        bounds.matching(run, pattern, text, is_anchored=name in _ANCHORED)
    if text_at:
        return _substituted(run, pattern, name, args, kwargs)
    found = getattr(pattern, name)(*args, **kwargs)
    return lazy(run, found) if name == "finditer" else found


def _substituted(run: Any, pattern: re.Pattern[Any], name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    new, text = args[0], args[1]
    if type(text) not in (str, bytes):
        return getattr(pattern, name)(*args, **kwargs)  # raises a TypeError
    if type(new) in (str, bytes):
        bounds.characters(run, (len(text) + 1) * (1 + len(new) + len(text) * ("\\" in str(new))) if len(new) else 0)
        return getattr(pattern, name)(*args, **kwargs)
    replace = called(run, new)
    size = 0

    def replaced(match: re.Match[Any]) -> Any:
        nonlocal size
        made = replace(match)
        if type(made) not in (str, bytes):
            if type(made) is Unknown:
                raise Undecided
            raise TypeError("expected str")
        size += len(made)
        bounds.characters(run, size)
        return made

    return getattr(pattern, name)(replaced if callable(replace) else replace, *args[1:], **kwargs)


def _unknown_text(run: Any, pattern: re.Pattern[Any], name: str, new: Arguments, text: Unknown, rest: Arguments) -> Any:
    is_text = kind_of(text) == "text" and type(pattern.pattern) is str
    is_text = is_text and all(type(each) is int for each in rest)
    if name in ("sub", "subn"):
        is_safe = is_text and type(new[0]) is str and "\\" not in new[0]
        return run.unknown(text, holds="text" if name == "sub" else "any", is_safe=is_safe)
    if name in ("split", "findall"):
        is_texts = pattern.groups == 0 or (name == "findall" and pattern.groups == 1)
        return run.unknown(text, holds="texts" if is_texts else "any", is_safe=is_text)
    found: Unknown = run.unknown(text, holds="any" if name == "finditer" else "match", is_safe=is_text)
    found.of = pattern
    return found


def unknown_match_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Call a method of an unknown match, which may be None."""
    if name == "groups" and not args and not kwargs and run.is_true(value):
        return tuple(_group_of(run, value, number) for number in range(1, value.of.groups + 1))
    number = _group(value.of, args[0] if args else 0) if len(args) < 2 and not kwargs else None
    if name != "group" or number is None:
        raise Undecided
    return _group_of(run, value, number)


def _group_of(run: Any, value: Unknown, number: int) -> Any:
    """Return a group of an unknown match: a text, or None for one that need not take part."""
    holds = "text" if number in bounds.groups_of(value.of) else "any"
    found = run.unknown(value, holds=holds, is_safe=run.is_true(value), error=AttributeError)
    if holds == "text":
        found.of = bounds.opening_of(value.of, number) or None
    return found


def _group(pattern: re.Pattern[Any], name: Any) -> int | None:
    """Return the number of a group of the pattern; None if there is none."""
    if type(name) is str:
        return pattern.groupindex.get(name)
    return name if type(name) is int and 0 <= name <= pattern.groups else None


def function(name: str) -> Handler:
    """Handle `re.<name>(pattern, ...)`."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        given = dict(kwargs)
        flags_at = _FLAGS_AT[name]
        names = ["pattern", *(["repl"] if "sub" in name else []), "string"]
        while len(args) < len(names) and names[len(args)] in given:
            args = (*args, given.pop(names[len(args)]))
        if len(args) < len(names) or len(args) > flags_at + 1:
            raise Barrier(f"it calls re.{name} in an unusual way")
        flags = args[flags_at] if len(args) > flags_at else given.pop("flags", 0)
        pattern = compiled(run, (args[0], flags), {})
        return pattern_method(run, pattern, name, tuple(args[1:flags_at]), given)

    return handle


def compiled(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `re.compile`."""
    known(run, *args)
    run.require_known(*args, *kwargs.values())
    if args and type(args[0]) in (str, bytes):
        if len(args[0]) > 2_000:
            raise Barrier("it compiles a long regular expression")
        run.tick(1 + len(args[0]) // 10)
    flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
    if isinstance(flags, int) and flags & re.DEBUG:
        raise Barrier("it prints a regular expression")
    return re.compile(*args, **kwargs)


def escaped(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `re.escape`."""
    if len(args) == 1 and kind_of(args[0]) == "text":
        return run.unknown(args[0], holds="text", is_safe=True)
    run.require_known(*args)
    return re.escape(*args, **kwargs)
