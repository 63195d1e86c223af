"""What one run may use, and how much of that is held back for its last call."""

import re
from typing import Final, Protocol, TypeVar

from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.prices import PRICES_VARIABLE, Price, most_cost
from mendgraph.nodes.records import Record, StopCause, StopReason

WRAP_UP_INPUT_TOKENS: Final = 2_000
WRAP_UP_OUTPUT_TOKENS: Final = 400
"""What is held back for the account of a run that a limit ends."""

LONGEST_ACCOUNT_NAME: Final = 200
"""Characters of an account's name."""

FEWEST_CALLS_TO_HOLD_BACK: Final = 3
HOLD_BACK_AT_MOST: Final = 0.1
"""Nothing is held back of a limit with fewer calls, or of which the tokens or USD would be more than this part."""

_EXCEEDED: Final = re.compile(r"Limit '(\w+)' exceeded: ([\d.e-]+)/[\d.e-]+")
_CALLS: Final = frozenset({"max_calls_per_session", "max_calls_per_turn"})

Amount = TypeVar("Amount", int, float)


def account_problem(account: str) -> str | None:
    """What is wrong with the name of an account, None where nothing is: "" is that of runs that name none."""
    if len(account) > LONGEST_ACCOUNT_NAME or not account.isprintable():
        return f"an account's name is empty, or has 1 to {LONGEST_ACCOUNT_NAME} printable characters"
    return None


class RunLimits(Record):
    """What one run may use. None means no limit of that kind; of one reply then, what the turn and session have left.

    Those of a day (UTC) and of an account are of all workspaces together. A day's limits are of all runs, or with
    `account_days` of the account's runs alone. An account's own limits are of all that it has ever used.
    """

    api: APILimits = APILimits()
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
    wrap_up: bool = False


def unknown_price(limits: RunLimits, price: Price | None, model: str = "") -> StopCause | None:
    """Why a limit on cost allows no call of a model without a price; None with a price, or without such a limit."""
    capped = (
        (StopReason.MAX_COST, "max_cost_usd", limits.max_cost_usd),
        (StopReason.DAY_LIMIT, "max_cost_usd_per_day", limits.max_cost_usd_per_day),
        (StopReason.ACCOUNT_LIMIT, "max_cost_usd_per_account", limits.max_cost_usd_per_account),
    )
    for reason, name, maximum in capped:
        if price is None and maximum is not None:
            asked = f"the model {model!r}" if model else "the model"
            message = (
                f"Limit '{name}' cannot be held: no price is known for {asked}. Add it to prices.toml in the"
                f" configuration folder, or to the file that {PRICES_VARIABLE} names; or leave {name} empty."
            )
            return StopCause(reason=reason, message=message)
    return None


def less_wrap_up(limits: RunLimits, price: Price | None) -> RunLimits:
    """The limits as ordinary calls see them: without what is held back, wherever they are large enough for it."""
    sessions, turns = limits.api.max_calls_per_session, limits.api.max_calls_per_turn
    cost = 0.0 if price is None else most_cost(price, WRAP_UP_INPUT_TOKENS, WRAP_UP_OUTPUT_TOKENS)
    turn_input, turn_output = limits.max_input_tokens_per_turn, limits.max_output_tokens_per_turn
    return limits.model_copy(
        update={
            "api": APILimits(
                max_calls_per_session=sessions - (sessions >= FEWEST_CALLS_TO_HOLD_BACK),
                max_calls_per_turn=turns - (turns >= FEWEST_CALLS_TO_HOLD_BACK),
                max_input_tokens_per_session=_less(limits.api.max_input_tokens_per_session, WRAP_UP_INPUT_TOKENS),
                max_output_tokens_per_session=_less(limits.api.max_output_tokens_per_session, WRAP_UP_OUTPUT_TOKENS),
            ),
            "max_input_tokens_per_turn": turn_input and _less(turn_input, WRAP_UP_INPUT_TOKENS),
            "max_output_tokens_per_turn": turn_output and _less(turn_output, WRAP_UP_OUTPUT_TOKENS),
            "max_cost_usd": limits.max_cost_usd and _less(limits.max_cost_usd, cost),
        }
    )


def kept_for_account(cause: StopCause, limits: RunLimits) -> StopCause:
    """The words for a limit that only `less_wrap_up` makes reached, with the number that the user set.

    `cause` is that of the lowered limits ("Limit 'max_calls_per_turn' exceeded: 9/9"), `limits` are those of the user.
    """
    reached = _EXCEEDED.fullmatch(cause.message)
    if reached is None:
        return cause
    name, current = reached.groups()
    set_by_user = getattr(limits.api, name, None) or getattr(limits, name, None)
    rest = "the last of them" if name in _CALLS else "the rest"
    message = f"Limit '{name}' reached: {current}/{set_by_user}, {rest} is kept for the account of the run."
    return cause.model_copy(update={"message": message})


def _less(limit: Amount, held_back: Amount) -> Amount:
    return limit - held_back if held_back <= limit * HOLD_BACK_AT_MOST else limit


class Entry(Record):
    """A call before it is sent: whose it is, what for (`reply`, `summary`, `wrap_up`), and the most that it may use.

    `cost_usd` is None where the model's price is not known. No text of anybody is in it.
    """

    thread: str
    model: str
    purpose: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None

    def is_passed_by(self, used: "Used") -> bool:
        """Was more used than this entry counts until it is settled? Only an endpoint that counts otherwise does it."""
        tokens = used.input_tokens + used.output_tokens > self.input_tokens + self.output_tokens
        return tokens or (used.cost_usd or 0.0) > (self.cost_usd or 0.0)


class Used(Record):
    """What one or more calls have really used; `cost_usd` is None where a price is not known.

    Of the input, `cached_tokens` were read from the provider's cache and `cache_write_tokens` written into it; of the
    output, `reasoning_tokens` were thought and not said.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0


class SpendingBook(Protocol):
    """Remembers calls beyond the process that makes them. Entries are numbered upwards, and no number comes twice."""

    def lost(self, thread: str, after: int) -> tuple[Used, int]:
        """All entries of the thread with a larger number than `after`, added up, and the largest number of them.

        Where there are none, nothing and `after`.
        """
        ...

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Enter a call before it is sent, if it fits into the limits of day and account; or why it may not be sent.

        It counts for the account that the limits name. 0 is the number of a call that cannot be entered and has no such
        limit: nothing is ever settled for it.
        """
        ...

    def settle(self, number: int, used: Used) -> None:
        """Replace a reservation by what was used (nothing, for a call that was never sent). Never waits for a disk.

        Until that is written, and where it cannot be, the entry counts as its reservation.
        """
        ...
