"""A store that is damaged, or that somebody else has made: the commands and the functions say so, run by run."""

import io
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mendgraph.graph import cli
from mendgraph.graph.machine.run_records import old_runs
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run import run_task
from mendgraph.graph.runs.runs import RunState, list_runs, steps_of, undo_run
from mendgraph.nodes.execute_tools.store.database import FILE_NAME, StoreError
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, workspace_folder_path
from mendgraph.nodes.records import ToolError
from tests.doubles.history_model import HistoryModel
from tests.graph.runs.run_plays import LINES, context, listed, played, project, tree


class Played(NamedTuple):
    """A folder with two finished runs, and its database."""

    folder: Path
    first: str
    second: str
    path: Path

    def change(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute(statement, values)

    def newest(self, change: Callable[[Any], Any]) -> None:
        """Put what `change` makes of it in the place of the first run's newest checkpoint."""
        with closing(sqlite3.connect(self.path)) as database:
            ((dictionary,),) = database.execute("SELECT data FROM dictionary").fetchall()
            where = "FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id DESC LIMIT 1"
            row = database.execute(f"SELECT checkpoint_id, type, checkpoint {where}", [self.first]).fetchone()
        value = change(serializer((), dictionary).loads_typed(row[1:]))
        kind, data = value if isinstance(value, tuple) else JsonPlusSerializer().dumps_typed(value)
        self.change("UPDATE checkpoints SET type = ?, checkpoint = ? WHERE checkpoint_id = ?", kind, data, row[0])


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    base = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_DIR_VARIABLE, str(base / "now" / "data"))
        (base / "now").mkdir()
        folder = project(base / "now" / "project")
        first = played(folder).thread_id
        second = run_task("Look.", context(folder), model=HistoryModel(LINES[-1:])).thread_id
        shutil.copytree(base / "now", base / "kept")
        yield Played(folder, first, second, Path(workspace_folder_path(str(folder)), FILE_NAME))


@pytest.fixture
def runs(two_runs: Played, monkeypatch: pytest.MonkeyPatch) -> Played:
    """The two runs as they were, whatever another test has done to them."""
    now = two_runs.folder.parent
    shutil.rmtree(now)
    shutil.copytree(now.with_name("kept"), now)
    monkeypatch.setattr("mendgraph.graph.machine.redaction.MOST_BYTES", MOST_BYTES)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(now / "data"))
    monkeypatch.chdir(two_runs.folder)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return two_runs


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(words)
    return code, capsys.readouterr().err


MOST_BYTES = 1 << 22
"""A smaller bound than the real one: what is tested is that there is one."""


def bomb() -> bytes:
    packer = zlib.compressobj(9)
    return packer.compress(bytes(MOST_BYTES + 1)) + packer.flush()


def with_channel(name: str, value: object) -> Callable[[Any], Any]:
    return lambda stored: {**stored, "channel_values": {**stored["channel_values"], name: value}}


CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "no map": lambda _: 1,
    "empty": lambda _: {},
    "bomb": lambda _: ("msgpack+zlib", bomb()),
    "brackets": lambda _: ("json", b"[" * 300_000),
    "arrays": lambda _: ("msgpack", b"\x91" * 300_000),
    "a pickle": lambda _: ("pickle", b"cos\nabort\n(tR."),
    "a number": lambda _: ("msgpack", 10**12),
    "nothing": lambda _: (None, None),
    "channels": lambda stored: {**stored, "channel_values": [1]},
    "versions": lambda stored: {**stored, "channel_versions": {"messages": "x"}},
    "time": lambda stored: {**stored, "ts": "99999-01-01"},
    **{name: with_channel(name, 3) for name in ("messages", "context", "spending", "outcome", "verdicts")},
    "steps": with_channel("step", "x"),
    "items": with_channel("items", [1]),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_a_damaged_checkpoint_is_an_error_of_its_run(
    runs: Played, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    runs.newest(CHECKPOINTS[damage])
    for words in (("runs", "show", runs.first), ("report", runs.first), ("chat", "--run", runs.first)):
        code, error = told(capsys, *words)
        assert (code, error.count("\n"), runs.first in error, "is damaged" in error) == (4, 1, True, True), words
    found = run_task("Again.", context(runs.folder), thread_id=runs.first, model=HistoryModel(LINES))
    assert (found.outcome.reason, runs.first in found.outcome.message) == ("store_failed", True)
    assert not isinstance(steps_of(runs.second, str(runs.folder)), ToolError)
    assert not isinstance(undo_run(runs.first, str(runs.folder)), ToolError)
    assert (runs.folder / "calc.py").read_text() == "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("changed", "x"),
        ("changed", "[" * 300_000),
        ("changed", "[[1]]"),
        ("context", "[" * 300_000),
        ("context", f'{{"max_steps": {"1" * 6_000}}}'),
        ("context", b"\xff"),
        ("kind", "XX"),
        ("state", "XX"),
        ("durability", "XX"),
        ("turns", "x"),
        ("updated", "99999-01-01T00:00:00+00:00"),
        ("created", "2020-01-01T00:00:00"),
        ("task", b"\xff\xfe"),
    ],
)
def test_a_damaged_row_is_listed_and_other_runs_are_not_concerned(
    runs: Played, capsys: pytest.CaptureFixture[str], column: str, value: object
) -> None:
    runs.change(f"UPDATE runs SET {column} = ? WHERE run_id = ?", value, runs.first)  # noqa: S608 - our own words
    assert sorted(listed(runs.folder)) == sorted([(runs.first, RunState.DAMAGED), (runs.second, RunState.FINISHED)])
    code, error = told(capsys, "runs", "show", runs.first)
    assert (code, f"of the run {runs.first} is damaged" in error) == (4, True)
    assert told(capsys, "runs", "--json") == (0, "")
    assert told(capsys, "runs", "show", runs.second)[0] == 0
    with closing(Store(str(runs.folder))) as store:
        assert old_runs(store.runs(), 0, datetime.now(UTC), unfinished=True) == [runs.second]
    assert not isinstance(undo_run(runs.first, str(runs.folder)), ToolError)


