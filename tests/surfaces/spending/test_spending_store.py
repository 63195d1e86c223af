from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits, Used, unknown_price
from mendgraph.nodes.records import StopCause, StopReason
from tests.extent import slow
from tests.surfaces.spending.spending_entries import Clock, as_reserved, entry, reserve, rows, settle, usage

# --- Lost calls of a thread


def test_settled_entry_counts_its_usage_and_an_open_one_its_reservation(
    store: SpendingStore, other_process_store: SpendingStore
) -> None:
    first = reserve(store, entry())
    settle(store, first, usage())
    assert other_process_store.lost("t1", 0) == (usage(), first)
    second = reserve(store, entry(tokens=200))
    assert other_process_store.lost("t1", first) == (as_reserved(entry(tokens=200)), second)
    assert other_process_store.lost("t1", 0) == (
        usage().model_copy(update={"calls": 2, "input_tokens": 210, "output_tokens": 45, "cost_usd": 0.375}),
        second,
    )
    assert other_process_store.lost("t1", second) == (Used(), second)
    assert other_process_store.lost("t2", 0) == (Used(), 0)


@pytest.mark.parametrize(("run", "other_run"), [("a_b", "axb"), ("a%b", "a-and-b"), ("a~_b", "a_b")])
def test_children_of_a_run_with_wildcards_in_its_name_are_distinguished(
    store: SpendingStore, run: str, other_run: str
) -> None:
    foreign = (f"{run}|execute_tools:1 v", f"{run}|executeXtools:1 w", f"{run}|guard:1 w")
    for thread in (f"{other_run} w", f"{other_run}|execute_tools:1 w", *foreign):
        reserve(store, entry(thread))
    assert store.lost(f"{run} w", 0) == (Used(), 0)
    number = reserve(store, entry(f"{run} w"))
    of_child = reserve(store, entry(f"{run}|execute_tools:1 w", tokens=100_000, cost=None))
    cut_off = Used(calls=1, input_tokens=80_000, output_tokens=2_048, cost_usd=None)
    assert store.lost(f"{run} w", number) == (cut_off, of_child)
    total = cut_off.model_copy(update={"calls": 2, "input_tokens": 80_080, "output_tokens": 2_068})
    assert store.lost(f"{run} w", 0) == (total, of_child)  # usage without a price has no cost


@pytest.mark.parametrize("written_by", ["reserve", "close"])
def test_usage_is_written_with_the_next_entry_or_at_close(
    store: SpendingStore, other_process_store: SpendingStore, clock: Clock, tmp_path: Path, written_by: str
) -> None:
    """A process that is killed before that leaves the reservation, which is larger."""
    number = reserve(store, entry())
    store.settle(number, usage())
    assert other_process_store.lost("t1", 0) == (as_reserved(entry()), number)
    clock.now += timedelta(minutes=1)
    if written_by == "close":
        store.close()
    else:
        reserve(store, entry("t2"))
    assert other_process_store.lost("t1", 0) == (usage(), number)
    assert rows(tmp_path, "SELECT settled_at FROM entries WHERE thread = 't1'") == [("2026-02-28T23:00:00.000+00:00",)]


@pytest.mark.parametrize("more", [{"output_tokens": 2_049}, {"input_tokens": 10 * entry(tokens=50_000).input_tokens}])
def test_usage_above_the_counted_amount_is_written_at_once(
    store: SpendingStore, other_process_store: SpendingStore, more: dict[str, int]
) -> None:
    """Until then other processes would count too little, and could exceed a limit."""
    number = reserve(store, entry(tokens=50_000))
    what = usage().model_copy(update=more)
    store.settle(number, what)
    assert other_process_store.lost("t1", 0) == (what, number)


# --- Lost calls


def test_lost_call_counts_as_an_ordinary_reply_in_thread_day_and_account(
    store: SpendingStore, other_process_store: SpendingStore, tmp_path: Path
) -> None:
    limits = account_limits("a", max_tokens_per_account=100_000)
    number = reserve(store, entry(tokens=100_000, cost=1.0), limits)
    assert isinstance(
        other_process_store.reserve(entry("t2"), limits), StopCause
    )  # until its thread goes on it counts in full
    counted = Used(calls=1, input_tokens=80_000, output_tokens=2_048, cost_usd=0.82048)
    assert other_process_store.lost("t1", 0) == (counted, number)
    assert rows(tmp_path, "SELECT tokens, cost_usd, unsettled FROM accounts") == [(82_048, pytest.approx(0.82048), 0)]
    assert rows(tmp_path, "SELECT tokens, cost_usd FROM days") == [(82_048, pytest.approx(0.82048))]
    reserve(other_process_store, entry("t2"), limits)


