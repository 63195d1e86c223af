"""`mendgraph completion`, and what it answers to the scripts that it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graph.cli import app, main
from graph.terminal.completion_command import ASKED, SCRIPTS, WORD, WORDS, answer

COMMAND = Path(sys.executable).parent / "mendgraph"


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == SCRIPTS[shell]
    assert all(name in script for name in (f"{ASKED}", WORDS, WORD))


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "'csh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shell", "line", "place", "expected"),
    [
        ("bash", ["mendgraph", "--mode", "=", "re"], "3", "plain\tread-only\t\n"),
        ("bash", ["mendgraph", "--mode", "="], "2", "plain\tread-only\t\nplain\task\t\nplain\tauto\t\n"),
        ("zsh", ["mendgraph", "--mode=re"], "1", "plain\t--mode=read-only\t\n"),
        ("fish", ["mendgraph", "--root", ""], "2", "dir\t\t\n"),
        ("fish", ["mendgraph", "for"], "1", "plain\tfork\tBegin a new run where another one was after a step\n"),
        ("bash", ["mendgraph"], "1", ""),
        ("bash", ["mendgraph", ""], "x", ""),
    ],
)
def test_a_line_gets_its_offers(
    capsys: pytest.CaptureFixture[str], shell: str, line: list[str], place: str, expected: str
) -> None:
    assert answer(app, {ASKED: shell, WORDS: "\n".join(line), WORD: place}, {"root"}) == 0
    assert capsys.readouterr().out == expected


def test_the_process_answers_and_never_fails(tmp_path: Path) -> None:
    def ask(**more: str) -> tuple[int, str, str]:
        data = {"MENDGRAPH_DATA_DIR": str(tmp_path / "none"), ASKED: "bash"}
        done = subprocess.run(
            [COMMAND], env={**os.environ, **data, **more}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert ask(**{WORDS: "mendgraph\nfor", WORD: "1"})[1].startswith("plain\tfork\t")
    assert ask(**{WORDS: "mendgraph\nundo\n", WORD: "2"}) == (0, "", "")
    assert ask() == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_whatever_goes_wrong_there_are_no_offers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[object]:
        raise RuntimeError

    monkeypatch.setattr("graph.terminal.shell_words.offers", fails)
    assert answer(app, {ASKED: "zsh", WORDS: "mendgraph\n", WORD: "1"}, ()) == 0
    assert capsys.readouterr() == ("", "")