def test_text_that_is_no_utf_8_harms_no_other_row(runs: Played) -> None:
    runs.change("UPDATE runs SET task = CAST(x'41FF' AS TEXT) WHERE run_id = ?", runs.first)
    found = list_runs(str(runs.folder))
    assert not isinstance(found, ToolError)
    assert {run.task for run in found} == {"A\ufffd", "Look."}


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("changes", "made", "[" * 300_000),
        ("changes", "made", "5"),
        ("effects", "path", 5),
        ("effects", "sha256_before", b"\xff"),
        ("effects", "mode_before", "x"),
        ("backups", "data", b"x"),
        ("backups", "data", 10**12),
        ("backups", "data", zlib.compress(b"somebody else's bytes")),
        ("calls", "step", "x"),
    ],
)
def test_a_damaged_journal_restores_nothing(
    runs: Played, capsys: pytest.CaptureFixture[str], table: str, column: str, value: object
) -> None:
    before = tree(runs.folder)
    runs.change(f"UPDATE {table} SET {column} = ?", value)  # noqa: S608 - our own words
    code, error = told(capsys, "undo", runs.first)
    assert (code, "damaged" in error, tree(runs.folder)) == (4, True, before)
    assert told(capsys, "runs")[0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN UPDATE runs SET context = '{}'; END",
        "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_a_store_with_programs_of_its_own_is_refused(
    runs: Played, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    runs.change(statement)
    before = runs.path.read_bytes()
    for words in (("runs",), ("undo", runs.first), ("resume", runs.first)):
        code, error = told(capsys, *words)
        assert (code, "which mendgraph never makes" in error, "bug" in error) == (4, True, False), words
    assert runs.path.read_bytes() == before


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_no_store(runs: Played, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    kept = runs.path.rename(runs.path.with_name("kept.sqlite"))
    before = kept.read_bytes()
    for rest in ("-wal", "-shm"):
        Path(f"{runs.path}{rest}").unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(runs.path)
        case "link":
            runs.path.symlink_to(kept)
        case _:
            runs.path.mkdir()
    for words in (("runs",), ("doctor", "--offline")):
        code, error = told(capsys, *words)
        assert (code in {1, 4}, "bug" in error) == (True, False)
    assert kept.read_bytes() == before


def test_a_dictionary_that_is_a_number_takes_no_memory(runs: Played) -> None:
    runs.change("UPDATE dictionary SET data = 1000000000000")
    with pytest.raises(StoreError, match="is damaged"):
        Store(str(runs.folder))


def test_a_write_that_fits_no_channel_is_damage(runs: Played, capsys: pytest.CaptureFixture[str]) -> None:
    for channel in ("messages", "changes"):
        runs.change("UPDATE writes SET type = 'msgpack', value = ? WHERE channel = ?", ormsgpack.packb(5), channel)
        code, error = told(capsys, "report", runs.first)
        assert (code, "is damaged" in error, runs.first in error) == (4, True, channel == "changes"), error
