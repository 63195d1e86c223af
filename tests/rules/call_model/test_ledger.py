from importlib import resources
from math import ceil
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import (
    Entry,
    Mending,
    Reservation,
    RunLimits,
    Spending,
    Used,
    account_problem,
    begin_turn,
    charge_child,
    count_mending,
    exhausted_limit,
    measured,
    priced,
    reserve,
    share,
    spent_by_limit,
    unknown_price,
    usage_report,
)
from mendgraph.nodes.call_model.prices import FREE, Price, cost_of, find_price, most_cost, parse_prices
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS, Gauge, estimate_input
from mendgraph.nodes.records import StopCause, StopReason, ToolError, ToolErrorCode
from tests.row_tables import rows
from tests.rules.call_model.spendings import spent

UNPRICED = (
    "Limit 'max_cost_usd' cannot be enforced: 2 calls of this thread went to a model whose price was not known."
    " Start a new thread, or leave max_cost_usd empty."
)


def stopped(reason: StopReason, message: str, **raised: Any) -> StopCause:
    return StopCause(reason=reason, message=message, **raised)


@rows(
    (spent(100), {}, "max_calls_per_session", "max_calls_per_session", "100/100"),
    (spent(10), {}, "max_calls_per_turn", "max_calls_per_turn", "10/10"),
    (spent(1, 100_000), {}, "max_input_tokens", "max_input_tokens_per_session", "100000/100000"),
    (spent(1, 0, 50_000), {}, "max_output_tokens", "max_output_tokens_per_session", "50000/50000"),
    (spent(1, 500), {"max_input_tokens_per_turn": 400}, "max_input_tokens", "max_input_tokens_per_turn", "500/400"),
    (
        spent(1, 0, 400),
        {"max_output_tokens_per_turn": 400},
        "max_output_tokens",
        "max_output_tokens_per_turn",
        "400/400",
    ),
    (spent(steps=3), {"max_steps": 3}, "max_steps", "max_steps", "3/3"),
    (spent(seconds=0.04), {"max_seconds": 0.03}, "wall_clock", "max_seconds", "0.04/0.03"),
    (spent(1, cost_usd=0.03), {"max_cost_usd": 0.03}, "max_cost", "max_cost_usd", "0.03/0.03"),
    (spent(3, unpriced_calls=2), {"max_cost_usd": 0.03}, "max_cost", "", UNPRICED),
)
def test_exceeded_limit_has_its_stop_reason(
    spending: Spending, limits: dict[str, Any], reason: str, limit: str, share: str
) -> None:
    message = f"Limit '{limit}' exceeded: {share}" if limit else share
    cause = exhausted_limit(spending, RunLimits(**limits))
    required = spent_by_limit(spending).get(limit, 0.0)
    assert cause == stopped(StopReason(reason), message, limit=limit, required=required)


@rows((500, 0, 500), (50_000, 0, 2_048), (50_000, 300, 2_048), (50_000, 9_000, 9_000), (5_000, 9_000, 5_000))
def test_lost_call_is_charged_full_input_and_bounded_output(output: int, usual: int, counted: int) -> None:
    call = Entry(thread="t", model="m", purpose="reply", input_tokens=1_000, output_tokens=output, cost_usd=None)
    assert call.if_cut_off(usual) == call.model_copy(update={"output_tokens": counted})


@given(st.floats(0, 100), st.floats(1, 10), st.integers(0, 100_000), st.integers(0, 200_000), st.integers(0, 90_000))
def test_cost_of_a_lost_call_is_between_its_tokens_and_its_reservation(
    usd: float, times: float, inputs: int, outputs: int, usual: int
) -> None:
    price = Price(input=usd, output=usd * times)
    reserved = cost_of(price, inputs, outputs)
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=inputs, output_tokens=outputs, cost_usd=reserved)
    call = entry.if_cut_off(usual)
    assert call.cost_usd is not None
    assert cost_of(price, inputs, call.output_tokens) - 1e-9 <= call.cost_usd <= reserved + 1e-9


def reservation(
    estimated: int, most: int = 2_048, seconds: float | None = None, cost: float | None = None
) -> Reservation:
    return Reservation(input_tokens=estimated, max_output_tokens=most, max_seconds=seconds, cost_usd=cost)


