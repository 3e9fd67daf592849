"""Calls: of the program's own functions, which are read, and of callables that natives, classes and adapters know.

call(run, callee, args, kwargs)        any value of the reader's
call_site(run, callee, given)          the same, for an expression: unknown if an operand is
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader import caches, calling, classes, foreign, natives, operators, taking
from teola_plugin.adapters.reader.asking import NOT_MINE, Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.foreign import is_one_of
from teola_plugin.adapters.reader.heap import (
    FUNCTION,
    NOWHERE,
    OUTER,
    RETURN,
    RETURNED,
    RUN,
    SITE,
    YIELDED,
    Block,
    Ended,
    Frame,
    of_lists,
)
from teola_plugin.adapters.reader.run import Level, Run
from teola_plugin.adapters.reader.scopes import Evaluate, Scope, own_nodes, scope_of
from teola_plugin.adapters.reader.source import verified_node
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    Barrier,
    Callee,
    Lazy,
    Managed,
    Method,
    Opaque,
    Pending,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)
from teola_plugin.adapters.source import original_of
from teola_plugin.effects import declared_effects
from teola_plugin.engines import EngineSpec
from teola_plugin.value_keys import Same, is_comparable, value_key

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

MOST_AGAIN = 6
"""Calls of a function by itself that are read, each behind one more decision that is not known.

What unknown texts are summarized by, level by level, until one is left would be read down to `run.MAX_DEPTH`: 0.9 s.
"""

MOST_CODES = 4096
"""Compiled functions that are kept."""


@dataclass(eq=False)
class Code:
    """A compiled function. `simple`: the number of arguments, if all parameters are plain positional ones; else -1.

    `only_computes`: calls have no effects, whatever the arguments. `elements`: of a generator function which only
    computes, the equal generator expression, and `called`: the builtins that the expression calls.
    """

    name: str
    arguments: ast.arguments
    block: Block
    filename: str
    is_async: bool = False
    is_generator: bool = False
    names: tuple[str, ...] = ()
    simple: int = -1
    keyword_only: tuple[str, ...] = field(default=())
    only_computes: bool = False
    elements: Evaluate | None = None
    called: tuple[tuple[Evaluate, Any], ...] = ()


class FunctionValue(Callee):
    """A function that the program made while being read. `code`: for code that looks at the function's name."""

    __slots__ = ("_around", "_defaults", "code")

    def __init__(
        self, code: Code, handler: Callable[[Run, tuple[Any, ...], dict[str, Any]], Any], around: Frame,
        defaults: Sequence[Any],
    ) -> None:  # fmt: skip
        super().__init__(handler, code.name)
        self.code = code
        self._around = around
        self._defaults = defaults

    @property
    def has_defaults(self) -> bool:
        """Whether a parameter has a default, which is evaluated with the definition."""
        return bool(self._defaults)

    def is_plain(self, frames: Sequence[Any]) -> bool:
        around: Frame | None = self._around
        while around is not None:
            if not any(around is each for each in frames):
                return False
            around = around[OUTER]
        return all(map(classes.is_atom, self._defaults))

    def parts(self) -> Sequence[Any]:
        return [self._around, *self._defaults]


def is_coroutine_function(function: Any) -> bool:
    """Whether a function of the program makes coroutines, as frameworks tell before they await a result."""
    plain = function.function if type(function) is Method else function
    if type(plain) is FunctionValue:
        return plain.code.is_async
    held = plain.held if type(plain) is Opaque else None
    return any(map(inspect.iscoroutinefunction, (held, foreign.in_mro(type(held), "__call__"))))


def returned(found: Any, *, is_awaited: bool) -> Any:
    """Return what a framework makes of the result of a function, which the framework awaits or not.

    Raises: Barrier for a coroutine that is handed on as a value.
    """
    if type(found) is not Pending:
        return found
    if not is_awaited:
        raise Barrier("it returns a coroutine that nothing awaits there")
    return found.force()


_compilers: list[Callable[[Scope, str], Any]] = []


def install_compiler(compiler: Callable[[Scope, str], Any]) -> None:
    """Set the compiler of functions. `statements`, which compiles calls to the functions here, installs itself."""
    _compilers[:] = [compiler]


def _compiler(scope: Scope, filename: str) -> Any:
    if not _compilers:
        importlib.import_module("teola_plugin.adapters.reader.statements")
    return _compilers[0](scope, filename)