def test_lost_call_counts_as_the_usual_reply_of_its_thread(
    store: SpendingStore, other_process_store: SpendingStore
) -> None:
    for thread, tokens in (("t1", 6_000), ("t1", 10_000), ("t2", 2)):
        settle(store, reserve(store, entry(thread)), usage().model_copy(update={"output_tokens": tokens}))
    last = reserve(store, entry(tokens=100_000))
    assert other_process_store.lost("t1", last - 1)[0].output_tokens == 8_000


def test_call_settled_but_not_written_before_a_kill_counts_like_a_lost_call(
    store: SpendingStore, other_process_store: SpendingStore, tmp_path: Path
) -> None:
    number = reserve(store, entry(tokens=100_000))
    store.settle(number, usage())  # written with the next entry, which does not come
    assert other_process_store.lost("t1", number) == (Used(), number)  # the run's counters hold it
    assert rows(tmp_path, "SELECT tokens, unsettled FROM accounts") == [(82_048, 0)]


def test_parallel_calls_count_in_full_until_they_are_settled(any_store: str, tmp_path: Path) -> None:
    assert any_store
    with closing(SpendingStore(str(tmp_path), Clock(), side_by_side=True)) as store:
        first = reserve(store, entry(tokens=100_000))
        assert store.lost("t1", 0) == (as_reserved(entry(tokens=100_000)), first)
        settle(store, first, usage())
        assert store.lost("t1", 0) == (usage(), first)


# --- Stored columns


def test_entry_holds_no_text_of_a_request_or_reply(store: SpendingStore, tmp_path: Path) -> None:
    number = reserve(store, entry())
    settle(store, number, usage())
    (row,) = rows(tmp_path, "SELECT * FROM entries")
    day = "2026-02-28T23:00:00.000+00:00"
    assert row == (number, "t1", "gpt-4o", "reply", 20_512, day, day, 1, 50, 5, 10, 0.125, 1.5, "", 3, 7)


def test_last_turn_of_a_thread_is_marked_and_entries_are_read_up_to_it(store: SpendingStore) -> None:
    """This separates what earlier turns lost from what this one has used."""
    store.begin("demo", first=True)
    turn_start = store.begin_number("demo")
    assert turn_start is not None
    assert store.begin_number("demo", turn=True) == turn_start
    number = reserve(store, entry("demo"))
    store.begin("demo", first=False)
    turn = store.begin_number("demo", turn=True)
    assert turn == number + 1
    assert store.begin_number("demo") == turn_start
    last = reserve(store, entry("demo", tokens=500))
    assert store.lost("demo", turn_start, turn) == (as_reserved(entry("demo")), turn)
    assert store.lost("demo", turn, turn) == (Used(), turn)
    assert store.lost("demo", number) == (as_reserved(entry("demo", tokens=500)), last)


# --- The limits of a day


def test_tokens_of_a_day_are_limited(store: SpendingStore, other_process_store: SpendingStore, clock: Clock) -> None:
    limits = RunLimits(max_tokens_per_day=1_000)
    first = reserve(store, entry(tokens=600), limits)
    refusal = StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_tokens_per_day' reached: 600 of 1,000 tokens are used or reserved, and the next call may use"
            " 401, in all workspaces together. The day ends at 2026-03-01 00:00 UTC; --max-tokens-per-day N raises"
            " the limit."
        ),
    )
    assert other_process_store.reserve(entry("t2", 401), limits) == refusal
    assert other_process_store.lost("t2", 0) == (Used(), 0)
    reserve(other_process_store, entry("t2", 400), limits)
    store.settle(first, usage(tokens=95))  # 100 with its reply
    reserve(store, entry(tokens=500), limits)
    assert isinstance(other_process_store.reserve(entry("t2", 1), limits), StopCause)
    reserve(other_process_store, entry("t2", 5_000))  # without a limit nothing is checked
    clock.now += timedelta(hours=1)
    reserve(store, entry(tokens=1_000), limits)


def test_cost_limit_needs_a_price(store: SpendingStore) -> None:
    limits = RunLimits(max_cost_usd_per_day=1.0, max_cost_usd=9.0)
    expected = unknown_price(RunLimits(max_cost_usd_per_day=1.0), None, "gpt-4o")
    assert store.reserve(entry(cost=None), limits) == expected
    reserve(store, entry(cost=None), RunLimits(max_tokens_per_day=1_000))


# --- The limits of an account


def account_limits(account: str = "a", **limits: Any) -> RunLimits:
    return RunLimits(account=account, account_days=True, **limits)