def too_long(needed: int, remaining: int, limit: str, required: int) -> StopCause:
    message = f"The next call needs about {needed} input tokens, and {remaining} are left."
    return stopped(StopReason.MAX_INPUT_TOKENS, message, limit=limit, required=required)


TURN = {"max_input_tokens_per_turn": 1_000, "max_output_tokens_per_turn": 500}


@rows(
    (spent(), {}, 1_000, reservation(1_000)),
    (spent(0, 0, 49_000), {}, 1_000, reservation(1_000, 1_000)),
    (spent(seconds=9.96), {"max_seconds": 10.0}, 1, reservation(1, seconds=10 - 9.96)),
    (spent(0, 99_500), {}, 501, too_long(501, 500, "max_input_tokens_per_session", 100_001)),
    (spent(0, 0, 49_984), {}, 1, reservation(1, 16)),
    (spent(0, 400, 300), TURN, 600, reservation(600, 200)),
    (spent(0, 400), TURN, 601, too_long(601, 600, "max_input_tokens_per_turn", 1_001)),
    (
        spent(0, 0, 49_985),
        {},
        1,
        stopped(
            StopReason.MAX_OUTPUT_TOKENS,
            "Only 15 output tokens are left.",
            limit="max_output_tokens_per_session",
            required=50_001,
        ),
    ),
)
def test_reservation_is_capped_by_remaining_tokens_and_seconds(
    spending: Spending, limits: dict[str, Any], estimated: int, expected: Reservation | StopCause
) -> None:
    assert reserve(spending, RunLimits(**limits), estimated, None) == expected


def too_expensive(cap: float, required: float) -> StopCause:
    message = f"The next call may cost more than is left of max_cost_usd={cap}."
    return stopped(StopReason.MAX_COST, message, limit="max_cost_usd", required=required)


@rows(
    (0.0, 0.01, Price(input=1.0, output=10.0), 1_000, reservation(1_000, 900, cost=0.01)),
    (4.0, 20.0, Price(input=0.0, output=1_000_000.0), 9, reservation(9, 16, cost=16.0)),
    (2.0, 20.0, Price(input=1_000_000.0, output=1_000_000.0), 3, too_expensive(20.0, 21.0)),
    (0.0, 0.01, Price(input=10.0, output=0.0), 1_001, too_expensive(0.01, 0.01001)),
    (0.0, 0.01, Price(input=10.0, output=0.0), 1_000, reservation(1_000, cost=0.01)),
    (0.0, 0.02, Price(input=10.0, output=0.0, cached_input=20.0), 1_000, reservation(1_000, cost=0.02)),
    (0.0, 0.02, Price(input=10.0, output=0.0, cache_write=20.0), 1_000, reservation(1_000, cost=0.02)),
    (0.0, 0.01, Price(input=0.0, output=5e-324), 1, reservation(1, cost=0.0)),
    (5.0, None, Price(input=1.0, output=0.0), 1_000_000, reservation(1_000_000, cost=1.0)),
)
def test_reservation_is_capped_by_remaining_money(
    cost: float, cap: float | None, price: Price, estimated: int, expected: Reservation | StopCause
) -> None:
    limits = RunLimits(max_cost_usd=cap, api=APILimits(max_input_tokens_per_session=1_000_000))
    assert reserve(spent(cost_usd=cost), limits, estimated, price) == expected


@rows((90, (300, 2, 90)), (10**30, (300, 2, MOST_TOKENS)), (0, (9, 1, 3)))
def test_gauge_is_the_last_reported_count(counted: int, gauge: tuple[int, int, int]) -> None:
    size, messages, tokens = gauge
    spending = measured(spent(gauge=Gauge(size=9, messages=1, tokens=3)), 300, 2, counted)
    assert spending == spent(gauge=Gauge(size=size, messages=messages, tokens=tokens))


SIZES = st.integers(0, 1_000_000)
MESSAGES = st.integers(0, 500)


