"""Help for small models: the block form, claims without work, large files; and that it costs strong models nothing."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph import AgentContext, Alerted, Effect, Ended, Outcome, Session, tool
from mendgraph.nodes.small_model.blocks import render_file
from mendgraph.nodes.small_model.examples import foreign_lines
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.scenarios.sample_repair import BROKEN, EDIT, READ, TASK
from tests.surfaces.runs.tool_play import PROTOCOLS, PlayedRun, new_workspace, play, reads
from tests.vocabulary import Protocol
from tests.workspace_files import changed_files, write_files

SMALL = "qwen2.5-coder:1.5b"
OLD, NEW = "LIMIT = 3\n", "LIMIT = 5\n"
FILES = {"a.py": OLD, "b.py": OLD}
BOTH, NOT_B = "Set LIMIT to 5 in a.py and b.py.", "The request names b.py, which was not changed."


def block(path: str, text: str = NEW) -> Say:
    return Say(render_file(path, text))


def turns(folder: Path, model: ScriptedModel, *requests: str, name: str | None = None) -> list[Outcome]:
    context = AgentContext(workspace=str(folder), model=name, protocol="text", edit_form="blocks")
    with Session(context, model=model, thread_id="t") as session:
        ends = [[*session.stream(request)][-1] for request in requests]
    return [end.outcome for end in ends if isinstance(end, Ended)]


def last_words(model: ScriptedModel, call: int) -> str:
    return str(model.calls[call].prompt.messages[-1]["content"])


@slow
@pytest.mark.parametrize("between", [(), (Say("b.py is right as it is."),)], ids=["edits", "words"])
def test_file_listed_in_the_request_must_be_changed(tmp_path: Path, between: tuple[Say, ...]) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([block("a.py"), *between, block("b.py")])
    [outcome] = turns(tmp_path, model, BOTH, name=SMALL)
    assert (outcome.kind, outcome.answer) == ("FINISHED", "Changed a.py, b.py.")
    assert last_words(model, 1) == f"{render_file('b.py', FILES['b.py'])}\n\n{BOTH}"
    assert len(model.calls) == 2 + len(between)


@slow
def test_repeated_claim_is_accepted_at_the_last_try(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([block("a.py")], then=Say("All is well."))
    [outcome] = turns(tmp_path, model, BOTH, name=SMALL)
    assert (outcome.kind, outcome.answer, outcome.changed_files) == ("FINISHED", "All is well.", ("a.py",))
    assert [NOT_B in str(call.prompt.messages) for call in model.calls] == [False, False, False, True]
    assert changed_files(tmp_path, FILES) == {"a.py": NEW}


@slow
def test_calls_cancelled_after_a_failed_edit_are_not_counted_as_failures(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.py": "def limit():\n    x = 3\n    return x\n"})
    context = AgentContext(workspace=str(tmp_path), model=SMALL, protocol="text", edit_form="blocks")
    parts = [block("a.py", f"    return {number}\n") for number in range(5, 9)]
    with Session(context, model=ScriptedModel(parts)) as session:
        events = list(session.stream("Let limit in a.py return 5."))

    assert [event.outcome.reason for event in events if isinstance(event, Ended)] == ["edits_failed"]
    assert not [event for event in events if isinstance(event, Alerted)]


FAILURE = "Fix a.py.\n\ntest_a.py:3: in test_limit\n    check()\nE   ValueError: 3. Update a.py and b.py."


@slow
@pytest.mark.parametrize(
    "request_text", ["Set the LIMIT to 5.", FAILURE, "Set LIMIT to 5 in a.py and c.py."], ids=["none", "output", "gone"]
)
def test_file_that_was_repeated_unchanged_need_not_be_changed(tmp_path: Path, request_text: str) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([Say(f"{render_file('a.py', NEW)}\n{render_file('b.py', OLD)}")])
    [outcome] = turns(tmp_path, model, request_text)
    assert (outcome.kind, outcome.answer) == ("FINISHED", "Changed a.py.")


CALC = {f"{name}.py": f"def {name}(a, b):\n    ...\n" for name in ("add", "sub", "mul", "div", "mod", "pow")}
OUTPUT = """\
=================================== FAILURES ===================================
add_test.py:4: in test_add
    assert add(1, 2) == 3
