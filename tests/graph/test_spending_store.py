import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from graph.spending_store import APPLICATION_ID, FILE_NAME, SpendingStore
from nodes.call_model.ledger import RunLimits
from nodes.call_model.limits import unknown_price
from nodes.call_model.spending_book import Entry, Used
from nodes.records import StopCause, StopReason

DAY = datetime(2026, 2, 28, 23, 0, tzinfo=UTC)
NO_LIMIT = RunLimits()


def entry(thread: str = "t1", tokens: int = 100, cost: float | None = 0.25) -> Entry:
    """A call that may use this many tokens, a fifth of them for its reply."""
    return Entry(
        thread=thread,
        model="gpt-4o",
        purpose="reply",
        input_tokens=tokens - tokens // 5,
        output_tokens=tokens // 5,
        cost_usd=cost,
    )


def used(calls: int = 1, tokens: int = 50, cost: float | None = 0.125) -> Used:
    return Used(calls=calls, input_tokens=tokens, output_tokens=5, cached_tokens=10, cost_usd=cost, seconds=1.5)


def as_reserved(reserved: Entry) -> Used:
    inputs, outputs = reserved.input_tokens, reserved.output_tokens
    return Used(calls=1, input_tokens=inputs, output_tokens=outputs, cost_usd=reserved.cost_usd)


class Clock:
    """The time, which a test sets."""

    def __init__(self) -> None:
        self.now = DAY

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:
    """Another process's."""
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened


def reserved(store: SpendingStore, asked: Entry, limits: RunLimits = NO_LIMIT) -> int:
    number = store.reserve(asked, limits)
    assert isinstance(number, int)
    return number


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        return database.execute(query).fetchall()


# --- What a thread has lost


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    SpendingStore(str(tmp_path)).close()
    assert list(tmp_path.iterdir()) == []


def test_a_settled_entry_counts_as_what_was_used_and_an_open_one_as_its_reservation(
    store: SpendingStore, other: SpendingStore
) -> None:
    first = reserved(store, entry())
    assert store.settle(first, used()) is None
    assert other.lost("t1", 0) == (used(), first)
    second = reserved(store, entry(tokens=200))
    assert other.lost("t1", first) == (as_reserved(entry(tokens=200)), second)
    assert other.lost("t1", 0) == (
        Used(calls=2, input_tokens=210, output_tokens=45, cached_tokens=10, cost_usd=0.375, seconds=1.5),
        second,
    )
    assert other.lost("t1", second) == (Used(), second)
    assert other.lost("t2", 0) == (Used(), 0)


def test_entries_are_one_threads_and_their_numbers_are_everybodys(store: SpendingStore, other: SpendingStore) -> None:
    numbers = [reserved(store, entry("t1")), reserved(other, entry("t2")), reserved(store, entry("t1"))]
    assert numbers == sorted(set(numbers))
    assert other.lost("t1", numbers[0]) == (as_reserved(entry()), numbers[2])
    assert store.lost("t2", 0) == (as_reserved(entry()), numbers[1])


def test_one_unknown_price_makes_the_sum_unknown(store: SpendingStore) -> None:
    reserved(store, entry(cost=None))
    last = reserved(store, entry())
    assert store.lost("t1", 0)[0].cost_usd is None
    assert store.lost("t1", last - 1)[0].cost_usd == 0.25


def test_a_call_that_was_never_sent_costs_nothing(store: SpendingStore) -> None:
    number = reserved(store, entry(cost=None))
    store.settle(number, Used(cost_usd=None))
    assert store.lost("t1", 0) == (Used(), number)


def test_absurd_usage_can_be_stored(store: SpendingStore) -> None:
    number = reserved(store, entry())
    assert store.settle(number, Used(calls=1, input_tokens=10**30, output_tokens=-7, cost_usd=0.0)) is None
    assert store.lost("t1", 0)[0] == Used(calls=1, input_tokens=10**12)


def test_no_text_of_anybody_is_kept(store: SpendingStore, tmp_path: Path) -> None:
    number = reserved(store, entry())
    store.settle(number, used())
    (row,) = rows(tmp_path, "SELECT * FROM entries")
    day = "2026-02-28T23:00:00.000+00:00"
    assert row == (number, "t1", "gpt-4o", "reply", 20_512, day, day, 1, 50, 5, 10, 0.125, 1.5)


def test_a_thread_that_begins_now_has_lost_nothing(
    store: SpendingStore, other: SpendingStore, clock: Clock, tmp_path: Path
) -> None:
    assert store.newest() == 0
    number = reserved(other, entry("demo"))
    assert store.newest() == number
    assert store.lost("demo", store.newest()) == (Used(), number)
    other.settle(number, used())
    store.close()
    clock.now += timedelta(days=63)
    assert (store.newest(), rows(tmp_path, "SELECT count(*) FROM entries")) == (number, [(0,)])


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


