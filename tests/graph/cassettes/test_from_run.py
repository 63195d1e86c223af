"""A run becomes a cassette, its files and a test, which plays it again: in another folder and in another process."""

import ast
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, context_on, parse
from mendgraph.graph.cassettes.from_run import (
    TestedRun,
    WrittenCassette,
    cassette_from_run,
    library_of,
    render_test as text_of,
    settings_in_test,
    tests_root as root_of,
)
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.graph.runs.runs import fork_run
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import (
    ModelReply,
    Outcome,
    OutcomeKind,
    ProviderFailure,
    StopReason,
    ToolError,
    ToolErrorCode,
)
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.graph.runs.run_plays import EDIT, LINES, cut_off, project, tree, use
from tests.providers import script as provided
from tests.providers.servers import FAMILIES

pytest_plugins = ("pytester",)

READ = 'tool: read_file({"path": "calc.py"})'
FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
CHANGE = {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}


class SlowModel(ScriptedModel):
    """Somebody stops the session while it answers."""

    def __init__(self, script: Sequence[Line]) -> None:
        super().__init__(script)
        self.session: Session | None = None

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        assert self.session is not None
        self.session.stop("by a test")
        return super().complete(call, on_text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "work")


def played(folder: Path, *lines: Line, task: str = "Mend add.", **settings: Any) -> str:
    """A run with these replies, and its id."""
    usual: dict[str, Any] = {"evidence": False, "protocol": "native", "read_ahead": False}
    context = AgentContext(workspace=str(folder), **{**usual, **settings})
    return run_task(task, context, model=ScriptedModel(lines)).thread_id


def written(workspace: Path, run: str, **options: Any) -> WrittenCassette:
    made = cassette_from_run(run, str(workspace), **options)
    assert isinstance(made, WrittenCassette), made
    return made


def refusal(folder: Path, run: str, **options: Any) -> ToolError:
    """Why there is no test; nothing was written then."""
    before = tree(folder)
    made = cassette_from_run(run, str(folder), **options)
    assert isinstance(made, ToolError), made
    assert tree(folder) == before
    return made


def cassette(folder: Path, name: str) -> CassetteFile:
    text = (folder / f"cassettes/tests/test_{name}/{name}.yaml").read_text(encoding="utf-8")
    found = parse(text)
    assert isinstance(found, CassetteFile), found
    return found


