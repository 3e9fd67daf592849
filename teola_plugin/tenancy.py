"""The tenant and the deadline of a query.

    with terms(tenant="acme", deadline_s=5):
        chain.invoke(question)

Results are never shared between tenants: no embedding, no answer, no prefix of a prompt in a KV cache. Several tenants
waiting for an engine each get a share. When the deadline passes, all open requests of the query end with
DeadlineExceeded, and the engines stop. Terms hold for all calls inside the block, in the same thread or task and in
tasks which copy the context; an inner deadline cannot be later than an outer deadline.
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
    """Tenant and deadline. `deadline_s` is on the clock of `time.monotonic`, the clock of event loops."""

    tenant: str = ""
    deadline_s: float = math.inf


ANYBODY = Terms()

_terms: ContextVar[Terms] = ContextVar("teola_terms", default=ANYBODY)


def current_terms() -> Terms:
    """Return the terms of the running call."""
    return _terms.get()


@contextlib.contextmanager
def terms(*, tenant: str | None = None, deadline_s: float | None = None) -> Iterator[Terms]:
    """Run the block with a tenant and a deadline. `deadline_s`: seconds from now.

    Raises: TeolaError for a deadline which is not positive.
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
