import math
import time
from email.utils import formatdate

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.retry import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    MOST_WAITED_S,
    TRANSIENT,
    retry_after_s,
    wait_before_retry,
)
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

PERMANENT = frozenset(ProviderErrorKind) - TRANSIENT
NOW = 1_700_000_000.0


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
        (None, 5_000, 9_000, None, 30.0),
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


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0), (-1.0, 0.5), (7.0, 1.0)])
def test_half_of_the_backoff_is_fixed_and_half_is_jitter(jitter: float, wait: float) -> None:
    assert wait_before_retry(failure(BUSY), 2, 2, jitter=jitter) == wait
    assert wait_before_retry(failure(BUSY, 2.0), 2, 2, jitter=jitter) == 2.0


@pytest.mark.parametrize(
    ("waited", "wish", "wait"), [(59.5, None, 0.5), (59.6, None, None), (30.0, 30.0, 30.0), (30.1, 30.0, None)]
)
def test_all_waits_of_a_call_together_are_bounded(waited: float, wish: float | None, wait: float | None) -> None:
    assert wait_before_retry(failure(BUSY, wish), 1, 9, waited_s=waited) == wait


@pytest.mark.parametrize("kind", sorted(PERMANENT))
def test_what_is_wrong_is_never_sent_twice(kind: ProviderErrorKind) -> None:
    assert wait_before_retry(failure(kind, 0.0), 1, 10, None) is None


@pytest.mark.parametrize("kind", sorted(TRANSIENT))
def test_what_may_pass_is_tried_again(kind: ProviderErrorKind) -> None:
    assert wait_before_retry(failure(kind), 1, 1, None) == FIRST_WAIT_S


def test_an_open_circuit_is_waited_for_only_where_no_other_model_is_left() -> None:
    down = failure(ProviderErrorKind.CONNECTION, 7.0)
    left_alone = down.model_copy(update={"sent": False})
    assert [wait_before_retry(left_alone, 1, 2, is_last=last) for last in (True, False)] == [7.0, None]
    assert [wait_before_retry(down, 1, 2, is_last=last) for last in (True, False)] == [7.0, 7.0]


@given(
    st.sampled_from(ProviderErrorKind),
    st.none() | st.floats(),
    st.integers(1, 12),
    st.integers(0, 10),
    st.none() | st.floats(-10, 1_000),
    st.floats(0, 100),
    st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_short_and_fits_into_what_is_left(
    kind: ProviderErrorKind,
    wish: float | None,
    attempt: int,
    retries: int,
    seconds_left: float | None,
    waited: float,
    jitter: float,
) -> None:
    wait = wait_before_retry(failure(kind, wish), attempt, retries, seconds_left, waited_s=waited, jitter=jitter)
    if wait is not None:
        assert kind in TRANSIENT
        assert attempt <= retries
        assert 0.0 <= wait <= LONGEST_WAIT_S
        assert waited + wait <= MOST_WAITED_S
        assert seconds_left is None or wait < seconds_left


@given(st.integers(1, 40), st.floats(0, 1))
def test_a_backoff_lies_between_half_and_the_whole_of_its_step(attempt: int, jitter: float) -> None:
    whole = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S)
    wait = wait_before_retry(failure(BUSY), attempt, attempt, jitter=jitter)
    assert wait is not None
    assert whole / 2 <= wait <= whole


# --- The header


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        ("-3", 0.0),
        (formatdate(NOW + 90, usegmt=True), 90.0),
        (formatdate(NOW - 90, usegmt=True), 0.0),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10.0),
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10.0),
        ("Tue Nov 14 22:13:30 2023", 10.0),
        ("Tue, 14 Nov 2023 23:13:30 +0100", 10.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("Tue, 99 Nov 2023 22:13:30 GMT", None),
        ("9" * 5_000, None),
    ],
)
def test_the_header_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


@given(st.text(max_size=120) | st.from_regex(r"[A-Z][a-z]{2}, \d{1,4} [A-Z][a-z]{2} -?\d{1,9} [\d:]{1,9} [+-]?\d{1,9}"))
def test_any_header_gives_a_finite_wait_or_none(value: str) -> None:
    seconds = retry_after_s(value, NOW)
    assert seconds is None or 0.0 <= seconds < math.inf


def test_without_more_said_it_is_the_first_wait_on_the_last_model() -> None:
    unsent = failure(BUSY, 1.0).model_copy(update={"sent": False})
    assert wait_before_retry(unsent, 1, 3) == 1.0
    assert wait_before_retry(failure(BUSY), 1, 3) == FIRST_WAIT_S
    whole = failure(BUSY, LONGEST_WAIT_S)
    assert wait_before_retry(whole, 1, 3, waited_s=MOST_WAITED_S - LONGEST_WAIT_S) == LONGEST_WAIT_S


def test_a_date_without_its_zone_is_in_utc_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "UTC+5")
        time.tzset()
        assert retry_after_s("Thu, 01 Jan 1970 00:01:40 -0000", 40.0) == 60.0
        assert retry_after_s("Thu, 01 Jan 1970 02:01:40 +0200", 40.0) == 60.0
    time.tzset()