@given(SIZES, SIZES, MESSAGES, st.integers(0, 40), st.floats(0.125, 1), st.floats(0, 1))
def test_estimate_after_a_true_count_errs_only_for_new_text(
    size: int, new: int, messages: int, more: int, rate: float, new_rate: float
) -> None:
    """A byte tokenizer makes at most one token per byte: at most two thirds of the new ones are missed."""
    before, after = ceil(size * rate), ceil(new * new_rate) + 4 * more
    gauge = Gauge(size=size, messages=messages, tokens=before)
    estimate = estimate_input(size + new, messages + more, gauge)
    already = size if size and before else 0  # where nothing was counted yet all of it is new
    assert before + after - estimate <= (size + new - already) * 2 / 3 + 1


def test_usage_report_contains_only_json_values() -> None:
    start = APIUsageStats(2, 100, 50, 0)
    usage = APIUsageStats(5, 1_100, 450, 3)
    counts = {"cached_tokens": 900, "reasoning_tokens": 80, "cache_write_tokens": 70}
    spending = Spending.model_validate(
        {"usage": usage, "at_turn_start": start, "steps": 2, "seconds": 1.23456, "cost_usd": 0.1 + 0.2, **counts}
    )
    report = {
        "total_calls": 5,
        "total_input_tokens": 1_100,
        "total_output_tokens": 450,
        "calls_in_current_turn": 3,
        "input_tokens_in_current_turn": 1_000,
        "output_tokens_in_current_turn": 400,
        "steps_in_current_turn": 2,
        "seconds_in_current_turn": 1.235,
        "cost_usd": 0.3,
        **counts,
    }
    assert usage_report(spending) == report
    unpriced = spending.model_copy(update={"unpriced_calls": 1})
    assert usage_report(unpriced) == {**report, "unpriced_calls": 1, "cost_usd": None}


@rows(
    ("max_cost_usd", StopReason.MAX_COST),
    ("max_cost_usd_per_day", StopReason.DAY_LIMIT),
    ("max_cost_usd_per_account", StopReason.ACCOUNT_LIMIT),
)
def test_cost_limit_requires_a_price(limit: str, reason: StopReason) -> None:
    limits = RunLimits.model_validate({limit: 5.0})
    message = (
        f"Limit '{limit}' cannot be enforced: no price is known for {{}}. Add it to prices.toml in the configuration"
        f" folder, or to the file that MENDGRAPH_PRICES names; or leave {limit} empty."
    )
    assert unknown_price(limits, None) == stopped(reason, message.format("the model"))
    assert unknown_price(limits, None, "big-1") == stopped(reason, message.format("the model 'big-1'"))
    assert unknown_price(limits, FREE, "big-1") is None


@rows(
    (Used(input_tokens=100, output_tokens=50, cost_usd=0.5), False),
    (Used(input_tokens=150, output_tokens=0, cost_usd=0.5), False),
    (Used(input_tokens=101, output_tokens=50), True),
    (Used(cost_usd=None), False),
)
def test_entry_is_exceeded_by_a_more_expensive_call(usage: Used, passed: bool) -> None:
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=100, output_tokens=50, cost_usd=0.5)
    assert entry.is_passed_by(usage) is passed
    without_price = entry.model_copy(update={"cost_usd": None})
    assert not without_price.is_passed_by(Used())
    assert without_price.is_passed_by(Used(cost_usd=0.1))


def test_new_turn_resets_healing_counts_and_seconds() -> None:
    before = count_mending(count_mending(spent(2, seconds=3.0), rescued=1, cut=2), cut=1, asked_again=1)
    assert before.mending == Mending(rescued=1, asked_again=1, cut=3)
    anew = begin_turn(before)
    assert (anew.mending, anew.seconds, anew.steps) == (Mending(rescued=0, asked_again=0, cut=0), 0.0, 0)


counts = st.integers(0, 1_000)
spendings = st.builds(
    Spending,
    usage=st.builds(APIUsageStats, counts, counts, counts, counts),
    mending=st.builds(Mending, **dict.fromkeys(Mending.model_fields, counts) | {"in_format": st.just({"json": 2})}),
    cost_usd=counts.map(float),
    **dict.fromkeys(
        ("steps", "seconds", "cached_tokens", "reasoning_tokens", "cache_write_tokens", "unpriced_calls", "booked"),
        counts,
    ),
)


