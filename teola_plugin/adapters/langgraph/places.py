"""The places of a graph (the tasks of a superstep) from which reading ahead found no room.

A prediction had room if it found several requests at once that the framework's run makes one after the other, or if a
reply came sooner. Where the requests of a graph need each other, or are made side by side anyway, predictions cost time
for nothing. So a place without room is left to the framework for some visits; then one visit tries again. If the
framework's run makes more requests there than were seen before, or goes on to a place that was not seen, all places are
read again: a loop may have had one round before, and now has more.

    generate -> reflect -> generate -> reflect      no room: not read in the next visits
    plan -> ask about each item -> write            room behind plan: read in each visit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from teola_plugin.trace import Progress

REST_VISITS = 2
MOST_REST_VISITS = 64
"""The first and the longest rest. Each rest is twice as long as the last, as long as no visit in between finds room."""

LATE_PREDICTIONS = 4
"""So many predictions in a row that were slower than the framework's run show no room: replies take no time there."""

GAIN_S = 0.02
"""A reply that comes sooner by less than this does not show room: threads take as long to get their turn."""

MOST_PLACES = 1_000

Place = tuple[str, ...]
"""The names of the tasks of a superstep, in order."""

Step = tuple[Place, Progress]
"""A superstep of the framework's run, with the progress of the call at its beginning."""


@dataclass(slots=True)
class _Rest:
    """`asked`: the most requests of the framework's run in a superstep there. `left`: visits yet to be left out.

    `visits`: how many the last rest left out in all, 0 if the place had room since. `late`: the latest predictions that
    were slower than the framework's run. `is_quiet`: the last visit made no request.
    """

    asked: int = 0
    left: int = 0
    visits: int = 0
    late: int = 0
    is_quiet: bool = False


@dataclass(slots=True)
class Places:
    """What is known of the places of one graph, changed by calls of any thread: a lost count costs one more reading."""

    _rests: dict[Place, _Rest] = field(default_factory=dict)

    def is_left_out(self, place: Place) -> bool:
        """Whether this visit is left to the framework. Counts the visit."""
        rest = self._rests.get(place)
        if rest is None or rest.left <= 0:
            return False
        rest.left -= 1
        return True

    def judge(self, steps: Sequence[Step], end: Progress, *, had_room: bool, is_late: bool = False) -> None:
        """Judge a prediction that is over. `steps`: the supersteps since it began, up to `end`."""
        begin = steps[0][1]
        gained = end.prefills > begin.prefills or end.ahead or end.gained_s - begin.gained_s >= GAIN_S
        if len(self._rests) > MOST_PLACES:
            self._rests.clear()
        for (place, at), after in zip(steps, [*(at for _, at in steps[1:]), end], strict=True):
            rest = self._rests.setdefault(place, _Rest())
            was_quiet, rest.is_quiet = rest.is_quiet, after.asked == at.asked
            rest.asked = max(rest.asked, after.asked - at.asked)
            if rest.is_quiet and rest.asked and not was_quiet:
                continue  # the end of a loop, such as a last round: the next call may ask there as before
            rest.late = rest.late + 1 if is_late else 0
            if 0 < rest.late < LATE_PREDICTIONS:
                continue
            rest.visits = 0 if had_room or gained else min(2 * rest.visits or REST_VISITS, MOST_REST_VISITS)
            rest.left = rest.visits

    def compare(self, step: Step, end: Progress, after: Place | None = None) -> None:
        """Compare a superstep that was left out, and the place `after` it, if any, with what was seen before."""
        place, at = step
        rest = self._rests.get(place)
        if rest is not None and (end.asked - at.asked > rest.asked or self._is_new(after)):
            self._rests.clear()

    def _is_new(self, place: Place | None) -> bool:
        return place is not None and place not in self._rests

    def forget(self) -> None:
        """Let each next visit be read."""
        self._rests.clear()
