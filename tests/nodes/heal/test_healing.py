from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.heal import corrective_prompt, healing
from mendgraph.nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from mendgraph.nodes.heal.healing import (
    HealingAttempt,
    HealingResult,
    attempt_extraction_with_healing,
    canonical_text,
    correction_of,
    next_attempt,
)
from mendgraph.nodes.language.text_protocol import extract_tool_invocations_with_errors
from mendgraph.nodes.records import (
    CallError,
    Correction,
    ExtractionError,
    ExtractionErrorType,
    Protocol,
    StopCause,
    StopReason,
    ToolCall,
    ToolInvocation,
)

E = ExtractionErrorType
EXHAUSTED, UNREPAIRED = StopReason.HEALING_EXHAUSTED, StopReason.SCHEMA_REPAIR_EXHAUSTED
KNOWN = frozenset({"read_file"})
GOOD, BAD = 'tool: read_file({"path": "a"})', "tool: read_file({path})"
START: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Read a."}]}]


def scripted(*replies: str) -> tuple[Callable[[list[dict[str, Any]]], str], list[list[dict[str, Any]]]]:
    seen: list[list[dict[str, Any]]] = []

    def get_llm_response(conversation: list[dict[str, Any]]) -> str:
        seen.append(conversation)
        return replies[min(len(seen), len(replies)) - 1]

    return get_llm_response, seen


def attempt(number: int, response: str, config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG) -> HealingAttempt:
    _, errors = extract_tool_invocations_with_errors(response, KNOWN)
    return HealingAttempt(number, response, errors, generate_corrective_prompt(errors, response, config))


@pytest.mark.parametrize(
    ("reply", "invocations"),
    [
        (GOOD, [ToolInvocation("read_file", {"path": "a"}, 1)]),
        (f"{BAD}\n{GOOD}", [ToolInvocation("read_file", {"path": "a"}, 2)]),
        ("The file is fine.", []),
        ('Example:\n```\ntool: read_file({"path": "a"})\n```', [ToolInvocation("read_file", {"path": "a"}, 3)]),
    ],
)
def test_calls_and_plain_answers_succeed_at_once(reply: str, invocations: list[ToolInvocation]) -> None:
    ask, seen = scripted(reply)
    assert attempt_extraction_with_healing(ask, START, KNOWN) == HealingResult(True, invocations, reply, ())
    assert seen == [START]


@pytest.mark.parametrize("bad", [BAD, f"Example:\n```\n{BAD}\n```"])
def test_a_malformed_call_is_asked_for_again(bad: str) -> None:
    ask, seen = scripted(bad, GOOD)
    result = attempt_extraction_with_healing(ask, START, KNOWN)
    first = attempt(0, bad)
    assert result == HealingResult(True, [ToolInvocation("read_file", {"path": "a"}, 1)], GOOD, (first,))
    assert seen[1] == [
        *START,
        {"role": "assistant", "content": [{"type": "text", "text": bad}]},
        {"role": "user", "content": [{"type": "text", "text": first.corrective_prompt}]},
    ]
    assert seen[0] == START == [{"role": "user", "content": [{"type": "text", "text": "Read a."}]}]


def test_three_retries_and_no_more() -> None:
    ask, seen = scripted(BAD)
    result = attempt_extraction_with_healing(ask, START, KNOWN)
    assert result == HealingResult(False, [], BAD, tuple(attempt(number, BAD) for number in range(3)))
    assert [len(conversation) for conversation in seen] == [1, 3, 5, 7]


def test_a_rescued_reply_is_kept_as_one_line_for_each_call() -> None:
    call = ToolCall(call_id="1", tool="read_file", arguments={"path": "a"}, raw_arguments='{"path": "a"}')
    broken = CallError(call_id="2", tool="edit_file", raw_arguments="{}", error=errors_of(E.INVALID_ARGUMENTS)[0])
    expected = 'tool: read_file({"path": "a"})\ntool: edit_file({})'
    assert canonical_text([call, broken], Protocol.TEXT) == expected
    assert canonical_text([call, broken], Protocol.NATIVE) == ""


def errors_of(*kinds: ExtractionErrorType) -> list[ExtractionError]:
    return [ExtractionError(kind, index, "line", "details") for index, kind in enumerate(kinds)]


