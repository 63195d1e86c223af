"""What the work of a run is judged by before it counts as finished: from the settings to the ending."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.graph.runs.events import Ended
from mendgraph.graph.runs.run import RunResult, run_task, stream_task
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.evidence.checks import Checks
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME
from mendgraph.nodes.records import (
    EditForm,
    JsonMap,
    Outcome,
    OutcomeKind,
    Profile,
    Protocol,
    StopReason,
    ToolCall,
    ToolError,
    Verification,
)
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.sandboxes import needs_sandbox, set_sandbox_problem
from tests.workspace_files import write_files

CHECK = "grep -q right notes.txt"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", {"notes.txt": "old\n"})
    return tmp_path / "root"


def gateway() -> ToolRuntime:
    return ToolRuntime(None, DEFAULT_GUARDRAIL_RULES, {}, ())


@pytest.mark.parametrize(
    ("context", "problem", "found", "can_check"),
    [
        ({"evidence": False}, None, type(None), False),
        ({}, None, Checks, True),
        ({"evidence": False, "checks": ("make",)}, None, Checks, False),
        ({}, "there is no bubblewrap", ToolError, False),
    ],
)
def test_work_is_judged_where_the_run_wants_it_and_a_sandbox_starts(
    context: JsonMap, problem: str | None, found: type, can_check: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, problem)
    known, settings = gateway(), AgentContext(workspace=str(root), **context)
    assert (type(known.checks(settings)), known.can_check(settings)) == (found, can_check)
    assert ("evidence.unavailable" in known.lacks(settings, "t")) is (problem is not None)
    assert problem or known.checks(settings) is known.checks(settings)


@pytest.mark.parametrize(
    ("form", "small", "gated"),
    [(EditForm.BLOCKS, True, True), (EditForm.REPLACE, True, False), (EditForm.BLOCKS, False, False)],
)
def test_only_a_small_model_is_held_against_the_words_of_a_request(
    form: EditForm, small: bool, gated: bool, root: Path
) -> None:
    items: list[Any] = [ToolCall(call_id="c", tool="edit_blocks", arguments={}, raw_arguments="")]
    said: list[Any] = [HumanMessage("Look."), HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME)]
    state = AgentState(
        run_id="r", items=items, messages=said, profile=Profile(edit_form=form, small=small), spending=Spending()
    )
    state["context"] = AgentContext(workspace=str(root), evidence=False)
    found = gateway()._tool_context(state, "t", TraceSink(), None)
    assert (found.gated, found.task, found.checks) == (gated, "Look." if small else "", None)
    assert (found.hints is not None) is small


# --- Whole runs


def write(text: str) -> Use:
    return use(("write_file", {"path": "notes.txt", "content": f"{text}\n"}))


READ, DONE = use(("read_file", {"path": "notes.txt"})), Say("The notes are right.")


def ran(root: Path, *replies: Use | Say, protocol: Protocol, **context: Any) -> tuple[RunResult, ScriptedModel]:
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    settings = AgentContext(
        workspace=str(root), protocol=protocol.value, **{"checks": (CHECK,), "read_ahead": False, **context}
    )
    return run_task("Mend notes.txt: the checks must pass.", settings, model=model), model


@needs_sandbox
@pytest.mark.parametrize("protocol", list(Protocol))
def test_run_is_finished_when_its_checks_pass(root: Path, protocol: Protocol) -> None:
    result, model = ran(root, READ, write("wrong"), DONE, write("right"), DONE, protocol=protocol)
    outcome = result.outcome
    assert (outcome.kind, outcome.verified) == (OutcomeKind.FINISHED, Verification(kind="passed", ran=(CHECK,)))
    assert (outcome.message, outcome.answer) == (f"Changed notes.txt; passed: {CHECK}.", "The notes are right.")
    told = [CHECK in str(call.prompt.messages) for call in model.calls]
    assert told == [False, False, False, True, True]


@needs_sandbox
@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("tries", [1, 3])
def test_run_whose_checks_fail_is_never_finished(root: Path, protocol: Protocol, tries: int) -> None:
    again = [DONE] * (tries + 2)
    result, model = ran(root, READ, write("wrong"), *again, protocol=protocol, max_failed_tries=tries)
    outcome = result.outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.CHECKS_FAILED)
    assert (outcome.changed_files, outcome.restored, len(model.calls)) == ((), ("notes.txt",), 2 + tries)
    assert outcome.verified == Verification(kind="contradicted", reason=f"{CHECK} fails.")
    assert any(CHECK in line for line in outcome.diagnostics)


SMALL = "qwen2.5-coder:1.5b"
CART = {
    "cart.py": "def total(items):\n    return sum(items) + 1\n\n\ndef shipping(weight):\n    return weight * 2\n",
    "tests/test_cart.py": (
        "from cart import shipping, total\n\n\ndef test_sum():\n    assert total([1, 2]) == 3\n\n\n"
        "def test_free():\n    assert shipping(11) == 0\n"
    ),
}


def mended(text: str) -> Use:
    return use(("edit_file", {"path": "cart.py", "old_str": "sum(items) + 1", "new_str": text}))


@needs_sandbox
@pytest.mark.parametrize(
    ("first", "task", "finished"),
    [
        ("sum(items)", "Fix total in cart.py.", True),
        ("sum(items)", "Fix total in cart.py, so that test_free passes.", True),
        ("sum(items) + 2", "Fix total in cart.py.", True),
        ("0 + 1 + sum(items)", "Rewrite the sum.", True),
        ("sum(item)", "Rewrite the sum.", False),
    ],
)
def test_repair_stays_beside_a_test_that_failed_already(root: Path, first: str, task: str, finished: bool) -> None:
    write_files(root, CART)
    replies: list[Use | Say] = [use(("read_file", {"path": "cart.py"})), mended(first), *[Say("It is right.")] * 2]
    settings = AgentContext(workspace=str(root), protocol="native", read_ahead=False, max_failed_tries=2)
    *events, last = stream_task(
        task, settings, model=ScriptedModel([message_of(each, Protocol.NATIVE) for each in replies])
    )
    assert isinstance(last, Ended)
    assert (last.outcome.kind is OutcomeKind.FINISHED) is finished
    if finished:
        assert f"return {first}\n" in (root / "cart.py").read_text()
        assert "test_free failed already before the change" in str(events).replace("test_sum, test_free", "test_free")
        assert ("not checked: test_sum, test_free" in last.outcome.message) is ("+" in first)


def test_without_a_sandbox_checks_that_must_pass_end_the_run_before_it_costs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, "there is no bubblewrap")
    result, model = ran(root, READ, protocol=Protocol.NATIVE)
    assert (result.outcome.reason, model.calls) == (StopReason.INVALID_REQUEST, [])
    assert "there is no bubblewrap" in result.outcome.message


# --- What is said of changes that nothing has checked


def unchecked(root: Path, protocol: Protocol, *replies: Use | Say, **more: Any) -> Outcome:
    """How a run ends that has no check of its own; some `more` options are those of `run_task`."""
    options = {name: more.pop(name) for name in ("tools", "roles") if name in more}
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    settings = AgentContext(workspace=str(root), protocol=protocol.value, read_ahead=False, **more)
    return run_task("Mend notes.txt.", settings, model=model, **options).outcome


CODE = use(("write_file", {"path": "count.py", "content": "x = 1\n"}))
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
COUNTED = use(("final_answer", {"answer": "Counted.", "value": {"n": 1}}))
NO_CHECKS = tuple(each for each in default_tools() if each.spec.name != "run_checks")


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(
    ("replies", "more", "kind", "said"),
    [
        ((READ, write("new"), DONE), {}, "FINISHED", "Changed notes.txt; not checked"),
        ((CODE, DONE), {"evidence": False}, "FINISHED", "Changed count.py; not checked"),
        ((READ, write("new"), COUNTED), {"response_format": COUNT}, "FINISHED", "Changed notes.txt; not checked"),
        (
            (READ, write("new"), DONE),
            {"role": "mine", "roles": {"mine": ["read_file", "write_file"]}},
            "FINISHED",
            "Changed notes.txt; not checked",
        ),
        (
            (CODE, DONE),
            {"tools": NO_CHECKS},
            "FINISHED",
            "Changed count.py; not checked: no check ran after",
        ),
        (
            (READ, write("new")),
            {"max_calls_per_turn": 2},
            "BUDGET_STOP",
            "Limit 'max_calls_per_turn' exceeded: 2/2. Changed notes.txt; not checked: the run ended before",
        ),
        ((READ, DONE), {}, "FINISHED", "No file was changed."),
    ],
)
def test_what_nothing_has_checked_is_said_first(
    root: Path, protocol: Protocol, replies: tuple[Use | Say, ...], more: JsonMap, kind: str, said: str
) -> None:
    outcome = unchecked(root, protocol, *replies, **more)
    assert (outcome.kind, outcome.verified.kind, outcome.verified.ran) == (kind, "none", ())
    assert outcome.message.startswith(said)


def test_without_a_sandbox_the_outcome_says_why_nothing_was_checked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, "there is no bubblewrap")
    outcome = unchecked(root, Protocol.NATIVE, CODE, DONE)
    assert "there is no bubblewrap" in outcome.verified.reason
    assert outcome.message.startswith("Changed count.py; not checked: ")


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(
    ("replies", "reason", "more"),
    [
        ((READ, write("new"), DONE), StopReason.NOT_CHECKED, {}),
        ((READ, DONE, DONE), StopReason.ANSWERED, {}),
        ((), StopReason.INVALID_REQUEST, {"tools": NO_CHECKS}),
        pytest.param(
            (READ, write("right"), DONE), StopReason.ANSWERED, {"checks": (CHECK,)}, marks=needs_sandbox, id="checked"
        ),
    ],
)
def test_where_checks_are_required_changes_without_one_end_the_run(
    root: Path, protocol: Protocol, replies: tuple[Use | Say, ...], reason: StopReason, more: JsonMap
) -> None:
    outcome = unchecked(root, protocol, *replies, require_checks=True, **more)
    assert outcome.reason is reason
    if reason is StopReason.NOT_CHECKED:
        said = "This run has to be checked, and nothing could check its changes. Changed notes.txt; not checked"
        assert outcome.message.startswith(said)
        assert (outcome.kind, outcome.diagnostics) == (OutcomeKind.SYSTEM_ERROR, (f"the answer: {DONE.text}",))
        assert "--check" in outcome.how_to_go_on


@needs_sandbox
@pytest.mark.parametrize(
    ("tested", "kind"), [("total", "none"), ("half", "passed")], ids=["of other code", "of the new code"]
)
def test_tests_that_run_no_changed_line_say_nothing_of_the_change(root: Path, tested: str, kind: str) -> None:
    """The head of a new function is executed by every import of its file."""
    test = f"from cart import {tested}\n\n\ndef test_it():\n    assert {tested}([4]) in (5, 2)\n"
    write_files(root, {**CART, "tests/test_cart.py": test})
    new = 'def half(items):\n    """Half of the sum."""\n    return sum(items) // 2\n\n\ndef shipping(weight):'
    said = use(("edit_file", {"path": "cart.py", "old_str": "def shipping(weight):", "new_str": new})), Say("Added.")
    result, _ = ran(root, use(("read_file", {"path": "cart.py"})), *said, protocol=Protocol.NATIVE, checks=())
    assert (result.outcome.kind, result.outcome.verified.kind) == (OutcomeKind.FINISHED, kind)
    assert result.outcome.verified.lines == (() if kind == "none" else ("cart.py:7",))
    assert ("nothing that passed was seen to run a changed line" in result.outcome.message) is (kind == "none")


AREA = "def area(a, b):\n    return a * b\n"
AREA_WITH = f'{AREA}\n\n"""\nExample:\n    >>> area(2, 3)\n    6\n"""\n'


@needs_sandbox
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (AREA_WITH.replace("*", "+"), AREA_WITH, "passed"),
        (AREA_WITH, AREA_WITH.replace("*", "-"), "contradicted"),
        (AREA_WITH.replace("*", "+"), AREA_WITH.replace("*", "-"), "none"),
        (AREA.replace("*", "+"), AREA_WITH, "none"),
        (AREA.replace("*", "+"), AREA_WITH.replace("6", "7"), "none"),
    ],
    ids=["right", "wrong", "wrong as before", "of the run itself", "wrong and of the run itself"],
)
def test_examples_below_a_function_are_evidence_where_the_run_did_not_write_them(
    root: Path, before: str, after: str, kind: str
) -> None:
    write_files(root, {"area.py": before})
    read, edit = use(("read_file", {"path": "area.py"})), use(("write_file", {"path": "area.py", "content": after}))
    context = AgentContext(workspace=str(root), protocol="native", read_ahead=False, max_failed_tries=1)
    model = ScriptedModel([message_of(each, Protocol.NATIVE) for each in (read, edit, DONE)])
    outcome = run_task("Fix area in area.py.", context, model=model).outcome
    assert outcome.verified.kind == kind
    assert (outcome.verified.ran == ("1 example of area.py",)) is (kind == "passed")


@needs_sandbox
def test_new_name_is_given_and_checked_without_a_call_of_the_model(root: Path) -> None:
    """The patch and the answer are of one reply, and the checks between them look at the patch's files."""
    test = "from cart import total\n\n\ndef test_it():\n    assert total([2, 3]) == 6\n"
    write_files(root, {**CART, "tests/test_cart.py": test})
    model = ScriptedModel([])
    context = AgentContext(workspace=str(root), model=SMALL, protocol="text", edit_form="blocks")
    result = run_task("rename total to sum_of everywhere", context, model=model)
    assert (result.outcome.kind, len(model.calls)) == (OutcomeKind.FINISHED, 0)
    assert result.outcome.answer == "Renamed total to sum_of in cart.py, tests/test_cart.py."
    assert (root / "tests/test_cart.py").read_text() == test.replace("total", "sum_of")
    assert result.outcome.verified.kind == "passed"