def test_tokens_of_an_account_are_limited_over_all_days(
    store: SpendingStore, other_process_store: SpendingStore, clock: Clock
) -> None:
    limits = account_limits("batch/nightly", max_tokens_per_account=1_000)
    first = reserve(store, entry(tokens=600), limits)
    clock.now += timedelta(days=90)
    refusal = StopCause(
        reason=StopReason.ACCOUNT_LIMIT,
        message=(
            "Limit 'max_tokens_per_account' reached: 600 of 1,000 tokens are used or reserved, and the next call may"
            " use 401, in all runs of the account 'batch/nightly' together. Raise the limit, or name another account."
        ),
    )
    assert other_process_store.reserve(entry("t2", 401), limits) == refusal
    reserve(other_process_store, entry("t2", 400), limits)
    settle(store, first, usage(tokens=95))  # 100 with its reply
    clock.now += timedelta(days=90)
    assert isinstance(other_process_store.reserve(entry(tokens=501), limits), StopCause)
    reserve(store, entry(tokens=500), limits)
    reserve(store, entry(tokens=5_000), account_limits("batch/nightly"))  # without a limit nothing is checked
    assert isinstance(other_process_store.reserve(entry(tokens=1), limits), StopCause)
    reserve(other_process_store, entry(tokens=1), account_limits("batch/nightly", max_tokens_per_account=6_001))


def test_ten_costs_of_a_tenth_fit_exactly_into_one(store: SpendingStore) -> None:
    """Although 0.1 + 0.1 + 0.1 is more than 0.3 in binary."""
    for limits, calls in (
        (account_limits(max_cost_usd_per_account=0.3), 3),
        (account_limits("b", max_cost_usd_per_day=1.0), 10),
    ):
        for _ in range(calls):
            reserve(store, entry(cost=0.1), limits)
        assert isinstance(store.reserve(entry(cost=1e-6), limits), StopCause)


def test_day_limit_applies_to_the_account_or_else_to_everybody(
    store: SpendingStore, other_process_store: SpendingStore, clock: Clock
) -> None:
    reserve(store, entry(tokens=500), account_limits("a", max_tokens_per_day=500))
    reserve(other_process_store, entry(tokens=300), account_limits("b", max_tokens_per_day=300))
    assert store.reserve(entry(tokens=1), account_limits("a", max_tokens_per_day=500)) == StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_tokens_per_day' reached: 500 of 500 tokens are used or reserved, and the next call may use 1,"
            " in all runs of the account 'a' together. The day ends at 2026-03-01 00:00 UTC; --max-tokens-per-day N"
            " raises the limit."
        ),
    )
    reserve(store, entry(tokens=200), RunLimits(max_tokens_per_day=1_000))
    assert isinstance(other_process_store.reserve(entry(tokens=1), RunLimits(max_tokens_per_day=1_000)), StopCause)
    reserve(other_process_store, entry(tokens=200), account_limits("b", max_tokens_per_day=500))
    clock.now += timedelta(hours=1)
    reserve(store, entry(tokens=500), account_limits("a", max_tokens_per_day=500))


def test_cost_limit_per_day_applies_to_all_accounts_together(store: SpendingStore, clock: Clock) -> None:
    limits = RunLimits(max_cost_usd_per_day=0.5)
    reserve(store, entry(cost=0.25), RunLimits(account="a"))
    reserve(store, entry(cost=0.25), limits)
    assert store.reserve(entry(cost=0.25), limits) == StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_cost_usd_per_day' reached: 0.500000 of 0.5 USD are used or reserved, and the next call may"
            " cost 0.250000, in all workspaces together. The day ends at 2026-03-01 00:00 UTC;"
            " --max-cost-usd-per-day USD raises the limit."
        ),
    )
    clock.now += timedelta(hours=1)
    reserve(store, entry(cost=0.5), limits)


# --- Concurrency


@slow
@pytest.mark.usefixtures("any_store")
@pytest.mark.parametrize(
    ("limit", "reason"), [("day", StopReason.DAY_LIMIT), ("account", StopReason.ACCOUNT_LIMIT)], ids=["day", "account"]
)
def test_concurrent_reservations_never_exceed_the_limit(tmp_path: Path, limit: str, reason: StopReason) -> None:
    """The limit of a day is shared: two accounts together have as much as one."""
    accounts = ("a", "b")
    most: dict[str, Any] = {f"max_tokens_per_{limit}": 1_000, f"max_cost_usd_per_{limit}": 5.0}
    several = [RunLimits(account=account, **most) for account in accounts]
    stores = [SpendingStore(str(tmp_path), Clock()) for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(
                lambda number: stores[number % 8].reserve(entry(f"t{number}"), several[number % len(several)]),
                range(48),
            )
        )
    for store in stores:
        store.close()
    numbers = [answer for answer in answers if isinstance(answer, int)]
    most_calls = 10 * (len(accounts) if limit == "account" else 1)
    assert (len(numbers), len(set(numbers))) == (most_calls, most_calls)
    assert {answer.reason for answer in answers if isinstance(answer, StopCause)} == {reason}
    assert rows(tmp_path, "SELECT sum(tokens), sum(cost_usd) FROM days") == [(100 * most_calls, 0.25 * most_calls)]
