"""Calls of models that we do not run: what makes two of them the same, and that they are made as they were foreseen.

A model belongs to the user, who may set another temperature between the run-ahead and the framework's own call. So the
key of a call holds all that is set on the model (`configuration_key`), and a call that runs ahead counts only if that
was the same when it began and when it ended.

A declared model may change itself in a call although it was declared to leave nothing behind: a counter, a client that
is made when it is first needed. Of a class whose latest call did that, nothing runs ahead: the framework's run would
ask once more, of a model that is set otherwise. So each call is watched, also those that the framework's run makes.

A model may also be built anew for each call. Of stock clients of hosted services, two that are set alike are the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from teola_plugin.adapters.clients import Clients
from teola_plugin.adapters.interception import Met
from teola_plugin.errors import Cancelled
from teola_plugin.value_keys import Same, configuration_key, is_comparable

T = TypeVar("T")

_changed_by_calls: WeakSet[type] = WeakSet()
"""Classes of models whose latest call left one of them set otherwise."""


@dataclass(frozen=True, slots=True)
class AsSetNow:
    """A model as it is set now, for calls that run ahead as long as it stays so.

    `is_known_by_settings`: another model of this class that is set likewise asks for the same.
    """

    model: Any
    configured: Hashable
    is_known_by_settings: bool = False

    @classmethod
    def of(cls, model: Any, *, is_known_by_settings: bool = False) -> AsSetNow:
        """The model as it is set now."""
        return cls(model, _settings_key(model, is_known_by_settings), is_known_by_settings)

    def key(self, asked: Hashable) -> Hashable:
        """The key of a call of the model; `asked`: that of the call's arguments."""
        for each in (asked, self.configured):
            if not is_comparable(each):
                return each
        return None if self.is_known_by_settings else Same(self.model), self.configured, asked

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns. Raises: Cancelled if the model was changed, and what the function raises."""
        self._check()
        value = self.watch(function)
        self._check()
        return value

    async def acall(self, function: Callable[[], Awaitable[T]]) -> T:
        """`call` for a coroutine function."""
        self._check()
        value = await self.awatch(function)
        self._check()
        return value

    def watch(self, function: Callable[[], T]) -> T:
        """What the function returns, which is a call of the model."""
        value = function()
        self.note()
        return value

    async def awatch(self, function: Callable[[], Awaitable[T]]) -> T:
        """`watch` for a coroutine function."""
        value = await function()
        self.note()
        return value

    def note(self) -> None:
        """A call of the model is over: note whether it left it as it was."""
        if self._is_as_it_was():
            _changed_by_calls.discard(type(self.model))
        else:
            _changed_by_calls.add(type(self.model))

    def _check(self) -> None:
        if type(self.model) in _changed_by_calls or not self._is_as_it_was():
            raise Cancelled("the model was changed after this call of it was foreseen")

    def _is_as_it_was(self) -> bool:
        return _settings_key(self.model, self.is_known_by_settings) == self.configured


@dataclass(frozen=True, slots=True)
class Vector(Met):
    """A call of an embedding model for the vector of one text. `now`: how the model is set."""

    now: AsSetNow

    def reply(self, value: Any) -> Any:
        """See `Met.reply`."""
        self.now.note()
        return value

    def taken(self, value: Any) -> Any:
        """A list of numbers of the caller's own; what is no vector is handed on."""
        if isinstance(value, np.ndarray):  # of a rehearsal
            return value.tolist()
        return list(value) if type(value) is list else value


def _settings_key(model: Any, is_known_by_settings: bool) -> Hashable:
    """All that is set on the model; where that alone tells models apart, also what is in it besides its fields."""
    if not is_known_by_settings:
        return configuration_key(model)
    configured = configuration_key(model, Clients().key)
    if not is_comparable(configured):
        return configured
    fields = type(model).model_fields
    besides = {**vars(model), **(model.__pydantic_private__ or {})}
    more = [(name, Same(held)) for name, held in besides.items() if name not in fields and name not in _TRACED]
    return configured, frozenset(model.model_fields_set), *more


_TRACED = frozenset({"_serialized"})
"""What LangChain's models keep for tracers once it was read."""
