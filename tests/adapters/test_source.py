"""Nodes of functions in their files: the same as in the syntax tree of the whole file, most often without that tree."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import types
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters import source
from teola_plugin.adapters.reader.source import verified_node
from teola_plugin.adapters.source import node_in, node_of

PLACES = '''
"""Functions at
def many(places):
"""
import json, re
from collections import (
    deque,
    Counter as C,
)
try:
    import zlib
except ImportError:
    zlib = None
else:
    def in_else(): return zlib.crc32(b"")

def uses_imports(text):
    return json.loads(text), re.compile(text), deque.fromkeys(text), C.fromkeys(text), zlib.crc32(text)

def kept(
    name,
):
    def keep(function):
        names[name] = function
        return function
    return keep

names = {}

@kept(
    "first"
)
@kept("second")
def decorated():
    text = """
def decorated(): of another kind
"""
    return text

@kept("class")
class Some(
    dict
):
    """Has methods

like this one."""

    size = 1

    @kept("method")
    @staticmethod
    def method(): return json.dumps({})

    def of_base(self):
        return __class__, super().get(1)

    if size:
        def in_branch(self): return json.loads("1")
    else:
        def in_other(self): return 2

    def outer(self):
        json = self
        def inner(): return json.loads("1")
        return inner
names["inner"] = Some().outer()
names["of_base"] = Some.of_base
names["in_branch"] = Some.in_branch
names["lambda"] = {
    "first": lambda x: x + 1, "second": lambda x: (
x + 2),
}["second"]
names |= {"one": in_else, "imports": uses_imports}
'''


@pytest.fixture
def functions(tmp_path: Path) -> dict[str, types.FunctionType]:
    path = tmp_path / "places.py"
    path.write_text(PLACES)
    scope: dict[str, Any] = {}
    exec(compile(PLACES, str(path), "exec"), scope)
    return {name: getattr(each, "__func__", each) for name, each in scope["names"].items() if callable(each)}


NAMES = ("first", "second", "method", "inner", "of_base", "in_branch", "lambda", "one", "imports")


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_the_one_of_the_whole_file(functions: dict[str, types.FunctionType], name: str) -> None:
    code = functions[name].__code__
    whole = node_in(Path(code.co_filename).read_text(), code)
    assert whole is not None
    for found in (node_of(functions[name]), verified_node(functions[name])):
        assert found is not None
        assert ast.dump(found, include_attributes=True) == ast.dump(whole, include_attributes=True)


def functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        yield from (each for each in members if isinstance(each, types.FunctionType))


@pytest.mark.parametrize("module", [functools, inspect, urllib.parse, urllib.request])
def test_most_of_a_library_is_not_parsed(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    text = Path(inspect.getfile(module)).read_text()
    lines = text.count("\n")
    own = [each for each in functions_of(module) if each.__module__ == module.__name__]
    found = {each: node for each in own if (node := node_in(text, each.__code__)) is not None}
    sizes: list[int] = []
    parse: Callable[..., ast.Module] = source.parse

    def measured(text: str, filename: str) -> ast.Module:
        sizes.append(sum(map(bool, map(str.strip, text.splitlines()))))
        return parse(text, filename)

    monkeypatch.setattr(source, "parse", measured)
    source._functions.cache_clear()
    for each, expected in found.items():
        node = verified_node(each)
        assert node is not None
        assert ast.dump(node, include_attributes=True) == ast.dump(expected, include_attributes=True)
    assert max(sizes) < lines / 2


def test_a_file_that_changed_is_read_anew(functions: dict[str, types.FunctionType]) -> None:
    function = functions["one"]
    assert node_of(function) is not None
    path = Path(function.__code__.co_filename)
    path.write_text(PLACES.replace("in_else", "in_none"))
    linecache.checkcache(str(path))
    assert node_of(function) is None
    assert verified_node(function) is None


def test_a_function_without_a_file_has_no_node() -> None:
    scope: dict[str, Any] = {}
    exec("def f(): return 1", scope)
    assert node_of(scope["f"]) is None
    assert verified_node(scope["f"]) is None
