"""Expressions of a program, compiled to closures over frames.

Each closure performs the operations of CPython in the same order. An operation on an unknown value has an unknown
result.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from teola_plugin.adapters.reader import calls, classes, methods, operators, unknowns
from teola_plugin.adapters.reader.amounts import JSON, holds_of, is_atom
from teola_plugin.adapters.reader.heap import (
    FUNCTION,
    MAPPED,
    OUTER,
    RUN,
    SITE,
    YIELDED,
    Each,
    Frame,
    changed_by,
    may_call,
)
from teola_plugin.adapters.reader.natives_async import awaited
from teola_plugin.adapters.reader.resuming import arguments_behind
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.scopes import (
    Evaluate,
    Scope,
    Store,
    comprehension_scope,
)
from teola_plugin.adapters.reader.table import is_collection, is_sequence, kind_of, whole
from teola_plugin.adapters.reader.taking import Check, hashed, is_hashed
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    Barrier,
    Callee,
    Lazy,
    Opaque,
    Pending,
    Stalled,
    Undecided,
    Unknown,
)

_CONVERSIONS = {-1: "", 115: "s", 114: "r", 97: "a"}

_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.MatMult: "@",
}  # fmt: skip
_COMPARE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_UNARY = {ast.Not: "not", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}

_sites = itertools.count()
"""Numbers of call expressions, which identify places in a program."""

MAPPINGS = (dict, OrderedDict, defaultdict)


def refusing(what: str) -> Callable[..., Any]:
    """Return the compiled form of a construct that is not read."""

    def refuse(*_: Any) -> Any:
        raise Barrier(what)

    return refuse


MOST_ARMS = 32
"""The number of unknown items of a generator after which `any` and `all` are not read on."""


def _quantified(frame: Frame, items: Iterator[Any], stops_at: bool, most: int) -> Any:
    """Return whether an item has this truth. No item is made behind it, so the rest is an arm for an unknown item."""
    run: Run = frame[RUN]
    for each in items:
        try:
            is_true = operators.truth(run, each)
        except Undecided:
            if not most:
                raise Stalled("it is not known at which of many items it stops") from None
            found = calls.chosen(
                run,
                frame,
                lambda _: stops_at,
                lambda inner: _quantified(inner, items, stops_at, most - 1),
                each,
                is_true=stops_at,
            )
            return run.unknown(found, holds="bool", is_safe=True) if type(found) is Unknown else found
        if is_true is stops_at:
            return stops_at
    return not stops_at


def binary_name(op: ast.operator) -> str:
    """Return the name of an operator in `operators`."""
    return _BINARY[type(op)]


class Expressions:
    """Compiles the expressions of one scope."""

    def __init__(self, scope: Scope, filename: str) -> None:
        self.scope = scope
        self.filename = filename

    def expression(self, node: ast.expr) -> Evaluate:
        """Compile an expression."""
        compile_ = getattr(self, f"_{type(node).__name__.lower()}", None)
        return compile_(node) if compile_ else refusing(f"it uses {type(node).__name__}")

    def _in(self, scope: Scope) -> Expressions:
        return type(self)(scope, self.filename)

    # --- values ------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Evaluate:
        value = node.value
        return lambda frame: value

    def _name(self, node: ast.Name) -> Evaluate:
        return self.scope.load(node.id)

    def _namedexpr(self, node: ast.NamedExpr) -> Evaluate:
        value = self.expression(node.value)
        scope, steps = self.scope, 0
        while scope.is_comprehension and scope.around is not None:
            scope, steps = scope.around, steps + 1
        store = scope.store(node.target.id)

        def named(frame: Frame) -> Any:
            found = value(frame)
            for _ in range(steps):
                frame = frame[OUTER]
            store(frame, found)
            return found

        return named

    def _joinedstr(self, node: ast.JoinedStr) -> Evaluate:
        parts = [self.expression(part) for part in node.values]

        def joined(frame: Frame) -> Any:
            run: Run = frame[RUN]
            made = [part(frame) for part in parts]
            unknown = [part for part in made if type(part) is Unknown]
            if unknown:
                text: Unknown = run.unknown(*unknown, holds="text", is_safe=True)
                text.is_true = any(map(run.is_true, made))
                return text
            run.tick(1 + sum(map(len, made)) // 1000)
            return "".join(made)

        return joined

    def _formattedvalue(self, node: ast.FormattedValue) -> Evaluate:
        value = self.expression(node.value)
        spec = self.expression(node.format_spec) if node.format_spec else None
        conversion = _CONVERSIONS[node.conversion]

        def formatted(frame: Frame) -> Any:
            found = value(frame)
            if type(found) is str and spec is None and not conversion:
                return found
            wanted = spec(frame) if spec else ""
            run: Run = frame[RUN]
            try:
                return operators.formatted(run, found, wanted, conversion)
            except Undecided:
                return run.unknown(found, wanted, holds="text", is_safe=type(wanted) is str and not wanted)

        return formatted

    def _items(self, nodes: Sequence[ast.expr], check: Check | None = None) -> Callable[[Frame], list[Any] | Unknown]:
        """Compile the items of a display or call; the result is unknown where the number of items is.

        `check`: of each item, where some are spread.
        """
        if not any(isinstance(each, ast.Starred) for each in nodes):
            parts = [self.expression(each) for each in nodes]
            return lambda frame: [part(frame) for part in parts]
        starred = [
            (isinstance(each, ast.Starred), self.expression(each.value if isinstance(each, ast.Starred) else each))
            for each in nodes
        ]

        def items(frame: Frame) -> list[Any] | Unknown:
            run: Run = frame[RUN]
            found: list[Any] = []
            kinds: list[Each | None] = []
            is_open = False
            for is_starred, part in starred:
                value = part(frame)
                if not is_starred or run.is_unknown(value):
                    found.append(value)
                    if check is not None and not is_starred:
                        check(run, value)
                else:
                    found.extend(all_of(run, value, check))
                kinds.append(run.each_of(value if is_starred else [value]))
                if is_starred and run.is_unknown(value):
                    is_open = True
                    if not is_collection(value):
                        run.raises(run.sources(value))
                    elif check is not None:
                        each = kinds[-1]
                        check(run, Unknown(each.holds or "any" if each else "any", run.sources(value)))
            if not is_open:
                return found
            each = functools.reduce(Each.joined, (each for each in kinds if each)) if all(kinds) else None
            return Unknown("any", run.sources(*found), over=(each.holds,) if each and each.holds else ())

        return items

    def _display(
        self, nodes: Sequence[ast.expr], kind: type, make: Callable[[Run, list[Any]], Any], check: Check | None = None
    ) -> Evaluate:
        items = self._items(nodes, check)

        def display(frame: Frame) -> Any:
            run: Run = frame[RUN]
            found = items(frame)
            if isinstance(found, Unknown):
                if (each := run.each_of(found)) and kind is list:
                    return run.taint_with([], each)
                return run.taint_with(set(), each) if each and kind is set and is_atom(each.holds) else found
            try:
                return make(run, found)
            except Undecided:
                return run.unknown(*found)

        return display

    def _list(self, node: ast.List) -> Evaluate:
        return self._display(node.elts, list, lambda run, items: items)

    def _tuple(self, node: ast.Tuple) -> Evaluate:
        return self._display(node.elts, tuple, lambda run, items: tuple(items))

    def _set(self, node: ast.Set) -> Evaluate:
        if len(node.elts) > 2 and all(isinstance(each, ast.Constant) for each in node.elts):
            return self._display(node.elts, set, _without_order)
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return self._display(node.elts, set, _without_order, hashed)
        return self._display(node.elts, set, _set_of)

    def _dict(self, node: ast.Dict) -> Evaluate:
        pairs = [
            (self.expression(key) if key else None, self.expression(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]

        def display(frame: Frame) -> Any:
            run: Run = frame[RUN]
            found: dict[Any, Any] = {}
            made: list[tuple[Any, Any]] = []
            parts, spread = list[Any](), list[Any]()
            has_order = True
            for key, value in pairs:
                if key is not None:
                    made.append((key(frame), value(frame)))
                    parts += made[-1]
                    continue
                if not _filled(run, found, made):
                    spread.append(None)
                part = value(frame)
                parts.append(part)
                if (items := run.open_items(part)) is not None:
                    run.spread(found, items)
                    has_order = False
                elif run.is_unknown(part):
                    if type(part) not in MAPPINGS and not (type(part) is Unknown and part.is_dict):
                        run.raises(run.sources(part))
                    spread.append(part)
                else:
                    found.update(mapping(part))
            if not _filled(run, found, made):
                spread.append(None)
            is_open = bool(spread)
            if not is_open and has_order:
                return found
            if has_order and (each := _each_of_dicts(run, [found, *spread])) is not None:
                return run.taint_with({}, each)
            return Unknown("any", run.sources(*parts), None if is_open else found)

        return display

    # --- operations --------------------------------------------------------------------------------------------------

    def _binop(self, node: ast.BinOp) -> Evaluate:
        left, right, name = self.expression(node.left), self.expression(node.right), binary_name(node.op)

        def binary(frame: Frame) -> Any:
            one, two = left(frame), right(frame)
            return operate(frame[RUN], name, one, two)

        return binary

    def _unaryop(self, node: ast.UnaryOp) -> Evaluate:
        operand, name = self.expression(node.operand), _UNARY[type(node.op)]

        def unary(frame: Frame) -> Any:
            run: Run = frame[RUN]
            found = operand(frame)
            try:
                if name == "not":
                    return not operators.truth(run, found)
                return operators.unary(run, name, found)
            except Undecided:
                is_not = name == "not"
                made = run.unknown(found, holds="bool" if is_not else "any", is_safe=is_not)
                made.of = run.shown(found, False) if is_not else None
                return made

        return unary

    def _boolop(self, node: ast.BoolOp) -> Evaluate:
        parts = [self.expression(each) for each in node.values]
        stops_at = isinstance(node.op, ast.Or)

        def rest(frame: Frame, at: int) -> Any:
            run: Run = frame[RUN]
            found = parts[at](frame)
            for later in range(at + 1, len(parts)):
                try:
                    is_true = operators.truth(run, found)
                except Undecided:
                    return either(frame, found, later)
                if is_true is stops_at:
                    return found
                found = parts[later](frame)
            return found

        def either(frame: Frame, found: Any, later: int) -> Any:
            run: Run = frame[RUN]
            behind = list[Any]()

            def others(inner: Frame) -> Any:
                behind.append(rest(inner, later))
                return behind[0]

            made = calls.chosen(run, frame, lambda f: found, others, found, is_true=stops_at)
            if behind and type(made) is Unknown and made.of is None and made is not found and made is not behind[0]:
                made.of = run.shown((found, behind[0]), not stops_at)
            return made

        return lambda frame: rest(frame, 0)

    def _ifexp(self, node: ast.IfExp) -> Evaluate:
        test, body, orelse = self.expression(node.test), self.expression(node.body), self.expression(node.orelse)

        def choice(frame: Frame) -> Any:
            run: Run = frame[RUN]
            found = test(frame)
            try:
                is_true = operators.truth(run, found)
            except Undecided:
                return calls.chosen(run, frame, body, orelse, found)
            return body(frame) if is_true else orelse(frame)

        return choice

    def _compare(self, node: ast.Compare) -> Evaluate:
        left = self.expression(node.left)
        rest = [
            (_COMPARE[type(op)], self.expression(each)) for op, each in zip(node.ops, node.comparators, strict=True)
        ]

        def compare(frame: Frame) -> Any:
            return compared(frame, left(frame), 0)

        def compared(frame: Frame, one: Any, at: int) -> Any:
            run: Run = frame[RUN]
            name, right = rest[at]
            two = right(frame)
            try:
                found = operators.compare(run, name, one, two)
            except Undecided:
                if type(two) is Lazy:
                    raise Stalled("an iterator is used up in part") from None
                found = run.unknown(one, two, holds="bool")
            if at + 1 == len(rest):
                return found
            try:
                return compared(frame, two, at + 1) if operators.truth(run, found) else found
            except Undecided:
                return calls.chosen(run, frame, lambda f: compared(f, two, at + 1), lambda f: found, found)

        return compare

    def _subscript(self, node: ast.Subscript) -> Evaluate:
        owner, index = self.expression(node.value), self.expression(node.slice)

        def subscript(frame: Frame) -> Any:
            run: Run = frame[RUN]
            held, at = owner(frame), index(frame)
            try:
                return operators.subscript(run, held, at)
            except Undecided:
                return run.unknown(held, at)

        return subscript

    def _slice(self, node: ast.Slice) -> Evaluate:
        parts = [self.expression(each) if each else lambda frame: None for each in (node.lower, node.upper, node.step)]

        def made(frame: Frame) -> Any:
            bounds = [part(frame) for part in parts]
            if any(type(each) is Unknown and kind_of(each) != "int" for each in bounds):
                return frame[RUN].unknown(*bounds)
            return slice(*bounds)

        return made

    def _attribute(self, node: ast.Attribute) -> Evaluate:
        if (inner := _of_class(node)) is not None:
            return self._name_of_class(inner, node.attr)
        owner, name = self.expression(node.value), node.attr
        asked = self.expression(called.func) if (called := _type_call(node)) else None

        def attribute(frame: Frame) -> Any:
            run: Run = frame[RUN]
            held = owner(frame)
            if asked and type(held) is Unknown and type(function := asked(frame)) is Opaque and function.held is type:
                return run.unknown(held, holds="text", is_safe=True)
            try:
                return classes.attribute(run, held, name)
            except Undecided:
                return run.unknown(held)

        return attribute

    def _name_of_class(self, inner: ast.expr, name: str) -> Evaluate:
        """Compile `x.__class__.__name__`, which is some text of a text `x`: see `instances.type_of`."""
        owner = self.expression(inner)

        def attribute(frame: Frame) -> Any:
            run: Run = frame[RUN]
            value = held = owner(frame)
            is_text = type(value) is str or (type(value) is Unknown and value.holds == "text")
            if type(value) is Unknown and value.of is BaseException:
                return run.unknown(value, holds="text", is_safe=True)
            try:
                held = classes.attribute(run, value, "__class__")
                if is_text and type(held) is Unknown:
                    return run.unknown(held, holds="text", is_safe=True)
                return classes.attribute(run, held, name)
            except Undecided:
                return run.unknown(held)

        return attribute

    def _starred(self, node: ast.Starred) -> Evaluate:
        return refusing("it uses a star where none is known")

    def _await(self, node: ast.Await) -> Evaluate:
        value = self.expression(node.value)

        def evaluate(frame: Frame) -> Any:
            found = value(frame)
            if type(found) is Pending:
                return awaited(frame[RUN], found)
            if type(found) is Unknown:
                return frame[RUN].unknown(found)
            raise Barrier("it awaits something else than a coroutine")

        return evaluate

    def _yield(self, node: ast.Yield) -> Evaluate:
        value: Evaluate = self.expression(node.value) if node.value else lambda frame: None

        def yielded(frame: Frame) -> None:
            found = value(frame)
            frame[YIELDED](found)

        return yielded

    def _lambda(self, node: ast.Lambda) -> Evaluate:
        return self.function(node, "<lambda>")

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> Evaluate:
        """Compile the definition of a nested function."""
        code = calls.code_of(node, self.scope, name, self.filename)
        defaults = [self.expression(each) for each in node.args.defaults]
        pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        keyword_defaults = {arg.arg: self.expression(each) for arg, each in pairs if each is not None}

        def define(frame: Frame) -> Any:
            given = tuple(each(frame) for each in defaults)
            return calls.closure(code, frame, given, {n: each(frame) for n, each in keyword_defaults.items()})

        return define

    # --- calls -------------------------------------------------------------------------------------------------------

    def whole(self, node: ast.expr) -> Evaluate:
        """Compile the value of a statement which evaluates nothing else; see `resuming.arguments_behind`."""
        return self._call(node, is_whole=True) if isinstance(node, ast.Call) else self.expression(node)

    def _call(self, node: ast.Call, *, is_whole: bool = False) -> Evaluate:
        arguments = self._read_on(node, self._arguments(node)) if is_whole else self._arguments(node)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func, arguments)
        callee, site, end = self.expression(node.func), next(_sites), (node.end_lineno, node.end_col_offset)

        def called(frame: Frame) -> Any:
            run: Run = frame[RUN]
            function = callee(frame)
            given = arguments(frame, function)
            run.site, run.levels[-1].call = (frame[SITE], site), end
            return calls.call_site(run, function, given)

        return called

    def _read_on(self, node: ast.Call, arguments: Callable[[Frame, Any], calls.Given]) -> Callable[..., calls.Given]:
        filename = self.filename

        def behind(frame: Frame, function: Any) -> calls.Given:
            try:
                return arguments(frame, function)
            except Barrier as e:
                e.where = e.where or f"{filename}:{node.lineno}"
                given = arguments_behind(frame[RUN], frame, function, e)
                if given is None:
                    raise
                return given

        return behind

    def _method_call(
        self, call: ast.Call, node: ast.Attribute, arguments: Callable[[Frame, Any], calls.Given]
    ) -> Evaluate:
        owner, name, site = self.expression(node.value), node.attr, next(_sites)
        has_arguments, end = bool(call.args or call.keywords), (call.end_lineno, call.end_col_offset)
        is_join = name == "join"
        is_default = name in ("setdefault", "get") and len(call.args) == 2
        has_new = is_default and not isinstance(call.args[0], ast.Starred) and is_new_list(call.args[1])

        def called(frame: Frame) -> Any:
            run: Run = frame[RUN]
            held = changed_by(owner(frame))
            kind = type(held)
            if methods.has_method(kind, name):
                args, kwargs = arguments(frame, str.join if is_join and kind is str else None)
                run.tick()
                run.site = (frame[SITE], site)
                run.new_list = args[1] if has_new else None
                try:
                    return methods.method(run, held, name, args, kwargs)
                except Undecided:
                    return calls.undecided(run, (held, *args, *kwargs.values()))
                finally:
                    run.new_list = None
            if kind is Unknown:
                if has_arguments and not unknowns.surely_has(run, held, name):
                    error = AttributeError if kind_of(held) in ("match", JSON) else Exception
                    run.raises(held.sources, error=error)  # before the arguments are evaluated
                args, kwargs = arguments(frame, None)
                try:
                    return methods.unknown_method(run, held, name, args, kwargs)
                except Undecided:
                    return calls.undecided(run, (held, *args, *kwargs.values()))
            try:
                function = classes.attribute(run, held, name)
            except Undecided:
                function = run.unknown(held)
            given = arguments(frame, function)
            run.site, run.levels[-1].call = (frame[SITE], site), end
            return calls.call_site(run, function, given)

        return called

    def _arguments(self, node: ast.Call) -> Callable[[Frame, Any], calls.Given]:
        """Compile the arguments of a call; the closure gets the frame and the callee."""
        if len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp) and not node.keywords:
            return self._only_generator(node.args[0])
        items = self._items(node.args)
        keywords = [(each.arg, self.expression(each.value)) for each in node.keywords]

        def arguments(frame: Frame, _: Any) -> calls.Given:
            run: Run = frame[RUN]
            args, kwargs = items(frame), {}
            for name, value in keywords:
                found = value(frame)
                if name is not None:
                    kwargs[name] = found
                elif run.is_unknown(found):
                    args = run.unknown(is_safe=True)
                else:
                    more = mapping(found)
                    if any(type(key) is not str for key in more):
                        raise Barrier("it gives keyword arguments whose names are no texts")
                    if not kwargs.keys().isdisjoint(more):
                        raise Barrier("it gives several values for one keyword argument")
                    kwargs.update(more)
            if isinstance(args, Unknown):
                raise Stalled("it is not known how many arguments there are")
            return tuple(args), kwargs

        return arguments

    def _only_generator(self, node: ast.GeneratorExp) -> Callable[[Frame, Any], calls.Given]:
        """Compile a single generator argument: callees that take all items get a list, in which some may be unknown."""
        lazy = self._generatorexp(node)
        whole = self._collected(
            node.generators, [node.elt], lambda inner: inner.expression(node.elt), lambda run, items: items,
            is_generator=True,
        )  # fmt: skip

        def arguments(frame: Frame, callee: Any) -> calls.Given:
            stops_at = calls.stops_at(callee)
            if stops_at is not None:
                items = lazy(frame)
                if type(items) is Unknown:
                    return ([frame[RUN].unknown(items, frame[RUN].items_of(items), holds="bool", is_safe=True)],), {}
                return ([_quantified(frame, items.iterator, stops_at, MOST_ARMS)],), {}
            takes, check = calls.takes_all(frame[RUN], callee)
            if not takes:
                return (lazy(frame),), {}
            return (whole(frame, check),), {}

        return arguments

    # --- comprehensions ----------------------------------------------------------------------------------------------

    def _listcomp(self, node: ast.ListComp) -> Evaluate:
        return self._collected(
            node.generators, [node.elt], lambda inner: inner.expression(node.elt), lambda run, items: items,
        )  # fmt: skip

    def _setcomp(self, node: ast.SetComp) -> Evaluate:
        def element(inner: Expressions) -> Evaluate:
            item = inner.expression(node.elt)

            def hashed(frame: Frame) -> Any:
                value = item(frame)
                is_hashed(frame[RUN], value)
                return value

            return hashed

        return self._collected(node.generators, [node.elt], element, _set_of, holds="set")

    def _dictcomp(self, node: ast.DictComp) -> Evaluate:
        def pair(inner: Expressions) -> Evaluate:
            key, value = inner.expression(node.key), inner.expression(node.value)

            def item(frame: Frame) -> tuple[Any, Any]:
                name, part = key(frame), value(frame)
                is_hashed(frame[RUN], name)
                return name, part

            return item

        collected = self._collected(node.generators, [node.key, node.value], pair, _dict_of, holds="dict")

        def made(frame: Frame) -> Any:
            value = collected(frame)
            if type(value) is Unknown:
                value.is_dict = True
            return value

        return made

    def _collected(
        self,
        generators: list[ast.comprehension],
        parts: list[ast.expr],
        item: Callable[[Expressions], Evaluate],
        make: Callable[[Run, list[Any]], Any],
        *,
        is_generator: bool = False,
        holds: str = "list",
    ) -> Callable[..., Any]:
        """Compile a comprehension. `holds`: "list", "set" or "any" for a dict."""
        first, rounds, element = self._rounds(generators, item)
        sources = [one.iter for one in generators[1:]]
        only_compute = [
            calls.only_computes(*parts, *sources[at:], *(test for one in generators[at:] for test in one.ifs))
            for at in range(len(generators))
        ]

        def once(inner: Frame, at: int, items: Any, check: Check | None) -> Any:
            """Evaluate unknown items: one item stands for all, unless a round may change something."""
            run: Run = inner[RUN]
            made, elements = [items], list[Any]()
            if not is_collection(items):
                run.raises(run.sources(items))

            def round_(frame: Frame) -> None:
                store, conditions, _ = rounds[at]
                store(inner, run.item_of(items))
                before = len(made)
                verdict = calls.all_hold(run, inner, conditions, made)
                if verdict is None:
                    calls.perhaps(run, inner, taken, made[before:])
                elif verdict:
                    taken()

            def taken() -> None:
                run.tick()
                elements.append(element(inner))
                if check is not None:
                    check(run, elements[-1])

            if at + 1 < len(rounds):
                if not only_compute[at]:
                    raise Stalled("it is not known how often a comprehension does something")
                return run.unknown()
            try:
                run.repeat_over(items, inner, round_)
            except Stalled:
                if not only_compute[at] or may_call(items):
                    raise
                return run.unknown()
            return _of_some(run, holds, elements, made)

        def collected(frame: Frame, check: Check | None = None) -> Any:
            run: Run = frame[RUN]
            items, inner = first(frame), Frame({OUTER: frame, FUNCTION: frame[FUNCTION], RUN: run, SITE: frame[SITE]})
            try:
                source = operators.iterated(run, items)
            except Undecided:
                return once(inner, 0, items, check)
            found, tests = list[Any](), list[Any]()
            is_open = is_counted = False

            def take(at: int, source: Any, take: Callable[..., None]) -> None:  # itself, without a cycle of references
                nonlocal is_open
                store, conditions, _ = rounds[at]
                with run.in_rounds(inner) as batch:
                    for value in source:
                        run.tick()
                        store(inner, value)
                        before = len(tests)
                        verdict = calls.all_hold(run, inner, conditions, tests)
                        if verdict is None:
                            is_open = True
                            calls.perhaps(run, inner, lambda: step(at, take), tests[before:])
                        elif verdict:
                            step(at, take)
                        batch.next(run.met)

            def step(at: int, take: Callable[..., None]) -> None:
                nonlocal is_open, is_counted
                if at + 1 == len(rounds):
                    found.append(element(inner))
                    if check is not None:
                        check(run, found[-1])
                    return
                items = rounds[at + 1][2](inner)
                try:
                    source = operators.iterated(run, items)
                except Undecided:
                    is_open = is_counted = True
                    once(inner, at + 1, items, check)
                else:
                    take(at + 1, source, take)

            try:
                take(0, source, take)
            except Undecided as e:
                raise Stalled from e
            except StopIteration as e:
                if is_generator:
                    raise RuntimeError("generator raised StopIteration") from e
                raise
            try:
                if is_counted:
                    return run.unknown(holds="any" if holds in ("set", "dict") else holds, is_safe=True)
                return _of_some(run, holds, found, tests) if is_open else make(run, found)
            except Undecided:
                return run.unknown()

        return collected

    def _generatorexp(self, node: ast.GeneratorExp) -> Evaluate:
        first, rounds, element = self._rounds(node.generators, lambda inner: inner.expression(node.elt))

        def items(inner: Frame, at: int, source: Any) -> Iterator[Any]:
            run: Run = inner[RUN]
            store, conditions, _ = rounds[at]
            for value in source:
                run.tick()
                store(inner, value)
                verdict = calls.all_hold(run, inner, conditions)
                if verdict is None:
                    raise Undecided
                if verdict and at + 1 == len(rounds):
                    yield element(inner)
                elif verdict:
                    yield from items(inner, at + 1, operators.iterated(run, rounds[at + 1][2](inner)))

        def generator(frame: Frame) -> Any:
            run: Run = frame[RUN]
            given = first(frame)
            inner = Frame({OUTER: frame, FUNCTION: frame[FUNCTION], RUN: run, SITE: frame[SITE]})
            try:
                source = operators.iterated(run, given)
            except Undecided:
                if len(rounds) > 1 or not is_sequence(given):
                    raise
                made = Callee(lambda run, args, kwargs: any_item(inner, args[0]), "a generator")
                return run.iterator(MAPPED, made, given, sources=ANYWHERE)
            return Lazy(run, items(inner, 0, source))

        def any_item(inner: Frame, item: Any) -> Any:
            store, conditions, _ = rounds[0]
            store(inner, item)
            for condition in conditions:
                condition(inner)
            return element(inner)

        return generator

    def _rounds(
        self, generators: list[ast.comprehension], item: Callable[[Expressions], Evaluate]
    ) -> tuple[Evaluate, list[tuple[Store, list[Evaluate], Evaluate]], Evaluate]:
        """Compile comprehension loops.

        Returns the first source; target, conditions and (after the first) source of each `for`; and the element.
        """
        if any(each.is_async for each in generators):
            return refusing("it uses an asynchronous comprehension"), [], refusing("")
        inner = self._in(comprehension_scope(generators, self.scope))
        rounds = [
            (
                inner.target(each.target),
                [inner.expression(condition) for condition in each.ifs],
                inner.expression(each.iter) if at else refusing(""),
            )
            for at, each in enumerate(generators)
        ]
        return self.expression(generators[0].iter), rounds, item(inner)

    # --- targets -----------------------------------------------------------------------------------------------------

    def target(self, node: ast.expr, *, is_new: bool = False) -> Store:
        """Compile a target of an assignment. `is_new`: if the value is a list, nothing else holds it."""
        match node:
            case ast.Name(id=name):
                return self.scope.store(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return self._unpacking(parts)
            case ast.Subscript(value=value, slice=index):
                return self._item_target(self.expression(value), self.expression(index), is_new=is_new)
            case ast.Attribute(value=value, attr=name):
                owner = self.expression(value)
                return lambda frame, new: classes.set_attribute(frame[RUN], owner(frame), name, new)
            case _:
                return refusing(f"it assigns to {type(node).__name__}")

    def _item_target(self, owner: Evaluate, index: Evaluate, *, is_new: bool = False) -> Store:
        def store(frame: Frame, new: Any) -> None:
            held = owner(frame)
            operators.set_item(frame[RUN], held, index(frame), new, is_new=is_new)

        return store

    def _unpacking(self, parts: list[ast.expr]) -> Store:
        star = next((at for at, each in enumerate(parts) if isinstance(each, ast.Starred)), None)
        stores = [self.target(each.value if isinstance(each, ast.Starred) else each) for each in parts]

        def unpack(frame: Frame, value: Any) -> None:
            run: Run = frame[RUN]
            if run.is_unknown(value):
                holds, is_sequence = operators.item_of(run, value)
                run.unknown(value, error=ValueError if is_sequence else Exception)
                for at, store in enumerate(stores):
                    kind = holds if at != star else "texts" if holds == "text" else "any"
                    store(frame, run.unknown(value, holds=kind, is_safe=True))
                return
            wanted = None if star is not None else len(parts)
            for store, part in zip(stores, _unpacked(all_of(run, value, most=wanted), len(parts), star), strict=True):
                store(frame, part)

        return unpack


def _type_call(node: ast.Attribute) -> ast.Call | None:
    """Return what may be the call in `type(x).__name__`."""
    is_name = node.attr in ("__name__", "__qualname__")
    return node.value if is_name and isinstance(node.value, ast.Call) and len(node.value.args) == 1 else None


def _of_class(node: ast.Attribute) -> ast.expr | None:
    """Return the object in `x.__class__.__name__`."""
    owner = node.value
    is_name = node.attr in ("__name__", "__qualname__")
    return owner.value if is_name and isinstance(owner, ast.Attribute) and owner.attr == "__class__" else None


def is_new_list(node: ast.expr) -> bool:
    """Whether a list that the expression gives is held by nothing else."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return is_sum or isinstance(node, ast.List | ast.ListComp)


