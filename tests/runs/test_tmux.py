"""What a person sees and does at a real terminal: mendgraph in tmux, on a scripted endpoint."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.replies import Calls, Reply, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.tmux import Tmux, needs_tmux

pytestmark = needs_tmux

BUG = "def add(a, b):\n    return a - b\n"
FIXED = BUG.replace("-", "+")
FIX = Calls([("edit_file", '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}')])
SPOIL = Calls([("edit_file", '{"path": "calc.py", "old_str": "a + b", "new_str": "a * b"}')])
DONE = Say("It adds now. I changed the sign in calc.py, so that the function returns the sum.")


@contextmanager
def terminal(
    folder: Path, script: Sequence[Reply], *words: str, width: int = 100, no_color: str = ""
) -> Iterator[tuple[Tmux, Path, ScriptedServer]]:
    """A project with a bug, and mendgraph at work in it."""
    project = folder / "project"
    project.mkdir()
    (project / "calc.py").write_text(BUG, encoding="utf-8")
    with ScriptedServer(script) as server:
        environment = {"OPENAI_BASE_URL": server.base_url} | ({"NO_COLOR": no_color} if no_color else {})
        given = ("--no-evidence", "--model", "scripted", *words)
        with Tmux(project, *given, size=(width, 60), environment=environment) as tmux:
            yield tmux, project / "calc.py", server


def test_without_colours_there_are_none(tmp_path: Path) -> None:
    with terminal(tmp_path, [FIX, DONE], "chat", no_color="1") as (tmux, _, _):
        tmux.wait("You:")
        tmux.type("/")
        tmux.wait("/clear")
        menu = tmux.screen(colours=True)
        tmux.press("C-c")
        tmux.type("Fix add", "Enter")
        tmux.wait("FINISHED")
        tmux.wait("You:", 2)
        shown = menu + tmux.screen(colours=True)
    assert not re.search("\x1b\\[[0-9;:]*(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;:]*m", shown)


def test_one_key_answers_a_question(tmp_path: Path) -> None:
    """Also the arrow keys are keys, which say nothing; a reason is a line."""
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


def test_end_of_the_input_at_a_question_rejects(tmp_path: Path) -> None:
    with terminal(tmp_path, [FIX, DONE], "--mode", "ask", "Fix add") as (tmux, calc, _):
        tmux.wait("Allow edit_file calc.py?")
        tmux.press("C-d")
        tmux.wait("you refused edit_file calc.py")
        assert calc.read_text(encoding="utf-8") == BUG


def test_narrow_terminal_tears_nothing(tmp_path: Path) -> None:
    with terminal(tmp_path, [FIX, DONE], "chat", width=40) as (tmux, calc, _):
        tmux.wait("You:")
        tmux.type("/help", "Enter")
        tmux.wait("before it.")
        tmux.type("Fix add", "Enter")
        tmux.wait("FINISHED (answered): Changed calc.py;")
        tmux.wait("You:", 3)
        whole, lines = tmux.screen(joined=True), tmux.screen().splitlines()
        assert calc.read_text(encoding="utf-8") == FIXED
    assert max(map(len, lines)) <= 40
    assert DONE.text in whole
    help_lines = whole[whole.index("/add") : whole.index("You: Fix add")].splitlines()
    assert max(map(len, help_lines)) <= 40
    assert "→ edit_file calc.py  1 replacement\n" in whole


def test_person_approves_one_change_and_rejects_another(tmp_path: Path) -> None:
    script = [FIX, DONE, SPOIL, Say("Then I leave it.")]
    with terminal(tmp_path, script, "chat", "--mode", "ask") as (tmux, calc, server):
        tmux.wait("You:")
        tmux.type("Fix add", "Enter")
        asked = tmux.wait("[y]es")
        assert "-    return a - b" in asked or "-a - b" in asked
        assert calc.read_text(encoding="utf-8") == BUG
        tmux.type("y", "Enter")
        tmux.wait("FINISHED (answered): Changed calc.py;")
        assert calc.read_text(encoding="utf-8") == FIXED
        tmux.wait("You:", 2)
        tmux.type("Multiply", "Enter")
        tmux.wait("[y]es", 2)
        tmux.type("n it has to add", "Enter")
        tmux.wait("Then I leave it.")
        tmux.wait("You:", 3)
        tmux.type("/exit", "Enter")
        assert tmux.exit_code() == 0
        assert calc.read_text(encoding="utf-8") == FIXED
        assert "it has to add" in str(server.requests[-1]["messages"][-1])


def test_chat_at_a_terminal(tmp_path: Path) -> None:
    """Several lines, undo and its note to the model, another model, a command, and the history of the next chat."""
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
        tmux.type("!echo $((6*7))", "Enter")
        tmux.wait("exit code 0")
        tmux.wait("You:", 6)
        tmux.type("And now?", "Enter")
        tmux.wait("So be it.")
        tmux.wait("You:", 7)
        tmux.press("C-c", "C-c")
        assert tmux.exit_code() == 0
    note = "(I took back your changes of these files, so look at them anew: calc.py.)"
    assert [each["model"] for each in server.requests] == ["scripted"] * 3 + ["another"]
    said = [each["content"] for each in server.requests[2]["messages"] if each["role"] == "user"]
    assert f"{note}\n\none\ntwo\nthree\nfour" in said
    assert "(I ran `echo $((6*7))`, exit code 0. It printed, at its end:\n42\n)\n\nAnd now?" in str(
        server.requests[3]["messages"][-1]["content"]
    )
