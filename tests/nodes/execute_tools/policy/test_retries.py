import asyncio

import pytest

from nodes.execute_tools.environment.deadline import ScopeOverError
from nodes.execute_tools.policy.retries import RetryPolicy, wait_before_retry
from nodes.execute_tools.tool_run import GuardrailError, RetryableToolError
from nodes.records import Effect

ONCE = RetryPolicy()
OFTEN = RetryPolicy(max_retries=3, backoff_s=0.25)


def test_the_defaults_are_those_of_spec_4() -> None:
    assert RetryPolicy() == RetryPolicy(max_retries=1, backoff_s=0.5, exceptions=(TimeoutError,))


@pytest.mark.parametrize(("retries", "backoff"), [(-1, 0.5), (1, -0.5), (1, float("inf")), (1, float("nan"))])
def test_a_policy_that_makes_no_sense_is_refused(retries: int, backoff: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative, unlike"):
        RetryPolicy(max_retries=retries, backoff_s=backoff)


@pytest.mark.parametrize("effect", Effect)
def test_retries_are_counted_after_the_first_attempt_and_the_wait_grows_by_as_much(effect: Effect) -> None:
    error = RetryableToolError("busy")
    assert [wait_before_retry(error, attempt, effect, ONCE) for attempt in (1, 2)] == [0.5, None]
    assert [wait_before_retry(error, attempt, effect, OFTEN) for attempt in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, None]
    assert wait_before_retry(error, 1, effect, RetryPolicy(max_retries=0)) is None
    assert wait_before_retry(error, 1, effect, RetryPolicy(backoff_s=0.0)) == 0.0


@pytest.mark.parametrize("exceptions", [(TimeoutError,), (OSError,), (Exception,)])
@pytest.mark.parametrize(
    ("effect", "wait"),
    [
        (Effect.NONE, 0.5),
        (Effect.READ, 0.5),
        (Effect.WRITE, None),
        (Effect.EXECUTE, None),
        (Effect.NETWORK, None),
    ],
)
def test_a_timeout_is_retried_only_where_nothing_may_have_changed(
    exceptions: tuple[type[BaseException], ...], effect: Effect, wait: float | None
) -> None:
    assert wait_before_retry(TimeoutError(), 1, effect, RetryPolicy(exceptions=exceptions)) == wait


@pytest.mark.parametrize(
    ("error", "exceptions", "wait"),
    [
        (ConnectionResetError(), (ConnectionError,), 0.5),
        (ConnectionResetError(), (TimeoutError,), None),
        (ConnectionResetError(), (), None),
        (TimeoutError(), (), None),
        (ValueError("x"), (TimeoutError,), None),
        (ValueError("x"), (KeyError, ValueError), 0.5),
        (RetryableToolError("x"), (), 0.5),
    ],
)
def test_only_what_is_listed_is_retried(
    error: Exception, exceptions: tuple[type[BaseException], ...], wait: float | None
) -> None:
    assert wait_before_retry(error, 1, Effect.READ, RetryPolicy(exceptions=exceptions)) == wait


@pytest.mark.parametrize(
    "error",
    [GuardrailError("no"), ScopeOverError("over"), KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()],
)
def test_refusals_and_endings_are_never_retried(error: BaseException) -> None:
    assert wait_before_retry(error, 1, Effect.READ, RetryPolicy(exceptions=(BaseException,))) is None
