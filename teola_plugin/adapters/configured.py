"""Calls of models that we do not run: what makes two of them the same, and that they are made as they were foreseen.

A model belongs to the user, who may set another temperature between the run-ahead and the framework's own call. So the
key of a call holds all that is set on the model (`configuration_key`), and a call that runs ahead counts only if that
was the same when it began and when it ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from teola_plugin.errors import Cancelled
from teola_plugin.value_keys import Same, configuration_key, is_comparable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AsSetNow:
    """A model as it is set now, for calls that run ahead as long as it stays so."""

    model: Any
    configured: Hashable

    @classmethod
    def of(cls, model: Any) -> AsSetNow:
        """The model as it is set now."""
        return cls(model, configuration_key(model))

    def key(self, asked: Hashable) -> Hashable:
        """The key of a call of the model; `asked`: that of the call's arguments."""
        for each in (asked, self.configured):
            if not is_comparable(each):
                return each
        return Same(self.model), self.configured, asked

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns. Raises: Cancelled if the model was changed, and what the function raises."""
        self._check()
        value = function()
        self._check()
        return value

    async def acall(self, function: Callable[[], Awaitable[T]]) -> T:
        """`call` for a coroutine function."""
        self._check()
        value = await function()
        self._check()
        return value

    def _check(self) -> None:
        if configuration_key(self.model) != self.configured:
            raise Cancelled("the model was changed after this call of it was foreseen")
