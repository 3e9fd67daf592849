"""Whether a user's function is free of side effects, told from its syntax tree by a white-list.

Pure means here: running it early, or once more, changes nothing that anybody can see. Reading something that others
change is no effect (the run-ahead then guesses wrong, which costs a miss). Allowed are expressions, control flow, local
names, containers made in the function itself, and calls of what is listed below or is pure by the same rules. Whatever
is not listed is an effect: print, open, attribute stores, global names, item stores into an argument, random numbers.

All of this holds for *plain data* (plain.py): there, reading, comparing and adding has no effect, and a method called
`get`, `split`, `items`, ... is the one that dicts and texts have. Whoever runs ahead what was proven here hands it
nothing else. Nothing is taken on trust of what the function holds already (globals, closures, defaults, the `self` of a
bound method, arguments of a `partial`), nor of the objects it makes.

A function may also ask the models and stores that it holds, where an adapter knows them (`Asks`): such a function runs
ahead with its questions, in a session of its own.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import dis
import enum
import inspect
import operator
import re
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from teola_plugin.adapters.source import MISSING, Source, outer_value, source_of
from teola_plugin.effects import Effects, declared_effects
from teola_plugin.engines import EngineSpec


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE_BUILTINS = _words(
    "abs all any ascii bin bool bytes chr dict divmod enumerate filter float format frozenset getattr hasattr "
    "hash hex int isinstance issubclass len list map max min oct ord pow range repr reversed round set slice "
    "sorted str sum tuple type zip"
)
PURE_METHODS = _words(
    "capitalize casefold center copy count encode decode endswith expandtabs find format format_map get index "
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
    "isupper items join keys ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper values zfill "
    "difference intersection issubset issuperset isdisjoint symmetric_difference union most_common group "
    "groups groupdict span to_string to_messages pretty_repr"
)
"""Methods that change nothing on what a pipeline passes around: texts, dicts, lists, sets, matches, prompt values."""

OWN_METHODS = _words(
    "add append appendleft clear discard extend extendleft insert pop popleft remove reverse setdefault sort update"
)
"""Methods that change their container: allowed on one that the function made itself."""

PURE_MODULES = _words("json re math textwrap itertools operator string statistics html collections")
CLASS_METHODS = _words("fromkeys maketrans fromhex from_bytes")
IMPURE_IN_MODULES = frozenset({
    ("json", "dump"), ("json", "load"), ("re", "purge"),
    *(("operator", name) for name in vars(operator) if name.strip("_") in _words("setitem delitem call methodcaller")),
    *(("operator", name) for name in vars(operator) if name.strip("_") in _words(
        "iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor"
    )),
})  # fmt: skip
CALLED_ARGUMENT = {
    "map": 0, "filter": 0, "defaultdict": 0, "starmap": 0, "takewhile": 0, "dropwhile": 0, "filterfalse": 0,
    "groupby": 1, "accumulate": 1, "sub": 1, "subn": 1,
}  # fmt: skip
"""Functions that call one of their arguments, and which; so do all those with a keyword of the following."""
CALLED_KEYWORDS = _words("key func repl default_factory object_hook object_pairs_hook parse_float parse_int cls")
PURE_TYPES = _words("collections operator fractions decimal langchain_core.documents.base langchain_core.messages")
"""Modules whose classes only hold what they are given."""

PURE_FUNCTIONS = frozenset({
    ("langchain_core.prompts.base", "format_document"),
    ("langchain_core.prompts.base", "aformat_document"),
    ("langchain_core.messages.utils", "get_buffer_string"),
    ("langchain_core.messages.utils", "convert_to_messages"),
})  # fmt: skip

_EXPRESSIONS = (
    ast.Constant, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr,
    ast.FormattedValue, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.comprehension, ast.Starred, ast.keyword, ast.Attribute, ast.NamedExpr, ast.Lambda,
    ast.arguments, ast.arg, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_STATEMENTS = (
    ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Expr, ast.Pass, ast.Break,
    ast.Continue, ast.Raise, ast.Assert, ast.Try, ast.ExceptHandler, ast.FunctionDef,
)  # fmt: skip
_MAKERS = _words("list dict set sorted str len int float")
_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.JoinedStr)
_DATA = (str, bytes, int, float, complex, bool, type(None), re.Pattern, enum.Enum)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a call of a method asks: the resources it `reads`, one `engine` that it waits for, and if as a coroutine."""

    reads: tuple[str, ...] = ()
    engine: tuple[str, EngineSpec] | None = None
    is_async: bool = False


