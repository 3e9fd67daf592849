"""Prefetch backoff: whether running ahead pays for one pipeline, judged by the last calls.

Running ahead takes CPU time from the framework's own run. The cost is worthwhile if replies came sooner by more than
the cost, or if a prompt was prefilled early. After several calls in a row without either gain, the pipeline is left to
the framework for a number of calls; then one call tries again.
"""

from __future__ import annotations

from dataclasses import dataclass

from teola_plugin.runtime.session.report import Report

PATIENCE_CALLS = 3
"""Calls without gain before a rest: a first call reads sources, and a second may be the first on a new route."""

HITLESS = 2
"""A call without a hit counts as so many of these, since reading alone costs 5 to 10 % of a call."""

REST_CALLS = 6
"""The first rest in calls, short since the next calls may take another route through the pipeline."""
MOST_REST_CALLS = 768
"""The longest rest in calls. Each rest is twice as long as the last, as long as no call in between gains anything."""

GAIN = 0.03
"""The least gain, as a share of the call's time."""

REQUEST_S = 0.002
"""CPU cost of an early request to a hosted model, made from another thread of the interpreter: 1 to 2 ms more."""

READING = 2.5
"""The least gain per CPU second of reading. Reading delays the framework's own code, which runs in the same
interpreter: on two busy cores by 0.8 to 1.4 s for each second.
"""


@dataclass(slots=True)
class Worth:
    """The judgement of one pipeline, changed by calls of any thread without a lock: a lost count costs one more try."""

    useless: int = 0
    resting: int = 0
    rest_calls: int = REST_CALLS

    def is_worth(self) -> bool:
        """Whether the present call should run ahead."""
        if self.resting > 0:
            self.resting -= 1  # of two threads at once, the second may go below zero
            return False
        return True

    def judge(self, report: Report) -> None:
        """Judge a call which ran ahead, by its report."""
        took_s = report.ended_s - report.started_s
        least_s = max(GAIN * took_s, REQUEST_S * report.hosted_hits, READING * report.reading_s)
        gained = report.prefills > 0 or report.gained_s >= least_s
        if gained:
            self.useless, self.rest_calls = 0, REST_CALLS
            return
        self.useless += 1 if report.hits else HITLESS
        if self.useless >= PATIENCE_CALLS:
            self.useless, self.resting = PATIENCE_CALLS - 1, self.rest_calls
            self.rest_calls = min(2 * self.rest_calls, MOST_REST_CALLS)
