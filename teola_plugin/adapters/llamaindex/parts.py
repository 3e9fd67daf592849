"""The separately read parts of a pipeline, where the run's choice of parts is unpredictable.

A router chooses among engines, an agent among tools, a workflow runs user functions. When the run reaches a part (a
readable engine, retriever or synthesizer), the part reports the run (`entered`), and early requests of the part begin:

    router.query -> selector -> engine 2 .query   --enter(engine 2)-->   the graph of engine 2, with this query

Components covered by a graph are not entered again inside: the retriever, the synthesizer, the tools of
sub-questions.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from llama_index.core.workflow import Context

from teola_plugin.adapters.llamaindex.entries import Entry
from teola_plugin.adapters.llamaindex.later_steps import StepRun, later_steps, read_step
from teola_plugin.adapters.llamaindex.own_runs import Live, OwnRun, innermost
from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.llamaindex.reading_parts import function_of, original_of, replacement_of
from teola_plugin.adapters.llamaindex.reading_workflows import (
    StepContext,
    buffers_of_step,
    may_write,
    running,
    runs_beside,
    state_of,
)
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.companions import Companions
from teola_plugin.adapters.reader.mentions import functions_in
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Opaque, Pending
from teola_plugin.adapters.source import node_of
from teola_plugin.seams import current, inside
from teola_plugin.trace import Asides, Reading, Traced


@dataclass(frozen=True, slots=True)
class Part:
    """`traced` for calls, `atraced` for calls from a coroutine. `covered`: ids of the components in the graph.

    `ahead`: the covered components that run ahead by their own code, and are parts there.
    """

    component: Any
    traced: Traced
    atraced: Traced
    covered: frozenset[int]
    ahead: frozenset[int] = frozenset()


_parts: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The components that are a part of some pipeline, by id: pydantic components have no hash."""

_covered: dict[int, frozenset[int]] = {}
_here: ContextVar[frozenset[int]] = ContextVar("teola_covered", default=frozenset())


def part_of(component: object) -> Any | None:
    """Return the component, or a twin's original, if runs of the component are reported; else None."""
    if not _parts:
        return None
    for each in (component, original_of(component)):
        if _parts.get(id(each)) is each and id(each) not in _here.get():
            return each
    return None


@contextlib.contextmanager
def entered(component: object, entry: Entry | OwnRun) -> Iterator[None]:
    """Surround the run of a part, in the session of the call, if there is a session."""
    session, around, outer = current(), innermost.get(), _foreseen.get()
    if session is None or (outer is not None and outer is not component):
        yield
        return
    if around is not None and around.takes(component, lambda: session.enter(component, entry)):
        with _covering(frozenset([id(component)])):  # one run: its methods call each other
            yield
        return
    if isinstance(entry, OwnRun):
        entry.session = session
    front = session.enter(component, entry)
    if isinstance(entry, OwnRun):
        with _inside_own(entry):
            yield
        return
    if front is None:
        yield
        return
    with _covering(_covered.get(id(component), frozenset())), inside(front):
        yield


@contextlib.contextmanager
def entered_method(component: object, own: OwnRun) -> Iterator[None]:
    """Surround the run of a user's override of an entry method, which may go on to the framework's method."""
    with entered(component, own), _covering(frozenset([id(component)])):
        yield


@contextlib.contextmanager
def _covering(components: frozenset[int]) -> Iterator[None]:
    """Inside the context, the components with the given ids are not entered."""
    token = _here.set(_here.get() | components)
    try:
        yield
    finally:
        _here.reset(token)


_foreseen: ContextVar[object | None] = ContextVar("teola_foreseen", default=None)
"""The outermost inner component whose whole run is predicted: components inside are not entered."""


def is_asked_beside() -> bool:
    """Whether the requests in this context are made beside the run, by a component that a reading asks.

    If not, and if a component is foreseen here, no reading asks it from now on.
    """
    own, component = innermost.get(), _foreseen.get()
    return own is not None and component is not None and not own.leaves_alone(component)


