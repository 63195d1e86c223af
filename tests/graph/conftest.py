"""A spending book in either store, as two processes open it; tests with another `store` have a fixture of their own."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mendgraph.graph.spending.store import SpendingStore
from tests.graph.spending.spending_entries import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(any_store: str, tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:  # noqa: ARG001 - where it is kept
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:
    """Another process's."""
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened
