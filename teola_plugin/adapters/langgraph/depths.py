"""Whether a reading of a graph is needed, and where it ends early: each later request needs a reply not there yet.

A graph is read again with each reply. The first reading goes on behind unknown replies, as a request further on may not
need them. In most graphs it does, and a later reading would pass through all nodes that follow for nothing:

    superstep 1 asks A        reply there
    superstep 2 asks B        needs A: asked by this reading
    superstep 3 asks C        needs A and B: the reading ends here
    superstep 4 asks D        needs B and C

A reading goes on where a superstep came to other requests than before, or where it cannot be told what is waited for.
A reply that nothing waits for alone (one of a batch) needs no reading. Ending early costs time at worst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from teola_plugin.adapters.reader.run import Met

Place = tuple[Hashable, ...]
"""A request by its superstep, its place in the program, and its number there: the same in each reading."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a reading found in a superstep: the requests, and the requests that each further one needs.

    `found`: which of several requests are known, and not only that they are made. `is_open`: what else may be found
    there cannot be told.
    """

    requests: Sequence[Place]
    found: Sequence[bool]
    needs: Sequence[Set[Place]]
    is_open: bool

    def waits_for(self, unanswered: Set[Place]) -> bool:
        """Whether there is nothing to find without the replies to these requests."""
        return not self.is_open and not any(map(unanswered.isdisjoint, self.needs))


@dataclass(slots=True)
class Depths:
    """What the readings of one prediction found in each superstep."""

    _steps: dict[int, _Step] = field(default_factory=dict)
    _unanswered: dict[Place, Hashable] = field(default_factory=dict)
    """Requests of the present or latest reading, with the keys of those that were found."""
    _places: dict[Hashable, Place | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a reading."""
        self._unanswered, self._places = {}, {}

    def may_end(self, number: int, answered: Set[Hashable] = frozenset()) -> bool:
        """Whether there is nothing to find in this superstep or in those that follow.

        `answered`: the keys of requests whose replies are known; what a reading knew itself need not be among them.
        """
        unanswered = {place for place, key in self._unanswered.items() if key not in answered}
        later = [step for at, step in self._steps.items() if at >= number]
        return bool(later) and all(step.waits_for(unanswered) for step in later)

    def note(self, number: int, met: Iterable[Met], *, is_whole: bool) -> None:
        """Note what a superstep has met. `is_whole`: the superstep was read to the end, and the graph goes on."""
        requests: list[Place] = []
        found: list[bool] = []
        needs: list[Set[Place]] = []
        count = Counter[Hashable]()
        for each in met:
            if each.source is not None:
                request: Place = (number, each.place, count[each.place])
                count[each.place] += 1
                requests.append(request)
                found.append(each.is_answered or each.ask is not None)
                self._places[each.source] = None if each.source in self._places else request
                if not each.is_answered:
                    self._unanswered[request] = each.ask.key if each.ask else None
            if (sources := each.needs) is not None:
                needs.append({place for source in sources if (place := self._places.get(source)) is not None})
        before = self._steps.get(number)
        found = found if len(found) > 1 else []  # what needs one round of a loop is known once the rounds are
        if before is not None and (before.requests, before.found) != (requests, found):
            for at in [at for at in self._steps if at > number]:
                del self._steps[at]
        self._steps[number] = _Step(requests, found, needs, not is_whole or not all(needs))
