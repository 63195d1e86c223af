"""The store of a workspace: the records of its runs and their checkpoints, in one database."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.routes import NODES
from mendgraph.graph.machine.run_records import (
    UNDONE,
    Durability,
    RunRecord,
    bounded,
    find_run,
    run_record,
    runs_to_prune,
)
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import Outcome, OutcomeKind, ToolError
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.database import (
    FILE_NAME,
    Database,
    FileKind,
    StoreError,
    open_database,
    open_file,
    open_postgres,
    opened_file,
    postgres_database,
    store_errors,
    transaction,
    uses_postgres,
)
from mendgraph.nodes.workspace.store.run_folder import (
    idle_workspaces,
    is_due,
    remove_run_folder,
    run_folder_path,
    workspace_folder,
    workspace_folder_path,
)
from mendgraph.nodes.workspace.store.run_lock import Owner, WorkspaceLock

if TYPE_CHECKING:
    from langgraph.store.sqlite import SqliteStore

    from mendgraph.graph.configuration.memory import Memory
    from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
    from mendgraph.graph.persistence.postgres_saver import PostgresStoreSaver

_DELETE_RUN = (
    "DELETE FROM effects WHERE change IN (SELECT c.id FROM changes c JOIN calls ON call = calls.id WHERE thread = ?)",
    "DELETE FROM changes WHERE call IN (SELECT id FROM calls WHERE thread = ?)",
    "DELETE FROM calls WHERE thread = ?",
    "DELETE FROM runs WHERE run_id = ?",
)
"""Delete what is stored of a run besides its checkpoints."""

_DELETE_BACKUPS = """
DELETE FROM backups WHERE sha256 NOT IN (SELECT sha256_before FROM effects UNION SELECT sha256_after FROM effects)
"""
"""Delete the contents of files that no recorded change refers to."""

_BEGIN_NEXT_TURN = """
UPDATE runs SET
    updated = ?, request = ?, context = ?, durability = ?, turns = turns + 1, state = 'working',
    kind = '', reason = '', message = '', answer = '', changed = '[]'
WHERE run_id = ? RETURNING turns
"""
_BEGIN_FIRST_TURN = """
INSERT INTO runs (updated, request, context, durability, run_id, created, task, turns, state)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, 'working') RETURNING turns
"""
_END_TURN = """
UPDATE runs SET
    updated = ?, state = 'ended', kind = ?, reason = ?, message = ?, answer = ?, changed = ?
WHERE run_id = ?
"""
_ADD = """
INSERT INTO runs (run_id, task, created, updated, turns, request, state, context, durability, parent, forked_at)
VALUES (?, ?, ?, ?, ?, ?, 'ended', ?, ?, ?, ?)
"""
_ALL = """
SELECT
    run_id, task, created, updated, turns, request, state, kind, reason, message, answer, changed, context, durability,
    parent, forked_at
