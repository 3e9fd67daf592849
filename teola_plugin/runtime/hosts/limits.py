"""What a server sets once, for all pipelines of its process: bounds, policy, and how it ends.

    configure(max_queries=64, policy="critical_path")
    drain_on_sigterm(30)

By default there are no bounds: a pipeline that is optimized takes whatever the original takes.
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
"""A query is over when the pipeline returns; its answer still has to be written to whoever asked."""


def configure(
    *, max_queries: int | None = None, max_queued_items: int | None = None, aging_s: float | None = None,
    stall_s: float | None = None, policy: PolicyName | None = None, prefix_tolerance_s: float | None = None,
) -> None:  # fmt: skip
    """Set these for this process; what is None stays as it is.

    - `max_queries`: how many queries run at once (admission.py). One more is refused with Overloaded, whose
      `retry_after_s` says when to come back.
    - `max_queued_items`: how many items may wait at one engine (fairness.py).
    - `aging_s`: what has waited so long goes first, whatever the policy.
    - `stall_s`: an engine that says nothing for so long is ended and started again. For engines in processes of their
      own; others cannot be.
    - `policy`: how engines make batches.
    - `prefix_tolerance_s`: by how much prompts of an LLM may change places, so that those which begin alike go next to
      each other; 0: not at all.

    Items that wait already stay. Raises: TeolaError for a value that makes no sense.
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
    """Let no query in any more, wait for those inside, then close the engines.

    How many had not ended in time; they end with EngineClosed. The next call of a pipeline starts afresh.
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
    """On SIGTERM, let nobody in any more, `drain` and then end as the process would have; a second one ends it at once.

    For servers of your own; call it in the main thread. Others' servers have a hook for their shutdown: call `drain`.
    """
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        try:
            _end(timeout_s)  # and nobody is let in after that
            time.sleep(LAST_WORD_S)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
        # A thread: the signal may have come in the middle of a query of the main thread, which is to end.
        threading.Thread(target=end, name="teola-drain").start()

    signal.signal(signal.SIGTERM, on_sigterm)
