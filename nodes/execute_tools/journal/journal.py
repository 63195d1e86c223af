"""The write-ahead record of what calls do to the world, in the workspace's database.

Before a call with an effect begins it is written down, and before each change of files what the files held and will
hold; both are on the disk when the method returns. So after a kill it is known what may have been done, and the files'
hashes say whether it was. A call is named by a hash of its tool and arguments, whoever makes it and when.
"""

import hashlib
import json
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.execute_tools.store.database import (
    FILE_NAME,
    Database,
    UnreadableValueError,
    once_more,
    open_database,
    store_errors,
    transaction,
)
from mendgraph.nodes.records import Effect, JsonMap


def idempotency_key(thread: str, step: int, index: int, tool: str, arguments: JsonMap) -> str:
    """The key of the call at place `index` of a step: the same whenever this step is run again. 64 hex digits.

    Raises TypeError: something in the arguments is no JSON value.
    """
    return _digest([thread, step, index, tool, arguments])


def call_fingerprint(tool: str, arguments: JsonMap) -> str:
    """What a call does, whoever makes it and when: the same for the same arguments in any order. 64 hex digits.

    Raises TypeError: something in the arguments is no JSON value.
    """
    return _digest([tool, arguments])


def _digest(value: list[object]) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates and integers beyond 64 bits have a form of their own
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    return hashlib.sha256(data).hexdigest()


_CHILD = re.compile(r"(.+)\|execute_tools:[^|]+\|(\d+)\|\d+", re.DOTALL)
"""The id of a child: that of its run, the task of the step that began it, the step's number and the call's place."""


def parent_of(run_id: str) -> tuple[str, int]:
    """The run whose child this one is, and the step that began it; the run itself and 0 where it is none."""
    match = _CHILD.fullmatch(run_id)
    return (match[1], int(match[2])) if match else (run_id, 0)


UNDO_EFFECT = "undo"
"""The effect of calls that a person made to restore files: they are no part of what the run did."""

_CHANGE_COLUMNS = "changes.id, token, call, step, state, made FROM changes JOIN calls ON calls.id = changes.call"


class CallKey(NamedTuple):
    """Which call of which run, for good.

    `execution` is the same whenever a step that was cut off is run again, and another one after time travel. `step`
    counts within the thread, `place` within the reply. `effect` is the tool's.
    """

    thread: str
    execution: str
    step: int
    place: int
    tool: str
    effect: str
    arguments_sha256: str


class RecordedCall(NamedTuple):
    """A call as the journal knows it: `outcome` is what came of it, as JSON, None where it was cut off before."""

    call: int
    key: CallKey
    outcome: str | None
    changes: tuple[RecordedChange, ...]


