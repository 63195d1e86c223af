"""Runs that are replayed in copies of their folders; `test_replay_command.py` tests the command."""

import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.fleet.replay import Replay, RunFigures, replay_run
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.graph.runs.runs import Forked, RunState, fork_run, undo_run
from mendgraph.nodes.records import ToolErrorCode
from mendgraph.nodes.workspace.store.run_folder import records_folders
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line
from tests.extent import slow
from tests.surfaces.runs.run_plays import (
    FILES,
    LINES,
    context,
    error,
    killed_run,
    list_states,
    project,
    record_trees,
    run_lines,
    state_of,
    tree,
    use,
)
from tests.workspace.processes.git_places import git


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture
def repository(folder: Path) -> Path:
    """A project whose files differ from the only commit."""
    (folder / "calc.py").write_text("old = True\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "calc.py")
    git(folder, "commit", "--quiet", "-m", "first")
    (folder / "calc.py").write_text(FILES["calc.py"])
    return folder


@pytest.fixture(params=["folder", "repository", pytest.param("shared_store", marks=slow)])
def any_project(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The project in a folder, in a repository, and with its runs in a shared store."""
    request.getfixturevalue(request.param)
    return folder


def replay_of(folder: Path, run: str, lines: tuple[Line, ...] = LINES, **options: Any) -> Replay:
    replay = replay_run(run, folder, model=HistoryModel(lines), **options)
    assert isinstance(replay, Replay), replay
    return replay


def records() -> list[str]:
    """The folders of runs and workspaces."""
    return sorted(name for base in records_folders()[:2] if os.path.isdir(base) for name in os.listdir(base))


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {name: file for name, file in tree(folder).items() if file[0] != b"/" and not name.startswith(".git")}


def test_replay_on_the_same_replies_is_the_same_and_leaves_nothing_behind(any_project: Path) -> None:
    folder = any_project
    run = run_lines(folder).run_id
    before, stored = tree(folder), records()
    replay = replay_of(folder, run)
    assert not replay.is_worse
    assert replay.replay.nodes == replay.original.nodes
    assert replay.replay.nodes[:3] == ("begin_turn", "call_model", "parse")
    assert replay.original.run_id == run
    assert (replay.replay.kind, replay.replay.calls) == (replay.original.kind, replay.original.calls) == ("FINISHED", 6)
    assert replay.replay.changed_files == ("calc.py", "pkg/new.py", "docs/calc.md", "notes.txt")
    assert "+    return a + b  # sum" in replay.diff
    assert (files(folder), records(), list_states(folder)) == (
        {name: file for name, file in before.items() if file[0] != b"/" and not name.startswith(".git")},
        stored,
        [(run, RunState.FINISHED)],
    )


@pytest.mark.parametrize(("step", "undone"), [(1, False), (4, True)])
def test_replay_from_a_step_has_the_files_and_the_conversation_after_it(
    any_project: Path, tmp_path: Path, step: int, undone: bool
) -> None:
    folder = any_project
    trees, run = record_trees(folder)
    if undone:
        undo_run(run, folder)
    first = HistoryModel(LINES)
    replay = replay_run(run, folder, from_step=step, model=first)
    assert isinstance(replay, Replay), replay
    assert replay.replay.nodes == replay.original.nodes
    assert replay.replay.nodes[0] == "call_model"
    assert (len(first.calls), replay.replay.calls) == (6 - step, 6)

    replay = replay_of(folder, run, (*LINES[:step], Say("That is enough.")), from_step=step, copy=tmp_path / "copy")
    expected = {name: file for name, file in trees[step].items() if file[0] != b"/" and not name.startswith(".git")}
    assert files(Path(replay.copy)) == expected
    assert list_states(Path(replay.copy))[0] == (replay.replay.run_id, RunState.FINISHED)


@slow
def test_replay_stopped_by_a_limit_is_worse(folder: Path) -> None:
    run = run_lines(folder).run_id
    model = HistoryModel(LINES)
    replay = replay_run(run, folder, model=model, system_prompt="Answer in Latin.", max_calls_per_turn=2)
    assert isinstance(replay, Replay)
    assert (replay.is_worse, replay.replay.kind, replay.replay.reason) == (True, "BUDGET_STOP", "max_calls_per_turn")
    assert "Answer in Latin." in model.calls[0].prompt.messages[0]["content"]
    assert str(replay) == (
        f"run {run[:8]}: FINISHED (answered), checks none; replay: BUDGET_STOP (max_calls_per_turn), checks none"
    )


@slow
def test_replay_from_a_step_uses_the_new_prompt(folder: Path) -> None:
    run = run_lines(folder).run_id
    model = HistoryModel(LINES)
    assert isinstance(replay_run(run, folder, from_step=2, model=model, system_prompt="Answer in Latin."), Replay)
    assert all("Answer in Latin." in call.prompt.messages[0]["content"] for call in model.calls)


@slow
def test_replay_of_several_turns_sends_all_their_requests(folder: Path) -> None:
    with Session(context(folder), model=HistoryModel((*LINES[:2], Say("Done."), *LINES[2:]))) as session:
        session.work("Mend add.")
        session.work("Then write a document.")
    model = HistoryModel((*LINES[:2], Say("Done."), *LINES[2:]))
    replay = replay_run(session.thread_id, folder, model=model)
    assert isinstance(replay, Replay)
    assert replay.replay.nodes == replay.original.nodes
    requests = [message["content"] for message in model.calls[-1].prompt.messages if message["role"] == "user"]
    assert requests[0] == "Mend add."
    assert "Then write a document." in requests
    late = replay_of(folder, session.thread_id, (*LINES[:2], Say("Done."), *LINES[2:]), from_step=1)
    assert late.replay.nodes == late.original.nodes


def test_image_of_a_request_is_sent_again(folder: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(24)
    models = [HistoryModel((Say("A square."),)), HistoryModel((Say("A square."),))]
    run = run_task("What is this?", context(folder, protocol="native"), model=models[0], images=[png]).run_id
    assert isinstance(replay_run(run, folder, model=models[1]), Replay)
    assert models[1].calls[0].prompt.messages[-1] == models[0].calls[0].prompt.messages[-1]
    assert "image" in str(models[1].calls[0].prompt.messages[-1]["content"])


@slow
def test_resume_request_is_omitted_if_the_replay_has_finished(folder: Path) -> None:
    run = run_lines(folder, max_calls_per_turn=3).run_id
    with Session(context(folder), model=HistoryModel(LINES), thread_id=run) as session:
        [*session.resume()]
        assert state_of(folder, run)["outcome"].kind == "FINISHED"
    replay = replay_of(folder, run, max_calls_per_turn=10)
    assert (replay.replay.calls, replay.replay.nodes.count("begin_turn")) == (6, 1)
    assert replay.original.nodes.count("begin_turn") == 2


@slow
def test_fork_is_replayed_from_its_start(folder: Path) -> None:
    run = run_lines(folder).run_id
    forked = fork_run(run, 3, folder)
    with Session(context(folder), model=HistoryModel(LINES), thread_id=forked.run_id) as session:  # type: ignore[union-attr]
        [*session.resume()]
    replay = replay_of(folder, session.thread_id)
    assert (replay.from_step, replay.replay.nodes) == (3, replay.original.nodes)


@slow
def test_call_that_needs_an_approval_is_refused(folder: Path) -> None:
    run = run_task("Mend add.", context(folder, mode="ask"), approve=lambda _: "approve", model=HistoryModel(LINES))
    replay = replay_of(folder, run.run_id)
    assert (len(run.changed_files), replay.replay.changed_files) == (4, ())


@slow
def test_uncommitted_files_are_in_the_copy_except_secret_ones(repository: Path, tmp_path: Path) -> None:
    (repository / ".env").write_text("KEY=1\n")
    (repository / "run.sh").write_text("#!/bin/sh\n")
    (repository / "run.sh").chmod(0o755)
    run = run_lines(repository).run_id
    replay = replay_of(repository, run, copy=tmp_path / "copy")
    copy = Path(replay.copy)
    assert not (copy / ".env").exists()
    assert os.access(copy / "run.sh", os.X_OK)


@slow
def test_installed_folders_that_git_does_not_ignore_are_linked_in_the_copy(repository: Path, tmp_path: Path) -> None:
    (repository / ".venv").mkdir()
    (repository / ".venv/pyvenv.cfg").write_text("")
    (repository / "node_modules/left-pad").mkdir(parents=True)

    copy = Path(replay_of(repository, run_lines(repository).run_id, copy=tmp_path / "copy").copy)

    assert (copy / ".venv").readlink() == repository / ".venv"
    assert (copy / "node_modules/left-pad").readlink() == repository / "node_modules/left-pad"


@slow
def test_run_that_cannot_be_replayed_is_an_error_that_says_why(folder: Path) -> None:
    dead = killed_run(folder, 1)
    assert error(replay_run(dead, folder)).message.startswith("The run has not ended, so there is nothing to compare")
    run = run_lines(folder, (use(("write_file", {"path": "a.txt", "content": "a"})), Say("Done."))).run_id
    unknown = error(replay_run(run, folder, from_step=7))
    assert (unknown.code, unknown.suggestions) == (ToolErrorCode.NOT_FOUND, ("0", "1"))
    (folder / "a.txt").write_text("mine")
    message = "What 'a.txt' held after step 1 is not stored, and the file has been changed since."
    assert error(replay_run(run, folder, from_step=1)).message == message
    assert (folder / "a.txt").read_text() == "mine"


def figures(kind: str, checks: str) -> RunFigures:
    return RunFigures("a", "", kind, "answered", checks, (), (), 0, 0, 0, None, ())


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (("FINISHED", "passed"), ("FINISHED", "passed"), False),
        (("FINISHED", "passed"), ("FINISHED", "indistinct"), True),
        (("FINISHED", "none"), ("FINISHED", "passed"), False),
        (("FINISHED", "none"), ("BUDGET_STOP", "none"), True),
        (("FINISHED", "none"), ("SYSTEM_ERROR", "contradicted"), True),
        (("BUDGET_STOP", "none"), ("SYSTEM_ERROR", "none"), False),
    ],
)
def test_replay_is_worse_if_it_loses_an_answer_or_a_passing_check(
    before: tuple[str, str], after: tuple[str, str], worse: bool
) -> None:
    assert Replay(figures(*before), figures(*after), 0, "", "", ()).is_worse is worse


@slow
def test_worktree_of_a_replay_is_removed_from_the_repository(repository: Path) -> None:
    replay_of(repository, run_lines(repository).run_id)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@slow
def test_copy_into_the_workspace_or_a_folder_with_files_is_refused(repository: Path, tmp_path: Path) -> None:
    run = run_lines(repository).run_id
    copy = Path(replay_of(repository, run, copy=tmp_path / "copy").copy)
    (copy / "calc.py").write_text("mine\n")
    assert error(replay_run(run, repository, copy=tmp_path / "copy")).code == ToolErrorCode.CONFLICT
    assert (copy / "calc.py").read_text() == "mine\n"
    before = tree(repository)
    assert error(replay_run(run, repository, copy=repository / "a" / "copy")).code == ToolErrorCode.INVALID_ARGUMENT
    assert tree(repository) == before


@slow
def test_message_added_to_a_turn_is_added_in_a_replay_and_is_no_request_of_a_fork(folder: Path) -> None:
    with Session(context(folder), model=HistoryModel(LINES)) as session:
        session.add_message("Be brief.")
        session.work("Mend add.")
    model = HistoryModel(LINES)
    assert isinstance(replay_run(session.thread_id, folder, model=model), Replay)
    assert user_messages(model) == ["Mend add.", "Be brief."]

    forked = fork_run(session.thread_id, 2, folder)
    assert isinstance(forked, Forked), forked
    model = HistoryModel((Say("Done."),))
    with Session(context(folder), model=model, thread_id=forked.run_id) as fork:
        fork.work("And then?")
    assert user_messages(model)[0] == "Mend add."
    assert user_messages(model)[-1] == "And then?"


def user_messages(model: HistoryModel) -> list[str]:
    messages = model.calls[-1].prompt.messages
    return [str(message["content"]) for message in messages if message["role"] == "user"]
