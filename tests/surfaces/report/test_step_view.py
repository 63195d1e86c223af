"""One step of the report in text and bars."""

from typing import Any

from mendgraph.graph.report.history import Step
from mendgraph.graph.report.step_views import call_view, step_view
from mendgraph.graph.report.texts import ShownText, Texts
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import (
    CallError,
    ExtractionError,
    ExtractionErrorType,
    LoopRecord,
    LoopVerdict,
    ModelReply,
    OverrideConstraint,
    StopCause,
    StopReason,
)
from tests.surfaces.report.visits import ALLOWED, CALL, DONE, TEXTS, allowed_call, attributes, step, visit

SPENT = Spending(usage=APIUsageStats(3, 90, 10, 3), cost_usd=0.25)
REPLY = ModelReply(text="I say", reasoning="I think")


def model_call(target: str = "parse", **after: Any) -> Any:
    return visit("call_model", target, after={"reply": REPLY, "spending": SPENT, "step": 1, **after})


def step_fields(step: Step, *, working: bool = False) -> Any:
    return attributes(step_view(step, 7, (4.0, 200), TEXTS, working=working))


def test_step_shows_time_and_tokens_as_bars() -> None:
    guard = visit("guard", "execute_tools", before={"items": [CALL]}, after={"verdicts": [ALLOWED]}, questions=({},))
    tools = visit("execute_tools", "loop_check", after={"results": [DONE]})
    view = step_fields(step(model_call(), visit("parse", "guard"), guard, tools))
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
    assert view.notes == ["3 calls of the model, including retries, fallbacks and summaries."]


def test_raised_limit_is_a_note_and_not_an_end() -> None:
    stop = {"stop": StopCause(reason=StopReason.MAX_STEPS, message="Limit reached", limit="max_steps")}
    asking = visit("call_model", "guard", after=stop)
    raised = visit("guard", "call_model", before=stop, after={"raised_limits": {"max_steps": [1, 2]}})
    view = step_fields(step(asking, raised, model_call()))
    assert "A person raised max_steps to 2." in view.notes
    assert not any("ended here" in note for note in view.notes)


def test_time_between_a_kill_and_the_resume_does_not_count() -> None:
    """A call was killed in the evening and repeated the next morning, and so were its tools."""
    night, spent = 40_000.0, SPENT.model_copy(update={"seconds": 2.0})
    in_tools = {"spending": spent.model_copy(update={"seconds": 2.5}), "results": [DONE]}
    view = step_fields(
        step(
            visit("call_model", "parse", seconds=night, after={"reply": REPLY, "spending": spent, "step": 1}),
            visit("execute_tools", "loop_check", seconds=night, before={"spending": spent}, after=in_tools),
        )
    )
    assert [part[2] for part in view.parts] == ["model: 2.0 s", "tools: 500 ms"]
    assert view.duration == "2.5 s"


VERDICTS = {
    LoopVerdict.OVERRIDE: "The action was repeated too often and is refused from here on.",
    LoopVerdict.PERSISTED: "The refused action was requested again: the run ended.",
    LoopVerdict.BROKEN: "The workspace failed: the run ended.",
    LoopVerdict.GAVE_UP: "Too many tries in a row failed: the run ended.",
    LoopVerdict.ANSWERED: "",
    LoopVerdict.FRESH: "",
}


def loop_of(**record: Any) -> Any:
    return step_fields(step(model_call(), visit("loop_check", "call_model", after={"loop": LoopRecord(**record)}))).loop


def test_loop_record_is_shown_with_its_verdict() -> None:
    override = OverrideConstraint(signature="s", tool="read_file", target="a.py", repeats=3)
    recent = (("s",), ("t",), ("s",))
    loop = loop_of(recent=recent, overrides=(override,), verdict=LoopVerdict.OVERRIDE, failed_tries=2)
    assert (loop.repeated, loop.failed_tries) == (2, 2)
    assert loop.overrides == ["read_file a.py: asked for 3 times and refused"]
    assert {verdict: loop_of(verdict=verdict, failed_tries=1).says for verdict in VERDICTS} == VERDICTS
    assert loop_of(recent=(("s",),)) is None


def test_edited_call_keeps_the_first_request() -> None:
    edited = CALL.model_copy(update={"arguments": {"path": "b.py"}})
    first = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "a.py"}}]}
    again = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "b.py"}}]}
    after = {"items": [edited], "verdicts": [ALLOWED]}
    guard = visit("guard", "execute_tools", before={"items": [CALL]}, after=after, questions=(first, again))
    (call,) = step(model_call(), guard, visit("execute_tools", "loop_check", after={"results": [DONE]})).calls
    assert (call.item, call.verdict, call.result) == (edited, ALLOWED, DONE)
    assert call.request == {"index": 0, "arguments": {"path": "a.py"}}


def test_call_of_a_step_interrupted_before_guard_is_not_judged() -> None:
    error = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "x", "a comma is missing")
    item = CallError(call_id="c", tool="", raw_arguments="{", error=error)
    view = attributes(call_view(allowed_call(item=item, verdict=None, result=None), TEXTS))
    assert (view.tool, view.state, view.verdict) == ("a malformed call", "unknown", "not judged")
    assert view.why == "INVALID_JSON_SYNTAX: a comma is missing"


# --- Texts of others, and counts


def test_text_is_cut_after_its_secrets_are_removed() -> None:
    canary = "kanarie-8471-vogel"
    texts = Texts(Redactor((canary,)))
    assert texts.shown("a" * 25, 25) == ShownText("a" * 25)
    assert texts.shown("a" * 25, 10) == ShownText("a" * 10, 15)
    assert texts.diff("+" + "x" * 9_000)[1] == 1_001
    assert canary[:4] not in texts.shown(f"0123456789 {canary}", 20).text
    assert texts.line(f"key {canary}") == "key [redacted secret]"
