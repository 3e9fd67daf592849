"""Steps of workflows: events as data, and the use of the context by a step.

A step is read as it begins, from its event and from the present state, or before (see later_steps.py). Sending an
event, or writing an event to the stream, does nothing while a step is read: the workflow's own run sends the event, and
begins the next steps.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.workflow import Event, StopEvent

from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.mentions import functions_in
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Opaque,
    Pending,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)

try:
    from workflows.runtime.control_loop.runner import _ControlLoopRunner
except ImportError:  # the engine of another release
    HAS_ENGINE = False
else:
    HAS_ENGINE = True

try:
    from workflows.context.state_store import DictState, InMemoryStateStore
    from workflows.runtime.types.results import StepWorkerStateContextVar
except ImportError:  # older releases keep their state elsewhere
    HAS_STATE = False
else:
    HAS_STATE = True

WRITING = frozenset(["set", "set_state", "edit_state", "clear"])
"""Methods that change the state of a workflow."""


@dataclass(eq=False)
class StepContext:
    """The stand-in for the context of a step. `state`: the state as the step began, None if unknown.

    `is_checked`: a state with fields checks its values. `collected`: the events in the buffers. `is_steady`: whether
    the state stays unchanged until the step reads it, given whether the step waits before. `is_beside`: other steps of
    the workflow run in an order that is not certain. `origin`: the context of the first step that is read, if another.

    `sent`: the events that the step has sent in this evaluation; `is_unsure`: that is not certain.
    """

    state: dict[str, Any] | None
    is_checked: bool
    collected: Mapping[str, Sequence[Any]]
    is_steady: Callable[[bool], bool]
    is_async: bool = True
    is_beside: bool = False
    origin: StepContext | None = None
    sent: list[Any] = field(default_factory=list)
    is_unsure: bool = False


@dataclass(eq=False)
class _Store:
    """The stand-in for the state of a workflow."""

    context: StepContext


def is_of_context(held: Any) -> bool:
    """Whether an object stands for a context, or for a context's state."""
    return type(held) is StepContext or type(held) is _Store


