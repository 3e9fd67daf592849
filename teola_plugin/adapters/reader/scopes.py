"""The names of a function: own variables, variables of enclosing functions, and outside names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.reader.heap import FUNCTION, OUTER, RUN, Frame
from teola_plugin.adapters.reader.outer import place_of
from teola_plugin.adapters.reader.values import GENERAL, Unknown

Evaluate = Callable[[Frame], Any]
"""A compiled expression."""

Store = Callable[[Frame, Any], None]
"""A compiled target of an assignment."""

Scoped = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass(frozen=True)
class Scope:
    """The variables of one function, lambda or comprehension, and the scope around.

    `globals`: names that the function declares to be global.
    """

    names: frozenset[str]
    around: Scope | None = None
    globals: frozenset[str] = frozenset()
    is_comprehension: bool = False

    def distance(self, name: str) -> int | None:
        """Return how many scopes further out a name is a variable; None for an outside name."""
        scope: Scope | None = self
        steps = 0
        while scope is not None:
            if name in scope.globals:
                return None
            if name in scope.names:
                return steps
            steps, scope = steps + 1, scope.around
        return None

    def load(self, name: str) -> Evaluate:
        """Compile a read of a name."""
        steps = self.distance(name)
        if steps == 0 and not self.is_comprehension:
            return _local(name)
        if steps is None:
            return _from_outside(name)
        return _enclosing(name, steps)

    def store(self, name: str) -> Store:
        """Compile a binding of a name."""
        steps = self.distance(name)
        if steps is None:
            what = f"it sets the name {name}, which is not its own"

            def store_outside(frame: Frame, value: Any) -> None:
                function = frame[FUNCTION]
                frame[RUN].store(place_of(function, name), function, value, what)

            return store_outside
        if steps == 0:

            def store(frame: Frame, value: Any) -> None:
                run = frame[RUN]
                if run.is_logging:
                    run.note(frame)
                frame[name] = value

            return store

        def store_outer(frame: Frame, value: Any) -> None:
            for _ in range(steps):
                frame = frame[OUTER]
            frame[RUN].note(frame)
            frame[name] = value

        return store_outer


def scope_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, around: Scope | None) -> Scope:
    """Return the scope of a function."""
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    names = {arg.arg for arg in _arguments(node.args)}
    declared: set[str] = set()
    outside: set[str] = set()
    for part in body:
        for inner in own_nodes(part):
            names.update(_bound_by(inner))
            if isinstance(inner, ast.Global):
                outside.update(inner.names)
            if isinstance(inner, ast.Global | ast.Nonlocal):
                declared.update(inner.names)
    return Scope(frozenset(names - declared), around, frozenset(outside))


def comprehension_scope(generators: list[ast.comprehension], around: Scope) -> Scope:
    """Return the scope of a comprehension."""
    targets = (inner for each in generators for inner in ast.walk(each.target) if isinstance(inner, ast.Name))
    return Scope(frozenset(target.id for target in targets), around, is_comprehension=True)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its nodes, except nodes inside of functions and classes, and variables of comprehensions."""
    yield node
    if isinstance(node, Scoped):
        for part in _evaluated_outside(node):
            yield from own_nodes(part)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.comprehension) and child is node.target:
            continue
        yield from own_nodes(child)


def _evaluated_outside(node: Scoped) -> Iterator[ast.expr]:
    """Yield the expressions of a definition that are evaluated outside of the defined function or class."""
    if not isinstance(node, ast.Lambda):
        yield from node.decorator_list
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        return
    yield from node.args.defaults
    yield from (each for each in node.args.kw_defaults if each is not None)


def _arguments(args: ast.arguments) -> Iterator[ast.arg]:
    yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)
    yield from (arg for arg in (args.vararg, args.kwarg) if arg is not None)


def _bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.split(".")[0] for alias in aliases)
        case _:
            return


def _local(name: str) -> Evaluate:
    def load(frame: Frame) -> Any:
        try:
            value = frame[name]
        except KeyError:
            message = f"cannot access local variable {name!r} where it is not associated with a value"
            raise UnboundLocalError(message) from None
        return value if type(value) is not Unknown else _perhaps_unbound(frame, value)

    return load


def _perhaps_unbound(frame: Frame, value: Unknown) -> Unknown:
    if GENERAL in value.sources:  # unset on one of the joined paths
        frame[RUN].raises(value.sources)
    return value


def _enclosing(name: str, steps: int) -> Evaluate:
    def load(frame: Frame) -> Any:
        for _ in range(steps):
            frame = frame[OUTER]
        try:
            value = frame[name]
        except KeyError:
            raise NameError(f"cannot access free variable {name!r}") from None
        return value if type(value) is not Unknown else _perhaps_unbound(frame, value)

    return load


def _from_outside(name: str) -> Evaluate:
    def load(frame: Frame) -> Any:
        return frame[RUN].load_name(frame[FUNCTION], name)

    return load
