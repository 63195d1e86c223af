import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.call_policy import (
    NO_BACKOFF,
    OPEN_RULES,
    CallPolicy,
    CallRules,
    PolicyMemory,
    RateLimit,
    RateWindow,
    RetryPolicy,
    quota_problem,
    wait_before_retry,
)
from mendgraph.nodes.execute_tools.files.deadline import ScopeOverError
from mendgraph.nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from mendgraph.nodes.execute_tools.registry import Tool, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tool_run import GuardrailError, RetryableToolError, ToolRun, refused
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode


class Arguments(BaseModel):
    x: int = 0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(effect: Effect = Effect.READ, name: str = "t") -> Tool:
    return Tool(name, "d", Arguments, effect, lambda *_: ToolOutput.ok())


TOOL = make()
OK = ToolRun("c", "t", ToolOutput.ok(), attempts=1)


def failed(code: ToolErrorCode, error: str = "") -> ToolRun:
    return ToolRun("c", "t", ToolOutput.failed(ToolError(code=code, message="m")), error, attempts=1)


DOWN = failed(ToolErrorCode.UNAVAILABLE, "tool_error:refused")


def policy(rules: CallRules = OPEN_RULES, clock: Clock | None = None, **options: Any) -> CallPolicy:
    return CallPolicy(rules, PolicyMemory(clock or Clock(), BreakerConfig(failures=2, open_s=30)), **options)


def test_without_rules_nothing_is_refused() -> None:
    open_policy = policy()
    for effect in Effect:
        tool = make(effect)
        assert open_policy.permit(tool, {"x": 1}) is None
        assert open_policy.normalise(tool, {"x": 1}) == {"x": 1}
        assert open_policy.take(tool) is None
        assert open_policy.timeout_s(tool, 7.0) == 7.0


@pytest.mark.parametrize(
    ("rules", "effect", "message"),
    [
        (
            CallRules(allowed=frozenset({"b", "a"})),
            Effect.READ,
            "The tool t is not allowed in this run. Allowed are: a, b.",
        ),
        (CallRules(allowed=frozenset()), Effect.NONE, "The tool t is not allowed in this run. Allowed are: none."),
        (CallRules(read_only=True), Effect.WRITE, "This environment is read-only, so t is refused."),
        (CallRules(read_only=True), Effect.EXECUTE, "This environment is read-only, so t is refused."),
    ],
)
def test_what_the_run_may_not_use(rules: CallRules, effect: Effect, message: str) -> None:
    expected = refused("t", message, ToolErrorCode.PERMISSION_DENIED, "PermissionError")
    assert policy(rules).permit(make(effect), {}) == expected


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.READ, Effect.NETWORK])
def test_read_only_lets_through_what_changes_nothing(effect: Effect) -> None:
    assert policy(CallRules(read_only=True)).permit(make(effect), {}) is None


@pytest.mark.parametrize("effect", Effect)
def test_what_stands_for_a_secret_is_written_nowhere(effect: Effect) -> None:
    failure = policy().permit(make(effect), {"edits": [{"new_str": f"key = '{MARK}'"}]})
    if effect in {Effect.WRITE, Effect.EXECUTE, Effect.NETWORK}:
        assert failure == refused(
            "t",
            f"The arguments hold {MARK}, which stands for a secret that you cannot see: it would be lost. Leave that "
            "line as it is, and change only what is around it. If you wrote that value yourself, the run was cut off "
            "before this call, and values under secret names are not stored: write the call again with the value.",
            ToolErrorCode.INVALID_ARGUMENT,
            "ValueError",
        )
    else:
        assert failure is None


def fail(error: BaseException) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def validator(_: dict[str, Any]) -> dict[str, Any]:
        raise error

    return validator


def test_a_validator_normalises_the_arguments_of_its_tool_only() -> None:
    rules = CallRules(validators={"t": lambda arguments: {"x": arguments["x"] + 1}})
    assert policy(rules).normalise(TOOL, {"x": 1}) == {"x": 2}
    assert policy(rules).normalise(make(name="u"), {"x": 1}) == {"x": 1}


