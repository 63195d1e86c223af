import math
from email.utils import formatdate

import pytest

from mendgraph.nodes.call_model.retry import retry_after_s, wait_before_retry
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

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
