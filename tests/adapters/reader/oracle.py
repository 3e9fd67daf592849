"""Compares what the reader's handlers give with what CPython does."""

from __future__ import annotations

import copy
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from teola_plugin.adapters.reader import amounts, calls, methods
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Lazy, Opaque, Stalled, Undecided, Unknown

Outcome = tuple[str, Any]
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def _deep(value: Any) -> Any:
    """A deep copy, but of `Opaque`."""
    return value if isinstance(value, Opaque) else copy.deepcopy(value)


def new_run() -> Run:
    return Run(Nobody(), operations=10_000_000)


def shape(value: Any, depth: int = 0) -> Any:
    """A value with its types, so that 1, 1.0 and True differ, and -0.0 and 0.0; at most 50 elements of an iterator."""
    kind = type(value)
    if kind in (list, tuple) or kind in VIEWS:
        return kind.__name__, [shape(each, depth + 1) for each in value]
    if kind in (set, frozenset):
        return kind.__name__, sorted(map(repr, value))
    if isinstance(value, dict):
        return kind.__name__, [(shape(key), shape(each)) for key, each in value.items()]
    if kind is Lazy or (isinstance(value, Iterator) and not isinstance(value, Unknown | Opaque)):
        return "iterator", [shape(each) for _, each in zip(range(50), value, strict=False)]
    return kind.__name__, repr(value)


def outcome(act: Callable[[], Any]) -> Outcome:
    """What a call comes to: its value, or the type of what it raised."""
    try:
        return "value", shape(act())
    except Barrier as e:
        return "barrier", e.what
    except Undecided:
        return "undecided", None
    except Exception as e:
        return "error", type(e).__name__


def both(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Outcome, Outcome]:
    """The outcomes of calling a function: of CPython, and of the reader."""
    given = tuple(map(_deep, args)), {name: _deep(each) for name, each in kwargs.items()}
    native = outcome(lambda: function(*given[0], **given[1]))
    run = new_run()
    given = tuple(map(_deep, args)), {name: _deep(each) for name, each in kwargs.items()}
    read = outcome(lambda: calls.call(run, Opaque(function), given[0], given[1]))
    return native, read


def both_methods(value: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Outcome, Outcome]:
    """The same for a method, with what becomes of the object."""
    mine, theirs = copy.deepcopy((value, args, kwargs)), copy.deepcopy((value, args, kwargs))
    native = outcome(lambda: (getattr(mine[0], name)(*mine[1], **mine[2]), mine[0]))
    run = new_run()
    read = outcome(lambda: (methods.method(run, theirs[0], name, theirs[1], theirs[2]), theirs[0]))
    return native, read


def agree(native: Outcome, read: Outcome) -> bool:
    """They are the same, or the reader leaves it alone."""
    return native == read or read[0] == "barrier"


# --- values that are not known ----------------------------------------------------------------------------------------

SAMPLES: dict[str, tuple[Any, ...]] = {
    "text": ("", "a", "abc", "12", "x y", "{", "%"), "number": (0, 1, -3, 2.5, 10**20, 10**400, 1e300),
    "int": (0, 1, -3, 10**400), "int64": (0, 1, -3, 2**64 - 1), "count64": (0, 1, 2**64 - 1),
    "real64": (0.0, -2.5, 1e-300, 1e19), "number64": (0, -1.5, 2**64 - 1, 1e19),
    "bool": (True, False), "mixed": (0, 2.5, -(2**900), 1e300, float("inf"), float("nan")),
    "texts": ([], ["a"], ["b", "c"]), "any": (None, 1, "a", [1], {"a": 1}),
}  # fmt: skip
"""What an unknown value may turn out to be."""


def filled(value: Any, hole: Unknown, sample: Any) -> Any:
    """A deep copy in which the sample stands for the unknown value."""
    if value is hole:
        return copy.deepcopy(sample)
    if type(value) in (list, tuple, deque):
        return type(value)([filled(each, hole, sample) for each in value])
    if type(value) is dict:
        return {key: filled(each, hole, sample) for key, each in value.items()}
    return copy.deepcopy(value)


