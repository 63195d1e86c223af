"""The store of a workspace: runs are recorded, listed and deleted."""

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.run_records import RunRecord
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal
from mendgraph.nodes.workspace.store.database import StoreError, open_database
from mendgraph.nodes.workspace.store.run_folder import run_folder, run_folder_path
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = "-".join(("plum", "51", "orchard"))
FINISHED = Outcome(
    kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.", answer="42", changed_files=("a.py", "é")
)


class Clock:
    """A clock that a test sets."""

    now = BEGIN

    def __call__(self) -> datetime:
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += timedelta(days=days)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "project").mkdir()
    return str(tmp_path / "project")


@pytest.fixture
def store(any_store: str, root: str, clock: Clock) -> Iterator[Store]:  # noqa: ARG001 - each test runs with both
    opened = Store(root, (KNOWN,), clock)
    yield opened
    opened.close()


def context(root: str = "/w", **settings: Any) -> AgentContext:
    return AgentContext(workspace=root, audit=False, **settings)


def work(store: Store, run_id: str, outcome: Outcome | None = FINISHED, request: str = "Mend it.") -> None:
    """A turn from its beginning to its end, without a machine."""
    store.begin_turn(run_id, request, context(), "sync")
    if outcome is not None:
        store.end_turn(run_id, outcome)


def run_sql(store: Store, statement: str) -> list[Any]:
    with closing(open_database(store.folder)) as database:
        cursor = database.execute(statement)
        return cursor.fetchall() if statement.startswith("SELECT") else []


def only_run(store: Store) -> RunRecord:
    (record,) = store.runs()
    return record


# --- Turns


def test_turn_is_recorded_when_it_begins_and_when_it_ends(store: Store, root: str, clock: Clock) -> None:
    assert store.begin_turn("r1", "Mend it.", context(root, max_seconds=1.5), "async") == 1
    with closing(Store(root)) as other:
        record = only_run(other)
    assert record == RunRecord(
        run_id="r1",
        task="Mend it.",
        created="2026-01-01T00:00:00.000+00:00",
        updated="2026-01-01T00:00:00.000+00:00",
        turns=1,
        request="Mend it.",
        state="working",
        kind="",
        reason="",
        message="",
        answer="",
        changed=(),
        stored_context=record.stored_context,
        durability="async",
        parent="",
        forked_at=None,
    )
    assert record.context == context(root, max_seconds=1.5)
    clock.pass_days(0.5)
    store.end_turn("r1", FINISHED)
    record = only_run(store)
    assert (record.state, record.kind, record.reason) == ("ended", "FINISHED", "answered")
    assert (record.message, record.answer, record.changed) == ("Done.", "42", ("a.py", "é"))
    assert (record.created, record.updated) == ("2026-01-01T00:00:00.000+00:00", "2026-01-01T12:00:00.000+00:00")


def test_known_secret_is_not_stored_in_any_encoding(store: Store, data_folder: Path) -> None:
    form = KNOWN.encode().hex()
    store.begin_turn(f"r-{len(form)}", f"Use {form}.", context(base_url=f"http://h/{form}"), "sync")
    store.end_turn(
        f"r-{len(form)}", FINISHED.model_copy(update={"message": form, "answer": form, "changed_files": (form,)})
    )
    record = only_run(store)
    assert form not in repr(record)
    assert (record.request, record.task) == ("Use [redacted secret].", "Use [redacted secret].")
    assert record.context.base_url == f"http://h/{'*' * len(form)}"
    store.close()
    assert [path for path in data_folder.rglob("*") if path.is_file() and form.encode() in path.read_bytes()] == []


def test_text_that_a_database_cannot_store_is_replaced(store: Store) -> None:
    schema = {"title": "\ud800"}
    store.begin_turn("r1", "a\ud800b\0c", context(response_format=schema), "sync")
    store.end_turn("r1", FINISHED.model_copy(update={"message": "\udfff"}))
    record = only_run(store)
    assert (record.request.replace("\u2400", "\0"), record.message) == ("a\ufffdb\0c", "\ufffd")
    assert record.context.response_format == {"title": "\ufffd"}


