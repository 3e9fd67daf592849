"""Whether running ahead pays for one pipeline, judged by its last calls.

What runs ahead takes some CPU from the framework's own run. That is worth it where something was begun before the
framework asked for it, or a prompt was prefilled early. A pipeline whose calls did neither, several times in a row, is
left to the framework for a while; then one call tries again.
"""

from __future__ import annotations

from dataclasses import dataclass

from teola_plugin.runtime.report import Report

PATIENCE_CALLS = 3
REST_CALLS = 50
MOST_REST_CALLS = 800
"""A rest is twice as long as the last one, up to so many calls, as long as no call in between gains anything."""

SHORT_S = 0.02
"""A call that asks its last within this time is not judged: it has nothing to lose either."""

GAIN = 0.03
"""Of the time to the last thing the framework asked for. Whatever a call gains, its leads add up to more."""


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
        if report.asking_s < SHORT_S and not report.reading_s:
            return
        gained = report.prefills > 0 or report.lead_s >= max(GAIN * report.asking_s, READING * report.reading_s)
        if gained:
            self.useless, self.rest_calls = 0, REST_CALLS
            return
        self.useless += 1
        if self.useless >= PATIENCE_CALLS:
            self.useless, self.resting = PATIENCE_CALLS - 1, self.rest_calls
            self.rest_calls = min(2 * self.rest_calls, MOST_REST_CALLS)
