"""What the reader reads of pandas is what CPython makes of the same program, and nothing of the user's runs early."""

from __future__ import annotations

import random
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas as pd
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from teola_plugin.adapters.reader import stacks
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.changes import Place
from teola_plugin.adapters.reader.dataframes import OfPandas, root_of
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Renewed, Unknown
from tests.adapters.reader import fuzzing, resumed
from tests.adapters.reader.fuzzing import native
from tests.adapters.reader.langchain_reading import hosted, read
from tests.adapters.reader.resumed import HIDDEN, SideBySide
from tests.adapters.reader.test_fuzz_semantics import module_of
from tests.adapters.reader.test_resuming import Prompt
from tests.support.hosted_service import Service, asked_side_by_side

pytestmark = pytest.mark.usefixtures("no_batches")

LLM = hosted()
ROWS = [
    {"q": "who", "n": 1, "x": 0.5, "ok": True, "none": None},
    {"q": "what", "n": 2, "x": float("nan"), "ok": False, "none": "some"},
    {"q": "why", "n": 3, "x": -0.0, "ok": True, "none": None},
]
MIXED = pd.DataFrame(ROWS)
TEXTS = pd.DataFrame({"q": ["a", "b", "c"], "kind": ["x", "y", "x"]}, index=["k", "l", "m"])
NUMBERS = pd.DataFrame({"n": [3, 1], "x": [1.5, 2.5]})
COLUMN = pd.Series(["a", "b"], name="q")
TIMES = pd.DataFrame({"at": pd.to_datetime(["2024-01-02", "2024-03-04"]), "q": ["a", "b"]})
EMPTY = pd.DataFrame({"q": []}, dtype=object)
NAMED = [MIXED, TEXTS, NUMBERS]


def shape(value: Any) -> Any:
    """A value with its types, and those of its parts."""
    value = value.content if type(value) is OfPandas else value
    if isinstance(value, pd.DataFrame | pd.Series):
        return type(value).__name__, [(shape(at), shape(each)) for at, each in value.items()], shape(list(value.index))
    if isinstance(value, pd.Index):
        return "Index", shape(list(value))
    if isinstance(value, list | tuple):
        return type(value).__name__, [shape(each) for each in value]
    if isinstance(value, dict):
        return "dict", [(shape(key), shape(each)) for key, each in value.items()]
    return type(value).__name__, repr(value)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return shape(act())
    except Exception as e:
        return type(e).__name__, str(e)


