import math

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.retry import FIRST_WAIT_S, LONGEST_WAIT_S, TRANSIENT, wait_before_retry
from nodes.records import ProviderErrorKind, ProviderFailure

PERMANENT = frozenset(ProviderErrorKind) - TRANSIENT


def failure(kind: ProviderErrorKind, retry_after_s: float | None = None) -> ProviderFailure:
    return ProviderFailure(kind=kind, message="m", retry_after_s=retry_after_s)


BUSY = ProviderErrorKind.RATE_LIMITED


@pytest.mark.parametrize(
    ("wish", "attempt", "retries", "seconds_left", "wait"),
    [
        (None, 1, 2, None, 0.5),
        (None, 2, 2, None, 1.0),
        (None, 3, 2, None, None),
        (None, 1, 0, None, None),
        (None, 8, 10, None, 30.0),
        (2.5, 1, 2, None, 2.5),
        (0.0, 2, 2, None, 0.0),
        (30.0, 1, 2, None, 30.0),
        (30.1, 1, 2, None, None),
        (None, 1, 2, 0.6, 0.5),
        (None, 1, 2, 0.5, None),
        (2.0, 1, 2, 1.0, None),
        (math.nan, 1, 2, None, 0.0),
        (-3.0, 1, 2, None, 0.0),
    ],
)
def test_how_long_to_wait(
    wish: float | None, attempt: int, retries: int, seconds_left: float | None, wait: float | None
) -> None:
    assert wait_before_retry(failure(BUSY, wish), attempt, retries, seconds_left) == wait


@pytest.mark.parametrize("kind", sorted(PERMANENT))
def test_what_is_wrong_is_never_sent_twice(kind: ProviderErrorKind) -> None:
    assert wait_before_retry(failure(kind, 0.0), 1, 10, None) is None


@pytest.mark.parametrize("kind", sorted(TRANSIENT))
def test_what_may_pass_is_tried_again(kind: ProviderErrorKind) -> None:
    assert wait_before_retry(failure(kind), 1, 1, None) == FIRST_WAIT_S


@given(
    st.sampled_from(ProviderErrorKind),
    st.none() | st.floats(),
    st.integers(1, 12),
    st.integers(0, 10),
    st.none() | st.floats(-10, 1_000),
)
def test_a_wait_is_short_and_fits_into_what_is_left(
    kind: ProviderErrorKind, wish: float | None, attempt: int, retries: int, seconds_left: float | None
) -> None:
    wait = wait_before_retry(failure(kind, wish), attempt, retries, seconds_left)
    if wait is not None:
        assert kind in TRANSIENT
        assert attempt <= retries
        assert 0.0 <= wait <= LONGEST_WAIT_S
        assert seconds_left is None or wait < seconds_left
