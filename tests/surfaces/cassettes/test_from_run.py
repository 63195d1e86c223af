"""A run becomes a cassette, its files and a test, which replays it in another folder and another process."""

import ast
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.graph.cassettes.cassette_file import CassetteFile, parse
from mendgraph.graph.cassettes.from_run import WrittenCassette, cassette_from_run, pytest_root
from mendgraph.graph.cassettes.reciter import Reciter
from mendgraph.graph.cassettes.recorder import REPLAY_URL, CassetteMissError, replayed
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.endpoint_models import endpoint_model
from mendgraph.graph.runs.events import Asked, StepDone
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.graph.runs.runs import fork_run, list_runs
from mendgraph.graph.spending.store import spent_by_day
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import (
    FinishReason,
    ModelReply,
    OutcomeKind,
    ProviderFailure,
    RawCall,
    ToolError,
    ToolErrorCode,
)
from mendgraph.nodes.workspace.store.database import FILE_NAME
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.extent import slow
from tests.providers import script as provided
from tests.providers.servers import FAMILIES
from tests.surfaces.runs.run_plays import EDIT, LINES, killed_run, project, tree, use

pytest_plugins = ("pytester",)

READ = 'tool: read_file({"path": "calc.py"})'
FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
CHANGE = {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "work")


def run_replies(folder: Path, *lines: Line, task: str = "Mend add.", **settings: Any) -> str:
    """A run with these replies, and its id."""
    usual: dict[str, Any] = {"evidence": False, "protocol": "native", "read_ahead": False}
    context = AgentContext(workspace=str(folder), **{**usual, **settings})
    return run_task(task, context, model=ScriptedModel(lines)).thread_id


def write_test(workspace: Path, run: str, **options: Any) -> WrittenCassette:
    result = cassette_from_run(run, str(workspace), **options)
    assert isinstance(result, WrittenCassette), result
    return result


def refusal(folder: Path, run: str, **options: Any) -> ToolError:
    """The error if there is no test; nothing was written then."""
    before = tree(folder)
    result = cassette_from_run(run, str(folder), **options)
    assert isinstance(result, ToolError), result
    assert tree(folder) == before
    return result


def cassette(folder: Path, name: str) -> CassetteFile:
    text = (folder / f"cassettes/tests/test_{name}/{name}.yaml").read_text(encoding="utf-8")
    parsed = parse(text)
    assert isinstance(parsed, CassetteFile), parsed
    return parsed


