"""Contexts in which LangChain counts tokens: `with get_openai_callback() as cb` and `get_usage_metadata_callback()`.

Their handlers only note what they hear. What they have counted is not known to the reader.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from teola_plugin.adapters.reader import amounts
from teola_plugin.adapters.reader.calls import MANAGING
from teola_plugin.adapters.reader.contexts import once
from teola_plugin.adapters.reader.values import Managed, Opaque

_COUNTERS = {
    "get_openai_callback": "langchain_community.callbacks.manager",
    "get_usage_metadata_callback": "langchain_core.callbacks.usage",
}


def is_counter(held: Any) -> bool:
    """Whether the value is LangChain's own function that makes such a context."""
    inner = held.__dict__.get("__wrapped__") if type(held) is types.FunctionType else None
    if type(inner) is not types.FunctionType or held.__code__ not in MANAGING:
        return False
    module = sys.modules.get(_COUNTERS.get(inner.__name__, ""))
    return module is not None and vars(module).get(inner.__name__) is held and inner.__globals__ is vars(module)


def counting() -> Managed:
    """Return the context."""
    return once(Opaque(_Counter(), is_own=True))


class _Counter(BaseCallbackHandler):
    """The stand-in for a handler."""


def kind_of(handler: Any, name: str) -> str:
    """Return the kind of an attribute of a handler, as in `Unknown.holds`."""
    return _KINDS.get(name, "any") if type(handler) is _Counter else "any"


_TOKENS = ("total_tokens", "prompt_tokens", "prompt_tokens_cached", "completion_tokens", "reasoning_tokens")
_KINDS = {**dict.fromkeys((*_TOKENS, "successful_requests"), amounts.COUNT), "total_cost": "real64"}
