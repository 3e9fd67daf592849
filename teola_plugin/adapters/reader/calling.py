"""How handlers call values of the program. `calls`, which knows the handlers, installs itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_installed: list[Callable[..., Any]] = []


def install(call: Callable[..., Any], may_change: Callable[[Any], bool]) -> None:
    """Set the functions by which handlers call, `call(run, callee, args, kwargs)`, and tell what a call may do."""
    _installed[:] = [call, may_change]


def call(run: Any, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of calling any value of the program."""
    return _installed[0](run, callee, args, kwargs)


def may_change(value: Any) -> bool:
    """Whether a value is a function of the program that does more than compute."""
    return bool(_installed[1](value))


def callback(run: Any, callee: Any) -> Callable[..., Any]:
    """Return a Python function, for functions in C, that calls a value of the program."""
    return lambda *args, **kwargs: call(run, callee, args, kwargs)