@dataclass
class Contexts:
    """The values stored by steps, in one evaluation."""

    stored: dict[int, dict[str, Any]] = field(default_factory=dict)

    def attribute(self, run: Run, held: Any, name: str) -> Any:
        """Return the attribute of a context or of its store."""
        if type(held) is StepContext:
            if name == "store":
                return Opaque(_Store(held), is_own=True)
            if name in ("send_event", "write_event_to_stream"):
                return Callee(_telling(name, held), name)
            if name == "collect_events":
                return Callee(lambda run, args, kwargs: _collected(run, held, *args, **kwargs), name)
            raise Barrier(f"it uses {name} of the context")
        if name not in ("get", "set"):
            raise Barrier(f"it uses {name} of the state", "use get and set")
        act = self._get if name == "get" else self._set

        def call(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            return Pending(lambda: act(run, held.context, *args, **kwargs))

        return Callee(call, name)

    def _stored(self, context: StepContext) -> dict[str, Any]:
        return self.stored.setdefault(id(context.origin or context), {})

    def _get(self, run: Run, context: StepContext, path: Any, default: Any = NOT_MINE) -> Any:
        own = self._stored(context)
        if run.is_unknown(own):
            raise Undecided
        _require_name(run, path)
        if path in own:
            return own[path]
        if context.state is None:
            raise Barrier("it reads a state that is not kept in memory")
        if not context.is_steady(run.counts.total() > 0):
            raise Barrier("it reads what other steps may change meanwhile")
        if path in context.state:
            return context.state[path]
        if default is NOT_MINE:
            raise ValueError(f"Path '{path}' not found in state")
        return default

    def _set(self, run: Run, context: StepContext, path: Any, value: Any) -> None:
        own = self._stored(context)
        _require_name(run, path)
        if context.is_beside:
            raise Barrier("it changes what other steps may read meanwhile")
        if context.is_checked:
            run.raises()
        context.is_unsure |= bool(context.sent)  # the steps begun by these may read the old value
        run.touch(own)
        own[path] = value


def _require_name(run: Run, path: Any) -> None:
    run.require_known(path)
    if type(path) is not str or "." in path:
        raise Barrier("it uses a path in the state", "get the value, and what is in it after that")


def _telling(name: str, context: StepContext) -> Callable[..., None]:
    def tell(run: Run, args: Arguments, kwargs: dict[str, Any]) -> None:
        if not context.is_async:
            raise Barrier(f"it calls {name} without an event loop", "make the step a coroutine")
        if len(args) != 1 or kwargs or kind_of_event(args[0]) is None:
            raise Barrier(f"it calls {name} in an unusual way")
        if name == "send_event":
            context.sent.append(args[0])
            context.is_unsure |= run.in_doubt

    return tell


def kind_of_event(value: Any) -> type | None:
    """Return the class of an event; None for other values, and for an event of an unknown class."""
    kind: Any = value.holds if type(value) is Unknown else type(value)
    return kind if foreign.is_class(kind) and foreign.is_subtype(kind, Event) else None


def _collected(run: Run, context: StepContext, ev: Any, expected: Any, buffer_id: Any = None) -> Any:
    """As `Context.collect_events`, from the buffers at the begin of the step."""
    run.require_known(buffer_id)
    kind = kind_of_event(ev)
    if type(expected) is not list or kind is None:
        raise Undecided if run.is_unknown(expected) else Barrier("it collects events in an unusual way")
    if not all(type(each) is Opaque and foreign.is_class(each.held) for each in expected):
        raise Barrier("it collects events in an unusual way")
    if not expected:
        return []
    events = [*context.collected.get(buffer_id or "default", ()), ev]
    wanted = Counter(id(each.held) for each in expected)
    wanted.subtract(id(type(each)) for each in events[:-1])
    if +wanted != Counter([id(kind)]):
        return None
    if type(ev) is Unknown:
        raise Stalled("what an event holds is not certain") if context.is_beside else Undecided
    found = []
    for kind in expected:
        at = next(at for at, each in enumerate(events) if type(each) is kind.held)
        found.append(events.pop(at))
    if context.is_beside:
        raise Stalled("the order of the events is not certain")
    return found


# --- as a step begins ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beginning:
    """The begin of a step of a workflow's run, while no other step runs or waits.

    `names`: all steps in the order in which steps begin with an event. `others`: further steps that begin now, each
    with an event. `coming`: events sent by steps, each with the step to which the event is sent, if any; None if the
    events are not known. `ended`: the steps which ended a moment ago. `queued`: steps which begin once a worker is
    free. `buffers`: the events collected by each step so far.
    """

    names: Sequence[str]
    others: Sequence[tuple[str, Any]]
    coming: Sequence[tuple[str | None, Any]] | None
    ended: Sequence[str]
    queued: Sequence[str]
    buffers: Mapping[str, Mapping[str, Sequence[Any]]]


class Running:
    """One run of a workflow by LlamaIndex's engine.

    `reading`: the step from which later steps are read, if any. `begun`: the events of steps that have begun, `sent`:
    what those that have ended have sent; by the step and the event's id.
    """

    reading: Any = None

    def __init__(self, engine: Any) -> None:
        self._engine = weakref.ref(engine)
        self.begun: dict[tuple[str, int], Any] = {}
        self.sent: dict[tuple[str, int], list[Any]] = {}

    @property
    def engine(self) -> Any:
        """The engine, None once it has ended."""
        return self._engine()


running: ContextVar[Running | None] = ContextVar("teola_workflow", default=None)
"""The run of a workflow to which this task belongs."""


def install() -> None:
    """Make the steps of a workflow know the engine of the run. Idempotent."""
    if HAS_ENGINE:
        intercept(_ControlLoopRunner, "run", _known_to_steps)


def _known_to_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = running.set(Running(self))
        try:
            return await original(self, *args, **kwargs)
        finally:
            running.reset(token)

    return run


def beginning(name: str, event: Any) -> Beginning | None:
    """Note that a step begins with this event; return None if another step runs or waits."""
    now = running.get()
    state = getattr(now.engine, "state", None) if now is not None else None
    if now is None or state is None:
        return None
    now.begun[name, id(event)] = event
    workers = {str(each): worker for each, worker in state.workers.items()}
    queued = [each for each, worker in workers.items() if worker.queue]
    known = getattr(state, "deliveries", None)  # older engines do not know what is on its way
    coming, others, ended = [*(known or {}).values()], list[tuple[str, Any]](), list[str]()
    for each, one in [(each, one) for each, worker in workers.items() for one in worker.in_progress]:
        key = each, id(one.event)
        if one.attempts or (key in now.begun and key not in now.sent and key != (name, id(event))):
            return None
        if key not in now.begun:
            others.append((each, one.event))
        elif key in now.sent:
            ended.append(each)
            coming += [sent for sent in now.sent[key] if sent.index not in one.received]
    if state.children or any(worker.collected_waiters for worker in workers.values()):
        return None
    if queued and not (others or coming):
        return None
    told = [(None if each.step_id is None else str(each.step_id), each.event) for each in coming]
    buffers = {each: dict(worker.collected_events) for each, worker in workers.items()}
    return Beginning([*workers], others, None if known is None else told, ended, queued, buffers)


def runs_beside(name: str, event: Any) -> bool:
    """Whether another step runs, or is about to begin, beside the step which begins now with the event."""
    now = running.get()
    state = getattr(now.engine, "state", None) if now is not None else None
    if now is None or state is None:
        return False
    others = [(str(each), id(one.event)) for each, worker in state.workers.items() for one in worker.in_progress]
    return bool(getattr(state, "deliveries", None)) or bool({*others} - now.sent.keys() - {(name, id(event))})


def runs_alone(now: Running, name: str, event: Any) -> bool:
    """Whether the step begun with the event runs alone to the end: further events wait for the only worker.

    May be asked on any thread: the engine replaces the state as a whole, without changes in place.
    """
    state = getattr(now.engine, "state", None)
    coming = getattr(state, "deliveries", None)
    if state is None or coming is None or state.children:
        return False
    workers = {str(each): worker for each, worker in state.workers.items()}
    if any(worker.collected_waiters for worker in workers.values()):
        return False
    due = {each for each, worker in workers.items() if worker.queue}
    for one in coming.values():
        kinds = {each: tuple(worker.config.accepted_events) for each, worker in workers.items()}
        due |= {str(one.step_id)} if one.step_id else {each for each in kinds if isinstance(one.event, kinds[each])}
    running = [(each, id(one.event)) for each, worker in workers.items() for one in worker.in_progress]
    return running == [(name, id(event))] and due <= ({name} if workers[name].config.num_workers == 1 else set())


def ending(name: str, event: Any) -> None:
    """Note that a step which began with the event has returned, and which events the step has sent."""
    now, step = running.get(), StepWorkerStateContextVar.get(None) if HAS_STATE else None
    sends = getattr(step, "sends", None)
    if now is not None and sends is not None:
        now.sent[name, id(event)] = list(sends.entries)


def state_of(context: Any) -> tuple[dict[str, Any] | None, bool]:
    """Return the values of the state, by name, and whether the state has fields; None if the state is not in memory."""
    store = context.store if HAS_STATE else None
    storage = vars(store).get("_memory_storage") if isinstance(store, InMemoryStateStore) else None
    record = storage.load_sync() if storage is not None else None
    state = record.data if record is not None else None
    if type(state) is DictState:
        return {name: held for name, held in state.items() if type(name) is str}, False
    if state is None or facts_of(type(state)).kind != "record":
        return None, True
    return dict(foreign.own_attributes(state) or {}), True


def buffers_of_step() -> dict[str, list[Any]]:
    """Return the events collected so far by the running step."""
    if not HAS_STATE:
        return {}
    step = StepWorkerStateContextVar.get(None)
    return {name: list(events) for name, events in step.state.collected_events.items()} if step is not None else {}


def is_simple(config: Any) -> bool:
    """Whether a step begins with a single event and ends with at most a single event."""
    is_fan = getattr(config, "is_fan_out", True) or getattr(config, "role", "step") != "step"
    collects = getattr(config, "collect_params", None) or getattr(config, "collection_param", None)
    takes_subclasses = getattr(config, "accept_event_subclasses", True)
    return not (is_fan or collects or takes_subclasses)


def may_write(function: types.FunctionType) -> bool:
    """Whether a step may change the state of its workflow, by the names in its code."""
    return any(not WRITING.isdisjoint(each.__code__.co_names) for each in functions_in(function))


def may_send(function: types.FunctionType) -> bool:
    """Whether a step may begin several steps, by the names in its code."""
    return any("send_event" in each.__code__.co_names for each in functions_in(function))


# --- events ----------------------------------------------------------------------------------------------------------


def is_event_class(cls: type) -> bool:
    """Whether objects of a class are events."""
    return foreign.is_subtype(cls, Event)


def make_event(run: Run, cls: type, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """Return an event made by a step; its contents are unknown if pydantic may change or refuse some of them."""
    facts = facts_of(cls)
    if facts.kind != "record" or facts.user_names & {"__init__", "model_post_init"} or foreign.is_abstract(cls):
        return run.unknown(holds=cls)
    if args and not (len(args) == 1 and foreign.is_subtype(cls, StopEvent)):
        raise TypeError("an event takes its fields by their names")
    fields = _fields_of(cls)
    is_sure = fields is not None and all(
        _takes(schema, kwargs[name]) if name in kwargs else schema["type"] == "default"
        for name, schema in (fields or {}).items()
    )
    made = _filled(cls, fields or {}, kwargs) if is_sure and not args else None
    return made if made is not None else unknown_from(run, [list(args), dict(kwargs)], cls, is_safe=is_sure)


def _filled(cls: type, fields: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an event with these contents; None for fields with defaults that are no plain constants.

    The contents are sure to be valid. Values that are no fields are kept in a dict of the event.
    """
    values = {}
    for name, schema in fields.items():
        value = kwargs[name] if name in kwargs else schema.get("default", MISSING)
        if name not in kwargs and not foreign.is_atom(value):
            return None
        values[name] = _validated(schema, value)
    own = foreign.in_mro(cls, "__private_attributes__")
    if type(own) is not dict or own.keys() != {"_data"} or own.keys() & kwargs.keys():
        return None
    made = records.new_record(cls, values, {*values} & {*kwargs})
    others = {name: value for name, value in kwargs.items() if name not in fields}
    records.set_model_slot(made, "__pydantic_private__", {"_data": others})
    return made


def _fields_of(cls: type) -> dict[str, Any] | None:
    """Return the schemas of an event's fields, if no other checks exist."""
    schema: Any = foreign.namespace_of(cls).get("__pydantic_core_schema__")
    if type(schema) is dict and schema.get("type") == "definitions":
        schema = schema["schema"]
    if type(schema) is not dict or schema.get("type") != "model" or schema.get("cls") is not cls:
        return None
    inner = schema["schema"]
    if type(inner) is not dict or inner.get("type") != "model-fields" or inner.get("computed_fields"):
        return None
    if not all(field["type"] == "model-field" for field in inner["fields"].values()):
        return None
    return {name: field["schema"] for name, field in inner["fields"].items()}


def _validated(schema: Any, value: Any) -> Any:
    """Return what pydantic makes of a value that it takes: lists and dicts are copied where their type is declared."""
    kind = schema["type"]
    if kind == "default" or kind == "nullable":
        return _validated(schema["schema"], value)
    if kind == "list" and type(value) is list:
        return [_validated(schema.get("items_schema", _ANY), each) for each in value]
    if kind == "dict" and type(value) is dict:
        values = schema.get("values_schema", _ANY)
        return {key: _validated(values, each) for key, each in value.items()}
    return value


_ANY = {"type": "any"}
_PLAIN = frozenset(["type", "metadata"])
_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
_HELD = {"str": "text", "bool": "bool"}


def _takes(schema: Any, value: Any) -> bool:
    """Whether pydantic surely takes a value, without user code."""
    kind = schema["type"]
    if kind == "default" or kind == "nullable":
        is_none = kind == "nullable" and value is None
        return is_none or (not schema.get("validate_default") and _takes(schema["schema"], value))
    if kind == "any":
        return True
    if kind in _TYPES and schema.keys() <= _PLAIN:
        return type(value) is _TYPES[kind] or (type(value) is Unknown and value.holds == _HELD.get(kind, ""))
    if kind == "list" and schema.keys() <= _PLAIN | {"items_schema"} and type(value) is list:
        inner = schema.get("items_schema")
        return inner is None or all(_takes(inner, each) for each in value)
    if kind == "dict" and schema.keys() <= _PLAIN | {"keys_schema", "values_schema"} and type(value) is dict:
        keys, values = schema.get("keys_schema", _ANY), schema.get("values_schema", _ANY)
        return all(_takes(keys, key) and _takes(values, each) for key, each in value.items())
    if kind in ("model", "is-instance") and foreign.is_class(schema.get("cls")) and type(value) is not Unknown:
        held = value.held if isinstance_of(value, Opaque) else value
        return foreign.is_subtype(type(held), schema["cls"]) and not schema.get("revalidate_instances")
    return False
