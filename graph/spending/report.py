"""What the spending book knows of the last days, and of accounts in all: read, never written."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeVar

from mendgraph.graph.spending.database import reading
from mendgraph.nodes.call_model.ledger import account_problem
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import Record, ToolError, ToolErrorCode

_BY_DAY: Final = """
SELECT
    day, model, sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), coalesce(sum(cost_usd), 0),
    sum(CASE WHEN cost_usd IS NOT NULL OR input_tokens + output_tokens = 0 THEN 0 WHEN calls > 1 THEN calls ELSE 1 END),
    sum(CASE WHEN settled_at IS NULL THEN 1 ELSE 0 END), sum(seconds), sum(reasoning_tokens), sum(cache_write_tokens)
FROM entries WHERE day > ? AND (calls > 0 OR input_tokens + output_tokens > 0 OR settled_at IS NULL) {of_account}
GROUP BY day, model ORDER BY day DESC, model
"""
"""An entry that was settled without a call (the machine had the reply at hand) is none of its model's."""

Found = TypeVar("Found", bound=Record)

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
        return _unreadable(error)
    return [_record(ModelDay, row) for row in found]


def _unreadable(error: StoreError) -> ToolError:
    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"The spending book cannot be read. {error}")


# --- Accounts

_ACCOUNTS: Final = """
SELECT account, calls, tokens, cost_usd, unpriced, unsettled, first_day, last_day FROM accounts {which}
ORDER BY last_day DESC, account
"""


class AccountSpent(Record):
    """What an account has ever used, in all workspaces and processes together.

    `account` is "" for the runs that name none. `cost_usd` is of the calls whose price was known, `unpriced` is how
    many had none. Calls that are `unsettled` are at work, or their process was killed: they count as reserved. Days
    are UTC's; None where nothing was used.
    """

    account: str
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    unsettled: int = 0
    first_day: date | None = None
    last_day: date | None = None


def account_spent(account: str, base: str | None = None) -> AccountSpent | ToolError:
    """What one `account` has used; nothing where the book does not know it.

    The book is the shared one, or that of the data folder, or of `base` in its place.

    Returns:
        The sums. INVALID_ARGUMENT for what is no name of an account, IO_ERROR where the book cannot be read.
    """
    if (problem := account_problem(account)) is not None:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"There is no such account: {problem}.")
    found = _read("WHERE account = ?", (account,), base)
    if isinstance(found, ToolError):
        return found
    return found[0] if found else AccountSpent(account=account)


def accounts_spent(base: str | None = None) -> list[AccountSpent] | ToolError:
    """All accounts, the one that was used last first; those that have used nothing are left out.

    The book is that of `account_spent`, and so is `base`.
    """
    return _read("WHERE calls > 0 OR tokens > 0 OR unsettled > 0", (), base)


def _read(which: str, values: Sequence[str], base: str | None) -> list[AccountSpent] | ToolError:
    try:
        with reading(base) as database:
            rows = [] if database is None else database.execute(_ACCOUNTS.format(which=which), values).fetchall()
    except StoreError as error:
        return _unreadable(error)
    return [_record(AccountSpent, row) for row in rows]


def _record(kind: type[Found], row: Sequence[Any]) -> Found:
    """The row as a record, whose fields are in the order of the columns."""
    found = dict(zip(kind.model_fields, row, strict=True))
    days = {name: FIRST_DAY + timedelta(days=found[name]) for name in ("day", "first_day", "last_day") if name in found}
    return kind(**(found | days))
