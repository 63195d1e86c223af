"""Which checks the work of a run must pass before it is finished: from the settings to the outcome."""

from pathlib import Path
from typing import Any

import pytest

from mendgraph import default_tools
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.sandboxes import needs_sandbox, set_sandbox_problem
from tests.surfaces.runs.tool_play import PROTOCOLS, new_workspace, play, reads
from tests.vocabulary import JsonMap
from tests.workspace_files import write_files

TEXT = PROTOCOLS[0]
CHECK = "grep -q right notes.txt"
NOTES = {"notes.txt": "old\n"}
READ, DONE = reads("notes.txt"), Say("The notes are right.")
SMALL = "qwen2.5-coder:1.5b"
CART = {
    "cart.py": "def total(items):\n    return sum(items) + 1\n\n\ndef shipping(weight):\n    return weight * 2\n",
    "tests/test_cart.py": (
        "from cart import shipping, total\n\n\ndef test_sum():\n    assert total([1, 2]) == 3\n\n\n"
        "def test_free():\n    assert shipping(11) == 0\n"
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", NOTES)
    return tmp_path / "root"


def write(text: str, path: str = "notes.txt") -> Use:
    return use(("write_file", {"path": path, "content": f"{text}\n"}))


@needs_sandbox
def test_run_is_finished_when_its_checks_pass(root: Path) -> None:
    run = play(root, READ, write("wrong"), DONE, write("right"), DONE, checks=(CHECK,), evidence=True)
    verified = run.outcome.verified
    assert (run.outcome.kind, verified.kind, verified.ran) == ("FINISHED", "passed", (CHECK,))
    assert (run.outcome.message, run.outcome.answer) == (f"Changed notes.txt; passed: {CHECK}.", "The notes are right.")
    assert [CHECK in run.sent(call) for call in range(5)] == [False, False, False, True, True]


@needs_sandbox
@pytest.mark.parametrize(
    ("first", "task", "finished"),
    [
        ("sum(items)", "Fix total in cart.py, so that test_free passes.", True),
        ("sum(items) + 2", "Fix total in cart.py.", True),
        ("sum(item)", "Rewrite the sum.", False),
    ],
)
def test_repair_is_kept_if_the_failing_test_failed_before(root: Path, first: str, task: str, finished: bool) -> None:
    write_files(root, CART)
    edit = use(("edit_file", {"path": "cart.py", "old_str": "sum(items) + 1", "new_str": first}))
    replies: tuple[Use | Say, ...] = (reads("cart.py"), edit, *[Say("It is right.")] * 2)
    run = play(root, *replies, request=task, evidence=True, max_failed_tries=2)
    assert (run.outcome.kind == "FINISHED") is finished
    if finished:
        assert f"return {first}\n" in (root / "cart.py").read_text()
        failed = str(run.events).replace("test_sum, test_free", "test_free")
        assert "test_free still fail" in failed
        assert ("not checked: test_sum, test_free" in run.outcome.message) is ("+" in first)


@slow
def test_required_checks_without_a_sandbox_end_the_run_before_any_model_call(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, "there is no bubblewrap")
    run = play(root, READ, checks=(CHECK,))
    assert (run.outcome.reason, run.model.calls) == ("invalid_request", [])
    assert "there is no bubblewrap" in run.outcome.message

    outcome = play(root, write("x = 1", "count.py"), DONE, evidence=True).outcome
    assert "there is no bubblewrap" in outcome.verified.reason
    assert outcome.message.startswith("Changed count.py; not checked: ")


# --- Unchecked changes

CODE = write("x = 1", "count.py")
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
COUNTED = use(("final_answer", {"answer": "Counted.", "value": {"n": 1}}))
NO_CHECKS = tuple(tool for tool in default_tools() if tool.spec.name != "run_checks")
MINE: JsonMap = {"role": "mine", "roles": {"mine": ["read_file", "write_file"]}}
LIMIT = "Limit 'max_calls_per_turn' exceeded: 2/2. Changed notes.txt; not checked: the run ended before"

UNCHECKED: tuple[tuple[tuple[Use | Say, ...], JsonMap, str, str], ...] = (
    ((READ, write("new"), DONE), {}, "FINISHED", "Changed notes.txt; not checked"),
    ((CODE, DONE), {"evidence": False}, "FINISHED", "Changed count.py; not checked"),
    ((READ, write("new"), COUNTED), {"response_format": COUNT}, "FINISHED", "Changed notes.txt; not checked"),
    ((READ, write("new"), DONE), MINE, "FINISHED", "Changed notes.txt; not checked"),
    ((CODE, DONE), {"only_tools": NO_CHECKS}, "FINISHED", "Changed count.py; not checked: no check ran after"),
    ((READ, write("new")), {"max_calls_per_turn": 2}, "BUDGET_STOP", LIMIT),
    ((READ, DONE), {}, "FINISHED", "No file was changed."),
)


@slow
def test_outcome_says_first_that_the_changes_were_not_checked(tmp_path: Path) -> None:
    for number, (replies, more, kind, message) in enumerate(UNCHECKED):
        settings = {"evidence": True, **more}
        protocol = PROTOCOLS[number % 2]
        outcome = play(new_workspace(tmp_path, NOTES), *replies, protocol=protocol, **settings).outcome
        assert (outcome.kind, outcome.verified.kind, outcome.verified.ran) == (kind, "none", ()), message
        assert outcome.message.startswith(message)


def test_required_checks_without_any_check_end_the_run(tmp_path: Path) -> None:
    required: dict[str, Any] = {"evidence": True, "require_checks": True}
    outcome = play(new_workspace(tmp_path, NOTES), READ, write("new"), DONE, **required).outcome
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "not_checked")
    message = "This run has to be checked, and nothing could check its changes. Changed notes.txt; not checked"
    assert outcome.message.startswith(message)
    assert outcome.diagnostics == (f"the answer: {DONE.text}",)
    assert "--check" in outcome.how_to_go_on

    unchanged = play(new_workspace(tmp_path, NOTES), READ, DONE, DONE, **required)
    unable = play(new_workspace(tmp_path, NOTES), only_tools=NO_CHECKS, **required)
    assert (unchanged.outcome.reason, unable.outcome.reason) == ("answered", "invalid_request")


# --- What counts as a check


@slow
@needs_sandbox
@pytest.mark.parametrize(
    ("tested", "kind"), [("total", "none"), ("half", "passed")], ids=["of other code", "of the new code"]
)
def test_tests_that_run_no_changed_line_do_not_verify(root: Path, tested: str, kind: str) -> None:
    """Every import of a file executes the `def` line of a new function."""
    test = f"from cart import {tested}\n\n\ndef test_it():\n    assert {tested}([4]) in (5, 2)\n"
    write_files(root, {**CART, "tests/test_cart.py": test})
    new = 'def half(items):\n    """Half of the sum."""\n    return sum(items) // 2\n\n\ndef shipping(weight):'
    edit = use(("edit_file", {"path": "cart.py", "old_str": "def shipping(weight):", "new_str": new}))
    outcome = play(root, reads("cart.py"), edit, Say("Added."), evidence=True).outcome
    assert (outcome.kind, outcome.verified.kind) == ("FINISHED", kind)
    assert outcome.verified.lines == (() if kind == "none" else ("cart.py:7",))
    assert ("nothing that passed was seen to run a changed line" in outcome.message) is (kind == "none")


AREA = "def area(a, b):\n    return a * b\n"
AREA_WITH = AREA.replace("    return", '    """\n    >>> area(2, 3)\n    6\n    """\n    return')


@slow
@needs_sandbox
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (AREA_WITH.replace("*", "+"), AREA_WITH, "passed"),
        (AREA_WITH, AREA_WITH.replace("*", "-"), "contradicted"),
        (AREA_WITH.replace("*", "+"), AREA_WITH.replace("*", "-"), "none"),
        (AREA.replace("*", "+"), AREA_WITH, "none"),
    ],
    ids=["right", "wrong", "wrong as before", "of the run itself"],
)
def test_docstring_examples_are_evidence_unless_the_run_wrote_them(
    root: Path, before: str, after: str, kind: str
) -> None:
    write_files(root, {"area.py": before})
    edit = use(("write_file", {"path": "area.py", "content": after}))
    outcome = play(root, reads("area.py"), edit, DONE, then=DONE, evidence=True, max_failed_tries=1).outcome
    assert outcome.verified.kind == kind
    assert (outcome.verified.ran == ("1 example of area.py",)) is (kind == "passed")


