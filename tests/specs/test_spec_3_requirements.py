"""Document 3's requirements and defaults that its list "How to verify" leaves out, each on a whole run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph import ToolContext, default_tools, tool
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Denied, Event, HealingBegan, LoopOverridden, StepDone, Traced
from mendgraph.nodes.heal.corrective_prompt import DEFAULT_SELF_HEALING_CONFIG
from mendgraph.nodes.loop_check import LOOP_OVERRIDE_MAX_RETRIES, LOOP_REPEAT_THRESHOLD, REPEAT_WINDOW, action_signature
from mendgraph.nodes.loop_check.repetition import LoopConfig
from mendgraph.nodes.records import (
    Effect,
    ExtractionErrorType,
    JsonMap,
    OutcomeKind,
    OverrideConstraint,
    Protocol,
    StopReason,
)
from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.specs.watched_runs import watch

DONE = Say("Done.")
READ = use(("read_file", {"path": "calc.py"}))
BAD_PLAN = use(("update_plan", {"steps": [{"title": "look", "status": "begun"}]}))


@pytest.fixture(params=list(Protocol))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Each requirement holds in both protocols."""
    found: Protocol = request.param
    return found


def pages(events: list[Event]) -> list[JsonMap]:
    return [result.result.data for event in events if isinstance(event, StepDone) for result in event.results]


# --- Defaults


def test_defaults_are_the_documents() -> None:
    """`max_lines`, REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES, REPAIR_MAX_ATTEMPTS."""
    context = AgentContext().model_dump()
    assert context["read_max_lines"] == 500
    assert (context["repeat_window"], context["loop_repeat_threshold"], context["loop_override_retries"]) == (3, 3, 1)
    assert (REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES) == (3, 3, 1)
    assert (LoopConfig().window, LoopConfig().threshold, LoopConfig().max_overrides) == (3, 3, 1)
    assert context["max_schema_repairs"] == DEFAULT_SELF_HEALING_CONFIG.max_schema_repairs == 2
    assert (context["max_steps"], context["max_steps_soft"]) == (None, False)


# --- "Change when": each default is a setting


@pytest.mark.parametrize("most", [3, 1_000])
def test_cap_of_a_read_can_be_lowered_and_raised(tmp_path: Path, protocol: Protocol, most: int) -> None:
    read = use(("read_file", {"path": "long.txt"}))
    events, _, _ = watch(tmp_path, protocol, read, DONE, settings={"read_max_lines": most})
    [page] = pages(events)
    assert (page["lines_shown"], page["lines_remaining"], page["has_more"]) == (most, 1_200 - most, True)


@pytest.mark.parametrize(
    ("settings", "fresh", "overridden"),
    [
        ({"loop_repeat_threshold": 2}, 1, 1),
        ({"loop_repeat_threshold": 4, "repeat_window": 4}, 3, 1),
        ({"loop_override_retries": 0}, 2, 0),
        ({"loop_override_retries": 3}, 2, 3),
    ],
)
def test_loop_thresholds_can_be_adjusted(
    tmp_path: Path, protocol: Protocol, settings: JsonMap, fresh: int, overridden: int
) -> None:
    events, result, model = watch(tmp_path, protocol, *[READ] * 9, settings=settings)
    assert result.outcome.reason is StopReason.LOOP_PERSISTED
    assert len(model.calls) == fresh + overridden + 1
    assert bool([event for event in events if isinstance(event, LoopOverridden)]) is bool(overridden)


@pytest.mark.parametrize(("window", "overridden"), [(3, 0), (4, 1)])
def test_window_of_loop_control_can_be_adjusted(
    tmp_path: Path, protocol: Protocol, window: int, overridden: int
) -> None:
    """Three of the last four actions are equal, and two of the last three."""
    other = use(("read_file", {"path": "long.txt", "limit": 1}))
    replies = (READ, READ, other, READ, DONE)
    events, _, _ = watch(tmp_path, protocol, *replies, settings={"repeat_window": window})
    assert len([event for event in events if isinstance(event, LoopOverridden)]) == overridden