class Journal:
    """The journal of one workspace, for any thread. Every method opens the database and closes it, except in `held`.

    Every method raises StoreError where the database cannot be read or written.
    """

    def __init__(self, folder: str) -> None:
        """`folder` is the workspace's folder of records. Nothing is opened yet."""
        self._folder = folder
        self._held = _Held()

    def __reduce__(self) -> tuple[type["Journal"], tuple[str]]:
        return Journal, (self._folder,)

    @contextmanager
    def held(self) -> Iterator["Journal"]:
        """The same journal, which holds the database open meanwhile: for many records one after the other."""
        with closing(open_database(self._folder)) as database:
            self._held = _Held(database, os.getpid())

            try:
                yield self
            finally:
                with self._held.lock:
                    self._held = _Held()

    # --- Calls

    def begin(self, key: CallKey) -> int:
        """Write down that a call begins, and give it a number. What was recorded of the same call before is dropped."""
        return self._record(key, None)

    @once_more
    def end(self, call: int, outcome: str) -> None:
        """Write down what came of a call, as JSON."""
        with self._opened() as database:
            database.execute("UPDATE calls SET outcome = ? WHERE id = ?", (outcome, call))

    def note(self, key: CallKey, outcome: str) -> None:
        """Write down a call without an effect once it has ended, so that it need not be made again."""
        self._record(key, outcome)

    @once_more
    def find(self, thread: str, execution: str, place: int) -> RecordedCall | None:
        """What is known of a call, None where it never began."""
        with self._opened() as database:
            row = database.execute(
                "SELECT id, step, tool, effect, arguments_sha256, outcome FROM calls"
                " WHERE thread = ? AND execution = ? AND place = ?",
                (thread, execution, place),
            ).fetchone()

            if row is None:
                return None

            call, step, tool, effect, arguments, outcome = row
            key = CallKey(thread, execution, step, place, tool, effect, arguments)
            return RecordedCall(call, key, outcome, tuple(_changes(database, "WHERE call = ? ORDER BY 1", call)))

    def calls_of_step(self, thread: str, step: int) -> dict[int, RecordedCall]:
        """The calls of the step that were recorded last, by their places: those of its latest execution."""
        with self._opened() as database:
            last = database.execute(
                "SELECT execution FROM calls WHERE thread = ? AND step = ? AND effect <> ? ORDER BY id DESC LIMIT 1",
                (thread, step, UNDO_EFFECT),
            ).fetchone()
            places = database.execute(
                "SELECT place FROM calls WHERE thread = ? AND execution = ? AND place >= 0",
                (thread, last[0] if last else ""),
            ).fetchall()

        runs = {place: self.find(thread, last[0], place) for (place,) in places}
        return {place: call for place, call in runs.items() if call is not None}

    @once_more
    def commands(self, thread: str | None = None, from_step: int = 0, *, cut_off: bool = False) -> list[str]:
        """The tools of calls that ran programs; with `cut_off` only those that never ended: who knows what they did."""
        ended = "AND outcome IS NULL AND place >= 0" if cut_off else ""
        with self._opened() as database:
            rows = database.execute(
                f"SELECT thread, tool FROM calls WHERE effect = ? {ended} AND step >= ? ORDER BY id",  # noqa: S608
                (Effect.EXECUTE.value, from_step),
            )

            return [tool for owner, tool in rows if thread in {None, owner}]

    def forget_outcomes(self, thread: str, before_step: int) -> None:
        """Drop what calls of earlier steps came to: those steps are in the checkpoints now."""
        with self._opened() as database:
            database.execute(
                "UPDATE calls SET outcome = '' WHERE thread = ? AND step < ? AND outcome > ''", (thread, before_step)
            )

    # --- Changes of files

    @once_more
    def intend(
        self,
        call: int,
        token: str,
        effects: Sequence[FileEffect],
        backups: Mapping[str, bytes],
        made: Sequence[str],
        state: ChangeState = ChangeState.INTENDED,
    ) -> None:
        """Write down a change before it begins, or as what it is; for `backups` see `ChangeRecorder`."""
        with self._opened() as database:
            added = database.execute(
                "INSERT INTO changes (token, call, state, made) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING RETURNING id",
                (token, call, state.value, json.dumps(list(made), ensure_ascii=True)),
            ).fetchall()

            if not added:  # before the connection was lost
                return

            ((number,),) = added
            database.executemany(
                "INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (number, place, os.fsencode(effect.path), *effect.before, *effect.after)
                    for place, effect in enumerate(effects)
                ],
            )
            database.executemany(
                "INSERT INTO backups VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(sha256, zlib.compress(data, 1)) for sha256, data in backups.items() if len(data) <= LARGEST_BACKUP],
            )

    @once_more
    def settle(self, token: str, state: ChangeState) -> None:
        """Write down how a change ended."""
        with self._opened() as database:
            database.execute("UPDATE changes SET state = ? WHERE token = ?", (state, token))

    def revert(self, tokens: Sequence[str]) -> None:
        """Write down that a person has taken these changes back."""
        with self._opened() as database:
            states = [(ChangeState.REVERTED, token) for token in tokens]
            database.executemany("UPDATE changes SET state = ? WHERE token = ?", states)

    @once_more
    def open_changes(self) -> list[RecordedChange]:
        """The changes of which nobody knows how they ended, oldest first."""
        with self._opened() as database:
            return list(_changes(database, "WHERE state = ? ORDER BY 1", ChangeState.INTENDED))

    def changes_of(self, thread: str, from_step: int = 0) -> list[RecordedChange]:
        """What a run and its children have changed from this step on and nobody has taken back, newest first."""
        with self._opened() as database:
            children = [each for each in _threads(database) if _begun_in(each, thread) >= from_step]
            whose = " OR ".join(["thread = ? AND step >= ?", *["thread = ?"] * len(children)])
            where = f"WHERE ({whose}) AND effect <> ? AND state = ? ORDER BY 1 DESC"

            return list(_changes(database, where, thread, from_step, *children, UNDO_EFFECT, ChangeState.DONE))

    def taken_back(self, thread: str) -> list[RecordedChange]:
        """The changes by which files of a run were restored last, newest first, those of a try that was cut off too."""
        changes_recorded: list[RecordedChange] = []
        with self._opened() as database:
            which = "SELECT id, step, outcome FROM calls WHERE thread = ? AND effect = ? ORDER BY id DESC"
            for call, step, outcome in database.execute(which, (thread, UNDO_EFFECT)).fetchall():
                where = "WHERE call = ? AND state = ? ORDER BY 1 DESC"
                done = list(_changes(database, where, call, ChangeState.DONE))
                if changes_recorded and done and (outcome is not None or step != changes_recorded[0].step):
                    break

                changes_recorded += done

        return changes_recorded

    def threads(self) -> list[str]:
        """The runs that the journal knows, also those that nobody else has written down."""
        with self._opened() as database:
            return [*dict.fromkeys(parent_of(thread)[0] for thread in _threads(database))]

    def children(self, thread: str) -> list[str]:
        """The children of a run that the journal knows."""
        with self._opened() as database:
            return [each for each in _threads(database) if _begun_in(each, thread) >= 0]

    def backup(self, sha256: str) -> bytes | None:
        """The bytes with this hash, None where they were not kept or are damaged."""
        with self._opened() as database:
            row = database.execute("SELECT data FROM backups WHERE sha256 = ?", (sha256,)).fetchone()

        with suppress(zlib.error, TypeError, ValueError):
            if row:
                content = zlib.decompressobj().decompress(row[0], LARGEST_BACKUP + 1)
            else:
                content = b""

            if hashlib.sha256(content).hexdigest() == sha256:
                return content

        return None

    def recorder(self, call: int) -> "CallRecorder":
        """Where the file layer writes down what it does on behalf of this call."""
        return CallRecorder(self, call)

    @once_more
    def _record(self, key: CallKey, outcome: str | None) -> int:
        columns = (*key, datetime.now(UTC).isoformat(timespec="milliseconds"), outcome)
        with self._opened() as database:
            # The changes of an earlier try stay with it, under a place that no call has: they may have to be undone.
            database.execute(
                "UPDATE calls SET place = -id WHERE thread = ? AND execution = ? AND place = ?",
                (key.thread, key.execution, key.place),
            )
            ((number,),) = database.execute(
                "INSERT INTO calls (thread, execution, step, place, tool, effect, arguments_sha256, begun, outcome)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                columns,
            ).fetchall()

        return int(number)

    @contextmanager
    def _opened(self) -> Iterator[Database]:
        """The database in one transaction, which is on the disk at the end."""
        connection = self._held
        path = os.path.join(self._folder, FILE_NAME)

        if (
            connection.database is not None and connection.process == os.getpid()
        ):  # a fork must not use its parent's connection
            with connection.lock, store_errors(path), transaction(connection.database):
                yield connection.database
        else:
            with closing(open_database(self._folder)) as database, store_errors(path), transaction(database):
                yield database


