"""`EvidenceMiddleware` beside the same agent without it: is "done" done?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware, hook_config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import BudgetMiddleware, EvidenceMiddleware
from mendgraph.nodes.records import Verification
from tests.doubles.replies import Status
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.langchain.coders import THREAD, FilesystemBackend, asked, called, coder, deep_coder
from tests.sandboxes import needs_sandbox

TASK = "Repair add in calc.py: it has to add."
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 0) == 2\n"
FORGOTTEN = "the files at the beginning of this turn are not known to this process"
NOTHING = "No file was changed."
PASSED = Verification(kind="passed", ran=("unittest test_calc.py: 1 test",), lines=("calc.py:2",)).model_dump(
    mode="json"
)
DONE = Say("I repaired add.")
both = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A module with a bug, and a test that passes all the same."""
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
def test_wrong_change_goes_back_to_the_model_and_ends_the_agent_without_the_checks(root: Path, loop: bool) -> None:
    with ScriptedServer([saved("a ** b"), DONE]) as server:
        assert asked(coder(server, root), TASK, loop)["messages"][-1].text == DONE.text
    (root / "calc.py").write_text(code("a - b"), encoding="utf-8")
    with ScriptedServer([saved("a * b"), DONE, saved("a + b"), Say("Now it adds.")]) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root))), TASK, loop)
    [failure] = told(state)
    assert failure.startswith("The files that you changed do not pass their checks:\ntest_calc.py fails:")
    assert (state["messages"][-1].text, state["verified"]) == ("Now it adds.", PASSED)


@needs_sandbox
def test_deep_agent_is_judged_by_what_its_own_tools_changed(root: Path) -> None:
    write = [called(("write_file", {"file_path": "/calc.py", "content": code(each)})) for each in ("a * b", "a + b")]
    with ScriptedServer([write[0], DONE, write[1], DONE]) as server:
        files = FilesystemBackend(root_dir=root, virtual_mode=True)
        state = asked(deep_coder(server, files, EvidenceMiddleware(str(root))), TASK)
    assert (len(told(state)), state["verified"]) == (1, PASSED)


@pytest.mark.parametrize(
    ("request_text", "answer"), [(TASK, DONE.text), ("What does add in calc.py do?", "It subtracts.")]
)
@both
def test_answer_without_a_change_is_not_judged_by_its_words(
    root: Path, loop: bool, request_text: str, answer: str
) -> None:
    with ScriptedServer([called(("read_file", {"path": "calc.py"})), Say(answer)]) as server:
        state = asked(coder(server, root, EvidenceMiddleware(str(root))), request_text, loop)
    assert told(state) == []
    assert (state["verified"]["kind"], state["verified"]["reason"]) == ("none", NOTHING)


class Guardrail(AgentMiddleware[Any, Any, Any]):
    """Ends the agent in a hook of one name, with words of its own where there are any."""

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


@needs_sandbox
@pytest.mark.parametrize(
    ("end", "first"),
    # Hooks at the end run in reverse: one that stands before ours has not ended the agent yet, and where one runs
    # before ours, LangGraph has forgotten a jump.
    [
        (end, first)
        for end in ENDS
        for first in (True, False)
        if (end, first) not in {("a filter at the end", True), ("a filter that leaves the answer", False)}
    ],
)
@both
def test_agent_that_other_middleware_has_ended_is_not_continued(root: Path, end: str, first: bool, loop: bool) -> None:
    stack = [ENDS[end](), EvidenceMiddleware(str(root))]
    with ScriptedServer([saved("a * b"), DONE, Say("The model was asked again.")]) as server:
        state = asked(coder(server, root, *(stack if first else stack[::-1])), TASK, loop)
        assert len(server.requests) <= 2
    assert (told(state), state["verified"]["kind"]) == ([], "contradicted")


def test_turn_that_a_filter_ends_before_it_began_is_not_judged(root: Path) -> None:
    class Filter(AgentMiddleware[Any, Any, Any]):
        @hook_config(can_jump_to=["end"])
        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
            refused = "forbidden" in state["messages"][-1].text
            return {"messages": [AIMessage("I cannot.")], "jump_to": "end"} if refused else None

    with ScriptedServer([saved("a * b"), Status(500)]) as server:
        parts = [Filter(), EvidenceMiddleware(str(root))]
        agent = coder(server, root, *parts, checkpointer=InMemorySaver())
        with pytest.raises(openai.InternalServerError):
            asked(agent, TASK)
        state = asked(agent, "forbidden")
    assert (state["messages"][-1].text, state["verified"]["reason"]) == ("I cannot.", FORGOTTEN)


def test_thread_that_began_without_it_ends_unjudged(root: Path) -> None:
    with ScriptedServer([Say("Hello.")]) as server:
        saver = InMemorySaver()
        agent = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver)
        said = [HumanMessage("Hi."), AIMessage("Hello.")]
        agent.update_state(THREAD, {"messages": said}, as_node="model")
        state = agent.invoke(None, THREAD)
    assert state["verified"]["reason"] == FORGOTTEN


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
def test_turn_that_another_process_goes_on_with_is_not_judged(root: Path) -> None:
    with ScriptedServer([saved("a * b"), DONE]) as server:
        saver = InMemorySaver()
        first = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver, interrupt_after=["tools"])
        asked(first, TASK)
        state = coder(server, root, EvidenceMiddleware(str(root)), checkpointer=saver).invoke(None, THREAD)
    assert state["verified"]["reason"] == "the files at the beginning of this turn are not known to this process"


def test_beginning_of_sixty_four_turns_at_once_is_remembered(root: Path) -> None:
    middleware = EvidenceMiddleware(str(root))
    said = [HumanMessage("What is it?", id="1"), AIMessage("A module.")]
    turns = [middleware.before_agent({"messages": said[:1]}, None) for _ in range(65)]
    ends = [middleware.after_agent({**turn, "messages": said}, None) for turn in turns]
    reasons = [end["verified"]["reason"] for end in ends]
    assert reasons == ["the files at the beginning of this turn are not known to this process", *[NOTHING] * 64]


def test_what_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: make the folder"):
        EvidenceMiddleware(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="is not a command line"):
        EvidenceMiddleware(str(tmp_path), checks=["pytest '"])
