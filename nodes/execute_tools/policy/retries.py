"""Which failures of a tool are worth another attempt, and how long to wait for it. Source: specs 4 and 5."""

from dataclasses import dataclass

from nodes.execute_tools.environment.deadline import ScopeOverError
from nodes.execute_tools.tool_run import GuardrailError, RetryableToolError
from nodes.records import Effect

WITHOUT_CHANGE = frozenset({Effect.NONE, Effect.READ})


@dataclass(frozen=True)
class RetryPolicy:
    """At most `max_retries` attempts after the first, for `exceptions` and whatever a tool itself calls retryable.

    Before the n-th retry there is a wait of n times `backoff_s` seconds. A timeout is retried only after `repeatable`
    effects: of any other its outcome is unknown, and it may be done. Source: spec 4.
    """

    max_retries: int = 1
    backoff_s: float = 0.5
    exceptions: tuple[type[BaseException], ...] = (TimeoutError,)
    repeatable: frozenset[Effect] = WITHOUT_CHANGE

    def __post_init__(self) -> None:
        if self.max_retries < 0 or not 0 <= self.backoff_s < float("inf"):
            given = f"{self.max_retries} and {self.backoff_s}"
            raise ValueError(f"Retries and their backoff are finite and not negative, unlike {given}.")


def wait_before_retry(error: BaseException, attempt: int, effect: Effect, policy: RetryPolicy) -> float | None:
    """Seconds to wait before the attempt after `attempt` (the first is 1), None where there is to be none.

    What a guardrail refused, what was cancelled and what was given up is never tried again.
    """
    if attempt > policy.max_retries or not _is_retryable(error, effect, policy):
        return None
    return policy.backoff_s * attempt


def _is_retryable(error: BaseException, effect: Effect, policy: RetryPolicy) -> bool:
    if isinstance(error, RetryableToolError):
        return True
    if not isinstance(error, Exception) or isinstance(error, GuardrailError | ScopeOverError):
        return False
    if isinstance(error, TimeoutError) and effect not in policy.repeatable:
        return False
    return isinstance(error, policy.exceptions)
