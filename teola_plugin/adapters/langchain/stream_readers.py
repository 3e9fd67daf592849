"""Whether the loop that reads a stream of a graph takes the whole stream, whatever comes.

    for output in app.stream(inputs):          # nothing here ends the loop, or raises: what the next nodes request
        for key, value in output.items():      # is as certain as with `app.invoke(inputs)`
            print(f"Node '{key}':")

The loop runs between two items and may stop: by `break` or `return`, by an error, or by a `yield` whose caller does not
come back. Accepted are loops in verified source whose statements raise nothing: `print` and `pprint`, appending to a
list, assigning names, `if` of keys. Whether what is printed is converted to text without code of the program's, is left
to the reader of the graph, as far as the graph makes the values.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import pprint
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.reader.facts import runs_at_end
from teola_plugin.adapters.reader.foreign import is_atom
from teola_plugin.adapters.reader.outlets import prints
from teola_plugin.adapters.reader.source import ANNOTATIONS, codes_in
from teola_plugin.adapters.reader.stacks import variables_of
from teola_plugin.adapters.source import texts_around
from teola_plugin.syntax import parse

Loop = ast.For | ast.AsyncFor

_PRINT, _PRETTY = builtins.print, pprint.pprint

_OF_UPDATES = ("items", "values", "keys")
"""Methods of an item of a stream of updates: a dict from the names of nodes to what the nodes returned."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A loop that takes a whole stream. `changes`: see `watched.heard_by`. `shows`: whether values are printed."""

    changes: frozenset[Hashable]
    shows: bool


def taker_at(frame: types.FrameType, graph: Any, options: Mapping[str, Any]) -> Taker | None:
    """Return the loop at a frame, whose code takes the first item now; None for code that may stop before the end.

    `graph`, `options`: whose stream is read, and the arguments of `stream`.
    """
    if (loop := _loop_at(frame)) is None:
        return None
    mode = options.get("stream_mode") or getattr(graph, "stream_mode", None)
    is_plain = not options.get("subgraphs") and options.get("version") in (None, "v1")
    try:
        return _Statements(frame, is_of_updates=is_plain and mode == "updates").taker(loop, graph)
    except _MayStop:
        return None


# --- the loop --------------------------------------------------------------------------------------------------------


