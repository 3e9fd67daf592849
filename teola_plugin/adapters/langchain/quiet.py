"""What runs ahead, or is rehearsed, is not heard by LangChain's callbacks: who asks for a manager gets an empty one.

So no handler of the user's, no tracer from the environment and no hook of a library learns of it; the framework's own
run will tell them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager

from teola_plugin.seams import instrument, is_unheard


def install() -> None:
    """Instrument both managers. Idempotent."""
    for manager in (CallbackManager, AsyncCallbackManager):
        instrument(manager, "configure", _unheard_configure)


def _unheard_configure(original: Callable[..., Any]) -> Callable[..., Any]:
    def configure(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return cls(handlers=[]) if is_unheard() else original(cls, *args, **kwargs)

    return configure
