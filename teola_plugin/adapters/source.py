"""The syntax tree of a function that already exists, or None where the tree is not certain.

`inspect.getsource` cuts a lambda out by lines, which fails inside a multi-line dict and takes the wrong one of two
lambdas on a line. Here the statement or method around it is parsed (or the whole file, where these cannot be told) and
the node is found by the columns in the code object.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.syntax import parse

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Source:
    """A function's node, the function, and the parameter that takes a caller's first argument (None: `*args`).

    `fixed`: the values of the other parameters if not passed: `self`, arguments of a `partial`, defaults.
    """

    node: FunctionNode
    function: types.FunctionType
    parameter: str | None
    fixed: Mapping[str, Any]


def source_of(callable_: Any) -> Source | None:
    """Return the source of a function, lambda, method, `functools.partial` or object with `__call__`; never raises."""
    unwrapped = _unwrap(callable_)
    if unwrapped is None:
        return None
    function, bound, keywords = unwrapped
    node = node_of(function)
    if node is None:
        return None
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    free = names[len(bound) :]
    parameter = free[0] if free and free[0] not in keywords else None
    defaults = function.__defaults__ or ()
    fixed = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    fixed.pop(parameter or "", None)
    return Source(node, function, parameter, {**fixed, **dict(zip(names, bound, strict=False)), **keywords})


MISSING = object()
"""The value of an unbound name."""


def outer_value(function: types.FunctionType, name: str) -> Any:
    """Return the present value of a name from outside a function (closure, global or builtin), or MISSING."""
    code = function.__code__
    if name in code.co_freevars:
        cell = (function.__closure__ or ())[code.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING
    return function.__globals__.get(name, getattr(builtins, name, MISSING))


def origin_of(callable_: Any) -> str:
    """Return `name (file.py:line)` of a callable, as graphs show it; just the name where there is no file."""
    unwrapped = _unwrap(callable_)
    if unwrapped is None:
        return getattr(callable_, "__name__", type(callable_).__name__)
    code = unwrapped[0].__code__
    return f"{unwrapped[0].__name__} ({code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno})"


def unwrapped(callable_: Any) -> types.FunctionType | None:
    """Return the plain function behind a callable, or None; never raises."""
    found = _unwrap(callable_)
    return found[0] if found else None


def _unwrap(callable_: Any) -> tuple[types.FunctionType, tuple[Any, ...], dict[str, Any]] | None:
    """Return the plain function, and the arguments that are bound already, by place and by name."""
    bound: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while True:
        if isinstance(callable_, functools.partial):
            bound = (*callable_.args, *bound)
            keywords = {**callable_.keywords, **keywords}
            callable_ = callable_.func
        elif isinstance(callable_, types.MethodType):
            bound = (callable_.__self__, *bound)
            callable_ = callable_.__func__
        elif isinstance(callable_, types.FunctionType):
            return original_of(callable_), bound, keywords
        else:
            call = next((vars(c)["__call__"] for c in type(callable_).__mro__ if "__call__" in vars(c)), None)
            if not isinstance(call, types.FunctionType):
                return None
            bound = (callable_, *bound)
            callable_ = call


TWIN_OF = "__teola_twin_of__"
"""The attribute by which the result of `optimize` knows the user's own function or object."""


def original_of(function: types.FunctionType) -> types.FunctionType:
    """Return the user's own function of a function that `optimize` returned; any other function itself."""
    original: types.FunctionType = vars(function).get(TWIN_OF, function)
    return original


def node_of(function: types.FunctionType) -> FunctionNode | None:
    """Return the node of a plain function in its present file. Never raises."""
    code = function.__code__
    lines = _lines_of(function)
    known, node = _nodes.get(key := (code.co_filename, code), (None, None))
    if known is not lines:
        node = next((node for text in texts_around(function) if (node := node_in(text, code))), None)
        if len(_nodes) >= MOST_NODES:
            _nodes.clear()
        _nodes[key] = lines, node
    return node


MOST_NODES = 1024
_nodes: dict[tuple[str, types.CodeType], tuple[list[str], FunctionNode | None]] = {}
"""Found nodes, with the lines of their files."""


def _lines_of(function: types.FunctionType) -> list[str]:
    """Return the lines of the file: the same list as long as the file is not read again."""
    try:
        return linecache.getlines(function.__code__.co_filename, function.__globals__)
    except (OSError, UnicodeDecodeError):
        return []


