"""A p-graph under construction: emits primitives for symbolic values, and keeps the meaning of their names."""

from __future__ import annotations

import contextlib
import copy
import operator
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from teola_plugin.adapters.langchain.binding import Bindings
from teola_plugin.adapters.langchain.finish import (
    Barrier,
    drop_unused,
    merge_lists,
    names_in,
    order_reads,
)
from teola_plugin.adapters.langchain.observe import instrument_component
from teola_plugin.adapters.langchain.templates import is_transparent, runs_code
from teola_plugin.adapters.langchain.values import Constant, Holds, Prompt, Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.plain import on_plain_data
from teola_plugin.adapters.reader.reach import Reach
from teola_plugin.engines import EngineSpec
from teola_plugin.graph import OUTSIDE, PIPELINE, READER, STATE, Arg, Graph, Input, Literal, Primitive, When, validate
from teola_plugin.graph_builder import GraphBuilder
from teola_plugin.trace import Asides, Function, Reading, Traced


class Draft(GraphBuilder):
    """Primitives in program order. `guard` and `level`: the current condition and the number of enclosing maps.

    `runs`: the number of runs of each user function's code; in a map, more than one.

    Gates (see `GraphBuilder`) are every call without `is_total`, every value of the framework's run, and each key read
    from the caller's input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: Counter[Hashable] = Counter()
        self.guard: When | None = None
        self.level = 0
        self.changes = self.has_unread = False
        """Whether some function may change something; whether such a function cannot be read."""
        self.beside: tuple[tuple[set[int], int], ...] = ()
        """Of each set of branches around: the branches with functions which change something, and the branch here."""
        self.origin = ""
        self.bindings = Bindings(self.unique, self.gate)
        self._untold: set[str] = set()
        self._barriers: tuple[Barrier, ...] = ()
        self._repeats = False
        self._barriers_before: dict[str, tuple[Barrier, ...]] = {}
        self._stores: set[str] = set()
        self._readings: dict[str, Reading] = {}
        self._on_call: list[Callable[[Any, Asides], None]] = []
        self._list_calls: dict[str, str] = {}
        self._fields: dict[tuple[Value, str, When | None], Value] = {}

    # --- adding primitives -------------------------------------------------------------------------------------------

    def call(
        self, name: str, fn: str, function: Callable[..., Any], *args: Value, identity: Any = None,
        is_glue: bool = True, reads: tuple[str, ...] = (), lists: int = 0, holds: Holds = "any",
        is_async: bool = False, is_total: bool = False, is_stale: Callable[..., bool] | None = None,
    ) -> Value:  # fmt: skip
        """Add a pure function of values; calls with the same `identity` share one function name.

        `is_total`: the function raises for no value that is possible here, unless an engine returned a malformed value.
        """
        fn = self.function(fn, Function(function, is_glue, False, is_async, is_total, is_stale), identity)
        reads = (*reads, *self._state) if is_stale else reads
        value = self.add(name, "call", args, {"fn": fn}, "python", lists=lists, reads=reads, holds=holds)
        if not is_total:
            self.gate(value.name)
        return value

    def on_call(self, act: Callable[[Any, Asides], None]) -> None:
        """See `Traced.on_call`."""
        self._on_call.append(act)

    def reading(self, reading: Reading) -> Reading:
        """Note that a user function is read; several uses of a function in the pipeline count as one reading."""
        return self._readings.setdefault(reading.name, reading)

    def read(
        self, name: str, component: object, fn: str, function: Callable[..., Any], *args: Value, identity: Any,
        holds: Holds, reach: Reach,
    ) -> Value:  # fmt: skip
        """Add a user function's value, read by `function`; otherwise the framework's run may report the value."""
        fn = self.function(fn, Function(function, asks=reach.asks, is_stale=_always), identity)
        reads = (OUTSIDE, *self._state) if reach.asks else self._state
        value = self.add(name, "call", args, {"fn": fn}, READER, reads=reads, holds=holds, is_outside=reach.asks)
        self._repeats |= reach.repeats
        if reach.changes:
            writes = None if reach.acts else (STATE,)
            self._barriers += (Barrier(value.name, writes, is_read=True, is_seen_beside=reach.alters),)
        if id(component) in self.observed:  # the values of several runs of one component cannot be told apart
            self.observed[id(component)] = ""
        elif not self.level:
            self.observed[id(component)] = value.name
            instrument_component(component)
        self.gate(value.name)
        return value

    def ask(
        self, name: str, kind: str, spec: EngineSpec, *args: Value | str, settings: Mapping[str, Any] | None = None,
        reads: tuple[str, ...] = (), holds: Holds = "any", engine: str = "",
    ) -> Value:  # fmt: skip
        """Add work for an engine; `engine`: the fallback name of the engine."""
        if kind == "searching":
            self._stores.update(reads)
        named = self.engine(spec, engine or kind)
        return self.add(name, kind, args, settings or {}, named, reads=reads, holds=holds, is_outside=spec.is_outside)

    def await_run(
        self,
        name: str,
        component: object,
        fn: str,
        args: Iterable[Value],
        writes: tuple[str, ...] | None,
        is_pure: bool = False,
    ) -> Value:
        """Add a value that only the framework's own run of `component` may compute; the plan goes on from the value."""
        fn = self.function(fn, Function(_not_ahead), None)
        value = self.add(name, "call", tuple(args), {"fn": fn}, PIPELINE, writes=writes or ())
        if self.level:
            self.leave("TB106", component)  # the items of several runs of one component cannot be told apart
            self._untold.add(value.name)
        elif id(component) in self.observed:
            self.leave("TB107", component)
        else:
            self.observed[id(component)] = value.name
            instrument_component(component)
        if not is_pure:
            self._barriers += (Barrier(value.name, writes),)
        self.gate(value.name)
        return value

    def add(
        self, name: str, kind: str, args: Sequence[Value | str], settings: Mapping[str, Any], engine: str, *,
        lists: int = 0, reads: tuple[str, ...] = (), writes: tuple[str, ...] = (), holds: Holds = "any",
        is_outside: bool = False,
    ) -> Value:  # fmt: skip
        """Add a primitive, which makes `lists` lists of each input.

        `is_outside`: the requests of the primitive leave this process.
        """
        level = max((a.level for a in args if isinstance(a, Value)), default=0)
        if any(a.level and a.depth > level for a in args if isinstance(a, Value)):
            lists = (
                0  # the depth of a list below an item says already that it is taken whole: the result is a plain value
            )
        name = self.unique(name)
        data: tuple[Arg, ...] = tuple(a.ref if isinstance(a, Value) else Literal(a) for a in args)
        given, depth = tuple(settings.items()), level + lists
        added = Primitive(name, kind, data, given, engine, depth, reads, writes, (), self.guard, self.origin)
        self.append(added, is_outside=is_outside)
        if reads:
            self._barriers_before[name] = self._barriers
        return Value(name, level + lists, level, holds)

    def list_call(self, name: str, grammar: str, function: Callable[..., Any], text: Value) -> Value:
        """Add the items of a text: by the decoding itself, if the text has no other use (see `finish.merge_lists`)."""
        value = self.call(
            name, grammar, function, text, identity=("items", grammar), lists=1, holds="text", is_total=True
        )
        self._list_calls[value.name] = grammar
        return value

    def leave(self, code: str, component: object, detail: str = "", hint: str = "") -> None:
        """Note the reason why a part of `component` is left to the framework."""
        self.add_break(code, describe(component), self.origin, detail, hint)

    # --- symbolic values as data -------------------------------------------------------------------------------------

    def value(self, symbol: Symbol, name: str = "value") -> Value:
        """Return the Python value that the pipeline's next component would see."""
        match symbol:
            case Value(holds="message"):
                each = replace(symbol, level=symbol.depth)
                made = self.call("message", "message", to_message, each, identity="message", is_total=True)
                return replace(made, level=symbol.level)
            case Value():
                return symbol
            case Root():
                return self.bindings.whole()
            case Constant(constant):
                return self.call(name, "constant", lambda: constant, is_total=True)
            case Record():
                return symbol.whole() if symbol.whole else self._dict(symbol)
            case Prompt(template, variables):
                known = {k: v.value for k, v in variables.items() if isinstance(v, Constant)}
                names = [k for k in variables if k not in known]
                args = [self.value(variables[k], k) for k in names]

                def make(*values: Any) -> Any:
                    return template.format_prompt(**dict(zip(names, values, strict=True)), **known)

                return self.call(
                    "prompt", "prompt", make, *args, is_glue=not runs_code(template), holds="prompt",
                    is_total=self.is_total(symbol),
                )  # fmt: skip

    def field(self, symbol: Symbol, key: str) -> Symbol:
        """Return `value[key]`. Raises: Untraceable if the lookup is an error."""
        match symbol:
            case Record(fields, rest):
                if key in fields:
                    return fields[key]
                if rest is None:
                    raise Untraceable("TB108", f"nothing before it makes the key {key!r}")
                return self.field(rest, key)
            case Root():
                return self.bindings.key(key)
            case Constant(value) if isinstance(value, Mapping) and key in value:
                return Constant(value[key])
            case Value():
                known = self._fields.get((symbol, key, self.guard))
                if known is None:
                    get = on_plain_data(operator.itemgetter(key))
                    known = self.call(key, f"get_{key}", get, symbol, identity=("get", key))
                    self._fields[symbol, key, self.guard] = known
                return known
            case _:
                raise Untraceable("TB108", f"its input has no keys, it reads {key!r}")

    def is_dict(self, value: Value) -> bool:
        """Whether a key of the value was taken before."""
        return any(known == value for known, _, _ in self._fields)

    def _dict(self, record: Record) -> Value:
        names = list(record.fields)
        args = [self.value(v, k) for k, v in record.fields.items()]
        rest = [self.value(record.rest)] if record.rest is not None else []

        def make(*values: Any) -> dict[str, Any]:
            fields = dict(zip(names, values[len(rest) :], strict=True))
            return {**values[0], **fields} if rest else fields

        return self.call("record", "dict", make, *rest, *args, identity=("dict", bool(rest), *names), is_total=True)

    def is_total(self, prompt: Symbol) -> bool:
        """Whether formatting the prompt raises for no value: texts and plain inputs between constant texts."""
        if not isinstance(prompt, Prompt) or not is_transparent(prompt.template):
            return False
        return all(
            isinstance(v, Constant | Root)
            or (isinstance(v, Value) and (v.holds in ("text", "message") or v.name not in self.primitives))
            for v in prompt.variables.values()
        )

    def items(self, symbol: Symbol) -> Value:
        """Return an item of a list, as seen inside a map a level deeper."""
        match symbol:
            case Root():
                whole = self.bindings.whole(depth=1)
                return replace(whole, level=self.level + 1)
            case Value() if symbol.is_list:
                return replace(symbol, level=symbol.level + 1)
            case Value(name, depth, 0) if name in self.primitives and self.primitives[name].kind == "call":
                self.primitives[name] = replace(self.primitives[name], depth=depth + 1)
                return Value(name, depth + 1, 1)
            case Value(holds="any"):
                each = on_plain_data(list)
                made = self.call(symbol.name + "_items", "items", each, symbol, identity="items", lists=1)
                return replace(made, level=made.level + 1)
            case _:
                raise Untraceable("TB108", "it maps over something that is no list")

    def is_one_line(self, text: Value) -> bool:
        """Whether the text is assumed to have no line breaks: the caller's own, or an item of a list of lines."""
        return text.name not in self.primitives or (
            self._list_calls.get(text.name) in ("lines", "numbered", "markdown")
        )

    def is_untold(self, value: Value) -> bool:
        """Whether the value depends on a value that the framework's run does not report either."""
        names, seen = [value.name], set[str]()
        while names:
            name = names.pop()
            if name in self._untold:
                return True
            if name in self.primitives and name not in seen:
                names += self.primitives[name].dependencies
            seen.add(name)
        return False

    def is_between(self, name: str, since: int, until: int) -> bool:
        """Whether the primitive is among the first `until` primitives but not among the first `since`."""
        return name in list(self.primitives)[since:until]

    def __len__(self) -> int:
        return len(self.primitives)

    def as_condition(self, value: Value, fn: str) -> Value:
        """Return a condition primitive, true when `value` is: the call behind `value`, if the call has no other use."""
        made = self.primitives.get(value.name)
        is_last = bool(self.primitives) and next(reversed(self.primitives)) == value.name
        if made is None or not is_last or made.kind != "call" or made.engine not in ("python", READER) or made.depth:
            truth = self.function("truth", Function(bool, is_glue=True), "truth")
            return self.add(fn, "condition", (value,), {"fn": truth}, "python")
        fn = str(made.setting("fn"))
        function = self.functions[fn]
        if not any(p.setting("fn") == fn for p in self.primitives.values() if p is not made):
            self.drop_function(fn)
        named = self.function(fn, replace(function, call=_truth_of(function)), None)
        self.primitives[value.name] = replace(made, kind="condition").with_settings(fn=named)
        return value

    @property
    def is_behind_effects(self) -> bool:
        """Whether an earlier step may change existing objects in place."""
        return any(not barrier.is_read for barrier in self._barriers)

    @property
    def _state(self) -> tuple[str, ...]:
        """The resource to read for state that an earlier user function may change."""
        return (STATE,) if self._barriers else ()

    # --- barriers and gates ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def side_by_side(self) -> Iterator[Callable[[], None]]:
        """Call the yielded function before each of several unordered branches.

        A branch may find the in-place changes of an earlier branch.
        """
        before, gates_before, beside_before = self._barriers, self.gates, self.beside
        changing, count = set[int](), 0
        after, gates_after = before, gates_before

        def branch() -> None:
            nonlocal after, gates_after, count
            count += 1
            self.beside = (*beside_before, (changing, count))
            named = {b.name for b in after}
            after += tuple(b for b in self._barriers if b.name not in named)
            gates_after += tuple(g for g in self.gates if g not in gates_after)
            beside = (Barrier(b.name, (STATE,), is_read=True) for b in after if b.is_seen_beside and b not in before)
            self._barriers, self.gates = (*before, *beside), gates_before

        yield branch
        branch()
        self._barriers, self.gates, self.beside = after, gates_after, beside_before

    # --- the end -----------------------------------------------------------------------------------------------------

    def traced(self, result: Symbol) -> Traced:
        """Return the finished p-graph."""
        outputs = tuple(dict.fromkeys(names_in(result)))
        order_reads(self.primitives, self._barriers_before, self._stores)
        self.gate_requests()
        outputs = merge_lists(self.primitives, self._list_calls, outputs)
        drop_unused(self.primitives, outputs)
        used = {p.setting("fn") for p in self.primitives.values()}
        engines = {p.engine for p in self.primitives.values()}
        inputs = tuple(Input(name, depth) for name, depth in self.bindings.inputs().items())
        needed = {name for p in self.primitives.values() for name in p.dependencies} | set(outputs)
        inputs = tuple(i for i in inputs if i.name in needed)
        graph = validate(Graph(inputs, tuple(self.primitives.values()), outputs))
        return Traced(
            graph,
            {name: f for name, f in self.functions.items() if name in used},
            {name: spec for name, spec in self.engines.items() if name in engines},
            self.bindings.bind,
            {key: name for key, name in self.observed.items() if name in self.primitives},
            tuple(self.breaks),
            repeats=self._repeats,
            readings=tuple(self._readings.values()),
            on_call=tuple(self._on_call),
        )


def snake(name: str) -> str:
    """Return a class name as the name of a value: `FakeListChatModel` -> `fake_list_chat_model`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def describe(component: object) -> str:
    """Return the name of a component in breaks and origins."""
    return plain_class(component).__name__


def to_message(completion: Any) -> Any:
    """Return the message that the pipeline sees for a chat model's reply."""
    from langchain_core.messages import AIMessage

    if isinstance(completion, str):
        raw = getattr(completion, "raw", None)
        generations = getattr(raw, "generations", None)
        return copy.deepcopy(generations[0].message) if generations else AIMessage(content=str(completion))
    return completion


def _truth_of(function: Function) -> Callable[..., Any]:
    async def atruth(*args: Any) -> bool:
        return bool(await function.call(*args))

    return atruth if function.is_async else lambda *args: bool(function.call(*args))


def _always(*args: Any) -> bool:
    return True


def _not_ahead(*args: Any) -> Any:
    raise RuntimeError("computed by the framework's own run only")
