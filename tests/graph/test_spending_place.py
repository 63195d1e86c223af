"""Which of its two places the spending book is in."""

from pathlib import Path

import pytest

from graph.spending_file import BookFile
from graph.spending_place import book_place, reading
from graph.spending_shared import SharedBook
from graph.spending_store import SpendingStore
from nodes.execute_tools.environment.shared_url import STORE_URL_VARIABLE
from tests.graph.spending_entries import Clock, entry, reserved


@pytest.mark.parametrize(
    ("url", "kind"), [("", BookFile), ("postgresql://h/x", SharedBook), ("mysql://h/x", SharedBook)]
)
def test_the_environment_alone_says_where_it_is(
    url: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_URL_VARIABLE, url)
    assert type(book_place(str(tmp_path), Clock())) is kind
    assert list(tmp_path.iterdir()) == []


def test_who_only_looks_finds_what_was_entered(any_store: str, tmp_path: Path) -> None:
    with reading(str(tmp_path)) as nothing:
        assert (nothing is None) == (any_store == "sqlite")
    store = SpendingStore(str(tmp_path), Clock())
    reserved(store, entry())
    store.close()
    with reading(str(tmp_path)) as database:
        assert database is not None
        assert database.execute("SELECT thread FROM entries").fetchall() == [("t1",)]