def test_written_tests_replay_their_runs(
    folder: Path, tmp_path: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: dict[str, tuple[Line, ...]] = {
        "healed": (Calls([("edit_file", '{"path": "calc.py"')]), Say(""), EDIT, Say("Done.")),
    }
    everything = tmp_path / "all"
    everything.mkdir()
    (everything / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    for name, lines in runs.items():
        own = project(tmp_path / name)
        made = written(own, played(own, *lines), name=name, folder=str(everything / "tests"))
        assert made.paths[0] == str(everything / f"tests/test_{name}.py")
    text = played(folder, Say(READ), Say(FIX), Say("tool: nothing("), Say("Done."), protocol="text")
    written(folder, text, name="in_text", folder=str(everything / "tests"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "mendgraph.graph.cassettes.plugin", "-p", "no:cacheprovider", "--import-mode=importlib")
    shutil.copytree(everything, pytester.path / "elsewhere")
    pytester.runpytest_inprocess(*options, str(pytester.path / "elsewhere/tests")).assert_outcomes(passed=2)


def test_runs_on_models_of_any_provider_are_replayed_through_chat_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, endpoint = (
        project(tmp_path / "all"),
        ScriptedServer([Calls([("edit_file", json.dumps(CHANGE))]), Say("Done.")]),
    )
    (everything / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    script = [provided.use(("edit_file", json.dumps(CHANGE))), provided.say("Done.")]
    with endpoint, FAMILIES["anthropic"](script) as anthropic:
        monkeypatch.setenv("ANTHROPIC_API_KEY", anthropic.key)
        for model, url in (
            (f"anthropic:{anthropic.model}", anthropic.url),
            ("openai:gpt-4o-mini", endpoint.base_url),
        ):
            provider, _, name = model.partition(":")
            own = project(tmp_path / provider)
            context = AgentContext(workspace=str(own), model=model, base_url=url, evidence=False, read_ahead=False)
            run = run_task("Mend add.", context)
            assert run.outcome.kind is OutcomeKind.FINISHED, run.outcome.message
            written(own, run.thread_id, name=provider, folder=str(everything / "tests"))
            assert cassette(everything, provider).settings["model"] == name


def test_a_run_becomes_a_test_a_cassette_and_its_files(folder: Path) -> None:
    run = played(folder, *LINES)
    before = tree(folder)
    made = written(folder, run, name="mended")
    root = "cassettes/tests/test_mended"
    assert [os.path.relpath(path, folder) for path in made.paths] == [
        "tests/test_mended.py",
        f"{root}/mended.yaml",
        f"{root}/files/before/calc.py",
        f"{root}/files/before/notes.txt",
        f"{root}/files/after/calc.py",
        f"{root}/files/after/docs/calc.md",
        f"{root}/files/after/pkg/new.py",
        f"{root}/files/conftest.py",
    ]
    assert (made.exchanges, made.files, made.end) == (6, 2, "FINISHED (answered)")
    assert (folder / root / "files/before/calc.py").read_text(encoding="utf-8") == "def add(a, b):\n    return a - b\n"
    now = tree(folder)
    assert {path: now[path] for path in before} == before
    kept = cassette(folder, "mended")
    assert kept.recorded_from == f"run {run[:8]}"
    assert {name: kept.settings[name] for name in ("model", "protocol", "edit_form")} == {
        "model": "unnamed",
        "protocol": "native",
        "edit_form": "replace",
    }


def test_turns_of_one_session_are_played_one_after_the_other(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, read_ahead=False, protocol="native")
    with Session(context, model=ScriptedModel([EDIT, Say("Edited."), Say("Done.")])) as session:
        session.work("Mend add.")
        session.work("Go on.")
    written(folder, session.thread_id, name="turns")
    assert [exchange.status for exchange in cassette(folder, "turns").exchanges] == [200, 200, 200]
    text = (folder / "tests/test_turns.py").read_text(encoding="utf-8")
    assert 'session.work("Mend add.")\n        session.work("Go on.")\n' in text


def test_copies_of_earlier_runs_are_not_copied_again(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n", encoding="utf-8")
    run = played(folder, EDIT, Say("Done."))
    made = [written(folder, run, name=f"n{number}") for number in range(2)]
    assert [(each.files, len(each.paths)) for each in made] == [(2, 6)] * 2


def test_cassettes_go_where_the_project_keeps_them(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\nmendgraph_cassettes = kept\n", encoding="utf-8")
    run = played(folder, Say("Done."))
    made = written(folder, run, name="one")
    assert made.paths == (f"{folder}/tests/test_one.py", f"{folder}/kept/tests/test_one/one.yaml")
    assert made.command == f"pytest {folder}/tests/test_one.py"
    (folder / "pytest.ini").write_text("[pytest]\nmendgraph_cassettes = ../kept\n", encoding="utf-8")
    assert "which is no folder below it" in refusal(folder, run, name="two").message


def test_a_file_that_holds_a_secret_is_refused_by_name(folder: Path) -> None:
    (folder / "private.txt").write_text("one\nsk-" + "a1B2" * 10, encoding="utf-8")
    error = refusal(folder, played(folder, use(("read_file", {"path": "private.txt"})), Say("Done.")))
    assert (error.code, error.suggestions) == (ToolErrorCode.PERMISSION_DENIED, ("private.txt",))
    assert "a secret in line 2" in error.message


def test_a_run_that_does_not_repeat_says_where(folder: Path) -> None:
    run = played(folder, use(("read_file", {"path": "notes.txt"})), Say("Done."))
    (folder / "notes.txt").write_text("newer\n", encoding="utf-8")
    error = refusal(folder, run)
    assert error.code is ToolErrorCode.CONFLICT
    assert error.message.startswith("The run does not repeat: in step 1 read_file gave another result: it was ")
    assert "old" in error.message
    assert "newer" in error.message


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.cassettes.replayed_run.MOST_FILES", 1)
    error = refusal(folder, played(folder, use(("list_files", {})), EDIT, Say("Done.")))
    assert error.message.startswith("The run does not repeat: in step 1 list_files gave another result")
    assert "The run needs more than 1 files or 2,000,000 bytes" in error.message


def test_nothing_is_written_over_without_force(folder: Path) -> None:
    run = played(folder, EDIT, Say("Done."))
    written(folder, run, name="one")
    (folder / "tests/test_one.py").write_text("# mine\n", encoding="utf-8")
    assert refusal(folder, run, name="one").code is ToolErrorCode.CONFLICT
    assert written(folder, run, name="one", force=True).name == "one"
    assert "mine" not in (folder / "tests/test_one.py").read_text(encoding="utf-8")


def test_a_name_is_one_that_a_test_can_have(folder: Path) -> None:
    run = played(folder, Say("Done."))
    for name in ("Über", "a-b", "../a", "a b"):
        assert refusal(folder, run, name=name).code is ToolErrorCode.INVALID_ARGUMENT


def test_a_run_that_somebody_stopped_is_refused(folder: Path) -> None:
    model = SlowModel([EDIT])
    with Session(AgentContext(workspace=str(folder), evidence=False), model=model) as session:
        model.session = session
        session.work("Mend add.")
        assert session.result().outcome.reason is StopReason.CANCELLED
    assert "ended with cancelled" in refusal(folder, session.thread_id).message


def test_a_fork_is_refused(folder: Path) -> None:
    forked = fork_run(played(folder, *LINES), 1, str(folder))
    assert not isinstance(forked, ToolError)
    assert "was forked from" in refusal(folder, forked.run_id).message


def test_a_run_that_has_not_ended_is_refused(folder: Path) -> None:
    assert refusal(folder, cut_off(folder)).message.startswith("The run has not ended: ")


def test_a_run_that_needs_what_its_caller_brought_says_so(folder: Path) -> None:
    """Roles and tools of somebody's own are not in the store."""
    context = AgentContext(workspace=str(folder), evidence=False, role="mine")
    run = run_task("Look.", context, model=ScriptedModel([Say("Seen.")]), roles={"mine": ["read_file"]}).thread_id
    message = "The run ended before a model was called: There is no role 'mine'."
    assert refusal(folder, run).message.startswith(message)


def test_what_another_process_would_ask_otherwise_is_no_test(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warmer(*given: Any) -> AgentContext:
        return context_on(*given).model_copy(update={"temperature": 0.5})

    monkeypatch.setattr("mendgraph.graph.cassettes.from_run.context_on", warmer)
    error = refusal(folder, played(folder, EDIT, Say("Done.")))
    assert error.code is ToolErrorCode.CONFLICT
    assert error.message.startswith("The run does not repeat: in another folder it asks for something else: ")
    assert "temperature" in error.message


def test_what_is_in_the_way_of_a_test_is_told(folder: Path) -> None:
    run = played(folder, Say("Done."))
    (folder / "tests/test_one.py").mkdir(parents=True)
    assert "test_one.py" in refusal(folder, run, name="one").message
    (folder / "cassettes").write_text("a file\n", encoding="utf-8")
    assert "cassettes" in refusal(folder, run, name="other").message


def test_neither_the_spending_book_nor_the_store_hears_of_it(folder: Path) -> None:
    from mendgraph.graph.runs.runs import list_runs
    from mendgraph.graph.spending.store import spent_by_day

    run = played(folder, EDIT, Say("Done."))
    before = (list_runs(str(folder)), spent_by_day(1))
    written(folder, run, name="quiet")
    assert (list_runs(str(folder)), spent_by_day(1)) == before


def test_what_an_older_cassette_had_beside_it_is_gone(folder: Path) -> None:
    written(folder, played(folder, *LINES), name="one")
    written(folder, played(folder, Say("Done.")), name="one", force=True)
    assert [path for path in tree(folder / "cassettes") if path.endswith((".py", ".txt", ".md"))] == []


OUTCOME = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
PINNED = {"model": "m", "protocol": "text", "edit_form": "replace", "mendgraph": "0.1.0"}


def run_of(**changed: Any) -> TestedRun:
    usual: dict[str, Any] = {
        "name": "mended",
        "run_id": "0123456789",
        "given": {},
        "requests": ("Mend add.",),
        "outcome": OUTCOME,
        "has_files": True,
        "left": ("calc.py",),
        "gone": ("notes.txt",),
    }
    return TestedRun(**{**usual, **changed})


def test_a_test_is_what_a_person_would_write() -> None:
    assert (
        text_of(run_of())
        == '''\
"""The run 01234567 once more, on what its model said."""

import shutil
from pathlib import Path

import pytest

from mendgraph import Session


@pytest.mark.mendgraph_cassette("mended")
def test_mended(mendgraph_cassette, tmp_path):
    files = Path(mendgraph_cassette.path).parent / "files"
    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)
    with Session(mendgraph_cassette.context(tmp_path)) as session:
        session.work("Mend add.")
        outcome = session.result().outcome
    assert (outcome.kind, outcome.reason) == ("FINISHED", "answered")
    for path in ["calc.py"]:
        assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()
    for path in ["notes.txt"]:
        assert not (tmp_path / path).exists()
'''
    )


@pytest.mark.parametrize("request_text", ['Say "hi".', "back\\slash", "two\nlines", "x'''y", "snow \u2603", "\x1b[0m"])
def test_any_request_is_a_literal(request_text: str) -> None:
    tree = ast.parse(text_of(run_of(requests=(request_text,))))
    assert request_text in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_only_what_the_fixture_does_not_give_is_said() -> None:
    context = AgentContext(
        workspace="/w", base_url="http://u/v1", model="m", protocol="text", edit_form="replace", max_steps=3
    )
    given = settings_in_test(context, PINNED)
    assert given == {"evidence": True, "max_steps": 3}
    assert context_on(PINNED, given, "/w", "http://u/v1") == context


@pytest.mark.parametrize("name", ["pytest.ini", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py"])
def test_the_nearest_folder_that_is_set_up_is_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a" / name).touch()
    assert root_of(str(tmp_path / "a/b/c"), str(tmp_path)) == (str(tmp_path / "a"), True)


def test_without_a_file_it_is_the_workspace_or_the_folder_outside_of_it(tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    assert root_of(f"{work}/tests", work) == (work, False)
    assert root_of(f"{tmp_path}/tests", work) == (f"{tmp_path}/tests", False)


@pytest.mark.parametrize(
    ("files", "library"),
    [
        ({}, "cassettes"),
        ({"pytest.ini": "[pytest]\nmendgraph_cassettes = kept/here/\n"}, "kept/here"),
        ({"pytest.ini": "[pytest]\naddopts = -q\n"}, "cassettes"),
        ({".pytest.ini": "", "tox.ini": "[pytest]\nmendgraph_cassettes = a\n"}, "cassettes"),
        ({"pytest.toml": "[pytest]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "[tool.pytest.ini_options]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "[tool.pytest]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "tool = 1\n", "setup.cfg": "[tool:pytest]\nmendgraph_cassettes = ./a%b\n"}, "a%b"),
        (
            {"pyproject.toml": "[tool.pytest.ini_options]\n", "tox.ini": "[pytest]\nmendgraph_cassettes = a"},
            "cassettes",
        ),
    ],
    ids=str,
)
def test_the_library_is_what_the_option_says(tmp_path: Path, files: dict[str, str], library: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert library_of(str(tmp_path)) == library


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("pytest.ini", b"[pytest]\nmendgraph_cassettes = ../kept\n", "is '../kept', which is no folder below it: name"),
        ("pytest.ini", b"[pytest]\nmendgraph_cassettes\n", "is None, which is no folder below it: name one there"),
        ("pyproject.toml", b"[tool.pytest]\nmendgraph_cassettes = '/kept'\n", "is '/kept', which is no folder below"),
        ("pyproject.toml", b"[tool.pytest]\nmendgraph_cassettes = 5\n", "is 5, which is no folder below it: name one"),
        ("pytest.ini", b"mendgraph_cassettes = a\n", "cannot be read, so pytest would not start: File contains no"),
        ("pyproject.toml", b"[tool.pytest\n", "cannot be read, so pytest would not start: "),
        ("tox.ini", b"[pytest]\naddopts = \xff\n", "cannot be read, so pytest would not start: 'utf-8' codec"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    found = library_of(str(tmp_path))
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert told in found.message
    assert f"{tmp_path}/{name}" in found.message
