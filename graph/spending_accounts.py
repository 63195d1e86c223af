"""What accounts have used in all: read from the spending book, never written."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, Final

from graph.spending_days import FIRST_DAY, unreadable
from graph.spending_place import reading
from nodes.call_model.limits import account_problem
from nodes.execute_tools.environment.database import StoreError
from nodes.records import Record, ToolError, ToolErrorCode

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
        return unreadable(error)
    return [_account(*row) for row in rows]


def _account(account: str, *sums: Any) -> AccountSpent:
    calls, tokens, cost, unpriced, unsettled, first, last = sums
    return AccountSpent(
        account=account,
        calls=int(calls),
        tokens=int(tokens),
        cost_usd=float(cost),
        unpriced=int(unpriced),
        unsettled=int(unsettled),
        first_day=FIRST_DAY + timedelta(days=first),
        last_day=FIRST_DAY + timedelta(days=last),
    )
