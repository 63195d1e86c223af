"""Document 3's requirements and defaults that its list "How to verify" leaves out, each on a whole run."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph import (
    AgentContext,
    Denied,
    Effect,
    Event,
    HealingBegan,
    LoopOverridden,
    RunResult,
    Session,
    StepDone,
    ToolContext,
    Traced,
    default_tools,
    tool,
)
from mendgraph.documents import (
    DEFAULT_SELF_HEALING_CONFIG,
    LOOP_OVERRIDE_MAX_RETRIES,
    LOOP_REPEAT_THRESHOLD,
    REPEAT_WINDOW,
    LoopConfig,
    OverrideConstraint,
    action_signature,
)
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

FILES = {"long.txt": "".join(f"line {number}\n" for number in range(1, 1_201)), "calc.py": "x = 1\n"}
DONE = Say("Done.")
READ = use(("read_file", {"path": "calc.py"}))
OTHER = use(("read_file", {"path": "long.txt", "limit": 1}))
BAD_PLAN = use(("update_plan", {"steps": [{"title": "look", "status": "begun"}]}))

Watched = tuple[list[Event], RunResult, ScriptedModel]


@pytest.fixture(params=list(Protocol))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Each requirement that a protocol could break holds in both."""
    protocol: Protocol = request.param
    return protocol


def watch(
    folder: Path, *replies: Use | Say, protocol: Protocol = Protocol.NATIVE, tools: Any = None, **settings: Any
) -> Watched:
    """One turn in a new workspace."""
    write_files(folder, FILES)
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    context = AgentContext(workspace=str(folder), protocol=protocol.value, **settings)
    with Session(context, model=model, tools=tools) as session:
        events = list(session.stream("Do it."))
        return events, session.result(), model


def results(events: list[Event]) -> list[dict[str, Any]]:
    return [result.result.data for event in events if isinstance(event, StepDone) for result in event.results]


# --- Defaults, and "Change when": each default is a setting


def test_defaults_match_the_document() -> None:
    """`max_lines`, REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES, REPAIR_MAX_ATTEMPTS."""
    context = AgentContext().model_dump()
    assert context["read_max_lines"] == 500
    assert (context["repeat_window"], context["loop_repeat_threshold"], context["loop_override_retries"]) == (3, 3, 1)
    assert (REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES) == (3, 3, 1)
    assert (LoopConfig().window, LoopConfig().threshold, LoopConfig().max_overrides) == (3, 3, 1)
    assert context["max_schema_repairs"] == DEFAULT_SELF_HEALING_CONFIG.max_schema_repairs == 2
    assert (context["max_steps"], context["max_steps_soft"]) == (None, False)


@pytest.mark.parametrize(
    ("settings", "fresh", "overridden"),
    [
        ({"loop_repeat_threshold": 2}, 1, 1),
        ({"loop_repeat_threshold": 4, "repeat_window": 4}, 3, 1),
        ({"loop_override_retries": 0}, 2, 0),
        ({"loop_override_retries": 3}, 2, 3),
    ],
)
def test_loop_thresholds_can_be_adjusted(tmp_path: Path, settings: dict[str, Any], fresh: int, overridden: int) -> None:
    events, result, model = watch(tmp_path, *[READ] * 9, **settings)
    assert result.outcome.reason == "loop_persisted"
    assert len(model.calls) == fresh + overridden + 1
    assert any(isinstance(event, LoopOverridden) for event in events) is bool(overridden)


@pytest.mark.parametrize(("window", "overridden"), [(3, 0), (4, 1)])
def test_window_of_loop_control_can_be_adjusted(tmp_path: Path, window: int, overridden: int) -> None:
    """Three of the last four actions are equal, and two of the last three."""
    events, _, _ = watch(tmp_path, READ, READ, OTHER, READ, DONE, repeat_window=window)
    assert len([event for event in events if isinstance(event, LoopOverridden)]) == overridden


