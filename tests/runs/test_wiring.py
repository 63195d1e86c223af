"""What the machine hands from one room to another, seen in whole runs."""

from pathlib import Path

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.records import OutcomeKind, Protocol, StopReason
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
    context, model = blocks(tmp_path, SAME, ECHO, "It subtracts on purpose.", "It subtracts on purpose.")
    outcome = run_task("Fix calc.py", context, model=model).outcome
    assert (outcome.kind, outcome.answer, len(model.calls)) == (OutcomeKind.FINISHED, "It subtracts on purpose.", 4)


def test_an_answer_that_claims_what_was_not_done_ends_no_run_well(tmp_path: Path) -> None:
    context, model = blocks(tmp_path, "I have fixed it.", "I have fixed it.")
    outcome = run_task("Fix calc.py", context, model=model).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.NOTHING_CHANGED)
    met = "No file was changed, so what this answer says has not happened."
    assert [met in str(call.prompt.messages[-1]["content"]) for call in model.calls] == [False, True]


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


def test_checks_that_fail_are_told_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Also where each edit in between works."""
    write_files(tmp_path, FILES)
    edits = [
        {"path": "calc.py", "old_str": old, "new_str": new} for old, new in (("a - b", "a * b"), ("a * b", "a - b"))
    ]
    said = [
        line for edit in edits * 3 for line in (message_of(use(("edit_file", edit)), Protocol.NATIVE), Say("Mended."))
    ]
    context = AgentContext(workspace=str(tmp_path), checks=("false",), max_failed_tries=3, max_calls_per_turn=20)
    outcome = run_task("Fix calc.py: the checks must pass.", context, model=ScriptedModel(said)).outcome
    assert (outcome.reason, outcome.checks, outcome.usage["total_calls"]) == (StopReason.CHECKS_FAILED, "failed", 6)


def test_the_lines_of_a_page_and_the_retries_of_a_loop_are_settings(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "1\n2\n3\n4\n"})
    model = ScriptedModel([message_of(use(("read_file", {"path": "a.txt"})), Protocol.NATIVE)] * 9)
    context = AgentContext(workspace=str(tmp_path), read_max_lines=3, loop_override_retries=2)
    result = run_task("Read it.", context, model=model)
    assert '"lines_shown":3,"lines_remaining":1,"has_more":true' in result.messages[2].text
    assert (result.outcome.reason, len(model.calls)) == (StopReason.LOOP_PERSISTED, 5)


@pytest.mark.parametrize("protocol", Protocol)
def test_the_models_own_calls_come_back_with_relative_paths(tmp_path: Path, protocol: Protocol) -> None:
    """Spec 3, path normalization: nothing in the next request says where the workspace is."""
    write_files(tmp_path, FILES)
    paths = ("calc.py", "calc.py/", "none.py", ".env.json", "")
    calls = use(*(("read_file", {"path": f"{tmp_path}/{path}"}) for path in paths))
    model = ScriptedModel([message_of(calls, protocol), Say("Done.")])
    run_task("Read it.", AgentContext(workspace=str(tmp_path), protocol=protocol.value), model=model)
    assert str(tmp_path) not in str(model.calls[-1].prompt.messages)