def test_definition_is_moved_when_it_is_gone_there_and_imported_from_here(root: Path) -> None:
    """The importer is neither named by the request nor changed by the first reply."""
    cart = CART["cart.py"]
    write_files(
        root, {"cart.py": cart, "shop.py": "from cart import shipping, total\n\nprint(total([]), shipping(1))\n"}
    )
    body = cart.partition("\n\n\n")[0]
    replies = [
        Say(f"cart.py\n```python\nfrom money import total\n```\n\nmoney.py\n```python\n{body}\n```"),
        *[Say("shop.py\n```python\nfrom money import total\n```")] * 2,  # which was not shown before the first
        Say("Done."),
    ]
    model = ScriptedModel(replies)
    context = AgentContext(workspace=str(root), model=SMALL, protocol="text", edit_form="blocks")
    result = run_task("Move the function total from cart.py to money.py.", context, model=model)
    assert "total is to be imported from money in shop.py, line 1." in str(model.calls[1])
    assert (result.outcome.kind, result.outcome.verified.kind) == (OutcomeKind.FINISHED, "none")
    texts = {path.name: path.read_text() for path in root.glob("*.py")}
    assert texts["money.py"].strip() == body
    assert texts["cart.py"] == "from money import total\n\n\n" + cart.partition("\n\n\n")[2]
    assert texts["shop.py"].startswith("from cart import shipping\nfrom money import total\n\nprint(")
