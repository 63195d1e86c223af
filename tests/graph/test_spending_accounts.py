"""What the spending book tells of accounts."""

import os
from datetime import date, timedelta
from pathlib import Path

import pytest

from graph import spending_store
from graph.spending_accounts import AccountSpent, account_spent, accounts_spent
from graph.spending_file import FILE_NAME
from graph.spending_store import SpendingStore
from nodes.call_model.limits import RunLimits, Used
from nodes.records import ToolError, ToolErrorCode
from tests.graph.spending_entries import Clock, entry, reserved, rows, settled, used

TODAY = date(2026, 2, 28)
NIGHTLY = RunLimits(account="batch/nightly")


def test_an_account_is_told_with_all_of_its_calls(store: SpendingStore, tmp_path: Path, clock: Clock) -> None:
    first = reserved(store, entry(), NIGHTLY)
    settled(store, first, used())
    clock.now += timedelta(days=2)
    for each in (used(calls=2, cost=None), Used(calls=1, cost_usd=None), Used(calls=0)):
        settled(store, reserved(store, entry("t2", cost=None), NIGHTLY), each)
    reserved(store, entry(tokens=300), NIGHTLY)
    store.begin("t3", first=True)
    found = account_spent("batch/nightly", str(tmp_path))
    assert found == AccountSpent(
        account="batch/nightly",
        calls=5,
        tokens=410,
        cost_usd=0.375,
        unpriced=2,
        unsettled=1,
        first_day=TODAY,
        last_day=TODAY + timedelta(days=2),
    )
    assert accounts_spent(str(tmp_path)) == [found]
    assert account_spent("another", str(tmp_path)) == AccountSpent(account="another")


def test_accounts_are_listed_by_their_last_use(store: SpendingStore, tmp_path: Path, clock: Clock) -> None:
    for account in ("b", "", "a"):
        settled(store, reserved(store, entry(), RunLimits(account=account)), used())
    clock.now += timedelta(days=1)
    reserved(store, entry(), RunLimits(account="b"))
    found = accounts_spent(str(tmp_path))
    assert not isinstance(found, ToolError)
    assert [(each.account, each.calls) for each in found] == [("b", 2), ("", 1), ("a", 1)]


def test_nothing_is_forgotten_with_its_entries(
    store: SpendingStore, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_store, "_PRUNED_EVERY", 1)
    for _ in range(3):
        settled(store, reserved(store, entry(), NIGHTLY), used())
        clock.now += timedelta(days=63)
    reserved(store, entry(), RunLimits(account="b"))
    assert rows(tmp_path, "SELECT account FROM entries") == [("b",)]
    found = account_spent("batch/nightly", str(tmp_path))
    assert not isinstance(found, ToolError)
    assert (found.calls, found.tokens, found.cost_usd) == (3, 165, 0.375)
    days = rows(tmp_path, "SELECT day, tokens FROM days WHERE account = 'batch/nightly' ORDER BY day")
    assert days == [(20_512, 55), (20_575, 55), (20_638, 55)]


@pytest.mark.usefixtures("any_store")
def test_without_a_book_there_are_no_accounts(tmp_path: Path) -> None:
    assert accounts_spent(str(tmp_path)) == []
    assert account_spent("", str(tmp_path)) == AccountSpent(account="")


def test_what_is_no_name_is_refused(tmp_path: Path) -> None:
    assert account_spent("a\nb", str(tmp_path)) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="There is no such account: an account's name is empty, or has 1 to 200 printable characters.",
    )


def test_a_book_that_cannot_be_read_is_told_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"no database at all, only words " * 100)
    (tmp_path / "file").touch()
    for base in (str(tmp_path), os.path.join(tmp_path, "file")):
        for found in (accounts_spent(base), account_spent("a", base)):
            assert isinstance(found, ToolError)
            assert found.code is ToolErrorCode.IO_ERROR
            assert found.message.startswith("The spending book cannot be read. ")
