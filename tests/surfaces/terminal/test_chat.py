"""The commands of a chat, on a scripted model in a real workspace."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mendgraph import undo_run
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import StepDone
from mendgraph.graph.terminal.chat import COMMANDS, KEYS, _files, chat, prompt_for, terminal_prompt
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.turns import Turns
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.extent import slow
from tests.surfaces.terminal.played_terminal import BUG, FIX, READ, Terminal
from tests.surfaces.terminal.signalled_models import STOPPING, Interrupted, Terminated, TerminatedTwice

COMMENT = 'tool: edit_file({"path": "calc.py", "old_str": "a + b", "new_str": "a + b  # sum"})'
PLAN = 'tool: update_plan({"steps": [{"title": "Look\\u001b[2J", "status": "done"}, {"title": "Mend"}]})'
DIFF = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"


def run_chat(folder: Path, script: Sequence[str], lines: Sequence[str], **options: Any) -> Terminal:
    terminal = Terminal(folder, script, lines=lines, **options)
    assert chat(terminal.setup) is ExitCode.FINISHED
    return terminal


@slow
def test_undo_restores_turn_by_turn_and_the_model_is_told(tmp_path: Path) -> None:
    script = [FIX, "Fixed.", COMMENT, "Said.", "Hello."]
    lines = ["fix", "comment", "/undo", "/diff", "/undo", "/undo", "and now?"]
    terminal = Terminal(tmp_path, script, lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.calc.read_text(encoding="utf-8") == BUG
    assert terminal.out.count("restored calc.py\n") == 2
    assert f"restored calc.py\n{DIFF}restored calc.py\nnothing to undo: " in terminal.out
    note = "(I took back your changes of these files, so read them again: calc.py.)\n\n"
    assert f"{note}and now?" in [message["content"] for message in model.calls[-1].prompt.messages]
    assert terminal.err == f"mendgraph: run {tmp_path.name}; continue with: {terminal.chat}\n"


@slow
def test_model_is_shown_and_can_be_changed_for_the_next_turn(tmp_path: Path) -> None:
    terminal = Terminal(
        tmp_path, [FIX, "Fixed.", READ, "It adds."], lines=["fix", "/model", "/model b", "see", "/usage"]
    )
    environment = {"OPENAI_BASE_URL": "http://me:secret@llm.test/v1"}
    setup = replace(
        terminal.setup, environment=environment, context=terminal.setup.context.model_copy(update={"model": "a"})
    )
    assert chat(setup) is ExitCode.FINISHED
    assert "model: a at http://llm.test/v1\nmodel: b at http://llm.test/v1, from the next turn on\n" in terminal.out
    assert "API Usage Stats:\n  Calls: 4/100\n  Turn Calls: 2/10\n" in terminal.out
    assert "secret" not in terminal.out


def test_base_url_is_not_used_for_another_provider(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [], lines=["/model openai:b", "/model anthropic:c", "/model"])
    context = terminal.setup.context.model_copy(update={"model": "a", "base_url": "http://llm.test/v1"})
    assert chat(replace(terminal.setup, context=context)) is ExitCode.FINISHED
    assert "model: b at http://llm.test/v1, from" in terminal.out
    assert terminal.out.count("model: anthropic:c") == 2
    assert "anthropic:c at" not in terminal.out


@slow
def test_mode_applies_from_the_next_turn_and_clear_starts_a_new_thread(tmp_path: Path) -> None:
    lines = ["hi", "/mode", "/mode ask", "fix", "/undo", "/clear", "/usage", "again"]
    terminal = Terminal(tmp_path, ["Hello.", FIX, "I may not.", "Once more."], lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "mode: auto\nmode: ask, from the next turn on\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG
    assert "started a new conversation; " in terminal.out
    assert "API Usage Stats:\n  Calls: 0/100\n" in terminal.out
    assert "hi" not in [message["content"] for message in model.calls[-1].prompt.messages]


def test_chat_without_a_request_shows_no_usage(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [], lines=["/mode", "/exit"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert (terminal.out, terminal.err) == ("mode: auto\n", "")


def test_ctrl_c_ends_a_turn_but_not_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "I wait", "Here again."], model=Interrupted, lines=["hi", "wait", "and?"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err.startswith(STOPPING)
    assert terminal.out.count("FINISHED (answered): No file was changed.\n") == 2
    assert terminal.out.count("BUDGET_STOP (cancelled): The run was stopped by you (Ctrl-C).\n") == 1
    assert "mendgraph: Here again.\n" in terminal.out


@pytest.mark.parametrize("model", [Terminated, TerminatedTwice])
def test_sigterm_ends_the_chat_with_its_turn(tmp_path: Path, model: type[Interrupted]) -> None:
    terminal = Terminal(tmp_path, [READ, "I wait", "Here again."], model=model, lines=["wait", "and?"])
    assert chat(terminal.setup) is ExitCode.TERMINATED
    assert (terminal.prompts, "API Usage Stats:" in terminal.out) == (["You: "], True)


def test_completion_offers_only_files_that_the_model_may_read(tmp_path: Path) -> None:
    for name in ("calc.py", ".env", "ignored.log", ".gitignore"):
        (tmp_path / name).write_text("*.log\n", encoding="utf-8")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "new.py").touch()
    assert _files(AgentContext(workspace=str(tmp_path))) == [".gitignore", "calc.py", "pkg/new.py"]


def repository(folder: Path) -> None:
    for words in (["init", "-q"], ["config", "user.name", "me"], ["config", "user.email", "me@x"]):
        git(folder, *words)
    for name in ("calc.py", "mine.py"):
        (folder / name).write_text(BUG, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


NEW = 'tool: write_file({"path": "new.py", "content": "x = 1\\n"})'
MINE = 'tool: edit_file({"path": "mine.py", "old_str": "a - b", "new_str": "a + b"})'


def test_commit_contains_only_what_the_chat_has_changed(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "mine.py").write_text(BUG.replace("a - b", "a - b  # mine"), encoding="utf-8")
    (tmp_path / "staged.py").write_text("y = 2\n", encoding="utf-8")
    git(tmp_path, "add", "staged.py")

    def lines() -> Iterator[str]:
        yield from ("/commit", "fix add", "/commit", "/commit", "more", "/commit say it")
        (tmp_path / "calc.py").write_text("mine\n")
        yield "/commit"

    terminal = Terminal(tmp_path, [FIX, NEW, MINE, "Fixed.", COMMENT, "Said."], lines=lines())
    (tmp_path / "calc.py").write_text(BUG, encoding="utf-8")
    assert chat(terminal.setup) is ExitCode.FINISHED
    left_out = f"'mine.py' stays in {tmp_path} (it had uncommitted changes)"
    committed = re.findall(r"Committed to the current branch \((\w+)\); (.*)\n", terminal.out)
    assert [reason for _, reason in committed] == [left_out, left_out]
    assert f"There is nothing to commit; {left_out}\n" in terminal.out
    assert f"'calc.py' stays in {tmp_path} (it has changed since)" in terminal.out
    assert git(tmp_path, "log", "--format=%s").split("\n")[:3] == ["say it", "fix add", "first"]
    assert git(tmp_path, "show", "--name-only", "--format=", "HEAD~1").split() == ["calc.py", "new.py"]
    assert git(tmp_path, "status", "--porcelain").split("\n")[:3] == [" M calc.py", " M mine.py", "A  staged.py"]


def numbered_lines(**lines: str) -> str:
    """Thirty lines, some of them replaced: `n3="three"`."""
    return "".join(f"{lines.get(f'n{number}', number)}\n" for number in range(30))


def edit(path: str, old: str, new: str) -> str:
    return f"tool: edit_file({json.dumps({'path': path, 'old_str': old, 'new_str': new})})"


@pytest.mark.parametrize(
    ("file", "staged", "index", "status"),
    [
        ({"n3": "mine"}, {}, {}, " M"),
        ({"n3": "mine"}, {"n3": "mine"}, {"n3": "mine"}, "M "),
        ({"n3": "mine", "n9": "later"}, {"n3": "mine"}, {"n3": "mine"}, "MM"),
        ({}, {"n3": "mine"}, {"n3": "mine"}, "MM"),
    ],
    ids=["changed", "staged", "changed and staged", "staged and taken back in the file"],
)
def test_commit_contains_only_the_runs_part_of_a_file(
    tmp_path: Path, file: dict[str, str], staged: dict[str, str], index: dict[str, str], status: str
) -> None:
    repository(tmp_path)
    path = tmp_path / "numbers.txt"
    path.write_text(numbered_lines(), encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "numbers")
    path.write_text(numbered_lines(**staged), encoding="utf-8")
    git(tmp_path, "add", ".")
    path.write_text(numbered_lines(**file), encoding="utf-8")

    script = [edit("numbers.txt", "\n20\n", "\nrun\n"), "Changed."]
    terminal = run_chat(tmp_path, script, ["change it", "/commit"])
    assert "; your own changes of 'numbers.txt' are not in it" in terminal.out
    assert git(tmp_path, "show", "HEAD:numbers.txt") == numbered_lines(n20="run")
    assert git(tmp_path, "show", ":numbers.txt") == numbered_lines(**index, n20="run")
    assert path.read_text(encoding="utf-8") == numbered_lines(**file, n20="run")
    assert git(tmp_path, "status", "--porcelain", "numbers.txt") == f"{status} numbers.txt\n"

    assert undo_run(tmp_path.name, str(tmp_path))
    assert path.read_text(encoding="utf-8") == numbered_lines(**file)


def test_file_that_was_untracked_before_is_not_committed(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "notes.txt").write_text(numbered_lines(), encoding="utf-8")
    script = [edit("notes.txt", "\n20\n", "\nrun\n"), FIX, "Changed."]
    terminal = run_chat(tmp_path, script, ["change them", "/commit"])
    assert f"'notes.txt' stays in {tmp_path} (it had uncommitted changes)" in terminal.out
    assert git(tmp_path, "status", "--porcelain") == "?? notes.txt\n"


RUN = edit("notes.txt", "\n20\n", "\nrun\n")
MOVED = 'tool: move_file({"path": "notes.txt", "target": "moved.txt"})'
MOVED_ON = 'tool: move_file({"path": "moved.txt", "target": "again.txt"})'
DELETED = 'tool: delete_file({"path": "notes.txt"})'
WRITTEN = f"tool: write_file({json.dumps({'path': 'notes.txt', 'content': numbered_lines(n20='run')})})"
NOT_COMMITTED = "it had uncommitted changes"


@slow
@pytest.mark.parametrize(
    ("committed", "words", "script", "left_out", "reason"),
    [
        (None, [], [MOVED], "moved.txt", NOT_COMMITTED),
        (None, [], [RUN, MOVED, MOVED_ON], "again.txt", NOT_COMMITTED),
        (None, [], [DELETED, WRITTEN], "notes.txt", NOT_COMMITTED),
        (numbered_lines(n3="old"), [], [MOVED], "notes.txt', 'moved.txt", NOT_COMMITTED),
        (numbered_lines(), ["--chmod=+x"], [RUN], "notes.txt", "its mode was changed"),
        (numbered_lines(), ["--skip-worktree"], [RUN], "notes.txt", "skip-worktree or assume-unchanged is set"),
        (numbered_lines(), ["--assume-unchanged"], [RUN], "notes.txt", "skip-worktree or assume-unchanged is set"),
        (
            numbered_lines(n3="old"),
            ["--assume-unchanged"],
            [RUN],
            "notes.txt",
            "skip-worktree or assume-unchanged is set",
        ),
    ],
    ids=[
        "untracked and moved",
        "untracked, changed and moved twice",
        "untracked, deleted and written again",
        "changed and moved",
        "of another mode",
        "not in the worktree",
        "assumed to be unchanged",
        "changed and assumed to be unchanged",
    ],
)
def test_special_file_and_file_that_holds_a_persons_text_are_not_committed(
    tmp_path: Path, committed: str | None, words: list[str], script: list[str], left_out: str, reason: str
) -> None:
    repository(tmp_path)
    notes = tmp_path / "notes.txt"
    if committed is not None:
        notes.write_text(committed, encoding="utf-8")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", "notes")

    notes.write_text(numbered_lines(), encoding="utf-8")
    git(tmp_path, "update-index", *words, *(["notes.txt"] if words else []))
    before = git(tmp_path, "rev-parse", "HEAD"), git(tmp_path, "ls-files", "-v", "--stage", "notes.txt")

    terminal = run_chat(tmp_path, [*script, FIX, "Done."], ["go", "/commit"])
    assert re.search(rf"; '{left_out}' stays? in .*{reason}", terminal.out)
    assert git(tmp_path, "show", "--name-only", "--format=%P", "HEAD").split() == [before[0].strip(), "calc.py"]
    assert git(tmp_path, "ls-files", "-v", "--stage", "notes.txt") == before[1]


@slow
def test_changes_are_committed_even_if_the_person_has_staged_some(tmp_path: Path) -> None:
    repository(tmp_path)

    def lines() -> Iterator[str]:
        yield "fix add"
        git(tmp_path, "add", ".")
        yield from ("say it", "/commit")

    again = 'tool: edit_file({"path": "new.py", "old_str": "1", "new_str": "2"})'
    terminal = Terminal(tmp_path, [FIX, NEW, "Fixed.", READ, COMMENT, again, "Said."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert re.search(r"Committed to the current branch \(\w+\)\n", terminal.out)
    assert git(tmp_path, "show", "HEAD:new.py") == "x = 2\n"
    assert git(tmp_path, "status", "--porcelain") == ""


def test_persons_commit_during_the_chats_commit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path)
    program = tmp_path / ".git" / "bin" / "git"
    program.parent.mkdir()
    real = shutil.which("git")
    person = f"{real} -c user.name=me -c user.email=me@x commit -qm second"
    program.write_text(
        f'#!/bin/sh\ncase $1 in commit*) (unset GIT_INDEX_FILE; {person} >&2);; esac\nexec {real} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)

    def lines() -> Iterator[str]:
        yield "fix add"
        (tmp_path / "second.py").write_text("y = 2\n", encoding="utf-8")
        git(tmp_path, "add", "second.py")
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
            yield "/commit"

        yield "/commit"

    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "cannot lock ref 'HEAD'" in terminal.err
    assert git(tmp_path, "log", "--format=%s").split("\n")[:3] == ["fix add", "second", "first"]
    assert git(tmp_path, "show", "--name-only", "--format=", "HEAD").split() == ["calc.py"]
    assert git(tmp_path, "status", "--porcelain") == ""


@pytest.mark.parametrize("lock", ["index.lock", "HEAD.lock"])
def test_failed_commit_changes_neither_the_branch_nor_the_index(tmp_path: Path, lock: str) -> None:
    repository(tmp_path)

    def lines() -> Iterator[str]:
        yield "fix add"
        (tmp_path / ".git" / lock).touch()
        yield "/commit"

    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert f"{lock}': File exists" in terminal.err
    (tmp_path / ".git" / lock).unlink()
    assert git(tmp_path, "log", "--format=%s") == "first\n"
    assert git(tmp_path, "status", "--porcelain") == " M calc.py\n"


def test_persons_edits_between_two_changes_of_the_chat_are_not_committed(tmp_path: Path) -> None:
    repository(tmp_path)

    def lines() -> Iterator[str]:
        yield "fix add"
        calc = tmp_path / "calc.py"
        calc.write_text(calc.read_text(encoding="utf-8") + "mine = 1\n", encoding="utf-8")
        yield from ("say it", "/commit")

    terminal = Terminal(tmp_path, [FIX, "Fixed.", READ, COMMENT, "Said."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert f"There is nothing to commit; 'calc.py' stays in {tmp_path} (it had uncommitted changes" in terminal.out
    assert git(tmp_path, "log", "--format=%s") == "first\n"


OPERATIONS = {
    "MERGE_HEAD": "git merge --abort",
    "CHERRY_PICK_HEAD": "git cherry-pick --abort",
    "REVERT_HEAD": "git revert --abort",
    "rebase-merge": "git rebase --abort",
    "sequencer": "git status",
    "BISECT_LOG": "git bisect reset",
}


@slow
@pytest.mark.parametrize(("name", "end"), OPERATIONS.items())
def test_commit_during_a_git_operation_is_refused_and_stages_nothing(tmp_path: Path, name: str, end: str) -> None:
    repository(tmp_path)
    (tmp_path / ".git" / name).write_text(git(tmp_path, "rev-parse", "HEAD"), encoding="utf-8")
    terminal = run_chat(tmp_path, [FIX, "Fixed."], ["fix add", "/commit"])
    assert f"has not ended (.git/{name} exists). End it with " in terminal.err
    assert f"`{end}`" in terminal.err
    assert git(tmp_path, "diff", "--cached", "--name-only") == ""


@slow
def test_commit_on_a_detached_head_names_it(tmp_path: Path) -> None:
    repository(tmp_path)
    git(tmp_path, "switch", "--quiet", "--detach")
    terminal = run_chat(tmp_path, [FIX, "Fixed."], ["fix add", "/commit"])
    commit = git(tmp_path, "rev-parse", "--short=9", "HEAD").strip()
    assert f"Committed to the detached HEAD ({commit}), which no branch has: `git branch NAME` keeps it" in terminal.out


def test_commit_of_an_interrupted_turn_needs_a_message(tmp_path: Path) -> None:
    repository(tmp_path)
    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=["/commit", "/commit add adds"])
    with Turns(terminal.setup) as turns:
        events = turns.session.stream("fix add")
        next(event for event in events if isinstance(event, StepDone))
        events.close()

    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "The last turn has not ended: resume it" in terminal.err
    assert git(tmp_path, "log", "--format=%s") == "add adds\nfirst\n"


def test_report_permissions_and_commit_are_json_objects(tmp_path: Path) -> None:
    lines = ["/permissions", "/commit", "hi", "/report", "/permissions", "/commit"]
    objects = [json.loads(line) for line in run_chat(tmp_path, ["Hello."], lines, as_json=True).out.splitlines()]
    assert objects[:2] == [{"permissions": []}, {"commit": {"commit": ""}}]
    assert Path(objects[3]["report"]["path"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert objects[5] == {"commit": {"commit": ""}}


LONG = "Look at this: " + "words and more words " * 1_000
SUMMARY = '{"done": ["greeted the person"]}'


def test_compact_replaces_the_conversation_with_a_summary(tmp_path: Path) -> None:
    lines = ["hi", "/compact", LONG, "more", "/compact", "and now?"]
    terminal = Terminal(tmp_path, ["Hello.", "I looked.", "Here.", SUMMARY, "Now this."], lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err.startswith("mendgraph: The conversation is too short for a summary.")
    assert "the model is shown a summary of the conversation's beginning" in terminal.out
    sent = str(model.calls[-1].prompt.messages)
    assert ("- greeted the person" in sent, LONG in sent, "and now?" in sent) == (True, False, True)
    assert terminal.out.count("FINISHED (answered)") == 4


def test_compact_without_a_summary_changes_nothing(tmp_path: Path) -> None:
    lines = [LONG, "more", "/compact", "and now?"]
    terminal = Terminal(tmp_path, ["I looked.", "Here.", "x" * 9_000, "Now this."], lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "The model returned no usable summary; nothing was changed." in terminal.err
    assert LONG in str(model.calls[-1].prompt.messages)


@slow
def test_undo_works_if_an_approval_request_is_open(tmp_path: Path) -> None:
    answers = iter("y")

    def ask(_: str) -> str:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    script, lines = [FIX, "Fixed.", COMMENT, "Hello."], ["fix", "more", "/undo", "hi"]
    terminal = Terminal(tmp_path, script, lines=lines, context={"mode": "ask"})
    assert chat(replace(terminal.setup, ask=ask)) is ExitCode.FINISHED
    assert ("restored calc.py\n" in terminal.out, "mendgraph: Hello.\n" in terminal.out) == (True, True)
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_undo_keeps_a_file_that_somebody_else_has_changed_since(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield "//fix"
        (tmp_path / "calc.py").write_text("mine\n")
        yield "/undo 1"
        yield " "

    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err.startswith("mendgraph: Nothing was restored. ")
    assert terminal.calc.read_text() == "mine\n"


def test_plan_and_changes_are_shown_in_their_current_state(tmp_path: Path) -> None:
    terminal = run_chat(tmp_path, [PLAN, "Later."], ["/diff", "/undo", "/plan", "plan it", "/plan", "/HELP", "/quit"])
    assert terminal.out.startswith("no file is changed\nnothing to undo: ")
    assert "there is no plan: the model has not made one\n" in terminal.out
    assert "\n[x] Look\\x1b[2J\n[ ] Mend\n" in terminal.out
    assert [name for name in COMMANDS if f"\n{name}" not in terminal.out] == []
    assert [key for key in KEYS if key[:20] not in terminal.out] == []


def test_unreadable_store_is_reported_by_the_commands_that_need_it(tmp_path: Path) -> None:
    store = Path(workspace_folder_path(str(tmp_path)), "store.sqlite")
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(b"no database at all" * 100)
    errors = run_chat(tmp_path, [], ["/diff", "/undo", "/plan"]).err.splitlines()
    assert [line.partition(" (file is")[0] for line in errors] == [
        f"mendgraph: The database {str(store)!r} is damaged, or not a database"
    ] * 3


@slow
def test_history_that_cannot_be_stored_is_reported_once(tmp_path: Path) -> None:
    folder = Path(workspace_folder_path(str(tmp_path)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    terminal = Terminal(tmp_path, [])
    with create_pipe_input() as keys, create_app_session(keys, DummyOutput()), Turns(terminal.setup) as turns:
        read = terminal_prompt(turns, terminal.setup.display)
        keys.send_text("one\rtwo\r")
        assert [read("You: "), read("You: ")] == ["one", "two"]
    assert terminal.err.count("mendgraph: requests are not kept for the next chat: ") == 1
    assert terminal.out.startswith(f"mendgraph chat in {tmp_path}; /help lists the commands\n\n")


# --- What a typed line means

NO_STEP = "/undo takes the number of a step"
WRONG = {
    "/model a b": "/model takes one name, and there is 'b' as well.",
    "/model gpt": "Model 'gpt' needs an endpoint: ",
    "/model local": "The embedded model is not on this machine: `mendgraph model pull` downloads it.",
    "/mode yolo": "/mode takes one of read-only, plan, ask, auto.",
    "/diff now": "/diff takes no arguments, and there is 'now'.",
    "/undo 1 2": NO_STEP,
    "/undo -1": NO_STEP,
    "/undo \u0661": NO_STEP,
    f"/undo {'9' * 10}": NO_STEP,
    "/undoo": "There is no command /undoo. Did you mean /undo? To send the line to the model, begin it with //.",
    "/": "There is no command /. /help lists them. To send the line to the model, begin it with //.",
    "/etc/hosts is wrong": "There is no command /etc/hosts.",
}


def test_invalid_chat_command_is_reported_in_one_line_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=hush\n", encoding="utf-8")
    terminal = run_chat(tmp_path, [], list(WRONG))
    for line, (problem, message) in zip(
        WRONG, zip(WRONG.values(), terminal.err.splitlines(), strict=True), strict=True
    ):
        assert (line, message[: len(problem) + 11]) == (line, f"mendgraph: {problem}")
    assert terminal.setup.session_options["model"].calls == []
    objects = [json.loads(line) for line in run_chat(tmp_path, [], list(WRONG), as_json=True).out.splitlines()]
    assert [set(value) for value in objects] == [{"error"}] * len(WRONG)


PROMPTS: tuple[tuple[str, bool, tuple[bool, bool], bool], ...] = (
    ("xterm-256color", False, (True, True), True),
    ("dumb", False, (True, True), False),
    ("xterm", True, (True, True), False),
    ("xterm", False, (True, False), False),
    ("xterm", False, (False, True), False),
)


def test_prompt_input_is_used_only_at_a_real_terminal(tmp_path: Path) -> None:
    for term, as_json, ttys, expected in PROMPTS:
        setup = replace(Terminal(tmp_path, [], as_json=as_json).setup, environment={"TERM": term})
        streams: list[Any] = [SimpleNamespace(isatty=lambda tty=tty: tty) for tty in ttys]
        assert (prompt_for(setup, *streams) is terminal_prompt) is expected, (term, as_json, ttys)
