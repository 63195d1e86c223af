"""Turns and steps, as a person counts them."""

from graph.report.history import START
from graph.report.steps import Turn, course_of
from graph.routes import Transition
from nodes.call_model.budget import APIUsageStats
from nodes.call_model.ledger import Spending
from nodes.call_model.window import Window
from nodes.guard.grants import Grant
from nodes.records import LoopRecord, ModelReply, Outcome, OutcomeKind, StopReason, Verdict, VerdictKind
from tests.graph.report.visits import ALLOWED, CALL, DONE, history, step, visit

REPLY = ModelReply(text="a reply")
OUTCOME = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
TURN = (visit(START, "begin_turn"), visit("begin_turn", "call_model"))
SAID = visit("call_model", "parse", after={"reply": REPLY, "step": 1})
END = (visit("parse", "FINISHED"), visit("FINISHED", "__end__", after={"outcome": OUTCOME}))


def test_two_turns_with_their_requests_and_ends() -> None:
    course = course_of(history(*TURN, SAID, *END, *TURN, SAID, *END, requests=("before the fork", "one", "two")))
    assert [(turn.number, turn.request, len(turn.steps), turn.outcomes) for turn in course.turns] == [
        (1, "one", 1, [OUTCOME]),
        (2, "two", 1, [OUTCOME]),
    ]
    assert course.edges[Transition("parse", "an answer", "FINISHED")] == 2
    assert course.visited["call_model"] == 2
    assert course.path == ("__start__", "begin_turn", "call_model", "parse", "FINISHED", "__end__") * 2
    assert (course.at, len(course.steps)) == ("", 2)


def test_what_a_fork_took_over_has_no_number() -> None:
    assert [turn.number for turn in course_of(history(SAID)).turns] == [0]
    assert [turn.number for turn in course_of(history(TURN[1], SAID)).turns] == [1]


def test_a_fork_that_has_not_begun_has_no_steps() -> None:
    assert course_of(history(visit("call_model")), begun=False).turns == ()


def test_a_node_that_the_run_has_not_left() -> None:
    course = course_of(history(*TURN, visit("call_model", before={"step": 4})))
    assert (course.at, course.path[-1]) == ("call_model", "call_model")
    assert "call_model" not in course.visited
    assert [each.number for each in course.steps] == [5]
    assert [turn.number for turn in course.turns] == [1]


def test_an_empty_history() -> None:
    course = course_of(history())
    assert (course.turns, course.at, course.path) == ((), "", ())


def test_a_turn_that_ended_before_the_model_was_called() -> None:
    ended = visit("SYSTEM_ERROR", "__end__", after={"outcome": OUTCOME})
    (turn,) = course_of(history(TURN[0], visit("begin_turn", "SYSTEM_ERROR"), ended)).turns
    assert turn == Turn(1, None, [], [OUTCOME], TURN[0].began)


def test_what_a_step_has_used() -> None:
    was, now = Spending(usage=APIUsageStats(1, 10, 2, 1)), Spending(usage=APIUsageStats(3, 110, 12, 3), cost_usd=0.5)
    called = visit("call_model", "parse", before={"spending": was}, after={"spending": now, "reply": REPLY})
    assert step(called).used == (2, 100, 10, 0.5, 0)
    assert step(visit("call_model")).used == (0, 0, 0, 0.0, 0)
    assert step(called).seconds_in("call_model", "parse") == 1.0


def test_calls_with_their_verdicts_and_results() -> None:
    edited = CALL.model_copy(update={"arguments": {"path": "b.py"}})
    first = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "a.py"}}, "nonsense"]}
    again = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "b.py"}}]}
    guard = visit(
        "guard",
        "execute_tools",
        before={"items": [CALL]},
        after={"items": [edited], "verdicts": [ALLOWED]},
        asked=(first, again, {"kind": "approval"}),
    )
    (call,) = step(SAID, guard, visit("execute_tools", "loop_check", after={"results": [DONE]})).calls
    assert (call.item, call.verdict, call.result, call.asked) == (edited, ALLOWED, DONE, True)
    assert call.was == {"index": 0, "arguments": {"path": "a.py"}}
    assert step(SAID, guard).asks_person


def test_calls_of_which_little_is_known() -> None:
    (call,) = step(SAID, visit("guard", before={"items": [CALL]})).calls
    assert (call.verdict, call.result, call.asked, call.granted) == (None, None, False, False)
    assert step(SAID).calls == ()


def test_what_a_person_had_allowed_before() -> None:
    ruled = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write")
    before = {"items": [CALL, CALL], "grants": [Grant(thread="t", rule="ask_before_write", tool="edit_file")]}
    guard = visit("guard", "execute_tools", before=before, after={"verdicts": [ruled, ALLOWED]})
    assert [call.granted for call in step(SAID, guard).calls] == [True, False]


def test_what_is_missing_is_none() -> None:
    bare = step(visit("parse", "guard"))
    assert (bare.reply, bare.loop, bare.compaction, bare.of("heal")) == (None, None, None, None)
    assert step(visit("call_model", "parse", after={"reply": None})).compaction is None
    assert step(SAID, visit("loop_check", "call_model", after={"loop": LoopRecord()})).loop == LoopRecord()


def test_a_compaction_is_a_change_of_what_is_shown() -> None:
    was, now = Window(), Window(first="m3", head="Before that ...")
    called = visit("call_model", "parse", before={"window": was}, after={"window": now, "reply": REPLY})
    assert step(called).compaction == (was, now)
    counted = visit("call_model", "parse", before={"window": was}, after={"window": Window(tokens=9), "reply": REPLY})
    assert step(counted).compaction is None
