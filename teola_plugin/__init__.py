"""teola_plugin makes LangChain and LlamaIndex pipelines on self-hosted models faster, with the same outputs.

from teola_plugin import optimize
chain = optimize(chain)          # still a Runnable; same answers, same callbacks, same errors
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
_NAMES = {
    "optimize": "api", "optimized": "api", "compare": "comparison", "explain": "explanation",
    "pure": "effects", "reads": "effects", "writes": "effects", "TeolaCallbackHandler": "callbacks",
    "terms": "tenancy", "configure": "runtime.hosts.limits", "drain": "runtime.hosts.limits",
    "drain_on_sigterm": "runtime.hosts.limits", "uninstall": "adapters.interception",
    "EngineConfig": "registry", "load_engines": "registry", "register": "registry",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"teola_plugin.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, for completion in notebooks."""
    return sorted({*globals(), *_NAMES})
