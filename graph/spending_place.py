"""Where the spending book is: in a file of the user's, or in the shared database that `MENDGRAPH_STORE_URL` names."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Protocol

from graph.spending_file import BookFile, reading_file
from graph.spending_shared import PART, SharedBook
from nodes.execute_tools.environment.database import Database, open_shared
from nodes.execute_tools.environment.shared_url import is_shared


class BookPlace(Protocol):
    """A spending book that can be entered into. Everything but `close` and `try_again` raises StoreError."""

    def close(self) -> None:
        """Close it. It is opened again where it is needed again."""

    def try_again(self) -> None:
        """Use it the next time even if it could not be used just now."""

    def using(self, *, patient: bool) -> AbstractContextManager[Database]:
        """The database; `patient` waits long for others, and does not leave alone what could not be used just now."""

    def entering(self, database: Database, *, accounts: Sequence[str] = ()) -> AbstractContextManager[None]:
        """What is entered inside, in one statement, alone among those who reserve under limits of these `accounts`."""

    def newest(self, database: Database) -> int:
        """The largest number that was ever given."""

    def prune(self, database: Database) -> None:
        """Forget what was settled long ago."""


def book_place(base: str | None, now: Callable[[], datetime]) -> BookPlace:
    """Where calls are entered now. A file lies in `base`, or in the data folder; nothing is touched yet."""
    return SharedBook(now) if is_shared() else BookFile(base, now)


@contextmanager
def reading(base: str | None = None) -> Iterator[Database | None]:
    """The book for somebody who only looks; None where nothing has been entered yet.

    Raises:
        StoreError: it cannot be read, or is no spending book of ours.
    """
    shared = open_shared(PART)
    if shared is not None:
        yield shared
        return
    with reading_file(base) as database:
        yield database
