"""What the machine hands from one room to another, seen in whole runs."""

from pathlib import Path

from graph.context import AgentContext
from graph.run import run_task
from nodes.records import OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.runs.playing import write_files
from tests.runs.scenario import message_of, use

SAME = "calc.py\n```python\ndef add(a, b):\n    return a - b\n```"
ECHO = "The block is identical to what 'calc.py' already has, so nothing would change."
FILES = {"calc.py": "def add(a, b):\n    return a - b\n", ".env.json": "{}\n"}


def blocks(root: Path, *said: str) -> tuple[AgentContext, ScriptedModel]:
    write_files(root, FILES)
    context = AgentContext(workspace=str(root), protocol="text", edit_form="blocks")
    return context, ScriptedModel([Say(text) for text in said])


def test_what_the_model_was_told_is_no_answer(tmp_path: Path) -> None:
    context, model = blocks(tmp_path, SAME, ECHO, "It subtracts on purpose.")
    outcome = run_task("Fix calc.py", context, model=model).outcome
    assert (outcome.kind, outcome.answer, len(model.calls)) == (OutcomeKind.FINISHED, "It subtracts on purpose.", 3)


def test_denied_files_are_not_shown_ahead(tmp_path: Path) -> None:
    context, model = blocks(tmp_path, "There is nothing to fix.")
    messages = run_task("Fix the bug", context, model=model).messages
    assert messages[1].text == 'tool: read_file({"path": "calc.py"})'


def test_one_file_under_two_names_is_one_action(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    reads = [("read_file", {"path": path}) for path in ("calc.py", "./calc.py", "calc.py", str(tmp_path / "calc.py"))]
    model = ScriptedModel([message_of(use(read), Protocol.NATIVE) for read in reads])
    result = run_task("Read it.", AgentContext(workspace=str(tmp_path)), model=model)
    outcome, refused = result.outcome, result.messages[-2].text
    assert '"code":"loop_override"' in refused
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.LOOP_PERSISTED)
