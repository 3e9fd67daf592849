"""Tests that take their time: collected only with TEOLA_CHAOS=small (CI) or full (`make chaos`) in the environment."""

from __future__ import annotations

import os

SIZES = ("small", "full")
size = os.environ.get("TEOLA_CHAOS", "")
if size not in ("", *SIZES):
    raise ValueError(f"TEOLA_CHAOS={size!r}: it is one of {', '.join(SIZES)}, or not set")

collect_ignore_glob = [] if size else ["test_*.py"]