@pytest.mark.parametrize("repairs", [0, 1, 4])
def test_number_of_repairs_can_be_adjusted(tmp_path: Path, protocol: Protocol, repairs: int) -> None:
    _, result, model = watch(tmp_path, protocol, *[BAD_PLAN] * 9, settings={"max_schema_repairs": repairs})
    assert (result.outcome.reason, len(model.calls)) == (StopReason.SCHEMA_REPAIR_EXHAUSTED, repairs + 1)


# --- File-read caps


@pytest.mark.parametrize("limit", [1, 500, 501, 100_000])
def test_no_read_shows_more_than_the_cap(tmp_path: Path, protocol: Protocol, limit: int) -> None:
    """It is a hard cap: what the model asks for beyond it is cut or refused, never given."""
    events, _, _ = watch(tmp_path, protocol, use(("read_file", {"path": "long.txt", "limit": limit})), DONE)
    given = pages(events)
    assert len(given) == 1
    for page in given:
        assert page["lines_shown"] == min(limit, 500) == len(page["content"].splitlines())
        assert (page["lines_remaining"], page["has_more"]) == (1_200 - min(limit, 500), True)


def test_every_read_has_its_pagination_metadata(tmp_path: Path, protocol: Protocol) -> None:
    """`lines_shown`, `lines_remaining`, and `has_more` as a boolean: of a short file and of its last page too."""
    last = ("read_file", {"path": "long.txt", "start_line": 1_200})
    events, _, _ = watch(tmp_path, protocol, READ, use(last), DONE)
    found = [(page["lines_shown"], page["lines_remaining"], page["has_more"]) for page in pages(events)]
    assert found == [(1, 0, False)] * 2
    assert all(type(page["has_more"]) is bool for page in pages(events))


# --- Path normalization


def test_paths_in_the_context_are_relative_to_the_workspace(tmp_path: Path, protocol: Protocol) -> None:
    """What tools say, and what the model itself wrote: no later call sees the absolute path."""
    absolute = str(tmp_path / "calc.py")
    first = use(("read_file", {"path": absolute}), ("list_files", {"path": str(tmp_path)}))
    second = use(("glob_files", {"pattern": "*.py", "path": str(tmp_path)}), ("search_files", {"pattern": "x ="}))
    third = use(("edit_file", {"path": absolute, "old_str": "x = 1", "new_str": "x = 2"}))
    events, result, model = watch(tmp_path, protocol, first, second, third, DONE, settings={"evidence": False})
    assert (tmp_path / "calc.py").read_text(encoding="utf-8") == "x = 2\n"
    read, listed, globbed, searched, edited = pages(events)
    assert (read["path"], edited["path"], searched["matches"][0]["path"]) == ("calc.py", "calc.py", "calc.py")
    assert (listed["entries"], globbed["paths"]) == (["calc.py", "long.txt"], ["calc.py"])
    assert result.outcome.changed_files == ("calc.py",)
    assert [call for call in model.calls if str(tmp_path) in str(call.prompt.messages)] == []


def test_override_and_its_stop_name_the_relative_path(tmp_path: Path, protocol: Protocol) -> None:
    read = use(("read_file", {"path": str(tmp_path / "calc.py")}))
    events, result, model = watch(tmp_path, protocol, *[read] * 4)
    [overridden] = [event for event in events if isinstance(event, LoopOverridden)]
    assert [override.target for override in overridden.overrides] == ["calc.py"]
    assert str(tmp_path) not in str(model.calls[-1].prompt.messages[-1])
    assert str(tmp_path) not in str(result.outcome)


# --- Loop detection

parts = st.sampled_from(["read", "write"])
arguments = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=2)
actions = st.tuples(parts, parts, arguments, st.sampled_from(["a.py", "b.py"]))


@given(actions, actions)
def test_signature_is_of_action_type_tool_arguments_and_target(
    one: tuple[str, str, dict[str, Any], str], other: tuple[str, str, dict[str, Any], str]
) -> None:
    """Equal for equal actions alone."""
    assert (action_signature(*one) == action_signature(*other)) is (one == other)


def test_override_is_a_typed_record_outside_of_the_messages(tmp_path: Path, protocol: Protocol) -> None:
    """No free-text rewriting: all that was sent before is sent again as it was, with the results after it."""
    events, _, model = watch(tmp_path, protocol, READ, READ, READ, DONE)
    [overridden] = [event for event in events if isinstance(event, LoopOverridden)]
    assert [type(override) for override in overridden.overrides] == [OverrideConstraint]
    for before, after in zip(model.calls, model.calls[1:], strict=False):
        assert after.prompt.messages[: len(before.prompt.messages)] == before.prompt.messages


