"""The spending book's two databases; a file that cannot be used is in `test_unusable_books.py`."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mendgraph.graph.spending.store import SpendingStore, accounts_spent, spent_by_day
from mendgraph.nodes.call_model.ledger import RunLimits, Used
from mendgraph.nodes.records import StopCause, StopReason, ToolError
from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE
from tests.extent import slow
from tests.surfaces.spending.spending_entries import NO_LIMIT, Clock, entry, reserve, rows

LIMITED = RunLimits(account="a", max_tokens_per_account=10_000)
NOWHERE = "postgresql://u:sesame@/none?host=/nowhere"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[SpendingStore]:
    with closing(SpendingStore(None, clock)) as opened:
        yield opened


@slow
@pytest.mark.usefixtures("shared_store")
def test_all_users_and_folders_of_a_database_share_one_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SpendingStore, clock: Clock
) -> None:
    reserve(store, entry(), LIMITED)
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    with closing(SpendingStore(str(tmp_path), clock)) as other:
        assert other.newest() == 1
        reserve(other, entry("t2"), LIMITED)
    assert rows(tmp_path, "SELECT account, calls, tokens FROM accounts") == [("a", 2, 200)]
    assert list(tmp_path.iterdir()) == []


def test_calls_without_limits_are_sent_if_the_server_is_unavailable(
    store: SpendingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_URL_VARIABLE, NOWHERE)
    assert store.reserve(entry(), NO_LIMIT) == 0
    assert (store.newest(), store.begin_number("t1"), store.lost("t1", 3)) == (0, None, (Used(), 3))
    assert store.trouble() is not None
    assert store.trouble() is None


@pytest.mark.parametrize("url", [NOWHERE, "mysql://u:sesame@h/x"])
def test_unavailable_database_is_reported_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch, store: SpendingStore
) -> None:
    monkeypatch.setenv(STORE_URL_VARIABLE, url)
    refusal, days, accounts = store.reserve(entry(), LIMITED), spent_by_day(1), accounts_spent()
    assert isinstance(refusal, StopCause)
    assert isinstance(days, ToolError)
    assert isinstance(accounts, ToolError)
    assert days == accounts
    assert refusal.reason is StopReason.STORE_FAILED
    for message in (refusal.message, days.message):
        assert STORE_URL_VARIABLE in message
        assert "sesame" not in message
