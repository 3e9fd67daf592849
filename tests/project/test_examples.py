"""Every example runs, as a user runs it, and stays short."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = ["langgraph.graph", "llama_index.core", "llama_index.vector_stores.chroma", "teola_plugin"]
WHICH = int(os.environ.get("TEOLA_TEST_TURN", "0")) % len(EXAMPLES)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    """In a process of its own, forked from one that has imported the packages once for all examples."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(PACKAGES)
    process = processes.Process(target=_run, args=(path, tmp_path))
    process.start()
    process.join(100)
    process.kill()
    process.join()
    said, errors = ((tmp_path / name).read_text() for name in ("said", "errors"))
    assert process.exitcode == 0, errors
    _assert_fine(said)


def _run(path: Path, folder: Path) -> None:
    for stream, name in ((sys.stdout, "said"), (sys.stderr, "errors")):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


def _assert_fine(said: str) -> None:
    assert "DIFFERENCES" not in said
    assert said.strip()


def test_one_runs_as_a_user_runs_it() -> None:
    command = [sys.executable, EXAMPLES[WHICH]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    _assert_fine(done.stdout)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
