"""The budget of a run: limits, counters, and the reservation before each call.

A call is sent only if its reservation (estimated input plus maximum output) fits into what is left. Healing, retries,
summaries and failed calls are charged. Limits of a day, over all workspaces, belong to the spending book.
Source: names and defaults of spec 1 section 4 and spec 3.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal, Protocol

from pydantic import Field

from mendgraph.nodes.call_model import budget
from mendgraph.nodes.call_model.prices import PRICES_VARIABLE, Price, cost_of, most_cost
from mendgraph.nodes.call_model.prompts.estimates import Gauge, countable
from mendgraph.nodes.records import JsonMap, Record, StopCause, StopReason

LONGEST_ACCOUNT_NAME: Final = 200  # characters of an account's name


def account_problem(account: str) -> str | None:
    """Return what is wrong with the name of an account, or None; "" is the account of runs that name none."""
    if len(account) > LONGEST_ACCOUNT_NAME or not account.isprintable():
        return f"an account's name is empty, or has 1 to {LONGEST_ACCOUNT_NAME} printable characters"
    return None


class RunLimits(Record):
    """The limits of a run; None means no limit.

    Without `max_output_tokens_per_call` a reply may use all output tokens that are left. The limits of a day (UTC) and
    of an account are for all workspaces together: a day's for all runs, or with `account_days` for the runs of the
    account; an account's for all its usage ever.
    """

    api: budget.APILimits = budget.APILimits()
    max_input_tokens_per_turn: int | None = None
    max_output_tokens_per_turn: int | None = None
    max_output_tokens_per_call: int | None = 2_048
    max_steps: int | None = None
    max_steps_soft: bool = False
    max_seconds: float | None = None
    max_cost_usd: float | None = None
    max_tokens_per_day: int | None = None
    max_cost_usd_per_day: float | None = None
    account: str = ""
    account_days: bool = False
    max_tokens_per_account: int | None = None
    max_cost_usd_per_account: float | None = None


def unknown_price(limits: RunLimits, price: Price | None, model: str = "") -> StopCause | None:
    """Return the stop cause if cost is limited and the price of the model is unknown, or None."""
    capped = (
        (StopReason.MAX_COST, "max_cost_usd", limits.max_cost_usd),
        (StopReason.DAY_LIMIT, "max_cost_usd_per_day", limits.max_cost_usd_per_day),
        (StopReason.ACCOUNT_LIMIT, "max_cost_usd_per_account", limits.max_cost_usd_per_account),
    )
    capped_by = next(((reason, name) for reason, name, maximum in capped if maximum is not None), None)
    if price is not None or capped_by is None:
        return None

    reason, name = capped_by
    label = f"the model {model!r}" if model else "the model"
    message = (
        f"Limit '{name}' cannot be enforced: no price is known for {label}. Add it to prices.toml in the configuration"
        f" folder, or to the file that {PRICES_VARIABLE} names; or leave {name} empty."
    )
    return StopCause(reason=reason, message=message)


LEAST_CUT_OFF: Final = 2_048
"""Output tokens for which a call that was cut off is charged at least, if it had reserved them."""


class Entry(Record):
    """The reservation of a call in the spending book; `purpose` is "reply" or "summary".

    `cost_usd` is None if the model's price is unknown.
    """

    thread: str
    model: str
    purpose: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None

    def if_cut_off(self, usual_output: int = 0) -> "Entry":
        """Return the charge if the process was killed: all of the input, and a bounded part of the output.

        The bound is the thread's average reply, at least `LEAST_CUT_OFF`. The full reservation may be all that the
        session has left, which one crash would then use up. The cost is reduced in proportion to the tokens.
        """
        output = min(self.output_tokens, max(usual_output, LEAST_CUT_OFF))
        if output == self.output_tokens:
            return self

        part = (self.input_tokens + output) / (self.input_tokens + self.output_tokens)
        cost = None if self.cost_usd is None else self.cost_usd * part
        return self.model_copy(update={"output_tokens": output, "cost_usd": cost})

    def is_passed_by(self, used: "Used") -> bool:
        """Return whether more was used than this entry would be charged if it was never settled."""
        tokens = used.input_tokens + used.output_tokens > self.input_tokens + self.output_tokens
        return tokens or used.output_tokens > self.output_tokens or (used.cost_usd or 0.0) > (self.cost_usd or 0.0)


class Usage(Record):
    """The usage of one or more calls; `cost_usd` is None if a price is unknown.

    `cached_tokens` and `cache_write_tokens` are parts of the input, `reasoning_tokens` is a part of the output.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0


