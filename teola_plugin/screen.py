"""A terminal of our own: the output of libraries goes to a log file, and our console to the real screen.

vLLM logs from several processes, transformers draws progress bars, chromadb warns. The output is worth keeping but not
useful beside a table. The file descriptors are redirected, so that child processes and C code are captured too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables for the libraries, unless the user has set them."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The console, and the log file of the libraries."""

    console: Console
    log: Path

    def say(self, line: str) -> None:
        """Print one line unchanged."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def own_screen() -> Iterator[Screen]:
    """Let only the yielded console reach the terminal inside the block."""
    added = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(added)
    descriptor, name = tempfile.mkstemp(prefix="teola-", suffix=".log")
    log = Path(name)
    try:
        with _redirected(descriptor, log) as screen:
            yield screen
    except KeyboardInterrupt:
        log.unlink(missing_ok=True)
        raise
    except BaseException:  # the log is kept after an error
        if not log.stat().st_size:
            log.unlink()
        raise
    finally:
        for name in added:
            os.environ.pop(name, None)
    log.unlink(missing_ok=True)


def progress_bar(console: Console) -> Progress:
    """Return a progress bar which disappears when done and prints nothing if the output is no terminal.

    `sys.stderr` stays as it is: output of libraries belongs in the log of `own_screen`, not above the bar.
    """
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip


@contextmanager
def _redirected(descriptor: int, log: Path) -> Iterator[Screen]:
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(descriptor, "w") as sink, warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        if not _is_real(sys.stdout):  # a test, or a caller which has replaced stdout
            yield Screen(Console(file=sys.stdout), log)
            return
        out, err = os.dup(1), os.dup(2)
        terminal = os.fdopen(os.dup(out), "w", encoding=sys.stdout.encoding, errors="replace")
        try:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
            yield Screen(Console(file=terminal), log)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out, 1)
            os.dup2(err, 2)
            for fd in (out, err):
                os.close(fd)
            terminal.close()  # last, since closing raises if the disk is full


def _is_real(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):
        return False
