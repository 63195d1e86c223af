import os
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from mendgraph.graph.spending import store as spending_store
from mendgraph.graph.spending.database import SqliteBook
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits, Used
from mendgraph.nodes.execute_tools.store.database import StoreError
from tests.graph.spending.spending_entries import Clock, as_reserved, entry, reserved, rows, settled, used

# --- What a thread has lost


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    SpendingStore(str(tmp_path)).close()
    assert list(tmp_path.iterdir()) == []


def test_a_settled_entry_counts_as_what_was_used_and_an_open_one_as_its_reservation(
    store: SpendingStore, other: SpendingStore
) -> None:
    first = reserved(store, entry())
    settled(store, first, used())
    assert other.lost("t1", 0) == (used(), first)
    second = reserved(store, entry(tokens=200))
    assert other.lost("t1", first) == (as_reserved(entry(tokens=200)), second)
    assert other.lost("t1", 0) == (
        used().model_copy(update={"calls": 2, "input_tokens": 210, "output_tokens": 45, "cost_usd": 0.375}),
        second,
    )
    assert other.lost("t1", second) == (Used(), second)
    assert other.lost("t2", 0) == (Used(), 0)


@pytest.mark.parametrize("written_by", ["reserve", "lost", "flush", "close"])
def test_what_was_used_is_written_with_the_next_entry_or_at_the_end(
    store: SpendingStore, other: SpendingStore, clock: Clock, tmp_path: Path, written_by: str
) -> None:
    """A process that is killed before leaves the reservation, which is more."""
    number = reserved(store, entry())
    store.settle(number, used())
    assert other.lost("t1", 0) == (as_reserved(entry()), number)
    clock.now += timedelta(minutes=1)
    {
        "reserve": lambda: reserved(store, entry("t2")),
        "lost": lambda: store.lost("t2", 0),
        "flush": store.flush,
        "close": store.close,
    }[written_by]()
    assert other.lost("t1", 0) == (used(), number)
    assert rows(tmp_path, "SELECT settled_at FROM entries WHERE thread = 't1'") == [("2026-02-28T23:00:00.000+00:00",)]


def test_more_than_was_reserved_is_written_at_once(store: SpendingStore, other: SpendingStore) -> None:
    """Until then others would count less than was used, and a day's limit would not hold."""
    number = reserved(store, entry())
    more = used().model_copy(update={"input_tokens": 10 * entry().input_tokens})
    store.settle(number, more)
    assert other.lost("t1", 0) == (more, number)


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
    store.settle(number, Used(calls=1, input_tokens=10**30, output_tokens=-7, cost_usd=0.0))
    assert store.lost("t1", 0)[0] == Used(calls=1, input_tokens=10**12)


def test_no_text_of_anybody_is_kept(store: SpendingStore, tmp_path: Path) -> None:
    number = reserved(store, entry())
    settled(store, number, used())
    (row,) = rows(tmp_path, "SELECT * FROM entries")
    day = "2026-02-28T23:00:00.000+00:00"
    assert row == (number, "t1", "gpt-4o", "reply", 20_512, day, day, 1, 50, 5, 10, 0.125, 1.5, "", 3, 7)


def test_a_thread_that_begins_now_has_lost_nothing(store: SpendingStore, other: SpendingStore) -> None:
    assert store.newest() == 0
    number = reserved(other, entry("demo"))
    assert store.newest() == number
    assert store.lost("demo", store.newest()) == (Used(), number)


def test_a_thread_that_was_marked_has_lost_what_came_after_its_mark(store: SpendingStore, other: SpendingStore) -> None:
    """Its name may be that of an earlier one: what was lost with that is not this one's."""
    assert store.begun("demo") is None
    reserved(other, entry("demo"))
    store.begin("demo", first=True)
    begun = other.begun("demo")
    assert begun is not None
    assert (other.lost("demo", begun), store.newest()) == ((Used(), begun), begun)
    number = reserved(store, entry("demo"))
    assert other.lost("demo", begun) == (as_reserved(entry("demo")), number)
    other.begin("demo", first=True)
    again = store.begun("demo")
    assert again is not None
    assert again > number
    assert (store.lost("demo", again), store.begun("t1")) == ((Used(), again), None)


