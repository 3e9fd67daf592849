"""What a function may do: proven from its source by a white-list, or declared."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from json import dump
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import PromptTemplate, format_document

from teola_plugin import pure, reads, writes
from teola_plugin.adapters.purity import effects_of
from teola_plugin.effects import assumed, assuming

SEEN: list[Any] = []
TABLE = {"a": 1}
PATTERN = re.compile("a+")
TEMPLATE = PromptTemplate.from_template("{page_content}")


@dataclass(frozen=True)
class Row:
    text: str


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def with_helper(x: Any) -> str:
    return format_docs(x["docs"]).upper()


def builds(x: Any) -> Any:
    rows: list[str] = []
    seen = set()
    total = 0
    for i, doc in enumerate(x["docs"]):
        if doc.metadata.get("source") in seen:
            continue
        seen.add(doc.metadata["source"])
        rows.append(f"{i}: {doc.page_content}")
        total += 1
    rows[0] = "first"
    rows += ["last"]
    return sorted(rows, key=lambda row: row[0]), total


def nested(x: Any) -> Any:
    def short(text: str) -> str:
        return text[:10]

    best = lambda rows: rows[0]  # noqa: E731
    try:
        return best([short(t) for t in x])
    except IndexError as e:
        raise ValueError(f"nothing: {e}") from e


def recursive(x: Any) -> Any:
    return x if not x else recursive(x[1:])


def from_library(docs: Any) -> str:
    return "".join(format_document(doc, TEMPLATE) for doc in docs)


class Notes:
    """An object of the user's; `get` is not the one that dicts have."""

    def __init__(self) -> None:
        self.table = {"a": 1}
        self.asked: list[Any] = []

    def get(self, key: Any) -> Any:
        self.asked.append(key)

    def calls_own_method(self, x: Any) -> Any:
        return self.get(x)

    def reads_own_table(self, x: Any) -> Any:
        return self.table.get(x)

    def hands_own_method_on(self, x: Any) -> Any:
        return list(map(self.asked.append, x))


NOTES = Notes()


@pytest.mark.parametrize(
    "function",
    [
        format_docs, with_helper, builds, nested, recursive, from_library,
        lambda x: x["question"].strip().lower(),
        lambda x: json.loads(re.sub("`", "", x)),
        lambda x: PATTERN.sub("b", x) + PATTERN.findall(x)[0],
        lambda x: re.sub(PATTERN, f"<{x}>", x) + re.sub(x, lambda m: m.group(), x) + PATTERN.sub(str, x),
        lambda x: [HumanMessage(content=x), Document(page_content=x), Row(x)],
        lambda x: Counter(x).most_common(1),
        lambda x: max(x, key=operator.itemgetter("score")),
        lambda x: TABLE[x] + TABLE.get(x, 0),
        lambda x: next((d for d in x if d), None),
        lambda x: defaultdict(list, x),
        lambda x: sorted(x, key=str.lower) + list(map(len, x)) + list(dict.fromkeys(x)),
        lambda x: max(TABLE, key=TABLE.get),
        lambda x, table=TABLE: table.get(x),
        functools.partial(lambda k, x: x + k, 1),
        NOTES.reads_own_table,
    ],
)  # fmt: skip
def test_pure(function: Callable[..., Any]) -> None:
    effects = effects_of(function)
    assert effects.pure, effects.why


def prints(x: Any) -> Any:
    print(x)
    return x


def calls_prints(x: Any) -> Any:
    return prints(x)


def appends(x: Any) -> Any:
    SEEN.append(x)


def appends_to_alias(x: Any) -> Any:
    seen = SEEN
    seen.append(x)


def extends_argument(x: Any) -> Any:
    rows = x["rows"]
    rows += [1]
    return rows


def stores_item(x: Any) -> Any:
    x["k"] = 1
    return x


def deletes(x: Any) -> Any:
    del x["k"]
    return x


def stores_attribute(x: Any) -> Any:
    x.k = 1
    return x


def counts(x: Any) -> Any:
    global TABLE
    TABLE = {}


def opens(x: Any) -> Any:
    with open(x) as f:
        return f.read()


def imports(x: Any) -> Any:
    import shutil

    shutil.rmtree(x)


async def awaits(x: Any) -> Any:
    return x


def yields(x: Any) -> Any:
    yield x


def calls_value(x: Any) -> Any:
    f = x["f"]
    return f(1)


def mixed(x: Any) -> Any:
    rows: list[Any] = []
    if x:
        rows = x["rows"]
    rows.append(1)
    return rows


@pytest.mark.parametrize(
    "function",
    [
        prints, calls_prints, appends, appends_to_alias, extends_argument, stores_item, deletes, stores_attribute,
        counts, opens, imports, awaits, yields, calls_value, mixed, print,
        lambda x: random.random(), lambda x: time.time(), lambda x: os.remove(x), lambda x: x.invoke(1),
        lambda x: [v for v in x if SEEN.append(v)], lambda x: setattr(x, "a", 1), lambda x: json.dump(x, x),
        lambda x: (lambda y: y.write(x))(x), lambda x: unknown_name(x), lambda x: x.sort(),  # noqa: F821
    ],
)  # fmt: skip
def test_impure(function: Callable[..., Any]) -> None:
    effects = effects_of(function)
    assert not effects.pure
    assert effects.why


@dataclass
class Saved:
    text: str

    @classmethod
    def save(cls, text: str) -> Saved:
        SEEN.append(text)
        return cls(text)