def code_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, around: Scope | None, name: str, filename: str
) -> Code:
    """Compile a function."""
    scope = scope_of(node, around)
    compiler = _compiler(scope, filename)
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    args = node.args
    names = tuple(arg.arg for arg in (*args.posonlyargs, *args.args))
    is_simple = not (args.vararg or args.kwarg or args.kwonlyargs)
    generator = _as_expression(node)
    called = sorted(_called(generator)) if generator else []
    return Code(
        name,
        args,
        compiler.returning(node.body) if isinstance(node, ast.Lambda) else compiler.block(node.body),
        filename,
        isinstance(node, ast.AsyncFunctionDef),
        any(isinstance(inner, ast.Yield | ast.YieldFrom) for part in body for inner in own_nodes(part)),
        names,
        len(names) if is_simple else -1,
        tuple(arg.arg for arg in args.kwonlyargs),
        isinstance(node, ast.Lambda) and only_computes(node.body),
        compiler.expression(generator) if generator else None,
        tuple((compiler.expression(_placed(ast.Name(each, ast.Load()), node)), _CALLED[each]) for each in called),
    )


_CALLED: dict[str, Any] = {each.__name__: each for each in (enumerate, len, max, min, range, zip)}
"""Builtins that a generator function may call, to be read as a generator expression."""


def _as_expression(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.GeneratorExp | None:
    """Return the generator expression that equals a generator function, None if there is none.

    The function may have loops, conditions, names given once, and a `yield` at the end, which only compute:

        for at in range(0, len(items), size):           (part for at in range(0, len(items), size)
            part = items[at : at + size]                      for part in (items[at : at + size],) if part)
            if part:
                yield part
    """
    if not isinstance(node, ast.FunctionDef):
        return None
    rounds: list[ast.comprehension] = []
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    while body:
        *before, last = body
        for each in before:
            if not (isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)):
                return None
            source = ast.Tuple([each.value], ast.Load())
            rounds.append(ast.comprehension(each.targets[0], _placed(source, each), [], 0))
        if isinstance(last, ast.For) and not last.orelse:
            rounds.append(ast.comprehension(last.target, last.iter, [], 0))
        elif isinstance(last, ast.If) and not last.orelse and rounds:
            rounds[-1].ifs.append(last.test)
        elif isinstance(last, ast.Expr) and isinstance(last.value, ast.Yield) and rounds:
            found = ast.GeneratorExp(last.value.value or _placed(ast.Constant(None), last), rounds)
            return _placed(found, last) if _may_stand_for(node, found) else None
        else:
            return None
        body = last.body
    return None


def _may_stand_for(node: ast.FunctionDef, found: ast.GeneratorExp) -> bool:
    """Whether a generator expression only computes, and gives each name once, and none of a parameter."""
    args = node.args
    every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
    given = [each.arg for each in every if each is not None]
    parts = [each for one in found.generators for each in ast.walk(one.target)]
    given += [each.id for each in parts if isinstance(each, ast.Name)]
    is_plain = all(isinstance(each, ast.Name | ast.Tuple | ast.List | ast.expr_context) for each in parts)
    return is_plain and len({*given}) == len(given) and only_computes(found, may_call=_CALLED.keys() - given)


def _called(found: ast.GeneratorExp) -> set[str]:
    names = (each.func for each in ast.walk(found) if isinstance(each, ast.Call))
    return {each.id for each in names if isinstance(each, ast.Name)}


def _placed(made: Any, at: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(made, at))


_DOING = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
_COMPUTING = frozenset({
    "strip", "lstrip", "rstrip", "lower", "upper", "title", "split", "splitlines", "replace", "startswith", "endswith",
    "removeprefix", "removesuffix", "format", "join", "get", "items", "keys", "values", "find", "count",
})  # fmt: skip
"""Methods of plain values without effects; methods of foreign objects are not called."""


