"""What the page shows of a run, before it is laid out."""

from dataclasses import replace
from typing import Any

import pytest

from graph.context import AgentContext
from graph.report.amounts import DayUse
from graph.report.booked import BookedCall
from graph.report.history import START, History
from graph.report.page_view import Command, PageView, Stored, page_view
from graph.report.texts import Bounds, Texts
from graph.routes import TRANSITIONS
from graph.run_records import UNDONE
from graph.runs import ListedRun, RunState
from graph.spending_report import AccountSpent
from nodes.execute_tools.redact import Redactor
from nodes.records import ModelReply, Outcome, OutcomeKind, Plan, PlanStatus, PlanStep, StopReason
from tests.graph.report.visits import NOW, TEXTS, history, visit

RUN = ListedRun(
    run_id="0123456789abcdef0123456789abcdef",
    task="Mend add.",
    created="2026-11-21T12:00:00+00:00",
    updated="2026-11-21T12:05:00+00:00",
    turns=1,
    request="Mend add.",
    state="ended",
    kind="FINISHED",
    reason="answered",
    message="It adds.",
    answer="It adds.",
    changed=("a.py",),
    stored_context=AgentContext(workspace="/w", model="m", max_steps=7, seed=3).model_dump_json(),
    durability="sync",
    parent="",
    forked_at=None,
    standing=RunState.FINISHED,
    files=("a.py",),
)
OUTCOME = Outcome(
    kind=OutcomeKind.FINISHED,
    reason=StopReason.ANSWERED,
    message="It adds.",
    diagnostics=("looked twice",),
    value={"n": 1},
    changed_files=("a.py",),
    checks="passed",
    how_to_go_on="Send more.",
)


def steps(number: int) -> History:
    """A turn of so many calls of the model."""
    called = [
        visit("call_model", "parse", after={"reply": ModelReply(text="x", model="m-1"), "step": each + 1})
        for each in range(number)
    ]
    end = visit("FINISHED", "__end__", after={"outcome": OUTCOME})
    return history(visit(START, "begin_turn"), visit("begin_turn", "call_model"), *called, end, requests=("Mend add.",))


def seen(run: ListedRun = RUN, told: History | None = None, bounds: Bounds | None = None, **more: Any) -> PageView:
    texts = TEXTS if bounds is None else Texts(Redactor(()), bounds)
    values = {
        "booked": (),
        "day": DayUse("2026-11-21", 5, 0.0, 0),
        "account": None,
        "version": "1.2.3",
        "made": NOW.isoformat(),
        "root": ".",
    }
    return page_view(Stored(run=run, history=told or steps(2), **{**values, **more}), texts)


def commands(run: ListedRun, root: str = ".") -> list[str]:
    return [each.command for each in seen(run, root=root).commands]


def test_a_finished_run() -> None:
    view = seen(told=replace(steps(2), values={"plan": Plan(steps=(PlanStep(title="Look", status=PlanStatus.DONE),))}))
    assert (view.title, view.task.text, view.standing, view.look, view.standing_says) == (
        "Mend add.",
        "Mend add.",
        "finished",
        "good",
        "",
    )
    assert view.end is not None
    assert (view.end.kind, view.end.reason, view.end.checks, view.end.advice) == (
        "FINISHED",
        "answered",
        "passed",
        "Send more.",
    )
    assert (view.end.diagnostics, view.end.changed, view.end.value[0].value.text) == (
        ["looked twice"],
        ["a.py"],
        '{"n": 1}',
    )
    assert dict(view.facts)["Model"] == "m-1"
    assert view.settings == [("seed", "3"), ("max_steps", "7")]
    assert view.totals == [
        ("steps", "2"),
        ("model calls", "0"),
        ("tokens", "0"),
        ("in its steps", "3.0 s"),
        ("file changed", "1"),
    ]
    assert [name for name, _ in view.bars] == [
        "The last turn",
        "The whole session",
        "2026-11-21 (UTC), all runs of all folders",
    ]
    assert view.plan == [("done", "Look")]
    assert (view.gaps, view.conversation) == ([], [])
    assert len(view.edges) == len(TRANSITIONS)


def test_every_edge_is_in_the_table_with_its_count() -> None:
    counts = {(row.source, row.label, row.target): row.count for row in seen().edges}
    assert {edge: count for edge, count in counts.items() if count} == {
        (START, "", "begin_turn"): 1,
        ("begin_turn", "accepted", "call_model"): 1,
        ("call_model", "replied", "parse"): 2,
        ("FINISHED", "", "__end__"): 1,
    }


