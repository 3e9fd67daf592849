"""Fixtures of the adapters' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosted_service import Service, served


@pytest.fixture
def service() -> Iterator[Service]:
    """A hosted service that runs."""
    with served() as service:
        yield service
