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


def test_a_probe_that_never_reports_does_not_keep_it_shut_for_good(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    clock.now = 19.0
    assert breaker.admit() == 1.0
    clock.now = 20.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]


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