Asks = Callable[[Any, str], Question | None]
"""What `owner.method(...)` asks, if all it does is to ask known models and stores."""


def effects_of(function: Any, asks: Asks | None = None) -> Effects:
    """What running a function does: declared by the user, else proven from its source, else "anything".

    A coroutine function is only looked into where `asks` is given: there is no other use for one.
    """
    declared = declared_effects(function)
    if declared is not None:
        return declared
    known = _Known(asks)
    try:
        why = _why_impure(function, (), known)
    except RecursionError:
        why = "its source is nested too deeply"
    reads = tuple(dict.fromkeys(resource for question in known.questions for resource in question.reads))
    engines = [question.engine for question in known.questions if question.engine]
    asks_one = engines[-1] if engines and not why else None
    return Effects(not why, reads, why=why, asks=asks_one, is_so_still=lambda: all(same() for same in known.sames))


@dataclasses.dataclass
class _Known:
    """What may be asked, and what the function under examination does ask."""

    asks: Asks | None = None
    questions: list[Question] = dataclasses.field(default_factory=list)
    sames: list[Callable[[], bool]] = dataclasses.field(default_factory=list)


def _why_impure(function: Any, callers: tuple[Any, ...], known: _Known) -> str:
    """The first effect found, or '' if there is none."""
    declared = declared_effects(function)
    if declared is not None:
        return "" if declared.pure else f"{_name(function)} is declared to write"
    if function in callers:
        return ""  # a recursion: judged by the rest of it
    source = source_of(function)
    if source is None:
        return f"the source of {_name(function)} cannot be found"
    if isinstance(source.node, ast.AsyncFunctionDef) and (known.asks is None or callers):
        return "it is a coroutine function"
    return _Check(source, (*callers, function), known).why()


