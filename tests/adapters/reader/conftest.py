"""Fixtures of the reader's tests."""

from __future__ import annotations

import contextlib

import pytest

from teola_plugin.adapters.reader.heap import Rounds
from teola_plugin.adapters.reader.run import Run


@pytest.fixture
def no_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rounds of a loop be no batch: then a certain request is made whatever the replies."""
    monkeypatch.setattr(Run, "in_rounds", lambda run, frame: contextlib.nullcontext(Rounds(frozenset(), 0)))
