"""Plant faults in copies of the source one at a time, and count those that the tests notice (`make mutants`).

    python -m tests.mutants.run                               # all layers
    python -m tests.mutants.run worker engines -j 4           # some of them, four faults at a time
    python -m tests.mutants.run worker --only deadline        # faults with this in their name
    python -m tests.mutants.run worker --minutes 3            # what is begun within three minutes
    python -m tests.mutants.run worker --again                # also what is known from runs before (record.py)
    python -m tests.mutants.run worker --sample 20 --seed 7   # random changes to the files of the layer besides

The test that noticed a fault the last time is run first; else those that run its function (reach.py), or that noticed
others of its file. Whichever notices it has to pass without the fault, or nothing is known of it. The exit status is 1
if fewer than `TARGET` of a layer's faults are known to be killed, if a test fails without a fault, or if a fault of a
list cannot be planted any more. What survives of a sample is shown and not counted: some of it changes nothing that
matters.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import queue
import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.child import PRELOADED
from tests.mutants.faults import Fault, Layer, layers_in, planted, stale_in
from tests.mutants.operators import Change, sampled
from tests.mutants.reach import passing, reaching
from tests.mutants.record import Record
from tests.mutants.trees import FORKS, CannotRun, Tree, copies

ROOT = Path(__file__).parents[2]
LISTS = Path("tests/mutants")
TARGET = 0.9
PROBED = 5
"""With so many faults of which no run before knows a test, it is found out first which tests run their functions; with
so many tests that noticed faults before, which of them pass."""

HANGS = 10
"""So many times what one test may take, all of a fault's tests may take together."""


def main(given: Sequence[str], root: Path = ROOT, preloaded: Sequence[str] = PRELOADED) -> int:
    """0 if every layer that was asked for is good enough. `preloaded`: modules that processes begin with."""
    FORKS.set_forkserver_preload(list(preloaded))
    known = layers_in(root / LISTS)
    asked = _parsed(given, list(known))
    layers = [known[name] for name in asked.layers or known]
    with (
        tempfile.TemporaryDirectory() as folder,
        copies(root, Path(folder), asked.jobs, asked.hang_s) as free,
        ThreadPoolExecutor(asked.jobs) as pool,
    ):
        bad = [layer.name for layer in layers if not Trial(layer, root, free, pool, asked).is_passed()]
    if bad:
        print(f"not good enough: {', '.join(bad)}")
    return bool(bad)


def _parsed(given: Sequence[str], known: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutants.run", description="Plant faults and count the noticed ones.")
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--only", default="", metavar="REGEX", help="faults with this in their name")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin with no further fault after so long")
    parser.add_argument("--again", action="store_true", help="also the faults whose result is known")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many random changes besides, per layer")
    parser.add_argument("--seed", default="0", help="of the random changes")
    parser.add_argument("--hang-s", type=float, default=60, help="how long one test may take")
    asked = parser.parse_args(given)
    asked.until_s = time.monotonic() + 60 * asked.minutes
    if unknown := sorted({*asked.layers} - {*known}):
        parser.error(f"no such layer: {', '.join(unknown)}")
    return asked


