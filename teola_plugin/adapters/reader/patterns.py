"""Patterns of `match` statements, compiled to closures over frames."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Protocol

from teola_plugin.adapters.reader import classes, operators
from teola_plugin.adapters.reader.heap import RUN, Frame
from teola_plugin.adapters.reader.scopes import Evaluate, Scope
from teola_plugin.adapters.reader.values import Barrier, Undecided

Pattern = Callable[[Frame, Any], bool]
"""Whether a value matches; binds the names of the pattern. Raises: Undecided, Barrier."""


class Expressions(Protocol):
    """Compiles the expressions in patterns, and has the scope of the names there."""

    scope: Scope

    def expression(self, node: ast.expr) -> Evaluate: ...


def compiled_pattern(compiler: Expressions, node: ast.pattern) -> Pattern:
    """Compile a pattern."""
    match node:
        case ast.MatchValue(value=value):
            return _equal(compiler, value)
        case ast.MatchSingleton(value=constant):
            return lambda frame, value: operators.truth(
                frame[RUN], operators.compare(frame[RUN], "is", value, constant)
            )
        case ast.MatchAs(pattern=inner, name=name):
            return _capture(compiler, inner, name)
        case ast.MatchOr(patterns=patterns):
            choices = [compiled_pattern(compiler, each) for each in patterns]
            return lambda frame, value: any(choice(frame, value) for choice in choices)
        case ast.MatchSequence(patterns=patterns) if not any(isinstance(p, ast.MatchStar) for p in patterns):
            return _sequence(compiler, patterns)
        case ast.MatchMapping(keys=keys, patterns=patterns, rest=None):
            return _mapping(compiler, keys, patterns)
        case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=named):
            return _class(compiler, cls, patterns, names, named)
        case _:
            return _refused


def _refused(frame: Frame, value: Any) -> bool:
    raise Barrier("it matches by a pattern that is not read")


def _equal(compiler: Expressions, node: ast.expr) -> Pattern:
    expected = compiler.expression(node)

    def equal(frame: Frame, value: Any) -> bool:
        run = frame[RUN]
        return operators.truth(run, operators.compare(run, "==", value, expected(frame)))

    return equal


def _capture(compiler: Expressions, inner: ast.pattern | None, name: str | None) -> Pattern:
    pattern = compiled_pattern(compiler, inner) if inner else None
    store = compiler.scope.store(name) if name else None

    def capture(frame: Frame, value: Any) -> bool:
        if pattern and not pattern(frame, value):
            return False
        if store:
            store(frame, value)
        return True

    return capture


def _sequence(compiler: Expressions, nodes: list[ast.pattern]) -> Pattern:
    patterns = [compiled_pattern(compiler, each) for each in nodes]

    def sequence(frame: Frame, value: Any) -> bool:
        _known(frame, value)
        if type(value) not in (list, tuple):
            if type(value) in classes.ATOMS or type(value) is dict:
                return False
            raise Barrier("it matches a sequence with an object of another class")
        return len(value) == len(patterns) and all(p(frame, v) for p, v in zip(patterns, value, strict=True))

    return sequence


def _mapping(compiler: Expressions, keys: list[ast.expr], nodes: list[ast.pattern]) -> Pattern:
    pairs = [
        (compiler.expression(key), compiled_pattern(compiler, each)) for key, each in zip(keys, nodes, strict=True)
    ]

    def mapping(frame: Frame, value: Any) -> bool:
        _known(frame, value)
        if type(value) is not dict:
            if type(value) in classes.ATOMS or type(value) in (list, tuple):
                return False
            raise Barrier("it matches a mapping with an object of another class")
        found = [(key(frame), pattern) for key, pattern in pairs]
        return all(key in value for key, _ in found) and all(p(frame, value[key]) for key, p in found)

    return mapping


def _class(
    compiler: Expressions, cls: ast.expr, nodes: list[ast.pattern], names: list[str], named: list[ast.pattern]
) -> Pattern:
    expected = compiler.expression(cls)
    patterns = [compiled_pattern(compiler, each) for each in nodes]
    by_name = [(name, compiled_pattern(compiler, each)) for name, each in zip(names, named, strict=True)]

    def matches(frame: Frame, value: Any) -> bool:
        run = frame[RUN]
        kind = expected(frame)
        if not operators.truth(run, classes.is_instance(run, value, kind)):
            return False
        if patterns:
            places = classes.match_args(run, kind, value, len(patterns))
            if not all(p(frame, v) for p, v in zip(patterns, places, strict=True)):
                return False
        for name, pattern in by_name:
            try:
                held = classes.attribute(run, value, name)
            except AttributeError:
                return False
            if not pattern(frame, held):
                return False
        return True

    return matches


def _known(frame: Frame, value: Any) -> None:
    if frame[RUN].is_unknown(value):
        raise Undecided
