"""The verified syntax tree of a code object: compiling its statement, or the file, again gives an equal code object."""

from __future__ import annotations
import __future__

import contextlib
import functools
import types

from teola_plugin.adapters.source import FunctionNode, node_in, texts_around

ANNOTATIONS = __future__.annotations.compiler_flag


def verified_node(function: types.FunctionType) -> FunctionNode | None:
    """Return the node of a plain function, or None if the source is uncertain. Never raises."""
    code = function.__code__
    for text in texts_around(function):
        if (node := node_in(text, code)) is None:
            continue
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            if code in codes_in(text, code.co_filename, code.co_flags & ANNOTATIONS):
                return node
    return None


@functools.lru_cache(maxsize=256)
def codes_in(text: str, filename: str, flags: int) -> frozenset[types.CodeType]:
    """Return all code objects of a file or of a part of the file."""
    found: set[types.CodeType] = set()
    todo = [compile(text, filename, "exec", flags, dont_inherit=True)]
    while todo:
        code = todo.pop()
        found.add(code)
        todo += [const for const in code.co_consts if type(const) is types.CodeType]
    return frozenset(found)
