"""How handlers call the values of the program that is read. `calls` installs itself here: it knows the handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]

_installed: list[Call] = []


def install(call: Call) -> None:
    """Let handlers call by this: `call(run, callee, args, kwargs)`."""
    _installed[:] = [call]


def call(run: Any, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What calling any value of the program gives."""
    return _installed[0](run, callee, args, kwargs)


def callback(run: Any, callee: Any) -> Callable[..., Any]:
    """What a function written in C may call for a value of the program."""
    return lambda *args, **kwargs: call(run, callee, args, kwargs)
