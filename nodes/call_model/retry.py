"""Which failures are worth another try of this model, after how long, or one of the next model.

Pure: the caller sleeps, tells the time and draws the jitter. What the endpoint calls wrong is never sent twice.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

TRANSIENT = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.CONNECTION,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.INCOMPLETE_STREAM,
    }
)
"""What may pass by itself. Anything else is permanent: the same request would fail in the same way."""

UNUSABLE: Final = frozenset({ProviderErrorKind.AUTHENTICATION, ProviderErrorKind.MODEL_UNAVAILABLE})
"""Permanent failures that are about this model or its key, not about what was sent: another model may well answer."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
MOST_WAITED_S: Final = 60.0
"""All waits of one call, over all of its tries and models."""

_LONGEST_HEADER = 100


def wait_before_retry(
    failure: ProviderFailure,
    attempt: int,
    retries: int,
    seconds_left: float | None = None,
    *,
    waited_s: float = 0.0,
    jitter: float = 1.0,
    is_last: bool = True,
) -> float | None:
    """Seconds to wait before the next try on this model, or None when there should be none.

    `attempt` counts this model's tries from 1. The endpoint's own wish (Retry-After) is honoured up to
    `LONGEST_WAIT_S`; a longer one is not waited for. Otherwise the wait doubles from `FIRST_WAIT_S`, half of it fixed
    and half of it taken `jitter` times, a number from 0 to 1. A wait that would bring `waited_s`, the sum of the call's
    waits, above `MOST_WAITED_S`, or that the run's clock does not allow, is none. Where the model `is_last` not, an
    open circuit is not waited for: the next model is there.
    Source of the jitter: Brooker, "Exponential Backoff And Jitter", equal jitter.
    """
    if failure.kind not in TRANSIENT or attempt > retries or (not is_last and not failure.sent):
        return None
    wished = failure.retry_after_s
    if wished is not None and wished > LONGEST_WAIT_S:
        return None
    wait = _backoff(attempt, jitter) if wished is None else max(0.0, wished)  # in this order, NaN becomes 0
    if waited_s + wait > MOST_WAITED_S or (seconds_left is not None and wait >= seconds_left):
        return None
    return wait


def may_help(failure: ProviderFailure) -> bool:
    """Whether another model may answer where this one has failed for good.

    What the endpoint calls wrong, and a prompt that is too long, go to no other model.
    """
    return failure.kind in TRANSIENT or failure.kind in UNUSABLE


def retry_after_s(value: str, now: float) -> float | None:
    """The seconds that a Retry-After header asks for, or None where it says nothing that can be read.

    It is a number of seconds or an HTTP date, which is measured from `now`, in seconds since 1970; one that is over is
    no wait. Source: RFC 9110, section 10.2.3.
    """
    text = value.strip()
    if not text or len(text) > _LONGEST_HEADER:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text, now)
    return max(0.0, seconds) if abs(seconds) < float("inf") else None


def _backoff(attempt: int, jitter: float) -> float:
    whole = min(FIRST_WAIT_S * 2.0 ** min(attempt - 1, 16), LONGEST_WAIT_S)
    return whole / 2 * (1.0 + min(max(jitter, 0.0), 1.0))


def _seconds_until(date: str, now: float) -> float:
    """Seconds to an HTTP date; NaN for what is none."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, LookupError, OverflowError):
        return float("nan")
