"""The spending book as a database: one for all workspaces and processes of a user.

It holds numbers, times, and the names of threads, models and accounts; no text of anybody. An entry is in it when
`reserve` returns, whatever then becomes of the process; what was used follows with the next entry. A power cut may take
the last.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from mendgraph.graph.spending import entries
from mendgraph.graph.spending.database import Book, open_book
from mendgraph.graph.spending.entries import fits, is_limited, locked_accounts, refusal, without_price
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used
from mendgraph.nodes.execute_tools.store.database import Database, StoreError
from mendgraph.nodes.records import StopCause, StopReason

_PRUNED_EVERY: Final = 1_000


class SpendingStore:
    """A `SpendingBook` in `spending.sqlite` or in PostgreSQL, opened when it is first needed, for any thread.

    It never raises for what the disk or the server refuses: with a limit of a day or an account the call is then
    refused, and without one it is made and not entered, which `trouble` tells. A book that another process holds, or
    whose server does not answer, is then left alone for a while, so that not every call waits for it.
    """

    def __init__(self, base: str | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Touches nothing yet. The file lies in `base`, or in the data folder; `now` is the time, with its zone."""
        self._base, self._now = base, now
        self._trouble: StopCause | None = None
        self._told = False
        self._settled: list[tuple[int, Used, str]] = []
        self._reserved: dict[int, Entry] = {}

    def close(self) -> None:
        """Close the file. It is opened again where it is needed again."""
        if self._settled:
            self._book.try_again()  # the last chance to write it down
            self.flush()
        self._book.close()

    def flush(self) -> None:
        """Write down what was settled since the last entry was made."""
        if self._settled:
            with self._noted(), self._database():
                pass

    def newest(self) -> int:
        """The largest number so far: none of the entries up to it is that of a thread that begins now."""
        with self._noted(), self._database() as database:
            return self._book.newest(database)
        return 0

    def begin(self, thread: str, *, first: bool) -> None:
        """Mark that a turn of the thread begins; with its `first` one, what is before it is another thread's."""
        with self._noted(), self._database() as database, self._book.entering(database):
            entries.mark(database, thread, first=first, now=self._utc())

    def begun(self, thread: str, *, turn: bool = False) -> int | None:
        """The number with which the thread, or its last `turn`, began; None where nobody has marked it."""
        with self._noted(), self._database() as database:
            return entries.begun(database, thread, turn=turn)
        return None

    def lost(self, thread: str, after: int, until: int | None = None) -> tuple[Used, int]:
        """All entries of the thread after a number, added up, and the largest number; none later than `until`."""
        with self._noted(), self._database() as database:
            return entries.lost(database, thread, after, until)
        return Used(), after

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Enter a call before it is sent; its number, 0 where it cannot be entered, or why it may not be sent."""
        limited = is_limited(limits)
        try:
            with self._database(patient=limited) as database:
                number = self._entered(database, entry, limits)
                if isinstance(number, StopCause):
                    return number
                self._reserved[number] = entry
        except StoreError as error:
            cause = self._failed(error)
            if not limited:
                return 0
            held = "No limit of a day or an account can be held without it."
            return cause.model_copy(update={"message": f"{cause.message} {held}"})
        if number % _PRUNED_EVERY == 0:
            with self._noted(), self._database() as database, self._book.entering(database):
                self._book.prune(database)
        return number

    def settle(self, number: int, used: Used) -> None:
        """Replace the reservation by what was used: with the next entry, at `flush` or at `close`.

        So nobody waits for it, and a process that is killed in between leaves the reservation, which is more; where it
        is less, as the endpoint's count was more than could be expected, it is written at once.
        """
        if number:
            self._settled.append((number, used, self._utc().isoformat(timespec="milliseconds")))
            if (entry := self._reserved.pop(number, None)) is not None and entry.is_passed_by(used):
                self.flush()

    def trouble(self) -> StopCause | None:
        """Why calls are not entered, told once; None where they are, or where it was told before."""
        if self._told or self._trouble is None:
            return None
        self._told = True
        return self._trouble

    @cached_property
    def _book(self) -> Book:
        return open_book(self._base, self._now)

    @contextmanager
    def _database(self, *, patient: bool = False) -> Iterator[Database]:
        with self._book.using(patient=patient) as database:
            self._write_settled(database)
            yield database

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """For what goes on without the book: that it cannot be used is told by `trouble`, and nothing is raised."""
        try:
            yield
        except StoreError as error:
            self._failed(error)

    def _entered(self, database: Database, entry: Entry, limits: RunLimits) -> int | StopCause:
        """The number of an entry that fits, or why it does not."""
        now = self._utc()
        while True:
            if entry.cost_usd is None and (cause := without_price(entry, limits)) is not None:
                return cause
            with self._book.entering(database, accounts=locked_accounts(limits)):
                number = entries.insert(database, entry, limits.account, now, fits(entry, limits, now))
            if number is not None:
                return number
            if (cause := refusal(database, entry, limits, now)) is not None:
                return cause  # else somebody has settled for less since

    def _write_settled(self, database: Database) -> None:
        while True:
            try:
                settled = self._settled.pop(0)  # no other thread's then
            except IndexError:
                return
            try:
                with self._book.entering(database):
                    entries.settle(database, *settled)
            except BaseException:
                self._settled.insert(0, settled)
                raise

    def _utc(self) -> datetime:
        return self._now().astimezone(UTC)

    def _failed(self, error: StoreError) -> StopCause:
        message = f"The spending book, into which model calls are entered, cannot be used. {error}"
        self._trouble = StopCause(reason=StopReason.STORE_FAILED, message=message)
        return self._trouble