@dataclass(frozen=True)
class _Held:
    """A connection that is open for a while, and the process that opened it."""

    database: Database | None = None
    process: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


class CallRecorder:
    """Writes down the changes of one call; a `ChangeRecorder`."""

    def __init__(self, journal: Journal, call: int) -> None:
        self._journal = journal
        self._call = call
        self._unsettled: dict[str, ChangeState] = {}

    def intend(
        self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], made: Sequence[str]
    ) -> None:
        """See `ChangeRecorder`."""
        self._settle_the_rest()
        self._journal.intend(self._call, token, effects, backups, made)

    def add(self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], made: Sequence[str]) -> None:
        """See `ChangeRecorder`."""
        self._journal.intend(self._call, token, effects, backups, made, ChangeState.DONE)

    def settle(self, token: str, state: ChangeState) -> None:
        """See `ChangeRecorder`."""
        self._unsettled[token] = state
        self._settle_the_rest()

    def _settle_the_rest(self) -> None:
        """A change that could not be settled is before the next one: its files will not hold what it left any more."""
        for token, state in tuple(self._unsettled.items()):
            self._journal.settle(token, state)
            del self._unsettled[token]


def _threads(database: Database) -> list[str]:
    return [thread for (thread,) in database.execute("SELECT DISTINCT thread FROM calls").fetchall()]


def _begun_in(child: str, thread: str) -> int:
    """The step of the run that began this child, -1 for what is no child of it."""
    parent, step = parent_of(child)
    return step if parent == thread != child else -1


def _changes(database: Database, where: str, *values: object) -> Iterator[RecordedChange]:
    rows: list[Any] = database.execute(f"SELECT {_CHANGE_COLUMNS} {where}", values).fetchall()
    try:
        yield from [_change(database, *row) for row in rows]
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableValueError(
            f"What the journal of the workspace holds of a change is damaged: {error}."
        ) from error


def _change(database: Database, number: int, token: str, call: int, step: int, state: str, made: str) -> RecordedChange:
    columns = "path, sha256_before, mode_before, sha256_after, mode_after"
    effects = database.execute(f"SELECT {columns} FROM effects WHERE change = ? ORDER BY place", (number,))  # noqa: S608
    changes_found = []

    for path, old, old_mode, new, new_mode in effects.fetchall():
        if (*map(type, (old, new)),) != (str, str) or not {type(old_mode), type(new_mode)} <= {int, type(None)}:
            raise TypeError("a hash is no text, or a mode no number")

        changes_found.append(FileEffect(os.fsdecode(path), FileState(old, old_mode), FileState(new, new_mode)))

    names = json.loads(made)
    if type(step) is not int or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("its step is no number, or the directories that it made are no names")

    return RecordedChange(token, call, step, tuple(changes_found), tuple(names), ChangeState(state))
