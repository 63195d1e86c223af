"""The spending book: one database of model calls for all workspaces and processes of a user.

It holds numbers, times, and names of threads, models and accounts. An entry is stored when `reserve` returns; its
actual usage follows with the next entry. The open entries of a killed process count as reserved until their thread
continues. A power cut may lose the last entries.
"""

import re
import sqlite3
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

from mendgraph.graph.spending.database import BEGINNING, KEPT_DAYS, TURN, SpendingDatabase, day_of
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used, account_problem, unknown_price
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS, countable
from mendgraph.nodes.records import Record, StopCause, StopReason, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.store.database import Database, StoreError

_INSERT: Final = """
INSERT INTO entries (
    thread, model, purpose, day, reserved_at, settled_at, calls, input_tokens, output_tokens, cached_tokens, cost_usd,
    seconds, account
)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, CAST(? AS double precision), 0, ? WHERE {condition}
"""
_SETTLE: Final = """
UPDATE entries SET
    settled_at = ?, calls = ?, input_tokens = ?, output_tokens = ?, cached_tokens = ?, cost_usd = ?, seconds = ?,
    reasoning_tokens = ?, cache_write_tokens = ?
WHERE number = ?
"""
_LOST: Final = """
SELECT
    sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens),
    sum(cache_write_tokens), coalesce(sum(cost_usd), 0), sum(seconds),
    sum(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens > 0 THEN 1 ELSE 0 END), max(number)
FROM entries WHERE (thread = ? OR thread LIKE ? ESCAPE '~') AND number > ? AND number <= ?
"""
"""The first columns are the fields of `Used`; the second name matches the thread's children."""
_OPEN: Final = """
SELECT number, thread, model, purpose, input_tokens, output_tokens, cost_usd FROM entries
WHERE settled_at IS NULL AND (thread = ? OR (thread LIKE ? ESCAPE '~' AND number > ?)) AND number <= ?
"""
"""After the number, the columns are the fields of `Entry`."""
_USUAL: Final = """
SELECT coalesce(avg(output_tokens), 0) FROM entries WHERE thread = ? AND calls > 0 AND settled_at IS NOT NULL
"""
_CUT_OFF: Final = """
UPDATE entries SET settled_at = ?, output_tokens = ?, cost_usd = ? WHERE number = ? AND settled_at IS NULL
"""
_NEWEST: Final = "SELECT coalesce(max(number), 0) FROM entries"
_PRUNE: Final = "DELETE FROM entries WHERE day < ? AND settled_at IS NOT NULL"
_BEGUN: Final = "SELECT max(number) FROM entries WHERE thread = ? AND purpose IN (?, ?)"


Condition = tuple[str, list[Any]]
"""The SQL of a condition and its parameters."""


def _insert(
    database: Database, entry: Entry, account: str, now: datetime, condition: Condition = ("1 = 1", []), calls: int = 1
) -> int | None:
    """Insert a reservation in one statement and return its number, None if the condition is false.

    Without `calls` it is a mark, which is settled.
    """
    at = _time(now)
    settled_at = None
    if not calls:
        settled_at = at

    fits, amount = condition
    tokens = countable(entry.input_tokens), countable(entry.output_tokens)
    about = (entry.thread, entry.model, entry.purpose, day_of(now), at, settled_at)
    values = (*about, calls, *tokens, entry.cost_usd, account, *amount)
    statement = _INSERT.format(condition=fits)

    if isinstance(database, sqlite3.Connection):  # RETURNING would lock the file until the row is read
        result = database.execute(statement, values)
        if result.rowcount:
            return result.lastrowid

        return None

    row = database.execute(f"{statement} RETURNING number", values).fetchone()
    if row is None:
        return None

    return int(row[0])