@pytest.mark.parametrize("repairs", [0, 1, 4])
def test_number_of_repairs_can_be_adjusted(tmp_path: Path, protocol: Protocol, repairs: int) -> None:
    _, result, model = watch(tmp_path, *[BAD_PLAN] * 9, protocol=protocol, max_schema_repairs=repairs)
    assert (result.outcome.reason, len(model.calls)) == ("schema_repair_exhausted", repairs + 1)


# --- File-read caps


def test_read_result_has_pagination_metadata_within_the_cap(tmp_path: Path) -> None:
    """It is a hard cap: what the model asks for beyond it is cut. A short file and a last page have no more."""
    limits = (1, 500, 501, 100_000)
    reads = [("read_file", {"path": "long.txt", "limit": limit}) for limit in limits]
    last = ("read_file", {"path": "long.txt", "start_line": 1_200})
    events, _, _ = watch(tmp_path, use(*reads), READ, use(last), DONE)
    *pages, short, end = results(events)
    for limit, page in zip(limits, pages, strict=True):
        assert page["lines_shown"] == min(limit, 500) == len(page["content"].splitlines())
        assert (page["lines_remaining"], page["has_more"]) == (1_200 - min(limit, 500), True)
    for page in (short, end):
        assert (page["lines_shown"], page["lines_remaining"], page["has_more"]) == (1, 0, False)
    assert {type(page["has_more"]) for page in (*pages, short, end)} == {bool}


@pytest.mark.parametrize("most", [3, 1_000])
def test_cap_of_a_read_can_be_lowered_and_raised(tmp_path: Path, most: int) -> None:
    events, _, _ = watch(tmp_path, use(("read_file", {"path": "long.txt"})), DONE, read_max_lines=most)
    [page] = results(events)
    assert (page["lines_shown"], page["lines_remaining"], page["has_more"]) == (most, 1_200 - most, True)


# --- Path normalization


def test_paths_in_the_context_are_relative_to_the_workspace(tmp_path: Path, protocol: Protocol) -> None:
    """What tools say, and what the model itself wrote: no later call sees the absolute path."""
    absolute = str(tmp_path / "calc.py")
    first = use(("read_file", {"path": absolute}), ("list_files", {"path": str(tmp_path)}))
    second = use(("glob_files", {"pattern": "*.py", "path": str(tmp_path)}), ("search_files", {"pattern": "x ="}))
    third = use(("edit_file", {"path": absolute, "old_str": "x = 1", "new_str": "x = 2"}))
    events, result, model = watch(tmp_path, first, second, third, DONE, protocol=protocol, evidence=False)
    assert (tmp_path / "calc.py").read_text(encoding="utf-8") == "x = 2\n"
    read, listed, globbed, searched, edited = results(events)
    assert (read["path"], edited["path"], searched["matches"][0]["path"]) == ("calc.py", "calc.py", "calc.py")
    assert (listed["entries"], globbed["paths"]) == (["calc.py", "long.txt"], ["calc.py"])
    assert result.outcome.changed_files == ("calc.py",)
    assert [call for call in model.calls if str(tmp_path) in str(call.prompt.messages)] == []


def test_override_is_a_typed_record_outside_the_messages(tmp_path: Path, protocol: Protocol) -> None:
    """No free-text rewriting: earlier messages are sent again unchanged. The stop names the relative path."""
    read = use(("read_file", {"path": str(tmp_path / "calc.py")}))
    events, result, model = watch(tmp_path, *[read] * 4, protocol=protocol)
    [overridden] = [event for event in events if isinstance(event, LoopOverridden)]
    assert [type(override) for override in overridden.overrides] == [OverrideConstraint]
    assert [override.target for override in overridden.overrides] == ["calc.py"]
    assert str(tmp_path) not in str(model.calls[-1].prompt.messages[-1]) + str(result.outcome)
    sent = [call.prompt.messages for call in model.calls]
    assert [after[: len(before)] for before, after in pairwise(sent)] == sent[:-1]


# --- Loop detection