def only_computes(*parts: ast.AST, may_call: Container[str] = ()) -> bool:
    """Whether evaluating the expressions, however often, has no effects and makes no requests.

    `may_call`: names of builtins that may be called.
    """
    for each in (inner for part in parts for inner in ast.walk(part)):
        if isinstance(each, _DOING):
            return False
        function = each.func if isinstance(each, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in _COMPUTING:
            continue
        if function is not None and not (isinstance(function, ast.Name) and function.id in may_call):
            return False
    return True


def closure(code: Code, around: Frame, defaults: tuple[Any, ...], keyword_defaults: Mapping[str, Any]) -> FunctionValue:
    """Make a function value for a function defined in the program."""

    def handler(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _invoke(run, code, around, around[FUNCTION], defaults, keyword_defaults, args, kwargs)

    return FunctionValue(code, handler, around, (*defaults, *keyword_defaults.values()))


_codes: dict[int, tuple[types.CodeType, Code | None]] = {}


def compiled(function: types.FunctionType) -> Code | None:
    """Return the compiled form of an existing function, None if there is no source. Cached by code object."""
    code = function.__code__
    known = _codes.get(id(code))
    if known is not None:
        return known[1]
    if len(_codes) >= MOST_CODES:
        _codes.clear()
    node = verified_node(function)
    made = None if node is None else code_of(node, None, code.co_name, code.co_filename)
    _codes[id(code)] = code, made
    return made


# --- calls -----------------------------------------------------------------------------------------------------------


def call(run: Run, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a call. Raises: errors of the program there; Barrier, Undecided, Stalled."""
    run.tick()
    is_direct, run.is_direct = run.is_direct, False
    if isinstance_of(callee, Callee):
        if type(callee) is FunctionValue:
            _require_known_use(callee.code, is_direct)
        if type(callee) is Method:
            run.is_direct = is_direct and _is_generator(callee.function)
        return callee.handler(run, args, kwargs)
    if type(callee) is not Opaque:
        if type(callee) is Unknown and callee.holds != "any":
            return run.unknown(callee)
        if run.is_unknown(callee):
            raise Stalled("what is called is not known")
        raise TypeError("the object is not callable")
    held = callee.held
    native = natives.native_of(held)
    if native is not None:
        return native(run, args, kwargs)
    answer = run.asker.call(run, callee, args, kwargs)
    if answer is not NOT_MINE:
        return answer
    kind = type(held)
    if kind is types.FunctionType:
        if run.behind is not None:
            run.behind.require_lasting(original_of(held))
        return _call_function(run, original_of(held), args, kwargs, is_direct=is_direct)
    if kind is types.MethodType:
        owner = run.load(held.__self__)
        if type(owner) is Opaque and is_own_method(held):
            found = run.asker.attribute(run, owner, held.__func__.__name__)
            if found is not NOT_MINE:  # what the adapter knows as a whole
                return call(run, found, args, kwargs)
        run.is_direct = is_direct
        return call(run, run.load(held.__func__), (owner, *args), kwargs)
    if kind is functools.partial:
        given = {name: run.load(value) for name, value in held.keywords.items()}
        return call(run, run.load(held.func), (*map(run.load, held.args), *args), {**given, **kwargs})
    if kind is caches.WRAPPER:
        return caches.call_cached(run, held, args, kwargs)
    if classes.is_class(held):
        return classes.construct(run, callee, args, kwargs)
    return classes.call_object(run, callee, args, kwargs)


def is_own_method(held: types.MethodType) -> bool:
    """Whether a bound method is what its object has under the function's name."""
    owner, function = held.__self__, held.__func__
    name = function.__name__ if type(function) is types.FunctionType else ""
    own = foreign.own_attributes(owner)
    return own is not None and name not in own and foreign.in_mro(type(owner), name) is function


def call_site(run: Run, callee: Any, given: Given) -> Any:
    """Return the value of a call expression."""
    args, kwargs = given
    run.is_direct = True
    try:
        return call(run, callee, args, kwargs)
    except Undecided:
        return undecided(run, (callee, *args, *kwargs.values()))


def undecided(run: Run, operands: tuple[Any, ...]) -> Unknown:
    """Return the result of a call with unknown operands. Raises: Stalled if part of an iterator is used up."""
    if any(type(operand) is Lazy for operand in operands):
        raise Stalled("an iterator is used up in part")
    if any(map(_may_change, operands[1:])):
        raise Stalled("it is not known how often a function is called, which may change something")
    for each in operands:
        run.use_up(each)
        if (lists := of_lists(each)) is not None:  # which the call may change
            run.taint(lists)
    return run.unknown(*operands)


def _may_change(value: Any) -> bool:
    """Whether the value is a function of the program that does more than compute."""
    if type(value) is FunctionValue:
        return not value.code.only_computes
    if type(value) in (Callee, Method):  # a method, or made by functools.partial
        return True
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    return type(value) is Opaque and natives.native_of(value.held) is None and is_one_of(type(value.held), kinds)


def callback(run: Run, value: Any) -> Callable[..., Any]:
    """Return a Python function, for functions in C, that calls a value of the reader's."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(run, value, args, kwargs)

    return called


def takes_all(run: Run, callee: Any) -> tuple[bool, taking.Check | None]:
    """Whether a function takes any items in its argument, and the check of each item that the function makes first."""
    if callee is str.join:
        return True, None
    held = callee.held if type(callee) is Opaque else None
    for function, check in _TAKING_ALL:
        if held is function:
            return True, check(run) if check in (taking.compared, taking.summed) else check
    return False, None


def stops_at(callee: Any) -> bool | None:
    """Return the truth of an element at which `any` or `all` stops; None for other functions."""
    held = callee.held if type(callee) is Opaque else None
    return True if held is any else False if held is all else None


_TAKING_ALL: tuple[tuple[Any, Any], ...] = (
    (list, None), (tuple, None), (sorted, None), (set, taking.hashed), (frozenset, taking.hashed),
    (dict, taking.paired), (sum, taking.summed), (max, taking.compared), (min, taking.compared),
)  # fmt: skip


def chosen(run: Run, frame: Frame, first: Evaluate, second: Evaluate, on: Any, *, is_true: bool = True) -> Any:
    """Evaluate both expressions and join the values; `on`, unknown, decides: for the first, it has this truth."""
    found: dict[int, Any] = {}

    def arm(number: int, value: Evaluate) -> Block:
        def block(inner: Frame) -> None:
            found[number] = value(inner)
            are_true.append(run.is_true(found[number]))

        return block

    are_true = list[bool]()
    why = run.sources(on) or ANYWHERE
    run.fork(frame, arm(0, first), arm(1, second), why, (on, is_true))
    if len(found) < 2:
        return next(iter(found.values()))
    made = run.joined(found[0], found[1], why)
    if type(made) is Unknown and made is not found[0]:
        made.is_true = all(are_true)
    return made


def perhaps(run: Run, frame: Frame, act: Callable[[], None], conditions: Sequence[Any] = ()) -> None:
    """Run an action that may not happen, as a fork; `conditions` are true where it does."""

    def done(_: Frame) -> None:
        for each in conditions:
            run.note_truth(each, True)
        act()

    run.fork(frame, done, lambda _: None)


def all_hold(run: Run, frame: Frame, conditions: Sequence[Evaluate], found: list[Any] | None = None) -> bool | None:
    """Whether all conditions are true; None if unknown. `found` gets the values.

    What stands behind an unknown condition may be evaluated.
    """
    for at, condition in enumerate(conditions):
        value = condition(frame)
        if found is not None:
            found.append(value)
        try:
            if not operators.truth(run, value):
                return False
        except Undecided:
            return _perhaps_hold(run, frame, conditions[at + 1 :], found, value)
    return True


def _perhaps_hold(
    run: Run, frame: Frame, conditions: Sequence[Evaluate], found: list[Any] | None, first: Any
) -> bool | None:
    """Return False if the conditions behind `first`, which is unknown, do not hold; else None."""
    verdict: bool | None = None

    def rest(inner: Frame) -> None:
        nonlocal verdict
        verdict = all_hold(run, inner, conditions, found)

    if conditions:
        run.fork(frame, rest, lambda _: None, run.sources(first) or ANYWHERE, (first, True))
    return False if verdict is False else None


def _call_function(
    run: Run, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_direct: bool
) -> Any:
    effects = declared_effects(function)
    if effects is not None:
        if not effects.pure:
            raise Barrier(f"it calls {function.__code__.co_name}, which is declared to write")
        return _ask_declared(run, function, args, kwargs)
    if function.__code__ in MANAGING:
        return _managed(run, run.load_name(function, "func"), args, kwargs)
    code = compiled(function)
    if code is None:
        raise Barrier(f"it calls {function.__code__.co_qualname}, whose source cannot be read")
    _require_known_use(code, is_direct)
    defaults, keyword_defaults = _defaults_of(run, function)
    return _invoke(run, code, None, function, defaults, keyword_defaults, args, kwargs, is_direct=is_direct)


def _is_generator(function: Any) -> bool:
    held = function.held if type(function) is Opaque else None
    return function.code.is_generator if type(function) is FunctionValue else inspect.isgeneratorfunction(held)


def _require_known_use(code: Code, is_direct: bool) -> None:
    """Require a call of a generator function by a call expression: frameworks treat such functions in other ways.

    Raises: Barrier.
    """
    if code.is_generator and not (is_direct and code.elements is not None):
        raise Barrier(f"{code.name} is a generator function")


def _defaults_of(run: Run, function: types.FunctionType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the defaults of the positional parameters, and those of the others by name."""
    by_name = {name: run.load(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return tuple(map(run.load, function.__defaults__ or ())), by_name


def _ask_declared(run: Run, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function declared free of effects: the function is called beside the reading."""
    run.require_unchanged()
    given = Exchange(run).out([args, kwargs])
    asked = value_key(given)
    if not is_comparable(asked):
        raise Barrier(f"it calls {function.__code__.co_name} with what cannot be compared")
    spec = EngineSpec("python", function, function.__code__.co_name)
    request = Request(
        ("declared", Same(function), asked), spec, "call", None, {}, lambda value: value, may_raise=True,
        source=Same(function), act=functools.partial(function, *given[0], **given[1]),
        is_async=inspect.iscoroutinefunction(function),
    )  # fmt: skip
    value = run.ask(request)
    return Pending(lambda: value) if request.is_async else value


def _invoke(
    run: Run, code: Code, around: Frame | None, function: Any, defaults: tuple[Any, ...],
    keyword_defaults: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_direct: bool = False,
) -> Any:  # fmt: skip
    frame = _bound(run, code, around, function, defaults, keyword_defaults, args, kwargs)
    if code.elements is not None:
        return Lazy(run, _generated(run, code, code.elements, frame))
    if code.is_async:
        return _coroutine(run, code, frame, is_direct)
    return _evaluate(run, code, frame, is_direct)


def _generated(run: Run, code: Code, elements: Evaluate, frame: Frame) -> Iterator[Any]:
    """Yield the elements of a generator function that only computes, in the same order of evaluation.

    Raises: Barrier for a replaced builtin; Undecided; errors of the program.
    """
    items: Any = None
    while True:
        if not run.levels:
            raise Barrier(f"elements of {code.name} are taken outside of functions")
        level = run.levels[-1]
        site, called = run.site, level.call  # of the function that takes the elements
        try:
            if items is None:
                if not all(type(found := get(frame)) is Opaque and found.held is known for get, known in code.called):
                    raise Barrier(f"{code.name} calls a builtin that has been replaced")
                items = elements(frame)
                if type(items) is not Lazy:
                    raise Undecided
            item = next(items.iterator)
        except StopIteration:
            return
        except Barrier as e:
            e.where = e.where or code.filename
            raise
        finally:
            run.site, level.call = site, called
        yield item


def _bound(
    run: Run, code: Code, around: Frame | None, function: Any, defaults: tuple[Any, ...],
    keyword_defaults: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Frame:  # fmt: skip
    """Return a frame with the arguments of a call. Raises: TypeError as in CPython."""
    frame = Frame({0: around, 1: function, 2: None, RUN: run, SITE: run.site})
    if kwargs or len(args) != code.simple:
        _bind(code, frame, defaults, keyword_defaults, args, dict(kwargs))
    else:
        for name, value in zip(code.names, args, strict=True):
            frame[name] = value
    return frame


_MAKERS: tuple[Any, ...] = (contextlib.contextmanager, contextlib.asynccontextmanager)
MANAGING = frozenset(make(len).__code__ for make in _MAKERS)
"""The code of functions that are decorated so."""


def _managed(run: Run, generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Managed:
    """Return the context that a decorated generator function makes."""
    held = generator.held if type(generator) is Opaque else None
    function: Any = original_of(held) if type(held) is types.FunctionType else None
    code = None if function is None else compiled(function)
    if code is None or not code.is_generator or declared_effects(function) is not None:
        raise Barrier("it makes a context of a function that cannot be read")
    defaults, keyword_defaults = _defaults_of(run, function)
    frame = _bound(run, code, None, function, defaults, keyword_defaults, args, kwargs)
    return Managed(functools.partial(_around, run, code, frame), [*args, *kwargs.values()], is_async=code.is_async)


def _around(run: Run, code: Code, frame: Frame, within: Callable[[Any], Ended]) -> Ended:
    """Evaluate a generator function, and the body of a `with` statement where it yields; see `Managed`.

    An error of the body is raised at the `yield`, as by `contextlib`.
    """
    if YIELDED in frame:
        raise Barrier("it enters a context for the second time")
    path, handlers, level, ends = run.path, run.handlers, run.levels[-1], list[Ended]()

    def yielded(value: Any) -> None:
        if ends or run.path != path:
            raise Barrier(f"{code.name} yields more than once, or on a path that may not be taken")
        ends.append(None)
        raised = run.raised
        run.levels.append(level)
        try:
            ends[0] = classes.entirely(run, within, value)
        finally:
            run.levels.pop()
        if ends[0] is not None and run.raised > raised and run.handlers > handlers:
            raise Barrier("an error may be swallowed in the body of a with statement, which leaves")

    frame[YIELDED] = yielded
    try:
        _evaluate(run, code, frame, is_direct=False)
    except (StopIteration, StopAsyncIteration) as e:  # which becomes a RuntimeError, unless it comes from the body
        raise Barrier(f"an iterator ends in {code.name}") from e
    if not ends:
        raise Barrier(f"{code.name} does not yield")
    return ends[0]


def _coroutine(run: Run, code: Code, frame: Frame, is_direct: bool) -> Pending:
    is_begun = False

    def force() -> Any:
        nonlocal is_begun
        if is_begun:
            raise RuntimeError("cannot reuse already awaited coroutine")
        is_begun = True
        return _evaluate(run, code, frame, is_direct)

    return Pending(force, [value for name, value in frame.items() if type(name) is str])


def _evaluate(run: Run, code: Code, frame: Frame, is_direct: bool) -> Any:
    run.enter()
    marked = run.leaves
    function = frame[FUNCTION]
    is_of_program = frame[OUTER] is not None or type(function) is not types.FunctionType
    level = Level(frame, code.name, None if is_of_program else function.__code__, is_direct, code, run.doubts)
    if not run.levels:
        run.begin_function()
    run.levels.append(level)
    try:
        _require_end(run, level)
        ended = run.absorb(frame, RETURN, run.settle(code.block, frame), marked)
        if ended is NOWHERE or run.leaves > marked:
            raise Stalled("no way to the end is known")
        if run.open is not None and len(run.levels) <= len(run.open.stop.codes):
            raise Barrier("it ends before it comes to where the run is")
        return frame[RETURNED] if ended is RETURN else None
    except Undecided as e:
        raise Stalled from e
    except Barrier as e:
        e.where = e.where or code.filename
        raise
    finally:
        run.depth -= 1
        run.levels.pop()


def _require_end(run: Run, level: Level) -> None:
    """Require that it is known how deeply a function calls itself, or not deeply so far. Raises: Stalled."""
    again = [each.doubts for each in run.levels if each.compiled is level.compiled]
    if len(again) > MOST_AGAIN and len(set(again)) > MOST_AGAIN:
        raise Stalled("a function calls itself, and it is not known how often")


def _bind(
    code: Code, frame: Frame, defaults: tuple[Any, ...], keyword_defaults: Mapping[str, Any], args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:  # fmt: skip
    """Give the parameters their values. Raises: TypeError as in CPython."""
    names, given = code.names, code.arguments
    if len(args) > len(names) and given.vararg is None:
        raise TypeError(f"{code.name}() takes {len(names)} positional arguments but {len(args)} were given")
    for name, value in zip(names, args, strict=False):
        frame[name] = value
    if given.vararg is not None:
        frame[given.vararg.arg] = tuple(args[len(names) :])
    positional_only = {arg.arg for arg in given.posonlyargs}
    first_default = len(names) - len(defaults)
    for at, name in enumerate(names):
        if at < len(args):
            if name in kwargs and name not in positional_only:
                raise TypeError(f"{code.name}() got multiple values for argument {name!r}")
        elif name in kwargs and name not in positional_only:
            frame[name] = kwargs.pop(name)
        elif at >= first_default:
            frame[name] = defaults[at - first_default]
        else:
            raise TypeError(f"{code.name}() missing a required argument: {name!r}")
    for name in code.keyword_only:
        if name in kwargs:
            frame[name] = kwargs.pop(name)
        elif name in keyword_defaults:
            frame[name] = keyword_defaults[name]
        else:
            raise TypeError(f"{code.name}() missing a required keyword-only argument: {name!r}")
    if given.kwarg is not None:
        frame[given.kwarg.arg] = kwargs
    elif kwargs:
        raise TypeError(f"{code.name}() got an unexpected keyword argument {next(iter(kwargs))!r}")


calling.install(call, _may_change)