E   assert -1 == 3
FAILED add_test.py::test_add - assert -1 == 3"""


@slow
def test_pasted_output_is_about_the_file_changed_before(tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    wrong, right = (CALC["add.py"].replace("...", f"return a {sign} b") for sign in "-+")
    model = ScriptedModel([block("add.py", wrong), block("add.py", right)])
    first = "Write the function in add.py: it adds two numbers."
    outcomes = turns(tmp_path, model, first, OUTPUT)
    assert [outcome.answer for outcome in outcomes] == ["Changed add.py."] * 2
    assert changed_files(tmp_path, CALC) == {"add.py": right}
    request = f"Fix this.\n\n{render_file('add.py', wrong)}\n\n{OUTPUT}"
    assert last_words(model, 1) == f"This was asked before:\n\n{first}\n\nNow:\n\n{request}"
    roles = [message["role"] for message in model.calls[1].prompt.messages]
    assert roles == [message["role"] for message in model.calls[0].prompt.messages]


# --- Files that are larger than the window

FILLING = "".join(f"def step_{number}(value):\n    return value + {number}\n\n\n" for number in range(900))
FEE = "def late_fee(days):\n    return days\n"
LARGE = {"bills.py": f"{FILLING}{FEE}\n\n{FILLING.replace('step', 'stage')}", "greeting.py": "HELLO = 1\n"}
LINE = FILLING.count("\n") + 1


def test_question_about_a_large_file_is_sent_with_its_relevant_part(tmp_path: Path) -> None:
    write_files(tmp_path, LARGE)
    model = ScriptedModel([Say("It returns the days.")])
    [outcome] = turns(tmp_path, model, "What does late_fee in bills.py return?", name=SMALL)
    request = last_words(model, 0)
    assert FEE in request
    assert f"Of bills.py only lines {LINE} to " in request
    assert "HELLO" not in request
    assert outcome.message.startswith(f"No file was changed. Not read: bills.py (except lines {LINE} to ")
    assert [(mark.kind, mark.path) for mark in outcome.marks] == [("unread", "bills.py")]


@slow
def test_function_in_a_large_file_is_changed_and_the_rest_stays(tmp_path: Path) -> None:
    write_files(tmp_path, LARGE)
    new = FEE.replace("return days", "return 2 * days")
    model = ScriptedModel([block("bills.py", new)])
    [outcome] = turns(tmp_path, model, "late_fee in bills.py should give two a day. Fix it.", name=SMALL)
    assert outcome.message.startswith("Changed bills.py; not checked: ")
    assert f"not read: bills.py (except lines {LINE} to " in outcome.message
    assert changed_files(tmp_path, LARGE) == {"bills.py": LARGE["bills.py"].replace(FEE, new)}


def test_named_file_that_is_not_shown_is_named_in_the_first_line(tmp_path: Path) -> None:
    files = {"a.py": "A = 100_000_000_000\n" * 450, "table.csv": "a,b\n" * 5_000}
    write_files(tmp_path, files)
    model = ScriptedModel([Say("They belong together.")])
    [outcome] = turns(tmp_path, model, "How does a.py use table.csv?", name=SMALL)
    assert outcome.message == "No file was changed. Not read: table.csv."


# --- The examples of the block form

ADD = {"calc.py": "def add(a, b):\n    return a - b\n"}
LEAK = "calc.py\n```python\ndef add(a, b):\n    return a + b  # Set depth to 3 in limits.json.\n```"
MENDED = "calc.py\n```python\ndef add(a, b):\n    return a + b\n```"


@pytest.mark.parametrize("has_request", [False, True])
def test_line_of_a_prompt_example_is_written_only_if_the_request_has_it(tmp_path: Path, has_request: bool) -> None:
    write_files(tmp_path, ADD)
    task = "Change add in calc.py." + " Write above its end: Set depth to 3 in limits.json." * has_request
    replies = (Say(LEAK), Say(MENDED))
    run = play(tmp_path, *replies, request=task, protocol=Protocol.TEXT, edit_form="blocks", read_ahead=True)
    assert (run.outcome.kind, len(run.model.calls)) == ("FINISHED", 1 if has_request else 2)
    assert ("depth" in (tmp_path / "calc.py").read_text()) is has_request
    message = "The line 'return a + b  # Set depth to 3 in limits.json.' is of an example that you were shown"
    assert has_request or message in last_words(run.model, 1)


@slow
@settings(max_examples=10)
@given(st.sampled_from(sorted(foreign_lines(""))), st.sampled_from(["", "    # ", '"', "- "]), st.booleans())
def test_file_with_a_line_of_a_prompt_example_is_edited_as_usual(line: str, mark: str, is_read: bool) -> None:
    with TemporaryDirectory() as folder:
        write_files(Path(folder), {"a.md": f"# A\n{mark}{line}\nend\n"})
        edit = ("edit_file", {"path": "a.md", "old_str": "end", "new_str": f"{line}\nthe end"})
        first = reads("a.md").calls if is_read else ()
        play(Path(folder), use(*first, edit), Say("Edited."), request="Edit it.", edit_form="blocks")
        assert Path(folder, "a.md").read_text().endswith(f"{line}\nthe end\n")


def test_model_without_prompt_examples_may_write_their_lines(tmp_path: Path) -> None:
    text = '{\n  "depth": 3\n}\n'
    play(tmp_path, use(("write_file", {"path": "limits.json", "content": text})), Say("Written."))
    assert (tmp_path / "limits.json").read_text() == text


# --- Claims, and the cost of this help


@pytest.mark.parametrize(("effect", "calls"), [(Effect.NETWORK, 2), (Effect.READ, 4)])
def test_small_model_may_claim_work_that_a_tool_did_elsewhere(tmp_path: Path, effect: Effect, calls: int) -> None:
    @tool(effect=effect)
    def create_issue(title: str) -> dict[str, str]:
        """Open an issue."""
        return {"opened": title}

    created = use(("create_issue", {"title": "It crashes"})), Say("I have created the issue.")
    request = "Create an issue: it crashes."
    run = play(tmp_path, *created, request=request, then=Say("It is not there."), model=SMALL, tools=(create_issue,))
    assert len(run.model.calls) == calls


@slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_strong_model_pays_nothing_for_the_help_for_small_models(tmp_path: Path, protocol: Protocol) -> None:
    documented = BROKEN.replace("return", '"""Add.\n\n    >>> add(2, 3)\n    5\n    """\n    return')

    def repaired(**more: Any) -> PlayedRun:
        root = new_workspace(tmp_path, {"calc.py": documented})
        run = play(root, use(READ), use(EDIT), Say("It adds."), request=TASK, protocol=protocol, **more)
        assert (run.outcome.kind, run.outcome.answer) == ("FINISHED", "It adds."), run.outcome
        return run

    without = repaired(max_healing_attempts=0)
    evidence = repaired(evidence=True)
    assert [call.prompt for call in evidence.model.calls] == [call.prompt for call in without.model.calls]


@slow
def test_reading_ahead_saves_a_call(tmp_path: Path) -> None:
    runs = [
        play(new_workspace(tmp_path, {"calc.py": BROKEN}), *replies, request=TASK, read_ahead=ahead)
        for ahead, replies in ((True, (use(EDIT), Say("It adds."))), (False, (use(READ), use(EDIT), Say("It adds."))))
    ]
    sent, otherwise = (sum(call.prompt.size for call in run.model.calls) for run in runs)
    assert [run.outcome.kind for run in runs] == ["FINISHED"] * 2
    assert sent <= 1.02 * otherwise
