"""Entries of a spending book, and what a test does with them."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from mendgraph.graph.spending.database import FILE_NAME
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used
from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE

DAY = datetime(2026, 2, 28, 23, 0, tzinfo=UTC)
NO_LIMIT = RunLimits()


def entry(thread: str = "t1", tokens: int = 100, cost: float | None = 0.25) -> Entry:
    """A call that may use this many tokens, a fifth of them for its reply."""
    return Entry(
        thread=thread,
        model="gpt-4o",
        purpose="reply",
        input_tokens=tokens - tokens // 5,
        output_tokens=tokens // 5,
        cost_usd=cost,
    )


def usage(calls: int = 1, tokens: int = 50, cost: float | None = 0.125) -> Used:
    parts = {"cached_tokens": 10, "reasoning_tokens": 3, "cache_write_tokens": 7}
    return Used(calls=calls, input_tokens=tokens, output_tokens=5, cost_usd=cost, seconds=1.5, **parts)


def as_reserved(reserved: Entry) -> Used:
    inputs, outputs = reserved.input_tokens, reserved.output_tokens
    return Used(calls=1, input_tokens=inputs, output_tokens=outputs, cost_usd=reserved.cost_usd)


class Clock:
    """The time, which a test sets."""

    def __init__(self) -> None:
        self.now = DAY

    def __call__(self) -> datetime:
        return self.now


def reserve(store: SpendingStore, call: Entry, limits: RunLimits = NO_LIMIT) -> int:
    number = store.reserve(call, limits)
    assert isinstance(number, int)
    return number


def settle(store: SpendingStore, number: int, what: Used) -> None:
    """Settle, and write it for other processes."""
    store.settle(number, what)
    store.flush()


def rows(folder: Path, query: str) -> list[Any]:
    """What is in the book: in the shared database, or in the file in this folder."""
    if url := os.environ.get(STORE_URL_VARIABLE):
        with psycopg.connect(url, options="-csearch_path=mendgraph") as connection:
            return connection.execute(query.encode()).fetchall()
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        return database.execute(query).fetchall()
