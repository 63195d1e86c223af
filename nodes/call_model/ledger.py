"""The machine's own budget: every limit of a run in one place, asked before each call and settled after it.

A call is sent only if its reservation (estimated input plus the most it may answer) fits into what is left, so a
limit is a wall and not a display. Healing, retries and failed calls all pay.
Source: names and defaults of spec 1 section 4 and spec 3.
"""

from math import ceil

from nodes.call_model.budget import INITIAL_API_USAGE, APILimits, APIUsageStats, check_api_limits, reset_turn_usage
from nodes.records import JsonMap, Record, StopCause, StopReason

CHARACTERS_PER_TOKEN = 3.0
"""Estimate of prompt size. English prose and code have 3 to 4 characters a token, so this errs on the high side."""

MIN_OUTPUT_TOKENS = 16
"""A reply that may not be longer than this is not worth its prompt."""


class RunLimits(Record):
    """What one run may use. None means no limit of that kind. Prices are USD for a million tokens."""

    api: APILimits = APILimits()
    max_input_tokens_per_turn: int | None = None
    max_output_tokens_per_turn: int | None = None
    max_output_tokens_per_call: int = 2_048
    max_steps: int | None = None
    max_steps_soft: bool = False
    max_seconds: float | None = None
    max_cost_usd: float | None = None
    usd_per_million_input: float | None = None
    usd_per_million_output: float | None = None


class Mending(Record):
    """How often replies of this turn had to be mended.

    `rescued` were read in another form than was asked for, `asked_again` were answered with what was wrong with them,
    and of those that were `cut` only what stood before an invented result was kept.
    """

    rescued: int = 0
    asked_again: int = 0
    cut: int = 0


class Spending(Record):
    """What this thread has used (`usage`) and what of that is this turn's. Seconds are time in calls and tools."""

    usage: APIUsageStats = INITIAL_API_USAGE
    at_turn_start: APIUsageStats = INITIAL_API_USAGE
    steps: int = 0
    seconds: float = 0.0
    mending: Mending = Mending()


class Reservation(Record):
    """Leave to make one call: how many tokens it may answer with, and how many seconds it may take."""

    max_output_tokens: int
    max_seconds: float | None


def begin_turn(spending: Spending) -> Spending:
    """Start a user's turn: the session's counters go on, the turn's begin at zero."""
    usage = reset_turn_usage(spending.usage)
    return Spending(usage=usage, at_turn_start=usage)


def count_mending(spending: Spending, *, rescued: int = 0, asked_again: int = 0, cut: int = 0) -> Spending:
    """Count what had to be done to a reply."""
    so_far = spending.mending
    mending = Mending(
        rescued=so_far.rescued + rescued, asked_again=so_far.asked_again + asked_again, cut=so_far.cut + cut
    )
    return spending.model_copy(update={"mending": mending})


def settle(spending: Spending, input_tokens: int, output_tokens: int, seconds: float, calls: int = 1) -> Spending:
    """Add what a call really used; `calls` counts its retries too."""
    usage = spending.usage
    return spending.model_copy(
        update={
            "usage": APIUsageStats(
                total_calls=usage.total_calls + calls,
                total_input_tokens=usage.total_input_tokens + input_tokens,
                total_output_tokens=usage.total_output_tokens + output_tokens,
                calls_in_current_turn=usage.calls_in_current_turn + calls,
            ),
            "seconds": spending.seconds + seconds,
        }
    )


def cost_usd(spending: Spending, limits: RunLimits) -> float | None:
    """What the session cost so far in USD, or None where no price is configured."""
    if limits.usd_per_million_input is None or limits.usd_per_million_output is None:
        return None
    usage = spending.usage
    return (
        usage.total_input_tokens * limits.usd_per_million_input
        + usage.total_output_tokens * limits.usd_per_million_output
    ) / 1_000_000


def estimate_tokens(characters: int, messages: int) -> int:
    """Estimate a prompt's tokens from its length; four tokens a message are the chat template's."""
    return ceil(characters / CHARACTERS_PER_TOKEN) + 4 * messages


