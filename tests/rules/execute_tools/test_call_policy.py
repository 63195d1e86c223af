from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.call_policy import (
    MOST_BREAKERS,
    MOST_KEYS,
    OPEN_RULES,
    BreakerConfig,
    CallPolicy,
    CallRules,
    CircuitBreaker,
    PolicyMemory,
    RateLimit,
    RetryPolicy,
    allowed_tools,
    breakers_by_name,
)
from mendgraph.nodes.execute_tools.registry import Tool, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tool_outcome import GuardrailError, RetryableToolError, ToolOutcome, refused
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode, ToolSpec
from mendgraph.nodes.workspace.files.deadline import ScopeOverError
from tests.row_tables import rows


class Arguments(BaseModel):
    x: int = 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(effect: Effect = Effect.READ, name: str = "t") -> Tool:
    return Tool(name, "d", Arguments, effect, lambda *_: ToolOutput.ok())


TOOL = make()
OK = ToolOutcome("c", "t", ToolOutput.ok(), attempts=1)


def failed(code: ToolErrorCode, error: str = "") -> ToolOutcome:
    return ToolOutcome("c", "t", ToolOutput.failed(ToolError(code=code, message="m")), error, attempts=1)


DOWN = failed(ToolErrorCode.UNAVAILABLE, "tool_error:refused")


def policy(rules: CallRules = OPEN_RULES, clock: Clock | None = None, **options: Any) -> CallPolicy:
    return CallPolicy(rules, PolicyMemory(clock or Clock(), BreakerConfig(failures=2, open_s=30)), **options)


NOT_ALLOWED = "The tool t is not allowed in this run. Allowed are: "
READ_ONLY = "This environment is read-only, so t is refused."


@rows(
    (CallRules(allowed=frozenset("ba")), Effect.READ, f"{NOT_ALLOWED}a, b."),
    (CallRules(allowed=frozenset()), Effect.NONE, f"{NOT_ALLOWED}none."),
    (CallRules(read_only=True), Effect.WRITE, READ_ONLY),
    (CallRules(read_only=True), Effect.EXECUTE, READ_ONLY),
)
def test_tool_excluded_by_the_rules_is_refused(rules: CallRules, effect: Effect, message: str) -> None:
    expected = refused("t", message, ToolErrorCode.PERMISSION_DENIED, "PermissionError")
    assert policy(rules).permit(make(effect), {}) == expected


@rows(*Effect)
def test_redaction_mark_in_arguments_is_refused_for_effects(effect: Effect) -> None:
    failure = policy().permit(make(effect), {"edits": [{"new_str": f"key = '{MARK}'"}]})
    if effect in {Effect.NONE, Effect.READ}:
        assert failure is None
    else:
        assert failure is not None
        assert failure.error_type == "ValueError"
        assert f"The arguments hold {MARK}, which stands for a secret that you cannot see" in str(failure.result.error)


def test_quota_counts_the_calls_of_a_turn() -> None:
    counts = {"t": 1}
    limited = policy(CallRules(quotas={"t": 2}), used=counts)
    assert limited.take(TOOL) is None
    assert counts == {"t": 2}
    message = "The quota of t is used up: it may be called 2 times. Go on with what you have."
    assert limited.take(TOOL) == refused("t", message, ToolErrorCode.RATE_LIMITED, "QuotaError")
    assert limited.take(make(name="u")) is None
    assert counts == {"t": 2, "u": 1}


def opens(tool: Tool, run: ToolOutcome | None) -> bool:
    guarded = policy()
    for _ in range(2):
        assert guarded.take(tool) is None
        guarded.settle(tool, run)
    return guarded.take(tool) is not None


@rows(*ToolErrorCode)
@rows("", "tool_error:x", "user_error:x", "guardrail:x")
def test_only_a_lost_connection_opens_the_circuit_of_a_local_tool(error: str, code: ToolErrorCode) -> None:
    lost = code is ToolErrorCode.UNAVAILABLE and error == "tool_error:x"
    for effect in set(Effect) - {Effect.NETWORK}:
        assert opens(make(effect), failed(code, error)) is lost
    assert not opens(TOOL, None)


@rows(make(Effect.NETWORK), replace(make(Effect.EXECUTE), remote=True))
def test_outage_of_the_endpoint_opens_the_circuit_of_a_remote_tool(tool: Tool) -> None:
    outages = {ToolErrorCode.TIMEOUT, ToolErrorCode.UNAVAILABLE}
    assert {code for code in ToolErrorCode if opens(tool, failed(code))} == outages
    statuses = {status: ToolOutcome("c", "t", ToolOutput.ok(status=status)) for status in (200, 404, 429, 500, 503)}
    assert {status for status, run in statuses.items() if opens(tool, run)} == {500, 503}


