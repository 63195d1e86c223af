"""What the spending book has of a run."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from graph.report.booked import BookedCall, booked_calls
from graph.run import Session
from graph.spending_store import SpendingStore
from nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.run_plays import context, cut_off, project
from tests.graph.spending_entries import entry, reserved, settled, used

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="Later.", retry_after_s=0.0)


def booked(**more: object) -> BookedCall:
    values = {
        "purpose": "reply",
        "model": "m",
        "reserved": NOW,
        "settled": NOW + timedelta(seconds=2),
        "input_tokens": 1_000,
        "output_tokens": 20,
        "cost_usd": 0.5,
        "seconds": 2.0,
    }
    return BookedCall(**{**values, **more})  # type: ignore[arg-type]


def test_the_calls_of_a_run_alone_with_its_tries(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    root = str(folder)
    for _ in range(2):  # each of its own
        with Session(context(folder, model="m"), model=ScriptedModel([BUSY, Say("It is fine.")])) as session:
            session.work("What is it?")
    found = booked_calls(session.thread_id, session.context.workspace)
    assert found is not None
    assert [(each.purpose, each.model, each.input_tokens > 0) for each in found] == [
        ("reply", "m", False),
        ("reply", "m", True),
    ]
    assert all(each.settled for each in found)
    assert booked_calls("nobody", root) == []


def test_the_numbers_of_a_call_are_those_of_the_book(tmp_path: Path) -> None:
    with closing(SpendingStore(str(tmp_path))) as store:
        number = reserved(store, entry(f"r {sha256(b'/w').hexdigest()[:16]}"))
        settled(store, number, used())
    found = booked_calls("r", "/w", str(tmp_path))
    assert found is not None
    assert [(each.input_tokens, each.output_tokens, each.reasoning_tokens) for each in found] == [(50, 5, 3)]


def test_a_call_that_was_cut_off_is_not_settled(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    found = booked_calls(cut_off(folder), str(folder))
    assert found is not None
    assert [each.settled is None for each in found] == [False, False, True]


def test_where_there_is_no_book_there_are_no_calls(tmp_path: Path) -> None:
    assert booked_calls("r", "/w", str(tmp_path)) == []


def test_a_book_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "spending").mkdir(mode=0o700)
    (tmp_path / "spending" / "spending.sqlite").write_bytes(b"no database" * 100)
    assert booked_calls("r", "/w", str(tmp_path)) is None
    (tmp_path / "file").write_text("")
    assert booked_calls("r", "/w", str(tmp_path / "file")) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (booked(), "reply by m: 1,000 tokens in, 20 out, 2.0 s, 0.5000 USD"),
        (booked(reasoning_tokens=15), "reply by m: 1,000 tokens in, 20 out (15 reasoning), 2.0 s, 0.5000 USD"),
        (
            booked(cost_usd=None, purpose="summary"),
            "summary of the conversation by m: 1,000 tokens in, 20 out, 2.0 s, no price known",
        ),
        (
            booked(settled=None, model=""),
            "reply by an unnamed model: not settled; 1,000 tokens in, 20 out are reserved for it",
        ),
        (booked(input_tokens=0, output_tokens=0), "reply by m: failed after 2.0 s, and used nothing"),
    ],
)
def test_a_call_in_words(call: BookedCall, words: str) -> None:
    assert call.words() == words
