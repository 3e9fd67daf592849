"""DataFrames and Series of pandas: what the program has, and what it makes of them.

A DataFrame or Series of the program's that holds only plain values is copied once, as it was before the program ran.
The copy is the reader's own, so pandas' own methods run on the copy: rows, columns and items are those of CPython. Only
a closed list of methods is read, and only while pandas' classes have their published methods.

See dataframe_uses.py for the uses, natives_pandas.py for what the program makes.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from teola_plugin.adapters.reader import amounts, foreign
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.values import (
    Barrier,
    Opaque,
    isinstance_of,
    type_name,
)

MOST_CELLS = 20_000
"""Cells of a DataFrame that is copied: some 2 ms."""

MOST_ROOTS = 10_000
"""Objects of the program's that are told apart."""

words = foreign.words
_MODULES = {
    "DataFrame": "pandas.core.frame", "Series": "pandas.core.series", "Index": "pandas.core.indexes.base",
    "RangeIndex": "pandas.core.indexes.range",
}  # fmt: skip
_OWN = words("_mgr _attrs _flags _name _item_cache _is_copy _cacher _cache")
"""The attributes that pandas itself gives to an object."""

PLAIN = frozenset(map(id, (str, int, float, bool, type(None))))
_LABELS = frozenset(map(id, (str, int)))


class Root:
    """A DataFrame or Series of the program's, which is not kept alive: pandas warns of changes of a living one's parts.

    `number`: the object's id.
    """

    __slots__ = ("is_frame", "number", "of")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        self.of = weakref.ref(value)
        self.is_frame = kind_in(value) == "DataFrame"


_roots: dict[int, Root] = {}


def root_of(value: Any) -> Root:
    """Return the root that stands for an object, the same as long as the object lives."""
    known = _roots.get(id(value))
    if known is None or known.of() is not value:
        if len(_roots) > MOST_ROOTS:
            _roots.clear()
        known = _roots[id(value)] = Root(value)
    return known


class OfPandas(Opaque):
    """An object of pandas, or a scalar of pandas or numpy. `content`: the reader's own copy, as `held`.

    `root`: the program's DataFrame or Series of which the content is a part, or the whole unless `is_own`. `label`: the
    column, of a part of one. `place`: the name of an indexer, such as `loc`. `rows`: the first rows. `is_over`: pandas
    uses the object for another row by now.
    """

    __slots__ = ("content", "is_over", "label", "place", "root", "rows")

    def __init__(self, content: Any, root: Any, *, label: Any = None, place: str = "", is_own: bool = True) -> None:
        super().__init__(content, is_own=is_own)
        self.content = content
        self.root = root
        self.label = label
        self.place = place
        self.rows: list[Any] | None = None
        self.is_over = False


def class_of(name: str) -> Any:
    """Return the class of pandas with the name; None if pandas is not loaded."""
    module = sys.modules.get(_MODULES[name])
    return vars(module).get(name) if type(module) is types.ModuleType else None


def is_table(cls: Any) -> bool:
    """Whether the class is pandas' DataFrame or Series."""
    return cls is not None and (cls is class_of("DataFrame") or cls is class_of("Series"))


def kind_in(content: Any) -> str:
    """Return "DataFrame", "Series", "Index", "array", or "" for a scalar."""
    cls = type(content)
    found = next((name for name in _MODULES if cls is class_of(name)), "")
    if found:
        return "Index" if found == "RangeIndex" else found
    return "array" if hasattr(cls, "__len__") else ""


def is_scalar(value: Any) -> bool:
    """Whether the value is a scalar of numpy or pandas, such as `numpy.int64`."""
    return type(value) is OfPandas and not value.place and not kind_in(value.content)


# --- copies of the program's ------------------------------------------------------------------------------------------

_seen: list[tuple[list[foreign.Seen], bool]] = []


def is_published() -> bool:
    """Whether the classes have the methods that pandas has published, and no others in their places."""
    classes = {id(each): each for name in _MODULES if class_of(name) for each in foreign.mro_of(class_of(name))}
    now = list(map(foreign.seen, classes.values()))
    known = _seen[-1] if _seen else None
    if known is None or len(known[0]) != len(now) or any(a is not b for a, b in zip(known[0], now, strict=True)):
        _seen[:] = [known := (now, all(_is_of_pandas(each) for one in now for each in one.values))]
    return known[1]


def _is_of_pandas(value: Any) -> bool:
    """Whether an attribute of a class is data, or code of pandas'. The bars of tqdm only add methods."""
    kind = type(value)
    if kind is property:
        return all(each is None or _is_of_pandas(each) for each in (value.fget, value.fset))
    function = value.__func__ if kind is staticmethod or kind is classmethod else value
    if type(function) is not types.FunctionType:
        return True
    name = function.__globals__.get("__name__")
    if type(name) is not str:
        return False
    module = sys.modules.get(name)
    is_theirs = type(module) is types.ModuleType and vars(module) is function.__globals__
    return is_theirs and (name.partition(".")[0] in ("pandas", "typing") or bar_of(function) != "")


def bar_of(function: Any) -> str:
    """Return the name of the method that a method of tqdm's calls, "" for another function."""
    if type(function) is not types.FunctionType or function.__globals__.get("__name__") != "tqdm.std":
        return ""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = cells["df_function"].cell_contents if "df_function" in cells else ""
    return found if type(found) is str else ""


