"""What the spending book knows of the last days: read, never written."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from os.path import basename
from typing import Any, Final

from graph.spending_store import APPLICATION_ID, FILE_NAME, FORMAT
from nodes.execute_tools.environment.database import StoreError, connect_to, store_errors
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.user_files import spending_file
from nodes.records import Record, ToolError, ToolErrorCode

_BY_DAY: Final = """
SELECT
    day, model, total(calls), total(input_tokens), total(output_tokens), total(cached_tokens), total(cost_usd),
    total(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens > 0 THEN max(calls, 1) ELSE 0 END),
    total(settled_at IS NULL), total(seconds)
FROM entries WHERE day > ? AND (calls > 0 OR input_tokens + output_tokens > 0 OR settled_at IS NULL)
GROUP BY day, model ORDER BY day DESC, model
"""
"""An entry that was settled without a call (the machine had the reply at hand) is none of its model's."""

_FIRST_DAY: Final = date(1970, 1, 1)
"""From which the book counts its days."""


class ModelDay(Record):
    """What the calls of one model have used on one day (UTC), in all workspaces together.

    `model` is "" where none was named. `cost_usd` is of the calls whose price was known, and `unpriced_calls` is how
    many had none. Calls that are `unsettled` are at work, or their process was killed: they count as reserved.
    """

    day: date
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float
    unpriced_calls: int
    unsettled: int
    seconds: float


def spent_by_day(
    days: int, base: str | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> list[ModelDay] | ToolError:
    """The last `days` days with calls, today included and the newest first; the models of a day by their names.

    Returns:
        The days; none where there is no book yet. IO_ERROR where it cannot be read, with the remedy.
    """
    path = spending_file(basename(FILE_NAME), base)
    if isinstance(path, ToolError):
        return path
    before = (now().astimezone(UTC).date() - _FIRST_DAY) - timedelta(days=days)
    try:
        with store_errors(path), closing(connect_to(path)) as database:
            found = database.execute(_BY_DAY, (before.days,)).fetchall() if _is_book(database, path) else []
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"The spending book cannot be read. {error}")
    return [_model_day(*row) for row in found]


def _is_book(database: sqlite3.Connection, path: str) -> bool:
    """Whether there is a book in the file; it may be empty still. What is no book of this version is an error."""
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    found = tuple(database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if tables and found != (APPLICATION_ID, FORMAT):
        raise StoreError(f"The file {quoted(path)} is of no or of another version of mendgraph: move it away.")
    return bool(tables)


def _model_day(day: int, model: str, *sums: Any) -> ModelDay:
    calls, inputs, outputs, cached, cost, unpriced, unsettled, seconds = sums
    return ModelDay(
        day=_FIRST_DAY + timedelta(days=day),
        model=model,
        calls=int(calls),
        input_tokens=int(inputs),
        output_tokens=int(outputs),
        cached_tokens=int(cached),
        cost_usd=cost,
        unpriced_calls=int(unpriced),
        unsettled=int(unsettled),
        seconds=seconds,
    )
