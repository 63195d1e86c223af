"""Runs resumed at the command line as a person does it: with the command from the last line of the output."""

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mendgraph import Asked, ListedRun, RunState, Session, get_run
from mendgraph.graph import cli
from mendgraph.nodes.workspace.store.run_folder import workspace_folder
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.sandboxes import without_first_line
from tests.surfaces.runs.run_plays import (
    DOWN,
    EDIT,
    LINES,
    Killed,
    KilledModel,
    context,
    killed_run,
    list_states,
    project,
    run_lines,
    tree,
)

Run = Callable[..., tuple[int, str, str]]
MENDED = "def add(a, b):\n    return a + b\n"


class Person(io.StringIO):
    """The input of a terminal with this typed text."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = project(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on a model with these replies: exit code, standard output, standard error."""

    def called(*words: str, lines: tuple[Line, ...] = LINES, typed: io.StringIO | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(cli, "_session_options", lambda: {"model": HistoryModel(lines)})
        monkeypatch.setattr(sys, "stdin", typed or io.StringIO())
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # a pipe would get only the answer
        monkeypatch.setenv("COLUMNS", "1000")
        monkeypatch.setenv("TERM", "dumb")
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, without_first_line(captured.err)

    assert folder.is_dir()
    return called


def resume_command(error: str) -> list[str]:
    """The command that the last line names."""
    words = shlex.split(error.splitlines()[-1].rpartition("continue with: ")[2])
    assert words[0] == "mendgraph"
    return words[1:]


@slow
def test_interrupted_run_is_resumed_with_its_output_shown(run: Run, folder: Path) -> None:
    dead = killed_run(folder, 3)
    code, out, err = run("resume")
    assert code == 0
    assert out.startswith("→ apply_patch  edited calc.py, created docs/calc.md\n→ delete_file notes.txt  deleted\n")
    assert "FINISHED (answered): Changed calc.py, pkg/new.py, docs/calc.md; deleted notes.txt; not checked" in out
    assert err == (
        f"mendgraph: resumes run {dead[:8]} (Mend add.), mode auto\n"
        f"mendgraph: run {dead[:8]}; undo with: mendgraph undo {dead[:8]}\n"
    )
    assert list_states(folder) == [(dead, RunState.FINISHED)]


@slow
def test_resumed_run_shows_a_raised_limit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
    raised = {"decisions": {"0": {"action": "edit", "arguments": {"max_calls_per_turn": 3}}}}
    with ScriptedServer([Say("Mended.")]) as server:
        limited = context(folder, on_limit="ask", max_calls_per_turn=1, model="scripted", base_url=server.base_url)
        with Session(limited, model=KilledModel((EDIT,), 1)) as session:
            assert isinstance(session.work("Mend add."), Asked)
            with pytest.raises(Killed):
                list(session.answer(raised))

        assert cli.main(["resume"]) == 0

    err = capsys.readouterr().err
    assert "; at most 3 calls and " in err
    assert "usage: 3/3 calls" in err  # the call of the dead process counts


@slow
def test_resume_of_a_finished_run_says_so_and_runs_nothing(run: Run, folder: Path) -> None:
    done = run_lines(folder).thread_id
    after = tree(folder)
    talk = f"mendgraph chat --run {done[:8]}"
    assert run("resume", done[:8]) == (
        0,
        "",
        f"mendgraph: run {done[:8]} has finished; send it another request with: {talk}\n",
    )
    code, out, err = run("resume", done[:8], "--json")
    result = json.loads(out)
    assert (code, err, result["thread_id"], result["outcome"]["answer"]) == (0, "", done, "It adds now.")
    assert ("resume" in result, tree(folder)) == (False, after)


@slow
@pytest.mark.parametrize("json_wanted", [True, False])
def test_run_stopped_by_a_limit_names_the_command_that_continues_it(run: Run, folder: Path, json_wanted: bool) -> None:
    code, out, err = run("Mend add.", "--max-calls", "4", *["--json"] * json_wanted)
    command = shlex.split(json.loads(out)["resume"])[1:] if json_wanted else resume_command(err)
    (stopped,) = [run_id for run_id, _ in list_states(folder)]
    assert (code, command) == (3, ["resume", stopped[:8]])
    assert ("continue with" in err) is not json_wanted
    wrapped_up = Say("The limit is reached.")  # the machine's own reply is part of the conversation, too
    code, out, err = run(*command, lines=(*LINES[:4], wrapped_up, *LINES[4:]))
    assert (code, err.splitlines()[1:]) == (
        0,
        [f"mendgraph: run {stopped[:8]}; undo with: mendgraph undo {stopped[:8]}"],
    )
    assert err.startswith(f"mendgraph: resumes run {stopped[:8]} (Mend add.)")
    assert not (folder / "notes.txt").exists()


@slow
def test_run_continues_after_repeated_outages_with_the_same_result(run: Run, folder: Path) -> None:
    """So does its fork."""
    code, _, err = run("Mend add.", lines=(LINES[0], DOWN))
    assert code == 4
    command = resume_command(err)
    code, _, err = run(*command, lines=(DOWN,) * 9)
    assert (code, resume_command(err)) == (4, command)
    code, _, _ = run(*command)
    after = tree(folder)
    assert (code, set(after)) == (0, {"calc.py", "pkg", "pkg/new.py", "docs", "docs/calc.md"})
    ((done, state),) = list_states(folder)
    assert state is RunState.FINISHED

    _, out, _ = run("fork", done[:8], "--at", "2")
    assert (folder / "calc.py").read_text(encoding="utf-8") == MENDED
    code, _, err = run(*resume_command(out), lines=(DOWN,) * 9)
    assert (code, run(*resume_command(err))[0], tree(folder)) == (4, 0, after)
    assert run("undo", done[:8])[0] == 4


@slow
def test_chat_can_be_continued_where_it_was_left(run: Run, folder: Path) -> None:
    code, out, err = run("chat", "--max-calls", "7", lines=(Say("Hi."),), typed=io.StringIO("Hello\n"))
    command = resume_command(err)
    assert (code, command[:2]) == (0, ["chat", "--run"])
    lines = (Say("Hi."), EDIT, Say("Mended."))
    code, out, err = run(*command, lines=lines, typed=io.StringIO("Mend add.\n"))
    assert (code, (folder / "calc.py").read_text(encoding="utf-8"), resume_command(err)) == (0, MENDED, command)
    assert "usage: 2/7 calls" in out
    assert "usage: 1/9 calls" in run(*command, "--max-calls", "9", lines=(), typed=io.StringIO("Thanks.\n"))[1]
    listed_run = get_run(command[-1], str(folder))
    assert isinstance(listed_run, ListedRun)
    assert (listed_run.turns, listed_run.context.max_calls_per_turn) == (3, 9)


def test_last_run_of_the_folder_continues_with_a_task_or_a_chat(run: Run, folder: Path) -> None:
    code, _, err = run("-c", "Mend add.")
    assert (code, "This folder has no runs yet." in err) == (2, True)
    assert run("Mend add.", "--max-calls", "7")[0] == 0
    ((first, _),) = list_states(folder)

    assert run("--continue", "Thank you.", lines=(*LINES, Say("You are welcome.")))[0] == 0
    assert run("-c", "chat", lines=(*LINES, Say("Yes."), Say("It is.")), typed=io.StringIO("Done?\n"))[0] == 0
    record = get_run(first, str(folder))
    assert isinstance(record, ListedRun)
    assert (len(list_states(folder)), record.turns, record.context.max_calls_per_turn) == (1, 3, 7)

    assert run("-c", "runs")[0] == 2
    assert run("-c", "--unattended", "Mend add.")[0] == 2
    assert run("-c", "chat", "--run", first)[0] == 2


@slow
def test_chat_that_continues_a_run_shows_its_open_approval_request(run: Run, folder: Path) -> None:
    with Session(context(folder, mode="ask"), model=HistoryModel((EDIT,))) as session:
        assert isinstance(session.work("Mend add."), Asked)
    code, _, err = run("-c", "chat", lines=(EDIT, Say("Mended.")), typed=Person("y\n"))
    assert (code, (folder / "calc.py").read_text(encoding="utf-8")) == (0, MENDED)
    assert "Allow edit_file calc.py? " in err


@slow
def test_resume_shows_an_unanswered_approval_request_again(run: Run, folder: Path) -> None:
    with Session(context(folder, mode="ask"), model=HistoryModel((EDIT,))) as session:
        assert isinstance(session.work("Mend add."), Asked)
    assert list_states(folder) == [(session.thread_id, RunState.ASKS)]
    code, _, err = run("resume", lines=(EDIT, Say("Mended.")), typed=Person("y\n"))
    assert (code, (folder / "calc.py").read_text(encoding="utf-8")) == (0, MENDED)
    assert "Allow edit_file calc.py? " in err


@slow
@pytest.mark.parametrize("durability", [None, "exit"])
def test_durability_of_the_first_turn_is_kept(run: Run, folder: Path, durability: str | None) -> None:
    chosen = ["--durability", durability] if durability else []
    assert run("Mend add.", "--max-calls", "3", *chosen)[0] == 3
    assert run("resume", lines=())[0] == 0
    listed_run = get_run(list_states(folder)[0][0], str(folder))
    assert isinstance(listed_run, ListedRun)
    assert (listed_run.durability, listed_run.standing) == (durability or "sync", RunState.FINISHED)


def test_run_that_could_not_start_cannot_be_resumed(run: Run, folder: Path) -> None:
    place = workspace_folder(str(folder))
    assert isinstance(place, str)
    with RunLock(place) as lock:
        assert lock.acquire(Owner("nightly")) is None
        code, out, err = run("Mend add.")
        result = json.loads(run("Mend add.", "--json")[1])
    assert (code, err, "nightly" in out, "resume" in result, list_states(folder)) == (4, "", True, False, [])


@slow
def test_command_prints_one_line_about_a_run_without_problems(run: Run, folder: Path) -> None:
    assert re.fullmatch(r"mendgraph: run ([0-9a-f]{8}); undo with: mendgraph undo \1\n", run("Mend add.")[2])
    assert [line for line in run("Mend add.", "--json")[2].splitlines() if line.startswith("mendgraph")] == []
    assert len(list_states(folder)) == 2


@slow
@pytest.mark.parametrize("allowed", [True, False])
def test_continued_run_asks_questions_only_if_the_settings_allow_it(run: Run, folder: Path, allowed: bool) -> None:
    (folder / ".mendgraph.toml").write_text("" if allowed else "questions = false\n")
    with Session(context(folder), model=HistoryModel((Say("Done."),))) as session:
        session.work("Look.")
    code, _, err = run("-c", "Look again.", lines=(Say("Done."), Say("Done.")), typed=Person())
    record = get_run(session.thread_id, folder)
    assert isinstance(record, ListedRun), record
    assert (code, record.context.questions) == (0, allowed), err
