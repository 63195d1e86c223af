"""The entries of a spending book, on both of its databases."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from graph import spending_rows
from graph.spending_place import book_place
from nodes.call_model.limits import Used
from tests.graph.spending_entries import DAY, Clock, as_reserved, entry, used


@pytest.mark.usefixtures("any_store")
def test_entries_are_made_settled_marked_and_added_up(tmp_path: Path) -> None:
    place = book_place(str(tmp_path), Clock())
    with place.using(patient=True) as database, place.entering(database):
        spending_rows.mark(database, "t1", first=True, now=DAY)
        first = spending_rows.insert(database, entry(), "a", DAY)
        spending_rows.mark(database, "t1", first=False, now=DAY)
        second = spending_rows.insert(database, entry(cost=None), "a", DAY)
        assert (first, second) == (2, 4)
        assert spending_rows.begun(database, "t1", turn=False) == 1
        assert spending_rows.begun(database, "t1", turn=True) == 3
        assert spending_rows.begun(database, "t2", turn=True) is None
        assert first is not None
        spending_rows.settle(database, first, used(), "then")
        assert spending_rows.lost(database, "t1", 0, 3) == (used(), 3)
        assert spending_rows.lost(database, "t1", 3, None) == (as_reserved(entry(cost=None)), 4)
        assert spending_rows.lost(database, "t1", 4, None) == (Used(), 4)
        assert spending_rows.lost(database, "t1", 0, None)[0].cost_usd is None
    place.close()


@pytest.mark.parametrize(
    ("moment", "day"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC), 20_512),
        (datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2))), 20_512),
        (datetime(2026, 2, 28, 19, 0, tzinfo=timezone(timedelta(hours=-5))), 20_513),
    ],
)
def test_a_day_is_one_of_utc_and_is_kept_for_two_months(moment: datetime, day: int) -> None:
    assert spending_rows.day_of(moment) == day
    assert spending_rows.oldest_kept(moment) == day - 62
