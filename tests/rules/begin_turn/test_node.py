from collections.abc import Iterable
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.graph.machine.small_models import preload_of
from mendgraph.nodes.begin_turn.history import HANDED_ON
from mendgraph.nodes.begin_turn.node import begin_turn
from mendgraph.nodes.begin_turn.turn import FRESH_TURN, BeginTurnState, TurnResources
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, close_dangling_calls, is_request
from mendgraph.nodes.language.read_ahead import read_ahead
from mendgraph.nodes.records import (
    EditForm,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStep,
    Profile,
    Protocol,
    StopCause,
    StopReason,
)
from tests.row_tables import rows

BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS, embedded=True)
NO_REQUEST = "There is no request: send a message of a person, with text."
DANGLING = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "x", "type": "tool_call"}])


def update_of(
    state: BeginTurnState, profile: Profile | None = None, problem: StopCause | None = None
) -> dict[str, Any]:
    profile = profile or Profile()
    preload = preload_of(profile, checked=False)
    using = TurnResources(profile, problem, lambda new: ("replaced", new), str, Workspace(), preload=preload)
    return begin_turn(state, using)


class Workspace:
    """It has `calc.py`."""

    def exists(self, path: str) -> bool:
        return path == "calc.py"

    def size_of(self, _: str) -> int:
        return 0

    def readable(self) -> Iterable[tuple[str, int]]:
        return ()

    def head(self, *_: object) -> None:
        return None


def fresh(**changed: object) -> dict[str, Any]:
    emptied: dict[str, object] = {"changes": ("replaced", []), "files_read": {}}
    return {**FRESH_TURN, **emptied, "plan": Plan(), "profile": Profile(), **changed}


def test_turn_starts_with_fresh_state_and_keeps_the_plan() -> None:
    plan = Plan(steps=(PlanStep(title="one"),))
    assert update_of(BeginTurnState(messages=[HumanMessage("Fix it")])) == fresh()
    assert update_of(BeginTurnState(messages=[HumanMessage("Fix it")], plan=plan)) == fresh(plan=plan)


FIX = HumanMessage("Fix it")
ENDED = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="", answer="It is fixed.")


@rows(
    ([], None),
    ([HumanMessage(" \n")], None),
    ([HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}])], None),
    ([FIX, AIMessage("Sure."), HumanMessage(" \n")], None),
    ([AIMessage("I say something."), DANGLING, ToolMessage("{}", tool_call_id="x")], None),
    ([FIX, AIMessage("It is fixed.")], ENDED),
    (
        [FIX, AIMessage("BUDGET_STOP (max_steps): Stopped.")],
        ENDED.model_copy(update={"kind": OutcomeKind.BUDGET_STOP, "answer": ""}),
    ),
)
def test_history_without_an_open_request_is_invalid(history: list[AnyMessage], outcome: Outcome | None) -> None:
    """For example, if the thread's last turn has ended and no message was added since."""
    stop = StopCause(reason=StopReason.INVALID_REQUEST, message=NO_REQUEST)
    state = BeginTurnState(messages=history, outcome=outcome)
    assert update_of(state, BLOCKS) == fresh(profile=BLOCKS, stop=stop)


@rows(
    [DANGLING, ToolMessage("Transferred.", tool_call_id="x")],
    [DANGLING],
    [HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME)],
    [AIMessage("The plan: add."), SystemMessage("You are the coder.")],
)
def test_handed_on_conversation_uses_the_last_request_of_a_person(since: list[AnyMessage]) -> None:
    """The later messages stay unchanged, each call has one result, and a message of ours is appended."""
    history = [HumanMessage("Fix calc.py"), *since]
    update = update_of(BeginTurnState(messages=history))
    assert (update["stop"], update["preload"]) == (None, read_ahead(["calc.py"]))
    *earlier, added = update["messages"][1]
    assert earlier == (close_dangling_calls(history) or history)
    assert (isinstance(added, HumanMessage), added.text, is_request(added)) == (True, HANDED_ON, False)


@rows([], [HumanMessage("Fix calc.py")])
def test_problem_of_the_context_is_reported_first(history: list[AnyMessage]) -> None:
    stop = StopCause(reason=StopReason.INVALID_REQUEST, message="There is no folder 'x'.")
    assert update_of(BeginTurnState(messages=history), problem=stop) == fresh(stop=stop)