def _loop_at(frame: types.FrameType) -> Loop | None:
    """Return the loop at the current instruction of a frame; None for others, and if the source is uncertain."""
    code = frame.f_code
    loops = next(filter(None, (_loops_in(text, code) for text in _texts_of(frame) if len(text) <= LONGEST_TEXT)), ())
    at = next((where for n, where in enumerate(code.co_positions()) if n == frame.f_lasti // 2), None)
    found = [loop for loop in loops if at in (_place_of(loop), _place_of(loop.iter))]
    return found[0] if len(found) == 1 else None


LONGEST_TEXT = 50_000
"""Characters of source that are compiled while a stream begins: some 20 ms. A file of 8,000 lines takes 0.5 s."""


def _texts_of(frame: types.FrameType) -> Iterable[str]:
    """Return texts that may have the code of a frame, the shortest first."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_NEWLOCALS:
        return ["".join(linecache.getlines(code.co_filename, frame.f_globals))]
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return texts_around(types.FunctionType(code, frame.f_globals, closure=cells))


@functools.lru_cache(maxsize=64)
def _loops_in(text: str, code: types.CodeType) -> Sequence[Loop]:
    """Return the `for` loops in a text that has the code; none if compiling the text gives other code."""
    is_module = not code.co_flags & inspect.CO_NEWLOCALS
    flags = code.co_flags & ANNOTATIONS | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if is_module else 0)
    try:
        tree = parse(text)
        if code not in codes_in(text, code.co_filename, flags) and code not in _codes_of_cell(tree, code, flags):
            return ()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return [each for each in ast.walk(tree) if isinstance(each, Loop)]


def _codes_of_cell(tree: ast.Module, code: types.CodeType, flags: int) -> Iterator[types.CodeType]:
    """Yield the code of each statement by itself, as notebooks compile a cell."""
    for each in tree.body:
        made = compile(ast.Module([each], []), code.co_filename, "exec", flags, dont_inherit=True)
        yield made.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def _place_of(node: ast.stmt | ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


# --- what it does ----------------------------------------------------------------------------------------------------


class _MayStop(Exception):
    """The loop may stop, or is not understood."""


def _require(condition: object) -> None:
    if not condition:
        raise _MayStop


class _Statements:
    """The statements of a loop, with the variables of a frame at the first item.

    `is_of_updates`: each item is a dict whose keys are texts.
    """

    def __init__(self, frame: types.FrameType, *, is_of_updates: bool) -> None:
        self._code = code = frame.f_code
        self._globals = frame.f_globals
        self._own = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        self._locals = variables_of(frame, self._own) if code.co_flags & inspect.CO_NEWLOCALS else self._globals
        self._is_of_updates = is_of_updates
        self._items: set[str] = set()
        self._keys: set[str] = set()
        self._stored: set[str] = set()
        self._bound: set[str] = set()
        self._changed: set[Hashable] = set()
        self._shows = False

    def taker(self, loop: Loop, graph: Any) -> Taker:
        """Return what the loop over a stream of the graph does. Raises: _MayStop."""
        called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        _require(isinstance(called, ast.Attribute) and self._held(called.value) is graph)
        self._stored |= {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and _is_stored(each)}
        items = self._store(loop.target)
        if self._is_of_updates:
            self._items.add(items)
        self._run(loop.body)
        return Taker(frozenset(self._changed), self._shows)

    def _run(self, block: Sequence[ast.stmt]) -> None:
        for each in block:
            match each:
                case ast.Pass() | ast.Continue() | ast.Expr(ast.Constant()):
                    pass
                case ast.Expr(ast.Call() as call):
                    self._call(call)
                case ast.Assign([target], value):
                    self._value(value)
                    self._take(value)
                    self._store(target)
                case ast.If(test, body, orelse):
                    self._test(test)
                    self._perhaps(body)
                    self._perhaps(orelse)
                case ast.For(target, ast.Call(ast.Attribute(ast.Name(name), method), [], []), body, []):
                    _require(name in self._items and method in _OF_UPDATES)
                    self._perhaps(body, functools.partial(self._store_part, target, method))
                case _:
                    raise _MayStop

    def _perhaps(self, block: Sequence[ast.stmt], begin: Callable[[], None] = lambda: None) -> None:
        """Run a block that may be skipped."""
        bound = set(self._bound)
        begin()
        self._run(block)
        self._bound = bound

    def _store(self, target: ast.expr) -> str:
        """Note that a name is set, and return the name."""
        _require(isinstance(target, ast.Name))
        name: str = target.id  # type: ignore[attr-defined]
        code = self._code
        _require(name not in code.co_cellvars and name not in code.co_freevars)
        _require(name not in self._items and name not in self._keys)
        _require(not runs_at_end(type(self._now(name))))
        if name not in code.co_varnames:
            self._changed.add((id(self._globals), name))
        self._bound.add(name)
        return name

    def _store_part(self, target: ast.expr, method: str) -> None:
        """Note that names are set to keys and values of an item."""
        if method == "items":
            _require(isinstance(target, ast.Tuple) and len(target.elts) == 2)
            key, value = target.elts  # type: ignore[attr-defined]
            self._keys.add(self._store(key))
            self._store(value)
        elif method == "keys":
            self._keys.add(self._store(target))
        else:
            self._store(target)

    def _call(self, call: ast.Call) -> None:
        _require(not any(isinstance(each, ast.Starred) for each in call.args))
        for each in call.args:
            self._value(each)
        match call.func:
            case ast.Name():
                for each in call.args:
                    self._show(each)
                function = self._held(call.func)
                _require(function is _PRINT or (function is _PRETTY and len(call.args) == 1))
                _require(prints([None]))
                _require(all(each.arg in ("end", "sep", "flush") for each in call.keywords))
                _require(all(_is_option(each.value) for each in call.keywords))
            case ast.Attribute(ast.Name() as name, "append"):
                held = self._held(name)
                _require(type(held) is list and len(call.args) == 1 and not call.keywords)
                self._changed.add(id(held))
            case _:
                raise _MayStop

    def _value(self, node: ast.expr) -> None:
        """Require that evaluating raises nothing."""
        match node:
            case ast.Constant():
                pass
            case ast.Name():
                _require(node.id in self._bound or self._has(node.id))
            case ast.JoinedStr(parts):
                for each in parts:
                    self._value(each)
            case ast.FormattedValue(value, _, None):
                self._value(value)
                self._show(value)
            case _:
                raise _MayStop

    def _show(self, node: ast.expr) -> None:
        """Note that a value is converted to text. Raises: _MayStop, if code of the program may do that."""
        self._take(node)
        self._shows |= isinstance(node, ast.Name) and node.id in self._stored - self._keys

    def _take(self, node: ast.expr) -> None:
        """Require that a value is an atom, or made by the stream. Raises: _MayStop."""
        if isinstance(node, ast.Name) and node.id not in self._bound | self._keys:
            _require(is_atom(self._now(node.id)))

    def _test(self, node: ast.expr) -> None:
        """Require that a condition raises nothing, and is a comparison of keys with texts."""
        match node:
            case ast.Compare(ast.Name(name), [ast.Eq() | ast.NotEq()], [ast.Constant(str())]):
                _require(name in self._keys)
            case ast.Compare(ast.Constant(str()), [ast.In() | ast.NotIn()], [ast.Name(name)]):
                _require(name in self._items)
            case ast.BoolOp(_, parts):
                for each in parts:
                    self._test(each)
            case _:
                raise _MayStop

    def _has(self, name: str) -> bool:
        return name in self._locals if name in self._own else name in self._globals or hasattr(builtins, name)

    def _now(self, name: str) -> Any:
        return self._locals.get(name, self._globals.get(name, getattr(builtins, name, None)))

    def _held(self, node: ast.expr) -> Any:
        """Return what a name or an attribute of an object holds, which the loop does not set. Raises: _MayStop."""
        match node:
            case ast.Name(name):
                _require(name not in self._stored and self._has(name))
                return self._now(name)
            case ast.Attribute(owner, name):
                return inspect.getattr_static(self._held(owner), name, None)
        raise _MayStop


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_option(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or type(node.value) in (str, bool))
