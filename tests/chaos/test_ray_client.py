"""A process that reaches the cluster through `ray://`, as from outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.apps import IS_FULL
from tests.chaos.ray_nodes import OTHER_PORTS, lose
from tests.chaos.ray_world import expected

PORT, CLIENTS_PORT = 26379, 20001

NO_SERVER = ("Starting Ray client server failed", "psutil.ZombieProcess")
"""Ray starts a server for each client; in a new cluster it sometimes does not come within 30 s, or ends at once."""

pytestmark = pytest.mark.skipif(not IS_FULL, reason="a cluster more; see make chaos")

DRIVER = """
import asyncio, json
from teola_plugin import runtime
from teola_plugin.runtime.hosts.ray import engines as rays
from tests.chaos.ray_world import CONFIGS, answer, prepared

engines = {name: rays.start(config) for name, config in CONFIGS.items()}
graph = prepared(engines)
questions = ["Who?", "Why?"]
said = [asyncio.run_coroutine_threadsafe(answer(graph, q, 60), runtime.host.loop).result() for q in questions]
told = {"said": said, "left": [rays.stop(n) for n in engines]}
print(json.dumps(told), flush=True)
runtime.host.close()
"""


@pytest.fixture
def address() -> Iterator[str]:
    """Of a cluster that takes clients."""
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={PORT}", "--num-cpus=2",
        f"--ray-client-server-port={CLIENTS_PORT}", "--include-dashboard=false", "--object-store-memory=100000000",
        *OTHER_PORTS,
    ]  # fmt: skip
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    head = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        while not _listens(head):
            assert head.poll() is None
        yield f"ray://127.0.0.1:{CLIENTS_PORT}"
    finally:
        lose(head)


def _listens(head: psutil.Popen) -> bool:
    for process in head.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended, as the script that starts the others
            open_here = process.net_connections("tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == CLIENTS_PORT for c in open_here):
                return True
    time.sleep(0.05)
    return False


def test_a_client_from_outside_starts_engines_and_asks_them(address: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.getcwd()}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        if not any(sign in done.stderr for sign in NO_SERVER):
            break
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"said": expected(["Who?", "Why?"]), "left": [0] * 3}
