from hypothesis import given, strategies as st

from mendgraph.nodes.heal.corrective_prompt import DEFAULT_SELF_HEALING_CONFIG, HealingAttempt, SelfHealingConfig
from mendgraph.nodes.heal.healing import correction_of, next_attempt
from mendgraph.nodes.records import Correction, ExtractionError, ExtractionErrorType, ModelReply, StopCause, StopReason
from tests.row_tables import rows

E = ExtractionErrorType
EXHAUSTED, UNREPAIRED = StopReason.HEALING_EXHAUSTED, StopReason.SCHEMA_REPAIR_EXHAUSTED


def errors_of(*kinds: ExtractionErrorType) -> list[ExtractionError]:
    return [ExtractionError(kind, index, "line", "details") for index, kind in enumerate(kinds)]


@rows(
    ([E.INVALID_JSON_SYNTAX], 2, 9, None, ""),
    ([E.INVALID_JSON_SYNTAX], 3, 0, EXHAUSTED, "The model's reply still could not be read as a tool call {3}"),
    ([E.INVALID_ARGUMENTS, E.INVALID_ANSWER], 9, 1, None, ""),
    ([E.INVALID_ARGUMENTS], 0, 2, UNREPAIRED, "The arguments of the model's tool call still did not fit the tool {2}"),
    ([E.INVALID_ARGUMENTS, E.EMPTY_TOOL_NAME], 2, 2, None, ""),
    ([E.EMPTY_REPLY], 2, 0, None, ""),
    ([E.EMPTY_REPLY], 3, 0, StopReason.EMPTY_REPLY, "The model's reply was still empty {3}"),
    (
        [E.THOUGHT_ONLY_REPLY],
        3,
        0,
        StopReason.EMPTY_REPLY,
        "The model still only thought, without an answer or a tool call {3}",
    ),
    ([E.TRUNCATED_REPLY], 0, 0, None, ""),
    ([E.TRUNCATED_REPLY], 3, 0, EXHAUSTED, "The model's reply was still cut at the token limit {3}"),
    ([E.INVALID_ANSWER], 0, 2, UNREPAIRED, "The model's answer was still not valid {2}"),
    ([E.UNKNOWN_TOOL_NAME], 3, 0, EXHAUSTED, "The model still called a tool that does not exist {3}"),
    ([E.REFUSED_REPLY], 0, 0, StopReason.REFUSED, "The model refused to reply."),
    ([E.FILTERED_REPLY], 0, 0, StopReason.REFUSED, "The endpoint's content filter stopped the model's reply."),
)
def test_each_kind_of_failure_has_its_limit(
    kinds: list[ExtractionErrorType],
    extraction_failures: int,
    schema_failures: int,
    reason: StopReason | None,
    message: str,
) -> None:
    total = extraction_failures + schema_failures
    corrections = [Correction(reply="", prompt="", schema_repair=at < schema_failures) for at in range(total)]
    decision = next_attempt(errors_of(*kinds), "said", corrections, [], DEFAULT_SELF_HEALING_CONFIG)
    if reason is None:
        assert isinstance(decision, HealingAttempt)
    else:
        stop_message = message.replace("{3}", "after 3 retries.").replace("{2}", "after 2 repairs.")
        cause = StopCause(reason=reason, message=stop_message, diagnostics=(f"{kinds[0].name}: details",))
        assert decision == cause


def test_stop_at_the_first_reply_names_its_line() -> None:
    never = SelfHealingConfig(max_retries=0)
    cause = next_attempt([ExtractionError(E.EMPTY_REPLY, 4, "", "details")], "", [], [], never)
    assert isinstance(cause, StopCause)
    assert (cause.message, cause.diagnostics) == ("The model's reply was empty.", ("line 4: EMPTY_REPLY: details",))
    unread = next_attempt([], "", [], [], never)
    assert isinstance(unread, StopCause)
    assert unread.message == "The model's reply could not be read as a tool call."


def test_correction_of_an_unfounded_claim_is_not_a_retry() -> None:
    before = [Correction(reply="", prompt="", claim=at == 2) for at in range(3)]
    assert isinstance(
        next_attempt(errors_of(E.EMPTY_REPLY), "", before, [], DEFAULT_SELF_HEALING_CONFIG), HealingAttempt
    )


def counted(now: ExtractionErrorType, *before: ExtractionErrorType, config: SelfHealingConfig) -> bool:
    """Whether the run ends after failures of these kinds, all of which are open corrections."""
    attempts = [HealingAttempt(at, "said", errors_of(kind), "again") for at, kind in enumerate(before)]
    corrections = [correction_of(attempt, ModelReply(text="said")) for attempt in attempts]
    return isinstance(next_attempt(errors_of(now), "said", corrections, attempts, config), StopCause)


@given(st.lists(st.sampled_from(list(E)), max_size=40), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_number_of_corrections_is_bounded_for_any_failures(
    kinds: list[ExtractionErrorType], max_retries: int, max_repairs: int, max_claims: int
) -> None:
    config = SelfHealingConfig(max_retries=max_retries, max_schema_repairs=max_repairs, max_claims=max_claims)
    failed: list[ExtractionErrorType] = []
    for kind in kinds:
        if counted(kind, *failed, config=config):
            break
        failed.append(kind)
    assert len(failed) <= max_retries + max_repairs + max_claims