def test_an_interrupt_passes_a_validator() -> None:
    with pytest.raises(KeyboardInterrupt):
        policy(CallRules(validators={"t": fail(KeyboardInterrupt())})).normalise(TOOL, {"x": 1})


def test_a_validator_cannot_change_the_arguments_of_its_caller() -> None:
    given = {"x": 1}
    rules = CallRules(validators={"t": lambda arguments: arguments.update(x=9) or arguments})
    assert policy(rules).normalise(TOOL, given) == {"x": 9}
    assert given == {"x": 1}


@pytest.mark.parametrize(
    ("validator", "failure"),
    [
        (fail(ValueError("b != 0")), refused("t", "b != 0", ToolErrorCode.INVALID_ARGUMENT, "ValueError")),
        (fail(PermissionError("no")), refused("t", "no", ToolErrorCode.PERMISSION_DENIED, "PermissionError")),
        (fail(SystemExit(3)), refused("t", "3", ToolErrorCode.INVALID_ARGUMENT, "SystemExit")),
        (
            fail(ZeroDivisionError()),
            refused("t", "ZeroDivisionError", ToolErrorCode.INVALID_ARGUMENT, "ZeroDivisionError"),
        ),
        (
            lambda _: {"x": "many"},
            refused(
                "t",
                "x: input should be a valid integer, unable to parse string as an integer",
                ToolErrorCode.INVALID_ARGUMENT,
                "ValueError",
            ),
        ),
    ],
)
def test_what_a_validator_refuses_or_breaks_is_refused(validator: Any, failure: ToolRun) -> None:
    assert policy(CallRules(validators={"t": validator})).normalise(TOOL, {"x": 1}) == failure


def test_a_quota_counts_the_calls_of_the_turn() -> None:
    used = {"t": 1}
    limited = policy(CallRules(quotas={"t": 2}), used=used)
    assert limited.take(TOOL) is None
    assert used == {"t": 2}
    failure = limited.take(TOOL)
    assert failure == refused(
        "t",
        "The quota of t is used up: it may be called 2 times. Go on with what you have.",
        ToolErrorCode.RATE_LIMITED,
        "QuotaError",
    )
    assert limited.take(make(name="u")) is None
    assert used == {"t": 2, "u": 1}


def test_a_rate_is_kept_for_each_run_by_itself() -> None:
    clock, rules = Clock(), CallRules(rate_limits={"t": RateLimit(1, 60)})
    memory = PolicyMemory(clock)
    one, other = (CallPolicy(rules, memory, scope=scope) for scope in ("one", "other"))
    assert one.take(TOOL) is None
    assert one.take(TOOL) == refused(
        "t", "t may be called 1 times in 60 s: wait 60 s.", ToolErrorCode.RATE_LIMITED, "RateLimitError"
    )
    assert other.take(TOOL) is None
    clock.now += 60
    assert one.take(TOOL) is None


def test_a_tool_that_keeps_failing_rests_and_is_probed() -> None:
    clock = Clock()
    guarded = policy(clock=clock)
    for _ in range(2):
        assert guarded.take(TOOL) is None
        guarded.settle(TOOL, DOWN)
    resting = refused(
        "t", "t failed too often and rests for 30 s: go on without it.", ToolErrorCode.UNAVAILABLE, "CircuitOpenError"
    )
    assert guarded.take(TOOL) == resting
    assert guarded.take(make(name="u")) is None
    clock.now += 30
    assert guarded.take(TOOL) is None
    assert guarded.take(TOOL) is not None  # one probe at a time
    guarded.settle(TOOL, OK)
    assert guarded.take(TOOL) is None


def opens(tool: Tool, run: ToolRun | None) -> bool:
    guarded = policy()
    for _ in range(2):
        assert guarded.take(tool) is None
        guarded.settle(tool, run)
    return guarded.take(tool) is not None


