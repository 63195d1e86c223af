"""A damaged or foreign store: commands and functions report it for the affected run."""

import io
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run import run_task
from mendgraph.graph.runs.runs import steps_of, undo_run
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.store.database import FILE_NAME, StoreError
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE, workspace_folder_path
from tests.doubles.history_model import HistoryModel
from tests.surfaces.conftest import Command
from tests.surfaces.runs.run_plays import LINES, context, project, run_lines, tree


class TwoRuns(NamedTuple):
    """A folder with two finished runs, and its database."""

    folder: Path
    first: str
    second: str
    path: Path

    def change(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute(statement, values)

    def newest(self, change: Callable[[Any], Any]) -> None:
        """Replace the first run's newest checkpoint by the result of `change`."""
        with closing(sqlite3.connect(self.path)) as database:
            ((dictionary,),) = database.execute("SELECT data FROM dictionary").fetchall()
            where = "FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id DESC LIMIT 1"
            row = database.execute(f"SELECT checkpoint_id, type, checkpoint {where}", [self.first]).fetchone()
        value = change(serializer((), dictionary).loads_typed(row[1:]))
        kind, data = value if isinstance(value, tuple) else JsonPlusSerializer().dumps_typed(value)
        self.change("UPDATE checkpoints SET type = ?, checkpoint = ? WHERE checkpoint_id = ?", kind, data, row[0])


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRuns]:
    base = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_DIR_VARIABLE, str(base / "now" / "data"))
        (base / "now").mkdir()
        folder = project(base / "now" / "project")
        first = run_lines(folder).thread_id
        second = run_task("Look.", context(folder), model=HistoryModel(LINES[-1:])).thread_id
        shutil.copytree(base / "now", base / "kept")
        yield TwoRuns(folder, first, second, Path(workspace_folder_path(str(folder)), FILE_NAME))


@pytest.fixture
def runs(two_runs: TwoRuns, monkeypatch: pytest.MonkeyPatch) -> TwoRuns:
    """The two runs, restored after changes by other tests."""
    now = two_runs.folder.parent
    shutil.rmtree(now)
    shutil.copytree(now.with_name("kept"), now)
    monkeypatch.setattr("mendgraph.graph.machine.serializer.MOST_BYTES", MOST_BYTES)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(now / "data"))
    monkeypatch.chdir(two_runs.folder)
    return two_runs


def run_command(command: Command, *words: str) -> tuple[int, str]:
    code, _, error = command(*words, typed=io.StringIO())
    return code, error


MOST_BYTES = 1 << 22
"""A smaller bound than the real one: what is tested is that there is one."""


def bomb() -> bytes:
    packer = zlib.compressobj(9)
    return packer.compress(bytes(MOST_BYTES + 1)) + packer.flush()


CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "bomb": lambda _: ("msgpack+zlib", bomb()),
    "arrays": lambda _: ("msgpack", b"\x91" * 300_000),
    "a pickle": lambda _: ("pickle", b"cos\nabort\n(tR."),
    "nothing": lambda _: (None, None),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_damaged_checkpoint_is_an_error_of_its_run_only(command: Command, runs: TwoRuns, damage: str) -> None:
    runs.newest(CHECKPOINTS[damage])
    for words in (("runs", "show", runs.first), ("report", runs.first), ("chat", "--run", runs.first)):
        code, error = run_command(command, *words)
        assert (code, error.count("\n"), runs.first in error, "is damaged" in error) == (4, 1, True, True), words
    result = run_task("Again.", context(runs.folder), thread_id=runs.first, model=HistoryModel(LINES))
    assert (result.outcome.reason, runs.first in result.outcome.message) == ("store_failed", True)
    assert not isinstance(steps_of(runs.second, str(runs.folder)), ToolError)
    assert not isinstance(undo_run(runs.first, str(runs.folder)), ToolError)
    assert (runs.folder / "calc.py").read_text() == "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    ("column", "value"), [("changed", "[" * 300_000), ("kind", "XX"), ("updated", "99999-01-01T00:00:00+00:00")]
)
def test_damaged_row_is_reported_with_the_remedy(command: Command, runs: TwoRuns, column: str, value: object) -> None:
    runs.change(f"UPDATE runs SET {column} = ? WHERE run_id = ?", value, runs.first)  # noqa: S608 - our own words
    for words in (("runs",), ("undo", runs.first), ("resume", runs.first)):
        code, error = run_command(command, *words)
        assert (code, error.count("\n"), f"of the run {runs.first} is damaged" in error) == (4, 1, True), words


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("changes", "made", "[" * 300_000),
        ("effects", "path", 5),
        ("backups", "data", 10**12),
        ("backups", "data", zlib.compress(b"somebody else's bytes")),
    ],
)
def test_damaged_journal_restores_nothing(
    command: Command, runs: TwoRuns, table: str, column: str, value: object
) -> None:
    before = tree(runs.folder)
    runs.change(f"UPDATE {table} SET {column} = ?", value)  # noqa: S608 - our own words
    code, error = run_command(command, "undo", runs.first)
    assert (code, "damaged" in error, tree(runs.folder)) == (4, True, before)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN UPDATE runs SET context = '{}'; END",
        "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_store_with_a_trigger_or_view_is_refused(command: Command, runs: TwoRuns, statement: str) -> None:
    runs.change(statement)
    before = runs.path.read_bytes()
    for words in (("runs",), ("undo", runs.first), ("resume", runs.first)):
        code, error = run_command(command, *words)
        assert (code, "which mendgraph never makes" in error, "bug" in error) == (4, True, False), words
    assert runs.path.read_bytes() == before


def test_invalid_compression_dictionary_allocates_no_memory(runs: TwoRuns) -> None:
    runs.change("UPDATE dictionary SET data = 1000000000000")
    with pytest.raises(StoreError, match="is damaged"):
        _ = Store(str(runs.folder)).saver
