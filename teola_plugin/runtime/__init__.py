"""The runtime: schedulers, engines, sessions, and the host of all three."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from teola_plugin.engines import EngineSpec
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.seams import Reply, current
from teola_plugin.tenancy import current_terms
from teola_plugin.value_keys import snapshot

host = LocalHost()
"""The host of this process, shared by all optimized pipelines and by our models."""


def ask(spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
    """One reply per payload: from the session of the running call, or straight from the engine if there is none."""
    if session := current():
        return session.ask(spec, op, payloads, settings)
    replies = [Reply() for _ in payloads]
    query = Query(0, current_terms(), time.monotonic())
    host.submit(engine_for(spec), op, snapshot(list(payloads)), snapshot(settings), replies, query=query)
    return replies
