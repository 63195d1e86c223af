import pytest
from pydantic import ValidationError

from graph.spending_store import SpendingStore
from nodes.call_model.limits import Entry, SpendingBook, Used


def test_the_store_is_a_spending_book() -> None:
    book: SpendingBook = SpendingStore()
    book.settle(0, Used())  # opens nothing


def test_nothing_used_costs_nothing() -> None:
    assert set(Used().model_dump().values()) == {0}


@pytest.mark.parametrize(
    ("used", "passed"),
    [
        (Used(input_tokens=100, output_tokens=50, cost_usd=0.5), False),
        (Used(input_tokens=150, output_tokens=0, cost_usd=0.5), False),
        (Used(input_tokens=101, output_tokens=50), True),
        (Used(cost_usd=0.51), True),
        (Used(cost_usd=None), False),
    ],
)
def test_an_entry_is_passed_by_what_costs_more_than_it_says(used: Used, passed: bool) -> None:
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=100, output_tokens=50, cost_usd=0.5)
    assert entry.is_passed_by(used) is passed
    assert not entry.model_copy(update={"cost_usd": None}).is_passed_by(Used())


def test_an_entry_has_no_place_for_what_was_said() -> None:
    fields = {"thread", "model", "purpose", "input_tokens", "output_tokens", "cost_usd"}
    assert set(Entry.model_fields) == fields
    with pytest.raises(ValidationError, match="prompt"):
        Entry.model_validate(dict.fromkeys(fields - {"cost_usd"}, 1) | {"cost_usd": None, "prompt": "secret"})
