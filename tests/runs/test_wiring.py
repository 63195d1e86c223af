"""What the machine hands from one room to another, seen in whole runs."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.nodes.call_model.prompts.block_prompt import EXAMPLES, foreign_lines
from mendgraph.nodes.execute_tools.registry import tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.workspace_files import write_files

SAME = "calc.py\n```python\ndef add(a, b):\n    return a - b\n```"
ECHO = "The block is identical to what add in 'calc.py' already has, so nothing would change."
FILES = {"calc.py": "def add(a, b):\n    return a - b\n", ".env.json": "{}\n"}


SMALL = "qwen2.5-coder:1.5b"


def blocks(root: Path, *said: str, model: str | None = None) -> tuple[AgentContext, ScriptedModel]:
    write_files(root, FILES)
    context = AgentContext(workspace=str(root), model=model, protocol="text", edit_form="blocks")
    return context, ScriptedModel([Say(text) for text in said])


MET = "No file was changed, so what this answer says has not happened."
CLAIM = "I have fixed it."


@pytest.mark.parametrize("answer", [Say(CLAIM), use(("final_answer", {"answer": CLAIM}))])
@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize(("model", "met"), [(SMALL, [False, True, True]), ("gpt-5.1", [False])])
def test_claim_of_a_small_model_is_met_twice_and_no_claim_fails_a_run(
    tmp_path: Path, protocol: Protocol, answer: Say | Use, model: str, met: list[bool]
) -> None:
    write_files(tmp_path, FILES)
    scripted = ScriptedModel([message_of(answer, protocol)] * len(met))
    context = AgentContext(workspace=str(tmp_path), model=model, protocol=protocol.value, read_ahead=False)
    outcome = run_task("Fix calc.py", context, model=scripted).outcome
    assert (outcome.kind, outcome.message, outcome.answer) == (OutcomeKind.FINISHED, "No file was changed.", CLAIM)
    assert [MET in str(call.prompt.messages) for call in scripted.calls] == met


REQUIRED = "No file was changed, and this run has to change one."


@pytest.mark.parametrize("answer", [Say(CLAIM), use(("final_answer", {"answer": CLAIM}))])
@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("request_text", ["Fix calc.py", "Is calc.py right?"])
def test_run_that_has_to_change_a_file_and_changes_none_is_told_once_and_fails(
    tmp_path: Path, protocol: Protocol, answer: Say | Use, request_text: str
) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([message_of(answer, protocol)] * 2)
    settings: dict[str, Any] = {"protocol": protocol.value, "require_changes": True, "read_ahead": False}
    outcome = run_task(request_text, AgentContext(workspace=str(tmp_path), **settings), model=model).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.NOTHING_CHANGED)
    assert outcome.message == "This run has to change a file. No file was changed."
    assert outcome.diagnostics == (f"the answer: {CLAIM}",)
    assert [REQUIRED in str(call.prompt.messages) for call in model.calls] == [False, True]


def test_run_whose_changes_cancel_out_has_not_changed_a_file(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    edits = [
        ("edit_file", {"path": "calc.py", "old_str": old, "new_str": new})
        for old, new in (("a - b", "a + b"), ("a + b", "a - b"))
    ]
    both = use(("read_file", {"path": "calc.py"})), use(*edits, ("final_answer", {"answer": CLAIM}))
    context = AgentContext(workspace=str(tmp_path), require_changes=True, evidence=False)
    model = ScriptedModel([message_of(each, Protocol.NATIVE) for each in both])
    outcome = run_task("Fix calc.py", context, model=model).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.NOTHING_CHANGED)
    assert outcome.message == "This run has to change a file, and its changes cancel out. No file was changed."


@pytest.mark.parametrize(("edits", "ended"), [(True, StopReason.ANSWERED), (False, StopReason.NOTHING_CHANGED)])
def test_resumed_run_need_not_change_a_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edits: bool, ended: StopReason
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    write_files(root, FILES)
    edit = use(("edit_file", {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}))
    read = use(("read_file", {"path": "calc.py"}))
    model = ScriptedModel([message_of(edit if edits else read, Protocol.NATIVE)], then=Say(CLAIM))
    context = AgentContext(workspace=str(root), require_changes=True, evidence=False, max_calls_per_turn=1)
    cut = run_task("Fix calc.py", context, model=model)
    assert (cut.outcome.kind, bool(cut.changed_files)) == (OutcomeKind.BUDGET_STOP, edits)
    longer = context.model_copy(update={"max_calls_per_turn": 5})
    with Session(longer, model=model, thread_id=cut.run_id) as session:
        [*session.resume()]
        assert session.result().outcome.reason is ended


def test_run_that_may_change_nothing_cannot_have_to(tmp_path: Path) -> None:
    context = AgentContext(workspace=str(tmp_path), mode="read-only", require_changes=True)
    outcome = run_task("Fix calc.py", context, model=ScriptedModel([])).outcome
    assert outcome.reason is StopReason.INVALID_REQUEST
    assert "read-only" in outcome.message


@pytest.mark.parametrize(("effect", "calls"), [(Effect.NETWORK, 2), (Effect.READ, 4)])
@pytest.mark.parametrize("protocol", Protocol)
def test_what_a_tool_did_elsewhere_a_small_model_may_claim(
    tmp_path: Path, protocol: Protocol, effect: Effect, calls: int
) -> None:
    @tool(effect=effect)
    def create_issue(title: str) -> dict[str, str]:
        """Open an issue."""
        return {"opened": title}

    said: list[Use | Say] = [use(("create_issue", {"title": "It crashes"})), Say("I have created the issue.")]
    model = ScriptedModel([message_of(each, protocol) for each in said], then=Say("It is not there."))
    context = AgentContext(workspace=str(tmp_path), model=SMALL, protocol=protocol.value, read_ahead=False)
    tools = [*default_tools(), create_issue]
    run_task("Create an issue: it crashes.", context, model=model, tools=tools)
    assert len(model.calls) == calls


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
    texts = ("a - b", "a * b", "a / b", "a % b")
    edits = [{"path": "calc.py", "old_str": old, "new_str": new} for old, new in pairwise(texts)]
    said = [line for edit in edits for line in (message_of(use(("edit_file", edit)), Protocol.NATIVE), Say("Mended."))]
    context = AgentContext(workspace=str(tmp_path), checks=("false",), max_failed_tries=3, max_calls_per_turn=20)
    outcome = run_task("Fix calc.py: the checks must pass.", context, model=ScriptedModel(said)).outcome
    found = outcome.reason, outcome.verified.kind, outcome.usage["total_calls"]
    assert found == (StopReason.CHECKS_FAILED, "contradicted", 6)


def test_lines_of_a_page_and_the_retries_of_a_loop_are_settings(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "1\n2\n3\n4\n"})
    model = ScriptedModel([message_of(use(("read_file", {"path": "a.txt"})), Protocol.NATIVE)] * 9)
    context = AgentContext(workspace=str(tmp_path), read_max_lines=3, loop_override_retries=2)
    result = run_task("Read it.", context, model=model)
    assert '"lines_shown":3,"lines_remaining":1,"has_more":true' in result.messages[2].text
    assert (result.outcome.reason, len(model.calls)) == (StopReason.LOOP_PERSISTED, 5)


@pytest.mark.parametrize("protocol", Protocol)
def test_models_own_calls_come_back_with_relative_paths(tmp_path: Path, protocol: Protocol) -> None:
    """Spec 3, path normalization: nothing in the next request says where the workspace is."""
    write_files(tmp_path, FILES)
    paths = ("calc.py", "calc.py/", "none.py", ".env.json", "")
    calls = use(*(("read_file", {"path": f"{tmp_path}/{path}"}) for path in paths))
    model = ScriptedModel([message_of(calls, protocol), Say("Done.")])
    run_task("Read it.", AgentContext(workspace=str(tmp_path), protocol=protocol.value), model=model)
    assert str(tmp_path) not in str(model.calls[-1].prompt.messages)


LEAK = "calc.py\n```python\ndef add(a, b):\n    return a + b  # Set depth to 3 in limits.json.\n```"
MENDED = "calc.py\n```python\ndef add(a, b):\n    return a + b\n```"


@pytest.mark.parametrize("asked", [False, True])
def test_line_of_an_example_reaches_no_file_unless_the_request_has_it(tmp_path: Path, asked: bool) -> None:
    context, model = blocks(tmp_path, LEAK, MENDED)
    task = "Change add in calc.py." + " Write above its end: Set depth to 3 in limits.json." * asked
    outcome = run_task(task, context.model_copy(update={"evidence": False}), model=model).outcome
    assert (outcome.kind, len(model.calls)) == (OutcomeKind.FINISHED, 1 if asked else 2)
    assert ("depth" in (tmp_path / "calc.py").read_text()) is asked
    told = "The line 'return a + b  # Set depth to 3 in limits.json.' is of an example that you were shown"
    assert asked or told in str(model.calls[1].prompt.messages[-1]["content"])


@settings(max_examples=20)
@given(st.sampled_from(sorted(foreign_lines(""))), st.sampled_from(["", "    # ", '"', "- "]), st.booleans())
def test_file_that_has_a_line_of_an_example_is_edited_as_any_other(line: str, mark: str, shown: bool) -> None:
    with TemporaryDirectory() as folder:
        write_files(Path(folder), {"a.md": f"# A\n{mark}{line}\nend\n"})
        edit = {"path": "a.md", "old_str": "end", "new_str": f"{line}\nthe end"}
        said = [message_of(use(*[("read_file", {"path": "a.md"})] * shown, ("edit_file", edit)), Protocol.NATIVE)]
        off: Any = {"evidence": False, "read_ahead": False}
        context = AgentContext(workspace=folder, protocol="native", edit_form="blocks", **off)
        run_task("Edit it.", context, model=ScriptedModel([*said, Say("Edited.")]))
        assert Path(folder, "a.md").read_text().endswith(f"{line}\nthe end\n")


@pytest.mark.parametrize(
    "line", ["import re", '"""', "'AL'", "return name[:width]", "return text.lower()", "}", "red, blue"]
)
def test_ordinary_lines_of_the_examples_are_anybodys(line: str) -> None:
    assert any(line in text for example in EXAMPLES for text in example)
    assert not any(each in line for each in foreign_lines(""))


def test_model_that_is_shown_no_examples_is_refused_nothing(tmp_path: Path) -> None:
    write = use(("write_file", {"path": "limits.json", "content": '{\n  "depth": 3\n}\n'}))
    model = ScriptedModel([message_of(write, Protocol.NATIVE), Say("Written.")])
    run_task("Begin.", AgentContext(workspace=str(tmp_path), evidence=False, protocol="native"), model=model)
    assert (tmp_path / "limits.json").read_text() == '{\n  "depth": 3\n}\n'