def test_failing_tool_is_paused_and_an_untaken_call_leaves_no_probe() -> None:
    clock = Clock()
    guarded = policy(CallRules(rate_limits={"t": RateLimit(3, 1_000)}), clock)
    for _ in range(2):
        assert guarded.take(TOOL) is None
        guarded.settle(TOOL, DOWN)
    message = "t failed too often and rests for 30 s: continue without it."
    assert guarded.take(TOOL) == refused("t", message, ToolErrorCode.UNAVAILABLE, "CircuitOpenError")
    assert guarded.take(make(name="u")) is None
    clock.now += 30
    assert guarded.take(TOOL) is None
    assert guarded.take(TOOL) is not None  # one probe at a time
    guarded.settle(TOOL, None)  # cut off: no verdict
    for _ in range(2):  # the rate refuses, and the probe's place stays free
        failure = guarded.take(TOOL)
        assert failure is not None
        assert failure.error_type == "RateLimitError"


@rows(
    (CallRules(), {"read", "write", "run"}),
    (CallRules(read_only=True), {"read"}),
    (CallRules(allowed=frozenset({"read", "write"})), {"read", "write"}),
)
def test_offered_tools_may_be_used(rules: CallRules, names: set[str]) -> None:
    tools = [make(Effect.READ, "read"), make(Effect.WRITE, "write"), make(Effect.EXECUTE, "run")]
    assert policy(rules).offered(tool.spec for tool in tools) == names
    assert {tool.name for tool in tools if policy(rules).permit(tool, {}) is None} == names


NOT_FINITE, NO_CALL = "finite and not negative, unlike", "A rate limit needs at least one call"


@rows(
    *((RetryPolicy, numbers, NOT_FINITE) for numbers in ((-1, 0.5), (1, -0.5), (1, inf), (1, nan))),
    *((RateLimit, numbers, NO_CALL) for numbers in ((0, 1), (-1, 1), (1, 0), (1, inf))),
    *((BreakerConfig, numbers, "A circuit breaker needs a failure") for numbers in ((0, 1.0), (1, 0.0), (1, inf))),
)
def test_invalid_settings_are_refused(settings: Any, numbers: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(*numbers)


@rows(
    (ConnectionResetError(), (ConnectionError,), 0.5),
    (ConnectionResetError(), (TimeoutError,), None),
    (TimeoutError(), (), None),
    (RetryableToolError("x"), (), 0.5),
    (GuardrailError("no"), (Exception,), None),
    (ScopeOverError("over"), (Exception,), None),
    (SystemExit(), (BaseException,), None),
)
def test_only_listed_exceptions_are_retried(
    error: BaseException, exceptions: tuple[type[BaseException], ...], wait: float | None
) -> None:
    rules = CallRules(retries=RetryPolicy(exceptions=exceptions))
    assert policy(rules).wait_before_retry(TOOL, error, 1) == wait


@rows(*Effect)
def test_timeout_is_retried_only_for_tools_without_changes(effect: Effect) -> None:
    wait = policy(CallRules(retries=RetryPolicy())).wait_before_retry(make(effect), TimeoutError(), 1)
    assert (wait is not None) == (effect in {Effect.NONE, Effect.READ})


def test_backoff_grows_until_retries_are_used_up() -> None:
    retrying = policy(CallRules(retries=RetryPolicy(max_retries=3, backoff_s=0.5)))
    waits = [retrying.wait_before_retry(TOOL, RetryableToolError("x"), attempt) for attempt in (1, 2, 3, 4)]
    assert waits == [0.5, 1.0, 1.5, None]


def test_rate_limits_of_two_threads_are_separate() -> None:
    memory, rules = PolicyMemory(Clock()), CallRules(rate_limits={"t": RateLimit(1, 10.0)})
    one, other = (CallPolicy(rules, memory, scope=scope) for scope in ("one", "other"))
    assert (one.take(TOOL), other.take(TOOL)) == (None, None)
    assert [policy.take(TOOL) is None for policy in (one, other)] == [False, False]


def test_rate_window_slides_for_each_key() -> None:
    clock = Clock()
    memory, twice = PolicyMemory(clock), RateLimit(2, 10.0)
    waits = []
    for key, seconds in (("a", 0), ("a", 4), ("a", 3), ("b", 0), ("a", 3), ("a", 1), ("a", 0)):
        clock.now += seconds
        waits.append(memory.take(key, twice))
    assert waits == [0.0, 0.0, 3.0, 0.0, 0.0, 3.0, 3.0]


def test_number_of_rate_keys_is_bounded() -> None:
    memory, once = PolicyMemory(Clock()), RateLimit(1, 10.0)
    first, *others = map(str, range(MOST_KEYS + 1))
    assert [memory.take(key, once) for key in (first, *others)] == [0.0] * (MOST_KEYS + 1)
    assert [memory.take(key, once) for key in (others[-1], first)] == [10.0, 0.0]


# --- Circuits


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock) -> CircuitBreaker:
    """A breaker that opened at 0 s and may be tried at 10 s."""
    breaker = CircuitBreaker(BreakerConfig(failures=2, open_s=10.0), clock)
    breaker.failed()
    breaker.failed()
    return breaker


