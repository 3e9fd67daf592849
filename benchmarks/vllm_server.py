"""vLLM's OpenAI server with the tiny model, as a process of its own for as long as a benchmark runs.

Its prefix cache is off, unless it is what is looked at: otherwise whoever of a pair asks second, and each repetition,
would find prompts computed that are new with a new question.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from teola_plugin.demo.tiny_model import tiny_model

MODEL = "tiny"
START_S = 300.0
"""On two busy cores it takes 60 to 140."""

STOP_S = 20.0
SHOWN_LINES = 30
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
"""Unless set; but for the last as in the Makefile. Bound to one of two cores, as it is by default, vLLM's worker kept
threads of this process that woke there waiting for 0.2 to 0.6 s, most of a call, while the other core was busy."""


@contextmanager
def vllm_server(*, keeps_prefixes: bool = False) -> Iterator[str]:
    """The base URL of a server that answers for the model MODEL. It also ends if SIGTERM ends this process.

    Raises: RuntimeError if it does not start. Any exception gets what it wrote last as a note.
    """
    port = _free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(tiny_model()), "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "4096",
        f"--{'' if keeps_prefixes else 'no-'}enable-prefix-caching", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+", prefix="vllm-server-", encoding="utf-8", errors="replace") as output:
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT | os.environ,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        except BaseException as e:
            output.seek(0)
            e.add_note("\n".join(["vLLM's server wrote:", *output.read().splitlines()[-SHOWN_LINES:]]))
            raise
        finally:
            _stop(process)
            signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], health: str) -> None:
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=5):
            return
        time.sleep(0.5)
    ended = f"no answer for {START_S:.0f} s" if process.returncode is None else f"exit status {process.returncode}"
    raise RuntimeError(f"vLLM's server did not start: {ended}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it and what it started: they are a process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
