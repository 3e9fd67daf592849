"""Prefetch backoff: whether running ahead pays for one pipeline, judged by the last calls.

Running ahead takes CPU time from the framework's own run. The cost is worthwhile if replies came sooner by more than
the cost, or if a prompt was prefilled early. After several calls in a row without either gain, the pipeline is left to
the framework for a number of calls; then one call tries again. Calls side by side count once: those which began before
the last useless call had ended are no further evidence.

How much sooner replies came is an estimate, which takes a delay by our own CPU time for a gain. A small gain, one that
took much reading, and any of calls side by side is therefore checked: single calls rest, and are compared with the
calls before and after.
"""

from __future__ import annotations

import math
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

CHECKED_GAIN = 0.15
"""A smaller gain, as a share of the call's time, is checked. A pipeline of 18 early requests with an estimated gain of
0.10 took 1.03 times as long as the original; estimates above this share were never found wrong.
"""

CHECKED_CALLS = 2
"""From so many calls side by side on, any gain is checked: the delays of each by the others count as gains. Of 8 calls
of `research_assistant` at once, each was said to gain 2 to 10 s of 2.8 s.
"""

CHECKS = 3
"""So many calls in a row that were faster at rest make a pipeline rest: chance alone does so in one of eight cases."""

CALLS_BEFORE_CHECK = 2
"""The calls before the first check: one that reads sources, and one to compare with."""

UNCHECKED_CALLS = 4
"""The calls between a passed check and the next at first. The number doubles with each passed check."""

REQUEST_S = 0.002
"""CPU cost of an early request to a hosted model, made from another thread of the interpreter: 1 to 2 ms more."""

READING = 2.5
"""A smaller gain per CPU second of reading is checked, and one of less than 1 s counts as none. Reading delays the
framework's own code, which runs in the same interpreter: on two busy cores by 0.8 to 1.4 s for each second.
"""


@dataclass(slots=True)
class Worth:
    """The judgement of one pipeline, changed by calls of any thread without a lock: a lost count costs one more try."""

    useless: int = 0
    useless_s: float = 0.0
    resting: int = 0
    rest_calls: int = REST_CALLS
    is_trying: bool = False
    slower: int = 0
    until_check: int = CALLS_BEFORE_CHECK
    unchecked_calls: int = UNCHECKED_CALLS
    is_checking: bool = False
    before_s: float = 0.0
    rested_s: float = 0.0
    was_idle: bool = False

    def is_worth(self) -> bool:
        """Whether the present call should run ahead."""
        if self.resting > 0:
            self.resting -= 1  # of two threads at once, the second may go below zero
            return False
        if self.is_trying:  # one call alone, of several side by side
            self.resting = self.rest_calls
            return True
        return not self.is_checking or self.rested_s > 0.0

    def judge(self, report: Report, calls: int = 1) -> None:
        """Judge a call by its report; `calls`: the number of calls of the process that ran side by side."""
        took_s = report.ended_s - report.started_s
        is_idle = _is_idle(report)
        if report.rested:
            self.rested_s = 0.0 if is_idle else took_s
            return
        was_idle, self.was_idle = self.was_idle, is_idle
        if is_idle and not was_idle:  # one that only resumes, say, between calls that ask
            self.resting = 0
            return
        self.until_check -= 1
        least_s = max(GAIN * took_s, REQUEST_S * report.hosted_hits, report.reading_s)
        sure_s = max(CHECKED_GAIN * took_s, READING * report.reading_s) if calls < CHECKED_CALLS else math.inf
        if not report.prefills and report.gained_s < least_s:
            self._count_useless(report, 1 if report.hits else HITLESS)
        elif not report.prefills and report.gained_s < sure_s and self._is_slower(took_s):
            self._count_useless(report, PATIENCE_CALLS)
        else:
            self.useless, self.resting, self.is_trying = 0, 0, False
            self.rest_calls = self.rest_calls if self.slower else REST_CALLS

    def _count_useless(self, report: Report, calls: int) -> None:
        if report.started_s < self.useless_s:
            return
        self.useless_s, self.is_checking = report.ended_s, False
        self.useless += calls
        if self.useless >= PATIENCE_CALLS:
            self.useless, self.resting, self.is_trying = PATIENCE_CALLS - 1, self.rest_calls, True
            self.rest_calls = min(2 * self.rest_calls, MOST_REST_CALLS)

    def _is_slower(self, took_s: float) -> bool:
        """Compare a call with the call at rest before it, if any, and decide whether the next call rests."""
        if self.is_checking and not self.rested_s:  # a call that began before the check
            return False
        if self.is_checking:
            self.until_check = 0
            self.slower = self.slower + 1 if self.rested_s < (self.before_s + took_s) / 2 else 0
            if self.slower == CHECKS:
                self.slower -= 1
                return True
            if not self.slower:
                self.until_check = self.unchecked_calls - 1
                self.unchecked_calls = min(2 * self.unchecked_calls, MOST_REST_CALLS)
        self.is_checking, self.before_s, self.rested_s = self.until_check <= 0, took_s, 0.0
        return False


def _is_idle(report: Report) -> bool:
    """Whether a call has asked for nothing, and nothing was read: it tells nothing about the calls that ask."""
    asked = report.hits + report.shared + report.misses + report.stale + report.wasted
    return not (asked or report.prefills or report.reading_s)
