"""From the caller's input to the values of the graph's inputs.

A graph has one input for each key read from the user's dict, named after the key, and the input `input` for uses of the
whole. A prompt with a single variable takes a dict or the bare value; both are understood. Keys absent from an input
are left out, and the primitives that need them do not run ahead. The same holds for values that are not plain data: the
first reader of an iterator exhausts the iterator, and a user's method may do anything. Bound values are copies: the
framework's own run hands the caller's objects to functions that may change them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

from teola_plugin.adapters.langchain.stream_readers import Taker
from teola_plugin.adapters.langchain.values import Value
from teola_plugin.adapters.plain import copied, is_plain, is_read_safely
from teola_plugin.adapters.reader.foreign import is_kind_of
from teola_plugin.adapters.reader.notes import Notes
from teola_plugin.adapters.reader.stacks import Listener

ABSENT: Any = object()
"""The value of an optional key that is absent from the caller's input."""

Mode = Literal["invoke", "ainvoke", "batch", "abatch", "stream", "astream", "events"]


@dataclass(frozen=True, slots=True)
class Entered:
    """An input from a twin, with the mode of the call and the caller's context.

    `heard`: objects that handlers of the call may change (see `handlers.noted_by`). `is_only`: the call has no other
    inputs. `listeners`: of the components that are read, by their id. `twin`: the object that was called.
    `notes`: of what the functions that are read can reach. `taker`: of the whole stream, if there is one.
    """

    value: Any
    mode: Mode
    context: Context = field(default_factory=copy_context, compare=False)
    heard: frozenset[Hashable] = field(default=frozenset(), compare=False)
    is_only: bool = field(default=True, compare=False)
    listeners: dict[int, Listener] = field(default_factory=dict, compare=False)
    notes: Notes = field(default_factory=Notes, compare=False, repr=False)
    twin: Any = field(default=None, compare=False, repr=False)
    taker: Taker | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a graph input: `whole`, by `key`, by an `optional` key, or with the call's `mode`."""

    how: Literal["whole", "key", "optional", "mode"]
    key: str = ""


class Bindings:
    """The graph inputs requested so far."""

    def __init__(self, name_for: Callable[[str], str], read: Callable[[str], None]) -> None:
        """`read`: called with an input's name each time the pipeline reads a required key."""
        self._name_for = name_for
        self._read = read
        self._names: dict[Access, str] = {}
        self._depths: dict[Access, int] = {}
        self._may_be_bare: set[str] = set()
        self._refused: set[str] = set()
        self._needs_dict = False

    def whole(self, depth: int = 0) -> Value:
        """Return the input itself; `depth` 1 for a list to map over."""
        return self._input(Access("whole"), "input", depth)

    def key(self, key: str) -> Value:
        """Return the input's value under `key`."""
        value = self._input(Access("key", key), key)
        self._read(value.name)
        return value

    def optional(self, key: str) -> Value:
        """Return the input's value under `key`, or ABSENT."""
        return self._input(Access("optional", key), key)

    def only(self, variable: str) -> Value:
        """Return the only variable of a prompt, which takes the input itself unless the input is a dict."""
        self._may_be_bare.add(variable)
        return self.key(variable)

    def refuse(self, key: str) -> None:
        """Bind nothing of an input with the key, whose run makes requests outside the graph."""
        self._refused.add(key)

    def require_dict(self) -> None:
        """Bind nothing of a non-dict input, which makes the pipeline fail."""
        self._needs_dict = True

    def mode(self) -> Value:
        """Return the mode of the call (`Entered`), for models of others."""
        return self._input(Access("mode"), "mode")

    def inputs(self) -> dict[str, int]:
        """Return names and depths, in the order of the requests."""
        return {name: self._depths[access] for access, name in self._names.items()}

    def bind(self, entered: Any) -> dict[str, Any]:
        """Return the values that are known before the pipeline runs."""
        if not isinstance(entered, Entered):
            entered = Entered(entered, "invoke")
        value = entered.value
        bound: dict[str, Any] = {}
        if not is_read_safely(value):
            return bound
        if not self._refused.isdisjoint(value) if is_kind_of(value, dict) else self._needs_dict:
            return bound
        for access, name in self._names.items():
            match access.how:
                case "mode":
                    bound[name] = entered
                case "whole" if not self._depths[access] or (is_kind_of(value, list) or is_kind_of(value, tuple)):
                    bound[name] = list(value) if self._depths[access] else value
                case "key" if is_kind_of(value, dict):
                    if access.key in value:
                        bound[name] = value[access.key]
                case "optional" if is_kind_of(value, dict):
                    bound[name] = value.get(access.key, ABSENT)
                case "key" if access.key in self._may_be_bare:
                    bound[name] = value
                case _:
                    pass
        own = {name: value for name, value in bound.items() if value is entered or value is ABSENT}
        return {**own, **{n: copied(value) for n, value in bound.items() if n not in own and is_plain(value)}}

    def _input(self, access: Access, name: str, depth: int = 0) -> Value:
        if access not in self._names:
            self._names[access] = self._name_for(name)
        self._depths[access] = max(depth, self._depths.get(access, 0))
        return Value(self._names[access], self._depths[access])