class Used(Usage):
    """Usage with the `seconds` that the calls took."""

    seconds: float = 0.0


class SpendingBook(Protocol):
    """Records calls beyond the life of the process. Entries have unique, increasing numbers."""

    def lost(self, thread: str, after: int) -> tuple[Used, int]:
        """Return the sum of the thread's entries after the number `after`, and the largest number (or `after`).

        Entries that will not be settled any more count as `Entry.if_cut_off`.
        """

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Enter a call and return its number, or the stop cause if it exceeds a limit of the day or account.

        0 means that the call could not be entered and has no such limit; it is never settled.
        """

    def settle(self, number: int, used: Used) -> None:
        """Replace a reservation by the usage, without waiting for the disk."""


MIN_OUTPUT_TOKENS: Final = 16  # a call with less output is not sent


class Mending(Record):
    """Counts of repairs in this turn.

    Attributes:
        rescued: replies that were read in a foreign format.
        asked_again: replies that were answered with a correction.
        healed: replies that were usable after corrections.
        cut: replies that were cut before a tool result that the model had invented.
        in_format: replies by the foreign format of their calls.
        loops: steps that repeated an action.
        overrides: actions that were refused because of repetition.
        truncated: results that show only a part.
    """

    rescued: int = 0
    asked_again: int = 0
    healed: int = 0
    cut: int = 0
    in_format: dict[str, int] = Field(default_factory=dict)
    loops: int = 0
    overrides: int = 0
    truncated: int = 0

    def counts(self) -> dict[str, int]:
        """Return the counts other than 0 by their names in usage reports."""
        return {name: count for field, name in _REPORTED.items() if (count := getattr(self, field))}


_REPORTED: Final[Mapping[str, str]] = {
    **{name: f"replies_{name}" for name in ("rescued", "asked_again", "healed", "cut")},
    "loops": "loops",
    "overrides": "loop_overrides",
    "truncated": "truncated_reads",
}


class Spending(Record):
    """The usage of the thread, and its state at the start of the turn. Seconds are time in calls and tools.

    `cost_usd` is for calls with a known price, `unpriced_calls` counts the others. `booked` is the last entry of the
    spending book in these counters.
    """

    usage: budget.APIUsageStats = budget.INITIAL_API_USAGE
    at_turn_start: budget.APIUsageStats = budget.INITIAL_API_USAGE
    steps: int = 0
    seconds: float = 0.0
    mending: Mending = Mending()
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    gauge: Gauge = Gauge()
    booked: int = 0


class Reservation(Record):
    """The reservation of one call: estimated input, and maximum output, time and cost.

    `max_seconds` is None without a time limit, `cost_usd` if the model's price is unknown.
    """

    input_tokens: int
    max_output_tokens: int
    max_seconds: float | None
    cost_usd: float | None


def begin_turn(spending: Spending) -> Spending:
    """Reset the counters of the turn."""
    usage = budget.reset_turn_usage(spending.usage)
    of_the_turn = {"at_turn_start": usage, "steps": 0, "seconds": 0.0, "mending": Mending()}
    return spending.model_copy(update={"usage": usage, **of_the_turn})


def count_mending(spending: Spending, formats: Iterable[str] = (), **more: int) -> Spending:
    """Add to the counts of `Mending` by name, and count the foreign formats of a reply's calls."""
    so_far = spending.mending
    counted: JsonMap = {name: getattr(so_far, name) + count for name, count in more.items()}
    for name in formats:
        in_format = counted.get("in_format", so_far.in_format)
        counted["in_format"] = {**in_format, name: in_format.get(name, 0) + 1}

    return spending.model_copy(update={"mending": so_far.model_copy(update=counted)})


