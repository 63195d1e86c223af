"""The question whether a limit of the run is raised, in the form of an approval, and what the answer raises it to.

A request holds one call of `raise_limit`, which is no tool: its argument is the setting with the proposed value.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from mendgraph.nodes.guard.approval_formats import UNREADABLE, ApprovalRequest, AskedCall, ShownPreview, read_answer
from mendgraph.nodes.guard.approvals import MOST_ASKED

LIMITS: Final[Mapping[str, str]] = {
    "max_calls_per_session": "model calls of this thread",
    "max_calls_per_turn": "model calls of this turn",
    "max_input_tokens_per_session": "input tokens of this thread",
    "max_output_tokens_per_session": "output tokens of this thread",
    "max_input_tokens_per_turn": "input tokens of this turn",
    "max_output_tokens_per_turn": "output tokens of this turn",
    "max_steps": "rounds of tool calls of this turn",
    "max_seconds": "seconds of this turn",
    "max_cost_usd": "USD of this thread",
}
"""The limits of a run, and what they count."""


class ReachedLimit(NamedTuple):
    """A limit that lets no further model call be sent.

    `required` is the least value with which the next one fits, `most` the highest value that the setting may have.
    """

    name: str
    spent: float
    maximum: float
    required: float
    most: float

    @property
    def proposal(self) -> float:
        """The limit doubled until the next call fits."""
        proposal = 2 * self.maximum
        while proposal <= self.required:
            proposal *= 2

        return min(proposal, self.most)

    @property
    def question(self) -> str:
        """What is spent, what is left, and the proposal."""
        spent = f"{_words(self.spent)} of {_words(self.maximum)} {LIMITS[self.name]} are spent"
        left = self.maximum - self.spent
        if left > 0:
            spent += f", {_words(left)} are left, and the next call may need {_words(self.required - self.spent)}"

        return f"{spent}. Raise to {_words(self.proposal)}?"

    def value_of(self, answer: object) -> float | None:
        """Return the value that a person has typed, None if the limit cannot be raised to it."""
        if not isinstance(answer, int | float) or not self.least < answer <= self.most:
            return None

        value = type(self.maximum)(answer)
        return value if value > self.least else None

    @property
    def least(self) -> float:
        """The value that the limit has to exceed."""
        return max(self.maximum, self.required)


def ask_to_raise(limit: ReachedLimit, ask: Callable[[ApprovalRequest], object]) -> float | None:
    """Return the value that a person raises the limit to; None if the run stops, or no answer can be read."""
    problem = ""

    for _ in range(MOST_ASKED):
        call = _asked_call(limit, problem)
        request = ApprovalRequest(kind="approval", calls=[call])
        if problem:
            request["problem"] = problem

        decision = read_answer(ask(request), [call])[call["index"]]
        if decision.action.startswith("approve"):
            return limit.proposal
        if decision.action != "edit" and decision.reason != UNREADABLE:
            return None

        value = limit.value_of((decision.arguments or {}).get(limit.name))
        if value is not None:
            return value

        problem = f"That is not an answer: approve, reject, or name a number above {_words(limit.least)}."

    return None


def _asked_call(limit: ReachedLimit, problem: str) -> AskedCall:
    text = f"{problem} {limit.question}".lstrip()
    return AskedCall(
        index=0,
        tool="raise_limit",
        path="",
        rule="limit",
        arguments={limit.name: limit.proposal},
        preview=ShownPreview(kind="limit", text=text, truncated=False),
        choices={},
        digest="",
    )


def _words(value: float) -> str:
    return f"{round(value, 6):,.15g}"
