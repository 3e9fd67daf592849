"""Contexts in which LangChain counts tokens: `with get_openai_callback() as cb` and `get_usage_metadata_callback()`.

Their handlers only note what they hear. What they have counted is not known to the reader.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from teola_plugin.adapters.reader.contexts import IS_USED
from teola_plugin.adapters.reader.values import Opaque

_COUNTERS = {
    "get_openai_callback": "langchain_community.callbacks.manager",
    "get_usage_metadata_callback": "langchain_core.callbacks.usage",
}


def is_counter(held: Any) -> bool:
    """Whether the value is LangChain's own function that makes such a context."""
    inner = held.__dict__.get("__wrapped__") if type(held) is types.FunctionType else None
    if type(inner) is not types.FunctionType or held.__code__ is not _MAKING:
        return False
    module = sys.modules.get(_COUNTERS.get(inner.__name__, ""))
    return module is not None and vars(module).get(inner.__name__) is held and inner.__globals__ is vars(module)


_MAKING = contextlib.contextmanager(lambda: iter(())).__code__


def counting() -> Opaque:
    """Return the context, with a handler of which nothing is known."""
    context = contextlib.nullcontext(_Counter())
    vars(context)[IS_USED] = False
    return Opaque(context, is_own=True)


class _Counter(BaseCallbackHandler):
    """The stand-in for a handler."""
