"""Requests that begin with `/NAME`: files of commands and skills, in a chat and as a task."""

import json
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.terminal.chat import chat
from mendgraph.graph.terminal.process_end import ExitCode
from tests.surfaces.conftest import Command
from tests.surfaces.terminal.played_terminal import Terminal
from tests.workspace_files import write_files

WRITE = 'tool: write_file({"path": "AGENTS.md", "content": "x"})'
PROJECT = {
    ".claude/commands/setup.md": "---\ndescription: Set it up\nargument-hint: [file]\n---\nWrite AGENTS.md: $1",
    ".claude/commands/review.md": "The project's review.",
    ".claude/commands/undo.md": "Never called.",
    ".claude/commands/sub/look.md": "Look.",
    ".claude/commands/broken.md": "x" * 64_001,
    ".claude/commands/no name.md": "Not listed.",
    ".agents/commands/tidy.md": "Tidy.",
    ".agents/skills/forms/SKILL.md": "---\nname: forms\ndescription: Fill forms\n---\nFill it with $ARGUMENTS.",
}
USER = {
    ".claude/commands/review.md": "My review of $1.",
    ".claude/skills/pdf/SKILL.md": "---\nname: pdf\ndescription: Read PDFs\n---\nRead it.",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    write_files(tmp_path / "home", USER)
    write_files(tmp_path / "root", PROJECT)
    return tmp_path / "root"


def run_chat(root: Path, lines: list[str], *script: str, **options: Any) -> tuple[Terminal, list[str]]:
    """A chat with these lines, and the request that the model received for each."""
    terminal = Terminal(root, script, lines=lines, context={"read_ahead": False, "evidence": False}, **options)
    assert chat(terminal.setup) is ExitCode.FINISHED
    calls = terminal.setup.session_options["model"].calls
    return terminal, [str(call.prompt.messages[-1]["content"]) for call in calls]


def test_line_sends_the_text_of_its_file_and_names_the_file(root: Path) -> None:
    lines = ["/sub:look", "/tidy", "/forms a b", "/pdf", "/review calc.py"]
    terminal, sent = run_chat(root, lines, *["Done."] * 5)
    texts = ["Look.", "Tidy.", "Fill it with a b.", "Read it.", "My review of calc.py."]
    for line, text, request in zip(lines, texts, sent, strict=True):
        assert f"{line}\n\n<command_file name=" in request
        assert f"\n\n{text}\n</command_file>" in request
    assert "/sub:look is the file .claude/commands/sub/look.md\n" in terminal.out
    assert "/review is the file ~/.claude/commands/review.md\n" in terminal.out
    assert "/pdf is the file ~/.claude/skills/pdf/SKILL.md\n" in terminal.out


def test_help_lists_command_files_after_the_commands_of_the_chat(root: Path) -> None:
    terminal, _ = run_chat(root, ["/help"], as_json=True)
    rows = json.loads(terminal.out)["help"]
    names = [row["name"] for row in rows]
    assert names[names.index("/quit") + 1 :] == ["/forms", "/pdf", "/review", "/setup", "/sub:look", "/tidy"]
    [row] = [row for row in rows if row["name"] == "/setup"]
    assert row == {"name": "/setup", "usage": "/setup [file]", "help": "Set it up (.claude/commands/setup.md)"}


def test_missing_or_unreadable_command_file_sends_nothing(root: Path) -> None:
    terminal, sent = run_chat(root, ["/setpu", "/broken", "/undo"])
    assert sent == []
    assert "There is no command /setpu. Did you mean /setup?" in terminal.err
    assert "'.claude/commands/broken.md' is not read: it has more than 64,000 bytes." in terminal.err
    assert "nothing" in terminal.out


@pytest.mark.parametrize(("line", "written"), [("/setup", False), ("/setup AGENTS.md", True)])
def test_command_file_permits_no_protected_file_that_the_person_does_not_name(
    root: Path, line: str, written: bool
) -> None:
    terminal, _ = run_chat(root, [line], WRITE, "Done.")
    assert (root / "AGENTS.md").exists() is written
    assert ("refused (" in terminal.out) is not written


@pytest.mark.parametrize(
    ("words", "file", "written"),
    [
        (["/setup"], ".claude/commands/setup.md", False),
        (["/setup AGENTS.md"], ".claude/commands/setup.md", True),
        (["/setup", "AGENTS.md"], ".claude/commands/setup.md", True),
        (["//setup AGENTS.md"], "", True),
        (["/etc/hosts names AGENTS.md"], "", True),
    ],
)
def test_task_that_begins_with_a_command_name_sends_its_file(
    command: Command, folder: Path, words: list[str], file: str, written: bool
) -> None:
    write_files(folder, PROJECT)
    code, _, err = command("--protocol", "text", *words, says=(WRITE, "Done."))
    assert (code, (folder / "AGENTS.md").exists()) == (0, written)
    assert (f"mendgraph: /setup is the file {file}\n" in err) is bool(file)


def test_task_that_begins_with_an_unknown_path_stays_a_task(command: Command, folder: Path) -> None:
    write_files(folder, PROJECT)
    assert command("--protocol", "text", "/login returns 404", says=("It is repaired.",))[0] == 0
    assert '"/login returns 404"' in command("runs", "--json")[1]


def test_task_with_an_unknown_command_name_is_refused_before_the_run(command: Command, folder: Path) -> None:
    write_files(folder, PROJECT)
    code, out, err = command("--protocol", "text", "/setpu", says=())
    assert (code, out) == (2, "")
    assert "There is no command /setpu. Did you mean /setup?" in err
