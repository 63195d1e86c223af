"""The question whether a limit is raised, and the values that an answer may raise it to."""

from typing import Any

from mendgraph.nodes.guard.approval_formats import ApprovalRequest
from mendgraph.nodes.guard.raised_limit import LIMITS, ReachedLimit, ask_to_raise
from mendgraph.nodes.records import JsonMap
from tests.row_tables import rows

STEPS = ReachedLimit("max_steps", spent=10, maximum=10, required=10, most=1_000)
TOKENS = ReachedLimit("max_input_tokens_per_turn", spent=900, maximum=1_000, required=5_000, most=100_000)
TOKENS_SPENT = "900 of 1,000 input tokens of this turn are spent, 100 are left, and the next call may need 4,100."
COST = ReachedLimit("max_cost_usd", spent=0.75, maximum=1.0, required=1.1, most=1e9)


@rows(
    (STEPS, 20, "10 of 10 rounds of tool calls of this turn are spent. Raise to 20?"),
    (
        TOKENS,
        8_000,
        f"{TOKENS_SPENT} Raise to 8,000?",
    ),
    (
        COST,
        2.0,
        "0.75 of 1 USD of this thread are spent, 0.25 are left, and the next call may need 0.35. Raise to 2?",
    ),
    (STEPS._replace(most=15), 15, "10 of 10 rounds of tool calls of this turn are spent. Raise to 15?"),
)
def test_question_states_what_is_spent_and_left_and_proposes_the_doubled_limit(
    limit: ReachedLimit, proposal: float, question: str
) -> None:
    assert (limit.proposal, limit.question) == (proposal, question)


def test_question_names_what_each_limit_counts() -> None:
    for name, unit in LIMITS.items():
        assert f" {unit} are spent" in STEPS._replace(name=name).question
    assert LIMITS["max_seconds"] == "seconds of this turn"


@rows(
    (STEPS, 11, 11),
    (STEPS, 10, None),
    (STEPS, 1_000, 1_000),
    (STEPS, 1_001, None),
    (STEPS, 12.7, 12),
    (STEPS, 10.5, None),
    (TOKENS, 5_000, None),
    (TOKENS, 5_001, 5_001),
    (COST, 1.2, 1.2),
    (COST, "2", None),
    (COST, None, None),
)
def test_typed_value_raises_the_limit_only_if_the_next_call_fits(
    limit: ReachedLimit, answer: object, value: float | None
) -> None:
    assert limit.value_of(answer) == value


def decision(**fields: Any) -> JsonMap:
    return {"decisions": {"0": fields}}


@rows(
    ([decision(action="approve")], 20, 1),
    ([decision(action="edit", arguments={"max_steps": 50})], 50, 1),
    ([decision(action="reject")], None, 1),
    ([decision(action="edit", arguments={"max_steps": 5}), decision(action="approve")], 20, 2),
    (["no such answer", "nor this", "nor that", "approve"], None, 3),
)
def test_answer_is_asked_for_again_at_most_three_times(answers: list[Any], raised: float | None, asked: int) -> None:
    requests: list[ApprovalRequest] = []

    def ask(request: ApprovalRequest) -> object:
        requests.append(request)
        return answers[len(requests) - 1]

    assert ask_to_raise(STEPS, ask) == raised
    assert len(requests) == asked
    assert ["problem" in request for request in requests] == [False, True, True][:asked]
    assert requests[-1]["calls"][0]["arguments"] == {"max_steps": 20}
