"""Copies of the source tree, in which faults are planted and tests are run one process at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
MARK = "TEOLA_MUTANT"
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

    def run(self, tests: Sequence[str], limit_s: float | None = None) -> Ran:
        """Run the tests until the first one fails. A run that takes longer than the limit has failed, too."""
        mark = uuid.uuid4().hex
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"PYTHONPATH": str(self.path), MARK: mark}
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--color=no",
            "-p", "no:langsmith_plugin",  # importing it takes several times as long as a small test
            "--randomly-seed=1", "--randomly-dont-reorganize", "-o", f"timeout={self.hang_s}", *tests,
        ]  # fmt: skip
        began_s = time.monotonic()
        with (self.path / "output.txt").open("w+") as output:
            process = subprocess.Popen(command, cwd=self.path, env=env, stdout=output, stderr=output)
            try:
                status: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end_all(mark)
                process.wait()
            output.seek(0)
            said = output.read()
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
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return found[1] if found else f"exit status {status}"


def _end_all(mark: str) -> None:
    """Engines and servers that a test began may outlive it; all of them inherit its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()
