"""How soon the texts that an LLM writes for one query, and what takes them one by one, can be over in any order.

Texts are alike: their prefills take equally long, and each has `steps` decode steps. One instance takes them, one batch
after the other. An LLM prefills or decodes, never both, so that its time goes by with the prompts that it has prefilled
and the steps that it has made. A text ends `steps` steps after its prefill. Those whose prefill comes after fewer than
`steps` steps (the first wave) end, the first of them too, after all prefills of this wave; those with fewer than twice
as many (the second) after two waves of steps and all prefills of two; and so on. So nothing is sooner than whole waves,
and the least time over all ways to deal them out is a bound for all schedules:

    end of wave w  >=  w * steps + all prefills up to it            on each instance
    over           >=  end of w + a batch of all texts that had not ended before
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a prompt, of the steps of a wave without their texts, of the steps of a text in addition to that.

    And of what follows: for a batch, for each text.
    """

    prefill_s: float
    wave_s: float
    text_s: float
    batch_s: float
    item_s: float


def least_s(count: int, instances: int, costs: Costs) -> float:
    """The bound, in seconds from the beginning of the first prefill.

    >>> round(least_s(48, 2, Costs(0.0921, 0.486, 0.0017, 0.05, 0.025)), 2)
    3.41
    """
    found, most, has_more = math.inf, 0, True
    while has_more:
        most, has_more = most + 1, False  # few waves first: what they come to rules out nearly all of the others
        for shares in _parts(count, instances):
            ways = [list(_ways(n, costs, most, found)) for n in shares]
            has_more |= any(len(waves) == most for each in ways for waves in each)
            for waves in itertools.product(*ways):
                found = min(found, _over_s(list(itertools.chain.from_iterable(waves)), costs))
    return found


@dataclass(frozen=True, slots=True)
class _Wave:
    """So many texts, of which the first ends and the last ends, in seconds, at the earliest."""

    texts: int
    first_s: float
    last_s: float


def _parts(count: int, parts: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """All ways to deal out `count` among `parts` that are alike: the largest first."""
    if parts == 1:
        if most is None or count <= most:
            yield (count,)
        return
    for n in range(count if most is None else min(count, most), -1, -1):
        if n * parts < count:
            return
        for rest in _parts(count - n, parts - 1, n):
            yield (n, *rest)


def _ways(count: int, costs: Costs, most: int, below_s: float) -> Iterator[tuple[_Wave, ...]]:
    """How one instance can write so many texts in at most so many waves, where that alone takes less than `below_s`."""
    if not count:
        yield ()
    for waves in range(1, min(most, count) + 1):
        last_s = waves * costs.wave_s + count * (costs.prefill_s + costs.text_s)
        if last_s + costs.batch_s + costs.item_s >= below_s:
            return
        for cuts in itertools.combinations(range(1, count), waves - 1):
            yield tuple(_ends((0, *cuts, count), costs))


def _ends(cuts: Sequence[int], costs: Costs) -> Iterator[_Wave]:
    for at, (before, texts) in enumerate(itertools.pairwise(cuts), 1):
        first_s = at * costs.wave_s + texts * costs.prefill_s + before * costs.text_s
        yield _Wave(texts - before, first_s, first_s + (texts - before) * costs.text_s)


def _over_s(waves: Sequence[_Wave], costs: Costs) -> float:
    over = 0.0
    for wave in waves:
        for now_s, more in ((wave.first_s, 0), (wave.last_s, 1)):
            left = more + sum(other.texts for other in waves if other.first_s >= now_s and not (more and other is wave))
            over = max(over, now_s + costs.batch_s + costs.item_s * left)
    return over
