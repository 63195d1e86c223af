from concurrent.futures import ThreadPoolExecutor

import pytest

from mendgraph.nodes.execute_tools.call_policy import MOST_BREAKERS, BreakerConfig, Breakers, CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock) -> CircuitBreaker:
    """A breaker that opened at 0 s and may be tried at 10 s."""
    breaker = CircuitBreaker(BreakerConfig(failures=2, open_s=10.0), clock)
    breaker.failed()
    breaker.failed()
    return breaker


@pytest.mark.parametrize(("failures", "open_s"), [(0, 1.0), (1, 0.0), (1, float("inf"))])
def test_a_configuration_that_makes_no_sense_is_refused(failures: int, open_s: float) -> None:
    with pytest.raises(ValueError, match="A circuit breaker needs a failure and a positive time at least"):
        BreakerConfig(failures, open_s)


def test_failures_in_a_row_open_it(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=3, open_s=10.0), clock)
    for each in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed, breaker.abandoned):
        each()
    assert breaker.admit() == 0.0
    breaker.failed()
    clock.now = 4.0
    assert breaker.admit() == 6.0


@pytest.mark.parametrize(
    ("report", "waits"), [("succeeded", [0.0, 0.0]), ("failed", [10.0, 10.0]), ("abandoned", [0.0, 10.0])]
)
def test_one_probe_may_try_and_its_report_decides(clock: Clock, report: str, waits: list[float]) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]
    getattr(breaker, report)()
    assert [breaker.admit(), breaker.admit()] == waits


def test_the_late_word_of_an_older_call_changes_nothing(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 4.0
    for each in (breaker.succeeded, breaker.failed, breaker.abandoned):
        each()
    assert breaker.admit() == 6.0


def test_a_probe_that_never_reports_does_not_keep_it_shut_for_good(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    clock.now = 19.0
    assert breaker.admit() == 1.0
    clock.now = 20.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]


def test_breakers_are_kept_by_name_for_all_threads_and_bounded(clock: Clock) -> None:
    breakers = Breakers(BreakerConfig(), clock)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [breakers.of(f"tool {number}") for number in range(5)], range(8)))
    assert all(each == found[0] for each in found)
    for number in range(MOST_BREAKERS):
        breakers.of(f"other {number}")
    assert breakers.of("tool 0") is not found[0][0]
