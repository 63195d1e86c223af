"""What a person sees and does at a real terminal: mendgraph in tmux, on a scripted endpoint."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.doubles.replies import Calls, Reply, Say, Slow
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.surfaces.runs.run_plays import project, run_lines
from tests.surfaces.terminal.tmux import COMMAND, Tmux, needs_tmux

pytestmark = needs_tmux

BUG = "def add(a, b):\n    return a - b\n"
FIXED = BUG.replace("-", "+")
FIX = Calls([("edit_file", '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}')])
DONE = Say("It adds now. I changed the sign in calc.py, so that the function returns the sum.")


@contextmanager
def terminal(
    folder: Path, script: Sequence[Reply], *words: str, width: int = 100, no_color: str = "", text: str = BUG
) -> Iterator[tuple[Tmux, Path, ScriptedServer]]:
    """A project with a bug, and mendgraph running in it."""
    project = folder / "project"
    project.mkdir()
    (project / "calc.py").write_text(text, encoding="utf-8")
    with ScriptedServer(script) as server:
        environment = {"OPENAI_BASE_URL": server.base_url} | ({"NO_COLOR": no_color} if no_color else {})
        arguments = ("--no-evidence", "--model", "scripted", *words)
        with Tmux(project, *arguments, size=(width, 60), environment=environment) as tmux:
            yield tmux, project / "calc.py", server


@slow
def test_no_color_removes_all_colors(tmp_path: Path) -> None:
    with terminal(tmp_path, [FIX, DONE], "chat", no_color="1") as (tmux, _, _):
        tmux.wait("You:")
        tmux.type("/")
        tmux.wait("/undo")
        menu = tmux.screen(colours=True)
        tmux.press("C-c")
        tmux.type("Fix add", "Enter")
        tmux.wait("FINISHED")
        tmux.wait("You:", 2)
        screens = menu + tmux.screen(colours=True)
    assert not re.search("\x1b\\[[0-9;:]*(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;:]*m", screens)


@slow
def test_limit_is_raised_by_a_key_and_by_a_number(tmp_path: Path) -> None:
    words = ("--on-limit", "ask", "--max-calls", "1", "Fix add")
    with terminal(tmp_path, [FIX, Calls([("read_file", '{"path": "calc.py"}')]), DONE], *words) as (tmux, calc, _):
        tmux.wait("1 of 1 model calls of this turn are spent. Raise to 2?")
        tmux.press("y")
        tmux.wait("2 of 2 model calls of this turn are spent. Raise to 4?")
        tmux.wait("Raise it?", 2)
        tmux.press("e")
        tmux.wait("max_calls_per_turn?")
        tmux.type("3", "Enter")
        tmux.wait("FINISHED")
        screen = tmux.screen()
    assert "usage: 3/3 calls" in screen
    assert calc.read_text(encoding="utf-8") == FIXED


@slow
def test_single_key_answers_an_approval_request(tmp_path: Path) -> None:
    """Arrow keys are no answer; a reason is a line."""
    with terminal(tmp_path, [FIX, FIX, FIX, DONE], "--mode", "ask", "Fix add") as (tmux, calc, _):
        tmux.wait("Allow edit_file calc.py?")
        tmux.press("Up")
        tmux.wait("answer with one of the letters")
        tmux.wait("Allow edit_file calc.py?", 2)
        tmux.press("n")
        tmux.wait("Why not (Enter: no reason)?")
        tmux.type("not yet", "Enter")
        tmux.wait("Allow edit_file calc.py?", 3)
        assert calc.read_text(encoding="utf-8") == BUG
        tmux.press("y")
        tmux.wait("FINISHED")
        assert calc.read_text(encoding="utf-8") == FIXED


@slow
def test_hunks_are_chosen_with_one_key_each(tmp_path: Path) -> None:
    lines = [f"x{number} = 1\n" for number in range(30)]
    edits = ", ".join(f'{{"old_str": "x{number} = 1", "new_str": "x{number} = 2"}}' for number in (2, 14, 26))
    change = Calls([("multi_edit", f'{{"path": "calc.py", "edits": [{edits}]}}')])
    words = ("--mode", "ask", "Edit calc")
    with terminal(tmp_path, [change, DONE], *words, text="".join(lines)) as (tmux, calc, _):
        tmux.wait("Allow multi_edit calc.py?")
        tmux.press("h")
        tmux.wait("Write hunk 1 of 3 [y,n,q,?]?")
        tmux.press("y")
        tmux.wait("Write hunk 2 of 3 [y,n,q,?]?")
        tmux.press("Enter")
        tmux.wait("q  write none of the rest")
        tmux.wait("Write hunk 2 of 3 [y,n,q,?]?", 2)
        tmux.press("n")
        tmux.wait("Write hunk 3 of 3 [y,n,q,?]?")
        tmux.press("q")
        tmux.wait("edited (hunk 1 of 3)")
        tmux.wait("FINISHED")
    assert calc.read_text(encoding="utf-8") == "".join(lines).replace("x2 = 1", "x2 = 2")


@slow
def test_narrow_terminal_wraps_between_words(tmp_path: Path) -> None:
    with terminal(tmp_path, [FIX, DONE], "chat", width=40) as (tmux, calc, _):
        tmux.wait("You:")
        tmux.type("/help", "Enter")
        tmux.wait("write // instead.")
        tmux.type("Fix add", "Enter")
        tmux.wait("FINISHED (answered): Changed calc.py;")
        tmux.wait("You:", 3)
        text, lines = tmux.screen(joined=True), tmux.screen().splitlines()
        assert calc.read_text(encoding="utf-8") == FIXED
    assert max(map(len, lines)) <= 40
    assert DONE.text in " ".join(text.split())
    help_lines = text[text.index("/diff") : text.index("You: Fix add")].splitlines()
    assert max(map(len, help_lines)) <= 40
    assert "→ edit_file calc.py  1 replacement\n" in text


@slow
def test_chat_at_a_terminal_supports_multiple_lines_undo_models_and_history(tmp_path: Path) -> None:
    """Several lines, undo and its note to the model, another model, and the history of the next chat."""
    with terminal(tmp_path, [FIX, DONE, Say("I see."), Say("So be it.")]) as (tmux, calc, server):
        tmux.wait("You:")
        tmux.type("Fix add", "Enter")
        tmux.wait("You:", 2)
        tmux.type("/undo", "Enter")
        tmux.wait("restored calc.py")
        tmux.wait("You:", 3)
        assert calc.read_text(encoding="utf-8") == BUG
        tmux.paste("one\ntwo")
        tmux.wait("two")
        tmux.press("M-Enter")
        tmux.type("three\\", "Enter")
        tmux.type("four", "Enter")
        tmux.wait("I see.")
        tmux.wait("You:", 4)
        tmux.type("/model another", "Enter")
        tmux.wait("You:", 5)
        tmux.press("Up", "Up")
        tmux.wait("three", 2)
        tmux.press("C-c")
        tmux.type("And now?", "Enter")
        tmux.wait("So be it.")
        tmux.wait("You:", 6)
        tmux.press("C-c", "C-c")
        assert tmux.exit_code() == 0
    note = "(I took back your changes of these files, so read them again: calc.py.)"
    assert [request["model"] for request in server.requests] == ["scripted"] * 3 + ["another"]
    questions = [message["content"] for message in server.requests[2]["messages"] if message["role"] == "user"]
    assert f"{note}\n\none\ntwo\nthree\nfour" in questions


class HeldServer(ScriptedServer):
    """Holds each `Slow` reply back until the test releases it."""

    def __init__(self, script: Sequence[Reply]) -> None:
        super().__init__(script)
        self.released = Event()

    def wait(self, seconds: float) -> bool:
        return bool(seconds) and self.released.wait(seconds)


QUESTION = Calls([("ask_user", '{"question": "Which sum?", "choices": ["of integers", "of decimals"]}')])
MARKDOWN = Say("It **adds** now.\n\n## Next\n\n- commit\n\n```python\nadd(1, 2)\n```\n\nThat is all.")


def test_question_is_answered_a_message_added_and_the_answer_shown_as_markdown(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "calc.py").write_text(BUG, encoding="utf-8")
    with HeldServer([QUESTION, Slow(60, FIX), MARKDOWN]) as server:
        words = ("--no-evidence", "--model", "scripted")
        with Tmux(project, *words, size=(80, 60), environment={"OPENAI_BASE_URL": server.base_url}) as tmux:
            tmux.wait("You:")
            tmux.type("Fix add", "Enter")
            question_screen = tmux.wait("Your answer (a number, or your own words; Enter: none)?")
            tmux.type("2", "Enter")
            tmux.wait("waiting for the model")
            tmux.type("also commit it, pleasé")
            tmux.wait("> also commit it, pleasé")
            tmux.press("BSpace", "Left")
            tmux.type("e", "Enter")
            tmux.wait("> also commit it, please\n")
            tmux.type("unsent words")
            tmux.wait("> unsent words")
            server.released.set()
            tmux.wait("You: unsent words")
            screen = tmux.screen()
            tmux.press("C-c", "C-c", "C-c")
            assert tmux.exit_code() == 0

    assert "? The model asks:\n│ Which sum?\n│ 1. of integers\n│ 2. of decimals\n" in question_screen
    assert "mendgraph: It adds now.\n\nNext\n\n • commit\n\n add(1, 2)\n\nThat is all.\n\n---" in screen
    *_, result = server.requests[1]["messages"]
    assert "of decimals" in result["content"]
    *_, words_between, added = server.requests[2]["messages"]
    assert (words_between["role"], added["content"]) == ("assistant", "also commit it, please")


BASH = shutil.which("bash")


@slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed: install it")
def test_tab_completes_in_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    folder = project(tmp_path / "project")
    run_lines(folder)
    before = _files(tmp_path / "data")
    path = {"PATH": f"{COMMAND.parent}:/usr/bin:/bin", "PS1": "$ ", "MENDGRAPH_DATA_DIR": str(tmp_path / "data")}
    with Tmux(folder, "--norc", "--noprofile", "-i", environment=path, program=Path(str(BASH))) as tmux:
        tmux.wait("$")
        tmux.type('bind "set bell-style none"; eval "$(mendgraph --show-completion)"; echo re""ady', "Enter")
        tmux.wait("\nready")
        tmux.type("mendgraph --mode re", "Tab")
        tmux.wait("mendgraph --mode read-only")
        tmux.press("C-u")
        tmux.type("mendgraph --root pk", "Tab")
        screen = tmux.wait("mendgraph --root pkg/")
        tmux.press("C-u")
        tmux.type("exit", "Enter")
        tmux.exit_code()
    assert "Traceback" not in screen
    assert _files(tmp_path / "data") == before


def _files(folder: Path) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}
