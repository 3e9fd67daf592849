"""The measured batches, the repeats, and the fitted profile.

    items   1  2  4  8 ...  max       at each size all lengths, so that an exhausted budget cuts off sizes,
    length  16 64 256                 not lengths
                       ^ stop: twice in a row, more items had no higher rate (items/s) at any length

A size is warmed up by one uncounted batch (compilers and caches depend on shapes), then the median of a few batches
counts. The profile is a line; if a line misses the samples, the profile may bend at the measured sizes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from teola_plugin.profile import Profile, Sample, fit

MIN_REPEATS = 3
MAX_REPEATS = 15
STEADY_SPREAD = 0.05
"""The middle half of the repeats lies within this share of the median."""

GAIN = 1.05
"""The least ratio of a higher rate: smaller differences are noise."""

GAINLESS_SIZES = 2
FIRST_ITEMS = 16
"""The least size before measuring may end: small batches are quick, and a busy machine could hide their gain."""

LINE_ERROR = 0.05
BENT_SHARE = 0.7
"""A profile with bends must have at most this share of the line's error."""

MAX_BENDS = 6

Run = Callable[[int, int], Awaitable[Sample]]
"""A function which runs one batch of the given number of items and tokens per item."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One measured operation. `is_complete`: measured to the knee or the largest size, not only until time was up."""

    op: str
    samples: tuple[Sample, ...]
    profile: Profile
    is_complete: bool = True

    @property
    def error(self) -> float:
        """The fit's relative error, as root mean square over the samples."""
        return fit_error(self.profile, self.samples)


@dataclass(slots=True)
class Budget:
    """The time for measuring. Running work at the end of the budget is finished."""

    seconds: float
    clock: Callable[[], float] = time.perf_counter
    ends_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends_s = self.clock() + self.seconds

    def is_spent(self) -> bool:
        return self.clock() >= self.ends_s

    def until(self, seconds: float) -> Budget:
        """Return a part of the budget, which begins now."""
        return Budget(max(0.0, min(seconds, self.ends_s - self.clock())), self.clock)


async def measure_sizes(
    op: str, run: Run, max_items: int, lengths: Sequence[int], budget: Budget, progress: Progress, source: str
) -> Part:
    """Return the profile of `run`. At least one size is measured, whatever the budget."""
    samples: list[Sample] = []
    sizes = list(doubled(max_items))
    share_s = budget.seconds / (len(sizes) * len(lengths))
    is_complete = True
    for items in sizes:
        if samples and budget.is_spent():
            is_complete = False
            break
        for length in lengths:
            progress(f"{op}: {items} x {length} tokens" if len(lengths) > 1 else f"{op}: {items}")
            samples.append(await steady(partial(run, items, length), budget.until(share_s)))
        if is_past_knee(samples, len(lengths)):
            break
    return Part(op, tuple(samples), fitted(samples, max_items, source), is_complete)


async def steady(run: Callable[[], Awaitable[Sample]], budget: Budget) -> Sample:
    """Return the median of repeats until the repeats agree; of the warm-up, if the warm-up took all the time."""
    found = [await run()]
    if budget.is_spent():
        return found[0]
    found.clear()
    while len(found) < MAX_REPEATS:
        found.append(await run())
        if budget.is_spent() or (len(found) >= MIN_REPEATS and spread([s.seconds for s in found]) <= STEADY_SPREAD):
            break
    tokens = round(statistics.mean(s.tokens for s in found))
    return Sample(found[0].items, tokens, statistics.median(s.seconds for s in found))


def spread(seconds: Sequence[float]) -> float:
    """Return the width of the middle half of the values, as a share of the median.

    >>> spread([1.0, 1.0, 1.0, 9.0]) > spread([1.0, 1.0, 1.0, 1.0, 9.0]) == 0.0
    True
    """
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def doubled(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and at last `most`.

    >>> list(doubled(12))
    [1, 2, 4, 8, 12]
    """
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def is_past_knee(samples: Sequence[Sample], lengths: int) -> bool:
    """Whether the last sizes, with `lengths` samples each, had no higher rate at any length than the sizes before."""
    rates = [s.items / s.seconds for s in samples]
    last = GAINLESS_SIZES * lengths
    if len(rates) <= last or samples[-1].items < FIRST_ITEMS:
        return False
    return all(
        max(rates[-last + at :: lengths]) < GAIN * max(rates[at : len(rates) - last : lengths]) for at in range(lengths)
    )


def fitted(samples: Sequence[Sample], max_items: int, source: str) -> Profile:
    """Return a line, or a line with bends if the bends reduce the error enough."""
    line = fit(samples, max_items=max_items, source=source)
    sizes = sorted({s.items for s in samples})[1:-1]
    if fit_error(line, samples) <= LINE_ERROR or not sizes:
        return line
    step = max(1, -(-len(sizes) // MAX_BENDS))
    bent = fit(samples, knots=sizes[::step], max_items=max_items, source=source)
    return bent if fit_error(bent, samples) <= BENT_SHARE * fit_error(line, samples) else line


def fit_error(profile: Profile, samples: Sequence[Sample]) -> float:
    """Return the root mean square of the relative errors."""
    errors = [profile.predict_s(s.items, s.tokens) / s.seconds - 1 for s in samples]
    return math.sqrt(statistics.fmean(e * e for e in errors))