def test_what_can_be_done_with_a_run() -> None:
    short = "01234567"
    assert commands(RUN) == [
        f"mendgraph chat --run {short}",
        f"mendgraph undo {short}",
        f"mendgraph fork {short} --at 1",
        f"mendgraph runs show {short}",
    ]
    stopped = replace(RUN, kind="BUDGET_STOP", reason="max_steps", standing=RunState.STOPPED, files=())
    assert commands(stopped, root="/a b")[0] == f"mendgraph resume {short} --root '/a b'"
    assert commands(replace(RUN, state="working", standing=RunState.WORKING))[:2] == [
        f"mendgraph report {short} --force",
        f"mendgraph undo {short}",
    ]
    asking = replace(RUN, state="working", standing=RunState.ASKS)
    assert seen(asking).commands[0] == Command("Answer the question, and go on", f"mendgraph resume {short}")


@pytest.mark.parametrize(
    ("standing", "look"),
    [
        (RunState.STOPPED, "warn"),
        (RunState.FAILED, "bad"),
        (RunState.CUT_OFF, "warn"),
        (RunState.WORKING, "calm"),
    ],
)
def test_how_a_standing_looks(standing: RunState, look: str) -> None:
    assert seen(replace(RUN, standing=standing)).look == look


def test_an_end_of_which_no_checkpoint_tells_is_the_one_of_the_list() -> None:
    undone = replace(RUN, kind="BUDGET_STOP", reason=UNDONE, message="Taken back.", standing=RunState.STOPPED)
    view = seen(undone)
    assert view.end is not None
    assert (view.end.kind, view.end.reason, view.end.look, view.end.message.text) == (
        "BUDGET_STOP",
        "undone",
        "warn",
        "Taken back.",
    )
    assert seen(replace(RUN, state="working", kind="", reason="", standing=RunState.CUT_OFF)).end is None
    assert seen(replace(RUN, kind="", reason="", standing=RunState.FORKED, parent="p" * 32, forked_at=2)).end is None


def test_what_is_not_known_is_said() -> None:
    forked = replace(RUN, parent="f" * 32, forked_at=2, durability="exit")
    part = replace(steps(1), whole=False, messages=(("person", "Mend add."),))
    view = seen(forked, part, booked=None, day=None)
    assert [gap.split(",")[0] for gap in view.gaps] == [
        "Not every step was kept (durability exit writes a turn down when it has ended)",
        "What it has from run ffffffff",
        "The spending book cannot be read",
    ]
    assert [(who, said.text) for who, said in view.conversation] == [("person", "Mend add.")]
    assert ("Forked from", "run ffffffff after step 2") in view.facts
    assert [name for name, _ in view.bars] == ["The last turn", "The whole session"]


def test_the_budgets_of_an_account_are_its_own() -> None:
    context = AgentContext(account="team", account_days=True, max_tokens_per_account=1_000)
    view = seen(
        replace(RUN, stored_context=context.model_dump_json()), account=AccountSpent(account="team", tokens=500)
    )
    assert [name for name, _ in view.bars][2:] == ["2026-11-21 (UTC), account team", "Account team, in all"]
    assert (view.bars[3][1][0].used, view.bars[3][1][0].limit) == ("500", "1,000")


def test_a_run_without_checkpoints() -> None:
    view = seen(told=history())
    assert (view.turns, view.steps, view.path) == ([], 0, [])
    assert view.totals[0] == ("model calls", "0")
    assert dict(view.facts)["Model"] == "m"
    nameless = replace(RUN, stored_context=AgentContext().model_dump_json())
    assert dict(seen(nameless, history()).facts)["Model"] == "found from the environment"


def test_of_many_steps_the_first_and_the_last_are_shown() -> None:
    view = seen(told=steps(20), bounds=Bounds(steps=8, path=5))
    (turn,) = view.turns
    assert [step.number for step in turn.steps] == [1, 2, 15, 16, 17, 18, 19, 20]
    assert (turn.left_out, view.steps) == (12, 20)
    assert (len(view.path), view.path_left_out) == (5, 19)


def test_a_step_has_the_calls_of_its_time() -> None:
    def booked(ms: int) -> BookedCall:
        reserved = NOW.replace(second=0, microsecond=0).timestamp() + ms / 1_000
        when = NOW.fromtimestamp(reserved, NOW.tzinfo)
        return BookedCall("reply", f"m{ms}", when, when, 0, 0, None, 0.5)

    (turn,) = seen(told=steps(1), booked=[booked(-5), booked(0), booked(900), booked(1_500)]).turns
    assert [each.split(":")[0] for each in turn.steps[0].booked] == ["reply by m0", "reply by m900"]