@dataclasses.dataclass
class _Check:
    """One function under examination."""

    source: Source
    callers: tuple[Any, ...]
    known: _Known = dataclasses.field(default_factory=_Known)

    def __post_init__(self) -> None:
        node = self.source.node
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        self.nodes = [n for part in body for n in ast.walk(part)]
        calls = [n for n in self.nodes if isinstance(n, ast.Call)]
        self.callees = {id(call.func) for call in calls}
        self.steps = {id(call.func) for call in calls if call.args and isinstance(call.args[0], ast.GeneratorExp)}
        inner = [n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.Lambda)]
        arguments = {a.arg for f in (node, *inner) for a in _arguments(f.args)}
        stored = [n.id for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.nested = {name for name in self._inner_functions() if stored.count(name) <= 1}
        self.local = arguments | set(stored) | self.nested
        self.local |= {n.name for n in self.nodes if isinstance(n, ast.ExceptHandler) and n.name}
        self.own = self._own_names() - arguments
        self.bases = {id(n.value) for n in self.nodes if isinstance(n, ast.Attribute)}
        hints = [getattr(n, field, None) for n in self.nodes for field in ("annotation", "returns")]
        self.annotations = {id(n) for hint in hints if isinstance(hint, ast.AST) for n in ast.walk(hint)}
        self.asking = self._asking()

    def _asking(self) -> set[int]:
        """The nodes that belong to a question: what is asked and how, not what with. A coroutine awaits its answers."""
        asks = self.known.asks
        if asks is None:
            return set()
        is_async = isinstance(self.source.node, ast.AsyncFunctionDef)
        asked: set[int] = set()
        asking: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = self._held(node.func.value)
                question = None if owner is MISSING else asks(owner, node.func.attr)
                if question is None or (question.engine and question.is_async != is_async):
                    continue
                self.known.questions.append(question)
                self.known.sames.append(partial(self._is_same, node.func.value, owner))
                (asked if question.is_async else asking).add(id(node))
                asking |= {id(n) for n in ast.walk(node.func)}
        for node in self.nodes:
            if isinstance(node, ast.Await):
                calls = self._awaited(node.value)
                called = self._held(node.value.func) if isinstance(node.value, ast.Call) else None
                if _place(called) in PURE_FUNCTIONS:
                    asking.add(id(node))
                if all(id(call) in asked for call in calls):
                    asking |= {id(node), *map(id, calls)}
                    if node.value not in calls:
                        asking |= {id(node.value), *(id(n) for n in ast.walk(node.value.func))}  # type: ignore[attr-defined]
        return asking

    def _is_same(self, node: ast.expr, owner: Any) -> bool:
        return self._held(node) is owner

    def _awaited(self, value: ast.expr) -> list[ast.expr]:
        """The calls that are awaited: the value itself, or what it gathers."""
        match value:
            case ast.Call(func=ast.Attribute(attr="gather") as gather, args=[_, *_] as args, keywords=[]) if (
                self._held(gather) is asyncio.gather
            ):
                return [call for arg in args for call in _gathered(arg)]
            case _:
                return [value]

    def _inner_functions(self) -> Iterator[str]:
        """Names of functions that are defined in the function, by `def` or as a lambda."""
        for node in self.nodes:
            match node:
                case ast.FunctionDef(name=name):
                    yield name
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                    yield name

    def why(self) -> str:
        if twofold := self.local & _names_from_outside(self.source.function.__code__):
            return f"it uses the name {min(twofold)} for two things"
        for node in self.nodes:
            if id(node) not in self.annotations and (effect := self._effect(node)):
                line = getattr(node, "lineno", None)
                return effect + (f" (line {line})" if line else "")
        return ""

    def _own_names(self) -> set[str]:
        """Local names that only ever stand for a container or text made in this function."""
        made: dict[int, ast.expr] = {}
        for node in self.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    made |= {id(t): value for t in targets}
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    made[id(target)] = value
        augmented = {id(n.target) for n in self.nodes if isinstance(n, ast.AugAssign)}
        own: set[str] = set()
        others: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in augmented:
                is_fresh = id(node) in made and self._is_fresh(made[id(node)])
                (own if is_fresh else others).add(node.id)
        return own - others

    def _is_fresh(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in _MAKERS and node.func.id not in self.local
        return isinstance(node, _FRESH)

    def _effect(self, node: ast.AST) -> str:
        if id(node) in self.asking:
            return ""
        match node:
            case ast.Call():
                return self._call_effect(node)
            case ast.Name(ctx=ast.Load(), id="next") if id(node) in self.steps:
                return ""
            case ast.Name(ctx=ast.Load(), id=name) if name in self.source.fixed:
                return "" if id(node) in self.bases else self._value_effect(name, self.source.fixed[name])
            case ast.Name(ctx=ast.Load(), id=name):
                return "" if name in self.local else self._value_effect(name, self._held(node))
            case ast.Attribute(ctx=ast.Load()) if id(node) not in self.callees:
                return self._attribute_effect(node, is_called=False)
            case ast.Name(ctx=ast.Store()):
                return ""
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=attr):
                return f"it stores the attribute {attr!r}"
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value):
                return "" if self._is_own(value) else f"it stores into {ast.unparse(value)}"
            case ast.AugAssign(target=ast.Name(id=name)):
                return "" if name in self.own else f"it changes {name} in place"
            case ast.FunctionDef(decorator_list=[_, *_]):
                return "it decorates an inner function"
            case _ if isinstance(node, _EXPRESSIONS + _STATEMENTS):
                return ""
            case _:
                return f"it uses {type(node).__name__.lower()}"

    def _is_own(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.own

    def _call_effect(self, call: ast.Call) -> str:
        match call.func:
            case ast.Name(id=name) if name in self.local and name not in self.nested:
                return f"it calls {name}, which is a value"
            case ast.Name(id=name):
                return self._handed_effect(call, name)
            case ast.Attribute(value=base, attr=name):
                is_pattern = isinstance(self._held(base), re.Pattern)
                return self._attribute_effect(call.func, True) or self._handed_effect(call, name, is_pattern)
            case _:
                return "it calls the result of an expression"

    def _handed_effect(self, call: ast.Call, callee: str, is_pattern: bool = False) -> str:
        """What the callee may call that is handed to it. A pattern's method takes one argument less than `re` does."""
        at = CALLED_ARGUMENT.get(callee, len(call.args) + 1) - is_pattern
        keywords = CALLED_KEYWORDS | ({"default"} if callee == "dumps" else set())
        for handed in [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg in keywords)]:
            match handed:
                case ast.Lambda() | ast.Constant() | ast.JoinedStr():
                    pass
                case ast.Name(id=name) if name not in self.local or name in self.nested:
                    pass  # judged as a name
                case ast.Attribute(value=base) if self._held(base) is not MISSING:
                    pass  # judged as an attribute
                case ast.Call(func=func) if self._held(func) in (operator.itemgetter, operator.attrgetter):
                    pass
                case _:
                    return f"it hands {ast.unparse(handed)} to {callee}(), which calls it"
        return ""

    def _held(self, node: ast.expr) -> Any:
        """The object that an expression stands for, if it is known before the call; else MISSING."""
        match node:
            case ast.Name(id=name) if name in self.source.fixed:
                return self.source.fixed[name]
            case ast.Name(id=name) if name not in self.local:
                return outer_value(self.source.function, name)
            case ast.Attribute(value=base, attr=attr):
                owner = self._held(base)
                return MISSING if owner is MISSING else inspect.getattr_static(owner, attr, MISSING)
            case _:
                return MISSING

    def _attribute_effect(self, node: ast.Attribute, is_called: bool) -> str:
        shown, method = ast.unparse(node), node.attr
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        owner = self._held(node.value)
        if owner is not MISSING:
            return self._member_effect(shown, owner, method, is_called)
        if is_called and isinstance(root, ast.Name) and (root.id in self.source.fixed or root.id not in self.local):
            return f"it calls {shown}()"
        if is_called:
            is_allowed = method in PURE_METHODS or (method in OWN_METHODS and self._is_own(node.value))
            return "" if is_allowed else f"it calls .{method}()"
        return f"it hands on .{method}" if method in OWN_METHODS and not self._is_own(node.value) else ""

    def _member_effect(self, shown: str, owner: Any, name: str, is_called: bool) -> str:
        """`owner.name` of something that the function holds, called or handed on."""
        does = f"it calls {shown}()" if is_called else f"it uses {shown}"
        value = inspect.getattr_static(owner, name, MISSING)
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(owner, types.ModuleType):
            if owner.__name__ in PURE_MODULES:
                return does if (owner.__name__, name) in IMPURE_IN_MODULES else ""
            return self._value_effect(shown, value) if is_called or callable(value) else ""
        if isinstance(owner, re.Pattern):
            return ""
        if isinstance(owner, type):
            if isinstance(value, types.FunctionType):
                return self._value_effect(shown, value)
            is_known = owner.__module__ == "builtins" and name in PURE_METHODS | CLASS_METHODS
            return "" if is_known or not (is_called or callable(value)) else does
        if isinstance(owner, (*_DATA, dict, list, tuple, set, frozenset)):
            return "" if name in PURE_METHODS or not (is_called or name in OWN_METHODS) else does
        return "" if not is_called and _is_data(value) else does

    def _value_effect(self, shown: str, value: Any) -> str:
        """What using this global value can do: nothing if it is data, a module, or a pure function or class."""
        if isinstance(value, types.ModuleType) or _is_data(value):
            return ""
        if isinstance(value, types.BuiltinFunctionType):
            is_known = value.__module__ == "builtins" and value.__name__ in PURE_BUILTINS
            is_operator = value.__module__ == "_operator" and ("operator", value.__name__) not in IMPURE_IN_MODULES
            return "" if is_known or is_operator or value.__module__ == "math" else f"it uses {shown}"
        if isinstance(value, type):
            return "" if _is_pure_class(value) else f"it uses the class {shown}"
        if isinstance(value, types.FunctionType):
            place = _place(value)
            if place in PURE_FUNCTIONS or (value.__module__ in PURE_MODULES and place not in IMPURE_IN_MODULES):
                return ""
            why = _why_impure(value, self.callers, self.known)
            return f"{shown}: {why}" if why else ""
        return f"it uses {shown}, a {type(value).__name__}"


