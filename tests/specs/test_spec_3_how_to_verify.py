"""Spec 3's list "How to verify", item by item, each on a whole run."""

from pathlib import Path

import pytest

from mendgraph.graph.runs.events import Denied, Event, HealingBegan, LoopOverridden, StepDone
from mendgraph.nodes.records import ExtractionErrorType, JsonMap, OutcomeKind, Protocol, StopReason, ToolErrorCode
from tests.doubles.replies import Say
from tests.runs.scenario import Use, use
from tests.specs.watched_runs import watch

DONE = Say("Done.")


@pytest.fixture(params=[Protocol.TEXT, Protocol.NATIVE])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Each item holds in both protocols."""
    found: Protocol = request.param
    return found


def data(events: list[Event]) -> list[JsonMap]:
    """The data of all results, in order."""
    return [result.result.data for event in events if isinstance(event, StepDone) for result in event.results]


def test_a_file_of_more_than_500_lines_is_read_in_pages(tmp_path: Path, protocol: Protocol) -> None:
    """`lines_shown`, `lines_remaining`, `has_more`, and where to go on; reading on is no loop."""
    pages = [use(("read_file", {"path": "long.txt", "start_line": start})) for start in (1, 501, 1_001)]
    events, result, _ = watch(tmp_path, protocol, *pages, DONE)
    keys = ("start_line", "lines_shown", "lines_remaining", "has_more", "next_start_line")
    assert [tuple(page[key] for key in keys) for page in data(events)] == [
        (1, 500, 700, True, 501),
        (501, 500, 200, True, 1_001),
        (1_001, 200, 0, False, None),
    ]
    assert [page["content"].splitlines()[0] for page in data(events)] == ["line 1", "line 501", "line 1001"]
    assert result.outcome.kind is OutcomeKind.FINISHED


def test_a_search_without_matches_says_where_to_look_next(tmp_path: Path, protocol: Protocol) -> None:
    searches = use(("search_files", {"pattern": "nowhere"}), ("glob_files", {"pattern": "*.nothing"}))
    events, _, _ = watch(tmp_path, protocol, searches, DONE)
    guidance = "no matches found; try list_files, check alternate naming, or broaden the filters"
    assert [found["guidance"] for found in data(events)] == [guidance, guidance]


def test_an_unknown_tool_is_a_typed_error_that_has_to_be_corrected(tmp_path: Path, protocol: Protocol) -> None:
    unknown = use(("view_file", {"path": "calc.py"}))
    events, result, model = watch(tmp_path, protocol, unknown, use(("read_file", {"path": "calc.py"})), DONE)
    [healing] = [event for event in events if isinstance(event, HealingBegan)]
    assert [error.error_type for error in healing.errors] == [ExtractionErrorType.UNKNOWN_TOOL_NAME]
    assert "Unknown tool 'view_file'" in str(model.calls[1].prompt.messages[-1]["content"])
    assert [page["content"] for page in data(events)] == ["x = 1\n"]
    assert result.outcome.kind is OutcomeKind.FINISHED


def test_an_unknown_tool_for_ever_ends_the_run(tmp_path: Path, protocol: Protocol) -> None:
    events, result, _ = watch(tmp_path, protocol, *[use(("view_file", {"path": "calc.py"}))] * 4)
    outcome = result.outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.HEALING_EXHAUSTED)
    assert data(events) == []
    assert "UNKNOWN_TOOL_NAME: Unknown tool 'view_file'" in outcome.diagnostics[0]


def test_the_third_repetition_is_overridden_and_the_next_ends_the_run(tmp_path: Path, protocol: Protocol) -> None:
    """A typed constraint outside the messages, enforced by guard; the signature is logged."""
    read = use(("read_file", {"path": "calc.py"}))
    events, result, model = watch(tmp_path, protocol, read, read, read, read)
    [overridden] = [event for event in events if isinstance(event, LoopOverridden)]
    [override] = overridden.overrides
    assert (override.tool, override.target, override.repeats) == ("read_file", "calc.py", 3)
    [denied] = [event for event in events if isinstance(event, Denied)]
    assert denied.verdict.error is not None
    assert denied.verdict.error.code is ToolErrorCode.LOOP_OVERRIDE
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.LOOP_PERSISTED)
    assert result.outcome.diagnostics == (f"repeated action: read_file on 'calc.py', signature {override.signature}",)
    system_prompts = {str(call.prompt.messages[0]) for call in model.calls}
    assert (len(model.calls), len(system_prompts)) == (4, 1)


def test_two_repetitions_are_no_loop(tmp_path: Path, protocol: Protocol) -> None:
    read = use(("read_file", {"path": "calc.py"}))
    events, result, _ = watch(tmp_path, protocol, read, read, DONE)
    assert [event for event in events if isinstance(event, LoopOverridden)] == []
    assert result.outcome.kind is OutcomeKind.FINISHED


BAD_PLAN = use(("update_plan", {"steps": [{"title": "look", "status": "begun"}]}))
BAD_ARGUMENTS = use(("read_file", {"path": ["calc.py"]}))
BAD_JSON = use(("update_plan", '{"steps": [}'))


@pytest.mark.parametrize(
    ("bad", "repairs", "reason", "kind"),
    [
        (BAD_PLAN, 2, StopReason.SCHEMA_REPAIR_EXHAUSTED, ExtractionErrorType.INVALID_ARGUMENTS),
        (BAD_ARGUMENTS, 2, StopReason.SCHEMA_REPAIR_EXHAUSTED, ExtractionErrorType.INVALID_ARGUMENTS),
        (BAD_JSON, 3, StopReason.HEALING_EXHAUSTED, ExtractionErrorType.INVALID_JSON_SYNTAX),
    ],
    ids=["plan", "arguments", "json"],
)
def test_repairs_are_asked_for_and_end_at_their_limit(
    tmp_path: Path, protocol: Protocol, bad: Use, repairs: int, reason: StopReason, kind: ExtractionErrorType
) -> None:
    """Each repair returns the validation error. Schema repairs stop at 2, other retries at 3 (DESIGN decision 1)."""
    events, result, model = watch(tmp_path, protocol, *[bad] * (repairs + 1))
    healings = [event for event in events if isinstance(event, HealingBegan)]
    assert [[error.error_type for error in event.errors] for event in healings] == [[kind]] * repairs
    assert len(model.calls) == repairs + 1
    prompts = [str(call.prompt.messages[-1]["content"]) for call in model.calls[1:]]
    assert all(
        f"- {kind.name}: {event.errors[0].details[:100]}" in p for p, event in zip(prompts, healings, strict=True)
    )
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeKind.SYSTEM_ERROR, reason)
    assert kind.name in result.outcome.diagnostics[0]
    assert data(events) == []


@pytest.mark.parametrize("bad", [BAD_PLAN, BAD_ARGUMENTS, BAD_JSON], ids=["plan", "arguments", "json"])
def test_a_repair_that_works_is_all_that_the_history_keeps(tmp_path: Path, protocol: Protocol, bad: Use) -> None:
    good = use(("update_plan", {"steps": [{"title": "look", "status": "done"}]}))
    _, result, _ = watch(tmp_path, protocol, bad, bad, good, DONE)
    assert [step.title for step in result.plan.steps] == ["look"]
    assert len(result.messages) == 4


@pytest.mark.parametrize(("soft", "kind"), [(False, OutcomeKind.BUDGET_STOP), (True, OutcomeKind.FINISHED)])
def test_max_steps_is_hard_unless_it_is_marked_soft(
    tmp_path: Path, protocol: Protocol, soft: bool, kind: OutcomeKind
) -> None:
    """Spec 3, "Budget enforcement"."""
    settings = {"max_steps": 1, "max_steps_soft": soft}
    _, result, _ = watch(tmp_path, protocol, use(("read_file", {"path": "calc.py"})), DONE, settings=settings)
    assert result.outcome.kind is kind
