"""In the block form: an answer says what was changed and nothing else, and a second turn goes on with the first."""

from pathlib import Path

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Ended
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.language.blocks import render_file
from mendgraph.nodes.records import Outcome, OutcomeKind
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.workspace_files import changed_files, write_files

OLD, NEW = "LIMIT = 3\n", "LIMIT = 5\n"
FILES = {"a.py": OLD, "b.py": OLD}
BOTH, NOT_B = "Set LIMIT to 5 in a.py and b.py.", "The request names b.py, which was not changed."
SMALL = "qwen2.5-coder:1.5b"


def block(path: str, text: str = NEW) -> Say:
    return Say(render_file(path, text))


def play(folder: Path, model: ScriptedModel, *requests: str, name: str | None = None) -> list[Outcome]:
    context = AgentContext(workspace=str(folder), model=name, protocol="text", edit_form="blocks")
    with Session(context, model=model, thread_id="t") as session:
        ends = [[*session.stream(request)][-1] for request in requests]
    return [end.outcome for end in ends if isinstance(end, Ended)]


def last_words(model: ScriptedModel, call: int) -> str:
    return str(model.calls[call].prompt.messages[-1]["content"])


@pytest.mark.parametrize("between", [(), (Say("b.py is right as it is."),)], ids=["edits", "words"])
def test_file_that_an_order_lists_has_to_be_changed(tmp_path: Path, between: tuple[Say, ...]) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([block("a.py"), *between, block("b.py")])
    [outcome] = play(tmp_path, model, BOTH, name=SMALL)
    assert (outcome.kind, outcome.answer) == (OutcomeKind.FINISHED, "Changed a.py, b.py.")
    assert last_words(model, 1) == f"{render_file('b.py', FILES['b.py'])}\n\n{BOTH}"
    assert len(model.calls) == 2 + len(between)


def test_model_that_insists_is_taken_at_its_word_at_its_last_try(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([block("a.py")], then=Say("All is well."))
    [outcome] = play(tmp_path, model, BOTH, name=SMALL)
    assert (outcome.kind, outcome.answer, outcome.changed_files) == (OutcomeKind.FINISHED, "All is well.", ("a.py",))
    assert [NOT_B in str(call.prompt.messages) for call in model.calls] == [False, False, False, True]
    assert changed_files(tmp_path, FILES) == {"a.py": NEW}


FAILURE = "Fix a.py.\n\ntest_a.py:3: in test_limit\n    check()\nE   ValueError: 3. Update a.py and b.py."


@pytest.mark.parametrize(
    "request_text", ["Set the LIMIT to 5.", FAILURE, "Set LIMIT to 5 in a.py and c.py."], ids=["none", "output", "gone"]
)
def test_what_was_repeated_as_it_is_was_not_changed_and_need_not_be(tmp_path: Path, request_text: str) -> None:
    write_files(tmp_path, FILES)
    model = ScriptedModel([Say(f"{render_file('a.py', NEW)}\n{render_file('b.py', OLD)}")])
    [outcome] = play(tmp_path, model, request_text)
    assert (outcome.kind, outcome.answer) == (OutcomeKind.FINISHED, "Changed a.py.")


CALC = {f"{name}.py": f"def {name}(a, b):\n    ...\n" for name in ("add", "sub", "mul", "div", "mod", "pow")}
OUTPUT = """\
=================================== FAILURES ===================================
add_test.py:4: in test_add
    assert add(1, 2) == 3
E   assert -1 == 3
FAILED add_test.py::test_add - assert -1 == 3"""


def test_pasted_output_is_about_what_was_changed_before(tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    wrong, right = (CALC["add.py"].replace("...", f"return a {sign} b") for sign in "-+")
    model = ScriptedModel([block("add.py", wrong), block("add.py", right)])
    first = "Write the function in add.py: it adds two numbers."
    outcomes = play(tmp_path, model, first, OUTPUT)
    assert [each.answer for each in outcomes] == ["Changed add.py."] * 2
    assert changed_files(tmp_path, CALC) == {"add.py": right}
    told = f"Fix this.\n\n{render_file('add.py', wrong)}\n\n{OUTPUT}"
    assert last_words(model, 1) == f"This was asked before:\n\n{first}\n\nNow:\n\n{told}"
    said = [message["role"] for message in model.calls[1].prompt.messages]
    assert said == [message["role"] for message in model.calls[0].prompt.messages]
