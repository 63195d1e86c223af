"""`mendgraph usage` at the command line."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.graph.spending.database import FILE_NAME, KEPT_DAYS
from mendgraph.graph.spending.report import AccountSpent, ModelDay
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.answers import Line
from mendgraph.graph.terminal.setup_commands import account_lines, account_objects, day_lines, day_objects
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.limits import Entry, Used

TODAY = date(2026, 2, 28)


def day(model: str, days_ago: int = 0, **changed: Any) -> ModelDay:
    one = {"calls": 12, "input_tokens": 120_000, "output_tokens": 900, "cached_tokens": 80_000, "cost_usd": 0.25}
    zero = {"unpriced_calls": 0, "unsettled": 0, "seconds": 1.5}
    return ModelDay.model_validate({"day": TODAY - timedelta(days=days_ago), "model": model, **one, **zero, **changed})


def test_a_day_has_a_line_for_each_model_and_one_for_all_of_them() -> None:
    spent = [
        day("gpt-4o-mini"),
        day("local", cached_tokens=0, cost_usd=0.0),
        day("", 1, calls=1, cost_usd=0.0, unpriced_calls=1),
    ]
    lines = day_lines(spent, 7, TODAY)
    assert [line.text for line in lines] == [
        "DAY         MODEL          CALLS       IN  CACHED    OUT  COST",
        "today       gpt-4o-mini       12  120,000  80,000    900  0.2500 USD",
        "            local             12  120,000       0    900",
        "            (all)             24  240,000  80,000  1,800  0.2500 USD",
        "2026-02-27  (the default)      1  120,000  80,000    900  no price known",
    ]
    assert [line.style for line in lines] == ["bold", "", "", "", ""]


def test_cache_writes_and_reasoning_have_a_column_where_there_are_any() -> None:
    first = day("a", cache_write_tokens=7_000)
    assert [line.text for line in day_lines([first], 7, TODAY)] == [
        "DAY    MODEL  CALLS       IN  CACHED  WRITTEN  OUT  COST",
        "today  a         12  120,000  80,000    7,000  900  0.2500 USD",
    ]
    assert [line.text for line in day_lines([first, day("b", 1, reasoning_tokens=600)], 7, TODAY)] == [
        "DAY         MODEL  CALLS       IN  CACHED  WRITTEN  OUT  REASONING  COST",
        "today       a         12  120,000  80,000    7,000  900          0  0.2500 USD",
        "2026-02-27  b         12  120,000  80,000        0  900        600  0.2500 USD",
    ]


def test_calls_without_a_price_or_an_end_are_told() -> None:
    lines = day_lines([day("m", unpriced_calls=2, unsettled=1_200)], 7, TODAY)
    assert lines[1].text.endswith("900  0.2500 USD and 2 without a price")
    assert lines[2:] == [
        Line("1,200 calls of these have no end yet, or were killed: they count as what was reserved for them.", "dim")
    ]


@pytest.mark.parametrize(("days", "words"), [(1, "today"), (7, "in the last 7 days")])
def test_without_calls_there_is_one_sentence(days: int, words: str) -> None:
    assert day_lines([], days, TODAY) == [Line(f"No model was called {words} (UTC).")]
    assert day_lines([], days, TODAY, "a") == [Line(f"No model was called {words} (UTC) for the account 'a'.")]
    assert day_lines([], days, TODAY, "") == [Line(f"No model was called {words} (UTC) by runs that name no account.")]


def spent(account: str, days_ago: int = 0, **changed: Any) -> AccountSpent:
    values: dict[str, Any] = {"calls": 1_200, "tokens": 5_000_000, "cost_usd": 0.1 + 0.2}
    last = TODAY - timedelta(days=days_ago)
    return AccountSpent(**{"account": account, "first_day": date(2026, 1, 2), "last_day": last, **values, **changed})


def test_an_account_has_a_line_with_all_that_it_has_used() -> None:
    lines = account_lines([spent("batch/nightly", unsettled=3), spent("", 1, calls=1, cost_usd=0.0, unpriced=1)], TODAY)
    assert lines == [
        Line("ACCOUNT        LAST USED   CALLS     TOKENS  COST", "bold"),
        Line("batch/nightly  today       1,200  5,000,000  0.3000 USD"),
        Line("(none)         2026-02-27      1  5,000,000  no price known"),
        Line("3 calls of these have no end yet, or were killed: they count as what was reserved for them.", "dim"),
    ]


def test_without_accounts_there_is_one_sentence() -> None:
    assert account_lines([], TODAY) == [Line("No model was called yet.")]
    assert account_lines([], TODAY, "a") == [Line("No model was called yet for the account 'a'.")]


def test_programs_get_the_accounts() -> None:
    assert account_objects([spent("a", 1, unpriced=2)]) == [
        {
            "account": "a",
            "calls": 1_200,
            "tokens": 5_000_000,
            "cost_usd": 0.3,
            "unpriced": 2,
            "unsettled": 0,
            "first_day": "2026-01-02",
            "last_day": "2026-02-27",
        }
    ]


def test_a_name_is_one_line() -> None:
    assert day_lines([day("a\nb")], 7, TODAY)[1].text.startswith("today  a b  ")


def test_programs_get_the_days_with_their_models() -> None:
    shown = day_objects([day("a", cost_usd=0.1 + 0.2), day("b"), day("a", 1)])
    assert [(each["day"], [model["model"] for model in each["models"]]) for each in shown] == [
        ("2026-02-28", ["a", "b"]),
        ("2026-02-27", ["a"]),
    ]
    assert shown[0]["models"][0] == {
        "day": "2026-02-28",
        "model": "a",
        "calls": 12,
        "input_tokens": 120_000,
        "output_tokens": 900,
        "cached_tokens": 80_000,
        "cost_usd": 0.3,
        "unpriced_calls": 0,
        "unsettled": 0,
        "seconds": 1.5,
        "reasoning_tokens": 0,
        "cache_write_tokens": 0,
    }


def book(base: Path, days_ago: int, account: str = "") -> None:
    store = SpendingStore(str(base), lambda: datetime.now(UTC) - timedelta(days=days_ago))
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=9, output_tokens=1, cost_usd=0.0)
    number = store.reserve(entry, RunLimits(account=account))
    assert isinstance(number, int)
    store.settle(number, Used(calls=1, input_tokens=5, output_tokens=1))
    store.close()


def test_the_command_shows_the_last_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    book(tmp_path, 0)
    book(tmp_path, 3)
    days = []
    for words in ([], ["--days", "3"], ["--days=4"]):
        assert cli.main(["usage", *words, "--json"]) == 0
        days.append(len(json.loads(capsys.readouterr().out)))
    assert days == [2, 1, 2]
    assert cli.main(["usage"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["today", "m", "1", "5", "0", "1"]


@pytest.mark.usefixtures("any_store")
def test_the_command_shows_accounts_and_the_days_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    book(tmp_path, 3, "a")
    book(tmp_path, 0, "b")
    book(tmp_path, 0)
    shown = {}
    for words in (["--account", "a"], ["--account="], ["--accounts"], ["--accounts", "--account", "b"]):
        assert cli.main(["usage", *words, "--json"]) == 0
        shown[" ".join(words)] = json.loads(capsys.readouterr().out)
    days = {words: [len(day["models"]) for day in shown[words]] for words in ("--account a", "--account=")}
    assert days == {"--account a": [1], "--account=": [1]}
    assert [each["account"] for each in shown["--accounts"]] == ["", "b", "a"]
    assert shown["--accounts --account b"] == shown["--accounts"][1:2]
    assert cli.main(["usage", "--accounts"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ACCOUNT", "(none)", "b", "a"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--accounts", "--days", "3"], "--accounts shows all that was ever used: omit --days"),
        (["--max-tokens-per-account", "5"], "--max-tokens-per-account is for new runs"),
        (["--account", "a\tb"], "an account's name is empty, or has 1 to 200 printable characters"),
    ],
)
def test_what_cannot_be_shown_is_one_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["usage", *words]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--accounts"]])
def test_a_book_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    (tmp_path / FILE_NAME).parent.mkdir(mode=0o700)
    (tmp_path / FILE_NAME).write_bytes(b"no database at all, only words " * 100)
    assert cli.main(["usage", *words]) == 4
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("mendgraph: The spending book cannot be read. ")


def test_as_many_days_can_be_asked_for_as_are_kept() -> None:
    assert opt.KEPT_DAYS == KEPT_DAYS