FORMS: list[Callable[[], Any]] = [
    lambda: [(i, row["q"], row["n"], row["x"], row["ok"], row["none"], row.q) for i, row in MIXED.iterrows()],
    lambda: [(i, row["q"], row.get("kind"), row.get("none", 3), len(row)) for i, row in TEXTS.iterrows()],
    lambda: [(i, row.n, row["x"]) for i, row in NUMBERS.iterrows()],
    lambda: [row for frame in NAMED for _, row in frame.iterrows()],
    lambda: [f"{row['q']} {row['at']} {row['at']:%Y}" for _, row in TIMES.iterrows()],
    lambda: [row.to_dict() for _, row in MIXED.iterrows()],
    lambda: [(list(row.index), row.tolist(), row.name, list(row.items())) for _, row in MIXED.iterrows()],
    lambda: ["none" in row for _, row in MIXED.iterrows()],
    lambda: [(n, i, row["q"]) for n, (i, row) in enumerate(MIXED.iterrows())],
    lambda: [row["gone"] for _, row in MIXED.iterrows()],
    lambda: [row.gone for _, row in MIXED.iterrows()],
    lambda: [(row.Index, row.q, row.n, row[1], row._asdict(), len(row)) for row in MIXED.itertuples()],
    lambda: [(a, b) for a, b in TEXTS.itertuples(index=False)],
    lambda: [list(row) for row in MIXED.itertuples(index=False, name=None)],
    lambda: [each for name in MIXED.columns for each in MIXED[name]],
    lambda: [list(MIXED[name]) for name in MIXED.columns],
    lambda: [MIXED[name].tolist() for name in MIXED],
    lambda: (TEXTS["q"].tolist(), TEXTS.q.to_list(), list(TEXTS["q"].values), list(TEXTS["q"].unique())),
    lambda: (list(NUMBERS["n"].values), NUMBERS["n"].values.tolist()),
    lambda: MIXED["gone"],
    lambda: MIXED.gone,
    lambda: MIXED.to_dict("records"),
    lambda: (MIXED.to_dict(), MIXED.to_dict(orient="list"), TEXTS["q"].to_dict()),
    lambda: [(each["q"], each["n"]) for each in MIXED.to_dict(orient="records")],
    lambda: (len(MIXED), MIXED.shape[0], MIXED.shape, MIXED.empty, EMPTY.empty, len(MIXED.columns), len(MIXED["q"])),
    lambda: (list(MIXED.columns), MIXED.columns.tolist(), "q" in MIXED.columns, "q" in MIXED, "z" not in MIXED.columns),
    lambda: [row["q"] for _, row in MIXED.head(2).iterrows()] + [row["q"] for _, row in MIXED.tail(1).iterrows()],
    lambda: [MIXED.iloc[i]["q"] for i in range(len(MIXED))],
    lambda: (MIXED.iloc[0], MIXED.iloc[0, 1], MIXED.iloc[:2], MIXED.iloc[-1].to_dict(), MIXED["n"].iloc[0]),
    lambda: [MIXED.loc[i, "q"] for i in MIXED.index] + [MIXED.at[1, "n"], TEXTS.loc["l", "q"], TEXTS.at["m", "kind"]],
    lambda: (TEXTS.loc["k"], MIXED.loc[1], MIXED.loc[[0, 2], "q"], MIXED.loc[0:1, ["q", "n"]], MIXED.iat[0, 0]),
    lambda: MIXED.iloc[7],
    lambda: MIXED.loc[7, "q"],
    lambda: [row["q"] for _, row in MIXED[["q", "n"]].iterrows()],
    lambda: MIXED.sample(2, random_state=3),
    lambda: [row["q"] for _, row in MIXED.sample(n=2, random_state=3).iterrows()],
    lambda: (f"{NUMBERS['n'].iloc[0]}", str(NUMBERS["x"].iloc[0]), f"{NUMBERS['x'].iloc[0]:.1f}"),
    lambda: [row["n"] for _, row in NUMBERS.iterrows() if row["n"] == 3 and row["x"] > 1],
    lambda: [pd.isna(each) for each in MIXED["none"]] + [pd.notna(MIXED["x"].iloc[1]), pd.isnull(None)],
    lambda: list(MIXED["none"].dropna()),
    lambda: (list(COLUMN), COLUMN[0], COLUMN.name, COLUMN.loc[1], COLUMN.iloc[-1], len(COLUMN)),
    lambda: [(i, each) for i, each in MIXED["q"].items()],
    lambda: isinstance(MIXED, pd.DataFrame) and isinstance(MIXED["q"], pd.Series) and not isinstance(MIXED, dict),
    lambda: [row["q"] for _, row in EMPTY.iterrows()],
    lambda: (MIXED is MIXED, MIXED["q"] is MIXED),
    lambda: [row["q"] for _, row in MIXED.copy().iterrows()],
    lambda: next(iter(TEXTS[["q"]].iterrows()))[1]["q"],
    lambda: [row["q"] for _, row in zip(range(2), [row for _, row in MIXED.iterrows()], strict=False)],
]


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_a_form_gives_what_pandas_gives(number: int) -> None:
    form = FORMS[number]
    run = Run(Nobody(), operations=10**6)
    assert outcome(lambda: call(run, run.load(form), (), {})) == outcome(form)
    assert not run.gates


# --- programs that ask -----------------------------------------------------------------------------------------------

HEAD = """
import pandas as pd

DF = pd.DataFrame({"q": ["who", "what", "why"], "n": [1, 2, 3], "answer": ["", "", ""]})
TEXTS = pd.DataFrame({"q": ["who", "what", "why"], "kind": ["x", "y", "x"]}, index=["k", "l", "m"])
SAVED = DF.copy(), TEXTS.copy()

def made(*frames):
    return unread(lambda: (frames[0] if frames else DF).copy())

def look(m, row):
    return m.ask(f"{row['q']}?")

def program(m, **rest):
"""

