"""A spending book as the first format had it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from graph.spending_file import FILE_NAME
from graph.spending_schema import APPLICATION_ID

TABLES = (
    """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, thread TEXT NOT NULL, model TEXT NOT NULL, purpose TEXT NOT NULL,
    day INTEGER NOT NULL, reserved_at TEXT NOT NULL, settled_at TEXT, calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, cost_usd REAL,
    seconds REAL NOT NULL
)
    """,
    "CREATE INDEX of_thread ON entries (thread, number)",
    "CREATE INDEX of_day ON entries (day)",
    "CREATE TABLE days (day INTEGER PRIMARY KEY, tokens INTEGER NOT NULL, cost_usd REAL NOT NULL)",
    """
CREATE TRIGGER entry_reserved AFTER INSERT ON entries BEGIN
    INSERT INTO days VALUES (new.day, new.input_tokens + new.output_tokens, coalesce(new.cost_usd, 0))
    ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens, cost_usd = cost_usd + excluded.cost_usd;
END
    """,
    """
CREATE TRIGGER entry_settled AFTER UPDATE ON entries BEGIN
    UPDATE days SET
        tokens = tokens + new.input_tokens + new.output_tokens - old.input_tokens - old.output_tokens,
        cost_usd = cost_usd + coalesce(new.cost_usd, 0) - coalesce(old.cost_usd, 0)
    WHERE day = new.day;
END
    """,
    f"PRAGMA application_id = {APPLICATION_ID}",
    "PRAGMA user_version = 1",
)
INSERT = """
INSERT INTO entries (
    thread, model, purpose, day, reserved_at, calls, input_tokens, output_tokens, cached_tokens, cost_usd, seconds
)
VALUES (?, 'm', ?, ?, '2026-02-28T23:00:00.000+00:00', 1, ?, 10, 0, ?, 0)
"""
SETTLE = "UPDATE entries SET settled_at = '2026-02-28T23:01:00.000+00:00', calls = ?, input_tokens = ? WHERE number = ?"
OF_DAY = "SELECT total(tokens), total(cost_usd) FROM days WHERE day = ?"


def old_book(base: Path) -> Path:
    """A book with a forgotten day, a mark, a settled call, one without a price and one that was killed; its path."""
    path = base / FILE_NAME
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for statement in TABLES:
            database.execute(statement)
        database.execute("INSERT INTO days VALUES (20400, 5000, 1.5)")
        for purpose, day, tokens, cost in (
            ("begin", 20_511, 0, 0.0),
            ("reply", 20_511, 90, 0.25),
            ("reply", 20_512, 190, None),
            ("reply", 20_512, 290, 0.5),
        ):
            database.execute(INSERT, ("t1", purpose, day, tokens, cost))
        database.execute("UPDATE entries SET output_tokens = 0 WHERE purpose = 'begin'")
        for number, calls, tokens in ((1, 0, 0), (2, 1, 40), (3, 1, 190)):
            database.execute(SETTLE, (calls, tokens, number))
    return path
