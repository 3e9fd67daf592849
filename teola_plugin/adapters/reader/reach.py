"""The reach of a function beyond its own variables, by source: a hint for ordering, never a permission.

Code behind a function waits until the function is read to the end, if the function may change values that the code
reads. The reading itself is exact; the reach only decides which code need not wait.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.reader.mentions import functions_in, is_harmless, mentioned
from teola_plugin.adapters.source import FunctionNode, node_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_QUIET = frozenset({
    "abc", "ast", "base64", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "difflib", "enum",
    "fractions", "functools", "hashlib", "heapq", "html", "itertools", "json", "math", "numbers", "operator", "pprint",
    "random", "re", "statistics", "string", "textwrap", "time", "types", "typing", "unicodedata", "uuid",
})  # fmt: skip
"""Modules of the standard library without effects."""

_LOUD = _words("open exec eval compile input breakpoint setattr delattr globals vars locals __import__")
"""Builtins that may change anything."""

CHANGING = _words(
    "add append appendleft clear discard extend extendleft insert pop popitem popleft remove reverse rotate setdefault "
    "sort update subtract move_to_end difference_update intersection_update symmetric_difference_update"
)
"""Methods of containers that change the container."""

CHANGING_OTHERS = _words("set_content add_user_message add_ai_message add_message add_messages put put_nowait")
"""Methods of the frameworks' objects, and of queues, with changes of the object."""

ALTERING = _words(
    "heappush heappop heapify heapreplace heappushpop insort insort_left insort_right shuffle setitem delitem "
    "iadd iand iconcat imul ior isub ixor setattr delattr"
)
"""Functions of the standard library that change their first argument."""

_READING = _words(
    "capitalize casefold center copy count encode decode endswith expandtabs find format format_map get index "
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper "
    "items join keys ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition "
    "rsplit rstrip split splitlines startswith strip swapcase title translate upper values zfill difference "
    "intersection issubset issuperset isdisjoint symmetric_difference union most_common group groups groupdict span "
    "to_string to_messages pretty_repr isoformat strftime date time"
)
"""Methods of data without effects."""

_QUICK = CHANGING | _READING | frozenset(vars(builtins)) | {""}
"""What is called without a request: methods of data, and builtins."""

_ASKING = _words(
    "invoke ainvoke run arun predict apredict similarity_search asimilarity_search search create parse get post"
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_MAKERS = _words("list dict set sorted str int float defaultdict Counter deque OrderedDict")
_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.JoinedStr)


@dataclass(frozen=True, slots=True)
class Reach:
    """The reach of a function. `asks`: may ask models and stores. `acts`: may change the world outside of the program.

    `changes`: may change variables or objects that other functions see. `alters`: does change some, by the source.
    `repeats`: asks more than once, by the source.
    """

    asks: bool
    acts: bool
    changes: bool
    alters: bool = False
    repeats: bool = False


def reach_of(function: Any, is_known: Callable[[Any], bool]) -> Reach:
    """Return the reach of a user's function and of functions named there. `is_known`: further values that never ask."""
    named = [value for value in mentioned(function) if not is_known(value)]
    nodes = [node_of(each) for each in functions_in(function)]
    imported = [name for node in nodes if node is not None for name in _imports(node)]
    asks = None in nodes or not all(map(is_harmless, named)) or not all(map(_is_standard, imported))
    modules = {value.__name__.split(".")[0] for value in named if type(value) is types.ModuleType}
    acts = asks or not _QUIET.issuperset(modules | set(imported)) or any(_is_loud(node) for node in nodes if node)
    found = [node for node in nodes if node]
    changes = acts or any(map(_changes, found))
    return Reach(asks, acts, changes, any(map(alters, found)), repeats=asks and _repeats(found))


def _repeats(nodes: list[FunctionNode]) -> bool:
    """Whether the source calls components, or one of these functions, at two places, or what may ask in a loop."""
    parts = [each for node in nodes for each in ast.walk(node)]
    called = Counter(map(_called, parts))
    own = {node.name for node in nodes if not isinstance(node, ast.Lambda)}
    looped = {_called(each) for p in parts if isinstance(p, _LOOPS) for each in ast.walk(p)}
    is_repeated = sum(called[name] for name in _ASKING) > 1 or any(called[name] > 1 for name in own)
    return is_repeated or not looped <= _QUICK


