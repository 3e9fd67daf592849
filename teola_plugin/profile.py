"""Latency profiles: the seconds of a batch on an engine, and the batch size from which on larger batches gain nothing.

    seconds
       |            . '        seconds = base (a polyline over the number of items) + token_s * tokens
       |      . '
       |  . '                  Non-negative slopes: more work never takes less time, so a fit to noisy samples
       | '                     cannot predict a batch that costs nothing.
       +--------------- items

A profile is measured (`fit`), stored as JSON (`save`, `load`) or taken from the constants at the end. Passes and
policies decide by profiles; results never depend on profiles.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from teola_plugin.errors import ProfileError

if TYPE_CHECKING:
    import numpy as np

_logger = logging.getLogger(__name__)

TOKEN_CHARACTERS = 4
"""Characters per token of English text, about."""

MAX_KNOTS = 8
"""The largest number of knots: `fit` tries every subset of the columns, two to the power of their number."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one batch by items and tokens.

    `points` are `(items, seconds)` at no tokens, joined by lines; the last line goes on. `token_s` is added for each
    token of the batch; `item_tokens` is the usual length of an item. `max_items` is the largest allowed knee.
    `measured_items` and `measured_tokens` are the ranges of the samples (None: not from samples).
    """

    points: tuple[tuple[int, float], ...]
    token_s: float = 0.0
    item_tokens: float = 0.0
    max_items: int = 64
    knee_share: float = 0.9
    measured_items: tuple[int, int] | None = None
    measured_tokens: tuple[int, int] | None = None
    source: str = ""
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def __post_init__(self) -> None:
        items, seconds = [n for n, _ in self.points], [s for _, s in self.points]
        _require(
            len(items) > 0 and items[0] >= 0,
            "points",
            "at least one (items, seconds), items >= 0",
            self.points,
        )
        _require(items == sorted(set(items)), "points", "ascending numbers of items", self.points)
        _require(seconds == sorted(seconds) and seconds[0] >= 0, "points", "seconds that never fall", self.points)
        _require(all(map(math.isfinite, seconds)), "points", "finite seconds", self.points)
        _require(0 <= self.token_s < math.inf, "token_s", "a finite number >= 0", self.token_s)
        _require(0 <= self.item_tokens < math.inf, "item_tokens", "a finite number >= 0", self.item_tokens)
        _require(self.max_items >= 1, "max_items", "at least 1", self.max_items)
        _require(0 < self.knee_share <= 1, "knee_share", "above 0, at most 1", self.knee_share)

    @classmethod
    def affine(cls, base_s: float, item_s: float = 0.0, token_s: float = 0.0, **more: Any) -> Profile:
        """Return the profile `base_s + item_s * items + token_s * tokens`.

        >>> embedding = Profile.affine(0.05, 0.025)
        >>> [round(48 / n * embedding.predict_s(n), 2) for n in (4, 16)]
        [1.8, 1.35]
        """
        return cls(points=((0, base_s), (1, base_s + item_s)), token_s=token_s, **more)

    def predict_s(self, items: int, tokens: int | None = None) -> float:
        """Return the seconds of one batch of `items` with `tokens` in total (None: items of the usual length).

        Outside of the measured ranges the lines go on; the log says so once.
        """
        if items <= 0:
            return 0.0
        _warn_beyond(self, "items", items, self.measured_items)
        if tokens is not None:
            _warn_beyond(self, "tokens", tokens, self.measured_tokens)
        return self._seconds(items, items * self.item_tokens if tokens is None else tokens)

    @property
    def knee_items(self) -> int:
        """The max efficient batch size for items of the usual length."""
        return self.knee()

    def knee(self, item_tokens: float | None = None) -> int:
        """Return the smallest batch with `knee_share` of the best throughput of batches up to `max_items`.

        The longer the items, the smaller the knee, since a batch saves only the base.

        >>> [Profile.affine(0.006, token_s=0.00021).knee(tokens) for tokens in (64, 256)]
        [4, 1]
        """
        length = self.item_tokens if item_tokens is None else item_tokens
        sizes = range(1, self.max_items + 1)
        seconds = [self._seconds(n, n * length) for n in sizes]
        if min(seconds) == 0:
            return 1
        rates = [n / s for n, s in zip(sizes, seconds, strict=True)]
        return next(n for n, rate in zip(sizes, rates, strict=True) if rate >= self.knee_share * max(rates))

    def _seconds(self, items: float, tokens: float) -> float:
        if len(self.points) == 1:
            return self.points[0][1] + self.token_s * tokens
        right = min(max(bisect_right(self.points, items, key=lambda p: p[0]), 1), len(self.points) - 1)
        (n0, s0), (n1, s1) = self.points[right - 1], self.points[right]
        return max(0.0, s0 + (s1 - s0) * (items - n0) / (n1 - n0)) + self.token_s * tokens


@dataclass(frozen=True, slots=True)
class LlmProfile:
    """Seconds of an LLM: prefills by tokens, decode steps by the number of running sequences.

    `pair_s` is added for each pair of a new and a cached token (attention over the cached prefix). `output_tokens` is
    the usual length of an answer.
    """

    prefill: Profile
    step: Profile
    pair_s: float = 0.0
    output_tokens: int = 64
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def prefill_s(self, tokens: int, cached_tokens: int = 0, items: int = 1) -> float:
        """Return the seconds to prefill `tokens` uncached tokens of `items` prompts, behind a cached prefix.

        >>> llm = PAPER_LLM["7b"]
        >>> round(llm.prefill_s(512), 3), round(llm.prefill_s(128, cached_tokens=384), 3)
        (0.145, 0.058)
        """
        return self.prefill.predict_s(items, tokens) + self.pair_s * tokens * cached_tokens

    def step_s(self, items: int) -> float:
        """Return the seconds of one decode step of `items` sequences."""
        return self.step.predict_s(items)

    @property
    def knee_items(self) -> int:
        """The max efficient number of sequences."""
        return self.step.knee_items

    def predict_s(self, items: int, tokens: int | None = None) -> float:
        """Return the seconds of `items` requests which begin together: prefills and answers of the usual length."""
        return self.prefill.predict_s(items, tokens) + self.output_tokens * self.step_s(items)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured batch."""

    items: int
    tokens: int
    seconds: float