def _place(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__name__", None)


def _is_data(value: Any, depth: int = 3) -> bool:
    if isinstance(value, _DATA) or type(value).__module__.startswith("langchain_core.prompts."):
        return True
    if depth and type(value) in (list, tuple, set, frozenset):
        return all(_is_data(v, depth - 1) for v in value)
    return bool(depth) and type(value) is dict and all(_is_data(v, depth - 1) for v in value.values())


def _is_pure_class(cls: type) -> bool:
    """Making an object of it has no effect, nor has any use of the object."""
    if cls.__module__ == "builtins":
        return cls.__name__ in PURE_BUILTINS or issubclass(cls, BaseException)
    if any(cls.__module__ == m or cls.__module__.startswith(m + ".") for m in PURE_TYPES):
        return (cls.__module__, cls.__name__) not in IMPURE_IN_MODULES
    declared = declared_effects(cls)
    if declared is not None:
        return declared.pure
    if has_own_code(cls):
        return False
    if issubclass(cls, enum.Enum):
        return True
    if dataclasses.is_dataclass(cls):
        factories = [f.default_factory for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING]
        return all(_is_pure_class(f) if isinstance(f, type) else effects_of(f).pure for f in factories)
    return issubclass(cls, BaseException) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _gathered(arg: ast.expr) -> list[ast.expr]:
    """What `asyncio.gather` is handed in one argument."""
    match arg:
        case ast.Starred(value=ast.ListComp(elt=call) | ast.GeneratorExp(elt=call)):
            return [call]
        case _:
            return [arg]


def _names_from_outside(code: types.CodeType) -> set[str]:
    """Globals and closure variables that a function or one inside it reads, as the compiler sees it."""
    names = set(code.co_freevars)
    codes = [code]
    while codes:
        code = codes.pop()
        names |= {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return names


def _arguments(args: ast.arguments) -> list[ast.arg]:
    extra = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


_LIBRARIES = frozenset(["builtins", "abc", "collections", "_collections", "enum", "pydantic", "typing"])
_COMPILED = frozenset(["<string>", dataclasses.__file__])
"""What a class without code of its author's is made of: things of these packages, and functions from these files."""
_HINTS = ("__annotate__", "__annotate_func__")
"""What Python 3.14 compiles annotations to."""


def has_own_code(cls: type) -> bool:
    """Its author wrote something that runs when it is made or used: a method, a property or another descriptor."""
    own = [vars(c) for c in cls.__mro__ if not _is_of_library(c)]
    return any(_runs(member) for members in own for name, member in members.items() if name not in _HINTS)


def _runs(member: Any) -> bool:
    match member:
        case staticmethod() | classmethod():
            return _runs(member.__func__)
        case types.FunctionType():
            return member.__code__.co_filename not in _COMPILED and not _is_of_library(member)
        case types.BuiltinFunctionType():
            return not isinstance(member.__self__, type)  # `object.__new__`, which an enum keeps
        case property() | types.MethodType():
            return True
        case _:
            is_used = callable(member) or hasattr(type(member), "__get__")
            return is_used and not isinstance(member, type) and not _is_of_library(type(member))


def _is_of_library(thing: Any) -> bool:
    return (thing.__module__ or "").split(".")[0] in _LIBRARIES
