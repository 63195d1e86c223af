"""`EvidenceMiddleware` beside the same agent without it: is "done" done?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import EvidenceMiddleware
from mendgraph.nodes.records import Verification
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.langchain.coders import THREAD, FilesystemBackend, asked, called, coder, deep_coder
from tests.sandboxes import needs_sandbox

TASK = "Repair add in calc.py: it has to add."
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
NOTHING = "No file was changed, so what this answer says has not happened."
PASSED = Verification(kind="passed", ran=("unittest test_calc.py: 1 test",), lines=("calc.py:2",)).model_dump(
    mode="json"
)
DONE = Say("I repaired add.")
both = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A module with a bug, and the test that shows it."""
    (tmp_path / "calc.py").write_text(code("a - b"), encoding="utf-8")
    (tmp_path / "test_calc.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def code(value: str) -> str:
    """The module."""
    return f"def add(a, b):\n    return {value}\n"


def saved(value: str, path: str = "calc.py") -> Calls:
    """The model writes it."""
    return called(("save", {"edits": [{"filePath": path, "text": code(value)}]}))


def told(state: dict[str, Any]) -> Sequence[str]:
    """What was said to the model after the request."""
    return [each.text for each in state["messages"] if isinstance(each, HumanMessage)][1:]


@needs_sandbox
@both
def test_a_wrong_change_goes_back_to_the_model_and_ends_the_agent_without_the_checks(root: Path, loop: bool) -> None:
    with ScriptedServer([saved("a ** b"), DONE]) as server:
        assert asked(coder(server, root), TASK, loop)["messages"][-1].text == DONE.text
    with ScriptedServer([saved("a * b"), DONE, saved("a + b"), Say("Now it adds.")]) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root))), TASK, loop)
    [failure] = told(state)
    assert failure.startswith("The files that you changed do not pass their checks:\ntest_calc.py fails:")
    assert (state["messages"][-1].text, state["verified"]) == ("Now it adds.", PASSED)


@needs_sandbox
def test_a_deep_agent_is_judged_by_what_its_own_tools_changed(root: Path) -> None:
    write = [called(("write_file", {"file_path": "/calc.py", "content": code(each)})) for each in ("a * b", "a + b")]
    with ScriptedServer([write[0], DONE, write[1], DONE]) as server:
        files = FilesystemBackend(root_dir=root, virtual_mode=True)
        state = asked(deep_coder(server, files, EvidenceMiddleware(str(root))), TASK)
    assert (len(told(state)), state["verified"]) == (1, PASSED)


@both
def test_a_change_that_was_not_made_is_contradicted_after_four_answers(root: Path, loop: bool) -> None:
    with ScriptedServer([DONE] * 5) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root))), TASK, loop)
        assert (len(server.requests), len(told(state))) == (4, 3)
    assert state["verified"] == Verification(kind="contradicted", reason=NOTHING).model_dump(mode="json")


def test_a_question_and_its_answer_are_left_alone(root: Path) -> None:
    with ScriptedServer([called(("read_file", {"path": "calc.py"})), Say("It subtracts.")]) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root))), "What does add in calc.py do?")
    assert (told(state), state["verified"]["kind"], state["verified"]["reason"]) == ([], "none", "")


@needs_sandbox
def test_what_failed_before_does_not_count_and_each_turn_has_its_own_beginning(root: Path) -> None:
    (root / "test_other.py").write_text(
        "from other import add\n\n\ndef test_other():\n    assert add(1, 1) == 7\n", encoding="utf-8"
    )
    (root / "other.py").write_text(code("a + b"), encoding="utf-8")
    with ScriptedServer([saved("b + a", "other.py"), Say("Swapped."), saved("a + b"), DONE]) as server:
        agent = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=InMemorySaver())
        first = asked(agent, "Swap the operands in other.py.")
        assert (told(first), first["verified"]["kind"]) == ([], "none")
        assert "failed already before the change" in first["verified"]["reason"]
        assert asked(agent, TASK)["verified"] == PASSED
        assert agent.get_state(THREAD).values["verified"] == PASSED


@needs_sandbox
def test_checks_of_ones_own_must_pass_and_show_no_secret(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENT_TOKEN", "t0ken-9f8e7d6c5b4a")
    checks = ["sh -c 'echo t0ken-9f8e7d6c5b4a; ! grep -q todo calc.py'"]
    with ScriptedServer([saved("a + b  # todo"), DONE, saved("a + b"), DONE]) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root), checks=checks)), TASK)
    [failure] = told(state)
    assert ("[redacted secret]" in failure, "t0ken" in failure, state["verified"]["kind"]) == (True, False, "passed")


@needs_sandbox
def test_a_turn_that_another_process_goes_on_with_is_not_judged(root: Path) -> None:
    with ScriptedServer([saved("a * b"), DONE]) as server:
        saver = InMemorySaver()
        first = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver, interrupt_after=["tools"])
        asked(first, TASK)
        state = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver).invoke(None, THREAD)
    assert state["verified"]["reason"] == "the files at the beginning of this turn are not known to this process"


def test_beginning_of_sixty_four_turns_at_once_is_remembered(root: Path) -> None:
    middleware = EvidenceMiddleware(str(root))
    turns = [middleware.before_agent({}, None) for _ in range(65)]
    said = [HumanMessage("What is it?"), AIMessage("A module.")]
    ends = [middleware.after_agent({**turn, "messages": said}, None) for turn in turns]
    reasons = [end["verified"]["reason"] for end in ends]
    assert reasons == ["the files at the beginning of this turn are not known to this process", *[""] * 64]


def test_what_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: make the folder"):
        EvidenceMiddleware(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="is not a command line"):
        EvidenceMiddleware(str(tmp_path), checks=["pytest '"])
