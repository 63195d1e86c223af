"""One step in words and bars."""

from datetime import timedelta
from typing import Any

import pytest

from graph.report.booked import BookedCall
from graph.report.step_view import Scale, StepView, step_view
from graph.report.steps import Step
from nodes.call_model.budget import APIUsageStats
from nodes.call_model.ledger import Spending
from nodes.call_model.window import Window
from nodes.guard.grants import Grant
from nodes.heal.corrective_prompt import HealingAttempt
from nodes.records import (
    ExtractionError,
    ExtractionErrorType,
    LoopRecord,
    LoopVerdict,
    ModelReply,
    OverrideConstraint,
    RawCall,
    StopCause,
    StopReason,
)
from tests.graph.report.visits import ALLOWED, CALL, DONE, NOW, TEXTS, step, visit

SPENT = Spending(usage=APIUsageStats(3, 90, 10, 3), cost_usd=0.25)
REPLY = ModelReply(text="I say", reasoning="I think")


def called(target: str = "parse", **after: Any) -> Any:
    return visit("call_model", target, after={"reply": REPLY, "spending": SPENT, "step": 1, **after})


def seen(shown: Step, booked: tuple[BookedCall, ...] = (), *, working: bool = False) -> StepView:
    return step_view(shown, 7, Scale(4.0, 200), booked, TEXTS, working=working)


def test_time_and_tokens_as_bars() -> None:
    guard = visit("guard", "execute_tools", before={"items": [CALL]}, after={"verdicts": [ALLOWED]}, asked=({},))
    tools = visit("execute_tools", "loop_check", after={"results": [DONE]})
    view = seen(step(called(), visit("parse", "guard"), guard, tools))
    assert view.parts == [
        ("model", 25.0, "model: 1.0 s"),
        ("tools", 25.0, "tools: 1.0 s"),
        ("person", 25.0, "waiting for a person: 1.0 s"),
        ("rest", 25.0, "everything else: 1.0 s"),
    ]
    assert view.token_parts == [("in", 45.0, "90 tokens in"), ("out", 5.0, "10 tokens out")]
    assert (view.anchor, view.title, view.duration, view.tokens) == ("step-7", "edit_file", "4.0 s", "90 in, 10 out")
    assert (view.cost, view.when) == ("0.2500 USD", "2026-11-21 12:00:00 UTC")
    assert (view.said.text, view.reasoning.text) == ("I say", "I think")
    assert view.notes == ["3 calls of the model: retries, fallbacks and summaries count as well."]


def test_tokens_of_reasoning_are_those_of_the_step() -> None:
    before = {"spending": Spending(reasoning_tokens=20)}
    after = {"reply": REPLY, "spending": SPENT.model_copy(update={"reasoning_tokens": 26})}
    assert seen(step(visit("call_model", "parse", before=before, after=after))).tokens == "90 in, 10 out (6 reasoning)"
    assert step(visit("call_model", before=before)).reasoning_tokens == 0


def test_a_bar_of_nothing() -> None:
    view = step_view(step(called()), 1, Scale(0.0, 0), (), TEXTS)
    assert [width for _, width, _ in view.parts + view.token_parts] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("shown", "working", "title", "state"),
    [
        (step(visit("call_model")), True, "the model is at work", "now"),
        (step(visit("call_model")), False, "cut off while the model was called", "now"),
        (step(called("SYSTEM_ERROR", reply=None)), False, "no reply", "failed"),
        (step(called(), visit("parse", "FINISHED"), visit("FINISHED", "__end__")), False, "the answer", "ok"),
        (
            step(called(), visit("parse", "heal"), visit("heal", "call_model")),
            False,
            "a reply that could not be used",
            "unusable",
        ),
        (step(called()), False, "a reply", "ok"),
    ],
)
def test_what_a_step_is_called(shown: Step, working: bool, title: str, state: str) -> None:
    view = seen(shown, working=working)
    assert (view.title, view.state) == (title, state)