class Announced(Row):
    def __init__(self, text: str) -> None:
        print(text)


@dataclass
class Written:
    text: str

    def __init__(self, text: str) -> None:
        print(text)


@dataclass
class Numbered:
    text: str
    number: int = field(default_factory=itertools.count().__next__)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: list(map(SEEN.append, x)), lambda x: list(map(os.remove, x)), lambda x: list(filter(x["f"], x)),
        lambda x: max(x, key=x["send"]), lambda x: list(map(next, x)), lambda x: next(x["rows"]),
        lambda x: list(map(getattr(SEEN, "append"), x)),  # noqa: B009
        lambda x: list(map(operator.methodcaller("clear"), x)),
        lambda x: re.sub("a", x["f"], x["text"]), lambda x: PATTERN.subn(x["f"], x["text"]),
        lambda x: re.sub("a", repl=x["f"], string="a"), lambda x: PATTERN.sub(SEEN.append, x),
        lambda x: list.append(SEEN, x), lambda x: dict.update(x, a=1), lambda x: dump(x, x),
        lambda x: operator.setitem(x, "k", 1), lambda x: operator.iadd(SEEN, x),
    ],
)  # fmt: skip
def test_effects_through_functions_that_are_handed_on(function: Callable[..., Any]) -> None:
    assert not effects_of(function).pure


@dataclass
class Logged:
    text: str

    def find(self, part: str) -> int:
        SEEN.append(part)
        return self.text.find(part)

    @property
    def size(self) -> int:
        SEEN.append(self.text)
        return len(self.text)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Saved.save(x), lambda x: Announced(x), lambda x: Written(x), lambda x: Numbered(x),
        lambda x: Logged(x).find("a"), lambda x: Logged(x).size,
    ],
)  # fmt: skip
def test_effects_of_the_users_classes(function: Callable[..., Any]) -> None:
    assert not effects_of(function).pure


@pytest.mark.parametrize(
    "function",
    [
        NOTES.calls_own_method, NOTES.hands_own_method_on,
        lambda x, notes=NOTES: notes.get(x), functools.partial(lambda notes, x: notes.get(x), NOTES),
    ],
)  # fmt: skip
def test_what_the_function_holds_is_not_trusted(function: Callable[..., Any]) -> None:
    assert not effects_of(function).pure


def two_meanings(x: Any) -> Any:
    def inner(y: Any) -> Any:
        SEEN = []
        SEEN.append(y)
        return SEEN

    SEEN.append(x)
    return inner(x)


def test_a_name_with_two_meanings() -> None:
    assert not effects_of(two_meanings).pure


def test_a_decorator_is_not_as_pure_as_what_it_wraps() -> None:
    @functools.wraps(pure(format_docs.__class__(format_docs.__code__, globals())))
    def announces(x: Any) -> Any:
        print(x)

    assert not effects_of(announces).pure
    assert effects_of(pure(announces)).pure


def test_declared() -> None:
    assert effects_of(pure(prints.__class__(prints.__code__, globals()))).pure

    @reads("kb")
    def lookup(x: Any) -> Any:
        return os.stat(x)

    @writes("kb")
    @reads("notes")
    def ingest(x: Any) -> Any:
        return x

    assert (effects_of(lookup).pure, effects_of(lookup).reads) == (True, ("kb",))
    assert (effects_of(ingest).pure, effects_of(ingest).reads, effects_of(ingest).writes) == (
        False,
        ("notes",),
        ("kb",),
    )
    assert effects_of(lambda x: lookup(x)).pure
    assert not effects_of(lambda x: ingest(x)).pure


class Printer:
    def show(self, x: Any) -> Any:
        print(x)

    def __call__(self, x: Any) -> Any:
        print(x)


class LoudPrinter(Printer): ...


def test_assumed() -> None:
    one, other, loud = Printer(), Printer(), LoudPrinter()

    def is_pure(function: Any, *vouched: Any) -> bool:
        with assuming(assumed(vouched)):
            return effects_of(function).pure

    assert is_pure(prints, prints)
    assert is_pure(lambda x: prints(x), prints)
    assert is_pure(one.show, one.show)
    assert not is_pure(other.show, one.show)
    assert is_pure(one.show, Printer.show)
    assert is_pure(one, one)
    assert is_pure(loud, Printer)
    assert not is_pure(one, LoudPrinter)
    assert not is_pure(one.show, Printer)  # as of a class that is declared so
    assert is_pure(lambda x: Printer(), Printer)
    assert not any(map(is_pure, (prints, one, one.show)))
    with assuming(assumed([prints])):
        assert effects_of(prints).pure
    assert not effects_of(prints).pure


def test_a_mark_stands_whatever_is_assumed() -> None:
    @writes("kb")
    def stores(x: Any) -> Any:
        return x

    @functools.wraps(stores)
    def announces(x: Any) -> Any:
        print(x)
        return stores(x)

    with assuming(assumed([stores, announces])):
        assert [effects_of(f).writes for f in (stores, announces)] == [("kb",), ("kb",)]

    @functools.wraps(pure(format_docs.__class__(format_docs.__code__, globals())))
    def prints_first(x: Any) -> Any:
        print(x)

    with assuming(assumed([prints_first])):
        assert effects_of(prints_first).pure


def test_why_names_the_line() -> None:
    assert "it uses print (line" in effects_of(prints).why