def test_the_day_is_that_of_the_reservation_and_of_utc(store: SpendingStore, clock: Clock, tmp_path: Path) -> None:
    clock.now = datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))
    number = reserved(store, entry())
    clock.now += timedelta(hours=5)
    store.settle(number, used())
    assert rows(tmp_path, "SELECT day, reserved_at, settled_at FROM entries") == [
        (20_512, "2026-02-28T22:30:00.000+00:00", "2026-03-01T03:30:00.000+00:00")
    ]
    assert rows(tmp_path, "SELECT * FROM days") == [(20_512, 55, 0.125)]


def test_many_at_once_never_pass_the_limit(tmp_path: Path) -> None:
    limits = RunLimits(max_tokens_per_day=1_000, max_cost_usd_per_day=5.0)
    stores = [SpendingStore(str(tmp_path), Clock()) for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda each: stores[each % 8].reserve(entry(f"t{each}"), limits), range(48)))
    for each in stores:
        each.close()
    numbers = [answer for answer in answers if isinstance(answer, int)]
    assert (len(numbers), len(set(numbers))) == (10, 10)
    assert {answer.reason for answer in answers if isinstance(answer, StopCause)} == {StopReason.DAY_LIMIT}
    assert rows(tmp_path, "SELECT tokens, cost_usd FROM days") == [(1_000, 2.5)]


# --- Long after


def test_old_entries_are_forgotten_and_their_numbers_are_not_used_again(
    store: SpendingStore, other: SpendingStore, clock: Clock
) -> None:
    open_one, settled = reserved(store, entry()), reserved(store, entry("t2"))
    store.settle(settled, used())
    clock.now += timedelta(days=62)
    assert other.lost("t2", 0) == (used(), settled)
    other.close()
    clock.now += timedelta(days=1)
    assert other.lost("t2", 0) == (Used(), 0)
    assert other.lost("t1", 0) == (as_reserved(entry()), open_one)
    assert reserved(other, entry()) > settled


def test_a_store_that_stays_open_forgets_too(store: SpendingStore, clock: Clock) -> None:
    store.settle(reserved(store, entry()), used())
    clock.now += timedelta(days=63)
    for _ in range(998):
        reserved(store, entry("t2"))
    assert store.lost("t1", 0) == (used(), 1)
    assert reserved(store, entry("t2")) == 1_000
    assert store.lost("t1", 0) == (Used(), 0)


# --- A file that cannot be used


def broken(folder: Path, kind: str) -> str:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    if kind == "text":
        path.write_bytes(b"no database at all, but a longer text than that" * 100)
        return f"The database {str(path)!r} is damaged, or no database at all (file is not a database): put a backup"
    if kind == "folder":
        path.mkdir()
        return f"Cannot open {str(path)!r}: it is a directory, and a file is needed."
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (a)")
        if kind == "newer":
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute("PRAGMA user_version = 2")
    what = "is of another version of mendgraph" if kind == "newer" else "is no spending book of mendgraph"
    return f"The file {str(path)!r} {what}: move it away, or set MENDGRAPH_DATA_DIR to another folder."


@pytest.mark.parametrize("kind", ["text", "folder", "theirs", "newer"])
@pytest.mark.parametrize("limit", ["max_tokens_per_day", "max_cost_usd_per_day"])
def test_with_a_limit_of_the_day_nothing_is_sent(store: SpendingStore, tmp_path: Path, kind: str, limit: str) -> None:
    reason = broken(tmp_path, kind)
    cause = store.reserve(entry(), RunLimits(**{limit: 1_000_000}))
    assert isinstance(cause, StopCause)
    assert cause.reason is StopReason.STORE_FAILED
    assert cause.message.startswith(f"The spending book, into which model calls are entered, cannot be used. {reason}")
    assert cause.message.endswith(" No limit of the day can be held without it.")


@pytest.mark.parametrize("kind", ["text", "folder", "theirs", "newer"])
def test_without_one_calls_go_on_and_it_is_told_once(store: SpendingStore, tmp_path: Path, kind: str) -> None:
    reason = broken(tmp_path, kind)
    assert store.trouble() is None
    assert store.newest() == 0
    assert store.lost("t1", 3) == (Used(), 3)
    assert store.reserve(entry(), NO_LIMIT) == 0
    assert store.settle(0, used()) is None
    told = store.trouble()
    assert told is not None
    assert reason in told.message
    assert store.reserve(entry(), NO_LIMIT) == 0
    assert store.trouble() is None


def test_a_file_that_breaks_later_leaves_the_reservation(store: SpendingStore, tmp_path: Path) -> None:
    number = reserved(store, entry())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("ALTER TABLE entries RENAME COLUMN seconds TO took")
    cause = store.settle(number, used())
    assert cause is not None
    assert cause.reason is StopReason.STORE_FAILED
    assert rows(tmp_path, "SELECT input_tokens, settled_at FROM entries") == [(80, None)]


def test_a_file_that_was_mended_is_used_again(store: SpendingStore, tmp_path: Path) -> None:
    broken(tmp_path, "text")
    assert store.reserve(entry(), NO_LIMIT) == 0
    (tmp_path / FILE_NAME).unlink()
    assert reserved(store, entry()) == 1


def test_a_closed_store_opens_again(store: SpendingStore) -> None:
    number = reserved(store, entry())
    store.close()
    assert store.lost("t1", 0) == (as_reserved(entry()), number)
