"""What the spending book reports about days and accounts."""

import os
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.spending import store as spending_store
from mendgraph.graph.spending.database import FILE_NAME
from mendgraph.graph.spending.store import (
    AccountSpent,
    ModelDay,
    SpendingStore,
    account_spent,
    accounts_spent,
    spent_by_day,
)
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.surfaces.spending.spending_entries import Clock, entry, reserve, rows, settle, usage

PARTS = {"cached_tokens": 40, "reasoning_tokens": 6, "cache_write_tokens": 20}
NOON = datetime(2026, 2, 28, 12, tzinfo=UTC)
TODAY = date(2026, 2, 28)


def book(base: Path, model: str, usage: Used | None, days_ago: int = 0, account: str = "") -> None:
    """Enter a call of so many days ago; without `usage` it is never settled."""
    store = SpendingStore(str(base), lambda: NOON - timedelta(days=days_ago))
    number = store.reserve(
        Entry(thread="t", model=model, purpose="reply", input_tokens=500, output_tokens=50, cost_usd=0.5),
        RunLimits(account=account),
    )
    assert isinstance(number, int)
    if usage is not None:
        store.settle(number, usage)
    store.close()


def book_path(base: Path) -> str:
    (base / FILE_NAME).parent.mkdir(mode=0o700, exist_ok=True)
    return str(base / FILE_NAME)


def usage_of_model(cost_usd: float | None, calls: int = 1) -> Used:
    return Used(calls=calls, input_tokens=100, output_tokens=10, cost_usd=cost_usd, seconds=1.5, **PARTS)


def day(model: str, days_ago: int = 0, **changed: Any) -> ModelDay:
    one = {"calls": 1, "input_tokens": 100, "output_tokens": 10, **PARTS, "cost_usd": 0.25, "seconds": 1.5}
    zero = {"unpriced_calls": 0, "unsettled": 0}
    return ModelDay.model_validate({"day": TODAY - timedelta(days=days_ago), "model": model, **one, **zero, **changed})


@pytest.mark.usefixtures("any_store")
def test_days_and_models_are_summed_newest_first(tmp_path: Path) -> None:
    book(tmp_path, "b", usage_of_model(0.25), days_ago=1)
    book(tmp_path, "b", usage_of_model(0.25))
    book(tmp_path, "", usage_of_model(None, calls=2))
    book(tmp_path, "a", usage_of_model(0.25))
    book(tmp_path, "a", usage_of_model(0.25))
    twice: dict[str, Any] = {
        "calls": 2,
        "input_tokens": 200,
        "output_tokens": 20,
        **{name: 2 * count for name, count in PARTS.items()},
        "cost_usd": 0.5,
        "seconds": 3.0,
    }
    assert spent_by_day(2, str(tmp_path), lambda: NOON) == [
        day("", calls=2, cost_usd=0.0, unpriced_calls=2),
        day("a", **twice),
        day("b"),
        day("b", days_ago=1),
    ]


def test_day_begins_at_midnight_in_utc(tmp_path: Path) -> None:
    book(tmp_path, "b", usage_of_model(0.25), days_ago=1)
    book(tmp_path, "b", usage_of_model(0.25))
    east = NOON.astimezone(timezone(timedelta(hours=14)))  # where it is the next day already
    assert spent_by_day(1, str(tmp_path), lambda: east) == [day("b")]


def test_unreadable_book_is_reported_with_the_remedy(tmp_path: Path) -> None:
    Path(book_path(tmp_path)).write_bytes(b"no database at all, only words " * 100)
    damaged = spent_by_day(7, str(tmp_path))
    (tmp_path / "file").touch()
    nowhere = spent_by_day(7, os.path.join(tmp_path, "file"))
    assert isinstance(damaged, ToolError)
    assert isinstance(nowhere, ToolError)
    assert damaged.code is ToolErrorCode.IO_ERROR
    assert damaged.message.startswith("The spending database cannot be read. ")


