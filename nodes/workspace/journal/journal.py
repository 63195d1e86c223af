"""The write-ahead journal of calls and their file changes, in the workspace's database.

A call with an effect is recorded before it begins, and each change of files before it is made, with the states of the
files before and after it; the record is on the disk when the method returns. After a kill the journal names what may
have been done, and the files' hashes show whether it was.
"""

import hashlib
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from mendgraph.nodes.records import Effect, JsonMap
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.workspace.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.workspace.store.database import (
    FILE_NAME,
    Database,
    UnreadableValueError,
    once_more,
    open_database,
    store_errors,
    transaction,
)


def idempotency_key(thread: str, step: int, index: int, tool: str, arguments: JsonMap) -> str:
    """Return the key of the call at place `index` of a step, 64 hex digits; it stays the same when the step runs again.

    Raises:
        TypeError: something in the arguments is not a JSON value.
    """
    return _digest([thread, step, index, tool, arguments])


def call_fingerprint(tool: str, arguments: JsonMap) -> str:
    """Return the hash of a call's tool and arguments, whose order does not matter: 64 hex digits.

    Raises:
        TypeError: something in the arguments is not a JSON value.
    """
    return _digest([tool, arguments])


def _digest(value: list[object]) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # orjson refuses lone surrogates and integers beyond 64 bits
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    return hashlib.sha256(data).hexdigest()


_CHILD = re.compile(r"(.+)\|execute_tools:[^|]+\|(\d+)\|\d+", re.DOTALL)
"""The id of a child run: the parent's id, the task and the number of its step, and the place of the call."""


def parent_of(run_id: str) -> tuple[str, int]:
    """Return the parent of a child run and the step that began it; for another run the run itself and 0."""
    match = _CHILD.fullmatch(run_id)
    if match is None:
        return run_id, 0

    return match[1], int(match[2])


UNDO_EFFECT = "undo"
"""The effect of a person's calls of `restore`, which do not belong to the run's work."""

_NO_BYTES = hashlib.sha256(b"").hexdigest()
JOBS_EFFECT = "jobs"
"""The effect of the calls that record what has changed beside jobs. No model makes them."""

_CHANGE_COLUMNS = (
    "changes.id, token, call, step, state, made, effect FROM changes JOIN calls ON calls.id = changes.call"
)


class CallKey(NamedTuple):
    """The permanent key of a call.

    `execution` stays the same when a step that was cut off runs again, and differs after time travel. `step` counts
    within the thread, `place` within the reply. `effect` is the tool's.
    """

    thread: str
    execution: str
    step: int
    place: int
    tool: str
    effect: str
    arguments_sha256: str


class RecordedCall(NamedTuple):
    """A call in the journal: `outcome` is its result as JSON, None if it was cut off."""

    call: int
    key: CallKey
    outcome: str | None
    changes: tuple[RecordedChange, ...]


