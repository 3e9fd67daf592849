"""On whose behalf a query runs, and by when it has to end.

    with terms(tenant="acme", deadline_s=5):
        chain.invoke(question)

Nothing computed for one tenant is given to another: no embedding, no answer, no prefix of a prompt in a KV cache.
Where several tenants wait for an engine, each gets its share. When the deadline passes, whatever the query still waits
for ends with DeadlineExceeded, and its engines stop. Terms hold for all calls inside, in this thread or task and in
those that copy its context; an inner deadline cannot be later than an outer one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from teola_plugin.errors import TeolaError


@dataclass(frozen=True, slots=True)
class Terms:
    """`deadline_s` on the clock of `time.monotonic`, which is that of event loops."""

    tenant: str = ""
    deadline_s: float = math.inf


ANYBODY = Terms()

_terms: ContextVar[Terms] = ContextVar("teola_terms", default=ANYBODY)


def current_terms() -> Terms:
    """Those of the running call."""
    return _terms.get()


@contextlib.contextmanager
def terms(*, tenant: str | None = None, deadline_s: float | None = None) -> Iterator[Terms]:
    """Run what is inside on these terms. `deadline_s`: seconds from now.

    Raises: TeolaError for one that is not positive.
    """
    if deadline_s is not None and not deadline_s > 0:
        raise TeolaError(f"terms(deadline_s={deadline_s!r}): seconds from now, more than 0")
    outer = _terms.get()
    by_s = outer.deadline_s if deadline_s is None else min(outer.deadline_s, time.monotonic() + deadline_s)
    token = _terms.set(Terms(outer.tenant if tenant is None else tenant, by_s))
    try:
        yield _terms.get()
    finally:
        _terms.reset(token)
