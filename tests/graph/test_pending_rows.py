"""What waits is written once, in order, and only what no checkpoint holds is kept beside it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, _DeltaSnapshot

from graph.pending_rows import PendingRows, Place, is_urgent
from graph.state import serializer
from nodes.execute_tools.environment.database import StoreError

HERE = Place("t", "", "1")
ELSEWHERE = Place("t", "", "2")
ROW = ("INSERT the checkpoint", [("row",)])


def pending() -> PendingRows:
    return PendingRows(serializer())


def stored(statements: list[Any]) -> list[Any]:
    """The channel, the index and the value of each write; of a checkpoint its SQL."""
    serde = JsonPlusSerializer()
    return [
        (row[6], row[5], serde.loads_typed(row[7:9])) if len(row) > 1 else sql
        for sql, rows in statements
        for row in rows
    ]


def test_nothing_waits_at_first_and_nothing_once_it_was_taken() -> None:
    rows = pending()
    assert (bool(rows), rows.take()) == (False, [])
    rows.add_writes(HERE, "task", "path", [("a", 1)])
    assert bool(rows)
    assert stored(rows.take()) == [("a", 0, 1)]
    assert (bool(rows), rows.take()) == (False, [])


def test_a_checkpoint_takes_the_writes_along_that_led_to_it_but_those_that_it_holds() -> None:
    rows = pending()
    rows.add_writes(HERE, "one", "p", [("a", 1), ("grows", [1]), ("kept_whole", [2])])
    rows.add_writes(ELSEWHERE, "two", "p", [("a", 2)])
    rows.add_checkpoint(HERE, {"a": 1, "kept_whole": _DeltaSnapshot([2])}, ROW)
    assert stored(rows.take()) == [("grows", 1, [1]), ("kept_whole", 2, [2]), ROW[0], ("a", 0, 2)]


def test_what_comes_after_the_checkpoint_that_holds_it_is_not_stored() -> None:
    rows = pending()
    rows.add_checkpoint(HERE, {"a": 1, "b": 2, "kept_whole": _DeltaSnapshot([2])}, ROW)
    rows.take()
    rows.add_writes(HERE, "late", "p", [("a", 1), ("b", 2)])
    assert (bool(rows), rows.take()) == (False, [])
    rows.add_writes(HERE, "late", "p", [("a", 1), ("grows", [1])])
    rows.add_writes(HERE, "later", "p", [("kept_whole", [2])])
    rows.add_writes(ELSEWHERE, "other", "p", [("a", 3)])
    assert stored(rows.take()) == [("a", 0, 1), ("grows", 1, [1]), ("kept_whole", 0, [2]), ("a", 0, 3)]


def test_a_row_says_where_it_belongs_as_langgraphs_own_do() -> None:
    rows = pending()
    rows.add_writes(HERE, "task", "path", [("a", 1), ("b", 2)])
    ((sql, (_, second)),) = rows.take()
    assert sql.startswith("INSERT OR IGNORE")
    assert second == ("t", "", "1", "task", "path", 1, "b", "msgpack", b"\x02")


def test_an_error_has_an_index_of_its_own_and_replaces_the_last_one() -> None:
    rows = pending()
    rows.add_writes(HERE, "task", "", [(ERROR, "x")])
    rows.add_writes(HERE, "task", "", [("a", 1), (INTERRUPT, "y")])
    (first, _), (second, _) = statements = rows.take()
    assert [each.split(" INTO")[0].strip() for each in (first, second)] == ["INSERT OR REPLACE", "INSERT OR IGNORE"]
    assert stored(statements) == [(ERROR, -1, "x"), ("a", 0, 1), (INTERRUPT, -3, "y")]


@pytest.mark.parametrize(("writes", "urgent"), [([("a", 1)], False), ([("a", 1), (ERROR, "")], True), ([], False)])
def test_what_is_no_part_of_a_state_is_urgent(writes: list[Any], urgent: bool) -> None:
    assert is_urgent(writes) is urgent


def test_what_has_no_stored_form_is_told_once() -> None:
    rows = pending()
    rows.add_writes(HERE, "task", "", [("a", object())])
    with pytest.raises(StoreError):
        rows.take()
    assert not rows
    rows.add_writes(HERE, "task", "", [("a", object())])
    with pytest.raises(StoreError):
        rows.add_checkpoint(HERE, {}, ROW)
    assert not rows


def test_threads_lose_nothing() -> None:
    rows = pending()

    def add(number: int) -> list[Any]:
        rows.add_writes(Place("t", "", str(number)), "task", "", [("a", number)])
        return stored(rows.take()) if number % 7 == 0 else []

    with ThreadPoolExecutor(8) as pool:
        taken = [each for found in pool.map(add, range(500)) for each in found]
    assert sorted(value for _, _, value in (*taken, *stored(rows.take()))) == list(range(500))