DAY_NUMBER = date(2026, 2, 28)
NIGHTLY = RunLimits(account="batch/nightly")


def test_account_report_covers_all_of_its_calls(store: SpendingStore, tmp_path: Path, clock: Clock) -> None:
    first = reserve(store, entry(), NIGHTLY)
    settle(store, first, usage())
    clock.now += timedelta(days=2)
    for row_usage in (usage(calls=2, cost=None), Used(calls=1, cost_usd=None), Used(calls=0)):
        settle(store, reserve(store, entry("t2", cost=None), NIGHTLY), row_usage)
    reserve(store, entry(tokens=300), NIGHTLY)
    store.begin("t3", first=True)
    report = account_spent("batch/nightly", str(tmp_path))
    assert report == AccountSpent(
        account="batch/nightly",
        calls=5,
        tokens=410,
        cost_usd=0.375,
        unpriced=2,
        unsettled=1,
        first_day=DAY_NUMBER,
        last_day=DAY_NUMBER + timedelta(days=2),
    )
    assert accounts_spent(str(tmp_path)) == [report]
    assert account_spent("another", str(tmp_path)) == AccountSpent(account="another")


def test_account_without_a_name_or_with_a_damaged_book_is_an_error(tmp_path: Path) -> None:
    wrong = account_spent("a\nb", str(tmp_path))
    assert isinstance(wrong, ToolError)
    assert wrong.message.startswith("There is no such account: ")
    (tmp_path / FILE_NAME).parent.mkdir()
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    damaged = account_spent("a", str(tmp_path))
    assert isinstance(damaged, ToolError)
    assert damaged.code is ToolErrorCode.IO_ERROR


def test_account_keeps_its_last_day_if_the_clock_is_set_back(
    store: SpendingStore, tmp_path: Path, clock: Clock
) -> None:
    reserve(store, entry(), NIGHTLY)
    clock.now -= timedelta(days=3)
    reserve(store, entry(), NIGHTLY)
    report = account_spent("batch/nightly", str(tmp_path))
    assert not isinstance(report, ToolError)
    assert report.last_day == DAY_NUMBER


def threads(base: Path) -> list[str]:
    return [thread for (thread,) in rows(base, "SELECT thread FROM entries ORDER BY number")]


@pytest.fixture
def always_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old entries are removed with each new one instead of each thousandth."""
    monkeypatch.setattr(spending_store, "_PRUNED_EVERY", 1)


@pytest.mark.usefixtures("always_pruned")
def test_settled_entry_is_kept_for_62_days_and_an_open_one_forever(
    store: SpendingStore, tmp_path: Path, clock: Clock
) -> None:
    settle(store, reserve(store, entry("settled")), usage())
    reserve(store, entry("open"))
    clock.now += timedelta(days=62)
    settle(store, reserve(store, entry("new")), usage())
    assert threads(tmp_path) == ["settled", "open", "new"]
    clock.now += timedelta(days=1)
    reserve(store, entry("newest"))
    assert threads(tmp_path) == ["open", "new", "newest"]


@pytest.mark.usefixtures("always_pruned")
def test_totals_are_kept_when_entries_are_deleted(store: SpendingStore, tmp_path: Path, clock: Clock) -> None:
    for _ in range(3):
        settle(store, reserve(store, entry(), NIGHTLY), usage())
        clock.now += timedelta(days=63)
    reserve(store, entry(), RunLimits(account="b"))
    assert rows(tmp_path, "SELECT account FROM entries") == [("b",)]
    report = account_spent("batch/nightly", str(tmp_path))
    assert not isinstance(report, ToolError)
    assert (report.calls, report.tokens, report.cost_usd) == (3, 165, 0.375)
    days = rows(tmp_path, "SELECT day, tokens FROM days WHERE account = 'batch/nightly' ORDER BY day")
    assert days == [(20_512, 55), (20_575, 55), (20_638, 55)]