ASKING = {
    "rows": (3, """
        out = []
        for i, row in DF.iterrows():
            out.append({"n": row["n"], "i": i, "a": m.ask(row["q"])})
        return out
    """),
    "a column": (3, "return [m.ask(q) for q in DF['q']]"),
    "records": (3, "return [m.ask(f'{r[\"q\"]} {r[\"n\"]}') for r in DF.to_dict('records')]"),
    "tuples": (3, "return [m.ask(f'{row.q} {row.n} {row.Index}') for row in DF.itertuples()]"),
    "a helper": (3, "return [look(m, row) for _, row in DF.iterrows()]"),
    "places": (3, "return [m.ask(DF.iloc[i]['q']) for i in range(len(DF))]"),
    "apply": (3, "return list(DF['q'].apply(lambda q: m.ask(q)))"),
    "map": (3, "return list(DF['q'].map(m.ask))"),
    "apply to rows": (3, "return list(DF.apply(lambda row: m.ask(f'{row[\"q\"]} {row.n}'), axis=1))"),
    "a cell in each round": (3, """
        for i, row in DF.iterrows():
            DF.loc[i, "answer"] = m.ask(f"{row['q']} {row['n']}")
        return list(DF["answer"])
    """),
    "a new cell in each round": (3, """
        for i, row in TEXTS.iterrows():
            TEXTS.loc[i, "new"] = m.ask(row["q"])
        return TEXTS.to_dict()
    """),
    "a column of answers": (6, """
        TEXTS["new"] = [m.ask(q) for q in TEXTS["q"]]
        return [m.ask(f"again {row.q}") for _, row in TEXTS.iterrows()]
    """),
    "a column made by apply": (6, """
        DF["answer"] = DF["q"].apply(m.ask)
        return [m.ask(f"again {q}") for q in DF["q"]]
    """),
    "a DataFrame of results": (6, """
        out = []
        for i, row in DF.iterrows():
            out.append({"q": row["q"], "a": m.ask(row["q"])})
            frame = pd.DataFrame(out)
            print(frame)
            look(m, row)
        return len(frame)
    """),
    "made by what is not read": (3, """
        df = made()
        return [m.ask(f"{row['q']} {row['n']}") for i, row in df.iterrows()]
    """),
    "made by what is not read, and stored to": (3, """
        df = made()
        df["answer"] = ""
        for i, row in df.iterrows():
            df.at[i, "answer"] = m.ask(row["q"])
        return df.to_dict()
    """),
    "tuples of what is not read": (3, "df = made()\nreturn [m.ask(row.q) for row in df.itertuples()]"),
    "rows, before what is not read": (6, """
        out = []
        for i, row in DF.iterrows():
            out.append(m.ask(row["q"]))
        df = made()
        for i, row in df.iterrows():
            out.append(m.ask(row["q"] + row["answer"]))
        return out
    """),
}  # fmt: skip
"""Programs, with how many requests are found ahead of the run from its second time on."""