def priced(counted: Used, price: Price | None) -> Used:
    """Return reported usage with its cost at the price of the model (None: unknown).

    Implausible numbers are corrected. A call without tokens costs nothing.
    """
    total = countable(counted.input_tokens)
    output = countable(counted.output_tokens)
    cached = min(countable(counted.cached_tokens), total)
    written = min(countable(counted.cache_write_tokens), total - cached)

    if price is None:
        cost = None
    else:
        cost = cost_of(price, total, output, cached, written)

    return Used(
        calls=counted.calls,
        input_tokens=total,
        output_tokens=output,
        cached_tokens=cached,
        reasoning_tokens=min(countable(counted.reasoning_tokens), output),
        cache_write_tokens=written,
        cost_usd=cost if total + output else 0.0,
        seconds=counted.seconds,
    )


def charge(spending: Spending, used: Used) -> Spending:
    """Add the usage of one or more calls, as `priced` returns it."""
    unpriced = used.cost_usd is None and used.input_tokens + used.output_tokens > 0
    added = ("seconds", "cached_tokens", "reasoning_tokens", "cache_write_tokens")

    return spending.model_copy(
        update={
            "usage": budget.update_usage_after_call(spending.usage, used.input_tokens, used.output_tokens, used.calls),
            **{name: getattr(spending, name) + getattr(used, name) for name in added},
            "cost_usd": spending.cost_usd + (used.cost_usd or 0.0),
            "unpriced_calls": spending.unpriced_calls + (max(1, used.calls) if unpriced else 0),
        }
    )


def charge_lost(spending: Spending, used: Used, number: int) -> Spending:
    """Add usage that only the spending book has; `number` is its last entry."""
    if number > spending.booked:
        charged = charge(spending, used)
    else:
        charged = spending

    return charged.model_copy(update={"booked": max(number, spending.booked)})