def exhausted_limit(spending: Spending, limits: RunLimits) -> StopCause | None:
    """Name the first limit that allows no further call, or None. Soft `max_steps` never stops a run."""
    exceeded = check_api_limits(spending.usage, limits.api).exceeded
    if exceeded is not None:
        return StopCause(reason=_SPEC_REASONS[exceeded.limit_name], message=exceeded.message)
    cost = cost_usd(spending, limits)
    turn = _turn_tokens(spending)
    checks = (
        (StopReason.MAX_INPUT_TOKENS, "max_input_tokens_per_turn", turn[0], limits.max_input_tokens_per_turn),
        (StopReason.MAX_OUTPUT_TOKENS, "max_output_tokens_per_turn", turn[1], limits.max_output_tokens_per_turn),
        (StopReason.MAX_STEPS, "max_steps", spending.steps, None if limits.max_steps_soft else limits.max_steps),
        (StopReason.WALL_CLOCK, "max_seconds", spending.seconds, limits.max_seconds),
        (StopReason.MAX_COST, "max_cost_usd", cost, limits.max_cost_usd),
    )
    for reason, name, current, maximum in checks:
        if maximum is not None and current is not None and current >= maximum:
            return StopCause(reason=reason, message=f"Limit '{name}' exceeded: {round(current, 6)}/{maximum}")
    return None


def reserve(spending: Spending, limits: RunLimits, estimated_input: int) -> Reservation | StopCause:
    """Ask leave for one call with about this many input tokens.

    Returns the reservation, its output cut to what is left, or the limit into which the call does not fit.
    """
    cause = exhausted_limit(spending, limits)
    if cause is not None:
        return cause
    input_left, output_left = _tokens_left(spending, limits)
    if estimated_input > input_left:
        message = f"The next call needs about {estimated_input} input tokens, and {input_left} are left."
        return StopCause(reason=StopReason.MAX_INPUT_TOKENS, message=message)
    if output_left < MIN_OUTPUT_TOKENS:
        message = f"Only {output_left} output tokens are left."
        return StopCause(reason=StopReason.MAX_OUTPUT_TOKENS, message=message)
    affordable = _affordable_output(spending, limits, estimated_input)
    if affordable < MIN_OUTPUT_TOKENS:
        message = f"The next call may cost more than is left of max_cost_usd={limits.max_cost_usd}."
        return StopCause(reason=StopReason.MAX_COST, message=message)
    return Reservation(
        max_output_tokens=min(limits.max_output_tokens_per_call, output_left, affordable),
        max_seconds=None if limits.max_seconds is None else limits.max_seconds - spending.seconds,
    )


def usage_report(spending: Spending, limits: RunLimits) -> JsonMap:
    """The counters as JSON values, for outcomes. `cost_usd` is null where no price is configured."""
    turn_input, turn_output = _turn_tokens(spending)
    return {
        **spending.usage._asdict(),
        "input_tokens_in_current_turn": turn_input,
        "output_tokens_in_current_turn": turn_output,
        "steps_in_current_turn": spending.steps,
        "seconds_in_current_turn": round(spending.seconds, 3),
        **{f"replies_{name}": count for name, count in spending.mending.model_dump().items() if count},
        "cost_usd": cost_usd(spending, limits),
    }


_SPEC_REASONS = {
    "max_calls_per_session": StopReason.MAX_CALLS_PER_SESSION,
    "max_calls_per_turn": StopReason.MAX_CALLS_PER_TURN,
    "max_input_tokens_per_session": StopReason.MAX_INPUT_TOKENS,
    "max_output_tokens_per_session": StopReason.MAX_OUTPUT_TOKENS,
}


def _turn_tokens(spending: Spending) -> tuple[int, int]:
    now, start = spending.usage, spending.at_turn_start
    return (
        now.total_input_tokens - start.total_input_tokens,
        now.total_output_tokens - start.total_output_tokens,
    )


def _tokens_left(spending: Spending, limits: RunLimits) -> tuple[int, int]:
    usage, (turn_input, turn_output) = spending.usage, _turn_tokens(spending)
    input_left = limits.api.max_input_tokens_per_session - usage.total_input_tokens
    output_left = limits.api.max_output_tokens_per_session - usage.total_output_tokens
    if limits.max_input_tokens_per_turn is not None:
        input_left = min(input_left, limits.max_input_tokens_per_turn - turn_input)
    if limits.max_output_tokens_per_turn is not None:
        output_left = min(output_left, limits.max_output_tokens_per_turn - turn_output)
    return input_left, output_left


def _affordable_output(spending: Spending, limits: RunLimits, estimated_input: int) -> int:
    """How many output tokens the money allows; the per-call limit where no price or cap is set."""
    cost = cost_usd(spending, limits)
    price_in, price_out = limits.usd_per_million_input, limits.usd_per_million_output
    if cost is None or limits.max_cost_usd is None or price_in is None or price_out is None:
        return limits.max_output_tokens_per_call
    left = limits.max_cost_usd - cost - estimated_input * price_in / 1_000_000
    if left < 0:
        return 0
    if left >= limits.max_output_tokens_per_call * price_out / 1_000_000:
        return limits.max_output_tokens_per_call
    return int(left / price_out * 1_000_000)
