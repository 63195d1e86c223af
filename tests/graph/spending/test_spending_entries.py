"""Limits of a day and of an account, which hold for all processes together."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.spending.store import SpendingStore, locked_accounts
from mendgraph.nodes.call_model.limits import RunLimits, Used, unknown_price
from mendgraph.nodes.records import StopCause, StopReason
from tests.graph.spending.spending_entries import Clock, entry, reserved, rows, settled, used

# --- The limits of a day


def test_a_day_has_as_many_tokens_as_its_limit_says(store: SpendingStore, other: SpendingStore, clock: Clock) -> None:
    limits = RunLimits(max_tokens_per_day=1_000)
    first = reserved(store, entry(tokens=600), limits)
    refusal = StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_tokens_per_day' reached: 600 of 1,000 tokens are used or reserved, and the next call may use"
            " 401, in all workspaces together. The day ends at 2026-03-01 00:00 UTC."
        ),
    )
    assert other.reserve(entry("t2", 401), limits) == refusal
    assert other.lost("t2", 0) == (Used(), 0)
    reserved(other, entry("t2", 400), limits)
    store.settle(first, used(tokens=95))  # 100 with its reply
    reserved(store, entry(tokens=500), limits)
    assert isinstance(other.reserve(entry("t2", 1), limits), StopCause)
    reserved(other, entry("t2", 5_000))  # who has no limit is asked for nothing
    clock.now += timedelta(hours=1)
    reserved(store, entry(tokens=1_000), limits)


def test_a_day_costs_as_much_as_its_limit_says(store: SpendingStore, other: SpendingStore) -> None:
    limits = RunLimits(max_cost_usd_per_day=1.0)
    reserved(store, entry(cost=0.75), limits)
    refusal = StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_cost_usd_per_day' reached: 0.750000 of 1 USD are used or reserved, and the next call may cost"
            " 0.500000, in all workspaces together. The day ends at 2026-03-01 00:00 UTC."
        ),
    )
    assert other.reserve(entry("t2", cost=0.5), limits) == refusal
    reserved(other, entry("t2", cost=0.25), limits)


def test_a_limit_on_cost_needs_a_price(store: SpendingStore) -> None:
    limits = RunLimits(max_cost_usd_per_day=1.0, max_cost_usd=9.0)
    expected = unknown_price(RunLimits(max_cost_usd_per_day=1.0), None, "gpt-4o")
    assert store.reserve(entry(cost=None), limits) == expected
    reserved(store, entry(cost=None), RunLimits(max_tokens_per_day=1_000))


# --- The limits of an account


def capped(account: str = "a", **limits: Any) -> RunLimits:
    return RunLimits(account=account, account_days=True, **limits)


def test_an_account_has_as_many_tokens_as_its_limit_says_whatever_the_day(
    store: SpendingStore, other: SpendingStore, clock: Clock
) -> None:
    limits = capped("batch/nightly", max_tokens_per_account=1_000)
    first = reserved(store, entry(tokens=600), limits)
    clock.now += timedelta(days=90)
    refusal = StopCause(
        reason=StopReason.ACCOUNT_LIMIT,
        message=(
            "Limit 'max_tokens_per_account' reached: 600 of 1,000 tokens are used or reserved, and the next call may"
            " use 401, in all runs of the account 'batch/nightly' together. Raise the limit, or name another account."
        ),
    )
    assert other.reserve(entry("t2", 401), limits) == refusal
    reserved(other, entry("t2", 400), limits)
    settled(store, first, used(tokens=95))  # 100 with its reply
    clock.now += timedelta(days=90)
    assert isinstance(other.reserve(entry(tokens=501), limits), StopCause)
    reserved(store, entry(tokens=500), limits)
    reserved(store, entry(tokens=5_000), capped("batch/nightly"))  # who has no limit is asked for nothing
    assert isinstance(other.reserve(entry(tokens=1), limits), StopCause)
    reserved(other, entry(tokens=1), capped("batch/nightly", max_tokens_per_account=6_001))


def test_a_tenth_is_ten_times_in_a_whole(store: SpendingStore) -> None:
    """Though 0.1 + 0.1 + 0.1 is more than 0.3 in binary."""
    for limits, calls in ((capped(max_cost_usd_per_account=0.3), 3), (capped("b", max_cost_usd_per_day=1.0), 10)):
        for _ in range(calls):
            reserved(store, entry(cost=0.1), limits)
        assert isinstance(store.reserve(entry(cost=1e-6), limits), StopCause)


def test_no_accounts_spending_counts_for_another(store: SpendingStore) -> None:
    limits: dict[str, Any] = {"max_tokens_per_account": 100, "max_tokens_per_day": 100}
    for account in ("a", "A", "a ", "b", ""):
        if account:
            reserved(store, entry(tokens=100), capped(account, **limits))
            assert isinstance(store.reserve(entry(tokens=1), capped(account, **limits)), StopCause)
    reserved(store, entry(tokens=100), capped("", max_tokens_per_account=100))
    refusal = store.reserve(entry(tokens=1), capped("", max_tokens_per_account=100))
    assert isinstance(refusal, StopCause)
    assert "in all runs that name no account together" in refusal.message


def test_with_an_account_a_day_is_that_of_the_account_and_without_one_it_is_everybodys(
    store: SpendingStore, other: SpendingStore, clock: Clock
) -> None:
    reserved(store, entry(tokens=500), capped("a", max_tokens_per_day=500))
    reserved(other, entry(tokens=300), capped("b", max_tokens_per_day=300))
    assert store.reserve(entry(tokens=1), capped("a", max_tokens_per_day=500)) == StopCause(
        reason=StopReason.DAY_LIMIT,
        message=(
            "Limit 'max_tokens_per_day' reached: 500 of 500 tokens are used or reserved, and the next call may use 1,"
            " in all runs of the account 'a' together. The day ends at 2026-03-01 00:00 UTC."
        ),
    )
    reserved(store, entry(tokens=200), RunLimits(max_tokens_per_day=1_000))
    assert isinstance(other.reserve(entry(tokens=1), RunLimits(max_tokens_per_day=1_000)), StopCause)
    reserved(other, entry(tokens=200), capped("b", max_tokens_per_day=500))
    clock.now += timedelta(hours=1)
    reserved(store, entry(tokens=500), capped("a", max_tokens_per_day=500))


def test_a_limit_of_the_day_is_of_all_accounts_unless_the_account_has_days_of_its_own(store: SpendingStore) -> None:
    reserved(store, entry(tokens=500), RunLimits(account="a", max_tokens_per_day=1_000))
    reserved(store, entry(tokens=500), capped("b", max_tokens_per_day=500))
    refusal = store.reserve(entry(tokens=1), RunLimits(account="c", max_tokens_per_day=1_000))
    assert isinstance(refusal, StopCause)
    assert ", in all workspaces together. " in refusal.message


@pytest.mark.parametrize(
    ("limits", "locked"),
    [
        (RunLimits(), ()),
        (RunLimits(account="a"), ()),
        (RunLimits(max_tokens_per_day=1), ("",)),
        (RunLimits(account="a", max_tokens_per_day=1), ("", "a")),
        (RunLimits(account="a", max_tokens_per_account=1), ("a",)),
        (RunLimits(account="a", account_days=True, max_tokens_per_day=1), ("a",)),
        (RunLimits(account_days=True, max_tokens_per_day=1), ("",)),
    ],
)
def test_who_reserves_is_alone_with_all_who_could_pass_the_same_limit(limits: RunLimits, locked: tuple[str]) -> None:
    assert locked_accounts(limits) == locked


def test_an_account_that_is_full_is_told_before_a_day_that_ends(store: SpendingStore) -> None:
    limits = capped(max_tokens_per_account=10, max_tokens_per_day=10)
    refusal = store.reserve(entry(tokens=11), limits)
    assert isinstance(refusal, StopCause)
    assert refusal.reason is StopReason.ACCOUNT_LIMIT


# --- Many at once


@pytest.mark.usefixtures("any_store")
@pytest.mark.parametrize(
    ("limit", "reason"), [("day", StopReason.DAY_LIMIT), ("account", StopReason.ACCOUNT_LIMIT)], ids=["day", "account"]
)
@pytest.mark.parametrize("accounts", [("",), ("a",), ("a", "b")], ids=["none", "one", "two"])
def test_many_at_once_never_pass_the_limit(
    tmp_path: Path, limit: str, reason: StopReason, accounts: tuple[str, ...]
) -> None:
    """A day is everybody's: two accounts have as much of it together as one alone."""
    most: dict[str, Any] = {f"max_tokens_per_{limit}": 1_000, f"max_cost_usd_per_{limit}": 5.0}
    several = [RunLimits(account=each, **most) for each in accounts]
    stores = [SpendingStore(str(tmp_path), Clock()) for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(lambda each: stores[each % 8].reserve(entry(f"t{each}"), several[each % len(several)]), range(48))
        )
    for each in stores:
        each.close()
    numbers = [answer for answer in answers if isinstance(answer, int)]
    whole = 10 * (len(accounts) if limit == "account" else 1)
    assert (len(numbers), len(set(numbers))) == (whole, whole)
    assert {answer.reason for answer in answers if isinstance(answer, StopCause)} == {reason}
    assert rows(tmp_path, "SELECT sum(tokens), sum(cost_usd) FROM days") == [(100 * whole, 0.25 * whole)]