@given(spendings, spendings)
def test_child_adds_all_it_has_spent_except_its_time(parent: Spending, child: Spending) -> None:
    total = charge_child(parent, child)
    assert total.usage == APIUsageStats(*(a + b for a, b in zip(parent.usage, child_usage(child), strict=True)))
    assert (total.seconds, total.booked) == (parent.seconds, max(parent.booked, child.booked))
    for name in ("steps", "cached_tokens", "reasoning_tokens", "cache_write_tokens", "cost_usd", "unpriced_calls"):
        assert getattr(total, name) == getattr(parent, name) + getattr(child, name), name

    for name in set(Mending.model_fields) - {"in_format"}:
        assert getattr(total.mending, name) == getattr(parent.mending, name) + getattr(child.mending, name), name
    assert total.mending.in_format == {"json": 4}


def child_usage(child: Spending) -> tuple[int, ...]:
    """The child's calls count as calls of its parent's turn."""
    return (*child.usage[:3], child.usage.total_calls)


def test_share_is_an_equal_part_of_what_is_left() -> None:
    left = spent(4, 10_000, 20_000, steps=3, cost_usd=0.5)
    assert share(left, RunLimits(max_steps=9, max_cost_usd=1.5), 2) == {
        "max_calls_per_session": 3,
        "max_calls_per_turn": 3,
        "max_input_tokens_per_session": 45_000,
        "max_output_tokens_per_session": 15_000,
        "max_input_tokens_per_turn": None,
        "max_output_tokens_per_turn": None,
        "max_steps": 3,
        "max_cost_usd": 0.5,
    }
    unlimited = share(left, RunLimits(max_steps=9, max_steps_soft=True), 2)
    assert (unlimited["max_steps"], unlimited["max_cost_usd"]) == (None, None)


@rows(
    (30, 50, (30, 50)),
    (100, 0, (100, 0)),
    (101, 0, (100, 0)),
    (0, 101, (0, 100)),
    (60, 60, (60, 40)),
    (10**15, 10**15, (100, 0)),
    (-5, -5, (0, 0)),
)
def test_cached_and_reasoning_tokens_are_capped_by_input_and_output(
    cached: int, written: int, counted: tuple[int, int]
) -> None:
    price = Price(input=1_000_000.0, output=0.0, cached_input=100.0, cache_write=10_000_000.0)
    reported = Used(
        input_tokens=100, cached_tokens=cached, cache_write_tokens=written, output_tokens=7, reasoning_tokens=cached
    )
    usage = priced(reported, price)
    assert (usage.cached_tokens, usage.cache_write_tokens) == counted
    assert usage.reasoning_tokens == max(0, min(cached, 7))
    assert usage.cost_usd is not None
    assert abs(usage.cost_usd - (100 - sum(counted)) - counted[0] * 0.0001 - counted[1] * 10.0) < 1e-6


def test_run_limits_are_bounded_by_default() -> None:
    limits = RunLimits()
    assert (limits.api, limits.max_output_tokens_per_call) == (APILimits(100, 10, 100_000, 50_000), 2_048)
    assert not any(value for name, value in limits if name not in {"api", "max_output_tokens_per_call"})


@rows(("", True), ("x" * 200, True), ("x" * 201, False), ("a\nb", False))
def test_account_name_is_short_and_on_one_line(account: str, good: bool) -> None:
    assert (account_problem(account) is None) == good


LIST = """
dated = 2026-02-28
source = "the providers' own pages"

[openai]
"gpt-4o" = { input = 2.5, cached_input = 1.25, output = 10 }
"gpt-4o-2024-05-13" = { input = 5, output = 15.0 }

[anthropic]
"claude-x-1" = { input = 3, cached_input = 0.3, cache_write = 3.75, output = 15 }

[google]
"gemini-x" = { input = 1, output = 2 }

[google_vertexai]
"gemini-y" = { input = 8, output = 9 }

[groq]
"openai/gpt-oss-20b" = { input = 0.0, output = 0.3 }
"""
GPT_4O = Price(input=2.5, output=10.0, cached_input=1.25)
OLD_4O = Price(input=5.0, output=15.0)
OSS = Price(input=0.0, output=0.3)
CLAUDE = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
GEMINI, ON_VERTEX = Price(input=1.0, output=2.0), Price(input=8.0, output=9.0)


