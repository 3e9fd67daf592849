"""DataFrames that the program makes, of which only the class is known; functions of pandas and tabulate."""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

from teola_plugin.adapters.reader.dataframes import (
    PLAIN,
    OfPandas,
    class_of,
    is_plain_part,
    is_published,
    is_scalar,
    is_table,
)
from teola_plugin.adapters.reader.foreign import words
from teola_plugin.adapters.reader.values import Arguments, Barrier, Handler, Lazy, Opaque, Unknown, isinstance_of

_OF_UNKNOWN = words(
    "head tail copy to_dict to_string to_markdown describe mean median sum min max count value_counts nunique unique "
    "tolist to_list dropna fillna isna notna round sort_values sort_index reset_index drop rename astype groupby keys "
    "iterrows itertuples items"
)
_MISSING = words("isna notna")


def making_of(cls: Any) -> Handler | None:
    """Return the handler for making an object of the class, if the class is pandas' DataFrame or Series."""
    return partial(_make, cls) if is_table(cls) else None


def _make(cls: Any, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    if not is_published() or any(type(each) is Lazy for each in (*args, *kwargs.values())):
        raise Barrier("it makes a value of pandas in an unusual way")
    data = args[0] if args else kwargs.get("data")
    labels = kwargs.get("columns")
    is_usual = len(args) < 2 and kwargs.keys() <= {"data", "columns"} and cls is class_of("DataFrame")
    if labels is not None:
        is_usual = is_usual and type(labels) is list and all(type(each) is str for each in labels)
        is_usual = is_usual and (data is None or _are_records(run, data)) and not run.is_unknown(labels)
    is_safe = is_usual and (data is None or _are_records(run, data) or _are_columns(run, data))
    return run.unknown(*args, *kwargs.values(), holds=cls if is_safe else "any", is_safe=is_safe)  # type: ignore[no-any-return]


def _are_records(run: Any, data: Any) -> bool:
    """Whether the data is a list of dicts of plain values."""
    if type(data) is not list or run.is_unknown(data):
        return False
    return all(
        type(each) is dict
        and not run.is_unknown(each)
        and all(type(key) is str for key in each)
        and all(map(is_plain_part, each.values()))
        for each in data
    )


def _are_columns(run: Any, data: Any) -> bool:
    """Whether the data is a dict of lists of plain values, all of one length."""
    if type(data) is not dict or run.is_unknown(data) or not all(type(key) is str for key in data):
        return False
    columns = list(data.values())
    if any(type(each) is not list or run.is_unknown(each) or len(each) != len(columns[0]) for each in columns):
        return False
    return all(is_plain_part(each) for column in columns for each in column)


def unknown_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of a method of an unknown DataFrame or Series."""
    is_writing = name.startswith("to_") and name != "to_dict" and (args or not kwargs.keys() <= {"index"})
    is_calling = any(isinstance_of(each, Opaque) for each in (*args, *kwargs.values()))
    if name not in _OF_UNKNOWN or is_writing or is_calling or "inplace" in kwargs:
        raise Barrier(f"it calls {name} of a DataFrame that the program made")
    return run.unknown(value, *args, *kwargs.values())


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a function of pandas or tabulate."""
    name: Any = function.__globals__.get("__name__")
    found = _FUNCTIONS.get(name) if type(name) is str else None
    module = sys.modules.get(name) if found else None
    if found is None or type(module) is not types.ModuleType or vars(module) is not function.__globals__:
        return None
    own = function.__code__.co_name
    return found[own] if own in found and vars(module).get(own) is function else None


def _joined(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    """Handle `pandas.concat`, which may warn."""
    parts = args[0] if args else None
    if type(parts) is not list or run.is_unknown(parts) or not all(map(_is_frame, parts)):
        raise Barrier("it joins DataFrames in an unusual way")
    return run.unknown(*args, *kwargs.values(), holds=class_of("DataFrame"))  # type: ignore[no-any-return]


def _is_frame(value: Any) -> bool:
    cls = value.holds if type(value) is Unknown else type(value.content) if type(value) is OfPandas else None
    return cls is not None and cls is class_of("DataFrame")


def _is_missing(name: str, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise Barrier(f"it calls {name} in an unusual way")
    (value,) = args
    if type(value) is Unknown:
        return name == "notna" if value.holds == "text" else run.unknown(value, is_safe=True)
    content = value.content if is_scalar(value) else value
    if not is_scalar(value) and id(type(value)) not in PLAIN:
        raise Barrier(f"it calls {name} of what is no plain value")
    return bool(getattr(sys.modules["pandas.core.dtypes.missing"], name)(content))


def _tabulated(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    if any(type(each) is Lazy for each in (*args, *kwargs.values())):
        raise Barrier("it shows an iterator as a table")
    return run.unknown(*args, *kwargs.values(), holds="text")  # type: ignore[no-any-return]


_FUNCTIONS: dict[str, dict[str, Handler]] = {
    "pandas.core.reshape.concat": {"concat": _joined},
    "pandas.core.dtypes.missing": {name: partial(_is_missing, name) for name in _MISSING},
    "tabulate": {"tabulate": _tabulated},
}