def holds_right(holds: Any, value: Any) -> bool:
    """Whether what an unknown value is said to hold is true of a value."""
    kinds: dict[Any, Any] = {
        "text": str,
        "list": list,
        "bool": bool,
        "any": object,
        "json": str | int | float | list | dict | None,
        float: float,
        "match": re.Match | None,
    }
    if holds != "bool" and (parts := amounts.parts_of(holds)) is not None:
        is_kind = isinstance(value, {"int": int, "count": int, "real": float}.get(parts[0], int | float))
        is_kind = is_kind and (parts[0] != "mixed" or type(value) is float or abs(value) < 2**960)
        is_kind = is_kind and (parts[0] != "count" or value >= 0)
        return is_kind and (parts[1] is None or -(2 ** parts[1]) < value < 2 ** parts[1])
    if holds == "texts":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, kinds[holds])


def fits(run: Run, ours: Any, native: Any, hole: Unknown, sample: Any) -> bool:
    """Whether a value of the reader's says nothing that is wrong of CPython's."""
    if ours is hole:
        ours = sample
    if type(ours) is Unknown:
        return holds_right(ours.holds, native) and (bool(native) or not ours.is_true)
    if run.is_unknown(ours):
        return True
    if type(ours) is Lazy:
        try:
            ours = list(itertools.islice(ours, 30))
        except (Undecided, Barrier, Stalled):
            return True
        except Exception as e:
            return outcome(lambda: list(itertools.islice(native, 30))) == ("error", type(e).__name__)
        native = list(itertools.islice(native, 30))
    if type(ours) in VIEWS:
        ours, native = list(ours), list(native)
    if type(ours) is not type(native):
        return False
    if type(ours) in (list, tuple, deque):
        return len(ours) == len(native) and all(
            fits(run, one, two, hole, sample) for one, two in zip(ours, native, strict=True)
        )
    if isinstance(ours, dict):
        same = list(map(shape, ours)) == list(map(shape, native))
        return same and all(fits(run, ours[key], native[key], hole, sample) for key in ours)
    return bool(shape(ours) == shape(native))


def judge_unknown(
    act: Callable[[Run, Any], Any], native: Callable[[Any], Any], given: Any, hole: Unknown
) -> tuple[str, str]:
    """What the reader made of a value that is not known, and what is wrong with that ("" if nothing is)."""
    run = new_run()
    try:
        ours = act(run, given_copy := rebuilt(given, hole))
    except (Undecided, Barrier, Stalled) as e:
        return type(e).__name__, ""
    except Exception as e:
        return _judge_error(e, native, given, hole)
    how = "value" if not run.gates else "may raise"
    for sample in SAMPLES[str(hole.holds)]:
        args = filled(given, hole, sample)
        try:
            theirs = native(args)
        except Exception as e:
            if not run.gates and type(ours) is not Lazy:
                return how, f"{sample!r} raises {type(e).__name__}"
            continue
        if type(ours) is Lazy:
            return how, ""  # used up once: what comes out is judged by its own test
        if not fits(run, ours, theirs, hole, sample):
            return how, f"{sample!r} gives {theirs!r:.80}"
        if not _left_right(run, given_copy, args, hole, sample):
            return how, f"{sample!r} leaves {args!r:.80}"
    return how, ""


def _left_right(run: Run, given: Any, args: Any, hole: Unknown, sample: Any) -> bool:
    """What the arguments hold afterwards; the unknown one may have changed, and be another that holds the like."""
    return all(
        holds_right(hole.holds, two) if one is hole else fits(run, one, two, hole, sample)
        for one, two in zip(given, args, strict=True)
    )


def _judge_error(error: Exception, native: Callable[[Any], Any], given: Any, hole: Unknown) -> tuple[str, str]:
    for sample in SAMPLES[str(hole.holds)]:
        theirs = outcome(lambda sample=sample: native(filled(given, hole, sample)))  # type: ignore[misc]
        if theirs != ("error", type(error).__name__):
            return "error", f"{sample!r} gives {theirs}, the reader raises {type(error).__name__}"
    return "error", ""


def rebuilt(value: Any, hole: Unknown) -> Any:
    """A deep copy with the same unknown value."""
    if value is hole:
        return hole
    if type(value) in (list, tuple, deque):
        return type(value)([rebuilt(each, hole) for each in value])
    if type(value) is dict:
        return {key: rebuilt(each, hole) for key, each in value.items()}
    return copy.deepcopy(value)


def with_hole(value: Any, hole: Unknown, chance: Any) -> Any:
    """The value with the unknown one in the place of one of its parts, or of all of it."""
    if type(value) in (list, tuple) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return type(value)([with_hole(e, hole, chance) if i == at else e for i, e in enumerate(value)])
    if type(value) is dict and value and chance.random() < 0.7:
        at = chance.choice(list(value))
        return {key: with_hole(each, hole, chance) if key == at else each for key, each in value.items()}
    return hole
