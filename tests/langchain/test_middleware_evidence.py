"""`EvidenceMiddleware`, compared with the same agent without it: is "done" true?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware, hook_config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import BudgetMiddleware, EvidenceMiddleware
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.extent import slow
from tests.langchain.coders import THREAD, FilesystemBackend, coder, deep_coder, reply_with_calls, run_turn
from tests.sandboxes import needs_sandbox

TASK = "Repair add in calc.py: it has to add."
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 0) == 2\n"
FORGOTTEN = "the files at the beginning of this turn are not known to this process"
PASSED = ("passed", ["unittest test_calc.py: 1 test"], ["calc.py:2"])
DONE = Say("I repaired add.")
sync_and_async = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A module with a bug, and a test that passes anyway."""
    (tmp_path / "calc.py").write_text(code("a - b"), encoding="utf-8")
    (tmp_path / "test_calc.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def code(value: str) -> str:
    """The module."""
    return f"def add(a, b):\n    return {value}\n"


def save_call(value: str, path: str = "calc.py") -> Calls:
    """The model writes it."""
    return reply_with_calls(("save", {"edits": [{"filePath": path, "text": code(value)}]}))


def verification_of(state: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """How it was verified, by what, and which lines."""
    evidence = state["verified"]
    return evidence["kind"], evidence["ran"], evidence["lines"]


def added_messages(state: dict[str, Any]) -> Sequence[str]:
    """The messages to the model after the request."""
    return [message.text for message in state["messages"] if isinstance(message, HumanMessage)][1:]


@needs_sandbox
@sync_and_async
def test_wrong_change_is_sent_back_to_the_model(root: Path, loop: bool) -> None:
    with ScriptedServer([save_call("a * b"), DONE, save_call("a + b"), Say("Now it adds.")]) as server:
        state = run_turn(coder(server, root, EvidenceMiddleware(str(root))), TASK, loop)
    [failure] = added_messages(state)
    assert failure.startswith("The files that you changed do not pass their checks:\ntest_calc.py fails:")
    assert (state["messages"][-1].text, verification_of(state)) == ("Now it adds.", PASSED)


@slow
@needs_sandbox
def test_deep_agent_is_checked_on_the_changes_of_its_own_tools(root: Path) -> None:
    write = [
        reply_with_calls(("write_file", {"file_path": "/calc.py", "content": code(expression)}))
        for expression in ("a * b", "a + b")
    ]
    with ScriptedServer([write[0], DONE, write[1], DONE]) as server:
        files = FilesystemBackend(root_dir=root, virtual_mode=True)
        state = run_turn(deep_coder(server, files, EvidenceMiddleware(str(root))), TASK)
    assert (len(added_messages(state)), verification_of(state)) == (1, PASSED)


def test_answer_without_a_change_is_not_checked(root: Path) -> None:
    with ScriptedServer([reply_with_calls(("read_file", {"path": "calc.py"})), DONE]) as server:
        state = run_turn(coder(server, root, EvidenceMiddleware(str(root))), TASK)
    assert added_messages(state) == []
    assert (state["verified"]["kind"], state["verified"]["reason"]) == ("none", "No file was changed.")


class Guardrail(AgentMiddleware[Any, Any, Any]):
    """Ends the agent in the hook of this name, with its own answer if there is one."""

    def __init__(self, hook: str, words: str = "", same_id: bool = False) -> None:
        super().__init__()
        self._hook, self._words, self._same_id = hook, words, same_id

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """End before the second call."""
        return self._end(state) if self._hook == "before_model" and len(state["messages"]) > 1 else None

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """End after the answer."""
        return self._end(state) if self._hook == "after_model" and not state["messages"][-1].tool_calls else None

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Replace the answer."""
        return self._end(state) if self._hook == "after_agent" else None

    def _end(self, state: Any) -> dict[str, Any]:
        jump = {} if self._hook == "after_agent" else {"jump_to": "end"}
        if not self._words:
            return jump
        return {**jump, "messages": [AIMessage(self._words, id=state["messages"][-1].id if self._same_id else None)]}


ENDS: dict[str, Any] = {
    "a filter before the model": lambda: Guardrail("before_model"),
    "a filter before the model, with words": lambda: Guardrail("before_model", "I stop here."),
    "a filter that adds its answer": lambda: Guardrail("after_model", "I cannot say that."),
    "a filter that replaces the answer": lambda: Guardrail("after_model", "I cannot say that.", same_id=True),
    "a filter that leaves the answer": lambda: Guardrail("after_model"),
    "a filter at the end": lambda: Guardrail("after_agent", "I cannot say that.", same_id=True),
    "a budget": lambda: BudgetMiddleware(max_calls_per_turn=1),
    "a limit of LangChain": lambda: ModelCallLimitMiddleware(run_limit=1),
}


# Hooks at the end run in reverse: one that stands before ours has not ended the agent yet, and where one runs before
# ours, LangGraph has forgotten a jump.
IMPOSSIBLE: Any = {("a filter at the end", True), ("a filter that leaves the answer", False)}
PLACES = [(end, first) for end in ENDS for first in (True, False) if (end, first) not in IMPOSSIBLE]


@slow
@needs_sandbox
@pytest.mark.parametrize(("end", "first", "loop"), [(*place, bool(at % 2)) for at, place in enumerate(PLACES)])
def test_agent_ended_by_other_middleware_is_not_continued(root: Path, end: str, first: bool, loop: bool) -> None:
    stack = [ENDS[end](), EvidenceMiddleware(str(root))]
    with ScriptedServer([save_call("a * b"), DONE, Say("The model was asked again.")]) as server:
        state = run_turn(coder(server, root, *(stack if first else stack[::-1])), TASK, loop)
        assert len(server.requests) <= 2
    assert (added_messages(state), state["verified"]["kind"]) == ([], "contradicted")


@slow
@needs_sandbox
def test_earlier_failures_are_ignored_and_each_turn_has_its_own_start(root: Path) -> None:
    (root / "test_other.py").write_text(
        "from other import add\n\n\ndef test_other():\n    assert add(1, 1) == 7\n", encoding="utf-8"
    )
    (root / "other.py").write_text(code("a + b"), encoding="utf-8")
    with ScriptedServer([save_call("b + a", "other.py"), Say("Swapped."), save_call("a + b"), DONE]) as server:
        agent = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=InMemorySaver())
        first = run_turn(agent, "Swap the operands in other.py.")
        assert (added_messages(first), first["verified"]["kind"]) == ([], "none")
        assert "as before the change" in first["verified"]["reason"]
        assert verification_of(run_turn(agent, TASK)) == PASSED
        assert verification_of(agent.get_state(THREAD).values) == PASSED


@slow
@needs_sandbox
def test_custom_checks_must_pass_and_their_output_is_redacted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENT_TOKEN", "t0ken-9f8e7d6c5b4a")
    checks = ["sh -c 'echo t0ken-9f8e7d6c5b4a; ! grep -q todo calc.py'"]
    with ScriptedServer([save_call("a + b  # todo"), DONE, save_call("a + b"), DONE]) as server:
        state = run_turn(coder(server, root, EvidenceMiddleware(str(root), checks=checks)), TASK)
    [failure] = added_messages(state)
    assert ("[redacted secret]" in failure, "t0ken" in failure, state["verified"]["kind"]) == (True, False, "passed")


@needs_sandbox
def test_turn_resumed_in_another_process_is_not_verified(root: Path) -> None:
    with ScriptedServer([save_call("a * b"), DONE]) as server:
        saver = InMemorySaver()
        first = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver, interrupt_after=["tools"])
        run_turn(first, TASK)
        state = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver).invoke(None, THREAD)
    assert state["verified"]["reason"] == FORGOTTEN


def test_invalid_argument_is_refused_in_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: create the folder"):
        EvidenceMiddleware(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="is not a command line"):
        EvidenceMiddleware(str(tmp_path), checks=["pytest '"])