LEFT = {
    "a column that it changed": """
        DF.loc[1, "q"] = m.ask("first")
        return [m.ask(row["q"]) for _, row in DF.iterrows()]
    """,
    "a column by another name": """
        one = DF
        one.at[0, "q"] = "x"
        m.ask("first")
        return [m.ask(q) for q in DF["q"]]
    """,
    "a view of a column": """
        view = DF["q"]
        DF.loc[0, "q"] = "x"
        return [m.ask(q) for q in view]
    """,
    "a view that is not read": """
        view = unread(lambda: DF["q"])
        m.ask("first")
        DF.loc[0, "q"] = "x"
        return [m.ask(q) for q in view]
    """,
    "a part that is stored to": """
        part = DF.iloc[:2]
        m.ask("first")
        part.loc[0, "q"] = "x"
        return [m.ask(str(q)) for q in DF["q"]] + [m.ask(str(q)) for q in part["q"]]
    """,
    "a row, after a store": """
        row = DF.iloc[0]
        DF.loc[0, "q"] = "x"
        return m.ask(row["q"])
    """,
    "another row after a store": """
        DF.loc[len(DF), "q"] = "new"
        return [m.ask(str(row["q"])) for _, row in DF.iterrows()]
    """,
    "a row that is new": """
        DF.loc[9, "answer"] = "x"
        return m.ask(str(len(DF)))
    """,
    "a cell that it changed": """
        DF.loc[0, "q"] = "x"
        return m.ask(DF.loc[0, "q"]) + m.ask(DF.at[0, "q"])
    """,
    "what apply calls for no row": """
        called = []
        DF.head(0).apply(lambda row: called.append(1), axis=1)
        return m.ask(str(len(called)))
    """,
    "a row of numbers that becomes one of texts": """
        df = made(DF[["n"]])
        m.ask("first")
        for i, row in df.iterrows():
            df.loc[i, "t"] = m.ask(repr(row["n"]))
        return [m.ask(repr(row["n"])) for i, row in df.iterrows()]
    """,
    "numbers in the place of texts": """
        df = made(DF[["n", "answer"]])
        m.ask("first")
        df["answer"] = [0.5, 1.5, 2.5]
        return [m.ask(repr(row["n"])) for i, row in df.iterrows()]
    """,
    "in place": """
        df = made()
        m.ask("first")
        df.drop(index=0, inplace=True)
        return [m.ask(row["q"]) for _, row in df.iterrows()]
    """,
    "in place, of outside": """
        DF.sort_values("q", inplace=True)
        return [m.ask(row["q"]) for _, row in DF.iterrows()]
    """,
    "before and behind what is not read": """
        size = len(DF)
        unread(lambda: DF.drop(index=1, inplace=True))
        return [m.ask(f"{row['q']} {size} {len(DF)}") for _, row in DF.iterrows()]
    """,
    "cells changed by what is not read": """
        first = DF["q"][0]
        unread(lambda: DF.update({"q": ["a", "b", "c"]}))
        m.ask("same")
        return m.ask(first + DF["q"][0])
    """,
    "rows kept by apply": """
        kept = []
        DF.apply(lambda row: kept.append(row), axis=1)
        return [m.ask(row["q"]) for row in kept]
    """,
    "apply to nothing": """
        df = DF.head(0)
        return len(df.apply(lambda row: m.ask("called"), axis=1))
    """,
    "a row that is stored to": """
        for _, row in DF.iterrows():
            row["q"] = "x"
            m.ask(row["q"])
    """,
    "what apply raises": """
        try:
            DF["q"].apply(lambda q: m.ask(q) and 1 / (len(q) - 4))
        except ZeroDivisionError:
            return m.ask("raised")
    """,
    "an error of pandas": """
        try:
            return m.ask(DF.loc[9, "q"])
        except KeyError as e:
            return m.ask(f"{e}")
    """,
    "columns that are deleted": """
        del DF["q"]
        return [m.ask(str(row.to_dict())) for _, row in DF.iterrows()]
    """,
    "an attribute that is no column": """
        DF.note = "x"
        m.ask(DF.note)
        return m.ask(str([each for each in DF.columns]))
    """,
    "a sum": """
        DF["n"] += 1
        return [m.ask(f"{row['q']} {row['n']}") for _, row in DF.iterrows()]
    """,
    "positions": """
        return [m.ask(str(row.iloc[0])) for _, row in TEXTS.iterrows()]
    """,
    "a random choice": """
        return len([m.ask("x") for _ in DF.sample(2)["q"]])
    """,
    "a list that the results share": """
        parts = [m.ask("a")]
        frame = pd.DataFrame([{"parts": parts}])
        frame["parts"][0].append("b")
        return m.ask(str(len(parts)))
    """,
}  # fmt: skip