@needs_sandbox
def test_rename_is_done_and_checked_without_a_model_call(root: Path) -> None:
    """Patch and answer are in one reply, and the checks between them use the patched files."""
    test = "from cart import total\n\n\ndef test_it():\n    assert total([2, 3]) == 6\n"
    write_files(root, {**CART, "tests/test_cart.py": test})
    blocks: dict[str, Any] = {"model": SMALL, "edit_form": "blocks", "read_ahead": True, "evidence": True}
    run = play(root, request="rename total to sum_of everywhere", protocol=TEXT, **blocks)
    assert (run.outcome.kind, len(run.model.calls)) == ("FINISHED", 0)
    assert run.outcome.answer == "Renamed total to sum_of in cart.py, tests/test_cart.py."
    assert (root / "tests/test_cart.py").read_text() == test.replace("total", "sum_of")
    assert run.outcome.verified.kind == "passed"


@slow
def test_definition_is_moved_if_it_is_removed_and_imported_in_its_old_file(root: Path) -> None:
    """The importing file is neither named in the request nor changed by the first reply."""
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
    request = "Move the function total from cart.py to money.py."
    blocks: dict[str, Any] = {"model": SMALL, "edit_form": "blocks", "read_ahead": True, "evidence": True}
    run = play(root, *replies, request=request, protocol=TEXT, **blocks)
    assert "total is to be imported from money in shop.py, line 1." in run.sent(1)
    assert (run.outcome.kind, run.outcome.verified.kind) == ("FINISHED", "none")
    texts = {path.name: path.read_text() for path in root.glob("*.py")}
    assert texts["money.py"].strip() == body
    assert texts["cart.py"] == "from money import total\n\n\n" + cart.partition("\n\n\n")[2]
    assert texts["shop.py"].startswith("from cart import shipping\nfrom money import total\n\nprint(")
