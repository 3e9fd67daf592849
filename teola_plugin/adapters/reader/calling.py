"""How handlers call values of the program. `calls`, which knows the handlers, installs itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]

_installed: list[Call] = []


def install(call: Call) -> None:
    """Set the function by which handlers call: `call(run, callee, args, kwargs)`."""
    _installed[:] = [call]


def call(run: Any, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of calling any value of the program."""
    return _installed[0](run, callee, args, kwargs)


def callback(run: Any, callee: Any) -> Callable[..., Any]:
    """Return a Python function, for functions in C, that calls a value of the program."""
    return lambda *args, **kwargs: call(run, callee, args, kwargs)
