"""What others said, as it may stand on a page."""

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.report.page import Bar, shared_bars, turn_bars
from mendgraph.graph.report.step_view import (
    Bounds,
    DiffLine,
    Field,
    Shown,
    Texts,
    cost_words,
    seconds_words,
)
from mendgraph.graph.spending.report import AccountSpent
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.secrets.redact import Redactor

CANARY = "kanarie-8471-vogel"
TEXTS = Texts(Redactor((CANARY,)), Bounds(text=20))


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    assert TEXTS.shown("a" * 20) == Shown("a" * 20)
    assert TEXTS.shown("a" * 25) == Shown("a" * 20, 5)
    assert TEXTS.shown("a" * 25, 10) == Shown("a" * 10, 15)
    assert TEXTS.shown("a" * 25, 1_000) == Shown("a" * 20, 5)


def test_secrets_go_before_anything_is_cut() -> None:
    shown = TEXTS.shown(f"0123456789 {CANARY}")
    assert CANARY[:4] not in shown.text
    assert TEXTS.line(f"key {CANARY}") == "key [redacted secret]"


def test_values_by_their_names() -> None:
    wide = Texts(Redactor(()), Bounds())
    many = [*range(100)]
    fields = wide.fields({"path": "a.py", "empty": "", "none": None, "no": False, "two": "a\nb", "many": many, "": 1})
    assert fields[:3] == [
        Field("path", Shown("a.py"), block=False),
        Field("no", Shown("false"), block=False),
        Field("two", Shown("a\nb"), block=True),
    ]
    assert (fields[3].name, fields[3].block, fields[3].value.text[:10]) == ("many", True, "[\n 0,\n 1,\n")
    assert fields[4] == Field("", Shown("1"), block=False)


def test_the_lines_of_a_diff() -> None:
    head = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n"
    diff = f"{head}-- old\n++ new\n same\n\\ No newline at end of file\n[... 3 more lines of this diff]\n"
    lines, left_out = Texts(Redactor(()), Bounds()).diff(diff)
    assert left_out == 0
    assert [line.kind for line in lines] == ["file", "file", "head", "removed", "added", "same", "note", "note"]
    assert lines[3] == DiffLine("removed", "-- old")
    assert TEXTS.diff("+" + "x" * 30)[1] == 11


SPENT = Spending(
    usage=APIUsageStats(20, 50_000, 1_000, 8), at_turn_start=APIUsageStats(12, 40_000, 900, 0), steps=7, seconds=30.0
)


def test_the_turn_against_its_limits() -> None:
    context = AgentContext(max_steps=7, max_seconds=60, max_input_tokens_per_turn=20_000)
    assert turn_bars(SPENT, context) == [
        Bar("Model calls", "8", "10", 0.8),
        Bar("Input tokens", "10,000", "20,000", 0.5),
        Bar("Output tokens", "100", "", None),
        Bar("Rounds of tools", "7", "7", 1.0),
        Bar("Time in model and tools", "30.0 s", "1 min 0 s", 0.5),
    ]
    assert turn_bars(SPENT, AgentContext())[-1] == Bar("Time in model and tools", "30.0 s", "", None)


def test_an_account_against_its_limits() -> None:
    used = AccountSpent(account="team", tokens=500, cost_usd=1.5)
    context = AgentContext(account="team", max_tokens_per_account=1_000, max_cost_usd_per_account=3.0)
    assert shared_bars(used, context.max_tokens_per_account, context.max_cost_usd_per_account) == [
        Bar("Tokens", "500", "1,000", 0.5),
        Bar("Cost", "1.5000 USD", "3 USD", 0.5),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.0125, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3_780, "1 h 3 min"),
    ],
)
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert seconds_words(seconds) == words


@pytest.mark.parametrize(
    ("cost", "unpriced", "words"),
    [
        (0.5, 0, "0.5000 USD"),
        (0.0, 1, "1 call without a known price"),
        (0.5, 1_200, "0.5000 USD and 1,200 calls without a known price"),
    ],
)
def test_no_price_is_guessed(cost: float, unpriced: int, words: str) -> None:
    assert cost_words(cost, unpriced) == words