def share(spending: Spending, limits: RunLimits, parts: int) -> JsonMap:
    """Return one of `parts` equal shares of what is left, except time, as limits by name."""
    tokens = _tokens_left(spending, limits)

    if limits.max_steps is None or limits.max_steps_soft:
        steps = None
    else:
        steps = limits.max_steps - spending.steps

    calls = min(
        limits.api.max_calls_per_session - spending.usage.total_calls,
        limits.api.max_calls_per_turn - spending.usage.calls_in_current_turn,
    )

    return {
        **dict.fromkeys(("max_calls_per_session", "max_calls_per_turn"), calls // parts),
        "max_input_tokens_per_session": tokens[0] // parts,
        "max_output_tokens_per_session": tokens[1] // parts,
        **dict.fromkeys(("max_input_tokens_per_turn", "max_output_tokens_per_turn"), None),
        "max_steps": None if steps is None else steps // parts,
        "max_cost_usd": None if limits.max_cost_usd is None else (limits.max_cost_usd - spending.cost_usd) / parts,
    }


def charge_child(spending: Spending, child: Spending) -> Spending:
    """Add the usage and the counts of a child run, except its time, as children run side by side."""
    usage = child.usage
    same = ("cached_tokens", "reasoning_tokens", "cache_write_tokens", "cost_usd")
    used = Used(
        calls=usage.total_calls,
        input_tokens=usage.total_input_tokens,
        output_tokens=usage.total_output_tokens,
        **{name: getattr(child, name) for name in same},
    )
    more = {"steps": spending.steps + child.steps, "unpriced_calls": spending.unpriced_calls + child.unpriced_calls}
    charged = charge(spending, used).model_copy(update={**more, "booked": max(spending.booked, child.booked)})
    mended = {name: getattr(child.mending, name) for name in _REPORTED}

    return count_mending(charged, Counter(child.mending.in_format).elements(), **mended)


def measured(spending: Spending, size: int, messages: int, tokens: int) -> Spending:
    """Store the endpoint's count for a request of `size` bytes; zero tokens are ignored."""
    if tokens <= 0 or size <= 0:
        return spending
    return spending.model_copy(update={"gauge": Gauge(size=size, messages=messages, tokens=countable(tokens))})


def exhausted_limit(spending: Spending, limits: RunLimits) -> StopCause | None:
    """Return the stop cause of the first exhausted limit, or None. Soft `max_steps` never stops a run."""
    exceeded = budget.check_api_limits(spending.usage, limits.api).exceeded
    if exceeded is not None:
        name = exceeded.limit_name  # token limits of session and turn share their reasons
        reason = StopReason(name.removesuffix("_per_session") if "tokens" in name else name)
        return StopCause(reason=reason, message=exceeded.message, limit=name, required=exceeded.current_value)

    spent = spent_by_limit(spending)
    checks = (
        (StopReason.MAX_INPUT_TOKENS, "max_input_tokens_per_turn", limits.max_input_tokens_per_turn),
        (StopReason.MAX_OUTPUT_TOKENS, "max_output_tokens_per_turn", limits.max_output_tokens_per_turn),
        (StopReason.MAX_STEPS, "max_steps", None if limits.max_steps_soft else limits.max_steps),
        (StopReason.WALL_CLOCK, "max_seconds", limits.max_seconds),
        (StopReason.MAX_COST, "max_cost_usd", limits.max_cost_usd),
    )

    for reason, name, maximum in checks:
        if maximum is not None and spent[name] >= maximum:
            return passed_limit(reason, name, spent[name], maximum)

    if limits.max_cost_usd is not None and spending.unpriced_calls:
        message = (
            f"Limit 'max_cost_usd' cannot be enforced: {spending.unpriced_calls} calls of this thread went to a model"
            " whose price was not known. Start a new thread, or leave max_cost_usd empty."
        )

        return StopCause(reason=StopReason.MAX_COST, message=message)

    return None


def passed_limit(reason: StopReason, name: str, spent: float, maximum: float) -> StopCause:
    """Return the stop cause of a limit of which all is spent."""
    message = f"Limit '{name}' exceeded: {round(spent, 6)}/{maximum}"
    return StopCause(reason=reason, message=message, limit=name, required=spent)


def spent_by_limit(spending: Spending) -> dict[str, float]:
    """Return what is spent of each limit of the run, by the name of its setting."""
    usage = spending.usage
    turn_input, turn_output = _turn_tokens(spending)

    return {
        "max_calls_per_session": usage.total_calls,
        "max_calls_per_turn": usage.calls_in_current_turn,
        "max_input_tokens_per_session": usage.total_input_tokens,
        "max_output_tokens_per_session": usage.total_output_tokens,
        "max_input_tokens_per_turn": turn_input,
        "max_output_tokens_per_turn": turn_output,
        "max_steps": spending.steps,
        "max_seconds": spending.seconds,
        "max_cost_usd": spending.cost_usd,
    }


def reserve(
    spending: Spending,
    limits: RunLimits,
    estimated_input: int,
    price: Price | None,
    *,
    most_output: int | None = None,
) -> Reservation | StopCause:
    """Return the reservation for one call, or the stop cause of the limit that it exceeds.

    The output is limited to what is left and to `most_output`; `price` is None if it is unknown.
    """
    cause = exhausted_limit(spending, limits) or unknown_price(limits, price)
    if cause is not None:
        return cause

    input_left, output_left = _tokens_left(spending, limits)
    if estimated_input > input_left:
        message = f"The next call needs about {estimated_input} input tokens, and {input_left} are left."
        nearest = _nearest_limit(spending, limits, "input", estimated_input)
        return StopCause(reason=StopReason.MAX_INPUT_TOKENS, message=message, **nearest)

    if output_left < MIN_OUTPUT_TOKENS:
        message = f"Only {output_left} output tokens are left."
        nearest = _nearest_limit(spending, limits, "output", MIN_OUTPUT_TOKENS)
        return StopCause(reason=StopReason.MAX_OUTPUT_TOKENS, message=message, **nearest)

    limits_given = (limit for limit in (limits.max_output_tokens_per_call, most_output) if limit is not None)
    most = min((output_left, *limits_given))
    affordable = _affordable_output(spending, limits, estimated_input, price, most)

    if affordable < min(MIN_OUTPUT_TOKENS, most):
        message = f"The next call may cost more than is left of max_cost_usd={limits.max_cost_usd}."
        required = spending.cost_usd + (most_cost(price, estimated_input, MIN_OUTPUT_TOKENS) if price else 0.0)
        return StopCause(reason=StopReason.MAX_COST, message=message, limit="max_cost_usd", required=required)

    return Reservation(
        input_tokens=estimated_input,
        max_output_tokens=affordable,
        max_seconds=None if limits.max_seconds is None else limits.max_seconds - spending.seconds,
        cost_usd=None if price is None else most_cost(price, estimated_input, affordable),
    )


def usage_report(spending: Spending) -> JsonMap:
    """Return the counters as JSON values; `cost_usd` is for the session, and null if a price was unknown."""
    turn_input, turn_output = _turn_tokens(spending)
    unpriced = spending.unpriced_calls

    return {
        **spending.usage._asdict(),
        "input_tokens_in_current_turn": turn_input,
        "output_tokens_in_current_turn": turn_output,
        "steps_in_current_turn": spending.steps,
        "seconds_in_current_turn": round(spending.seconds, 3),
        **spending.mending.counts(),
        **({"replies_in_format": spending.mending.in_format} if spending.mending.in_format else {}),
        "cached_tokens": spending.cached_tokens,
        "reasoning_tokens": spending.reasoning_tokens,
        "cache_write_tokens": spending.cache_write_tokens,
        **({"unpriced_calls": unpriced} if unpriced else {}),
        "cost_usd": None if unpriced else round(spending.cost_usd, 9),
    }


def _turn_tokens(spending: Spending) -> tuple[int, int]:
    now = spending.usage
    start = spending.at_turn_start
    return now.total_input_tokens - start.total_input_tokens, now.total_output_tokens - start.total_output_tokens


def _tokens_left(spending: Spending, limits: RunLimits) -> tuple[int, int]:
    api = limits.api
    usage = spending.usage
    turn_input, turn_output = _turn_tokens(spending)
    input_left = api.max_input_tokens_per_session - usage.total_input_tokens
    output_left = api.max_output_tokens_per_session - usage.total_output_tokens

    if limits.max_input_tokens_per_turn is not None:
        input_left = min(input_left, limits.max_input_tokens_per_turn - turn_input)

    if limits.max_output_tokens_per_turn is not None:
        output_left = min(output_left, limits.max_output_tokens_per_turn - turn_output)

    return input_left, output_left


def _nearest_limit(spending: Spending, limits: RunLimits, kind: Literal["input", "output"], needed: int) -> JsonMap:
    """Return the fields of a stop cause for the limit on these tokens that leaves the fewest."""
    spent = spent_by_limit(spending)
    name = f"max_{kind}_tokens_per_session"
    of_turn = f"max_{kind}_tokens_per_turn"
    left = getattr(limits.api, name) - spent[name]
    most_of_turn = getattr(limits, of_turn)

    if most_of_turn is not None and most_of_turn - spent[of_turn] < left:
        name = of_turn

    return {"limit": name, "required": spent[name] + needed}


def _affordable_output(
    spending: Spending, limits: RunLimits, estimated_input: int, price: Price | None, most: int
) -> int:
    """Return the output tokens that the cost limit allows, at most `most`."""
    if price is None or limits.max_cost_usd is None:
        return most

    cost_left = limits.max_cost_usd - spending.cost_usd - most_cost(price, estimated_input, 0)
    if cost_left < 0 or cost_left >= most_cost(price, 0, most):
        return 0 if cost_left < 0 else most

    return int(cost_left / price.output * 1_000_000)
