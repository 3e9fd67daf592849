"""Copies of the source tree, in which faults are planted and tests are run one process at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.mutants import child

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
MARK = "TEOLA_MUTANT"
FORKS = multiprocessing.get_context("forkserver")
PASSED, FAILED, INTERRUPTED, INTERNAL = 0, 1, 2, 3
"""Pytest's exit statuses; with the others no test was run."""


class CannotRun(Exception):
    """Pytest found nothing to run."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run of tests ended: `by` is the test that failed, or another sign of the fault; empty if all passed."""

    by: str
    wall_s: float
    output: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """One copy. `hang_s`: how long one test may take."""

    path: Path
    hang_s: float

    @contextlib.contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Inside, the file has this text."""
        path = self.path / file
        before = path.read_text()
        try:
            _write(path, text)
            yield
        finally:
            _write(path, before)

    def run(
        self, tests: Sequence[str], limit_s: float | None = None, *, is_real: bool = True, is_probed: bool = False
    ) -> Ran:
        """Run the tests until one fails; no end within the limit is a failure. `is_real`: also tests marked so.

        `is_probed`: run all of them, and write down which probes they ran (probes.py).
        """
        mark = (MARK, uuid.uuid4().hex)
        options = ["-o", f"timeout={self.hang_s}", *([] if is_real else ["-m", "not real and not papers"]), *tests]
        if is_probed:
            options.append(f"--maxfail={sys.maxsize}")
        began_s = time.monotonic()
        process = FORKS.Process(target=child.run, args=(str(self.path), options, mark, is_probed))
        process.start()
        assert process.pid is not None
        try:
            process.join(limit_s)
            status = process.exitcode
        finally:
            _end_all(process.pid, mark)
            process.join()
        said = (self.path / "output.txt").read_text(errors="replace")
        shutil.rmtree(self.path / ".hypothesis", ignore_errors=True)  # examples that failed with another fault
        return Ran(_failure(status, said), time.monotonic() - began_s, said)


@contextlib.contextmanager
def copies(root: Path, folder: Path, count: int, hang_s: float) -> Iterator[queue.SimpleQueue[Tree]]:
    """So many copies of the tree below `folder`, each to be taken from the queue and put back."""
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for number in range(count):
        path = folder / f"tree-{number}"
        shutil.copytree(root, path, ignore=LEFT_OUT)
        free.put(Tree(path, hang_s))
    yield free


def _write(path: Path, text: str) -> None:
    """With no compiled form left: one of the same second and size would count as that of the new text."""
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _failure(status: int | None, said: str) -> str:
    if status == PASSED:
        return ""
    if status is None:
        return "no end"
    if status not in (FAILED, INTERRUPTED, INTERNAL) and status > 0:
        raise CannotRun(said)
    found = re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", said, re.MULTILINE)
    return found[1] if found else f"exit status {status}"


def _end_all(leader: int, mark: tuple[str, str]) -> None:
    """Engines and servers that a test began may outlive it; in sessions of their own they have its environment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(mark[0]) == mark[1]:
                process.kill()
