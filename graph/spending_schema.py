"""The tables of a spending book that is a file: made where there are none, and brought to the newest format."""

import sqlite3
from typing import Final

from nodes.execute_tools.environment.database import StoreError, transaction, write_ahead
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE

APPLICATION_ID: Final = int.from_bytes(b"mnsp")
"""Marks a file as a spending book. Source: sqlite.org/pragma.html#pragma_application_id."""

FORMAT: Final = 3
"""Which columns there are and what they mean; raised with every change of either.

With 2 there are accounts, with 3 the tokens of reasoning and those written into a provider's cache.
"""

BEGINNING: Final = "begin"
TURN: Final = "turn"
"""The purposes of entries that are no calls, but mark where a thread begins, and where each further turn does."""

_ENTRIES: Final = (
    """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- no number comes twice, also after the last entry was pruned
    thread TEXT NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    day INTEGER NOT NULL, -- of the reservation: days since 1970 in UTC
    reserved_at TEXT NOT NULL,
    settled_at TEXT,
    calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cost_usd REAL,
    seconds REAL NOT NULL,
    account TEXT NOT NULL DEFAULT ''
)
    """,
    "CREATE INDEX of_thread ON entries (thread, number)",
    "CREATE INDEX of_day ON entries (day)",
)
_SUMS: Final = (
    """
CREATE TABLE days (
    day INTEGER NOT NULL,
    account TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    PRIMARY KEY (day, account)
) WITHOUT ROWID
    """,
    """
CREATE TABLE accounts (
    account TEXT PRIMARY KEY,
    calls INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    unpriced INTEGER NOT NULL, -- of the calls, those that have used tokens at no known price
    unsettled INTEGER NOT NULL, -- of the entries, those that count as their reservation
    first_day INTEGER NOT NULL,
    last_day INTEGER NOT NULL
) WITHOUT ROWID
    """,
)

_TRIGGERS: Final = (
    """
CREATE TRIGGER entry_reserved AFTER INSERT ON entries WHEN new.purpose NOT IN ('begin', 'turn') BEGIN
    INSERT INTO days VALUES (
        new.day, new.account, new.input_tokens + new.output_tokens, coalesce(new.cost_usd, 0)
    )
    ON CONFLICT (day, account) DO UPDATE SET tokens = tokens + excluded.tokens, cost_usd = cost_usd + excluded.cost_usd;
    INSERT INTO accounts VALUES (
        new.account, new.calls, new.input_tokens + new.output_tokens, coalesce(new.cost_usd, 0),
        (
            CASE WHEN new.cost_usd IS NULL AND new.input_tokens + new.output_tokens > 0
            THEN max(new.calls, 1) ELSE 0 END
        ),
        new.settled_at IS NULL, new.day, new.day
    )
    ON CONFLICT (account) DO UPDATE SET
        calls = calls + excluded.calls, tokens = tokens + excluded.tokens, cost_usd = cost_usd + excluded.cost_usd,
        unpriced = unpriced + excluded.unpriced, unsettled = unsettled + excluded.unsettled,
        last_day = max(last_day, excluded.last_day);
END
    """,
    """
CREATE TRIGGER entry_settled AFTER UPDATE ON entries WHEN new.purpose NOT IN ('begin', 'turn') BEGIN
    UPDATE days SET
        tokens = tokens + new.input_tokens + new.output_tokens - old.input_tokens - old.output_tokens,
        cost_usd = cost_usd + coalesce(new.cost_usd, 0) - coalesce(old.cost_usd, 0)
    WHERE day = new.day AND account = new.account;
    UPDATE accounts SET
        calls = calls + new.calls - old.calls,
        tokens = tokens + new.input_tokens + new.output_tokens - old.input_tokens - old.output_tokens,
        cost_usd = cost_usd + coalesce(new.cost_usd, 0) - coalesce(old.cost_usd, 0),
        unpriced = unpriced + (
            CASE WHEN new.cost_usd IS NULL AND new.input_tokens + new.output_tokens > 0
            THEN max(new.calls, 1) ELSE 0 END
        ) - (
            CASE WHEN old.cost_usd IS NULL AND old.input_tokens + old.output_tokens > 0
            THEN max(old.calls, 1) ELSE 0 END
        ),
        unsettled = unsettled + (new.settled_at IS NULL) - (old.settled_at IS NULL)
    WHERE account = new.account;
END
    """,
)
"""They add up `entries` in `days` and `accounts`, which also keep what is forgotten: a limit is checked as fast at its
end as at its start."""