FROM runs ORDER BY updated DESC, id DESC
"""


@dataclass(frozen=True)
class Pruned:
    """The runs that were deleted, and the bytes that were freed."""

    run_ids: tuple[str, ...]
    freed_bytes: int


class Store:
    """The store of one workspace. Every method raises StoreError if the database cannot be read or written."""

    def __init__(
        self, workspace: str, secrets: Sequence[str] = (), now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """`secrets` and those of the environment are not stored. Raises StoreError: the store has no folder."""
        folder = workspace_folder(workspace)
        if isinstance(folder, ToolError):
            raise StoreError(folder.message)

        self.folder = folder
        self._now = now
        self._redactor = Redactor((*secrets, *known_values(os.environ)))

    @cached_property
    def saver(self) -> "SqliteStoreSaver | PostgresStoreSaver":
        """The saver of checkpoints, opened when it is first needed: listing runs does not import LangGraph."""
        return _open_saver(self.folder, self._redactor)

    def close(self) -> None:
        """Close the saver."""
        if "saver" in vars(self):
            self.saver.close()

    def check(self) -> None:
        """Raise StoreError if the database cannot be used, as one of another format."""
        with self._opened():
            pass

    @contextmanager
    def _opened(self) -> Iterator[Database]:
        with (
            closing(open_database(self.folder)) as database,
            store_errors(os.path.join(self.folder, FILE_NAME)),
        ):
            yield database

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        with self._opened() as database, transaction(database):
            yield database

    # --- Runs

    def begin_turn(self, run_id: str, request: str, context: AgentContext, durability: Durability) -> int:
        """Record that a turn begins; return its number, counted from 1."""
        clean = self._clean(request)
        now = self._time()
        values = (now, clean, self._clean_context(context), durability, run_id)

        with self._transaction() as database:
            turns = database.execute(_BEGIN_NEXT_TURN, values).fetchall()
            if not turns:
                turns = database.execute(_BEGIN_FIRST_TURN, (*values, now, bounded(clean))).fetchall()

        return int(turns[0][0])

    def take_up(self, run_id: str) -> None:
        """Record that the run's last turn continues."""
        with self._transaction() as database:
            database.execute("UPDATE runs SET state = 'working', updated = ? WHERE run_id = ?", (self._time(), run_id))

    def mark_undone(self, run_id: str) -> None:
        """Record that the changes of an unfinished run were reverted, which a resumed run has to know."""
        result = (OutcomeKind.BUDGET_STOP.value, UNDONE, "What it changed was taken back.")
        with self._transaction() as database:
            database.execute(
                "UPDATE runs SET state = 'ended', kind = ?, reason = ?, message = ? WHERE run_id = ? AND kind <> ?",
                (*result, run_id, OutcomeKind.FINISHED.value),
            )

    def end_turn(self, run_id: str, outcome: Outcome) -> None:
        """Record the outcome of the run's turn."""
        result = (outcome.kind, outcome.reason, bounded(outcome.message), bounded(outcome.answer))
        values = (*map(self._clean, result), self._clean(json.dumps(outcome.changed_files)))
        with self._transaction() as database:
            database.execute(_END_TURN, (self._time(), *values, run_id))

    def add_fork(self, run_id: str, parent: RunRecord, forked_at: int) -> None:
        """Record a run that continues another one from its step `forked_at`."""
        now = self._time()
        same = (parent.turns, parent.request, parent.stored_context, parent.durability, parent.run_id)
        with self._transaction() as database:
            database.execute(_ADD, (run_id, parent.task, now, now, *same, forked_at))

    def runs(self) -> list[RunRecord]:
        """Return all runs of the workspace, the last updated first."""
        with self._opened() as database:
            return [run_record(row) for row in database.execute(_ALL).fetchall()]

    def run(self, run_id: str) -> RunRecord | ToolError:
        """Return the run with this id or prefix; NOT_FOUND and INVALID_ARGUMENT name similar ones.

        Raises StoreError: also if its context is of another version.
        """
        record = find_run(run_id, self.runs())
        if isinstance(record, RunRecord):
            _ = record.context  # raises for another version

        return record

    # --- Retention

    def delete(self, run_id: str) -> int:
        """Delete a run with everything that is stored of it; return the bytes of its own folder."""
        try:
            freed = remove_run_folder(run_id)
        except OSError as error:
            raise StoreError(os_failure(error, "remove the run's folder", run_folder_path(run_id)).message) from error

        threads = (run_id, *Journal(self.folder).children(run_id))
        self.saver.delete_thread(run_id)
        with self._transaction() as database:
            for statement in _DELETE_RUN:
                database.executemany(statement, [(thread,) for thread in threads])

            database.execute(_DELETE_BACKUPS)

        return freed

    def prune(self, run_ids: Sequence[str]) -> Pruned:
        """Delete these runs and free the disk space that they used."""
        freed = sum(map(self.delete, run_ids))
        return Pruned(tuple(run_ids), freed + self.shrink())

    def retain(self, context: AgentContext) -> None:
        """Delete, at most once an hour, the runs that `context` does not keep; the caller has locked the workspace.

        The same is done for the workspaces of this machine idle for a day, with the context of their last run.
        """
        if context.keep_days is context.keep_runs is context.keep_mb is None:
            return

        if is_due(self.folder):
            self.prune_by_settings(context)

        latest = monotonic_s() + _LONGEST_RETENTION_S
        for folder in idle_workspaces(self.folder):
            lock = WorkspaceLock(folder)
            if monotonic_s() >= latest or lock.acquire(Owner("retention")) is not None:
                continue

            other = copy(self)
            other.folder = folder
            vars(other).pop("saver", None)
            with lock, suppress(StoreError), closing(other):
                for last in other.runs()[:1]:
                    other.prune_by_settings(last.context)

    def prune_by_settings(self, context: AgentContext) -> None:
        """Delete the runs that `context` does not keep."""
        sizes = {}
        if context.keep_mb is not None:
            _ = self.saver  # creates LangGraph's tables
            with self._transaction() as database:
                sizes = dict(database.execute(_SIZES[uses_postgres()]).fetchall())

        run_ids = runs_to_prune(self.runs(), sizes, context, self._now())
        if run_ids:
            self.prune(run_ids)

    def shrink(self) -> int:
        """Return unused space of the file to the disk; return its bytes. PostgreSQL does that in the background."""
        if uses_postgres():
            return 0

        with self._opened() as database:
            before = _file_size(database)
            database.execute("PRAGMA incremental_vacuum").fetchall()  # it works while rows are fetched
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return before - _file_size(database)

    def _clean(self, text: str) -> str:
        """Return the text without secrets and lone surrogates."""
        return self._redactor.text(storable(text))

    def _clean_context(self, context: AgentContext) -> str:
        text = storable(json.dumps(context.model_dump(mode="json"), ensure_ascii=False))
        for form in self._redactor.forms:
            text = text.replace(form, "*" * len(form))

        return text

    def _time(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def _file_size(database: Database) -> int:
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(page_bytes)


_SIZES: Final = (
    """
    SELECT thread_id, sum(bytes) FROM (SELECT thread_id, length(checkpoint) AS bytes FROM checkpoints
    UNION ALL SELECT thread_id, length(value) FROM writes) GROUP BY 1
    """,
    """
    SELECT substr(thread_id, length(current_setting('mendgraph.workspace')) + 2), sum(bytes)::bigint FROM (
        SELECT thread_id, pg_column_size(checkpoint) AS bytes FROM checkpoints
        UNION ALL SELECT thread_id, pg_column_size(blob) FROM checkpoint_blobs
        UNION ALL SELECT thread_id, pg_column_size(blob) FROM checkpoint_writes
    ) AS each WHERE starts_with(thread_id, current_setting('mendgraph.workspace') || ':') GROUP BY 1
    """,
)
"""Bytes of the checkpoints of each run, in SQLite and in PostgreSQL."""

_LONGEST_RETENTION_S: Final = 1.0
"""Time limit of retention in other workspaces; a later run continues."""


def _open_saver(folder: str, redactor: Redactor) -> "SqliteStoreSaver | PostgresStoreSaver":
    from mendgraph.graph.machine.serializer import ScrubbingSerializer
    from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver

    postgres = postgres_database(folder)
    if postgres is not None:
        from mendgraph.graph.persistence.postgres_saver import CHECKPOINTS, PostgresStoreSaver

        open_postgres(CHECKPOINTS)
        return PostgresStoreSaver(postgres, ScrubbingSerializer(redactor, _dictionary(postgres)))

    path = os.path.join(folder, FILE_NAME)
    connection = open_file(folder)

    try:
        with store_errors(path):
            return SqliteStoreSaver(connection, path, ScrubbingSerializer(redactor, _dictionary(connection)))
    except BaseException:
        connection.close()
        raise


def _dictionary(database: Database) -> bytes:
    """Return the compression dictionary of the checkpoints, which the version that created the database has stored."""
    row = database.execute("SELECT data FROM dictionary").fetchone()
    if row is None:
        with transaction(database):
            database.execute("INSERT INTO dictionary VALUES (1, ?) ON CONFLICT DO NOTHING", (_new_dictionary(),))
            row = database.execute("SELECT data FROM dictionary").fetchone()

    if not isinstance(row[0], bytes):
        raise StoreError("The database of the workspace is damaged: its dictionary is of another type.")

    return row[0]


@cache
def _new_dictionary() -> bytes:
    """Return the dictionary of a new database, which takes 10 ms to serialize."""
    from mendgraph.graph.machine.serializer import serializer

    return serializer().dumps_typed(_words_of_checkpoints())[1]


def _words_of_checkpoints() -> Mapping[str, Any]:
    """Return the fields, channels and words of checkpoints, the frequent ones last, which zlib finds best.

    Source: measured, without a dictionary a store of many turns has 1.55 times the bytes, one of edits 1.12 times.
    """
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from mendgraph.graph.machine.serializer import CHECKPOINT_TYPES
    from mendgraph.graph.machine.state import AgentState
    from mendgraph.nodes.begin_turn.turn import FRESH_TURN

    nodes = {node: {f"branch:to:{node}": "00000001"} for node in NODES}
    branches = [name for node in nodes.values() for name in node]

    return {
        "records": [
            (
                cls.__module__,
                cls.__qualname__,
                {
                    name: "" if field.is_required() else field.get_default(call_default_factory=True)
                    for name, field in cls.model_fields.items()
                },
            )
            for cls in CHECKPOINT_TYPES
            if issubclass(cls, BaseModel)
        ],
        "messages": [
            HumanMessage("", id="1"),
            ToolMessage("", tool_call_id="1"),
            AIMessage("", id="2", tool_calls=[{"name": "read_file", "args": {}, "id": "1"}]),
        ],
        "channel_values": {**FRESH_TURN, "context": AgentContext()},
        "channel_versions": dict.fromkeys(["__start__", *AgentState.__annotations__, *branches], "00000001"),
        "versions_seen": {"__input__": {}, **nodes},
        "updated_channels": branches,
    }


# --- Memory: a file of its own, which is kept if the database is of another version

MEMORY_FILE = "memory.sqlite"


def memory_store(workspace: str) -> "SqliteStore":
    """Open LangGraph's store over the workspace's file; the caller closes its `conn`.

    Raises StoreError: the file cannot be created or used.
    """
    from langgraph.store.sqlite import SqliteStore

    folder = workspace_folder(workspace)
    if isinstance(folder, ToolError):
        raise StoreError(folder.message)

    statements = ["CREATE TABLE store_migrations (v INTEGER PRIMARY KEY)"]
    for number, migration in enumerate(SqliteStore.MIGRATIONS):
        statements += [migration, f"INSERT INTO store_migrations VALUES ({number})"]  # noqa: S608 - a number

    kind = FileKind(int.from_bytes(b"memo"), 1, tuple(statements), "not a memory", "remove it")

    return SqliteStore(opened_file(os.path.join(folder, MEMORY_FILE), kind))


def has_memory(workspace: str) -> bool:
    """Return whether the workspace has a file of notes."""
    return os.path.lexists(os.path.join(workspace_folder_path(workspace), MEMORY_FILE))


@contextmanager
def own_memory(workspace: str) -> "Iterator[Memory]":
    """Open the memory of the workspace. Raises StoreError: as `memory_store`."""
    from mendgraph.graph.configuration.memory import Memory

    store = memory_store(workspace)
    with closing(store.conn):
        yield Memory(store, workspace)
