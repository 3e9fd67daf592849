"""The gain by `optimize`, predicted from one run of a pipeline which was not optimized.

The prediction uses the *leaves* of the run (chat models, LLMs, retrievers, tools, ...): start and end, inputs and
outputs. A leaf *needs* an earlier leaf which had ended before if its input contains a piece of the earlier output. With
running ahead, a leaf would begin as soon as all needed leaves have ended:

    a ####      a ####             predicted time = the longest path of leaves + glue
    b     ###   b ###              glue = the time in which no leaf ran
    c        ## c     ##           (c needs a and b)
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from teola_plugin.callbacks.texts import occurs, pieces
from teola_plugin.explanation.text import breaks_text, wrapped
from teola_plugin.trace import Break

MAX_LEAVES = 512
MAX_CHARACTERS = 500_000
"""The limits of one recorded run: leaves, and characters of their inputs and outputs. Leaves beyond the first limit
count as glue; texts beyond the second may be anything, so every later leaf needs the leaf."""

CAVEAT = (
    "An estimate of what one query alone gains where whole steps overlap. It may be too high: whether a step has"
    " effects cannot be seen from here (what is not plainly pure, and what comes after it, is left to the framework),"
    " nor what a step needs without being given any of its text (a decision, a text made into another one). It may be"
    " too low: what comes after a reply that is too short to be found again counts as in need of it. What shortens the"
    " steps themselves (early prefills, items handed on while they are written, batches across queries) is not counted."
)


@dataclass(slots=True)
class Seen:
    """A leaf, running or ended. `given` None: the input was too large to keep."""

    name: str
    kind: str
    given: Sequence[str] | None
    began_s: float
    ended_s: float | None = None
    said: Sequence[str] = ()
    failed: bool = False
    is_around: bool = False
    """Whether the leaf contains other leaves, and so is no leaf."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the prediction. `needs`: positions in `Prediction.leaves`. `began_s`: since the start of the run."""

    name: str
    kind: str
    began_s: float
    seconds: float
    needs: tuple[int, ...] = ()
    on_path: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """An estimate of the gain for a single query, too high or too low; `caveat` names the unknowns.

    `leaves` are in order of start. `breaks`: the breaks which `optimize` would have, None if the handler does not know
    the pipeline. `left_out`: the number of leaves beyond the limit, which count as glue.
    """

    run_id: str
    name: str
    measured_s: float
    predicted_s: float
    glue_s: float
    leaves: tuple[Leaf, ...] = ()
    breaks: tuple[Break, ...] | None = None
    error: str = ""
    left_out: int = 0
    caveat: str = CAVEAT

    @property
    def ratio(self) -> float:
        """Measured / predicted: the best possible speedup."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {"optimized": False, **asdict(self), "ratio": self.ratio}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield wrapped(
            f"{self.name}: {self.measured_s * 1000:.1f} ms, not optimized; optimized {self.predicted_s * 1000:.1f} ms"
            f" at best, {self.ratio:.2f} x"
        )
        yield wrapped(self.caveat, "  ", "  ")
        if self.error:
            yield wrapped(f"the pipeline raised {self.error}", "  ", "  ")
        yield ""
        yield f"  {'':5} {'leaf':30} {'kind':10} {'from ms':>9} {'ms':>9}  needs"
        for position, leaf in enumerate(self.leaves):
            needs = textwrap.shorten(", ".join(map(str, leaf.needs)), 30, placeholder=" ...")
            failed = " failed" if leaf.failed else ""
            yield (
                f"  {'*' if leaf.on_path else ' '} {position:3} {leaf.name[:30]:30} {leaf.kind:10}"
                f" {leaf.began_s * 1000:9.1f} {leaf.seconds * 1000:9.1f}  {needs}{failed}"
            )
        more = f", and {self.left_out} leaves too many to keep" if self.left_out else ""
        yield f"  longest path (*): {(self.predicted_s - self.glue_s) * 1000:.1f} ms"
        yield f"  glue: {self.glue_s * 1000:.1f} ms in which no leaf ran{more}"
        if self.breaks is not None:
            yield ""
            yield breaks_text(self.breaks)


@dataclass
class Recorded:
    """A run of a pipeline which was not optimized, on `time.perf_counter()`.

    `handled`: the id of the exception being handled by the caller at the start, for frameworks which do not report a
    run's exception. `stream`: a reference to the returned stream, which may continue the run when read.
    """

    run_id: str
    name: str
    breaks: tuple[Break, ...] | None = None
    began_s: float = field(default_factory=time.perf_counter)
    ended_s: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    left_out: int = 0
    characters: int = 0
    error: str = ""
    made: Prediction | None = None
    handled: int = 0
    stream: Callable[[], Any] = lambda: None

    def begin(self, name: str, kind: str, given: Sequence[str]) -> Seen | None:
        """Record the start of a leaf; None if there are too many."""
        if len(self.seen) >= MAX_LEAVES:
            self.left_out += 1
            return None
        leaf = Seen(name, kind, given if self._has_room_for(given) else None, time.perf_counter())
        self.seen.append(leaf)
        return leaf

    def end(self, leaf: Seen, said: Sequence[str], *, failed: bool) -> None:
        """Record the end of a leaf."""
        leaf.ended_s, leaf.failed = time.perf_counter(), failed
        leaf.said = said if self._has_room_for(said) else ()
        if self.ended_s:  # a stream read after the pipeline had returned
            self.ended_s = leaf.ended_s

    def give(self, leaf: Seen, more: Sequence[str]) -> None:
        """Record further inputs of a leaf."""
        if leaf.given is not None:
            leaf.given = [*leaf.given, *more] if self._has_room_for(more) else None

    def _has_room_for(self, texts: Sequence[str]) -> bool:
        self.characters += sum(map(len, texts))
        return self.characters <= MAX_CHARACTERS

    @property
    def prediction(self) -> Prediction:
        """Return the prediction, made on first use after the run; the texts are freed afterwards."""
        seen = self.seen  # before another thread frees the texts
        if self.made is not None:
            return self.made
        leaves, glue_s = predict(seen, self.began_s, self.ended_s)
        path_s = sum(leaf.seconds for leaf in leaves if leaf.on_path)
        made = Prediction(
            self.run_id, self.name, self.ended_s - self.began_s, path_s + glue_s, glue_s, leaves, self.breaks,
            self.error, self.left_out,
        )  # fmt: skip
        if self.stream() is None and all(leaf.ended_s is not None for leaf in seen):  # else there may be more to come
            self.made, self.seen = made, []
        return made


def predict(seen: Sequence[Seen], began_s: float, ended_s: float) -> tuple[tuple[Leaf, ...], float]:
    """Return the leaves with their needs and the longest path marked, and the glue in seconds."""
    leaves = sorted((leaf for leaf in seen if not leaf.is_around), key=lambda leaf: leaf.began_s)
    ends = [ended_s if leaf.ended_s is None else leaf.ended_s for leaf in leaves]
    said = [pieces(leaf.said) for leaf in leaves]
    needs = [
        tuple(n for n in range(position) if ends[n] <= leaf.began_s and occurs(said[n], leaf.given))
        for position, leaf in enumerate(leaves)
    ]
    path = _longest_path([end - leaf.began_s for leaf, end in zip(leaves, ends, strict=True)], needs)
    busy_s, until_s = 0.0, began_s
    for leaf, end in zip(leaves, ends, strict=True):
        busy_s += max(0.0, end - max(leaf.began_s, until_s))
        until_s = max(until_s, end)
    found = tuple(
        Leaf(leaf.name, leaf.kind, leaf.began_s - began_s, ends[n] - leaf.began_s, needs[n], n in path, leaf.failed)
        for n, leaf in enumerate(leaves)
    )
    return found, max(0.0, ended_s - began_s - busy_s)


def _longest_path(seconds: Sequence[float], needs: Sequence[Sequence[int]]) -> set[int]:
    """Return the positions of a longest path. Every position must come after the positions it needs."""
    until: list[float] = []
    last: list[int | None] = []
    for n, own_s in enumerate(seconds):
        last.append(max(needs[n], key=until.__getitem__, default=None))
        before = last[n]
        until.append(own_s + (0.0 if before is None else until[before]))
    at = max(range(len(until)), key=until.__getitem__, default=None)
    path: set[int] = set()
    while at is not None:
        path.add(at)
        at = last[at]
    return path
