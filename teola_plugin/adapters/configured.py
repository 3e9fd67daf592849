"""Identity of calls of models that we do not run, and the check that a model is unchanged since its call was predicted.

A model belongs to the user, who may set another temperature between the early call and the framework's own call. So
the key of a call holds all settings of the model (`configuration_key`). An early call counts only if this key was the
same when the call began and when the call ended.

A declared model may change itself in a call although declared to leave nothing behind: a counter, a client that is
made when first needed. If the latest call of a class did so, no call of the class runs ahead: the framework's run would
call the model once more, with other settings. So each call is watched, also the calls of the framework's run.

A model may also be built anew for each call. Two stock clients of hosted services with equal settings are the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from teola_plugin.adapters.clients import Clients
from teola_plugin.adapters.interception import Met
from teola_plugin.errors import Cancelled
from teola_plugin.resources import IdentityMap
from teola_plugin.value_keys import Same, configuration_key, is_comparable

T = TypeVar("T")

_changed_by_calls: WeakSet[type] = WeakSet()
"""Classes of models whose latest call changed the model's settings."""


@dataclass(frozen=True, slots=True)
class AsSetNow:
    """A model with its present settings, for early calls while the settings stay the same.

    `is_known_by_settings`: models of this class with equal settings make equal requests.
    """

    model: Any
    configured: Hashable
    is_known_by_settings: bool = False

    @classmethod
    def of(cls, model: Any, *, is_known_by_settings: bool = False) -> AsSetNow:
        """Return the model with its present settings."""
        return cls(model, _settings_key(model, is_known_by_settings), is_known_by_settings)

    def key(self, asked: Hashable) -> Hashable:
        """Return the key of a call of the model; `asked`: the key of the call's arguments."""
        for each in (asked, self.configured):
            if not is_comparable(each):
                return each
        return None if self.is_known_by_settings else Same(self.model), self.configured, asked

    def call(self, function: Callable[[], T]) -> T:
        """Return the function's result. Raises: Cancelled if the model was changed, and the errors of the function."""
        self._check()
        value = function()
        self.note()
        self._check()
        return value

    async def acall(self, function: Callable[[], Awaitable[T]]) -> T:
        """`call` for a coroutine function."""
        self._check()
        value = await function()
        self.note()
        self._check()
        return value

    def note(self) -> None:
        """Note at the end of a call whether the call left the model unchanged, as a stock client always does."""
        if self.is_known_by_settings:
            return
        if self._is_as_it_was():
            _changed_by_calls.discard(type(self.model))
        else:
            _changed_by_calls.add(type(self.model))

    def _check(self) -> None:
        if type(self.model) in _changed_by_calls or not self._is_as_it_was():
            raise Cancelled("the model was changed after this call of it was foreseen")

    def _is_as_it_was(self) -> bool:
        return _settings_key(self.model, self.is_known_by_settings) == self.configured


class _Settings:
    """The stand-in for all components with equal settings at the first request."""

    __slots__ = ("__weakref__",)


_resources: IdentityMap[object] = IdentityMap()
_by_settings: WeakValueDictionary[Hashable, _Settings] = WeakValueDictionary()
_latest: deque[_Settings] = deque(maxlen=64)
"""Kept for components that are built for one call each: the next component has the same engine."""

_finding = threading.Lock()


def resource_of(model: object, settings: Callable[[], Hashable]) -> object:
    """Return the engine of a model: the same for models with equal settings at their first requests."""
    return _resources.get(model) or _resources.get_or_make(model, lambda: stand_in(settings()))


def stand_in(settings: Hashable) -> object:
    """Return the same object for all components with equal settings."""
    with _finding:
        found = _by_settings.get(settings)
        if found is None:
            found = _by_settings[settings] = _Settings()
            _latest.append(found)
        return found


@dataclass(frozen=True, slots=True)
class Vector(Met):
    """A call of an embedding model for the vector of a text. `now`: the model with its settings."""

    now: AsSetNow

    def reply(self, value: Any) -> Any:
        """See `Met.reply`."""
        self.now.note()
        return value

    def taken(self, value: Any) -> Any:
        """Return the caller's own list of numbers; a value that is no vector is returned unchanged."""
        if isinstance(value, np.ndarray):  # in a rehearsal
            return value.tolist()
        return list(value) if type(value) is list else value


def _settings_key(model: Any, is_known_by_settings: bool) -> Hashable:
    """Return the key of all settings of the model; if known by settings alone, also of attributes beside the fields."""
    if not is_known_by_settings:
        return configuration_key(model)
    configured = configuration_key(model, Clients().key)
    if not is_comparable(configured):
        return configured
    fields = type(model).model_fields
    besides = {**vars(model), **(model.__pydantic_private__ or {})}
    more = [(name, Same(held)) for name, held in besides.items() if name not in fields and name not in _MADE]
    return configured, frozenset(model.model_fields_set), *more


_MADE = frozenset({"_serialized", "_client", "_aclient"})
"""What models make of their fields on first use: LangChain's for tracers, LlamaIndex's to send requests."""
