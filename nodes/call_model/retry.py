"""Which endpoint failures are worth another try, and how long to wait for it.

Pure: the caller sleeps. A request that the endpoint calls wrong is never sent twice.
"""

from nodes.records import ProviderErrorKind, ProviderFailure

TRANSIENT = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.CONNECTION,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.INCOMPLETE_STREAM,
    }
)

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


def wait_before_retry(failure: ProviderFailure, attempt: int, retries: int, seconds_left: float | None) -> float | None:
    """Seconds to wait before the next try, or None when there should be none.

    `attempt` counts from 1. The endpoint's own wish (Retry-After) is honoured up to `LONGEST_WAIT_S`; otherwise the
    wait doubles from `FIRST_WAIT_S`. A wait that the run's clock does not allow is no wait but an end.
    """
    if failure.kind not in TRANSIENT or attempt > retries:
        return None
    wished = failure.retry_after_s
    if wished is not None and wished > LONGEST_WAIT_S:
        return None
    backoff = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S)
    wait = backoff if wished is None else max(0.0, wished)  # in this order, NaN becomes 0
    return None if seconds_left is not None and wait >= seconds_left else wait
