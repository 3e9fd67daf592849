"""Which keys of its dict a function reads: exactly, or "perhaps all"."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters import keys
from teola_plugin.adapters.keys import ReadKeys, read_keys
from teola_plugin.adapters.source import origin_of, source_of

NAME = "outer"
NUMBER = 1
TABLE = {"a": 1}


def of(*required: str, optional: tuple[str, ...] = (), is_getter: bool = False) -> ReadKeys:
    return ReadKeys(required, optional, is_getter)


# Two on a line, and inside a dict of several lines: the lines alone do not tell which is which.
left, right = (lambda x: x["a"] + x["b"], lambda x: x["c"] * 2)
nested = {
    "first": lambda x: (
        x["docs"]
        + x.get("more", [])
    ),
    "second": (lambda p: "key" in p),
    "inner": lambda x: [(lambda y: y["no"] + x["yes"])(z) for z in x["list"]],
}  # fmt: skip


def strips(x: Any) -> Any:
    """Documented."""
    if "flag" in x:
        return x["yes"].strip()
    return x.get("other")


def by_outer_name(x: Any) -> Any:
    return x[NAME]


def by_helper(x: Any) -> Any:
    return strips(x) + by_outer_name(x) + x["own"]


def by_unknown_helper(x: Any) -> Any:
    return len(x) + by_outer_name(x)


def by_itself(x: Any) -> Any:
    return by_itself(x) if x["more"] else x["a"]


def by_closure() -> Any:
    key = "enclosed"
    return lambda x: x[key]


class Callee:
    def __call__(self, x: Any) -> Any:
        return x["called"]

    def method(self, x: Any) -> Any:
        return x["method"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_helper, of("own", "yes", "outer", optional=("flag", "other"))),
        (by_unknown_helper, None),
        (by_itself, None),
        (left, of("a", "b")),
        (right, of("c")),
        (nested["first"], of("docs", optional=("more",))),
        (nested["second"], of(optional=("key",))),
        (nested["inner"], of("list", "yes")),
        (lambda x: x["k"], of("k", is_getter=True)),
        (lambda x: TABLE[x["k"]], of("k")),
        (strips, of("yes", optional=("flag", "other"))),
        (by_outer_name, of("outer")),
        (by_closure(), of("enclosed", is_getter=True)),
        ((lambda x: lambda x: x["in"])(None), of("in", is_getter=True)),
        (lambda _: 1, of()),
        (operator.itemgetter("a"), of("a", is_getter=True)),
        (operator.itemgetter("a", "b"), of("a", "b")),
        (functools.partial(lambda k, x: x["k"] + k, 1), of("k")),
        (Callee(), of("called")),
        (Callee().method, of("method")),
        (lambda x: f"{x['a']}: {x['b']!r}", of("a", "b")),
    ],
)
def test_keys_are_found(function: Callable[..., Any], expected: ReadKeys) -> None:
    assert read_keys(function) == expected


def aliased(x: Any) -> Any:
    d = x
    return d["a"]


def rebound(x: Any) -> Any:
    x = dict(x)
    return x["a"]


def sees_locals(x: Any) -> Any:
    return locals()["x"]["a"]


def unpacks(x: Any) -> Any:
    match x:
        case {"a": a, **x}:
            return a


def shadowed(x: Any) -> Any:
    return [x for x in x["a"]]  # noqa: C416


def takes_the_rest(x: Any) -> Any:
    match x["rows"]:
        case {"a": _, **x}:
            return x["b"]


def by_local_helper(x: Any) -> Any:
    strips = str
    return strips(x)


def by_local_name(x: Any) -> Any:
    NAME = x["a"]
    return x[NAME]


def by_empty_cell() -> Any:
    def reads(x: Any) -> Any:
        return x[late]

    if not callable(reads):
        late = "never"
    return reads


made_by_exec: dict[str, Any] = {}
exec("f = lambda x: x['a']", made_by_exec)


@pytest.mark.parametrize(
    "function",
    [
        aliased, rebound, sees_locals, unpacks, shadowed, made_by_exec["f"], print, len, operator.itemgetter(0),
        takes_the_rest, by_local_helper, by_local_name, by_empty_cell(), lambda x: x[NUMBER],
        lambda x: {**x}, lambda x: dict(x), lambda x: x[NAME + "s"], lambda x: x, lambda x: x.items(),
        lambda x: x.get("a", 1, 2), lambda x: (x["a"], x), lambda *args: args[0]["a"], lambda x: x.pop("a"),
        lambda x: eval("x['b']"), functools.partial(lambda x, y: x["a"] + y["b"], y=1, x={}),
    ],
)  # fmt: skip
def test_what_escapes_reads_everything(function: Callable[..., Any]) -> None:
    assert read_keys(function) is None


def test_a_function_runs_the_same_on_its_keys_alone() -> None:
    whole = {"docs": [1], "more": [2], "key": 0, "list": [{"no": 1}], "yes": 2, "a": 1, "b": 2, "c": 3}
    for function in (left, right, *nested.values()):
        read = read_keys(function)
        assert read is not None
        alone = {k: whole[k] for k in (*read.required, *read.optional)}
        assert function(alone) == function(whole)


def test_origin() -> None:
    assert origin_of(strips).startswith("strips (test_keys.py:")
    assert origin_of(functools.partial(strips)).startswith("strips (")
    assert origin_of(len) == "len"


@pytest.mark.parametrize(
    "now",
    ["def f(x): return x['b']", "def f(y): return str(y['a'])", "def f(x, y=0): return str(x['a'])", "f = 1", "def f("],
)
def test_a_file_that_has_changed_tells_nothing(tmp_path: Path, now: str) -> None:
    file, made = tmp_path / "changed.py", dict[str, Any]()
    exec(compile("def f(x): return str(x['a'])", file, "exec"), made)
    file.write_text(now)
    assert read_keys(made["f"]) is None


def test_a_function_that_calls_itself_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(keys, "source_of", lambda function: read.append(function) or source_of(function))
    assert read_keys(by_itself) is None
    assert read == [by_itself] * 2  # the second time it is known
