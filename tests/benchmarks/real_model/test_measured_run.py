from hypothesis import given, strategies as st

from benchmarks.real_model.measured_run import Limits, MeasuredRun
from tests.benchmarks.real_model.samples import call


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(clock: Clock, *, greedy: bool = True, **limits: float) -> MeasuredRun:
    return MeasuredRun(1, Limits.model_validate(limits), greedy, clock)


@given(st.integers(0, 20), st.integers(0, 30))
def test_no_more_calls_are_admitted_than_allowed(allowed: int, asked: int) -> None:
    run = begun(Clock(), calls=allowed)
    assert [run.admit() for _ in range(asked)].count("") == min(allowed, asked)
    assert run.refused == ("limit_calls" if asked > allowed else "")


def test_no_call_is_admitted_after_the_time() -> None:
    clock = Clock()
    run = begun(clock, seconds=150)
    clock.now += 149.9
    assert run.admit() == ""
    clock.now += 0.1
    assert (run.admit(), run.refused) == ("limit_time", "limit_time")


def test_the_time_of_replayed_replies_counts_as_if_it_had_passed() -> None:
    run = begun(Clock(), seconds=10)
    run.settle(call(seconds=9.0, replayed=True))
    run.settle(call(seconds=9.0))
    assert (run.saved_s, run.admit()) == (9.0, "")
    run.settle(call(seconds=1.0, replayed=True))
    assert run.admit() == "limit_time"