@dataclass(frozen=True, slots=True)
class Trial:
    """One layer under test."""

    layer: Layer
    root: Path
    free: queue.SimpleQueue[Tree]
    pool: ThreadPoolExecutor
    asked: argparse.Namespace
    failing: dict[tuple[str, ...], str] = field(default_factory=dict)
    """For tests that noticed a fault, which of them fails without one."""

    def is_passed(self) -> bool:
        """Run and print everything. Whether the list is killed as far as it has to be."""
        print(f"--- {self.layer.name}", flush=True)
        if stale := stale_in(self.layer, self.root):
            print("\n".join(stale))
            return False
        is_passed = self._listed()
        self._random()
        return is_passed and not any(self.failing.values())

    def _listed(self) -> bool:
        faults = [fault for fault in self.layer.faults if re.search(self.asked.only, fault.name)]
        equivalent = [fault for fault in faults if fault.equivalent]
        tried = [fault for fault in faults if not fault.equivalent]
        record = Record(self.layer, self.root, LISTS)
        found = {} if self.asked.again else {fault.name: record.found(fault) for fault in tried}

        unknown = [fault for fault in tried if found.get(fault.name) is None]
        reached = self._reached([fault for fault in unknown if not (fault.tests or record.noticed(fault))])
        self._pass_first({test for fault in unknown if record.noticed(fault) for test in record.likely(fault)})

        def look(fault: Fault) -> str | None:
            if (by := found.get(fault.name)) is not None or time.monotonic() > self.asked.until_s:
                return by
            with self._tree() as tree:
                text = planted(fault, tree.path)
                first = reached.get(fault.name) or record.likely(fault)
                by = self._noticed_by(tree, fault.name, fault.file, text, fault.tests, first)
                if by is not None:
                    record.add(fault, by, tree.path)
            return by

        looked = list(zip(tried, self.pool.map(look, tried), strict=True))
        survived = [fault for fault, by in looked if by == ""]
        known = [fault for fault, by in looked if by is not None]
        recorded = sum(found.get(fault.name) is not None for fault in tried)
        killed = len(known) - len(survived)
        print(
            f"{self.layer.name}: {killed} killed, {len(survived)} survived, {len(equivalent)} equivalent: "
            f"{killed / len(known) if known else 1:.0%}"
            + f" of the {len(known)} of {len(tried)} that are known" * (len(known) < len(tried))
            + f" ({recorded} from the record)" * bool(recorded)
        )
        for fault in survived:
            print(f"  survived: {fault.name}")
        for fault in equivalent:
            print(f"  equivalent: {fault.name} ({fault.equivalent})")
        return killed >= TARGET * len(tried)

    def _reached(self, unknown: Sequence[Fault]) -> dict[str, list[str]]:
        if len(unknown) < PROBED or time.monotonic() > self.asked.until_s:
            return {}
        began_s = time.monotonic()
        with self._tree() as tree:
            reached = reaching(unknown, self.layer.tests, tree, is_real=self.layer.is_real)
        self.failing.update({(test,): "" for tests in reached.values() for test in tests})
        print(
            f"{time.monotonic() - began_s:4.0f} s  which tests run the functions of {len(unknown)} faults", flush=True
        )
        return reached

    def _pass_first(self, tests: Collection[str]) -> None:
        """Find out in one run which of these tests pass without a fault; the others are run again one by one."""
        if len(tests) < PROBED or time.monotonic() > self.asked.until_s:
            return
        began_s = time.monotonic()
        with self._tree() as tree, contextlib.suppress(CannotRun):  # one is not there any more
            self.failing.update({(test,): "" for test in passing(sorted(tests), tree)})
        print(f"{time.monotonic() - began_s:4.0f} s  which of {len(tests)} tests pass without a fault", flush=True)

    def _random(self) -> None:
        if not self.asked.sample:
            return
        changes = sampled(self.layer.files, self.root, self.asked.sample, f"{self.asked.seed} {self.layer.name}")

        def look(change: Change) -> str | None:
            with self._tree() as tree:
                return self._noticed_by(tree, change.diff.splitlines()[0], change.file, change.text)

        looked = list(zip(changes, self.pool.map(look, changes), strict=True))
        print(f"{self.layer.name}, random changes: {sum(bool(by) for _, by in looked)} of {len(changes)} killed")
        for change, by in looked:
            if by == "":
                print(f"  survived: {change.file}\n{change.diff}")

    def _noticed_by(
        self, tree: Tree, name: str, file: str, text: str, own: Sequence[str] = (), first: Sequence[str] = ()
    ) -> str | None:
        """What notices this text, a test or another sign; empty if nothing does, None if that fails without it too."""
        began_s, by = time.monotonic(), ""
        with tree.changed(file, text):
            if first:
                with contextlib.suppress(CannotRun):  # one is not there any more
                    by = self._failed(tree, first)
            by = by or self._failed(tree, own)
        tests = (by,) if by.startswith("tests/") else tuple(own)
        if by and tests not in self.failing:
            self.failing[tests] = self._failed(tree, tests)
        without = by and self.failing[tests]
        print(f"{time.monotonic() - began_s:4.0f} s  {name}: {by or 'SURVIVED'}", flush=True)
        if without:
            print(f"the tests fail without a fault: {without}", flush=True)
        return None if without else by

    def _failed(self, tree: Tree, tests: Sequence[str]) -> str:
        """What of these tests, or else of the layer's, fails in that tree as it is."""
        is_real = bool(tests) or self.layer.is_real
        return tree.run(tests or self.layer.tests, HANGS * self.asked.hang_s, is_real=is_real).by

    @contextlib.contextmanager
    def _tree(self) -> Iterator[Tree]:
        tree = self.free.get()
        try:
            yield tree
        finally:
            self.free.put(tree)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