def _each_of_dicts(run: Run, dicts: Sequence[Any]) -> Each | None:
    """Return what is known of a dict with the items of all these; None if not all are dicts."""
    known = [run.each_of(each) if type(each) in MAPPINGS else None for each in dicts]
    return functools.reduce(Each.joined, filter(None, known)) if all(known) else None


def _filled(run: Run, found: dict[Any, Any], made: list[tuple[Any, Any]]) -> bool:
    """Move items of a display from the list into a dict. Returns whether all keys are known."""
    is_whole = True
    for key, value in made:  # when all of them are evaluated, as CPython does
        if is_hashed(run, key):
            found[key] = value
        else:
            is_whole = False
    made.clear()
    return is_whole


def operate(run: Run, name: str, one: Any, two: Any) -> Any:
    """Return the result of `one <name> two`."""
    try:
        return operators.binary(run, name, one, two)
    except Undecided:
        return run.unknown(one, two)


def all_of(run: Run, value: Any, check: Check | None = None, most: int | None = None) -> list[Any]:
    """Return all items of an iterable. Raises: Stalled if the number of items is unknown.

    `most`: take at most this many items of an iterator, and one more if there is one.
    """
    try:
        if type(value) is Lazy and most is not None:
            return list(itertools.islice(operators.iterated(run, value), most + 1))
        return list(operators.iterated(run, whole(run, value, check)))
    except Undecided as e:
        raise Stalled from e