# --- Deleting runs


def run_machine(store: Store, root: str, run_id: str) -> None:
    """A real turn, so that there are checkpoints."""
    machine = build_graph(store.saver, model=ScriptedModel([], then=Say("x" * 5_000)))
    request: Any = {"messages": [HumanMessage("Hi.")]}
    machine.invoke(request, {"configurable": {"thread_id": run_id}}, context=context(root), durability="sync")


def change(store: Store, run_id: str, before: str, state: ChangeState = ChangeState.DONE) -> None:
    """A recorded change of a file, with a backup of its content."""
    journal = Journal(store.folder)
    call = journal.begin(CallKey(run_id, f"{run_id}{before}", 1, 0, "edit_file", "write", "0"))
    effect = FileEffect("a.py", FileState(before, 0o644), FileState("after", 0o644))
    journal.intend(call, f"{run_id}{before}", [effect], {before: b"old"}, [])
    journal.settle(f"{run_id}{before}", state)


def counts(store: Store) -> dict[str, int]:
    savers_tables: tuple[str, ...] = ("checkpoints", "writes")
    if not isinstance(store.saver, SqliteStoreSaver):
        savers_tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    tables = ("runs", *savers_tables, "calls", "changes", "effects", "backups")
    return {name: run_sql(store, f"SELECT count(*) FROM {name}")[0][0] for name in tables}  # noqa: S608 - ours


@slow
def test_deleted_run_is_removed_with_everything_stored_for_it(store: Store, root: str) -> None:
    work(store, "kept")
    run_machine(store, root, "kept")
    change(store, "kept", "shared")
    before = counts(store)
    work(store, "gone")
    run_machine(store, root, "gone")
    change(store, "gone", "shared")
    change(store, "gone", "own")
    Path(str(run_folder("gone")), "kept").mkdir()
    Path(str(run_folder("gone")), "kept", "1.txt").write_text("x" * 77)
    folder = str(run_folder("kept"))
    freed = store.delete("gone")
    assert freed == 77
    assert counts(store) == before
    assert [row[0] for row in run_sql(store, "SELECT sha256 FROM backups")] == ["shared"]
    assert (os.path.exists(run_folder_path("gone")), os.path.exists(folder)) == (False, True)
    assert store.delete("gone") == 0


# --- Opening


def test_compressed_values_are_readable_by_another_store_and_version(
    store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_machine(store, root, "r1")
    config: Any = {"configurable": {"thread_id": "r1"}}
    expected = build_graph(store.saver).get_state(config)
    monkeypatch.setattr("mendgraph.graph.persistence.store._words_of_checkpoints", lambda: {"another": "one"})
    with closing(Store(root)) as other:
        assert build_graph(other.saver).get_state(config) == expected
    table = "checkpoints" if isinstance(store.saver, SqliteStoreSaver) else "checkpoint_blobs"
    assert ("msgpack+zlib",) in run_sql(store, f"SELECT DISTINCT type FROM {table}")  # noqa: S608 - ours


def test_run_with_settings_of_another_version_is_listed_and_refused(store: Store) -> None:
    work(store, "r1")
    run_sql(store, """UPDATE runs SET context = '{"gone": 1}'""")
    assert [record.run_id for record in store.runs()] == ["r1"]
    with pytest.raises(StoreError, match="The settings of the run r1 cannot be read"):
        store.run("r1")


def test_folder_that_cannot_be_removed_is_reported_and_its_run_stays(store: Store, root: str) -> None:
    work(store, "r1")
    path = run_folder_path("r1")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(root, path)
    with pytest.raises(StoreError, match="Cannot remove the run's folder"):
        store.delete("r1")
    assert (only_run(store).run_id, os.path.isdir(root)) == ("r1", True)
