import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mendgraph.nodes.execute_tools.policy.circuit_breaker import BreakerConfig, Breakers, BreakerState, CircuitBreaker

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowConfig(BreakerConfig):
    """A configuration that lets other threads go first whenever a bound is looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"failures", "half_open_calls"}:
            time.sleep(0.001)
        return super().__getattribute__(name)


class SlowBound(int):
    """The same for the bound on breakers."""

    def __le__(self, other: int) -> bool:
        time.sleep(0.001)
        return super().__le__(other)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock, half_open_calls: int = 1) -> CircuitBreaker:
    """A breaker that opened at 0 s and may be tried at 10 s."""
    breaker = CircuitBreaker(BreakerConfig(failures=2, open_s=10.0, half_open_calls=half_open_calls), clock)
    breaker.failed()
    breaker.failed()
    return breaker


def test_the_defaults() -> None:
    assert BreakerConfig() == BreakerConfig(failures=5, open_s=30.0, half_open_calls=1)


@pytest.mark.parametrize(
    ("failures", "open_s", "half_open_calls"), [(0, 1.0, 1), (1, 0.0, 1), (1, float("inf"), 1), (1, 1.0, 0)]
)
def test_a_configuration_that_makes_no_sense_is_refused(failures: int, open_s: float, half_open_calls: int) -> None:
    with pytest.raises(ValueError, match="A circuit breaker needs a failure, a probe and a positive time at least"):
        BreakerConfig(failures, open_s, half_open_calls)


def test_failures_in_a_row_open_it(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=3, open_s=10.0), clock)
    for _ in range(2):
        breaker.failed()
    assert (breaker.admit(), breaker.state) == (0.0, CLOSED)
    breaker.failed()
    clock.now = 4.0
    assert (breaker.admit(), breaker.state) == (6.0, OPEN)


def test_a_success_between_failures_begins_the_count_anew(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=2, open_s=10.0), clock)
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert breaker.state is CLOSED


def test_an_abandoned_call_neither_counts_nor_clears(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=2, open_s=10.0), clock)
    breaker.failed()
    breaker.abandoned()
    assert breaker.state is CLOSED
    breaker.failed()
    assert breaker.state is OPEN


@pytest.mark.parametrize("probes", [1, 3])
def test_after_the_time_exactly_the_probes_pass(clock: Clock, probes: int) -> None:
    breaker = opened(clock, probes)
    clock.now = 10.0
    assert breaker.state is HALF_OPEN
    assert [breaker.admit() for _ in range(probes + 2)] == [0.0] * probes + [10.0, 10.0]


def test_a_probe_that_works_closes_it_and_the_count_begins_anew(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    breaker.succeeded()
    assert breaker.state is CLOSED
    breaker.failed()
    assert breaker.state is CLOSED


def test_a_probe_that_fails_opens_it_for_the_whole_time(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 11.0
    breaker.admit()
    clock.now = 13.0
    breaker.failed()
    assert (breaker.state, breaker.admit()) == (OPEN, 10.0)
    clock.now = 23.0
    assert breaker.admit() == 0.0


def test_an_abandoned_probe_gives_its_place_back_at_once(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    breaker.abandoned()
    breaker.abandoned()
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]


def test_a_probe_that_never_reports_does_not_keep_it_shut_for_good(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    clock.now = 19.0
    assert breaker.admit() == 1.0
    clock.now = 20.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]


@pytest.mark.parametrize("now", [1.0, 10.0])
@pytest.mark.parametrize("report", ["succeeded", "failed", "abandoned"])
def test_a_late_word_of_an_older_call_changes_nothing(clock: Clock, now: float, report: str) -> None:
    breaker, untouched = opened(clock), opened(clock)
    clock.now = now
    getattr(breaker, report)()
    assert (breaker.state, breaker.admit(), breaker.admit()) == (untouched.state, untouched.admit(), untouched.admit())


class AgainstAModel(RuleBasedStateMachine):
    """The model is a list of what happened, read from its end; times are whole seconds."""

    @initialize(failures=st.integers(1, 4), open_s=st.integers(1, 10), probes=st.integers(1, 3))
    def begin(self, failures: int, open_s: int, probes: int) -> None:
        self.clock = Clock()
        self.most_failures, self.open_s, self.most_probes = failures, open_s, probes
        self.breaker = CircuitBreaker(BreakerConfig(failures, float(open_s), probes), self.clock)
        self.closed, self.streak, self.opened_at, self.probes = True, 0, 0.0, list[float]()

    def expected_state(self) -> BreakerState:
        if self.closed:
            return CLOSED
        return OPEN if self.clock.now < self.opened_at + self.open_s else HALF_OPEN

    def live_probes(self) -> list[float]:
        """All places are given back when nothing was heard since the last probe went out."""
        return self.probes if self.probes and self.clock.now < self.probes[-1] + self.open_s else []

    @rule(seconds=st.integers(0, 12))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds
        self.probes = self.live_probes()

    @rule()
    def somebody_asks(self) -> None:
        wait, state = self.breaker.admit(), self.expected_state()
        if state is OPEN:
            assert wait == self.opened_at + self.open_s - self.clock.now
        elif state is HALF_OPEN and len(self.probes) == self.most_probes:
            assert wait == self.probes[-1] + self.open_s - self.clock.now
        else:
            assert wait == 0.0
            self.probes += [self.clock.now] if state is HALF_OPEN else []

    @rule()
    def somebody_succeeds(self) -> None:
        self.breaker.succeeded()
        if self.expected_state() is CLOSED or self.probes:
            self.closed, self.streak, self.probes = True, 0, []

    @rule()
    def somebody_fails(self) -> None:
        self.breaker.failed()
        state = self.expected_state()
        if state is CLOSED:
            self.streak += 1
        if self.probes or self.streak == self.most_failures:
            self.closed, self.streak, self.probes, self.opened_at = False, 0, [], self.clock.now

    @rule()
    def somebody_gives_up(self) -> None:
        self.breaker.abandoned()
        if self.probes:
            self.probes.pop(0)
            self.probes = self.probes or []

    @invariant()
    def the_states_agree(self) -> None:
        if hasattr(self, "breaker"):
            assert self.breaker.state is self.expected_state()


TestAgainstAModel = AgainstAModel.TestCase


def test_threads_get_exactly_the_probes(clock: Clock) -> None:
    breaker, start = CircuitBreaker(SlowConfig(1, 10.0, half_open_calls=3), clock), threading.Barrier(8)
    breaker.failed()
    clock.now = 10.0

    def ask(_: int) -> int:
        start.wait()
        return sum(breaker.admit() == 0.0 for _ in range(3))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 3


def test_no_failure_of_any_thread_is_lost(clock: Clock) -> None:
    breaker, start = CircuitBreaker(SlowConfig(failures=40), clock), threading.Barrier(8)

    def fail(_: int) -> None:
        start.wait()
        for _ in range(5):
            assert breaker.state is CLOSED
            breaker.failed()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fail, range(8)))
    assert breaker.state is OPEN


def test_each_name_has_a_breaker_of_its_own(clock: Clock) -> None:
    breakers = Breakers(BreakerConfig(failures=1), clock)
    breakers.of("a").failed()
    assert (breakers.of("a").state, breakers.of("b").state) == (OPEN, CLOSED)
    assert breakers.of("a") is breakers.of("a")


def test_beyond_the_bound_a_breaker_at_rest_is_forgotten_first(clock: Clock) -> None:
    breakers = Breakers(BreakerConfig(failures=2), clock, most=3)
    breakers.of("open").failed()
    breakers.of("open").failed()
    breakers.of("counting").failed()
    resting = breakers.of("resting")
    breakers.of("new")
    assert breakers.of("open").state is OPEN
    assert breakers.of("counting").at_rest is False
    assert breakers.of("resting") is not resting


def test_where_none_is_at_rest_the_one_unused_for_the_longest_is_forgotten(clock: Clock) -> None:
    breakers = Breakers(BreakerConfig(failures=1), clock, most=2)
    for name in ("a", "b"):
        breakers.of(name).failed()
    breakers.of("a")
    breakers.of("c").failed()
    assert [breakers.of("a").state, breakers.of("c").state] == [OPEN, OPEN]
    assert breakers.of("b").state is CLOSED


def test_threads_that_ask_for_one_name_get_one_breaker(clock: Clock) -> None:
    breakers, start = Breakers(BreakerConfig(), clock, most=SlowBound(50)), threading.Barrier(8)

    def ask(_: int) -> list[CircuitBreaker]:
        start.wait()
        return [breakers.of(f"tool {number}") for number in range(5)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert all(each == found[0] for each in found)