def decided(
    errors: list[ExtractionError],
    retries: int,
    repairs: int,
    config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG,
    claims: int = 0,
) -> HealingAttempt | StopCause:
    corrections = [Correction(reply="", prompt="", schema_repair=at < repairs) for at in range(retries + repairs)]
    attempts = [HealingAttempt(at, "", errors_of(E.UNFOUNDED_CLAIM), "") for at in range(claims)]
    return next_attempt(errors, "said", corrections, attempts, config)


@pytest.mark.parametrize(
    ("kinds", "extraction_failures", "schema_failures", "reason", "message"),
    [
        ([E.INVALID_JSON_SYNTAX], 2, 9, None, ""),
        ([E.INVALID_JSON_SYNTAX], 3, 0, EXHAUSTED, "The model's reply still could not be read as a tool call {3}"),
        ([E.INVALID_ARGUMENTS, E.INVALID_ANSWER], 9, 1, None, ""),
        ([E.INVALID_ARGUMENTS], 0, 2, UNREPAIRED,
         "The arguments of the model's tool call still did not fit the tool {2}"),
        ([E.INVALID_ARGUMENTS, E.EMPTY_TOOL_NAME], 2, 2, None, ""),
        ([E.EMPTY_REPLY], 2, 0, None, ""),
        ([E.EMPTY_REPLY], 3, 0, StopReason.EMPTY_REPLY, "The model's reply was still empty {3}"),
        ([E.THOUGHT_ONLY_REPLY], 3, 0, StopReason.EMPTY_REPLY,
         "The model still only thought, without an answer or a tool call {3}"),
        ([E.TRUNCATED_REPLY], 0, 0, None, ""),
        ([E.TRUNCATED_REPLY], 3, 0, EXHAUSTED, "The model's reply was still cut at the token limit {3}"),
        ([E.INVALID_ANSWER], 0, 2, UNREPAIRED, "The model's answer was still not valid {2}"),
        ([E.UNKNOWN_TOOL_NAME], 3, 0, EXHAUSTED, "The model still called a tool that does not exist {3}"),
        ([E.REFUSED_REPLY], 0, 0, StopReason.REFUSED, "The model refused to reply."),
        ([E.FILTERED_REPLY], 0, 0, StopReason.REFUSED, "The endpoint's content filter stopped the model's reply."),
    ],
)  # fmt: skip
def test_each_count_has_its_limit(
    kinds: list[ExtractionErrorType],
    extraction_failures: int,
    schema_failures: int,
    reason: StopReason | None,
    message: str,
) -> None:
    decision = decided(errors_of(*kinds), extraction_failures, schema_failures)
    if reason is None:
        assert isinstance(decision, HealingAttempt)
    else:
        said = message.replace("{3}", "after 3 retries.").replace("{2}", "after 2 repairs.")
        cause = StopCause(reason=reason, message=said, diagnostics=(f"{kinds[0].name}: details",))
        assert decision == cause


def counted(
    now: ExtractionErrorType, *before: ExtractionErrorType, opened: int | None = None, config: SelfHealingConfig
) -> bool:
    """Whether the run ends after failures of these kinds, of which the last `opened` are open corrections."""
    attempts = [HealingAttempt(at, "said", errors_of(kind), "again") for at, kind in enumerate(before)]
    corrections = [correction_of(attempt, "said") for attempt in attempts]
    still_open = corrections[len(before) - (len(before) if opened is None else opened) :]
    return isinstance(next_attempt(errors_of(now), "said", still_open, attempts, config), StopCause)


AGAIN, OVER = False, True


@given(st.lists(st.sampled_from(list(E)), max_size=40), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_a_model_that_fails_in_any_way_is_asked_again_a_bounded_number_of_times(
    kinds: list[ExtractionErrorType], max_retries: int, max_repairs: int, max_claims: int
) -> None:
    config = SelfHealingConfig(max_retries=max_retries, max_schema_repairs=max_repairs, max_claims=max_claims)
    failed: list[ExtractionErrorType] = []
    for kind in kinds:
        if counted(kind, *failed, config=config) is OVER:
            break
        failed.append(kind)
    assert len(failed) <= max_retries + max_repairs + max_claims


def test_the_specs_names_come_from_here_too() -> None:
    for name in ("SelfHealingConfig", "HealingAttempt", "HealingResult", "generate_corrective_prompt"):
        assert getattr(healing, name) is getattr(corrective_prompt, name)