def test_several_calls_of_one_tool_are_counted() -> None:
    guard = visit("guard", "loop_check", before={"items": [CALL, CALL]})
    assert seen(step(called(), guard)).title == "edit_file ×2"  # noqa: RUF001 - as it is shown


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (Window(), Window(cleared=("a", "b")), "2 older results replaced by notes"),
        (Window(), Window(first="m", head="h", summary="s"), "the conversation's beginning replaced by a summary"),
        (
            Window(cleared=("a",)),
            Window(cleared=("a", "b"), first="m", head="h"),
            "1 older result replaced by notes, and the conversation's beginning left out",
        ),
        (Window(head="h"), Window(head="i"), "the model is shown less of the conversation"),
    ],
)
def test_a_compaction_is_told(was: Window, now: Window, words: str) -> None:
    compacted = visit("call_model", "parse", before={"window": was}, after={"window": now, "reply": REPLY})
    assert seen(step(compacted)).notes == [f"Compacted before this call: {words}."]


def test_what_the_machine_and_the_person_did_is_noted() -> None:
    grants = [Grant(thread="t", rule="r", tool="run_command", subject="pytest")]
    ahead = visit("call_model", "parse", after={"reply": ModelReply(preloaded=True)}, taken_up=True)
    guard = visit("guard", "BUDGET_STOP", before={"items": [CALL]}, after={"grants": grants})
    stopped = visit(
        "loop_check", "SYSTEM_ERROR", after={"stop": StopCause(reason=StopReason.WALL_CLOCK, message="Late.")}
    )
    assert seen(step(ahead, guard, stopped)).notes == [
        "The run was taken up again here.",
        "The machine asked for this itself: files that the request names are read before the model is.",
        "A person allowed for the rest of the run: run_command pytest.",
        "The run ended here: Late.",
    ]


def test_a_reply_that_was_mended() -> None:
    wrong = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 2, "x", "a comma is missing")
    attempt = HealingAttempt(0, "I say", [wrong], "Please mend it.")
    before = {"errors": [wrong], "reply": REPLY}
    healed = seen(step(called(), visit("heal", "call_model", before=before, after={"healing_attempts": [attempt]})))
    assert healed.healing is not None
    assert healed.healing.errors == ["INVALID_JSON_SYNTAX in line 2: a comma is missing"]
    assert (healed.healing.reply.text, healed.healing.prompt.text) == ("I say", "Please mend it.")
    assert not healed.healing.rescued


def test_a_reply_that_was_read_as_it_is() -> None:
    native = ModelReply(calls=(RawCall(call_id="c", tool="edit_file", arguments="{"),))
    rescued = seen(step(called(), visit("heal", "guard", before={"reply": native})))
    assert rescued.healing is not None
    assert (rescued.healing.reply.text, rescued.healing.prompt.text, rescued.healing.rescued) == (
        "edit_file({)",
        "",
        True,
    )
    silent = seen(step(called(), visit("heal", "call_model")))
    assert silent.healing is not None
    assert silent.healing.reply.text == ""


def test_what_loop_control_remembers() -> None:
    override = OverrideConstraint(signature="s", tool="read_file", target="a.py", repeats=3)
    record = LoopRecord(
        recent=(("s",), ("t",), ("s",)), overrides=(override,), verdict=LoopVerdict.OVERRIDE, failed_tries=2
    )
    loop = seen(step(called(), visit("loop_check", "call_model", after={"loop": record}))).loop
    assert loop.told
    assert (loop.repeated, loop.failed_tries) == (2, 2)
    assert loop.overrides == ["read_file a.py: asked for 3 times, and refused"]
    assert loop.says == "The same action came too often: it was refused from here on."
    fresh = visit("loop_check", "call_model", after={"loop": LoopRecord(recent=(("s",),))})
    assert not seen(step(called(), fresh)).loop.told
    assert not seen(step(called())).loop.told


def test_tries_are_listed_where_they_say_more_than_the_step() -> None:
    values: dict[str, Any] = {"purpose": "reply", "model": "m", "reserved": NOW, "settled": NOW + timedelta(seconds=1)}
    call = BookedCall(**values, input_tokens=1, output_tokens=1, cost_usd=None, seconds=1.0)
    assert seen(step(called()), (call,)).booked == []
    assert len(seen(step(called()), (call, call)).booked) == 2