def mapping(value: Any) -> dict[Any, Any]:
    """Return the dict that `**value` spreads. Raises: Barrier."""
    if type(value) not in MAPPINGS:
        raise Barrier("it spreads what is no plain dict")
    return value  # type: ignore[no-any-return]


def _unpacked(values: list[Any], count: int, star: int | None) -> list[Any]:
    if star is None:
        if len(values) != count:
            many = len(values) > count
            few = f"not enough values to unpack (expected {count}, got {len(values)})"
            raise ValueError(f"too many values to unpack (expected {count})" if many else few)
        return values
    if len(values) < count - 1:
        raise ValueError(f"not enough values to unpack (expected at least {count - 1}, got {len(values)})")
    after = len(values) - (count - star - 1)
    return [*values[:star], values[star:after], *values[after:]]


def _of_some(run: Run, holds: str, items: list[Any], made_of: list[Any]) -> Any:
    """Return the unknown result of a comprehension that takes some of the items, by `made_of`."""
    if holds == "dict":
        return _dict_of_some(run, items, made_of)
    kinds = {holds_of(each) for each in items}
    if holds == "list" and kinds == {"text"}:
        holds = "texts"
    elif holds in ("list", "set") and all(map(is_atom, kinds)):
        each = run.each_of(items)
        made: Any = [] if holds == "list" else set()
        return run.taint_with(made, each and each.joined(Each(None, run.sources(*made_of) or ANYWHERE)))
    elif holds == "set":
        holds = "any"
    return run.unknown(*items, *made_of, holds=holds, is_safe=True)


def _dict_of_some(run: Run, pairs: list[Any], made_of: list[Any]) -> Any:
    """Return the unknown result of a dict comprehension that takes some of the pairs, by `made_of`."""
    made, each = dict[Any, Any](), Each(None, run.sources(*made_of) or ANYWHERE)
    for key, value in pairs:
        each = each.joined(operators.stored(run, made, key, value, each, is_new=False))
    return run.taint_with(made, each)


def _set_of(run: Run, items: list[Any]) -> Any:
    run.require_known(items)
    return run.keep_order(set(items))


def _without_order(run: Run, items: list[Any]) -> Any:
    """Return a set that CPython does not build from the elements one by one, so without a known order.

    CPython keeps constants as a frozenset with the code, whose file may hold them in another order; a spread set may be
    copied at once.
    """
    run.require_known(items)
    return set(items)


def _dict_of(run: Run, pairs: list[Any]) -> Any:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        run.require_known(key)
        found[key] = value
    return found