@pytest.fixture
def program_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes modules of programs. Functions of this folder may stand between those of a program."""
    monkeypatch.setattr(stacks, "_PASSING", stacks._PASSING | {"tests", "contextlib", "pandas"})
    monkeypatch.setattr(stacks, "_libraries", {})
    for module in (fuzzing, resumed):
        monkeypatch.setattr(module, "NATIVE_S", 30)

    def make(text: str) -> Any:
        body = textwrap.indent(textwrap.dedent(text), "    ")
        return module_of(f"{HIDDEN}\n{HEAD}{body}", tmp_path / "frames.py")

    return make


def sides(module: Any, rnd: random.Random) -> list[SideBySide]:
    """Three runs of a program, which come to what it comes to alone."""
    made: list[SideBySide] = []

    def restore() -> None:
        module.DF, module.TEXTS = (each.copy() for each in module.SAVED)

    for _ in range(3):
        reply = lambda key, number: f"{key[-1]}-{number}"  # noqa: E731
        restore()
        alone = native(module.program, dict, reply)
        restore()
        made.append(SideBySide(module.program, reply, rnd))
        value = made[-1].run({})
        assert repr(value) == repr(alone.value if alone.error is None else alone.error)
    return made


@pytest.mark.parametrize("name", ASKING)
def test_what_is_asked_about_each_row_is_found(name: str, program_of: Any) -> None:
    ahead, text = ASKING[name]
    runs = sides(program_of(text), Prompt())
    assert [run.ahead for run in runs[1:]] == [ahead] * 2, [run.barriers for run in runs]
    assert [run.extra for run in runs] == [0] * 3


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_asked_that_the_run_does_not_ask(name: str, seed: int, program_of: Any) -> None:
    runs = sides(program_of(LEFT[name]), Prompt() if seed == 0 else random.Random(seed))
    assert [run.extra for run in runs] == [0] * 3


# --- code of the user's ----------------------------------------------------------------------------------------------

RAN: list[str] = []


class Framed(pd.DataFrame):  # type: ignore[misc]
    def __getitem__(self, key: Any) -> Any:
        RAN.append("getitem")
        return super().__getitem__(key)

    @property
    def columns(self) -> Any:
        RAN.append("columns")
        return super().columns


class Loud:
    def __str__(self) -> str:
        RAN.append("str")
        return "loud"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        RAN.append("eq")
        return self is other

    def __hash__(self) -> int:
        RAN.append("hash")
        return 1

    def __bool__(self) -> bool:
        RAN.append("bool")
        return True


class LoudMeta(type):
    def __hash__(cls) -> int:
        RAN.append("hash")
        return 1

    def __eq__(cls, other: object) -> bool:
        RAN.append("eq")
        return cls is other


class OfMeta(metaclass=LoudMeta):
    pass


class Text(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        RAN.append("format")
        return "text"


class Labels(pd.Index):  # type: ignore[misc]
    def __new__(cls, data: Any) -> Any:
        made = object.__new__(cls)
        base = pd.Index(data)
        for name in ("_data", "_name", "_cache", "_id", "_references", "_no_setting_name"):
            if hasattr(base, name):
                object.__setattr__(made, name, getattr(base, name))
        return made

    def view(self, cls: Any = None) -> Any:
        RAN.append("view")
        return super().view(cls)


class Array(type(pd.array(["a"], dtype="string[python]"))):  # type: ignore[misc]
    def copy(self) -> Any:
        RAN.append("copy")
        return super().copy()


class Shown:
    def __init__(self, frame: Any) -> None:
        RAN.append("accessor")


def labelled(index: Any) -> Any:
    frame = pd.DataFrame({"q": ["a"]})
    frame._mgr.axes[1] = index
    return frame


def deep(**attrs: Any) -> Any:
    frame = pd.DataFrame({"q": ["a"]})
    frame.attrs.update(attrs)
    return frame


class Copied:
    def __deepcopy__(self, memo: Any) -> Any:
        RAN.append("copy")
        return self


def patched(name: str) -> Callable[[pytest.MonkeyPatch], Any]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> Any:
        before = getattr(pd.DataFrame, name)

        def loud(self: Any, *args: Any, **kwargs: Any) -> Any:
            RAN.append(name)
            return (before.fget if isinstance(before, property) else before)(self, *args, **kwargs)

        monkeypatch.setattr(pd.DataFrame, name, property(loud) if isinstance(before, property) else loud)
        return pd.DataFrame({"q": ["a"]})

    return patch


OBJECTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a subclass": lambda m: Framed({"q": ["a"]}),
    "objects": lambda m: pd.DataFrame({"q": ["a"], "held": [Loud()]}),
    "objects with a metaclass": lambda m: pd.DataFrame({"q": ["a"], "held": [OfMeta()]}),
    "texts of a class": lambda m: pd.DataFrame({"q": [Text("a")]}),
    "labels": lambda m: pd.DataFrame({"q": ["a"]}, index=pd.Index([Loud()], dtype=object)),
    "columns": lambda m: pd.DataFrame([["a", 1]], columns=pd.Index(["q", Loud()], dtype=object)),
    "labels of a class": lambda m: labelled(Labels(["a"])),
    "an array of a class": lambda m: pd.DataFrame({"q": Array(numpy.array(["a"], dtype=object))}),
    "attributes": lambda m: deep(held=Copied()),
    "categories": lambda m: pd.DataFrame({"q": pd.Categorical(["a"])}),
    "lists": lambda m: pd.DataFrame({"q": [["a"]]}),
    "two columns of one name": lambda m: pd.DataFrame([["a", "b"]], columns=["q", "q"]),
    "many rows": lambda m: pd.DataFrame({"q": ["a"] * 30_000}),
    "a method": patched("iterrows"),
    "a property": patched("values"),
    "a method that others call": patched("_ixs"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_no_code_of_the_users_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = OBJECTS[name](monkeypatch)

    def ask(x: str) -> Any:
        return [LLM.invoke(f"{row['q']}").content for _, row in frame.iterrows()]

    RAN.clear()
    found = read(ask, "a")
    assert (found.certain, RAN) == ([], [])
    assert "DataFrame" in found.stopped or "Framed" in found.stopped


def test_an_accessor_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"q": ["a"], "shown": ["b"]})
    ask = lambda x: [LLM.invoke(q).content for q in frame.shown]  # noqa: E731
    assert read(ask, "a").certain
    monkeypatch.setattr(pd.DataFrame, "shown", None, raising=False)  # removed after the test
    with pytest.warns(UserWarning, match="preexisting"):
        pd.api.extensions.register_dataframe_accessor("shown")(Shown)
    RAN.clear()
    assert (read(ask, "a").certain, RAN) == ([], [])


def test_a_frame_that_another_changes_is_not_known_where_it_changed() -> None:
    frame = pd.DataFrame({"q": ["a", "b"], "other": ["x", "y"]})

    def ask(x: str) -> Any:
        return [LLM.invoke(frame.loc[i, "q"]).content for i in range(2)] + [LLM.invoke(frame["other"][0]).content]

    given = Given()
    given.note([ask])
    frame.loc[0, "q"] = "changed"
    changed: dict[Any, Any] = {}
    with pytest.raises(Renewed):
        _loaded(frame, given, changed)
    table = _loaded(frame, given, changed)
    assert list(changed) == [(id(frame), "q")]
    assert list(table.content["q"]) == ["a", "b"]
    frame.loc[5] = ["c", "z"]
    assert type(_loaded(frame, given, {})) is Opaque


def _loaded(frame: Any, given: Given, changed: dict[Any, Any]) -> Any:
    given.outer.clear()
    return Run(Nobody(), given=given, changed=[changed]).load(frame)


def test_a_frame_without_a_note_is_not_read_where_functions_change_what_they_did_not_make() -> None:
    frame = pd.DataFrame({"q": ["a"]})

    def change(x: Any) -> None:
        x["q"] = "b"

    given = Given()
    given.note([change])
    assert type(_loaded(frame, given, {})) is Opaque


def test_what_is_copied_is_the_readers_own() -> None:
    frame = pd.DataFrame({"q": ["a"]})
    held = Given().copy(frame)
    frame.loc[0, "q"] = "b"
    assert held.root.of() is frame
    assert held.content["q"][0] == "a"


def test_a_long_frame_is_read_as_far_as_time_allows() -> None:
    frame = pd.DataFrame({"q": [str(n) for n in range(3000)]})
    seen: list[str] = []
    run = Run(Nobody())
    walk = lambda note: [note(row["q"]) for _, row in frame.iterrows()]  # noqa: E731
    with pytest.raises(Barrier, match="too long"):
        call(run, run.load(walk), (Callee(lambda run, args, kwargs: seen.append(args[0]), "note"),), {})
    assert seen == [str(n) for n in range(len(seen))]
    assert len(seen) > 600


# --- what the program makes ------------------------------------------------------------------------------------------


def test_what_may_raise_holds_back_what_follows() -> None:
    def saved(act: Callable[[Any], Any]) -> list[bool]:
        def ask(x: str) -> Any:
            reply = LLM.invoke(x).content
            act(reply)
            return LLM.invoke("next").content

        return read(ask, "a").certain[0]

    frame = pd.DataFrame({"q": ["a"], "n": [1]})
    free = [True, True]
    assert saved(lambda reply: pd.DataFrame([{"a": reply, "b": 1}])) == free
    assert saved(lambda reply: pd.DataFrame({"a": [reply], "b": [None]})) == free
    assert saved(lambda reply: print(pd.DataFrame([{"a": reply}], columns=["a"]))) == free
    assert saved(lambda reply: print(frame, len(frame), str(frame))) == free
    assert saved(lambda reply: frame["q"].apply(lambda q: q + reply)) == free
    assert saved(lambda reply: pd.isna(reply)) == free
    assert saved(lambda reply: frame.sample(1)) == free
    held = [True, False]
    assert saved(lambda reply: pd.DataFrame({"a": reply, "b": 1})) == held  # ValueError: no index
    assert saved(lambda reply: pd.DataFrame({"a": [reply], "b": []})) == held
    assert saved(lambda reply: pd.DataFrame(reply)) == held
    assert saved(lambda reply: pd.DataFrame([{"a": reply}]).to_dict()) == held
    assert saved(lambda reply: pd.DataFrame([{"a": reply}])["b"]) == held
    assert saved(lambda reply: pd.concat([pd.DataFrame([{"a": reply}])])) == held
    assert saved(lambda reply: frame.__setitem__("n", reply)) in (free, [True])
    assert saved(lambda reply: pd.DataFrame([{"a": reply}]).to_csv("a.csv")) == [True]
    assert saved(lambda reply: pd.DataFrame([{"a": reply}]).to_markdown("a.md")) == [True]


def test_what_is_missing() -> None:
    run = Run(Nobody())
    assert call(run, run.load(pd.isna), (Unknown("text"),), {}) is False
    assert call(run, run.load(pd.notna), (Unknown("text"),), {}) is True
    assert type(call(run, run.load(pd.isna), (Unknown(),), {})) is Unknown
    with pytest.raises(Barrier):
        call(run, run.load(pd.isna), ([1],), {})


def test_replies_are_stored_as_the_run_makes_them(service: Service) -> None:
    llm = ChatOpenAI(model="m", api_key=SecretStr("key"), base_url=service.url, max_retries=0)
    saved = pd.DataFrame({"q": ["a", "b"], "n": [1, 2], "answer": ["", ""]})
    frame = saved.copy()

    def fill(text: str) -> Any:
        results = []
        for i, row in frame.iterrows():
            answer = llm.invoke(f"{text} {row['q']} {row['n']}").content
            frame.loc[i, "answer"] = answer
            results.append({"q": row["q"], "answer": answer})
        return pd.DataFrame(results).to_dict("records")

    def call(made: Any) -> Any:
        frame["answer"] = ""
        return made("hive"), frame.to_dict("records")

    asked_side_by_side(service, fill, "hive a 1", "hive b 2", call)


def test_what_a_function_has_had_is_not_kept_alive(program_of: Any) -> None:
    """Else pandas 2 warns of a store to a part, as of one whose whole can still be seen."""
    module = program_of("""
        df = made()
        first = m.ask("first")
        ENDS.append(weakref.ref(df))
        df = unread(lambda: df[df["n"] > 1])
        LIVES.append(ENDS[-1]() is not None)
        found = [m.ask(q) for q in df["q"]]
        LIVES.append(ENDS[-1]() is not None)
        return found
    """)
    module.weakref, module.ENDS, module.LIVES = weakref, [], []
    sides(module, Prompt())
    assert not any(module.LIVES)


def test_a_bar_walks_as_apply_does(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    for cls in (pd.DataFrame, pd.Series):
        monkeypatch.setattr(cls, "progress_apply", None, raising=False)
        monkeypatch.setattr(cls, "progress_map", None, raising=False)
    tqdm.pandas()
    ask = lambda x: list(MIXED["q"].progress_apply(lambda q: LLM.invoke(q).content))  # noqa: E731
    rows = lambda x: list(MIXED.progress_apply(lambda row: LLM.invoke(row.q).content, axis=1))  # noqa: E731
    assert read(ask, "a").certain == read(rows, "a").certain == [[True] * 3]


def test_a_part_of_another_frame_is_not_known_once_the_program_stores() -> None:
    whole = pd.DataFrame({"q": ["a", "b"], "n": [1, 2], "t": ["x", "y"]})
    other = pd.Series(whole["q"].array, name="r", copy=False)
    run = Run(Nobody(), given=Given(), changed=[{(id(whole), "q"): Place(root_of(whole))}])
    assert call(run, run.load(lambda: whole.iloc[0]["t"]), (), {}) == "x"
    with pytest.raises(Barrier, match="share"):
        call(run, run.load(lambda: list(other)), (), {})


def test_an_item_by_position_is_not_read_as_pandas_warns() -> None:
    run = Run(Nobody())
    for act in (lambda: TEXTS.iloc[0][0], lambda: TEXTS.iloc[0].get(0)):
        with pytest.raises(Barrier, match="by position"):
            call(run, run.load(act), (), {})