def _called(part: ast.AST) -> str:
    """Return the called name; empty for parts without a call."""
    match part:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name
        case _:
            return ""


def _is_standard(module: str) -> bool:
    return module in sys.stdlib_module_names


def _imports(node: FunctionNode) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield "" if level else str(module).split(".")[0]


def _is_loud(node: FunctionNode) -> bool:
    return any(isinstance(each, ast.Name) and each.id in _LOUD for each in ast.walk(node))


def _changes(node: FunctionNode) -> bool:
    """Whether the function may change an object in place which was made elsewhere."""
    own, local = _own_names(node), _local_names(node)
    return any(_is_change(each, own, local) for part in _body(node) for each in ast.walk(part))


@functools.lru_cache(maxsize=1024)
def alters(node: FunctionNode) -> bool:
    """Whether the function stores into, or adds to, an object made elsewhere."""
    own = _own_names(node)
    return any(_is_altering(each, own) for part in _body(node) for each in ast.walk(part))


def _is_altering(node: ast.AST, own: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=changed, attr=attr)) if attr[:2] == "__":
            return not _is_own(changed, own)
        case ast.Call(func=ast.Name(id="exec" | "eval")):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[changed, *_]) if name in ALTERING:
            return not _is_own(changed, own)
        case ast.Attribute(ctx=ctx, attr=attr, value=changed):  # the method may be called somewhere else
            is_method = attr in CHANGING or attr in CHANGING_OTHERS
            return (is_method or not isinstance(ctx, ast.Load)) and not _is_own(changed, own)
        case ast.AugAssign(target=ast.Name() as changed, value=value):  # of a list, under another name
            is_number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
            return not is_number and not _is_own(changed, own)
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed):
            return not _is_own(changed, own)
        case _:
            return False


def _is_change(node: ast.AST, own: set[str], local: set[str]) -> bool:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Global() | ast.Nonlocal():
            return True
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed):
            return not _is_own(changed, own)
        case ast.Call(func=ast.Attribute(value=changed, attr=attr)):
            is_known = attr in _READING or (attr not in CHANGING and attr[:2] != "__" and _root(changed) not in local)
            return not (is_known or _is_own(changed, own))
        case ast.Call(func=ast.Name(id=name)):
            return name in local
        case ast.AugAssign(target=ast.Name() as changed):
            return not _is_own(changed, own)
        case _:
            return False


def asks_what_it_is_given(node: FunctionNode) -> bool:
    """Whether the function calls a parameter, or a method of one that is no method of data."""
    given = _given_names(node)
    return any(_is_of_given(each.func, given) for each in ast.walk(node) if isinstance(each, ast.Call))


def _is_of_given(callee: ast.expr, given: set[str]) -> bool:
    match callee:
        case ast.Name(id=name):
            return name in given
        case ast.Attribute(value=owner, attr=attr):
            return attr not in _QUICK and _root(owner) in given
    return False


def _root(node: ast.expr) -> str:
    """Return the variable at the root of an expression; empty without a variable."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_own(node: ast.expr, own: set[str]) -> bool:
    return isinstance(node, _FRESH) or (isinstance(node, ast.Name) and node.id in own)


def _own_names(node: FunctionNode) -> set[str]:
    """Return the variables that only ever hold a container or text made in the function."""
    nodes = [each for part in _body(node) for each in ast.walk(part)]
    made: set[int] = set()
    for each in nodes:
        match each:
            case ast.Assign(targets=targets, value=value) if _is_fresh(value):
                made |= {id(target) for target in targets}
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_fresh(value):
                made.add(id(target))
            case ast.AugAssign(target=target):
                made.add(id(target))
    stored = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return {each.id for each in stored} - {each.id for each in stored if id(each) not in made} - _given_names(node)


def _local_names(node: FunctionNode) -> set[str]:
    nodes = [each for part in _body(node) for each in ast.walk(part)]
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return stored | _given_names(node)


def _given_names(node: FunctionNode) -> set[str]:
    """Return the parameters of a function and of nested functions."""
    inner = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    return {arg.arg for each in inner for arg in ast.walk(each.args) if isinstance(arg, ast.arg)}


def _is_fresh(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in _MAKERS
    return isinstance(node, _FRESH)


def _body(node: FunctionNode) -> list[ast.AST]:
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)
