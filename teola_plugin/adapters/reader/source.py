"""The verified syntax tree of a code object: compiling the file again gives an equal code object."""

from __future__ import annotations
import __future__

import functools
import linecache
import types

from teola_plugin.adapters.source import FunctionNode, node_of

_ANNOTATIONS = __future__.annotations.compiler_flag


def verified_node(function: types.FunctionType) -> FunctionNode | None:
    """Return the node of a plain function, or None if the source is uncertain. Never raises."""
    code = function.__code__
    node = node_of(function)
    if node is None:
        return None
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        known = _codes_in(text, code.co_filename, code.co_flags & _ANNOTATIONS)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return node if code in known else None


@functools.lru_cache(maxsize=64)
def _codes_in(text: str, filename: str, flags: int) -> frozenset[types.CodeType]:
    """Return all code objects of a file."""
    found: set[types.CodeType] = set()
    todo = [compile(text, filename, "exec", flags, dont_inherit=True)]
    while todo:
        code = todo.pop()
        found.add(code)
        todo += [const for const in code.co_consts if type(const) is types.CodeType]
    return frozenset(found)
