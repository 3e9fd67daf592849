"""Plant faults in copies of the source one at a time, and count those that the tests notice (`make mutants`).

    python -m tests.mutants.run                               # all layers
    python -m tests.mutants.run lane engines -j 4             # some of them, four faults at a time
    python -m tests.mutants.run lane --only deadline          # faults with this in their name
    python -m tests.mutants.run lane --sample 20 --seed 7     # random changes to the files of the layer besides

The exit status is 1 if a layer scores below `TARGET`, if its tests fail without a fault, or if a fault of its list
cannot be planted any more. What survives of a sample is shown and not counted: some of it changes nothing that matters.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault, Layer, layers_in, planted, stale_in
from tests.mutants.operators import Change, sampled
from tests.mutants.trees import Ran, Tree, copies

ROOT = Path(__file__).parents[2]
LISTS = Path("tests/mutants")
TARGET = 0.9


def main(given: Sequence[str], root: Path = ROOT) -> int:
    """0 if every layer that was asked for is good enough."""
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
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many random changes besides, per layer")
    parser.add_argument("--seed", default="0", help="of the random changes")
    parser.add_argument("--hang-s", type=float, default=60, help="how long one test may take")
    asked = parser.parse_args(given)
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

    def is_passed(self) -> bool:
        """Run and print everything. Whether the list is killed as far as it has to be."""
        print(f"--- {self.layer.name}", flush=True)
        if stale := stale_in(self.layer, self.root):
            print("\n".join(stale))
            return False
        whole = self._with_tree(lambda tree: tree.run(self.layer.all_tests))
        if whole.by:
            print(f"{whole.output}\nthe tests fail without a fault: {whole.by}")
            return False
        limit_s = self.asked.hang_s + 3 * whole.wall_s
        print(f"the tests take {whole.wall_s:.0f} s without a fault", flush=True)
        score = self._listed(limit_s)
        self._random(limit_s)
        return score >= TARGET

    def _listed(self, limit_s: float) -> float:
        faults = [fault for fault in self.layer.faults if self.asked.only in fault.name]
        equivalent = [fault for fault in faults if fault.equivalent]
        tried = [fault for fault in faults if not fault.equivalent]

        def survives(fault: Fault) -> bool:
            tests = fault.tests or self.layer.tests
            return self._survives(fault.name, fault.file, planted(fault, self.root), tests, limit_s)

        survived = [fault for fault, lives in zip(tried, self.pool.map(survives, tried), strict=True) if lives]
        killed = len(tried) - len(survived)
        score = killed / len(tried) if tried else 1.0
        print(
            f"{self.layer.name}: {killed} killed, {len(survived)} survived, {len(equivalent)} equivalent: {score:.0%}"
        )
        for fault in survived:
            print(f"  survived: {fault.name}")
        for fault in equivalent:
            print(f"  equivalent: {fault.name} ({fault.equivalent})")
        return score

    def _random(self, limit_s: float) -> None:
        if not self.asked.sample:
            return
        changes = sampled(self.layer.files, self.root, self.asked.sample, f"{self.asked.seed} {self.layer.name}")

        def survives(change: Change) -> bool:
            return self._survives(change.diff.splitlines()[0], change.file, change.text, self.layer.tests, limit_s)

        survived = [change for change, lives in zip(changes, self.pool.map(survives, changes), strict=True) if lives]
        print(f"{self.layer.name}, random changes: {len(changes) - len(survived)} of {len(changes)} killed")
        for change in survived:
            print(f"  survived: {change.file}\n{change.diff}")

    def _survives(self, name: str, file: str, text: str, tests: Sequence[str], limit_s: float) -> bool:
        def run(tree: Tree) -> Ran:
            with tree.changed(file, text):
                return tree.run(tests, limit_s)

        ran = self._with_tree(run)
        print(f"{ran.wall_s:4.0f} s  {name}: {ran.by or 'SURVIVED'}", flush=True)
        return not ran.by

    def _with_tree(self, work: Callable[[Tree], Ran]) -> Ran:
        tree = self.free.get()
        try:
            return work(tree)
        finally:
            self.free.put(tree)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
