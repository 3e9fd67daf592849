"""Whether running ahead pays for one pipeline, judged by its last calls.

What runs ahead takes some CPU from the framework's own run. That is worth it where the framework had its replies sooner
by more than that, or a prompt was prefilled early. A pipeline whose calls did neither, several times in a row, is
left to the framework for a while; then one call tries again.
"""

from __future__ import annotations

from dataclasses import dataclass

from teola_plugin.runtime.session.report import Report

PATIENCE_CALLS = 3
REST_CALLS = 50
MOST_REST_CALLS = 800
"""A rest is twice as long as the last one, up to so many calls, as long as no call in between gains anything."""

SHORT_S = 0.02
"""A call that takes less is not judged: it has nothing to lose either."""

GAIN = 0.03
"""Of the time that the call took."""

REQUEST_S = 0.002
"""A hosted model that is asked ahead is asked from another thread: 1 to 2 ms of CPU more, in the same interpreter."""

READING = 4.0
"""Times the CPU seconds that reading took. It holds up the framework's own code, which runs in the same interpreter."""


@dataclass(slots=True)
class Worth:
    """Changed by calls of any thread without a lock: a lost count costs one more try."""

    useless: int = 0
    resting: int = 0
    rest_calls: int = REST_CALLS

    def is_worth(self) -> bool:
        """Whether this call should run ahead."""
        if self.resting > 0:
            self.resting -= 1  # of two threads at once, the second may go below zero
            return False
        return True

    def judge(self, report: Report) -> None:
        """What a call that ran ahead came to."""
        took_s = report.ended_s - report.started_s
        if took_s < SHORT_S and not report.reading_s:
            return
        least_s = max(GAIN * took_s, REQUEST_S * report.hosted_hits, READING * report.reading_s)
        gained = report.prefills > 0 or report.gained_s >= least_s
        if gained:
            self.useless, self.rest_calls = 0, REST_CALLS
            return
        self.useless += 1
        if self.useless >= PATIENCE_CALLS:
            self.useless, self.resting = PATIENCE_CALLS - 1, self.rest_calls
            self.rest_calls = min(2 * self.rest_calls, MOST_REST_CALLS)