def test_loop_that_is_left_after_its_override_is_no_loop(tmp_path: Path, protocol: Protocol) -> None:
    other = use(("read_file", {"path": "long.txt", "limit": 1}))
    events, result, _ = watch(tmp_path, protocol, READ, READ, READ, other, DONE)
    assert [event for event in events if isinstance(event, Denied)] == []
    assert result.outcome.kind is OutcomeKind.FINISHED


def test_single_repetition_after_an_override_was_obeyed_does_not_end_the_run(
    tmp_path: Path, protocol: Protocol
) -> None:
    others = [use(("read_file", {"path": "long.txt", "limit": limit})) for limit in (1, 2, 3)]
    events, result, _ = watch(tmp_path, protocol, READ, READ, READ, *others, READ, DONE)
    assert [event.verdict.rule for event in events if isinstance(event, Denied)] == ["loop_override"]
    assert result.outcome.kind is OutcomeKind.FINISHED


def test_two_calls_that_alternate_are_a_loop(tmp_path: Path, protocol: Protocol) -> None:
    other = use(("read_file", {"path": "long.txt", "limit": 1}))
    _, result, model = watch(tmp_path, protocol, *[READ, other] * 5, DONE)
    assert (result.outcome.reason, len(model.calls)) == (StopReason.LOOP_PERSISTED, 8)


def test_call_whose_result_changes_is_progress(tmp_path: Path, protocol: Protocol) -> None:
    states = iter(range(5))

    @tool(effect=Effect.READ)
    def job_state(_: ToolContext) -> str:
        """The state of the job."""
        return f"{next(states)} of 5 parts"

    tools = [*default_tools(), job_state]
    _, result, _ = watch(tmp_path, protocol, *[use(("job_state", {}))] * 5, DONE, tools=tools)
    assert result.outcome.kind is OutcomeKind.FINISHED


# --- Schema enforcement

SCHEMA = {"type": "object", "properties": {"bugs": {"type": "integer"}}, "required": ["bugs"]}


def test_output_that_does_not_fit_its_schema_is_repaired_or_ends_the_run(tmp_path: Path, protocol: Protocol) -> None:
    bad = use(("final_answer", {"answer": "None.", "value": {"bugs": "none"}}))
    good = use(("final_answer", {"answer": "None.", "value": {"bugs": 0}}))
    settings: JsonMap = {"response_format": SCHEMA}
    events, result, _ = watch(tmp_path, protocol, bad, bad, good, settings=settings)
    healings = [event for event in events if isinstance(event, HealingBegan)]
    assert [[error.error_type for error in event.errors] for event in healings] == [
        [ExtractionErrorType.INVALID_ANSWER]
    ] * 2
    assert (result.outcome.kind, result.outcome.value) == (OutcomeKind.FINISHED, {"bugs": 0})
    _, result, model = watch(tmp_path, protocol, *[bad] * 9, settings=settings)
    assert (result.outcome.kind, result.outcome.value) == (OutcomeKind.SYSTEM_ERROR, None)
    assert (result.outcome.reason, len(model.calls)) == (StopReason.SCHEMA_REPAIR_EXHAUSTED, 3)
    assert "INVALID_ANSWER" in result.outcome.diagnostics[0]


# --- Inputs and outputs


def test_events_carry_the_run_and_the_step(tmp_path: Path, protocol: Protocol) -> None:
    events, _, _ = watch(tmp_path, protocol, READ, BAD_PLAN, READ, DONE)
    traced = [event for event in events if isinstance(event, Traced)]
    assert len({event.run_id for event in traced}) == 1
    assert traced[0].run_id
    assert {event.step_id for event in traced if event.name == "tool.resolve.ok"} == {"1", "3"}


def test_no_limit_of_steps_holds_unless_one_is_configured(tmp_path: Path, protocol: Protocol) -> None:
    looks = [use(("read_file", {"path": "long.txt", "start_line": number, "limit": 1})) for number in range(1, 9)]
    _, result, _ = watch(tmp_path, protocol, *looks, DONE)
    assert result.outcome.kind is OutcomeKind.FINISHED
