from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.begin_turn.node import begin_turn
from mendgraph.nodes.begin_turn.turn_start import FRESH_TURN, BeginTurnState, TurnResources, read_ahead
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, close_dangling_calls
from mendgraph.nodes.records import EditForm, Plan, PlanStep, Profile, Protocol, StopCause, StopReason

BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS, embedded=True)
NO_REQUEST = "There is no request: the last message has to be a person's, with text in it."
DANGLING = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "x", "type": "tool_call"}])


def begun(
    state: BeginTurnState,
    profile: Profile | None = None,
    problem: str | None = None,
    files: Iterable[tuple[str, int]] = (),
    read_ahead: bool = True,
    checked: bool = False,
) -> dict[str, Any]:
    using = TurnResources(
        profile or Profile(),
        problem,
        lambda new: ("replaced", new),
        str,
        Workspace(files),
        read_ahead=read_ahead,
        checked=checked,
    )
    return begin_turn(state, using)


class Workspace(NamedTuple):
    """It has `calc.py`, and `files` to show."""

    files: Iterable[tuple[str, int]]

    def exists(self, path: str) -> bool:
        return path == "calc.py"

    def size_of(self, _: str) -> int:
        return 0

    def readable(self) -> Iterable[tuple[str, int]]:
        return self.files

    def head(self, *_: object) -> None:
        return None


def fresh(**changed: object) -> dict[str, Any]:
    emptied: dict[str, object] = {"changes": ("replaced", []), "files_read": {}}
    return {**FRESH_TURN, **emptied, "plan": Plan(), "profile": Profile(), **changed}


def test_a_turn_begins_fresh_and_keeps_the_plan() -> None:
    plan = Plan(steps=(PlanStep(title="one"),))
    assert begun(BeginTurnState(messages=[HumanMessage("Fix it")])) == fresh()
    assert begun(BeginTurnState(messages=[HumanMessage("Fix it")], plan=plan)) == fresh(plan=plan)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_named_files_are_read_before_the_model_is_asked(protocol: Protocol) -> None:
    profile = Profile(protocol=protocol)
    state = BeginTurnState(messages=[HumanMessage("Fix calc.py and other.py")])
    assert begun(state, profile) == fresh(profile=profile, preload=read_ahead(["calc.py"]))
    for checked in (True, False):
        assert begun(state, profile, read_ahead=False, checked=checked) == fresh(profile=profile)


def test_only_the_last_request_is_read_for_names() -> None:
    history: list[AnyMessage] = [HumanMessage("Fix calc.py"), AIMessage("Done."), HumanMessage("Thanks.")]
    assert begun(BeginTurnState(messages=history)) == fresh()


def test_a_dangling_call_is_closed_before_the_request() -> None:
    history: list[AnyMessage] = [HumanMessage("Fix it"), DANGLING, HumanMessage("And?")]
    assert begun(BeginTurnState(messages=history)) == fresh(messages=("replaced", close_dangling_calls(history)))


@pytest.mark.parametrize(
    "history",
    [
        [],
        [HumanMessage(" \n")],
        [HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}])],
        [HumanMessage("Fix it"), AIMessage("Done.")],
        [HumanMessage("Fix it"), DANGLING, ToolMessage("{}", tool_call_id="x")],
        [HumanMessage("Fix it"), HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME)],
    ],
)
def test_without_a_request_there_is_nothing_to_do(history: list[AnyMessage]) -> None:
    stop = StopCause(reason=StopReason.INVALID_REQUEST, message=NO_REQUEST)
    assert begun(BeginTurnState(messages=history), BLOCKS) == fresh(profile=BLOCKS, stop=stop)


@pytest.mark.parametrize("history", [[], [HumanMessage("Fix calc.py")]])
def test_a_problem_of_the_context_is_told_first(history: list[AnyMessage]) -> None:
    stop = StopCause(reason=StopReason.INVALID_REQUEST, message="There is no folder 'x'.")
    assert begun(BeginTurnState(messages=history), problem=stop.message) == fresh(stop=stop)