@pytest.mark.parametrize("code", ToolErrorCode)
@pytest.mark.parametrize("error", ["", "tool_error:x", "user_error:x", "guardrail:x"])
def test_of_what_happens_here_only_a_lost_connection_opens_a_circuit(error: str, code: ToolErrorCode) -> None:
    lost = code is ToolErrorCode.UNAVAILABLE and error == "tool_error:x"
    for effect in set(Effect) - {Effect.NETWORK}:
        assert opens(make(effect), failed(code, error)) is lost
    assert not opens(TOOL, None)


@pytest.mark.parametrize("tool", [make(Effect.NETWORK), replace(make(Effect.EXECUTE), remote=True)])
def test_an_endpoint_that_is_down_opens_the_circuit_of_its_tool(tool: Tool) -> None:
    outages = {ToolErrorCode.TIMEOUT, ToolErrorCode.UNAVAILABLE}
    assert {code for code in ToolErrorCode if opens(tool, failed(code))} == outages
    statuses = {status: ToolRun("c", "t", ToolOutput.ok(status=status)) for status in (200, 404, 429, 500, 503)}
    assert {status for status, run in statuses.items() if opens(tool, run)} == {500, 503}


def test_a_mistake_between_two_outages_does_not_hide_them() -> None:
    guarded = policy()
    for run in (DOWN, failed(ToolErrorCode.INVALID_ARGUMENT, "user_error:x"), DOWN):
        assert guarded.take(TOOL) is None
        guarded.settle(TOOL, run)
    assert guarded.take(TOOL) is not None


def test_without_a_breaker_nothing_rests() -> None:
    open_policy = CallPolicy(OPEN_RULES, PolicyMemory(Clock()))
    for _ in range(9):
        assert open_policy.take(TOOL) is None
        open_policy.settle(TOOL, DOWN)


def test_a_call_that_is_not_taken_leaves_no_probe_behind() -> None:
    clock = Clock()
    guarded = policy(CallRules(rate_limits={"t": RateLimit(3, 1_000)}), clock)
    for _ in range(2):
        guarded.take(TOOL)
        guarded.settle(TOOL, DOWN)
    clock.now += 30
    assert guarded.take(TOOL) is None
    guarded.settle(TOOL, None)  # cut off: no verdict
    for _ in range(2):  # the rate refuses, and the probe's place stays free
        failure = guarded.take(TOOL)
        assert failure is not None
        assert failure.error_type == "RateLimitError"


@pytest.mark.parametrize(("timeout", "default", "expected"), [(2.0, 30.0, 2.0), (60.0, 30.0, 60.0), (None, 30.0, 30.0)])
def test_a_tool_has_its_own_timeout_or_that_of_the_run(timeout: float | None, default: float, expected: float) -> None:
    rules = CallRules(timeouts={} if timeout is None else {"t": timeout})
    assert policy(rules).timeout_s(TOOL, default) == expected


def test_retries_are_those_of_the_rules() -> None:
    assert policy().wait_before_retry(TOOL, RetryableToolError("x"), 1) == 0.0
    assert policy().wait_before_retry(TOOL, TimeoutError(), 1) is None
    rules = CallRules(retries=RetryPolicy(2, 0.5, (TimeoutError, ConnectionError)))
    assert [policy(rules).wait_before_retry(TOOL, TimeoutError(), attempt) for attempt in (1, 2, 3)] == [0.5, 1.0, None]
    assert policy(rules).wait_before_retry(make(Effect.WRITE), TimeoutError(), 1) is None
    assert policy(rules).wait_before_retry(make(Effect.WRITE), ConnectionError(), 1) == 0.5
    assert RetryPolicy(1, 0.0, ()) == NO_BACKOFF


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        (CallRules(), {"read", "write", "run"}),
        (CallRules(read_only=True), {"read"}),
        (CallRules(allowed=frozenset({"read", "write"})), {"read", "write"}),
    ],
)
def test_what_is_offered_may_be_used(rules: CallRules, names: set[str]) -> None:
    tools = [make(Effect.READ, "read"), make(Effect.WRITE, "write"), make(Effect.EXECUTE, "run")]
    assert policy(rules).offered(each.spec for each in tools) == names
    assert {each.name for each in tools if policy(rules).permit(each, {}) is None} == names


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