def parsed(text: str) -> dict[str, Price]:
    prices = parse_prices(text, "prices.toml")
    assert isinstance(prices, dict)
    return prices


@rows(
    ("gpt-4o", GPT_4O),
    ("openai/gpt-4o", GPT_4O),
    ("gpt-4o-2024-08-06", GPT_4O),
    ("gpt-4o-2024-05-13", OLD_4O),
    ("groq/openai/gpt-oss-20b", OSS),
    ("gpt-oss-20b", None),
    ("gpt-4o-2024-13-06", None),
    ("anthropic:claude-x-1", CLAUDE),
    ("groq:openai/gpt-oss-20b", OSS),
    ("azure_openai:gpt-4o-2024-05-13", OLD_4O),
    ("google_genai:gemini-x", GEMINI),
    ("google_vertexai:gemini-y", ON_VERTEX),
)
def test_price_is_looked_up_and_never_guessed(name: str, price: Price | None) -> None:
    assert find_price(parsed(LIST), name) == price


@rows(
    ('[a]\n"x" = { input = 1', "it is not TOML: Unclosed inline table at the end of the file (line 2)"),
    ("colour = 5", "colour is wrong (Input should be a valid dictionary)"),
    ("[a]\nx = 5", "a.x is wrong (Input should be a valid dictionary or instance of Price)"),
    ("[a]\nx = { input = 1 }", "a.x.output is wrong (Field required)"),
    ("[a]\nx = { input = 1, output = 1, cached = 1 }", "a.x.cached is wrong (Extra inputs are not permitted)"),
    ("[a]\nx = { input = 1, output = inf }", "a.x.output is wrong (Input should be a finite number)"),
    ("x = " + "[" * 100_000, "it is not TOML: arrays or tables are nested too deep"),
    (
        '[a]\nx = { input = 1, output = 1 }\n[b]\n"a/x" = { input = 2, output = 1 }',
        "'a/x' in [b] has a second price in another table",
    ),
)
def test_invalid_price_list_is_an_error_that_says_why(text: str, problem: str) -> None:
    message = f"The price list prices.toml cannot be used: {problem}. Fix it, or move it away."
    assert parse_prices(text, "prices.toml") == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_shipped_price_list_is_complete() -> None:
    text = resources.files("mendgraph.nodes.call_model").joinpath("prices.toml").read_text(encoding="utf-8")
    shipped = parsed(text)
    assert len(shipped) == 2 * 80
    assert find_price(shipped, "gpt-4o-2024-08-06") == GPT_4O
    assert find_price(shipped, "gpt-4o-2024-05-13") == OLD_4O
    sonnet = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
    assert find_price(shipped, "claude-sonnet-4-5-20250929") == sonnet
    assert find_price(shipped, "anthropic:claude-sonnet-4-5") == sonnet
    assert [name for name in shipped if "claude" in name and shipped[name].cache_write is None] == []
    assert [name for name, price in shipped.items() if (price.cached_input or 0.0) > price.input] == []


@rows(
    ((1_000_000, 0, 0), GPT_4O, 2.5),
    ((1_000_000, 100_000, 400_000), GPT_4O, 0.6 * 2.5 + 0.4 * 1.25 + 0.1 * 10),
    ((10**9, 10**9, 10**9), FREE, 0.0),
    ((1_000_000, 0, 400_000, 500_000), CLAUDE, 0.1 * 3 + 0.4 * 0.3 + 0.5 * 3.75),
)
def test_cached_tokens_have_their_own_price(tokens: tuple[int, ...], price: Price, usd: float) -> None:
    assert cost_of(price, *tokens) == pytest.approx(usd, rel=1e-9)


@rows((CLAUDE, 3.75 + 1.5), (GPT_4O, 2.5 + 1.0), (Price(input=1, output=0, cached_input=2), 2.0), (FREE, 0))
def test_input_estimate_uses_the_most_expensive_price(price: Price, usd: float) -> None:
    assert most_cost(price, 1_000_000, 100_000) == pytest.approx(usd)