class Journal:
    """The journal of one workspace, for all threads. Each method opens and closes the database, except in `connected`.

    Every method raises StoreError if the database cannot be read or written.
    """

    def __init__(self, folder: str) -> None:
        """`folder` is the workspace's folder of records. Nothing is opened yet."""
        self._folder = folder
        self._connection: Database | None = None
        self._connected_process = 0
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type["Journal"], tuple[str]]:
        return Journal, (self._folder,)

    @contextmanager
    def connected(self) -> Iterator["Journal"]:
        """Keep one connection to the database open for the block."""
        with closing(open_database(self._folder)) as database:
            self._connected_process = os.getpid()
            self._connection = database

            try:
                yield self
            finally:
                with self._lock:
                    self._connection = None

    # --- Calls

    @once_more
    def begin(self, key: CallKey, outcome: str | None = None) -> int:
        """Record a call that begins, or with an outcome one that has ended; returns its number.

        It replaces an earlier record of the same call.
        """
        columns = (*key, datetime.now(UTC).isoformat(timespec="milliseconds"), outcome)
        with self._opened() as database:
            # The changes of an earlier try may have to be undone, so its record stays, under a place that no call has.
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

    @once_more
    def end(self, call: int, outcome: str) -> None:
        """Record the outcome of a call, as JSON."""
        with self._opened() as database:
            database.execute("UPDATE calls SET outcome = ? WHERE id = ?", (outcome, call))

    @once_more
    def find(self, thread: str, execution: str, place: int) -> RecordedCall | None:
        """Return the record of a call, None if it never began."""
        with self._opened() as database:
            calls = _calls(database, "thread = ? AND execution = ? AND place = ?", thread, execution, place)

        return calls[0] if calls else None

    def calls_of_step(self, thread: str, step: int) -> dict[int, RecordedCall]:
        """Return the calls of the step's latest execution, by their places."""
        latest = "SELECT max(id) FROM calls WHERE thread = ? AND step = ? AND effect NOT IN (?, ?)"
        where = f"thread = ? AND place >= 0 AND execution = (SELECT execution FROM calls WHERE id = ({latest}))"  # noqa: S608
        with self._opened() as database:
            calls = _calls(database, where, thread, thread, step, UNDO_EFFECT, JOBS_EFFECT)

        return {call.key.place: call for call in calls}

    @once_more
    def commands(self, thread: str | None = None, from_step: int = 0, *, cut_off: bool = False) -> list[str]:
        """Return the tools of calls that ran programs; with `cut_off` of those that never ended."""
        ended = "AND outcome IS NULL AND place >= 0" if cut_off else ""
        with self._opened() as database:
            rows = database.execute(
                f"SELECT thread, tool FROM calls WHERE effect = ? {ended} AND step >= ? ORDER BY id",  # noqa: S608
                (Effect.EXECUTE.value, from_step),
            )

            return [tool for owner, tool in rows if thread in {None, owner}]

    def forget_outcomes(self, thread: str, before_step: int) -> None:
        """Drop the outcomes of calls of earlier steps, which are in the checkpoints now."""
        with self._opened() as database:
            database.execute(
                "UPDATE calls SET outcome = '' WHERE thread = ? AND step < ? AND outcome > ''", (thread, before_step)
            )

    def remove_calls(self, effect: str, begun_before: datetime) -> None:
        """Remove the records of calls with this effect, which have no changes of files."""
        before = begun_before.astimezone(UTC).isoformat(timespec="milliseconds")
        with self._opened() as database:
            database.execute("DELETE FROM calls WHERE effect = ? AND begun < ?", (effect, before))

    # --- Changes of files

    @once_more
    def intend(
        self,
        call: int,
        token: str,
        effects: Sequence[FileEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        state: ChangeState = ChangeState.INTENDED,
    ) -> None:
        """Record a change; see `ChangeRecorder`."""
        backup_rows = [
            (sha256, zlib.compress(data, 1)) for sha256, data in backups.items() if len(data) <= LARGEST_BACKUP
        ]

        with self._opened() as database:
            added = database.execute(
                "INSERT INTO changes (token, call, state, made) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING RETURNING id",
                (token, call, state.value, json.dumps(list(folders), ensure_ascii=True)),
            ).fetchall()

            if not added:  # before the connection was lost
                return

            ((number,),) = added
            effect_rows: list[tuple[object, ...]] = []
            for place, effect in enumerate(effects):
                effect_rows.append((number, place, os.fsencode(effect.path), *effect.before, *effect.after))

            database.executemany("INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?, ?)", effect_rows)
            database.executemany("INSERT INTO backups VALUES (?, ?) ON CONFLICT DO NOTHING", backup_rows)

    @once_more
    def settle(self, token: str, state: ChangeState) -> None:
        """Record how a change ended; see `ChangeRecorder`."""
        with self._opened() as database:
            database.execute("UPDATE changes SET state = ? WHERE token = ?", (state, token))

    def revert(self, tokens: Sequence[str]) -> None:
        """Record that a person has reverted these changes."""
        with self._opened() as database:
            states = [(ChangeState.REVERTED, token) for token in tokens]
            database.executemany("UPDATE changes SET state = ? WHERE token = ?", states)

    @once_more
    def open_changes(self) -> list[RecordedChange]:
        """Return the changes whose end is not recorded, oldest first."""
        with self._opened() as database:
            return _changes(database, "WHERE state = ? ORDER BY 1", ChangeState.INTENDED)

    def changes_of(self, thread: str, from_step: int = 0, *, reverted: bool = False) -> list[RecordedChange]:
        """Return the changes of a run and its children from this step on, newest first.

        Reverted changes are left out unless `reverted`.
        """
        also = ChangeState.REVERTED if reverted else ChangeState.DONE
        with self._opened() as database:
            children = [child for child in _threads(database) if _step_of_parent(child, thread) >= from_step]
            runs = " OR ".join(["thread = ? AND step >= ?", *["thread = ?"] * len(children)])
            where = f"WHERE ({runs}) AND effect <> ? AND state IN (?, ?) ORDER BY 1 DESC"
            return _changes(database, where, thread, from_step, *children, UNDO_EFFECT, ChangeState.DONE, also)

    def changes_of_last_restore(self, thread: str) -> list[RecordedChange]:
        """Return the changes of the last restore of a run's files, newest first, including one that was cut off."""
        changes: list[RecordedChange] = []
        with self._opened() as database:
            which = "SELECT id, step, outcome FROM calls WHERE thread = ? AND effect = ? ORDER BY id DESC"
            for call, step, outcome in database.execute(which, (thread, UNDO_EFFECT)).fetchall():
                where = "WHERE call = ? AND state = ? ORDER BY 1 DESC"
                done = _changes(database, where, call, ChangeState.DONE)
                if changes and done and (outcome is not None or step != changes[0].step):
                    break

                changes += done

        return changes

    def threads(self) -> list[str]:
        """Return the runs of the journal."""
        with self._opened() as database:
            return [*dict.fromkeys(parent_of(thread)[0] for thread in _threads(database))]

    def children(self, thread: str) -> list[str]:
        """Return the children of a run in the journal."""
        with self._opened() as database:
            return [child for child in _threads(database) if _step_of_parent(child, thread) >= 0]

    def backup(self, sha256: str) -> bytes | None:
        """Return the bytes with this hash, None if they were not stored or are damaged."""
        if sha256 == _NO_BYTES:
            return b""

        with self._opened() as database:
            row = database.execute("SELECT data FROM backups WHERE sha256 = ?", (sha256,)).fetchone()

        if row is None:
            return None

        with suppress(zlib.error, TypeError, ValueError):
            content = zlib.decompressobj().decompress(row[0], LARGEST_BACKUP + 1)
            if hashlib.sha256(content).hexdigest() == sha256:
                return content

        return None

    def recorder(self, call: int) -> "CallRecorder":
        """Return the recorder for the file changes of a call."""
        return CallRecorder(self, call)

    def recorder_beside_jobs(self, thread: str, step: int) -> "CallRecorder":
        """Return the recorder for what has changed beside the jobs of a thread."""
        key = CallKey(thread, f"jobs-{secrets.token_hex(8)}", step, 0, "", JOBS_EFFECT, "")
        return self.recorder(self.begin(key, ""))

    @once_more
    def owner_of(self, call: int) -> tuple[str, int]:
        """Return the thread and the step of a call."""
        with self._opened() as database:
            ((thread, step),) = database.execute("SELECT thread, step FROM calls WHERE id = ?", (call,)).fetchall()

        return str(thread), int(step)

    @contextmanager
    def _opened(self) -> Iterator[Database]:
        """Open the database in one transaction, which is on the disk at the end."""
        path = os.path.join(self._folder, FILE_NAME)
        connection = self._connection

        if connection is not None and self._connected_process == os.getpid():  # not the parent's after a fork
            with self._lock, store_errors(path), transaction(connection):
                yield connection
        else:
            with closing(open_database(self._folder)) as database, store_errors(path), transaction(database):
                yield database


class CallRecorder:
    """The `ChangeRecorder` of one call."""

    def __init__(self, journal: Journal, call: int) -> None:
        self._journal = journal
        self._call = call
        self._unsettled: dict[str, ChangeState] = {}

    def intend(
        self,
        token: str,
        effects: Sequence[FileEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        state: ChangeState = ChangeState.INTENDED,
    ) -> None:
        """See `ChangeRecorder`."""
        self._settle_unsettled()
        self._journal.intend(self._call, token, effects, backups, folders, state)

    def settle(self, token: str, state: ChangeState) -> None:
        """See `ChangeRecorder`."""
        self._unsettled[token] = state
        self._settle_unsettled()

    def beside_jobs(self) -> "CallRecorder":
        """See `ChangeRecorder`."""
        return self._journal.recorder_beside_jobs(*self._journal.owner_of(self._call))

    def _settle_unsettled(self) -> None:
        """Settle changes, also those for which it failed before: the next change alters their files."""
        for token, state in tuple(self._unsettled.items()):
            self._journal.settle(token, state)
            del self._unsettled[token]


def _threads(database: Database) -> list[str]:
    return [thread for (thread,) in database.execute("SELECT DISTINCT thread FROM calls").fetchall()]


def _step_of_parent(child: str, thread: str) -> int:
    """Return the step of the run that began this child, -1 if it is not a child of the run."""
    parent, step = parent_of(child)
    if parent != thread or thread == child:
        return -1

    return step


def _calls(database: Database, where: str, *values: object) -> list[RecordedCall]:
    columns = "id, thread, execution, step, place, tool, effect, arguments_sha256, outcome"
    rows: list[Any] = database.execute(f"SELECT {columns} FROM calls WHERE {where}", values).fetchall()  # noqa: S608
    calls: list[RecordedCall] = []

    for number, *key, outcome in rows:
        changes = _changes(database, "WHERE call = ? ORDER BY 1", number)
        calls.append(RecordedCall(number, CallKey(*key), outcome, tuple(changes)))

    return calls


def _changes(database: Database, where: str, *values: object) -> list[RecordedChange]:
    rows: list[Any] = database.execute(f"SELECT {_CHANGE_COLUMNS} {where}", values).fetchall()
    try:
        return [_change(database, *row) for row in rows]
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableValueError(f"A change in the journal of the workspace is damaged: {error}.") from error


def _change(
    database: Database,
    number: int,
    token: str,
    call: int,
    step: int,
    state: str,
    folders_json: str,
    effect_of_call: str,
) -> RecordedChange:
    columns = "path, sha256_before, mode_before, sha256_after, mode_after"
    rows = database.execute(f"SELECT {columns} FROM effects WHERE change = ? ORDER BY place", (number,))  # noqa: S608
    effects: list[FileEffect] = []

    for path, sha256_before, mode_before, sha256_after, mode_after in rows.fetchall():
        before = _file_state(sha256_before, mode_before)
        after = _file_state(sha256_after, mode_after)
        effects.append(FileEffect(os.fsdecode(path), before, after))

    folders = json.loads(folders_json)
    if type(step) is not int or not isinstance(folders, list) or not all(isinstance(name, str) for name in folders):
        raise TypeError("its step is not a number, or its directories are not names")

    beside_jobs = effect_of_call == JOBS_EFFECT
    return RecordedChange(token, call, step, tuple(effects), tuple(folders), ChangeState(state), beside_jobs)


def _file_state(sha256: object, mode: object) -> FileState:
    if type(sha256) is not str or not (mode is None or type(mode) is int):
        raise TypeError("a hash is not a text, or a mode not a number")

    return FileState(sha256, mode)
