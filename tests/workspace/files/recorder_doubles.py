"""A journal in memory, and a simulated kill of the process."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, RecordedChange
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.journal.recovery import Recovered, recover
from mendgraph.nodes.workspace.store.database import StoreError
from tests.doubles.system_calls import replaced


class MemoryJournal:
    """A journal in memory for the file layer and the recovery. `told` lists the names of all records in order."""

    def __init__(self) -> None:
        self.changes: dict[str, RecordedChange] = {}
        self.backups: dict[str, bytes] = {}
        self.told: list[str] = []

    def intend(
        self,
        token: str,
        effects: Sequence[FileEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        state: ChangeState = ChangeState.INTENDED,
    ) -> None:
        assert token not in self.changes
        self.changes[token] = RecordedChange(token, 1, 1, tuple(effects), tuple(folders), state)
        self.backups |= backups
        self.told.append(state.value)

    def settle(self, token: str, state: ChangeState) -> None:
        self.changes[token] = self.changes[token]._replace(state=state)
        self.told.append(state.value)

    def beside_jobs(self) -> "MemoryJournal":
        return self

    def open_changes(self) -> list[RecordedChange]:
        return [change for change in self.changes.values() if change.state is ChangeState.INTENDED]

    def backup(self, sha256: str) -> bytes | None:
        return self.backups.get(sha256)

    @property
    def change(self) -> RecordedChange:
        """The only recorded change."""
        [recorded] = self.changes.values()
        return recorded


def recovered(journal: MemoryJournal, root: Path) -> tuple[Recovered, ...]:
    """Recover the open changes of the journal."""
    return recover(cast("Journal", journal), str(root))


class WatchingJournal(MemoryJournal):
    """A journal that observes the files at each record."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self.look, self.seen = look, list[object]()

    def intend(self, *args: Any) -> None:
        super().intend(*args)
        self.seen.append(self.look())

    def settle(self, *args: Any) -> None:
        super().settle(*args)
        self.seen.append(self.look())


class BrokenJournal(MemoryJournal):
    """A journal whose method `method` fails; "" stands for none."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def intend(self, *args: Any) -> None:
        self._may_fail("intend")
        super().intend(*args)

    def settle(self, *args: Any) -> None:
        self._may_fail("settle")
        super().settle(*args)

    def _may_fail(self, method: str) -> None:
        if method == self.method:
            raise StoreError("The disk is full.")


class Killed(BaseException):
    """The process was killed, so that nothing is cleaned up."""


CHANGING = ("open", "write", "fsync", "fchmod", "fchown", "link", "rename", "unlink", "mkdir", "rmdir")


@contextmanager
def killed_at(nth: int, journal: MemoryJournal) -> Iterator[Callable[[], bool]]:
    """Raise `Killed` at the n-th call that changes the disk or the journal, and at each later one.

    If that call is a write, it writes the first half. Yields a function that returns whether the call was reached; the
    exception ends the block.
    """
    calls = 0

    def killing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal calls
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **named)
            calls += 1
            if calls == nth and name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if calls >= nth:
                raise Killed
            return None if name == "fsync" else real(*args, **named)

        return call

    for name in ("intend", "settle"):
        setattr(journal, name, killing(name, getattr(journal, name)))
    with replaced(**{name: killing(name, getattr(os, name)) for name in CHANGING}), suppress(Killed):
        yield lambda: calls >= nth
    for name in ("intend", "settle"):
        delattr(journal, name)
