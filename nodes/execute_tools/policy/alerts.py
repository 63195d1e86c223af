"""When a run goes wrong at a rate that somebody should know of: alerts as values. Source: spec 4."""

from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mendgraph.nodes.records import Record

WINDOW = 8  # how many of the latest outcomes count; as long as there are fewer, the missing ones count as good
THRESHOLD = 0.5  # an alert is raised when the rate of failures passes this
ALL_CLEAR = 0.25  # down to this rate, or below it, a new crossing is worth a new alert: a rate that wavers is told once
COST_FACTOR = 3.0  # A model call is dear when it costs more than this times the median of the latest ones
FEWEST_COSTS = 4  # A median of fewer calls says nothing


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
    message = "{} of the last {} tool calls failed: look at their errors."
    return _observed(vitals, "tools", ok, AlertKind.ERROR_RATE, message)


def observe_reply(vitals: Vitals, valid: bool) -> tuple[Vitals, Alert | None]:
    """Take in whether a model's reply could be used as it was."""
    message = "{} of the last {} replies of the model were invalid: another model or protocol may do better."
    return _observed(vitals, "replies", valid, AlertKind.INVALID_REPLIES, message)


def _observed(vitals: Vitals, what: str, good: bool, kind: AlertKind, said: str) -> tuple[Vitals, Alert | None]:
    outcomes: tuple[bool, ...] = (*getattr(vitals, what), good)[-WINDOW:]
    was_up = getattr(vitals, f"{what}_alerted")
    failed = outcomes.count(False)
    up = failed / WINDOW > (ALL_CLEAR if was_up else THRESHOLD)
    vitals = vitals.model_copy(update={what: outcomes, f"{what}_alerted": up})
    raised = up and not was_up

    return vitals, Alert(kind, said.format(failed, len(outcomes)), failed / WINDOW, THRESHOLD) if raised else None


def observe_cost(vitals: Vitals, amount: float, unit: str) -> tuple[Vitals, Alert | None]:
    """Take in what a model call cost, in `unit` (such as "tokens" or "USD"). Another unit begins anew.

    Where calls cost nothing there is nothing to compare with.
    """
    before = vitals.costs if unit == vitals.cost_unit else ()
    usual = median(before) if len(before) >= FEWEST_COSTS else 0.0
    dear = 0.0 < COST_FACTOR * usual < amount
    alert = None

    if dear and not vitals.cost_alerted:
        message = (
            f"A model call cost {amount:g} {unit}, more than {COST_FACTOR:g} times the median of the last"
            f" {len(before)} ({usual:g} {unit}): look at what it was sent."
        )
        alert = Alert(AlertKind.COST, message, float(amount), COST_FACTOR * usual)

    costs = (*before, float(amount))[-WINDOW:]
    return vitals.model_copy(update={"costs": costs, "cost_unit": unit, "cost_alerted": dear}), alert
