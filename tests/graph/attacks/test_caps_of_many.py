"""Whoever reserves, settles and is killed, in whatever order: an account's calls never pass its cap together."""

import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.graph.spending.store import SpendingStore, account_spent
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used
from mendgraph.nodes.records import StopCause, StopReason, ToolError
from tests.graph.spending.reserving import CAP, TRIES
from tests.graph.spending.spending_entries import Clock, entry, rows

BOOKS = 3
EXAMPLES = count()

WHO = st.integers(0, BOOKS - 1)
RESERVE = st.tuples(st.just("reserve"), WHO, st.integers(1, 400), st.sampled_from("ab"))
SETTLE = st.tuples(st.just("settle"), WHO, st.sampled_from([0, 30, 100, 100, 250]), st.just(""))
KILL = st.tuples(st.just("kill"), WHO, st.just(0), st.just(""))
MOVES = st.lists(st.one_of(RESERVE, RESERVE, SETTLE, SETTLE, KILL), min_size=5, max_size=30)


class Process:
    """A process with a book of its own. `counted` is what the book holds of each call, `truth` what it has used."""

    def __init__(self, folder: str, counted: dict[int, int]) -> None:
        self.folder, self.counted = folder, counted
        self.book = SpendingStore(folder, Clock())
        self.open: list[tuple[int, Entry, str]] = []
        self.unwritten: dict[int, int] = {}

    def reserve(self, tokens: int, limits: RunLimits) -> int | StopCause:
        """Ask for a call. What was settled before is written with it."""
        call = entry(limits.account, tokens, cost=None)
        self.counted.update(self.unwritten)
        self.unwritten = {}
        answer = self.book.reserve(call, limits)
        if isinstance(answer, int):
            self.counted[answer] = tokens
            self.open.append((answer, call, limits.account))
        return answer

    def settle(self, share: int) -> tuple[int, int]:
        """Settle the oldest open call with this share of its reservation, in percent; its number, and what was used."""
        number, call, _ = self.open.pop(0)
        reserved = call.input_tokens + call.output_tokens
        tokens = reserved * share // 100
        self.book.settle(number, Used(calls=1, input_tokens=tokens, cost_usd=None))
        self.unwritten[number] = tokens
        if tokens > reserved:  # is written at once, with all that was settled before
            self.counted.update(self.unwritten)
            self.unwritten = {}
        return number, tokens

    def kill(self) -> None:
        """What was not written is lost, and what was reserved counts."""
        self.book._settled.clear()
        self.book.close()
        self.book, self.open, self.unwritten = SpendingStore(self.folder, Clock()), [], {}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES, cap=st.integers(100, 1_500))
@pytest.mark.usefixtures("any_store")
def test_no_course_of_events_passes_an_accounts_cap(tmp_path: Path, moves: list[Any], cap: int) -> None:
    example = next(EXAMPLES)
    counted: dict[int, int] = {}
    truth: dict[int, int] = {}
    account_of: dict[int, str] = {}
    beyond = Counter[str]()
    processes = [Process(str(tmp_path), counted) for _ in range(BOOKS)]
    for kind, who, number, name in moves:
        process = processes[who]
        if kind == "kill":
            process.kill()
        elif kind == "reserve":
            account = f"{name}{example}"
            answer = process.reserve(number, RunLimits(account=account, max_tokens_per_account=cap))
            before = sum(tokens for each, tokens in counted.items() if account_of.get(each) == account)
            assert isinstance(answer, int) == (before + number <= cap)
            if isinstance(answer, int):
                truth[answer], account_of[answer] = number, account
        elif process.open:
            reserved = truth[process.open[0][0]]
            settled, used = process.settle(number)
            truth[settled] = used
            beyond[account_of[settled]] += max(0, used - reserved)
        for each in {*account_of.values()}:
            assert sum(truth[call] for call in truth if account_of[call] == each) <= cap + beyond[each]
    for process in processes:
        process.counted.update(process.unwritten)
        process.book.close()
    for each in {*account_of.values()}:
        spent = account_spent(each, str(tmp_path))
        assert not isinstance(spent, ToolError)
        assert spent.tokens == sum(tokens for call, tokens in counted.items() if account_of[call] == each)


@pytest.mark.usefixtures("any_store")
def test_four_processes_that_are_killed_get_exactly_the_calls_that_fit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.graph.spending.reserving", str(tmp_path)]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    running = [subprocess.Popen([*command, f"t{number}"], **pipes) for number in range(4)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120) for process in running]
    assert [errors for _, errors in told] == [""] * 4
    answers = [answer for output, _ in told for answer in output.split()]
    numbers = [answer for answer in answers if answer.isdigit()]
    assert [process.returncode for process in running] == [-9] * 4
    assert (len(answers), len(numbers), len(set(numbers))) == (4 * TRIES, 20, 20)
    assert set(answers) - set(numbers) == {StopReason.ACCOUNT_LIMIT}
    assert rows(tmp_path, "SELECT count(*) FROM entries") == [(20,)]
    assert rows(tmp_path, "SELECT account, calls, tokens, cost_usd FROM accounts") == [(CAP.account, 20, 2_000, 5.0)]