def test_consecutive_failures_open_the_circuit(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=3, open_s=10.0), clock)
    for report in (
        breaker.failed,
        breaker.failed,
        breaker.succeeded,
        breaker.failed,
        breaker.failed,
        breaker.abandoned,
    ):
        report()
    assert breaker.admit() == 0.0
    breaker.failed()
    clock.now = 4.0
    assert breaker.admit() == 6.0


@rows(("succeeded", [0.0, 0.0]), ("failed", [10.0, 10.0]), ("abandoned", [0.0, 10.0]))
def test_single_probe_decides_whether_the_circuit_closes(report: str, waits: list[float]) -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]
    getattr(breaker, report)()
    assert [breaker.admit(), breaker.admit()] == waits


def test_late_report_of_an_earlier_call_changes_nothing(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 4.0
    for report in (breaker.succeeded, breaker.failed, breaker.abandoned):
        report()
    assert breaker.admit() == 6.0


def test_unreported_probe_expires(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now = 10.0
    breaker.admit()
    clock.now = 19.0
    assert breaker.admit() == 1.0
    clock.now = 20.0
    assert [breaker.admit(), breaker.admit()] == [0.0, 10.0]


def test_breakers_are_shared_by_name_and_bounded(clock: Clock) -> None:
    breaker_of = breakers_by_name(BreakerConfig(), clock)
    first = breaker_of("tool 0")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: breaker_of("tool 0"), range(8))) == [first] * 8
    for number in range(MOST_BREAKERS):
        breaker_of(f"other {number}")
    assert breaker_of("tool 0") is not first


# --- Roles


def spec(name: str, effect: Effect, *, terminal: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="d", parameters={}, effect=effect, terminal=terminal)


SPECS = (
    spec("plan", Effect.NONE),
    spec("read_file", Effect.READ),
    spec("write_file", Effect.WRITE),
    spec("run_command", Effect.EXECUTE),
    spec("http_get", Effect.NETWORK),
    spec("final_answer", Effect.EXECUTE, terminal=True),
)
LOOKING = {"plan", "read_file", "final_answer"}
EVERYTHING = LOOKING | {"write_file", "run_command", "http_get"}


@rows(
    (None, EVERYTHING),
    ("reader", LOOKING),
    ("editor", LOOKING | {"write_file"}),
    ("operator", EVERYTHING),
    ("tester", {"read_file", "run_command", "final_answer"}),
    ("mute", {"final_answer"}),
)
def test_role_limits_the_tools(role: str | None, tools: set[str]) -> None:
    custom = {"tester": ["read_file", "run_command"], "mute": [], "broken": ["no such tool"]}
    assert allowed_tools(role, custom, iter(SPECS)) == frozenset(tools)


UNKNOWN_ROLE, OTHER_ROLE = (
    "There is no role 'raeder'. Did you mean reader",
    "There is no role 'xyz'. There are: editor,",
)
UNKNOWN_TOOL = "The role 'tester' names an unknown tool, 'raed_file'. Did you mean read_file or write_file?"


@rows(
    ("raeder", ToolErrorCode.INVALID_ARGUMENT, UNKNOWN_ROLE, ("reader", "editor", "tester")),
    ("xyz", ToolErrorCode.INVALID_ARGUMENT, OTHER_ROLE, ("editor", "operator", "reader", "tester")),
    ("tester", ToolErrorCode.UNKNOWN_TOOL, UNKNOWN_TOOL, ("read_file", "write_file")),
)
def test_unknown_names_are_errors_with_suggestions(
    role: str, code: ToolErrorCode, message: str, suggestions: tuple[str, ...]
) -> None:
    error = allowed_tools(role, {"tester": ["read_file", "raed_file"]}, SPECS)
    assert isinstance(error, ToolError)
    assert (error.code, error.suggestions) == (code, suggestions)
    assert error.message.startswith(message)


def test_built_in_role_cannot_be_redefined() -> None:
    assert allowed_tools("reader", {"reader": ["write_file"]}, SPECS) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="The role 'reader' is built in and cannot be redefined: rename yours.",
    )
