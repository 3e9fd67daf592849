"""Several nodes: engines are placed by their resources, and a node that is lost takes nobody down with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("two_nodes.py")


def test_two_nodes() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "RAY_AUTH"))}
    root = str(SCRIPT.parents[2])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=280, check=False,
        env={**own, "PYTHONPATH": root, "RAY_AUTH_MODE": "disabled"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert "do not fit" in said.pop("refused")
    assert said == {"instances": 2, "nodes": 2, "far": 1, "equal": True, "late": "DeadlineExceeded", "near": 16}
