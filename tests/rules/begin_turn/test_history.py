"""An interrupted step is added to the history before the next request."""

from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.begin_turn.history import NOT_RUN, close_step, cut_off_items, scrub_requests
from mendgraph.nodes.begin_turn.turn import BeginTurnState, TurnResources
from mendgraph.nodes.language.history import close_dangling_calls, settle_exchange
from mendgraph.nodes.records import (
    CallResult,
    ModelReply,
    Outcome,
    OutcomeKind,
    Profile,
    Protocol,
    RawCall,
    Reading,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from tests.row_tables import rows

EDIT = ToolCall(call_id="c1", tool="edit_file", arguments={"path": "a"}, raw_arguments='{"path": "a"}')
RUN = ToolCall(call_id="c2", tool="run_command", arguments={"argv": ["ls"]}, raw_arguments='{"argv": ["ls"]}')
DONE = CallResult(call_id="c1", tool="edit_file", result=ToolResult.success(path="a"))
HISTORY: list[AnyMessage] = [HumanMessage("Mend it.", id="1"), HumanMessage("And now?", id="2")]
CANCELLED = ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN)


def closed_step(
    history: list[AnyMessage], state: BeginTurnState, call_results: dict[int, CallResult]
) -> list[AnyMessage]:
    """The history after a step whose calls have these results."""
    using = TurnResources(Profile(), None, list, str, None, calls_made=lambda _: (call_results, {}))
    judged: BeginTurnState = {**state, "verdicts": [Verdict(kind=VerdictKind.ALLOW)]}
    return [*close_step(history, judged, using)[0]]


def state(protocol: Protocol = Protocol.NATIVE, **more: Any) -> BeginTurnState:
    calls = tuple(RawCall(call_id=c.call_id, tool=c.tool, arguments=c.raw_arguments) for c in (EDIT, RUN))
    text = f"tool: edit_file({EDIT.raw_arguments})\ntool: run_command({RUN.raw_arguments})"
    reply = ModelReply(calls=calls) if protocol is Protocol.NATIVE else ModelReply(text=text)
    values = {"outcome": None, "reading": Reading.CALLS, "reply": reply, "items": [EDIT, RUN], "results": []}
    return BeginTurnState(**{**values, "profile": Profile(protocol=protocol), **more})  # type: ignore[typeddict-item]


@rows(*Protocol)
def test_completed_calls_keep_their_results_and_the_others_are_cancelled(protocol: Protocol) -> None:
    cut_off = state(protocol)
    reply = cut_off["reply"]
    assert reply is not None
    results = [DONE, CallResult(call_id="c2", tool="run_command", result=CANCELLED)]
    exchange = settle_exchange(reply, [EDIT, RUN], results, protocol)
    closed = closed_step(HISTORY, cut_off, {0: DONE})
    assert [message.content for message in closed] == [
        message.content for message in [HISTORY[0], *exchange, HISTORY[1]]
    ]
    assert close_dangling_calls(closed) is None
    other = CallResult(call_id="c1", tool="edit_file", result=ToolResult.success(path="from the state"))
    known_to_the_state = closed_step(HISTORY, state(protocol, results=[other]), {0: DONE})
    assert "from the state" in str(known_to_the_state[2].content)


ENDED = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")


@rows({"items": []}, {"outcome": ENDED}, {"reading": Reading.MALFORMED}, {"reading": Reading.ANSWER}, {"reading": None})
def test_settled_step_is_not_closed_again(settled: dict[str, Any]) -> None:
    assert cut_off_items(state(**settled)) == []
    assert closed_step(HISTORY, state(**settled), {0: DONE}) == HISTORY


def test_first_turn_has_no_step_to_close() -> None:
    assert cut_off_items({}) == []
    assert closed_step([AIMessage("x")], {}, {}) == [AIMessage("x")]


def text(value: str) -> str:
    return value.replace("swordfish", "***")


@rows(
    ("it is swordfish", "it is ***"),
    (["it is swordfish"], ["it is ***"]),
    (
        [{"type": "text", "text": "swordfish"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        [{"type": "text", "text": "***"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
    ),
)
def test_request_is_redacted_and_keeps_its_id(content: Any, clean: Any) -> None:
    before: list[AnyMessage] = [HumanMessage("first", id="1"), HumanMessage(content, id="2")]
    assert scrub_requests(before, text) == [HumanMessage("first", id="1"), HumanMessage(clean, id="2")]
    clean_before: list[AnyMessage] = [HumanMessage("hello"), AIMessage("swordfish")]
    assert all(new is old for new, old in zip(scrub_requests(clean_before, text), clean_before, strict=True))


@rows("a\ud800", ["a\ud800"], [{"type": "text", "text": "a\ud800"}])
def test_lone_surrogates_in_a_request_are_replaced(content: Any) -> None:
    clean = scrub_requests([HumanMessage(content)], text)
    assert clean[0].text == "a\ufffd"
