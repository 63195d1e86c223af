"""The database of the engine, as far as a test needs its tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from mendgraph.graph.fleet.serving.engine import connection_variables


@contextmanager
def engine_database(url: str, patch: pytest.MonkeyPatch, tables: str) -> Iterator[psycopg.Connection[Any]]:
    """These tables at `url`, which is told as the engine is told it."""
    for name, value in connection_variables(url).items():
        patch.setenv(name, value)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(tables)
        yield connection
