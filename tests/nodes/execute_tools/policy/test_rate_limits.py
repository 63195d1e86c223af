import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.policy.rate_limits import RateLimit, RateWindow, quota_problem


class SlowLimit(RateLimit):
    """A limit that lets other threads go first whenever its calls are looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name == "calls":
            time.sleep(0.001)
        return super().__getattribute__(name)


TWO_IN_TEN = RateLimit(calls=2, seconds=10.0)


@pytest.mark.parametrize(("calls", "seconds"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, float("inf"))])
def test_a_limit_that_makes_no_sense_is_refused(calls: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="A rate limit needs at least one call and a positive time, not RateLimit"):
        RateLimit(calls, seconds)


def test_calls_pass_up_to_the_limit_and_the_next_one_learns_how_long_to_wait() -> None:
    window = RateWindow()
    assert [window.take("a", TWO_IN_TEN, now) for now in (0.0, 4.0, 5.0, 9.5, 10.0, 10.5, 14.0)] == [
        0.0,
        0.0,
        5.0,
        0.5,
        0.0,  # the call at 0 counts no longer
        3.5,
        0.0,
    ]


def test_what_is_refused_does_not_count() -> None:
    window = RateWindow()
    waits = [window.take("a", RateLimit(1, 10.0), now) for now in (0.0, 1.0, 2.0, 9.0, 10.0)]
    assert waits == [0.0, 9.0, 8.0, 1.0, 0.0]


def test_each_key_is_counted_apart() -> None:
    window = RateWindow()
    once = RateLimit(1, 10.0)
    assert [window.take(key, once, 0.0) for key in ("a", "b", "a", "b")] == [0.0, 0.0, 10.0, 10.0]


def test_a_limit_may_change_between_two_calls() -> None:
    window = RateWindow()
    three = RateLimit(3, 10.0)
    assert [window.take("a", three, now) for now in (0.0, 1.0, 2.0)] == [0.0, 0.0, 0.0]
    assert window.take("a", RateLimit(1, 10.0), 3.0) == 9.0
    assert window.take("a", RateLimit(4, 10.0), 3.0) == 0.0
    assert window.take("a", RateLimit(1, 1.0), 4.0) == 0.0


def test_a_clock_that_was_read_before_the_lock_was_had_lets_nothing_through() -> None:
    window = RateWindow()
    assert [window.take("a", TWO_IN_TEN, now) for now in (5.0, 4.0, 14.5, 15.0)] == [0.0, 0.0, 0.5, 0.0]
    full = RateWindow(most_keys=1)
    assert [full.take("a", TWO_IN_TEN, now) for now in (5.0, 4.0)] == [0.0, 0.0]
    assert full.take("b", TWO_IN_TEN, 14.5) == 0.5


def test_where_too_many_keys_are_live_a_new_one_waits_and_no_limit_is_lifted() -> None:
    window = RateWindow(most_keys=2)
    once = RateLimit(1, 10.0)
    assert [window.take(key, once, now) for key, now in (("a", 0.0), ("b", 1.0), ("c", 3.0))] == [0.0, 0.0, 7.0]
    assert window.take("a", once, 3.0) == 7.0
    assert window.take("c", once, 10.0) == 0.0
    assert window.take("b", once, 10.0) == 1.0
    assert len(window._windows) == 2


def test_a_key_whose_limit_grew_is_kept_for_as_long_as_it_counts() -> None:
    window = RateWindow(most_keys=1)
    assert [window.take("a", RateLimit(2, seconds), 0.0) for seconds in (1.0, 10.0)] == [0.0, 0.0]
    assert window.take("b", RateLimit(1, 1.0), 5.0) == 5.0


@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.lists(st.integers(0, 8), max_size=60),
)
def test_no_window_holds_more_calls_than_allowed_and_none_is_refused_without_need(
    calls: int, seconds: int, steps: list[int]
) -> None:
    window, limit, admitted, now = RateWindow(), RateLimit(calls, float(seconds)), deque[int](), 0
    for step in steps:
        now += step
        counting = [start for start in admitted if now - start < seconds]
        wait = window.take("k", limit, float(now))
        assert wait == (0.0 if len(counting) < calls else counting[-calls] + seconds - now)
        if wait == 0.0:
            admitted.append(now)
    assert len(window._windows["k"].starts if steps else ()) <= calls


def test_threads_together_get_no_more_than_the_limit() -> None:
    window, limit, start = RateWindow(), SlowLimit(10, 10.0), threading.Barrier(8)

    def take_many(_: int) -> int:
        start.wait()
        return sum(window.take("a", limit, 1.0) == 0.0 for _ in range(3))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take_many, range(8))) == 10


@pytest.mark.parametrize(
    ("used", "quota", "problem"),
    [
        (0, None, ""),
        (1_000, None, ""),
        (0, 1, ""),
        (4, 5, ""),
        (5, 5, "The quota of fetch is used up: it may be called 5 times. Go on with what you have."),
        (6, 5, "The quota of fetch is used up: it may be called 5 times. Go on with what you have."),
        (1, 1, "The quota of fetch is used up: it may be called once. Go on with what you have."),
        (0, 0, "The quota of fetch is 0 calls: go on without it."),
        (0, -1, "The quota of fetch is 0 calls: go on without it."),
    ],
)
def test_a_quota(used: int, quota: int | None, problem: str) -> None:
    assert quota_problem("fetch", used, quota) == problem