@slow
def test_written_tests_replay_their_runs(
    folder: Path, tmp_path: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = tmp_path / "all"
    everything.mkdir()
    (everything / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    healed_project = project(tmp_path / "healed")
    healed = run_replies(
        healed_project, Calls([("edit_file", '{"path": "calc.py"')]), Say(""), EDIT, Say("Done."), max_steps=7
    )
    created = write_test(healed_project, healed, name="healed", folder=str(everything / "tests"))
    assert created.paths[0] == str(everything / "tests/test_healed.py")
    text = run_replies(folder, Say(READ), Say(FIX), Say("tool: nothing("), Say("Done."), protocol="text")
    write_test(folder, text, name="in_text", folder=str(everything / "tests"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "mendgraph.graph.cassettes.plugin", "-p", "no:cacheprovider", "--import-mode=importlib")
    shutil.copytree(everything, pytester.path / "elsewhere")
    pytester.runpytest_inprocess(*options, str(pytester.path / "elsewhere/tests")).assert_outcomes(passed=2)


@slow
def test_runs_on_models_of_any_provider_are_replayed_through_chat_completions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [provided.use(("edit_file", json.dumps(CHANGE))), provided.say("Done.")]
    with FAMILIES["anthropic"](script) as anthropic:
        monkeypatch.setenv("ANTHROPIC_API_KEY", anthropic.key)
        context = AgentContext(
            workspace=str(folder), model=f"anthropic:{anthropic.model}", base_url=anthropic.url, evidence=False
        )
        run = run_task("Mend add.", context)
    assert run.outcome.kind is OutcomeKind.FINISHED, run.outcome.message
    write_test(folder, run.thread_id, name="other")
    assert cassette(folder, "other").settings["model"] == anthropic.model


def test_run_becomes_a_test_a_cassette_and_its_files(folder: Path) -> None:
    (folder / "gone.txt").write_text("gone\n", encoding="utf-8")
    gone = (use(("read_file", {"path": "gone.txt"})), use(("delete_file", {"path": "gone.txt"})))
    run = run_replies(folder, *gone, *LINES, task='Mend "add".')
    before, runs_and_spending = tree(folder), (list_runs(str(folder)), spent_by_day(1))
    created = write_test(folder, run, name="mended")
    assert (list_runs(str(folder)), spent_by_day(1)) == runs_and_spending
    root = "cassettes/tests/test_mended"
    assert sorted(os.path.relpath(path, folder) for path in created.paths) == [
        f"{root}/files/after/calc.py",
        f"{root}/files/after/docs/calc.md",
        f"{root}/files/after/pkg/new.py",
        f"{root}/files/before/calc.py",
        f"{root}/files/before/gone.txt",
        f"{root}/files/before/notes.txt",
        f"{root}/files/conftest.py",
        f"{root}/mended.yaml",
        "tests/test_mended.py",
    ]
    assert (created.exchanges, created.files, created.end) == (8, 3, "FINISHED (answered)")
    assert (folder / root / "files/before/calc.py").read_text(encoding="utf-8") == "def add(a, b):\n    return a - b\n"
    now = tree(folder)
    assert {path: now[path] for path in before} == before
    recorded = cassette(folder, "mended")
    assert recorded.recorded_from == f"run {run[:8]}"
    assert {name: recorded.settings[name] for name in ("model", "protocol", "edit_form")} == {
        "model": "unnamed",
        "protocol": "native",
        "edit_form": "replace",
    }
    assert (
        (folder / "tests/test_mended.py").read_text(encoding="utf-8")
        == f'''\
"""The run {run[:8]} once more, on what its model said."""

import shutil
from pathlib import Path

import pytest

from mendgraph import Session


@pytest.mark.mendgraph_cassette("mended")
def test_mended(mendgraph_cassette, tmp_path):
    files = Path(mendgraph_cassette.path).parent / "files"
    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)
    with Session(mendgraph_cassette.context(tmp_path, read_ahead=False)) as session:
        session.work('Mend "add".')
        outcome = session.result().outcome
    assert (outcome.kind, outcome.reason) == ("FINISHED", "answered")
    for path in ["calc.py", "docs/calc.md", "pkg/new.py"]:
        assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()
    for path in ["gone.txt", "notes.txt"]:
        assert not (tmp_path / path).exists()
'''
    )


@slow
def test_turns_of_a_session_are_replayed_in_order(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, read_ahead=False, protocol="native")
    with Session(context, model=ScriptedModel([EDIT, Say("Edited."), Say("Done.")])) as session:
        session.work("Mend add.")
        session.work("Go\non.")
    write_test(folder, session.thread_id, name="turns")
    assert [exchange.status for exchange in cassette(folder, "turns").exchanges] == [200, 200, 200]
    text = (folder / "tests/test_turns.py").read_text(encoding="utf-8")
    assert "session.work(\"Mend add.\")\n        session.work('Go\\non.')\n" in text
    assert ast.parse(text)


@slow
def test_files_that_a_call_names_or_needs_are_kept(folder: Path) -> None:
    for name in ("other.txt", "more.txt"):
        (folder / name).write_text("unread\n", encoding="utf-8")
    named, listed = use(("read_file", {"path": "./other.txt"})), use(("list_files", {}))
    few, every = (run_replies(folder, call, Say("Done.")) for call in (named, listed))
    assert [write_test(folder, run, folder=str(folder.parent / "out/tests")).files for run in (few, every)] == [1, 4]


@slow
def test_earlier_tests_are_not_copied_and_not_replaced_without_force(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n", encoding="utf-8")
    (folder / "cassettes").mkdir()
    (folder / "cassettes/.gitignore").write_text("*.log\n", encoding="utf-8")
    run = run_replies(folder, EDIT, Say("Done."))
    created = [write_test(folder, run, name=f"n{number}") for number in range(2)]
    assert [(created_test.files, len(created_test.paths)) for created_test in created] == [(2, 6)] * 2

    other = run_replies(folder, Say("Done."))
    (folder / "tests/test_n0.py").write_text("# mine\n", encoding="utf-8")
    assert refusal(folder, other, name="n0").code is ToolErrorCode.CONFLICT
    assert write_test(folder, other, name="n0", force=True).name == "n0"
    assert "mine" not in (folder / "tests/test_n0.py").read_text(encoding="utf-8")
    file_names = [path.name for path in (folder / "cassettes/tests/test_n0").rglob("*") if path.is_file()]
    assert sorted(file_names) == [".gitignore", "conftest.py", "n0.yaml"]


# --- Runs that cannot become a test


@slow
def test_invalid_test_name_or_place_is_refused(folder: Path) -> None:
    run = run_replies(folder, Say("Done."))
    for name in ("Über", "a-b", "../a", "a b"):
        assert refusal(folder, run, name=name).code is ToolErrorCode.INVALID_ARGUMENT
    (folder / "tests/test_one.py").mkdir(parents=True)
    assert "test_one.py" in refusal(folder, run, name="one").message
    (folder / "cassettes").write_text("a file\n", encoding="utf-8")
    assert "cassettes" in refusal(folder, run, name="other").message


@slow
def test_run_that_depends_on_more_than_its_model_is_refused(folder: Path) -> None:
    forked = fork_run(run_replies(folder, *LINES), 1, str(folder))
    assert not isinstance(forked, ToolError)
    assert refusal(folder, forked.run_id).code is ToolErrorCode.INVALID_ARGUMENT
    assert refusal(folder, killed_run(folder)).message == "The run has not ended: `mendgraph resume` continues it."
    with Session(AgentContext(workspace=str(folder), evidence=False), model=ScriptedModel([EDIT])) as session:
        for event in session.stream("Mend add."):
            if isinstance(event, StepDone):
                session.stop("by a test")
    assert refusal(folder, session.thread_id).code is ToolErrorCode.CONFLICT
    context = AgentContext(workspace=str(folder), evidence=False, role="mine")  # roles are not in the store
    run = run_task("Look.", context, model=ScriptedModel([Say("Seen.")]), roles={"mine": ["read_file"]}).thread_id
    assert "It ended with: There is no role 'mine'." in refusal(folder, run).message


@slow
def test_run_that_cannot_be_repeated_is_refused(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, protocol="native", mode="ask")
    with Session(context, model=ScriptedModel([EDIT, Say("Done.")])) as session:
        assert isinstance(session.work("Mend add."), Asked)
        session.work_on("approve")
    assert refusal(folder, session.thread_id).message.startswith("The run does not repeat: ")

    run = run_task("Look.", context, model=ScriptedModel([Say("Done.")]), durability="exit").thread_id
    assert "needs durability sync or async" in refusal(folder, run).message


@slow
def test_run_with_too_many_or_missing_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_replies(folder, use(("list_files", {})), EDIT, Say("Done."))
    monkeypatch.setattr("mendgraph.graph.cassettes.stored_run.MOST_FILES", 1)
    refused = refusal(folder, run)
    assert refused.message.startswith("The run does not repeat: message 3 was ")
    assert "The run needs more than 1 files or 2,000,000 bytes" in refused.message
    with closing(
        sqlite3.connect(Path(workspace_folder_path(str(folder)), FILE_NAME), isolation_level=None)
    ) as database:
        database.execute("DELETE FROM backups")
    assert refusal(folder, run).message == "What 'calc.py' held before the run is gone or damaged."


def test_run_that_needs_a_too_large_file_is_refused(folder: Path) -> None:
    (folder / "large.txt").write_bytes(b"x" * 2_100_000)
    run = run_replies(folder, use(("read_file", {"path": "large.txt"})), Say("Done."))
    refused = refusal(folder, run)
    assert refused.message.startswith("'large.txt' is too large to read at once: 2100000 bytes")


def test_file_with_a_secret_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "private.txt").write_text("one\nsk-" + "a1B2" * 10, encoding="utf-8")
    run = run_replies(folder, use(("read_file", {"path": "private.txt"})), Say("Done."))
    refused = refusal(folder, run)
    assert (refused.code, refused.suggestions) == (ToolErrorCode.PERMISSION_DENIED, ("private.txt",))
    assert "a secret in line 2" in refused.message
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    (folder / "private.txt").write_text("correct-horse-battery", encoding="utf-8")
    assert "a secret of the environment" in refusal(folder, run).message


@slow
def test_refusal_shows_where_the_run_does_not_repeat(folder: Path) -> None:
    run = run_replies(folder, use(("read_file", {"path": "notes.txt"})), Say("Done."))
    (folder / "notes.txt").write_text("newer\n", encoding="utf-8")
    refused = refusal(folder, run)
    assert refused.code is ToolErrorCode.CONFLICT
    assert refused.message.startswith("The run does not repeat: message 3 was ")
    assert "old" in refused.message
    assert "newer" in refused.message


def test_rootdir_of_a_written_test_is_the_nearest_configured_folder(tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    assert pytest_root(f"{work}/tests", work) == work
    assert pytest_root(f"{tmp_path}/tests", work) == f"{tmp_path}/tests"
    for name in ("pytest.ini", "pyproject.toml", "setup.py"):
        (tmp_path / name / "b").mkdir(parents=True)
        (tmp_path / name / name).touch()
        assert pytest_root(str(tmp_path / name / "b/c"), str(tmp_path)) == str(tmp_path / name)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text("abc_", min_size=1, max_size=8)
REPLIES = st.builds(
    ModelReply,
    text=TEXTS,
    calls=st.lists(st.builds(RawCall, call_id=NAMES, tool=NAMES, arguments=TEXTS), max_size=3).map(tuple),
    reasoning=TEXTS,
    model=NAMES,
    input_tokens=st.just(90),
    output_tokens=st.just(40),
    finish_reason=st.sampled_from([reason for reason in FinishReason if reason is not FinishReason.REFUSAL]),
)


@slow
@settings(max_examples=10)
@given(REPLIES)
def test_recorded_reply_is_returned_unchanged_and_once(reply: ModelReply) -> None:
    call = Call(prompt=Prompt(messages=({"role": "user", "content": "a"},)), max_output_tokens=9, timeout_s=60.0)
    reciter = Reciter("m", [reply])
    with replayed(reciter):
        model = endpoint_model(Endpoint(model="m", base_url=REPLAY_URL), PLAIN)
        assert not isinstance(model, ProviderFailure)
        reply_of_model = model.complete(call, lambda _: None)
        with pytest.raises(CassetteMissError, match="no further reply"):
            httpx2.post(f"{REPLAY_URL}/chat/completions", json={})
    assert isinstance(reply_of_model, ModelReply)
    assert reply_of_model.model_copy(update={"seconds": 0.0, "allowed_tokens": 0, "provider": {}}) == reply
    assert len(reciter.exchanges) == 1
