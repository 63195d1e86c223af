"""Alerts for failure rates and costs that exceed a threshold. Source: spec 4."""

from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mendgraph.nodes.records import Record

WINDOW = 8  # the latest outcomes that count; missing ones count as successes
THRESHOLD = 0.5  # the rate of failures above which an alert is raised
ALL_CLEAR = 0.25  # the rate at which an alert ends, so that a fluctuating rate raises only one
COST_FACTOR = 3.0  # a call that costs more than this times the median raises an alert
FEWEST_COSTS = 4  # the calls that a median needs


class AlertKind(StrEnum):
    """The measure that exceeds its threshold."""

    ERROR_RATE, INVALID_REPLIES, COST = "error_rate", "invalid_replies", "cost"


@dataclass(frozen=True)
class Alert:
    """A measure whose `value` exceeds `threshold`, with a message for people."""

    kind: AlertKind
    message: str
    value: float
    threshold: float


class Vitals(Record):
    """The latest outcomes of a run, oldest first, and which alerts are active. `costs` are in `cost_unit`."""

    tools: tuple[bool, ...] = ()
    replies: tuple[bool, ...] = ()
    costs: tuple[float, ...] = ()
    cost_unit: str = ""
    tools_alerted: bool = False
    replies_alerted: bool = False
    cost_alerted: bool = False


def observe_tool(vitals: Vitals, ok: bool) -> tuple[Vitals, Alert | None]:
    """Add the outcome of a tool call."""
    message = "{} of the last {} tool calls failed: look at their errors."
    return _observed(vitals, "tools", ok, AlertKind.ERROR_RATE, message)


def observe_reply(vitals: Vitals, valid: bool) -> tuple[Vitals, Alert | None]:
    """Add whether a model's reply was valid."""
    message = "{} of the last {} replies of the model were invalid: another model or protocol may do better."
    return _observed(vitals, "replies", valid, AlertKind.INVALID_REPLIES, message)


def _observed(vitals: Vitals, field: str, good: bool, kind: AlertKind, message: str) -> tuple[Vitals, Alert | None]:
    outcomes: tuple[bool, ...] = (*getattr(vitals, field), good)[-WINDOW:]
    was_active = getattr(vitals, f"{field}_alerted")
    failed = outcomes.count(False)
    rate = failed / WINDOW
    is_active = rate > (ALL_CLEAR if was_active else THRESHOLD)
    vitals = vitals.model_copy(update={field: outcomes, f"{field}_alerted": is_active})
    if not is_active or was_active:
        return vitals, None

    return vitals, Alert(kind, message.format(failed, len(outcomes)), rate, THRESHOLD)


def observe_cost(vitals: Vitals, amount: float, unit: str) -> tuple[Vitals, Alert | None]:
    """Add the cost of a model call, in `unit` (such as "tokens" or "USD"). Costs in another unit are dropped.

    No call raises an alert while the median cost is 0.
    """
    before = vitals.costs if unit == vitals.cost_unit else ()
    usual = median(before) if len(before) >= FEWEST_COSTS else 0.0
    dear = 0.0 < COST_FACTOR * usual < amount
    alert = None

    if dear and not vitals.cost_alerted:
        message = (
            f"A model call cost {amount:g} {unit}, more than {COST_FACTOR:g} times the median of the last"
            f" {len(before)} ({usual:g} {unit}): check what was sent."
        )
        alert = Alert(AlertKind.COST, message, float(amount), COST_FACTOR * usual)

    costs = (*before, float(amount))[-WINDOW:]
    return vitals.model_copy(update={"costs": costs, "cost_unit": unit, "cost_alerted": dear}), alert