def _time(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds")


# --- Limits

_SUM: Final = "SELECT coalesce(sum({column}), 0) FROM {table} WHERE {which}"

_USD_UNSEEN: Final = 5e-10
"""Half a billionth of a USD: tolerance for the rounding of binary sums."""


class _Cap(NamedTuple):
    """A limit of an account or a day, the amount of the call, and the SQL of the current sum."""

    span: str
    sum: str
    who: tuple[int | str, ...]
    amount: float
    most: float
    in_usd: bool

    @property
    def highest_sum(self) -> float:
        """The largest sum within the limit."""
        if self.in_usd:
            return self.most + _USD_UNSEEN

        return self.most

    def refusal(self, total: float) -> str:
        """Return why the call does not fit with the current `total`, or ""."""
        if total + self.amount <= self.highest_sum:
            return ""

        if self.in_usd:
            sums = (
                f"{total:.6f} of {self.most:g} USD are used or reserved, and the next call may cost {self.amount:.6f}"
            )
            return f"Limit 'max_cost_usd_per_{self.span}' reached: {sums}"

        sums = f"{total:,} of {self.most:,} tokens are used or reserved, and the next call may use {self.amount:,}"
        return f"Limit 'max_tokens_per_{self.span}' reached: {sums}"


def _caps(entry: Entry, limits: RunLimits, now: datetime) -> Iterator[_Cap]:
    """Yield the limits of a call, those of the account first, since a day ends."""
    of_account: tuple[int | str, ...] = (limits.account,)
    of_day: tuple[int | str, ...] = (day_of(now),)
    day_condition = "day = ?"
    if limits.account and limits.account_days:
        of_day = (day_of(now), limits.account)
        day_condition = "day = ? AND account = ?"

    for span, table, where, who in (
        ("account", "accounts", "account = ?", of_account),
        ("day", "days", day_condition, of_day),
    ):
        tokens = countable(entry.input_tokens + entry.output_tokens)
        for column, amount in (("tokens", tokens), ("cost_usd", entry.cost_usd or 0.0)):
            most = getattr(limits, f"max_{column}_per_{span}")
            if most is not None:
                added = _SUM.format(column=column, table=table, which=where)
                yield _Cap(span, added, who, amount, most, in_usd=column == "cost_usd")


def _condition(caps: Sequence[_Cap]) -> Condition:
    """Return the condition of the insert, so that no other process reserves between check and insert."""
    conditions = ["1 = 1"]
    values: list[Any] = []
    for cap in caps:
        conditions.append(f"({cap.sum}) + ? <= ?")
        values += [*cap.who, cap.amount, cap.highest_sum]

    return " AND ".join(conditions), values


def _refusal(database: Database, caps: Sequence[_Cap], limits: RunLimits, now: datetime) -> StopCause | None:
    """Return the first limit that the call exceeds."""
    for cap in caps:
        (total,) = database.execute(cap.sum, cap.who).fetchone()
        if cap.in_usd:
            total = float(total)
        else:
            total = int(total)

        message = cap.refusal(total)
        if message:
            return _stop(message, cap, limits, now)

    return None


def _stop(refusal: str, cap: _Cap, limits: RunLimits, now: datetime) -> StopCause:
    if limits.account:
        whose = f"all runs of the account {quoted(limits.account)}"
    else:
        whose = "all runs that name no account"

    if cap.span == "account":
        message = f"{refusal}, in {whose} together. Raise the limit, or name another account."
        return StopCause(reason=StopReason.ACCOUNT_LIMIT, message=message)

    if limits.account and limits.account_days:
        where = whose
    else:
        where = "all workspaces"

    option = "--max-tokens-per-day N"
    if cap.in_usd:
        option = "--max-cost-usd-per-day USD"

    end = (now + timedelta(days=1)).strftime("%Y-%m-%d 00:00 UTC")
    message = f"{refusal}, in {where} together. The day ends at {end}; {option} raises the limit."
    return StopCause(reason=StopReason.DAY_LIMIT, message=message)


# --- The store

_PRUNED_EVERY: Final = 1_000
"""Entries after which old ones are deleted."""


class SpendingStore:
    """A `SpendingBook` in `spending.sqlite` or in PostgreSQL, opened when it is first needed, for any thread.

    If the database fails, a call under a limit of a day or an account is refused; another call is made without an
    entry, and `trouble` returns the reason.
    """

    def __init__(
        self,
        base: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        side_by_side: bool = False,
    ) -> None:
        """`base` is the folder of the file, by default the data folder; `now` returns the time with its zone.

        `side_by_side`: a thread makes several calls at once, all of which are settled here. Open nothing yet.
        """
        self._book = SpendingDatabase(base)
        self._now = now
        self._side_by_side = side_by_side
        self._trouble: StopCause | None = None
        self._told = False
        self._settled: list[tuple[Any, ...]] = []
        """The parameters of `_SETTLE` for entries whose usage is not written yet."""
        self._reserved: dict[int, Entry] = {}
        """The charge for each call in progress if it is interrupted."""

    def close(self) -> None:
        """Write and close the file, which is opened again when needed."""
        self.flush()
        self._book.close()

    def flush(self) -> None:
        """Write the usage that was settled since the last entry."""
        if self._settled:
            with self._noted(), self._database():
                pass

    def newest(self) -> int:
        """Return the largest number; the entries of a new thread have larger ones."""
        with self._noted(), self._database() as database:
            return int(database.execute(_NEWEST).fetchone()[0])

        return 0

    def begin(self, thread: str, *, first: bool) -> None:
        """Mark that a turn begins; earlier entries than the `first` one belong to another thread of this name."""
        purpose = TURN
        if first:
            purpose = BEGINNING

        mark = Entry(thread=thread, model="", purpose=purpose, input_tokens=0, output_tokens=0, cost_usd=0.0)
        with self._noted(), self._database() as database, self._book.writing(database):
            _insert(database, mark, "", self._utc(), calls=0)

    def begin_number(self, thread: str, *, turn: bool = False) -> int | None:
        """Return the number at which the thread, or its last `turn`, began; None if that is not marked."""
        purpose = BEGINNING
        if turn:
            purpose = TURN

        with self._noted(), self._database() as database:
            row = database.execute(_BEGUN, (thread, BEGINNING, purpose)).fetchone()
            return cast("int | None", row[0])

        return None

    def lost(self, thread: str, after: int, until: int | None = None) -> tuple[Used, int]:
        """Return the sum of the thread's and its children's entries after a number and up to `until`, and the largest.

        No call of the thread is in progress, except calls `side_by_side`: an unsettled entry is of an interrupted call
        and is settled as that.
        """
        in_progress: frozenset[int] = frozenset()
        if self._side_by_side:
            in_progress = frozenset(self._reserved)

        run, _, workspace = re.sub("[~%_]", r"~\g<0>", thread).rpartition(" ")
        which = (thread, f"{run}|execute~_tools:% {workspace}", after, until or MOST_TOKENS)

        with self._noted(), self._database() as database:
            self._settle_interrupted(database, which, in_progress)
            *sums, unpriced, last = database.execute(_LOST, which).fetchone()
            if last is not None:
                usage = Used(**dict(zip(Used.model_fields, sums, strict=True)))
                if unpriced:
                    usage = usage.model_copy(update={"cost_usd": None})

                return usage, int(last)

        return Used(), after

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Insert the entry of a call; return its number, 0 if the database fails, or why the call may not be sent."""
        now = self._utc()
        caps = [*_caps(entry, limits, now)]

        try:
            with self._database(patient=bool(caps)) as database:
                number = self._entered(database, entry, limits, caps, now)
                if isinstance(number, StopCause):
                    return number

                self._reserved[number] = entry.if_cut_off()
        except StoreError as error:
            cause = self._failed(error)
            if not caps:
                return 0

            consequence = "Limits of a day or an account need it."
            return cause.model_copy(update={"message": f"{cause.message} {consequence}"})

        if number % _PRUNED_EVERY == 0:
            with self._noted(), self._database() as database, self._book.writing(database):
                database.execute(_PRUNE, (day_of(now) - KEPT_DAYS,))

        return number

    def settle(self, number: int, used: Used) -> None:
        """Replace the reservation by the usage, which is written with the next entry, at `flush` or at `close`.

        It is written at once if it exceeds what would be charged if the process were killed meanwhile.
        """
        if number:
            counts = (used.input_tokens, used.output_tokens, used.cached_tokens)
            amounts = (
                used.cost_usd,
                used.seconds,
                countable(used.reasoning_tokens),
                countable(used.cache_write_tokens),
            )
            self._settled.append((_time(self._utc()), used.calls, *map(countable, counts), *amounts, number))

            if (entry := self._reserved.pop(number, None)) is not None and entry.is_passed_by(used):
                self.flush()

    def trouble(self) -> StopCause | None:
        """Return why calls are not entered, once; None otherwise."""
        if self._told or self._trouble is None:
            return None

        self._told = True
        return self._trouble

    @contextmanager
    def _database(self, *, patient: bool = False) -> Iterator[Database]:
        with self._book.using(patient=patient) as database:
            self._write_settled(database)
            yield database

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep an error of the database for `trouble`."""
        try:
            yield
        except StoreError as error:
            self._failed(error)

    def _entered(
        self, database: Database, entry: Entry, limits: RunLimits, caps: Sequence[_Cap], now: datetime
    ) -> int | StopCause:
        """Insert an entry and return its number, or the limit that it exceeds."""
        if entry.cost_usd is None:  # no limit on cost can be kept
            of_many = limits.model_copy(update={"max_cost_usd": None})
            if (cause := unknown_price(of_many, None, entry.model)) is not None:
                return cause

        while True:
            with self._book.writing(database, limited=bool(caps)):
                number = _insert(database, entry, limits.account, now, _condition(caps))

            if number is not None:
                return number
            if (cause := _refusal(database, caps, limits, now)) is not None:
                return cause  # otherwise another call was settled for less meanwhile

    def _settle_interrupted(self, database: Database, which: Sequence[Any], in_progress: Container[int]) -> None:
        """Settle interrupted calls as `Entry.if_cut_off`."""
        for number, *values in database.execute(_OPEN, which).fetchall():
            if number in in_progress:
                continue

            entry = Entry(**dict(zip(Entry.model_fields, values, strict=True)))
            (usual,) = database.execute(_USUAL, (entry.thread,)).fetchone()
            charged = entry.if_cut_off(int(usual))

            with self._book.writing(database):
                database.execute(_CUT_OFF, (_time(self._utc()), charged.output_tokens, charged.cost_usd, number))

    def _write_settled(self, database: Database) -> None:
        while True:
            try:
                settled = self._settled.pop(0)  # so that no other thread writes it
            except IndexError:
                return

            try:
                with self._book.writing(database):
                    database.execute(_SETTLE, settled)
            except BaseException:
                self._settled.insert(0, settled)
                raise

    def _utc(self) -> datetime:
        return self._now().astimezone(UTC)

    def _failed(self, error: StoreError) -> StopCause:
        message = f"The spending database cannot be used. {error}"
        self._trouble = StopCause(reason=StopReason.STORE_FAILED, message=message)
        return self._trouble


# --- Reports


_BY_DAY: Final = """
SELECT
    day, model, sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), coalesce(sum(cost_usd), 0),
    sum(CASE WHEN cost_usd IS NOT NULL OR input_tokens + output_tokens = 0 THEN 0 WHEN calls > 1 THEN calls ELSE 1 END),
    sum(CASE WHEN settled_at IS NULL THEN 1 ELSE 0 END), sum(seconds), sum(reasoning_tokens), sum(cache_write_tokens)
FROM entries WHERE day > ? AND (calls > 0 OR input_tokens + output_tokens > 0 OR settled_at IS NULL)
GROUP BY day, model ORDER BY day DESC, model
"""
"""An entry that was settled without a call is none of its model."""

Row = TypeVar("Row", bound=Record)

FIRST_DAY: Final = date(1970, 1, 1)
"""The first day of the book's day numbers."""


class ModelDay(Record):
    """The usage of one model on one day (UTC) in all workspaces.

    `cached_tokens` were read from the provider's cache and `cache_write_tokens` written to it. `model` is "" if none
    was named. `cost_usd` excludes the `unpriced_calls`. `unsettled` calls are in progress, or their process was killed:
    they count as reserved until their run continues.
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
) -> list[ModelDay] | ToolError:
    """Return the usage of the last `days` days, the newest first; IO_ERROR if the book cannot be read."""
    before = (now().astimezone(UTC).date() - FIRST_DAY) - timedelta(days=days)
    return _read(ModelDay, _BY_DAY, (before.days,), base)


# --- Accounts

_ACCOUNTS: Final = """
SELECT account, calls, tokens, cost_usd, unpriced, unsettled, first_day, last_day FROM accounts {which}
ORDER BY last_day DESC, account
"""


class AccountSpent(Record):
    """The usage of an account in all workspaces.

    `account` is "" for the runs that name none. `cost_usd` excludes the `unpriced` calls. `unsettled` calls are in
    progress, or their process was killed: they count as reserved until their run continues. Days are UTC, None without
    calls.
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
    """Return the usage of one account; `base` replaces the data folder.

    INVALID_ARGUMENT: this is no name of an account. IO_ERROR: the book cannot be read.
    """
    if (problem := account_problem(account)) is not None:
        return invalid(f"There is no such account: {problem}.")

    rows = _read(AccountSpent, _ACCOUNTS.format(which="WHERE account = ?"), (account,), base)
    if isinstance(rows, ToolError):
        return rows
    if not rows:
        return AccountSpent(account=account)

    return rows[0]


def accounts_spent(base: str | None = None) -> list[AccountSpent] | ToolError:
    """Return the accounts with any usage, the last used first; `base` and errors as in `account_spent`."""
    which = "WHERE calls > 0 OR tokens > 0 OR unsettled > 0"
    return _read(AccountSpent, _ACCOUNTS.format(which=which), (), base)


def _read(kind: type[Row], query: str, values: Sequence[Any], base: str | None) -> list[Row] | ToolError:
    """Return the rows as records, whose fields are in the order of the columns."""
    try:
        with closing(SpendingDatabase(base)) as book, book.using() as database:
            rows = database.execute(query, values).fetchall()
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"The spending database cannot be read. {error}")

    records = []
    for row in rows:
        fields = dict(zip(kind.model_fields, row, strict=True))
        for name in ("day", "first_day", "last_day"):
            if name in fields:
                fields[name] = FIRST_DAY + timedelta(days=fields[name])

        records.append(kind(**fields))

    return records
