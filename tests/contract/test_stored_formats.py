"""Stores of earlier versions are opened, resumed and undone, or refused with both formats named.

Each version with another format of the store, of the spending or of cassettes has its folder in `stores/`.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from mendgraph import ListedRun, RunState, list_runs, report_html
from mendgraph.graph import cli
from mendgraph.graph.cassettes.cassette_file import CassetteFile, read
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.servers import ReplayServer
from mendgraph.graph.spending.database import FORMAT as SPENDING_FORMAT
from mendgraph.nodes.workspace.store.database_schema import FORMAT as STORE_FORMAT
from tests.contract.stored_formats import CURRENT_NAME, EDITED_FILE, STORES, StoredFormats, stored_formats
from tests.contract.write_stored_formats import CUT_OFF_TASK, FINISHED_TASK, PLACE, own_place
from tests.doubles.scripted_server import Say, ScriptedServer

pytest_plugins = ("pytester",)

ALL = stored_formats()
NEWEST = StoredFormats(STORES / CURRENT_NAME)

READABLE = [stored for stored in ALL if stored.store_format == STORE_FORMAT]
"""A version that reads an older format, too, adds it here; the others have to be refused."""

CASSETTE = "cassettes/test_apple/apple.yaml"

Tree = dict[str, bytes]


def name_of(stored: StoredFormats) -> str:
    return stored.folder.name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a workspace and its data, which every command uses."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return tmp_path


@pytest.fixture
def first_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if os.path.realpath(PLACE.parent) != str(PLACE.parent):
        pytest.skip(f"{PLACE.parent} is a link on this machine")
    assert place.is_dir()
    with own_place() as folder:
        monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder / "data"))
        yield folder


def runs_in(workspace: Path) -> dict[RunState, ListedRun]:
    runs = list_runs(workspace)
    assert isinstance(runs, tuple), runs
    return {run.standing: run for run in runs}


def prices(folder: Path) -> str:
    return (folder / EDITED_FILE).read_text(encoding="utf-8")


def resume(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Resume the run that was cut off; the role and the text of each message that its one request has."""
    with ScriptedServer([Say("A pear costs 6 now.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert cli.main(["resume", "--root", str(workspace)]) == 0
    (request,) = server.requests
    return [(message["role"], message["content"]) for message in request["messages"]]


def tree(folder: Path) -> Tree:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_current_formats_have_their_folder() -> None:
    formats = {name_of(stored): (stored.store_format, stored.spending_format) for stored in ALL}
    assert CURRENT_NAME in formats, (
        f"A stored format has changed, and tests/contract/stores has no folder {CURRENT_NAME}: write it with"
        " `.venv/bin/python -m tests.contract.write_stored_formats`, commit it, and leave the other folders alone."
    )
    assert formats[CURRENT_NAME] == (STORE_FORMAT, SPENDING_FORMAT)


# --- A store that this version reads


@pytest.mark.parametrize("stored", READABLE, ids=name_of)
def test_stored_runs_are_listed_shown_and_reported(
    stored: StoredFormats, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.place(place)
    workspace = place / "workspace"
    runs = runs_in(workspace)
    assert {standing: (run.task, run.files) for standing, run in runs.items()} == {
        RunState.FINISHED: (FINISHED_TASK, (EDITED_FILE,)),
        RunState.CUT_OFF: (CUT_OFF_TASK, (EDITED_FILE,)),
    }

    capsys.readouterr()
    assert cli.main(["runs", "show", runs[RunState.FINISHED].run_id, "--root", str(workspace)]) == 0
    steps = capsys.readouterr().out
    assert "read_file" in steps
    assert "edit_file" in steps

    page = report_html(runs[RunState.FINISHED].run_id, workspace)
    assert isinstance(page, str)
    assert "An apple costs 5 now." in page

    assert cli.main(["usage", "--days", "36500"]) == 0
    assert "gpt-contract" in capsys.readouterr().out


@pytest.mark.parametrize("stored", READABLE, ids=name_of)
def test_interrupted_run_continues_in_its_turn(
    stored: StoredFormats, first_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.place(first_place)
    workspace = first_place / "workspace"

    messages = resume(workspace, monkeypatch)
    assert [role for role, _ in messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert messages[1] == ("user", CUT_OFF_TASK)
    assert prices(workspace) == prices(stored.folder / "workspace")
    assert runs_in(workspace).keys() == {RunState.FINISHED}


@pytest.mark.parametrize("stored", READABLE, ids=name_of)
def test_runs_of_a_moved_workspace_are_resumed_in_a_new_turn_and_undone(
    stored: StoredFormats, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.place(place)
    workspace = place / "workspace"
    runs = runs_in(workspace)

    messages = resume(workspace, monkeypatch)
    assert [role for role, _ in messages] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    assert messages[1] == ("user", CUT_OFF_TASK)
    assert prices(workspace) == prices(stored.folder / "workspace")

    for standing in (RunState.CUT_OFF, RunState.FINISHED):
        assert cli.main(["undo", runs[standing].run_id, "--root", str(workspace)]) == 0
    assert prices(workspace) == prices(stored.folder / "before")


# --- A store that this version refuses


def commands(run_id: str) -> list[list[str]]:
    return [
        ["runs"],
        ["runs", "show", run_id],
        ["runs", "prune", "--keep", "0"],
        ["resume"],
        ["undo", run_id],
        ["apply", run_id],
        ["fork", run_id, "--at", "1"],
        ["report", run_id],
        ["cassette", "from-run", run_id],
        ["chat", "--run", run_id],
        ["--no-evidence", "--model", "gpt-contract", FINISHED_TASK],
    ]


@pytest.mark.parametrize(
    ("stored", "number"),
    [
        pytest.param(NEWEST, STORE_FORMAT + 1, id="newer"),
        pytest.param(NEWEST, STORE_FORMAT - 1, id="older"),
        *(pytest.param(stored, stored.store_format, id=name_of(stored)) for stored in ALL if stored not in READABLE),
    ],
)
def test_store_of_another_format_is_refused_by_every_command_and_unchanged(
    stored: StoredFormats, number: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.place(place, store_format=number)
    before = tree(place)
    root = ["--root", str(place / "workspace")]
    (run_id, *_) = (path.name.partition("-")[0] for path in (place / "data" / "runs").iterdir())
    age, remedy = ("an older", "finish its runs with that version")
    if number > STORE_FORMAT:
        age, remedy = ("a newer", "update mendgraph")
    refusal = f"was written by {age} mendgraph (format {number}, this one knows {STORE_FORMAT})"
    capsys.readouterr()

    for words in commands(run_id):
        code = cli.main([*words, *root])
        output = capsys.readouterr()
        assert (words, code) == (words, 4)
        assert f"{refusal}: {remedy}, or set MENDGRAPH_DATA_DIR to another folder." in output.out + output.err, words
        assert tree(place) == before, words

    assert cli.main(["doctor", "--offline", "--json", *root]) == 1
    assert refusal in capsys.readouterr().out
    assert tree(place) == before


@pytest.mark.parametrize(
    ("number", "age"), [(SPENDING_FORMAT + 1, "a newer"), (SPENDING_FORMAT - 1, "an older")], ids=["newer", "older"]
)
def test_spending_of_another_format_is_refused_when_needed(
    number: int, age: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    NEWEST.place(place, spending_format=number)
    database = place / "data" / "spending" / "spending.sqlite"
    before = database.read_bytes()
    root = ["--root", str(place / "workspace")]
    refusal = f"was written by {age} mendgraph (format {number}, this one knows {SPENDING_FORMAT}): "
    capsys.readouterr()

    limited = ["--max-tokens-per-day", "1000", "--model", "gpt-contract", "--no-evidence", FINISHED_TASK]
    for words in (["usage"], limited):
        assert cli.main([*words, *root]) == 4
        output = capsys.readouterr()
        assert refusal in output.out + output.err
    assert database.read_bytes() == before
    assert prices(place / "workspace") == prices(NEWEST.folder / "workspace")


# --- Cassettes


@pytest.mark.parametrize("stored", ALL, ids=name_of)
def test_stored_cassette_answers_each_recorded_request(stored: StoredFormats) -> None:
    cassette = read(str(stored.folder / "replay" / CASSETTE))
    assert isinstance(cassette, CassetteFile), cassette

    with ReplayServer(Player(cassette, "the cassette")) as server, httpx2.Client() as client:
        for exchange in cassette.exchanges:
            url = server.base_url.removesuffix("/v1") + exchange.path
            reply = client.request(exchange.method, url, content=exchange.request, headers=exchange.request_headers)
            assert (reply.status_code, reply.content) == (exchange.status, exchange.response)
    assert server.player.misses == []


@pytest.mark.parametrize("stored", ALL, ids=name_of)
def test_stored_test_of_a_run_passes_or_reports_a_changed_request(
    stored: StoredFormats, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of another version may differ from the recorded ones; no other failure is allowed."""
    shutil.copytree(stored.folder / "replay", pytester.path, dirs_exist_ok=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "mendgraph.graph.cassettes.plugin", "-p", "no:cacheprovider", "--rootdir", str(pytester.path))
    result = pytester.runpytest_inprocess(*options)
    if result.ret is not pytest.ExitCode.OK:
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*was not recorded in {CASSETTE}*", "*What usually causes this: *"])
