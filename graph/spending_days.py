"""What the spending book knows of the last days: read, never written."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from graph.spending_place import reading
from nodes.execute_tools.environment.database import StoreError
from nodes.records import Record, ToolError, ToolErrorCode

_BY_DAY: Final = """
SELECT
    day, model, sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), coalesce(sum(cost_usd), 0),
    sum(CASE WHEN cost_usd IS NOT NULL OR input_tokens + output_tokens = 0 THEN 0 WHEN calls > 1 THEN calls ELSE 1 END),
    sum(CASE WHEN settled_at IS NULL THEN 1 ELSE 0 END), sum(seconds), sum(reasoning_tokens), sum(cache_write_tokens)
FROM entries WHERE day > ? AND (calls > 0 OR input_tokens + output_tokens > 0 OR settled_at IS NULL) {of_account}
GROUP BY day, model ORDER BY day DESC, model
"""
"""An entry that was settled without a call (the machine had the reply at hand) is none of its model's."""

FIRST_DAY: Final = date(1970, 1, 1)
"""From which the book counts its days."""


class ModelDay(Record):
    """What the calls of one model have used on one day (UTC), in all workspaces together.

    Of the input, `cached_tokens` were read from the provider's cache and `cache_write_tokens` written into it; of the
    output, `reasoning_tokens` were thought and not said. `seconds` are those of the calls.

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
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


def spent_by_day(
    days: int,
    base: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    account: str | None = None,
) -> list[ModelDay] | ToolError:
    """The last `days` days with calls, today included and the newest first; the models of a day by their names.

    With an `account` its calls alone; "" are the calls of runs that name none.

    Returns:
        The days; none where there is no book yet. IO_ERROR where it cannot be read, with the remedy.
    """
    before = (now().astimezone(UTC).date() - FIRST_DAY) - timedelta(days=days)
    query = _BY_DAY.format(of_account="" if account is None else "AND account = ?")
    values = (before.days,) if account is None else (before.days, account)
    try:
        with reading(base) as database:
            found = [] if database is None else database.execute(query, values).fetchall()
    except StoreError as error:
        return unreadable(error)
    return [_model_day(*row) for row in found]


def unreadable(error: StoreError) -> ToolError:
    """Why the book cannot be read, for whoever asked."""
    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"The spending book cannot be read. {error}")


def _model_day(day: int, model: str, *sums: Any) -> ModelDay:
    calls, inputs, outputs, cached, cost, unpriced, unsettled, seconds, reasoning, written = sums
    return ModelDay(
        day=FIRST_DAY + timedelta(days=day),
        model=model,
        calls=int(calls),
        input_tokens=int(inputs),
        output_tokens=int(outputs),
        cached_tokens=int(cached),
        cost_usd=float(cost),
        unpriced_calls=int(unpriced),
        unsettled=int(unsettled),
        seconds=float(seconds),
        reasoning_tokens=int(reasoning),
        cache_write_tokens=int(written),
    )
