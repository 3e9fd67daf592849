"""Uses of DataFrames and Series of the program's: rows, columns, items, methods, and what the program stores.

What the program stores (`df.loc[i, "answer"] = reply`) makes the column unknown to the whole reading; see changes.py.
Rows and columns may be views of the DataFrame, so the column is unknown in these, too.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from teola_plugin.adapters.reader import amounts, foreign
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.dataframes import (
    OfPandas,
    bar_of,
    class_of,
    is_plain_part,
    is_scalar,
    kind_in,
    lost_in,
)
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import words
from teola_plugin.adapters.reader.values import (
    CHANGED,
    Arguments,
    Barrier,
    Callee,
    Lazy,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)

KEPT_ROWS = 500
"""Rows that are made once for all evaluations."""

_TICKS_PER_ROW = 5

_PLACES = words("loc iloc at iat")
_FIELDS = {
    "DataFrame": words("columns index shape size empty"),
    "Series": words("index name shape size empty values"),
    "Index": words("size empty"),
}
_COMPUTING = {
    "DataFrame": words("to_dict keys"),
    "Series": words("to_dict tolist to_list unique dropna keys nunique get isna notna isnull notnull"),
    "Index": words("tolist to_list"),
    "array": words("tolist"),
}
_KEEPING = words("head tail copy")
"""Methods whose result holds the same columns, or the same part of one."""

# --- parts -----------------------------------------------------------------------------------------------------------


def _require_whole(run: Any, value: OfPandas) -> None:
    """Require that no part is changed. Raises: Undecided, Barrier."""
    lost = lost_in(run, value)
    if lost and (value.label is None or value.place):
        raise Barrier("it changes a DataFrame, and uses all columns")
    if value.label in lost:
        run.uses(CHANGED)
        raise Undecided


def _given(run: Any, of: OfPandas, found: Any, label: Any = None) -> Any:
    """Return the value that stands for a result of pandas'. Raises: Barrier."""
    kind = type(found)
    if foreign.is_atom(found):
        return found
    run.tick()
    if kind is list:
        return [_given(run, of, each, label) for each in found]
    if kind is tuple:
        return tuple([_given(run, of, each, label) for each in found])
    if kind is dict:
        return {key: _given(run, of, each, label) for key, each in found.items()}
    if isinstance_of(found, sys.modules["numpy"].generic):
        return OfPandas(found, of.root, label=label)
    if isinstance_of(found, sys.modules["numpy"].ndarray) or foreign.module_of(kind).startswith("pandas"):
        return OfPandas(found, of.root, label=label)
    raise Barrier(f"it gets a {type_name(kind)} of a DataFrame")


def attribute(run: Any, value: OfPandas, name: str) -> Any:
    """Return an attribute or a method. Raises: AttributeError, Barrier, Undecided."""
    content, kind = value.content, kind_in(value.content)
    refused = Barrier(f"it uses {name} of {f'a {kind}' if kind else 'a scalar'} of pandas")
    if value.place or not kind or name[:1] == "_":
        raise refused
    is_labelled = kind in ("DataFrame", "Series") and foreign.in_mro(type(content), name) is foreign.MISSING
    if is_labelled:
        if name in (content.columns if kind == "DataFrame" else content.index):
            return _item(run, value, name)
        _require_whole(run, value)
        raise AttributeError(f"{type(content).__name__!r} object has no attribute {name!r}")
    if name in _FIELDS.get(kind, ()):
        if name not in ("index", "name"):
            _require_whole(run, value)
        return _given(run, value, getattr(content, name), value.label)
    if name in _PLACES and kind in ("DataFrame", "Series"):
        return OfPandas(content, value.root, label=value.label, place=name, is_own=value.is_own)
    if (bar := bar_of(foreign.in_mro(type(content), name))) in ("apply", "map"):
        name = bar
    handler = _METHODS.get((kind, name))
    if handler is None and name in (*_COMPUTING.get(kind, ()), *_KEEPING):
        handler = partial(_computed, name)
    if handler is None:
        raise refused
    return Callee(lambda inner, args, kwargs: handler(inner, value, args, kwargs), name)