def copied(value: Any, before: Any = None) -> OfPandas | None:
    """Return the reader's copy of a DataFrame or Series; None if the object is large or holds more than plain values.

    `before`: an earlier copy, which is used.
    """
    if not is_table(type(value)) or not is_published():
        return None
    if before is not None:
        return OfPandas(before.content, root_of(value), label=_name_of(before.content), is_own=False)
    try:
        own = object.__getattribute__(value, "__dict__")
        if not own.keys() <= _OWN or own.get("_attrs") or value.size > MOST_CELLS or not _has_plain_parts(value):
            return None
        content = _copy_of(value)
        if not _holds_plain(content):
            return None
        return OfPandas(content, root_of(value), label=_name_of(content), is_own=False)
    except Exception:  # another thread changes the object
        return None


def _copy_of(value: Any) -> Any:
    """Return a copy; unlike `copy()`, without clearing the columns that the object keeps."""
    made = object.__new__(type(value))
    vars(sys.modules["pandas.core.generic"])["NDFrame"].__init__(made, value._mgr.copy(deep=True))
    if kind_in(value) == "Series":
        object.__setattr__(made, "_name", value._name)
    return made


def _has_plain_parts(value: Any) -> bool:
    """Whether the arrays and labels are of classes of numpy and pandas, which copy without code of the user's."""
    return all(map(_is_plain_array, value._mgr.arrays)) and all(map(_has_plain_labels, value._mgr.axes))


def _is_plain_array(array: Any) -> bool:
    cls = type(array)
    modules = [sys.modules.get(f"pandas.core.arrays.{name}") for name in ("datetimes", "string_", "string_arrow")]
    known = [vars(each).get(type_name(cls)) for each in modules if type(each) is types.ModuleType]
    return cls is sys.modules["numpy"].ndarray or any(each is cls for each in known)


def _holds_plain(content: Any) -> bool:
    if kind_in(content) != "DataFrame":
        return _are_plain(content) and _is_plain_label(content.name)
    are_texts = all(type(each) is str for each in content.columns)
    return are_texts and content.columns.is_unique and all(_are_plain(content[name]) for name in content.columns)


def _is_plain_label(value: Any) -> bool:
    return value is None or id(type(value)) in _LABELS


def _name_of(content: Any) -> Any:
    return content.name if kind_in(content) == "Series" else None


def _has_plain_labels(index: Any) -> bool:
    if kind_in(index) != "Index" or not _is_plain_label(index.name):
        return False
    return type(index) is class_of("RangeIndex") or _LABELS.issuperset(map(id, map(type, index)))


def _are_plain(series: Any) -> bool:
    """Whether a column holds numbers, times or plain values. The elements' classes are told apart by their ids."""
    dtype = series.dtype
    if isinstance_of(dtype, sys.modules["numpy"].dtype):
        if dtype.kind != "O":
            return dtype.kind in "biufM"
    elif str(dtype) != "str":
        return False
    return PLAIN.issuperset(map(id, map(type, series.array)))


def changed_columns(before: OfPandas, now: OfPandas) -> list[str] | None:
    """Return the columns in which two copies differ; None if they differ in more."""
    one, two = before.content, now.content
    if _cells(one.index) != _cells(two.index):
        return None
    if kind_in(one) == "Series":
        return [] if one.name == two.name and _cells(one) == _cells(two) else None
    names = list(dict.fromkeys([*one.columns, *two.columns]))
    if [each for each in two.columns if each in one.columns] != list(one.columns):
        return None
    return [each for each in names if each not in one.columns or _cells(one[each]) != _cells(two[each])]


def _cells(series: Any) -> tuple[str, list[Any]]:
    """Return what tells the elements from others: 0.0 from -0.0, 1 from True."""
    return str(series.dtype), [(type(each), each if id(type(each)) in _LABELS else repr(each)) for each in series]


def is_same(run: Any, mine: OfPandas, seen: Any) -> bool:
    """Whether an object of the framework's run is the one of the reading, but for columns that the program changes."""
    if type(seen) is not OfPandas or type(mine.content) is not type(seen.content) or mine.place or seen.place:
        return False
    if not mine.is_own and mine.root is not seen.root:
        return False
    kind, lost = kind_in(mine.content), {column for _, column in changed_in(run)}
    if kind in ("DataFrame", "Series"):
        one, two = (each.content.drop(list(lost), axis=kind == "DataFrame", errors="ignore") for each in (mine, seen))
        if mine.label is None or mine.label not in lost:
            return changed_columns(OfPandas(one, None), OfPandas(two, None)) == []
        return bool(mine.label == seen.label)
    if kind:
        return _cells(mine.content) == _cells(seen.content)
    return repr(mine.content) == repr(seen.content)


def are_rows(one: type, two: type) -> bool:
    """Whether two classes are of rows from `itertuples`, which makes a class at each call."""
    names = [foreign.module_of(each) == "pandas.core.frame" and type_name(each) for each in (one, two)]
    return names == ["Pandas"] * 2 and bool(facts_of(one).fields == facts_of(two).fields)


def changed_in(run: Any) -> list[tuple[Any, str]]:
    """Return the roots of DataFrames that the program changes, each with a changed column."""
    places = (run.changes.changed or {}).items()
    return [(place.owner, key[1]) for key, place in places if type(place.owner) is Root and type(key) is tuple]


def lost_in(run: Any, value: OfPandas) -> frozenset[Any]:
    """Return the columns that the program changes. Raises: Barrier if it changes another, which may share columns."""
    if value.is_over:
        raise Barrier("it keeps the row of a call of apply()")
    changed = changed_in(run)
    if any(owner is not value.root for owner, _ in changed):
        raise Barrier("it changes a DataFrame, which may share columns with another")
    return frozenset(column for _, column in changed)


def is_plain_part(value: Any) -> bool:
    """Whether the value is a text, a number, None, or unknown and certainly such."""
    return value is None or amounts.is_atom(amounts.holds_of(value)) or is_scalar(value)