def fit(samples: Sequence[Sample], knots: Sequence[int] = (), **more: Any) -> Profile:
    """Return the closest profile to the samples (non-negative least squares of the relative error).

    `knots` are the numbers of items at which the line may bend; none: affine. If tokens are proportional to items in
    all samples, items explain both. `more` are fields of `Profile`.

    >>> profile = fit([Sample(n, 10 * n, 0.05 + 0.025 * n) for n in (1, 4, 16)], source="doctest")
    >>> round(profile.predict_s(8), 3), profile.measured_items, profile.item_tokens
    (0.25, (1, 16), 10.0)
    """
    _require(len(samples) > 0, "samples", "at least one", samples)
    _require(len(knots) <= MAX_KNOTS, "knots", f"at most {MAX_KNOTS}", knots)
    for at, sample in enumerate(samples):
        valid = sample.items >= 1 and sample.tokens >= 0 and 0 < sample.seconds < math.inf
        _require(valid, f"samples[{at}]", "items >= 1, tokens >= 0, seconds > 0", sample)
    import numpy as np  # takes half the time of all other imports, and few callers need numpy

    items = np.array([s.items for s in samples], dtype=float)
    tokens = np.array([s.tokens for s in samples], dtype=float)
    seconds = np.array([s.seconds for s in samples])
    starts = [0, *sorted(set(knots) - {0})]
    lengths = [b - a for a, b in itertools.pairwise(starts)] + [math.inf]
    lines = [np.clip(items - start, 0, length) for start, length in zip(starts, lengths, strict=True)]
    columns = np.stack([np.ones_like(items), *lines, tokens], axis=1)
    base_s, *slopes, token_s = _non_negative_least_squares(columns / seconds[:, None], np.ones_like(seconds))
    points = [(0, base_s)]
    for start, slope in zip([*starts[1:], starts[-1] + 1], slopes, strict=True):
        points.append((start, points[-1][1] + slope * (start - points[-1][0])))
    measured: dict[str, Any] = {
        "item_tokens": round(float(np.median(tokens / items)), 1),
        "measured_items": (int(items.min()), int(items.max())),
        "measured_tokens": (int(tokens.min()), int(tokens.max())),
    }
    return Profile(points=tuple(points), token_s=token_s, **(measured | more))


def _non_negative_least_squares(columns: np.ndarray, target: np.ndarray) -> list[float]:
    """Return coefficients >= 0 with the least squared error; on ties with fewer and earlier columns.

    The best non-negative solution is the unconstrained solution on the used columns: with few columns, all subsets are
    tried.
    """
    import numpy as np

    best, least = [0.0] * columns.shape[1], float(target @ target)
    for size in range(1, columns.shape[1] + 1):
        for used in map(list, itertools.combinations(range(columns.shape[1]), size)):
            found = np.linalg.lstsq(columns[:, used], target, rcond=None)[0]
            error = float(np.sum((columns[:, used] @ found - target) ** 2))
            if found.min() >= 0 and error < least * (1 - 1e-6) - 1e-12:
                best, least = [0.0] * columns.shape[1], error
                for column, value in zip(used, found, strict=True):
                    best[column] = float(value)
    return best


