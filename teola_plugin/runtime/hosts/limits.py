"""Settings of a server for all pipelines of the process: bounds, policy, and shutdown.

    configure(max_queries=64, policy="critical_path")
    drain_on_sigterm(30)

By default there are no bounds: an optimized pipeline takes whatever load the original takes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import get_args

from teola_plugin.errors import TeolaError
from teola_plugin.runtime import host
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.scheduler.worker import Rules

LAST_WORD_S = 1.0
"""The time to write an answer to the client after the pipeline returned, in seconds: a query is over at the return."""


def configure(
    *, max_queries: int | None = None, max_queued_items: int | None = None, aging_s: float | None = None,
    stall_s: float | None = None, policy: PolicyName | None = None, prefix_tolerance_s: float | None = None,
) -> None:  # fmt: skip
    """Set bounds and the policy for this process; None leaves a setting unchanged.

    - `max_queries`: how many queries run at once (admission.py). Further queries are refused with Overloaded, whose
      `retry_after_s` says when to come back.
    - `max_queued_items`: how many items may wait at an engine (fairness.py).
    - `aging_s`: requests that have waited for so long go first, whatever the policy.
    - `stall_s`: an engine that emits nothing for so long is ended and started again. Only for engines in processes of
      their own; an engine in this process cannot be ended.
    - `policy`: how engines make batches.
    - `prefix_tolerance_s`: by how much prompts of an LLM may change places, so that prompts with the same prefix go
      next to each other; 0: not at all.

    Items that already wait stay. Raises: TeolaError for an invalid value.
    """
    given = {"max_queries": max_queries, "max_queued_items": max_queued_items, "aging_s": aging_s, "stall_s": stall_s}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise TeolaError(f"configure({name}={value!r}): expected more than 0")
    if prefix_tolerance_s is not None and not prefix_tolerance_s >= 0:
        raise TeolaError(f"configure(prefix_tolerance_s={prefix_tolerance_s!r}): expected 0 or more")
    if policy is not None:
        if policy not in get_args(PolicyName):
            raise TeolaError(f"configure(policy={policy!r}): it is one of {', '.join(get_args(PolicyName))}")
        host.use(policy)
    if max_queries is not None:
        host.admission.max_queries = max_queries
    limits = host.rules.limits
    limits = replace(
        limits,
        max_queued_items=limits.max_queued_items if max_queued_items is None else max_queued_items,
        aging_s=limits.aging_s if aging_s is None else aging_s,
        prefix_tolerance_s=limits.prefix_tolerance_s if prefix_tolerance_s is None else prefix_tolerance_s,
    )
    host.rule(Rules(limits, host.rules.stall_s if stall_s is None else stall_s))


def drain(timeout_s: float = 30.0) -> int:
    """Admit no more queries, wait for the running queries, then close the engines.

    Returns how many queries had not ended in time; such queries end with EngineClosed. The next call of a pipeline
    starts afresh.
    """
    try:
        return _end(timeout_s)
    finally:
        host.admission.reopen()


def _end(timeout_s: float) -> int:
    left = host.admission.drain(timeout_s)
    host.close()
    return left


def drain_on_sigterm(timeout_s: float = 30.0) -> None:
    """On SIGTERM, admit no more queries, `drain` and end as the process would have; a second one ends at once.

    For servers of your own; call in the main thread. Servers of a framework have a shutdown hook: call `drain` there.
    """
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        try:
            _end(timeout_s)  # and no query is admitted afterwards
            time.sleep(LAST_WORD_S)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
        # A thread: the signal may have come in the middle of a query of the main thread, which is to end.
        threading.Thread(target=end, name="teola-drain").start()

    signal.signal(signal.SIGTERM, on_sigterm)