words = st.sampled_from(["read", "write"])
arguments = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=2)
actions = st.tuples(words, words, arguments, st.sampled_from(["a.py", "b.py"]))


@given(actions, actions)
def test_signature_depends_on_action_type_tool_arguments_and_target(
    one: tuple[str, str, dict[str, Any], str], other: tuple[str, str, dict[str, Any], str]
) -> None:
    """Equal for equal actions alone."""
    assert (action_signature(*one) == action_signature(*other)) is (one == other)


def test_loop_left_after_its_override_does_not_end_the_run(tmp_path: Path) -> None:
    events, result, _ = watch(tmp_path, READ, READ, READ, OTHER, DONE)
    assert [event for event in events if isinstance(event, Denied)] == []
    assert result.outcome.kind == "FINISHED"


def test_single_repetition_after_an_obeyed_override_does_not_end_the_run(tmp_path: Path) -> None:
    others = [use(("read_file", {"path": "long.txt", "limit": limit})) for limit in (1, 2, 3)]
    events, result, _ = watch(tmp_path, READ, READ, READ, *others, READ, DONE)
    assert [event.verdict.rule for event in events if isinstance(event, Denied)] == ["loop_override"]
    assert result.outcome.kind == "FINISHED"


def test_two_alternating_calls_are_a_loop(tmp_path: Path) -> None:
    _, result, model = watch(tmp_path, *[READ, OTHER] * 5, DONE)
    assert (result.outcome.reason, len(model.calls)) == ("loop_persisted", 8)


def test_call_whose_result_changes_is_progress(tmp_path: Path) -> None:
    states = iter(range(5))

    @tool(effect=Effect.READ)
    def job_state(_: ToolContext) -> str:
        """The state of the job."""
        return f"{next(states)} of 5 parts"

    tools = [*default_tools(), job_state]
    _, result, _ = watch(tmp_path, *[use(("job_state", {}))] * 5, DONE, tools=tools)
    assert result.outcome.kind == "FINISHED"


# --- Schema enforcement

SCHEMA = {"type": "object", "properties": {"bugs": {"type": "integer"}}, "required": ["bugs"]}


def test_output_that_violates_its_schema_is_repaired_or_ends_the_run(tmp_path: Path, protocol: Protocol) -> None:
    bad = use(("final_answer", {"answer": "None.", "value": {"bugs": "none"}}))
    good = use(("final_answer", {"answer": "None.", "value": {"bugs": 0}}))
    events, result, _ = watch(tmp_path, bad, bad, good, protocol=protocol, response_format=SCHEMA)
    healings = [event for event in events if isinstance(event, HealingBegan)]
    assert [[error.error_type.name for error in event.errors] for event in healings] == [["INVALID_ANSWER"]] * 2
    assert (result.outcome.kind, result.outcome.value) == ("FINISHED", {"bugs": 0})
    _, result, model = watch(tmp_path, *[bad] * 9, protocol=protocol, response_format=SCHEMA)
    assert (result.outcome.kind, result.outcome.value) == ("SYSTEM_ERROR", None)
    assert (result.outcome.reason, len(model.calls)) == ("schema_repair_exhausted", 3)
    assert "INVALID_ANSWER" in result.outcome.diagnostics[0]


# --- Inputs and outputs


def test_events_carry_the_run_and_the_step(tmp_path: Path) -> None:
    events, _, _ = watch(tmp_path, READ, BAD_PLAN, READ, DONE)
    traced = [event for event in events if isinstance(event, Traced)]
    assert len({event.run_id for event in traced}) == 1
    assert traced[0].run_id
    assert {event.step_id for event in traced if event.name == "tool.resolve.ok"} == {"1", "3"}


def test_no_step_limit_applies_unless_configured(tmp_path: Path) -> None:
    looks = [use(("read_file", {"path": "long.txt", "start_line": number, "limit": 1})) for number in range(1, 9)]
    _, result, _ = watch(tmp_path, *looks, DONE)
    assert result.outcome.kind == "FINISHED"