def added_counts(kind: str) -> tuple[str, ...]:
    """What adds the newest columns to the entries, in a file and in the shared database, where integers are a `kind`.

    The first is of the output tokens, the second of the input tokens, as `cached_tokens` are.
    """
    return tuple(
        f"ALTER TABLE entries ADD COLUMN {name} {kind} NOT NULL DEFAULT 0"
        for name in ("reasoning_tokens", "cache_write_tokens")
    )


_COUNTS: Final = added_counts("INTEGER")
_SCHEMA: Final = (*_ENTRIES, *_COUNTS, *_SUMS, *_TRIGGERS)

FROM_FORMAT_1: Final = (
    "DROP TRIGGER entry_reserved",
    "DROP TRIGGER entry_settled",
    "ALTER TABLE entries ADD COLUMN account TEXT NOT NULL DEFAULT ''",
    *_COUNTS,
    "ALTER TABLE days RENAME TO days_of_format_1",
    *_SUMS,
    "INSERT INTO days SELECT day, '', tokens, cost_usd FROM days_of_format_1",
    """
INSERT INTO accounts
SELECT
    '',
    coalesce((SELECT sum(calls) FROM entries WHERE purpose NOT IN ('begin', 'turn')), 0),
    sum(tokens),
    sum(cost_usd),
    coalesce((SELECT sum(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens > 0
        THEN max(calls, 1) ELSE 0 END) FROM entries), 0),
    (SELECT count(*) FROM entries WHERE settled_at IS NULL),
    min(day),
    max(day)
FROM days_of_format_1 HAVING count(*) > 0
    """,
    "DROP TABLE days_of_format_1",
    *_TRIGGERS,
    f"PRAGMA user_version = {FORMAT}",
)
"""All that was entered is the common account's: of calls that are forgotten its tokens and cost are known."""

FROM_FORMAT_2: Final = (*_COUNTS, f"PRAGMA user_version = {FORMAT}")


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a new file, and bring those of an older format to this one, in one transaction each.

    Raises:
        StoreError: the file is no spending book, or one of a later format.
    """
    connection.execute("PRAGMA synchronous = NORMAL")
    if is_empty(connection):
        write_ahead(connection)
        with transaction(connection):
            if is_empty(connection):  # nobody was faster
                _make_tables(connection)
    older = {(APPLICATION_ID, 1): FROM_FORMAT_1, (APPLICATION_ID, 2): FROM_FORMAT_2}
    if _marks(connection) in older:
        with transaction(connection):
            for statement in older.get(_marks(connection), ()):  # none where somebody was faster
                connection.execute(statement)
    mark, found = _marks(connection)
    elsewhere = f"set {DATA_DIR_VARIABLE} to another folder"
    if mark != APPLICATION_ID:
        message = f"The file {quoted(path)} is no spending book of mendgraph: move it away, or {elsewhere}."
        raise StoreError(message)
    if found != FORMAT:
        remedy = "update mendgraph" if found > FORMAT else "move it away"
        message = (
            f"The file {quoted(path)} is of another version of mendgraph (format {found}, this one knows {FORMAT}):"
            f" {remedy}, or {elsewhere}."
        )
        raise StoreError(message)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing is in the file yet."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """What the file is marked with: whose it is, and its format."""
    (mark,), (found,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    return int(mark), int(found)