# --- files --------------------------------------------------------------------------------------------------


def save(path: Path, profiles: Mapping[str, Profile | LlmProfile]) -> None:
    """Write profiles by engine name."""
    path.write_text(json.dumps({name: asdict(p) for name, p in profiles.items()}, indent=2) + "\n")


def load(path: Path) -> dict[str, Profile | LlmProfile]:
    """Return the profiles of a file, written by `save` or by hand. Raises: ProfileError, naming file and field."""
    try:
        content = json.loads(path.read_text())
    except ValueError as e:
        raise ProfileError(f"{path}: no JSON ({e})") from e
    if not isinstance(content, dict) or not all(isinstance(fields, dict) for fields in content.values()):
        raise ProfileError(f"{path}: expected an object of profiles by engine name")
    found: dict[str, Profile | LlmProfile] = {}
    for name, fields in content.items():
        try:
            found[name] = parse(fields)
        except ProfileError as e:
            raise ProfileError(f"{path}: {name}.{e}") from e
    return found


def parse(fields: Mapping[str, Any]) -> Profile | LlmProfile:
    """Return the profile of decoded JSON. Raises: ProfileError, naming the field."""
    from pydantic import TypeAdapter, ValidationError  # slow to import, and most processes load no profile

    shape: type[Profile | LlmProfile] = LlmProfile if "step" in fields else Profile
    try:
        return TypeAdapter(shape).validate_python(fields)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ProfileError(f"{field}: {first['msg']}, got {first['input']!r}") from e


def _require(condition: bool, field: str, expected: str, got: object) -> None:
    if not condition:
        raise ProfileError(f"{field}: expected {expected}, got {got!r}")


def _warn_beyond(profile: Profile, what: str, asked: int, measured: tuple[int, int] | None) -> None:
    if measured is not None and not measured[0] <= asked <= measured[1]:
        _warn_once(profile, what, measured)


@functools.cache
def _warn_once(profile: Profile, what: str, measured: tuple[int, int]) -> None:
    name = profile.source or "a latency profile"
    _logger.warning("%s was measured for %d to %d %s; predictions beyond are guesses", name, *measured, what)


# --- constants ----------------------------------------------------------------------------------------------

PAPER: dict[str, Profile] = {
    # bge-large; fits the paper's 48 requests: 1.8 s at batch 4, 1.35 s at batch 16 (arXiv 2407.00326)
    "embedding": Profile.affine(0.05, 0.025, source="paper: bge-large, 48 requests"),
    # the same model, from the logs published with the paper's prototype
    "embedding_logs": Profile.affine(0.028, 0.001, source="prototype's logs: bge-large"),
    "reranking": Profile.affine(0.014, 0.0017, source="prototype's logs: bge-reranker-large"),
    # 0.5 to 0.8 ms a row; the middle
    "ingestion": Profile.affine(0.0, 0.00065, source="prototype's logs: vector store"),
    # 2 to 6 ms a search; the middle
    "searching": Profile.affine(0.0, 0.004, source="prototype's logs: vector store"),
}
"""Points published for the paper's testbed, fitted."""

PAPER_LLM: dict[str, LlmProfile] = {
    # prefill 28.6 ms + 0.227 ms/token; decode 27 to 30 ms a step, read as alone and at 32 sequences; each pair
    # of a new and a cached token 1.4e-5 ms
    "7b": LlmProfile(
        prefill=Profile.affine(0.0286, token_s=0.000227, source="paper: Llama-2-7B prefill"),
        step=Profile(points=((1, 0.027), (32, 0.030)), max_items=32, source="paper: Llama-2-7B decode step"),
        pair_s=1.4e-8,
    ),
    # figure 7: 0.2 s and 0.3 s more for each prompt of 512 tokens, two prompts (1024 tokens) at most
    "figure7": LlmProfile(
        prefill=Profile.affine(0.2, token_s=0.3 / 512, item_tokens=512, max_items=2, source="figure 7"),
        step=Profile(points=((1, 0.027), (32, 0.030)), max_items=32, source="paper: Llama-2-7B decode step"),
    ),
}
"""LLMs of the paper's testbed."""