def _computed(name: str, run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of a method that only computes."""
    run.require_known(*args, *kwargs.values())
    if name in _KEEPING:
        lost_in(run, value)
    else:
        _require_whole(run, value)
    if name == "get":
        _require_label(value.content, args[0] if args else None)
    run.tick(1 + value.content.size // 5)
    return _given(run, value, getattr(value.content, name)(*args, **kwargs), value.label)


def _require_label(content: Any, at: Any) -> None:
    """Require a label: a number is a position where the labels are no numbers, and then pandas warns."""
    is_number = content.index.dtype.kind == "i"
    if type(at) is not (int if is_number else str):
        raise Barrier("it reads items of a Series by position")


def _rows(run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Lazy:
    if args or kwargs:
        raise TypeError("iterrows() takes no arguments")
    lost_in(run, value)
    return Lazy(run, ((_given(run, value, at), row) for at, row in _each_row(run, value)))


def _each_row(run: Any, value: OfPandas) -> Iterator[tuple[Any, OfPandas]]:
    content = value.content
    if value.rows is None:
        value.rows = list(islice(content.iterrows(), KEPT_ROWS))
    rest = islice(content.iterrows(), KEPT_ROWS, None) if len(content) > KEPT_ROWS else ()
    for at, row in chain(value.rows, rest):
        run.tick(_TICKS_PER_ROW)
        yield at, OfPandas(row, value.root)


def _tuples(run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Lazy:
    run.require_known(*args, *kwargs.values())
    _require_whole(run, value)

    def rows() -> Iterator[Any]:
        for row in value.content.itertuples(*args, **kwargs):
            run.tick(_TICKS_PER_ROW)
            if type(row) is not tuple and facts_of(type(row)).kind != "tuple":
                raise Barrier("it walks rows with unusual names")
            yield tuple.__new__(type(row), [_given(run, value, each) for each in row])

    return Lazy(run, rows())


def _pairs(run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Lazy:
    if args or kwargs:
        raise TypeError("items() takes no arguments")
    _require_whole(run, value)
    return Lazy(run, ((at, _given(run, value, each, value.label)) for at, each in value.content.items()))


def _sampled(run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return some rows: known if the program gives the seed."""
    run.require_known(*args, *kwargs.values())
    if type(kwargs.get("random_state")) is int:
        lost_in(run, value)
        return _given(run, value, value.content.sample(*args, **kwargs), value.label)
    value.content.sample(*args, **kwargs, random_state=0)  # raises where there are too few rows
    return run.unknown(holds=type(value.content), is_safe=True)


def _applied(run: Any, value: OfPandas, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    """Return the result of calling a function for each element, or for each row, in order."""
    is_frame = kind_in(value.content) == "DataFrame"
    named = {name: each for name, each in kwargs.items() if name != "axis"}
    axis = kwargs.get("axis", args[1] if len(args) == 2 else None)
    function = args[0] if len(args) in (1, 2) else None
    is_function = isinstance_of(function, Callee) or (
        type(function) is Opaque and type(function.held) in (types.FunctionType, types.MethodType)
    )
    is_usual = is_function and not named and axis in ((1, "columns") if is_frame else (None,))
    if not is_usual or (is_frame and not value.content.size):
        raise Barrier("it calls apply() in an unusual way")
    found = []
    if is_frame:
        lost_in(run, value)
        for _, row in _each_row(run, value):
            found.append(call(run, function, (row,), {}))
            row.is_over = True
    else:
        _require_whole(run, value)
        for each in value.content.astype(object):
            run.tick()
            found.append(call(run, function, (_given(run, value, each),), {}))
    are_atoms = all(map(is_plain_part, found))
    return run.unknown(*found, holds=class_of("Series") if are_atoms else "any", is_safe=are_atoms)  # type: ignore[no-any-return]


_METHODS: dict[tuple[str, str], Callable[..., Any]] = {
    ("DataFrame", "iterrows"): _rows, ("DataFrame", "itertuples"): _tuples, ("DataFrame", "sample"): _sampled,
    ("Series", "sample"): _sampled, ("Series", "items"): _pairs, ("Series", "apply"): _applied,
    ("Series", "map"): _applied, ("DataFrame", "apply"): _applied,
}  # fmt: skip


def iterated(run: Any, value: OfPandas) -> Iterator[Any]:
    """Yield the elements of a Series, an Index or an array, or the columns of a DataFrame."""
    if value.place or not kind_in(value.content):
        raise Barrier("it walks a value of pandas")
    _require_whole(run, value)
    for each in value.content:
        run.tick()
        yield _given(run, value, each, value.label)


def length(run: Any, value: OfPandas) -> int:
    """Return `len(value)`."""
    if value.place or not kind_in(value.content):
        raise Barrier("it asks for the length of a value of pandas")
    if kind_in(value.content) != "DataFrame":
        _require_whole(run, value)
    return len(value.content)


def truth(run: Any, value: OfPandas) -> bool:
    """Whether a scalar counts as true. Raises: Barrier."""
    if not is_scalar(value):
        raise Barrier("it asks whether a value of pandas is true")
    _require_whole(run, value)
    return bool(value.content)


def contains(run: Any, value: OfPandas, item: Any) -> bool:
    """Return `item in value`."""
    run.require_known(item)
    if value.place or not kind_in(value.content):
        raise Barrier("it looks into a value of pandas")
    _require_whole(run, value)
    return bool(item in value.content)


def compared(run: Any, compare: Callable[[Any, Any], Any], one: Any, two: Any) -> Any:
    """Return a comparison of scalars."""
    of = next(each for each in (one, two) if type(each) is OfPandas)
    if not all(is_scalar(each) or type(each) in (int, float, str, bool) for each in (one, two)):
        raise Barrier("it compares a value of pandas")
    _require_whole(run, of)
    return _given(run, of, compare(*(each.content if type(each) is OfPandas else each for each in (one, two))))


def text_of(run: Any, convert: Callable[..., str], value: OfPandas, *spec: str) -> Any:
    """Return the result of str, repr or format: of a scalar; a longer text depends on the terminal."""
    if value.place:
        raise Barrier("it shows a value of pandas")
    lost_in(run, value)
    if not is_scalar(value):
        return run.unknown(holds="text", is_safe=not spec)
    return convert(value.content, *spec)


# --- items -----------------------------------------------------------------------------------------------------------


def subscript(run: Any, value: OfPandas, at: Any) -> Any:
    """Return `value[at]`. Raises: the error of pandas, Undecided, Barrier."""
    run.require_known(at)
    kind = kind_in(value.content)
    if not kind:
        raise Barrier("it reads an item of a scalar")
    if value.place:
        return _placed(run, value, at)
    if kind == "DataFrame" and type(at) is list:
        lost_in(run, value)
        return _given(run, value, value.content[at])
    if kind == "DataFrame" and type(at) is not str:
        raise Barrier("it reads rows of a DataFrame by an unusual key")
    if kind == "Series" and type(at) is not slice:
        _require_label(value.content, at)
    return _item(run, value, at)


def _item(run: Any, value: OfPandas, at: Any) -> Any:
    lost = lost_in(run, value)
    column = at if value.label is None and type(at) is str else value.label
    if lost and (column is None or column in lost):
        if column is None:
            raise Barrier("it changes a DataFrame, and uses all columns")
        return run.unknown(Unknown(sources=CHANGED), error=KeyError)
    found = _given(run, value, value.content[at], column if kind_in(value.content) == "DataFrame" else value.label)
    is_of_row = kind_in(value.content) == "Series" and value.label is None
    return _as_before(run, value, found) if lost and is_of_row else found


def _as_before(run: Any, value: OfPandas, found: Any) -> Any:
    """Return an item of a row. A row of numbers holds other numbers once the DataFrame has a column of texts."""
    content, lost = value.content, lost_in(run, value)
    has_texts = any(type(each) is str for at, each in content.items() if at not in lost)
    if type(found) is str or has_texts:
        return found
    return run.unknown(Unknown(sources=CHANGED))


def _placed(run: Any, value: OfPandas, at: Any) -> Any:
    """Return an item by `loc`, `iloc`, `at` or `iat`."""
    lost = lost_in(run, value)
    is_cell = type(at) is tuple and len(at) == 2 and kind_in(value.content) == "DataFrame"
    column = at[1] if is_cell and type(at[1]) is str else None
    if lost and column in lost:
        return run.unknown(Unknown(sources=CHANGED), error=KeyError)
    is_row = not is_cell and type(at) in (int, str) and kind_in(value.content) == "DataFrame"
    if lost and column is None and not is_row:
        _require_whole(run, value)
    return _given(run, value, getattr(value.content, value.place)[at], column or value.label)


def store(run: Any, value: OfPandas, at: Any, new: Any) -> None:
    """Store a column or a cell into a DataFrame of the program's. Raises: Renewed, Barrier."""
    content, refused = value.content, Barrier("it changes a value of pandas")
    if kind_in(content) != "DataFrame" or value.place not in ("", "loc", "at") or not len(content):
        raise refused
    run.require_known(at)
    lost_in(run, value)
    column, is_cell = at, bool(value.place)
    if is_cell:
        is_pair = type(at) is tuple and len(at) == 2
        if not is_pair or not content.index.is_unique or not _has_own_columns(value.root.of()):
            raise refused
        column = at[1]
        if type(at[0]) is not (int if content.index.dtype.kind == "i" else str) or at[0] not in content.index:
            raise refused
    if type(column) is not str or not value.root.is_frame:
        raise refused
    if not _fits(run, value, column, new, is_cell=is_cell):
        run.raises(run.sources(new))
    run.store((value.root.number, column), value.root, new, "it changes a DataFrame that it did not make")


def _fits(run: Any, value: OfPandas, column: str, new: Any, *, is_cell: bool) -> bool:
    """Whether a store raises and warns nothing, whatever the unknown values."""
    content, own = value.content, foreign.own_attributes(value.root.of())
    if own is None or own.get("_is_copy") is not None or value.is_own:
        return False
    if not is_cell and type(new) is Unknown and new.holds is class_of("Series"):
        return True
    if not is_cell and type(new) is list and not run.is_unknown(new):
        return len(new) == len(content) and all(map(is_plain_part, new))
    if not is_cell or not is_plain_part(new):
        return is_plain_part(new)
    is_new = column not in content.columns
    kind = "str" if is_new and value.place == "loc" else "" if is_new else str(content[column].dtype)
    stored = run.changes.cell((value.root.number, column))
    before = stored.get("value")
    if run.is_tainted(stored) or not (before is None or amounts.holds_of(before) == "text"):
        return False
    return kind == "object" or (kind == "str" and amounts.holds_of(new) == "text")


def _has_own_columns(frame: Any) -> bool:
    """Whether no two columns of a DataFrame share memory."""
    arrays = [each.values for each in frame._mgr.blocks] if frame is not None else []
    arrays = [each for each in arrays if isinstance_of(each, sys.modules["numpy"].ndarray)]
    share = sys.modules["numpy"].may_share_memory
    return len(arrays) < 50 and not any(share(a, b) for n, a in enumerate(arrays) for b in arrays[:n])
