from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from nodes.execute_tools.policy.call_policy import NO_BACKOFF, OPEN_RULES, CallPolicy, CallRules, PolicyMemory
from nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from nodes.execute_tools.policy.rate_limits import RateLimit
from nodes.execute_tools.policy.retries import RetryPolicy
from nodes.execute_tools.registry import Tool, ToolOutput
from nodes.execute_tools.secrets.redact import MARK
from nodes.execute_tools.tool_run import Failure, RetryableToolError, ToolRun, refused
from nodes.records import Effect, ToolError, ToolErrorCode


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
    expected = refused(message, ToolErrorCode.PERMISSION_DENIED, "PermissionError")
    assert policy(rules).permit(make(effect), {}) == expected


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.READ, Effect.NETWORK])
def test_read_only_lets_through_what_changes_nothing(effect: Effect) -> None:
    assert policy(CallRules(read_only=True)).permit(make(effect), {}) is None


@pytest.mark.parametrize("effect", Effect)
def test_what_stands_for_a_secret_is_written_nowhere(effect: Effect) -> None:
    failure = policy().permit(make(effect), {"edits": [{"new_str": f"key = '{MARK}'"}]})
    if effect in {Effect.WRITE, Effect.EXECUTE, Effect.NETWORK}:
        assert failure == refused(
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
        (fail(ValueError("b != 0")), refused("b != 0", ToolErrorCode.INVALID_ARGUMENT, "ValueError")),
        (fail(PermissionError("no")), refused("no", ToolErrorCode.PERMISSION_DENIED, "PermissionError")),
        (fail(SystemExit(3)), refused("3", ToolErrorCode.INVALID_ARGUMENT, "SystemExit")),
        (fail(ZeroDivisionError()), refused("ZeroDivisionError", ToolErrorCode.INVALID_ARGUMENT, "ZeroDivisionError")),
        (
            lambda _: {"x": "many"},
            refused(
                "x: input should be a valid integer, unable to parse string as an integer",
                ToolErrorCode.INVALID_ARGUMENT,
                "ValueError",
            ),
        ),
    ],
)
def test_what_a_validator_refuses_or_breaks_is_refused(validator: Any, failure: Failure) -> None:
    assert policy(CallRules(validators={"t": validator})).normalise(TOOL, {"x": 1}) == failure


def test_a_quota_counts_the_calls_of_the_turn() -> None:
    used = {"t": 1}
    limited = policy(CallRules(quotas={"t": 2}), used=used)
    assert limited.take(TOOL) is None
    assert used == {"t": 2}
    failure = limited.take(TOOL)
    assert failure == refused(
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
        "t may be called 1 times in 60 s: wait 60 s.", ToolErrorCode.RATE_LIMITED, "RateLimitError"
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
        "t failed too often and rests for 30 s: go on without it.", ToolErrorCode.UNAVAILABLE, "CircuitOpenError"
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
