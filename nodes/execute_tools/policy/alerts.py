"""When a run goes wrong at a rate that somebody should know of: alerts as values. Source: spec 4."""

from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mendgraph.nodes.records import JsonMap, Record

WINDOW = 8
"""How many of the latest outcomes count; as long as there are fewer, the missing ones count as good."""

THRESHOLD = 0.5
"""An alert is raised when the rate of failures passes this."""

ALL_CLEAR = 0.25
"""Down to this rate, or below it, a new crossing is worth a new alert: a rate that wavers is told once."""

COST_FACTOR = 3.0
"""A model call is dear when it costs more than this times the median of the latest ones."""

FEWEST_COSTS = 4
"""A median of fewer calls says nothing."""

_LARGEST = 1e300


class AlertKind(StrEnum):
    """What went up."""

    ERROR_RATE, INVALID_REPLIES, COST = "error_rate", "invalid_replies", "cost"


@dataclass(frozen=True)
class Alert:
    """`value` has passed `threshold`; `message` says it to a person."""

    kind: AlertKind
    message: str
    value: float
    threshold: float

    def as_map(self) -> JsonMap:
        """The alert as JSON values."""
        return {"kind": self.kind.value, "message": self.message, "value": self.value, "threshold": self.threshold}


class Vitals(Record):
    """The latest outcomes of a run, oldest first, and which alerts are up. `costs` are all in `cost_unit`."""

    tools: tuple[bool, ...] = ()
    replies: tuple[bool, ...] = ()
    costs: tuple[float, ...] = ()
    cost_unit: str = ""
    tools_alerted: bool = False
    replies_alerted: bool = False
    cost_alerted: bool = False


def observe_tool(vitals: Vitals, ok: bool) -> tuple[Vitals, Alert | None]:
    """Take in how a tool call ended."""
    tools = (*vitals.tools, ok)[-WINDOW:]
    rate, up = _rate(tools, up=vitals.tools_alerted)
    alert = None
    if up and not vitals.tools_alerted:
        message = f"{tools.count(False)} of the last {len(tools)} tool calls failed: look at their errors."
        alert = Alert(AlertKind.ERROR_RATE, message, rate, THRESHOLD)
    return vitals.model_copy(update={"tools": tools, "tools_alerted": up}), alert


def observe_reply(vitals: Vitals, valid: bool) -> tuple[Vitals, Alert | None]:
    """Take in whether a model's reply could be used as it was."""
    replies = (*vitals.replies, valid)[-WINDOW:]
    rate, up = _rate(replies, up=vitals.replies_alerted)
    alert = None
    if up and not vitals.replies_alerted:
        message = (
            f"{replies.count(False)} of the last {len(replies)} replies of the model were invalid: "
            "another model or protocol may do better."
        )
        alert = Alert(AlertKind.INVALID_REPLIES, message, rate, THRESHOLD)
    return vitals.model_copy(update={"replies": replies, "replies_alerted": up}), alert


def observe_cost(vitals: Vitals, amount: float, unit: str) -> tuple[Vitals, Alert | None]:
    """Take in what a model call cost, in `unit` (such as "tokens" or "USD"). Another unit begins anew.

    An amount that is negative or no number is no news, and where calls cost nothing there is nothing to compare with.
    """
    if not 0 <= amount <= _LARGEST:
        return vitals, None
    before = vitals.costs if unit == vitals.cost_unit else ()
    threshold = COST_FACTOR * median(before) if len(before) >= FEWEST_COSTS else 0.0
    dear = 0.0 < threshold < amount
    alert = None
    if dear and not vitals.cost_alerted:
        message = (
            f"A model call cost {amount:g} {unit}, more than {COST_FACTOR:g} times the median of the last"
            f" {len(before)} ({median(before):g} {unit}): look at what it was sent."
        )
        alert = Alert(AlertKind.COST, message, float(amount), threshold)
    costs = (*before, float(amount))[-WINDOW:]
    return vitals.model_copy(update={"costs": costs, "cost_unit": unit, "cost_alerted": dear}), alert


def _rate(outcomes: tuple[bool, ...], *, up: bool) -> tuple[float, bool]:
    """The rate of failures, and whether an alert is up now, given whether it was."""
    rate = outcomes.count(False) / WINDOW
    return rate, rate > (ALL_CLEAR if up else THRESHOLD)