def texts_around(function: types.FunctionType) -> Iterator[str]:
    """Yield texts that may have the function, each line at its place: more and more of the function's file.

    These are the method of a class without the rest of the class, the statement of the file, and the whole file. The
    first two are told by indentation, so a part may be missing; but most of a large file is never needed. The file's
    imports are in each text, since CPython compiles calls of what is imported in a way of its own.
    """
    lines = _lines_of(function)
    at = min(function.__code__.co_firstlineno, len(lines)) - 1
    if at >= 0:
        begin, end = _statement(lines, at, 0)
        parts = [(begin, end)]
        if header := _CLASS.match(lines[begin]):
            inner = min((_indentation(line) for line in lines[begin + 1 : at + 1] if line.strip()), default=0)
            parts.insert(0, _statement(lines, at, inner))
        blank = ["\n"] * len(lines)
        for number, line in _imports(lines):
            blank[number] = line
        for first, last in parts:
            text = blank.copy()
            if header:
                text[begin] = f"{header[0]}:\n"
            text[first:last] = lines[first:last]
            yield "".join(text)
    yield "".join(lines)


def _imports(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the imports outside of functions and classes, by line, without indentation."""
    is_open = is_inside = False
    for number, line in enumerate(lines):
        if line[:1].isalpha():
            is_inside = line.startswith(("def ", "class ", "async "))
        if is_open or (not is_inside and line.lstrip().startswith(("import ", "from "))):
            yield number, line.lstrip(" ")
            is_open = (("(" in line or is_open) and ")" not in line) or line.endswith("\\\n")


def _statement(lines: Sequence[str], at: int, indentation: int) -> tuple[int, int]:
    """Return the begin and the end of the statement around a line, with its decorators."""

    def begins(line: str) -> bool:
        return _indentation(line) == indentation and _BEGIN.match(line, indentation) is not None

    begin = at
    while begin > 0 and not begins(lines[begin]):
        begin -= 1
    end, is_decorator = begin, True
    while end < len(lines):
        if begins(lines[end]):
            if not is_decorator:
                break
            is_decorator = lines[end][indentation] == "@"
        end += 1
    return begin, end


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


_BEGIN = re.compile(r"(?!(?:else|elif|except|finally)\b)[^\W\d]|@")
"""How a statement begins, or a decorator of one."""

_CLASS = re.compile(r"class\s+\w+")


def node_in(text: str, code: types.CodeType) -> FunctionNode | None:
    """Return the node of a function in the text of its file, or of a part of the file. Never raises."""
    try:
        found = [n for n in _functions(code.co_filename, text) if _may_be(n, code)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(next(iter(found), None), ast.Lambda) and len(found) > 1:
        found = [n for n in found if _contains(n, code)]
        found = sorted(found, key=lambda n: (n.lineno, n.col_offset))[-1:]  # of nested bodies, the innermost
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=256)
def _functions(filename: str, text: str) -> tuple[FunctionNode, ...]:
    nodes = ast.walk(parse(text, filename))
    return tuple(n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def _may_be(node: FunctionNode, code: types.CodeType) -> bool:
    """Whether name, place and parameters agree, and the node has all identifiers (the file may have changed)."""
    if isinstance(node, ast.Lambda):
        if code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
            return False
    else:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if code.co_name != node.name or first != code.co_firstlineno:
            return False
    args = node.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    if tuple(names) != code.co_varnames[: len(names)] or len(names) != code.co_argcount + code.co_kwonlyargcount:
        return False
    return set(code.co_names) <= set(_identifiers(node))


def _identifiers(node: FunctionNode) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield from (name, *name.split("."))
            case ast.ImportFrom(module=str(name)) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign() | ast.Assert():  # the compiler's own names
                yield from ("__annotations__", "AssertionError")
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names


def _contains(node: FunctionNode, code: types.CodeType) -> bool:
    """Whether all positions in the code lie inside the body of the lambda."""
    body = node.body
    assert isinstance(body, ast.expr)
    start = (body.lineno, body.col_offset)
    end = (body.end_lineno or body.lineno, body.end_col_offset or 0)
    positions = [p for p in code.co_positions() if None not in p and p[2:] != (0, 0)]
    return bool(positions) and all(
        start <= (line, column) and (end_line, end_column) <= end for line, end_line, column, end_column in positions
    )