def test_the_last_turn_of_a_thread_is_marked_too_and_entries_are_asked_for_up_to_it(store: SpendingStore) -> None:
    """So what is lost with an earlier turn is told from what this one has used already."""
    store.begin("demo", first=True)
    begun = store.begun("demo")
    assert begun is not None
    assert store.begun("demo", turn=True) == begun
    number = reserved(store, entry("demo"))
    store.begin("demo", first=False)
    turn = store.begun("demo", turn=True)
    assert turn == number + 1
    assert store.begun("demo") == begun
    last = reserved(store, entry("demo", tokens=500))
    assert store.lost("demo", begun, turn) == (as_reserved(entry("demo")), turn)
    assert store.lost("demo", turn, turn) == (Used(), turn)
    assert store.lost("demo", number) == (as_reserved(entry("demo", tokens=500)), last)


def test_a_mark_counts_as_no_call_and_as_no_part_of_a_day(store: SpendingStore, tmp_path: Path) -> None:
    store.begin("demo", first=True)
    assert store.lost("demo", 0) == (Used(), 1)
    assert rows(tmp_path, "SELECT * FROM days") == rows(tmp_path, "SELECT * FROM accounts") == []


def test_the_day_is_that_of_the_reservation_and_of_utc(store: SpendingStore, clock: Clock, tmp_path: Path) -> None:
    clock.now = datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))
    number = reserved(store, entry())
    clock.now += timedelta(hours=5)
    settled(store, number, used())
    assert rows(tmp_path, "SELECT day, reserved_at, settled_at FROM entries") == [
        (20_512, "2026-02-28T22:30:00.000+00:00", "2026-03-01T03:30:00.000+00:00")
    ]
    assert rows(tmp_path, "SELECT * FROM days") == [(20_512, "", 55, 0.125)]


# --- Long after


def test_a_store_that_stays_open_forgets_what_was_settled_and_gives_no_number_twice(
    store: SpendingStore, other: SpendingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_store, "_PRUNED_EVERY", 5)
    open_one, number = reserved(store, entry()), reserved(store, entry("t2"))
    store.settle(number, used())
    clock.now += timedelta(days=62)
    for thread in ("t3", "t4", "t5"):
        reserved(store, entry(thread))
    assert other.lost("t2", 0) == (used(), number)
    clock.now += timedelta(days=1)
    for _ in range(4):
        reserved(store, entry("t3"))
    assert other.lost("t2", 0) == (used(), number)
    last = reserved(store, entry("t3"))
    assert last % 5 == 0
    assert other.lost("t2", 0) == (Used(), 0)
    assert other.lost("t1", 0) == (as_reserved(entry()), open_one)
    assert reserved(other, entry()) > last


def test_that_nothing_can_be_forgotten_keeps_no_call_from_being_made(
    store: SpendingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_store, "_PRUNED_EVERY", 1)
    reserved(store, entry())

    def refuse(*_: object) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(store._book, "prune", refuse)
    assert store.trouble() is None
    number = reserved(store, entry(), RunLimits(max_tokens_per_day=1_000))
    told = store.trouble()
    assert told is not None
    assert told.message.endswith("The disk is full.")
    assert rows(tmp_path, "SELECT max(number) FROM entries") == [(number,)]


# --- Closed


def test_a_store_that_nobody_holds_any_more_leaves_no_handle(tmp_path: Path) -> None:
    """Who builds a graph alone never closes it."""
    before = len(os.listdir("/dev/fd"))
    left = SpendingStore(str(tmp_path))
    reserved(left, entry())
    assert len(os.listdir("/dev/fd")) > before
    place = left._book
    assert isinstance(place, SqliteBook)
    connection = place._connection
    del place
    del left
    assert connection is not None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    assert len(os.listdir("/dev/fd")) == before


def test_a_closed_store_opens_again(store: SpendingStore) -> None:
    number = reserved(store, entry())
    store.close()
    assert store.lost("t1", 0) == (as_reserved(entry()), number)
