"""Whatever endpoints report and whenever a process is killed: no limit is passed, and no resume gives anything back."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings, strategies as st

from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.ledger import (
    Entry,
    Reservation,
    RunLimits,
    Spending,
    Used,
    charge,
    charge_lost,
    measured,
    priced,
    reserve,
)
from mendgraph.nodes.call_model.prices import Price, cache_parts, cost_of
from mendgraph.nodes.call_model.prompts.estimates import estimate_input
from mendgraph.nodes.records import StopCause, StopReason
from tests.extent import LEVEL

PRICE = Price(input=4.0, output=16.0, cached_input=2.0)
LIMITS = st.builds(
    RunLimits,
    api=st.builds(
        APILimits, st.integers(3, 30), st.integers(3, 30), st.integers(2_000, 20_000), st.integers(300, 3_000)
    ),
    max_output_tokens_per_call=st.integers(16, 200),
    max_cost_usd=st.none() | st.floats(0.001, 0.02),
    max_tokens_per_day=st.none() | st.integers(2_000, 20_000),
)
HONEST = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
LYING = st.tuples(st.floats(-2, 5), st.floats(-2, 5), st.floats(-1, 5))
FATES = st.sampled_from(["settled", "settled", "settled", "killed in the call", "killed after it", "never sent"])
CALL = st.tuples(st.just("call"), st.sampled_from("ab"), st.integers(300, 6_000), st.one_of(HONEST, LYING), FATES)
OTHER = st.tuples(
    st.sampled_from(["checkpoint", "checkpoint", "go back"]),
    st.sampled_from("ab"),
    st.integers(0, 20),
    st.just((0.0, 0.0, 0.0)),
    st.just(""),
)
MOVES = st.lists(st.one_of(CALL, CALL, OTHER), min_size=4, max_size=20)


class Thread:
    """One thread: its counters, its checkpoints, and what it has really used, which nothing of ours can see."""

    def __init__(self, name: str, limits: RunLimits, book: SpendingStore) -> None:
        self.name, self.limits, self.book = name, limits, book
        self.spending = Spending()
        self.checkpoints = [self.spending]
        self.truth = Used()
        self.unsettled = 0
        """By how many tokens the book still counts more than was used: the last call's, until the next is entered."""

    def go_back(self, how_far: int) -> None:
        """Resume at a checkpoint; with 0 it is the last one."""
        self.spending = self.checkpoints[max(0, len(self.checkpoints) - 1 - how_far)]

    def call(self, size: int, shares: tuple[float, float, float], fate: str, others: list["Thread"]) -> None:
        """Make one call, or be refused."""
        self._charge_what_was_lost()
        leave = reserve(self.spending, self.limits, estimate_input(size, 3, self.spending.gauge), PRICE)
        if isinstance(leave, StopCause):
            return
        self._assert_it_fits(leave)
        assert leave.cost_usd is not None
        entry = Entry(
            thread=self.name,
            model="m",
            purpose="reply",
            input_tokens=leave.input_tokens,
            output_tokens=leave.max_output_tokens,
            cost_usd=leave.cost_usd,
        )
        number = self.book.reserve(entry, self.limits)
        used = sum(each.truth.input_tokens + each.truth.output_tokens for each in (self, *others))
        counted = used + sum(each.unsettled for each in others)
        asked = leave.input_tokens + leave.max_output_tokens
        fits = self.limits.max_tokens_per_day is None or counted + asked <= self.limits.max_tokens_per_day
        assert isinstance(number, int) == fits
        self.unsettled = 0
        if isinstance(number, StopCause):
            assert number.reason is StopReason.DAY_LIMIT
            return
        self._end(leave, number, size, shares, fate)
        self._assert_no_limit_is_passed(leave)

    def _charge_what_was_lost(self) -> None:
        before = self.spending.usage
        lost, number = self.book.lost(self.name, self.spending.booked)
        self.spending = charge_lost(self.spending, lost, number)
        usage, truth = self.spending.usage, self.truth
        assert usage[:3] == (truth.calls, truth.input_tokens, truth.output_tokens)
        assert abs(self.spending.cost_usd - (truth.cost_usd or 0.0)) < 1e-9
        assert all(now >= then for now, then in zip(usage, before, strict=True))

    def _end(self, leave: Reservation, number: int, size: int, shares: tuple[float, float, float], fate: str) -> None:
        before = self.spending
        if fate == "killed in the call":
            self._used(1, leave.input_tokens, leave.max_output_tokens, leave.cost_usd or 0.0)
            self.go_back(0)
            return
        if fate == "never sent":
            self.book.settle(number, Used())
            self.unsettled = leave.input_tokens + leave.max_output_tokens
            self.spending = before.model_copy(update={"booked": number})
            return
        told = int(leave.input_tokens * shares[0])
        output, cached = int(leave.max_output_tokens * shares[1]), int(told * shares[2])
        counted = Used(calls=1, input_tokens=told, output_tokens=output, cached_tokens=cached, seconds=1.0)
        self.spending = charge(before, priced(counted, PRICE))
        self.spending = measured(self.spending, size, 3, told).model_copy(update={"booked": number})
        now, then = self.spending, before
        used = Used(
            calls=1,
            input_tokens=now.usage.total_input_tokens - then.usage.total_input_tokens,
            output_tokens=now.usage.total_output_tokens - then.usage.total_output_tokens,
            cached_tokens=now.cached_tokens - then.cached_tokens,
            cost_usd=now.cost_usd - then.cost_usd,
        )
        self.book.settle(number, used)
        taken = used.input_tokens + used.output_tokens
        more = (used.cost_usd or 0.0) > (leave.cost_usd or 0.0)
        self.unsettled = 0 if more else max(0, leave.input_tokens + leave.max_output_tokens - taken)
        inputs, outputs = max(told, 0), max(output, 0)
        self._used(1, inputs, outputs, cost_of(PRICE, inputs, outputs, *cache_parts(told, cached, 0)))
        if fate == "killed after it":
            self.go_back(0)

    def _used(self, calls: int, inputs: int, outputs: int, cost: float) -> None:
        truth = self.truth
        self.last = (inputs, outputs, cost)
        self.truth = Used(
            calls=truth.calls + calls,
            input_tokens=truth.input_tokens + inputs,
            output_tokens=truth.output_tokens + outputs,
            cost_usd=(truth.cost_usd or 0.0) + cost,
        )

    def _assert_it_fits(self, leave: Reservation) -> None:
        api, truth = self.limits.api, self.truth
        assert truth.calls < min(api.max_calls_per_session, api.max_calls_per_turn)
        assert truth.input_tokens + leave.input_tokens <= api.max_input_tokens_per_session
        assert truth.output_tokens + leave.max_output_tokens <= api.max_output_tokens_per_session
        if self.limits.max_cost_usd is not None:
            assert (truth.cost_usd or 0.0) + (leave.cost_usd or 0.0) <= self.limits.max_cost_usd + 1e-9

    def _assert_no_limit_is_passed(self, leave: Reservation) -> None:
        """But by what this one call used beyond its own reservation."""
        if self.truth.calls == 0:
            return
        api, truth, (inputs, outputs, cost) = self.limits.api, self.truth, self.last
        most_input = api.max_input_tokens_per_session + max(0, inputs - leave.input_tokens)
        most_output = api.max_output_tokens_per_session + max(0, outputs - leave.max_output_tokens)
        assert truth.calls <= api.max_calls_per_session
        assert (truth.input_tokens <= most_input, truth.output_tokens <= most_output) == (True, True)
        if self.limits.max_cost_usd is not None:
            excess = max(0.0, cost - (leave.cost_usd or 0.0))
            assert (truth.cost_usd or 0.0) <= self.limits.max_cost_usd + excess + 1e-9


@contextmanager
def books(count: int) -> Iterator[list[SpendingStore]]:
    """As many processes' connections to one book."""
    with TemporaryDirectory() as folder:
        opened = [SpendingStore(folder, lambda: datetime(2026, 2, 28, tzinfo=UTC)) for _ in range(count)]
        try:
            yield opened
        finally:
            for book in opened:
                book.close()


@settings(max_examples=(20, 40, 200)[LEVEL])
@given(LIMITS, MOVES)
def test_no_course_of_calls_and_kills_passes_a_limit(limits: RunLimits, moves: list[Any]) -> None:
    with books(2) as (first, second):
        threads = {"a": Thread("a", limits, first), "b": Thread("b", limits, second)}
        for kind, name, number, shares, fate in moves:
            thread = threads[name]
            if kind == "checkpoint":
                thread.checkpoints.append(thread.spending)
            elif kind == "go back":
                thread.go_back(number)
            else:
                others = [each for each in threads.values() if each is not thread]
                thread.call(number, shares, fate, others)