@contextlib.contextmanager
def heard(
    component: object, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Surround the run of a component, possibly inside a user function that is read.

    The yielded function is to be called with the component's result.
    """
    own = innermost.get()
    if own is None or own.session is not current() or _foreseen.get() is not None:
        yield lambda value: value
        return
    plain = original_of(component)
    key = own.will_hear(plain, method, args, kwargs)

    def tell(value: Any) -> Any:
        if key is not None:
            own.hear(key, value)
        return value

    token = _foreseen.set(plain if own.foresees(plain) else None)
    try:
        yield tell
    finally:
        _foreseen.reset(token)


@contextlib.contextmanager
def _inside_own(own: OwnRun) -> Iterator[None]:
    own.around = innermost.get()
    token = innermost.set(own)
    is_failed = True
    try:
        yield
        is_failed = False
    finally:
        own.end(is_failed=is_failed)
        innermost.reset(token)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """A component of a user's class, whose function is read as its run begins.

    `methods`: readings of the user's overrides of entry methods, by name. None but those are read without `reading`.
    `is_gathered`: a stock component may run coroutines of the component beside each other, or beside others.
    """

    component: Any
    reading: Reading | None
    methods: Mapping[str, Reading]
    is_gathered: bool = False

    @property
    def readings(self) -> list[Reading]:
        """All readings of the component."""
        return [*self.methods.values(), *([self.reading] if self.reading is not None else [])]


_readings: dict[int, Reading] = {}
_gathered: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Components with `OwnPart.is_gathered`, by id."""


@contextlib.contextmanager
def _beside_others(run: Run, component: Any, *, is_async: bool, given: Any) -> Iterator[None]:
    """Read a component's coroutine inside the context, beside unread coroutines where a component gathers both."""
    if not (is_async and _gathered.get(id(component)) is component):
        yield
        return
    run.begin_beside_unread()
    run.forget_shared([[given], [given]])
    companions = Companions(run)
    try:
        with companions.one():
            yield
    finally:
        companions.add_unread()
        companions.hold_back()


def _changes_others(function: types.FunctionType | None) -> bool:
    """Whether a method sets attributes of other objects than its own, which may be components that run beside it.

    Nothing that LlamaIndex has begun after the method may come before such a change.
    """
    nodes = [node_of(each) for each in functions_in(function)] if function is not None else []
    return any(_is_change(each) for node in nodes if node is not None for each in ast.walk(node))


def _is_change(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del(), value=ast.Name("self")):
            return False
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Call(func=ast.Name("setattr" | "delattr")):
            return True
        case _:
            return False


def own_run(component: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OwnRun | None:
    """Return the run for a call of the component's method, if its function is read."""
    reading, is_async = _readings.get(id(component)), method.startswith("a")
    function = function_of(component, is_async=is_async) if reading is not None else None
    if reading is None or function is None:
        return None

    def program(asker: LlamaIndexAsker, run: Run, given: Any) -> object:
        with _beside_others(run, component, is_async=is_async, given=given):
            return asker.use(run, component, method, tuple(given[0]), given[1])

    blocks = is_async and not inspect.iscoroutinefunction(function) and not _changes_others(function)
    return OwnRun(program, [list(args), dict(kwargs)], reading, is_async, blocks=blocks, roots=[component, function])


@dataclass(frozen=True, slots=True)
class OwnMethods:
    """A component of a user's class, with overrides of entry methods, which are read as calls begin."""

    component: Any
    readings: Mapping[str, Reading]


_methods: dict[int, Mapping[str, Reading]] = {}


def method_run(
    component: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_beside: bool
) -> OwnRun | None:
    """Return the run of a user's override of an entry method, if read. `is_beside`: see `OwnRun`."""
    reading = _methods.get(id(component), {}).get(method)
    function = replacement_of(component, method) if reading is not None else None
    is_async = method.startswith("a")
    if reading is None or function is None or inspect.iscoroutinefunction(function) is not is_async:
        return None

    def program(asker: LlamaIndexAsker, run: Run, given: Any) -> object:
        with _beside_others(run, component, is_async=is_async, given=given):
            found = call(run, run.load(function), (run.load(component), *given[0]), dict(given[1]))
            return found.force() if is_async and type(found) is Pending else found

    roots = [component, function]
    return OwnRun(program, [list(args), dict(kwargs)], reading, is_async, roots=roots, is_beside=is_beside)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class OwnSteps:
    """The steps of a workflow, by name. `undisturbed`: steps beside which no other step uses the state; `apart`: steps
    beside which no other step stores something outside of itself; `is_whole`: no further steps exist.
    """

    workflow: Any
    functions: Mapping[str, types.FunctionType]
    readings: Mapping[str, Reading]
    undisturbed: frozenset[str]
    apart: frozenset[str]
    is_whole: bool


_steps: weakref.WeakValueDictionary[int, OwnSteps] = weakref.WeakValueDictionary()


def steps_of(workflow: Any) -> OwnSteps | None:
    """Return the read steps of a workflow, if the workflow was traced."""
    return _steps.get(id(workflow))


def step_run(steps: OwnSteps, name: str, kwargs: Mapping[str, Any]) -> OwnRun:
    """Return a run of a step that begins now."""
    function = steps.functions[name]
    contexts = {key: held for key, held in kwargs.items() if foreign.is_kind_of(held, Context)}
    given = {key: held for key, held in kwargs.items() if key not in contexts}
    later, workflow = later_steps(steps, name, given), running.get()
    known = next(iter(contexts.values()), workflow.engine.context if later is not None and workflow else None)
    reads = known is not None and any(map(_reads_state, [function] if later is None else steps.functions.values()))
    state, is_checked = state_of(known) if reads else (None, True)
    is_async = inspect.iscoroutinefunction(function)
    others = [*later.others] if later is not None else []
    buffers = {**(later.begins.buffers if later is not None else {}), name: buffers_of_step()}
    event = given.get(vars(function)["_step_config"].event_name)
    is_beside_unread = later is None and runs_beside(name, event)

    def program(asker: LlamaIndexAsker, run: Run, copies: Any) -> object:
        values, state, buffers, others = copies
        if name not in steps.apart:
            run.begin_beside_unread()
        if later is not None:
            later.begin()

        def is_steady(waits: bool) -> bool:
            return steps.is_whole and own.is_steady() and (name in steps.undisturbed or not waits)

        context = StepContext(state, is_checked, buffers.get(name, {}), is_steady, is_async)
        companions, is_read = Companions(run, [state]), False
        try:
            with companions.one(given=[*values.values()]):
                values = {**values, **dict.fromkeys(contexts, Opaque(context, is_own=True))}
                value = read_step(run, steps, name, values)
            is_read = True
        finally:
            is_beside = is_beside_unread or (others and not is_read)
            if context.sent or (is_beside and not own.is_alone()):
                companions.add_unread()
                companions.hold_back()
        return value, context, buffers, others, companions

    own = StepRun(
        program, [given, state, buffers, others], steps.readings[name], is_async, writes=may_write(function), step=name,
        event=event, later=later, workflow=workflow,
        roots=[steps.workflow, *steps.functions.values()],
    )  # fmt: skip
    return own


def _reads_state(function: types.FunctionType) -> bool:
    return any("store" in each.__code__.co_names for each in functions_in(function))


def _add_methods(component: Any, readings: Mapping[str, Reading]) -> None:
    number = id(component)
    if readings and number not in _methods:
        weakref.finalize(component, _methods.pop, number, None).atexit = False
    if readings:
        _methods[number] = {**_methods.get(number, {}), **readings}


class Parts:
    """The parts of one pipeline."""

    def __init__(
        self, parts: Sequence[Part], own: Sequence[OwnPart] = (), steps: OwnSteps | None = None,
        methods: OwnMethods | None = None,
    ) -> None:  # fmt: skip
        self.parts = {id(part.component): part for part in parts}
        for number, part in self.parts.items():
            if number not in _covered:
                weakref.finalize(part.component, _covered.pop, number, None).atexit = False
            _parts[number], _covered[number] = part.component, part.covered
        for each in own:
            _parts[number := id(each.component)] = each.component
            if each.is_gathered:
                _gathered[number] = each.component
            if each.reading is not None:
                if number not in _readings:
                    weakref.finalize(each.component, _readings.pop, number, None).atexit = False
                _readings[number] = each.reading
            _add_methods(each.component, each.methods)
        if steps is not None:
            _steps[id(steps.workflow)] = self._held = steps
        if methods is not None:
            _add_methods(methods.component, methods.readings)

    def follow(self, value: Any) -> Following:
        """See `trace.Traced.follow`."""
        return Following(self)


class Following:
    """Implements `trace.Follower`, for one call."""

    is_beside = True

    def __init__(self, parts: Parts) -> None:
        self._parts = parts.parts
        self._live = Live()

    def tell(self, component: object, value: Any, asides: Asides) -> tuple[Traced, Mapping[str, Any]] | None:
        """See `trace.Follower.tell`."""
        if isinstance(value, OwnRun):
            self._live.begin(value, asides)
            return None
        part = self._parts.get(id(component))
        if part is None or not isinstance(value, Entry):
            return None
        traced = part.atraced if value.is_async else part.traced
        inputs = traced.bind(value)
        return (traced, inputs) if inputs.keys() - {"is_async"} else None

    def end(self, asides: Asides) -> None:
        """See `trace.Follower.end`."""
