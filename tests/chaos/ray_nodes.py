"""Nodes that come and go, of the cluster that this process is connected to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

OTHER_PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
"""Than those of the node that is there already, on the same machine."""


@contextlib.contextmanager
def far_node(cluster: Any) -> Iterator[psutil.Process]:
    """One more, which has the resource `far`."""
    ray = str(Path(sys.executable).with_name("ray"))
    node = psutil.Popen(
        [ray, "start", "--block", "--address", os.environ["RAY_ADDRESS"], "--num-cpus=2", '--resources={"far": 4}',
         "--object-store-memory=100000000", *OTHER_PORTS],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while len(alive(cluster)) < 2:
            assert node.poll() is None
            time.sleep(0.05)
        yield node
    finally:
        lose(node)


def alive(cluster: Any) -> list[str]:
    """The nodes that the cluster has not lost, by their ids."""
    return [node["NodeID"] for node in cluster.nodes() if node["Alive"]]


def lose(node: psutil.Process) -> None:
    """All of its processes end at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        processes = [node, *node.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not psutil.wait_procs(processes, timeout=10)[1]
