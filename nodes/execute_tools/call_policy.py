"""The policy for calls: permission, quotas, rate limits, retries and circuit breakers. Source: specs 4 and 5.

The engine calls `permit` first; after the guardrails `take`, which counts the call; then `timeout_s`,
`wait_before_retry`, and `settle` for every call that was taken.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Final

import orjson

from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.execute_tools.tool_outcome import (
    GuardrailError,
    RetryableToolError,
    ToolOutcome,
    refused,
    similar_or_all,
)
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolError, ToolErrorCode, ToolSpec, invalid
from mendgraph.nodes.workspace.files.deadline import ScopeOverError

WITHOUT_CHANGE = frozenset({Effect.NONE, Effect.READ})


@dataclass(frozen=True)
class RetryPolicy:
    """At most `max_retries` attempts after the first, for `exceptions` and RetryableToolError.

    The n-th retry waits n times `backoff_s` seconds. A timeout is retried only after `repeatable` effects, since its
    outcome is unknown. Source: spec 4.
    """

    max_retries: int = 1
    backoff_s: float = 0.5
    exceptions: tuple[type[BaseException], ...] = (TimeoutError,)
    repeatable: frozenset[Effect] = WITHOUT_CHANGE

    def __post_init__(self) -> None:
        if self.max_retries < 0 or not 0 <= self.backoff_s < float("inf"):
            settings_given = f"{self.max_retries} and {self.backoff_s}"
            raise ValueError(f"Retries and their backoff are finite and not negative, unlike {settings_given}.")


MOST_KEYS = 10_000
"""Keys whose calls are counted; the least recently used one is removed first."""


@dataclass(frozen=True)
class RateLimit:
    """At most `calls` calls in any `seconds` seconds."""

    calls: int
    seconds: float

    def __post_init__(self) -> None:
        if self.calls < 1 or not 0 < self.seconds < float("inf"):
            raise ValueError(f"A rate limit needs at least one call and a positive time, not {self}.")


NO_BACKOFF = RetryPolicy(max_retries=1, backoff_s=0.0, exceptions=())
"""Spec 5's rule: one retry, at once, for RetryableToolError only."""


@dataclass(frozen=True)
class CallRules:
    """The rules of a policy. `timeouts` are in seconds by tool; `allowed` are tool names, None allows all.

    `quotas` limit the calls of a tool in one turn.
    """

    timeouts: Mapping[str, float] = field(default_factory=dict)
    retries: RetryPolicy = NO_BACKOFF
    allowed: frozenset[str] | None = None
    read_only: bool = False
    rate_limits: Mapping[str, RateLimit] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)


OPEN_RULES = CallRules()


# --- Circuit breakers. Source: Nygard, "Release It!"

MOST_BREAKERS = 256  # the least recently used breaker is removed first


@dataclass(frozen=True)
class BreakerConfig:
    """Opens after `failures` in a row, for `open_s` seconds; then one probe at a time is admitted."""

    failures: int = 5
    open_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.open_s < float("inf"):
            raise ValueError(f"A circuit breaker needs a failure and a positive time at least, not {self}.")


class CircuitBreaker:
    """The circuit breaker of one tool or provider; safe in threads.

    Each admitted call reports once: `succeeded`, `failed`, or `abandoned` if its outcome is unknown. Reports of older
    calls are ignored while the circuit is open. A probe that never reports expires after `open_s`.
    """

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._until: float | None = None  # when the rest, or the time of the probe, is over; None where it is closed
        self._probing = False

    def admit(self) -> float:
        """Return 0.0 if a call is admitted, which then has to report; else the seconds until one may be tried."""
        with self._lock:
            if self._until is None:
                return 0.0

            now = self._clock()
            if now < self._until:
                return self._until - now

            self._until = now + self._config.open_s
            self._probing = True
            return 0.0

    def succeeded(self) -> None:
        """The call worked."""
        with self._lock:
            if self._is_counted():
                self._failures = 0
                self._until = None
                self._probing = False

    def failed(self) -> None:
        """The call did not work."""
        with self._lock:
            if self._is_counted():
                self._failures += 1
                if self._probing or self._failures >= self._config.failures:
                    self._until = self._clock() + self._config.open_s
                    self._probing = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last call failed, so that the next one decides for others."""
        return self._failures > 0 or self._until is not None

    def abandoned(self) -> None:
        """The call ended without showing whether it works: it was cancelled, or never made."""
        with self._lock:
            if self._probing:  # another one may try at once
                self._until = self._clock()
                self._probing = False

    def _is_counted(self) -> bool:
        return self._until is None or self._probing


def breakers_by_name(config: BreakerConfig, clock: Callable[[], float]) -> Callable[[str], CircuitBreaker]:
    """One circuit breaker for each name, made where there is none; those last asked for are kept."""
    return lru_cache(MOST_BREAKERS)(lambda _: CircuitBreaker(config, clock))


# --- One call


class PolicyMemory:
    """The state that outlives a call: circuit breakers and the times of calls. Safe in threads."""

    def __init__(self, clock: Callable[[], float], breaker: BreakerConfig | None = None) -> None:
        """`clock` returns monotonic seconds. Without a `breaker` no circuit opens."""
        self._clock = clock

        if breaker is None:
            self.breaker_of = None
        else:
            self.breaker_of = breakers_by_name(breaker, clock)

        self._starts: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, limit: RateLimit) -> float:
        """Count a call and return 0.0, or return the seconds until one is allowed; the window slides."""
        with self._lock:
            now = self._clock()
            starts = self._starts.setdefault(key, deque(maxlen=limit.calls))
            self._starts.move_to_end(key)

            if len(self._starts) > MOST_KEYS:
                self._starts.popitem(last=False)

            if len(starts) == limit.calls and starts[0] + limit.seconds > now:
                return starts[0] + limit.seconds - now

            starts.append(now)
            return 0.0


class CallPolicy:
    """The policy for the calls of one step. `scope` separates the rates of different threads."""

    def __init__(
        self, rules: CallRules, memory: PolicyMemory, *, scope: str = "", used: dict[str, int] | None = None
    ) -> None:
        """`used` counts the calls of each tool in the turn or the Environment; `take` adds to it."""
        self._rules = rules
        self._memory = memory
        self._scope = scope
        self.used = {} if used is None else used
        self._lock = threading.Lock()

    def limits(self, tool: Tool) -> bool:
        """Return whether calls of this tool are counted, so that none may be answered from the cache."""
        return tool.name in self._rules.quotas or tool.name in self._rules.rate_limits

    def is_in_turn(self, tool: Tool) -> bool:
        """Return whether calls of this tool have to run one after the other, as one may decide about the next."""
        breaker = self._breaker(tool)
        return self.limits(tool) or (breaker is not None and breaker.is_in_doubt)

    def offered(self, specs: Iterable[ToolSpec]) -> frozenset[str]:
        """Return the names of the tools that may be used; the error about an unknown tool lists them."""
        names: set[str] = set()

        for spec in specs:
            allowed = self._rules.allowed is None or spec.name in self._rules.allowed
            if allowed and not (self._rules.read_only and spec.effect in CHANGING):
                names.add(spec.name)

        return frozenset(names)

    def permit(self, tool: Tool, arguments: JsonMap) -> ToolOutcome | None:
        """Return the refusal of a tool that this run may not use, or of arguments that hold a mark of a secret."""
        if self._rules.allowed is not None and tool.name not in self._rules.allowed:
            names_allowed = ", ".join(sorted(self._rules.allowed)) or "none"
            message = f"The tool {tool.name} is not allowed in this run. Allowed are: {names_allowed}."
            return refused(tool.name, message, ToolErrorCode.PERMISSION_DENIED, "PermissionError")

        if self._rules.read_only and tool.effect in CHANGING:
            message = f"This environment is read-only, so {tool.name} is refused."
            return refused(tool.name, message, ToolErrorCode.PERMISSION_DENIED, "PermissionError")

        if tool.effect in CHANGING | {Effect.NETWORK} and MARK in orjson.dumps(arguments).decode():
            return refused(tool.name, _CARRIES_MARK, ToolErrorCode.INVALID_ARGUMENT, "ValueError")

        return None

    def take(self, tool: Tool) -> ToolOutcome | None:
        """Count this call, or return its refusal. A call that was taken has to be settled."""
        name = tool.name
        if spent := self.spent(tool):
            return spent

        breaker = self._breaker(tool)
        if breaker and (wait := breaker.admit()):
            message = f"{name} failed too often and rests for {ceil(wait)} s: continue without it."
            return refused(name, message, ToolErrorCode.UNAVAILABLE, "CircuitOpenError")

        limit = self._rules.rate_limits.get(name)
        if limit is not None and (wait := self._memory.take(f"{self._scope}\0{name}", limit)):
            if breaker:
                breaker.abandoned()

            message = f"{name} may be called {limit.calls} times in {limit.seconds:g} s: wait {ceil(wait)} s."
            return refused(name, message, ToolErrorCode.RATE_LIMITED, "RateLimitError")

        with self._lock:
            self.used[name] = self.used.get(name, 0) + 1

        return None

    def spent(self, tool: Tool) -> ToolOutcome | None:
        """Return the refusal of a tool whose quota is used up, or None."""
        quota = self._rules.quotas.get(tool.name)
        if quota is None or self.used.get(tool.name, 0) < quota:
            return None

        message = f"The quota of {tool.name} is used up: it may be called {quota} times. Go on with what you have."
        return refused(tool.name, message, ToolErrorCode.RATE_LIMITED, "QuotaError")

    def timeout_s(self, tool: Tool, default: float) -> float:
        """Return the seconds that one attempt may take: the tool's own timeout, or `default`."""
        return self._rules.timeouts.get(tool.name, default)

    def wait_before_retry(self, tool: Tool, error: BaseException, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt (the first is number 1), or None for no retry.

        Refusals of guardrails and cancelled calls are never retried.
        """
        policy = self._rules.retries
        retryable = isinstance(error, RetryableToolError) or (
            isinstance(error, Exception)
            and isinstance(error, policy.exceptions)
            and not isinstance(error, GuardrailError | ScopeOverError)
            and not (isinstance(error, TimeoutError) and tool.effect not in policy.repeatable)
        )

        if retryable and attempt <= policy.max_retries:
            return policy.backoff_s * attempt

        return None

    def settle(self, tool: Tool, outcome: ToolOutcome | None) -> None:
        """Report the outcome to the circuit breaker; None means that the call was cut off.

        Only outages count as failures, not errors such as a wrong argument.
        """
        if (breaker := self._breaker(tool)) is None:
            return

        if outcome is not None and _is_outage(tool, outcome):
            breaker.failed()
        elif outcome is not None and outcome.result.ok:
            breaker.succeeded()
        else:
            breaker.abandoned()

    def _breaker(self, tool: Tool) -> CircuitBreaker | None:
        if self._memory.breaker_of is None:
            return None
        return self._memory.breaker_of(tool.name)


def _is_outage(tool: Tool, outcome: ToolOutcome) -> bool:
    """Return whether a service that the tool depends on is down: no connection, a timeout, or a status of 5xx."""
    error = outcome.result.error
    status = outcome.result.data.get("status")
    remote = tool.remote or tool.effect is Effect.NETWORK

    if error is None:
        return remote and isinstance(status, int) and status >= 500
    if error.code is ToolErrorCode.UNAVAILABLE:
        return remote or outcome.error.startswith("tool_error:")

    return remote and error.code is ToolErrorCode.TIMEOUT


_CARRIES_MARK = (
    f"The arguments hold {MARK}, which stands for a secret that you cannot see: it would be lost. Leave that line as"
    " it is, and change only what is around it. If you wrote that value yourself, the run was cut off before this call,"
    " and values under secret names are not stored: write the call again with the value."
)

BUILT_IN_ROLES: Final[Mapping[str, frozenset[Effect]]] = MappingProxyType(
    {"reader": WITHOUT_CHANGE, "editor": WITHOUT_CHANGE | {Effect.WRITE}, "operator": frozenset(Effect)}
)
"""A reader reads, an editor also changes files, an operator also runs programs and uses the network."""


def allowed_tools(
    role: str | None, custom: Mapping[str, Collection[str]], specs: Iterable[ToolSpec]
) -> frozenset[str] | ToolError:
    """Return the names of the tools in `specs` that this role may use, or the error of an unknown role.

    `custom` are the user's roles: lists of tool names. No role allows everything. Tools that end the run and the
    machine's own tools are always allowed. Source: spec 4, policy guardrails.
    """
    specs = tuple(specs)
    names = {spec.name for spec in specs}
    if role is None:
        return frozenset(names)

    ending = {spec.name for spec in specs if spec.terminal or not spec.offered}
    if role in BUILT_IN_ROLES and role in custom:
        return invalid(f"The role {role!r} is built in and cannot be redefined: rename yours.")
    if role in BUILT_IN_ROLES:
        return frozenset({spec.name for spec in specs if spec.effect in BUILT_IN_ROLES[role]} | ending)
    if role not in custom:
        return _unknown(ToolErrorCode.INVALID_ARGUMENT, f"There is no role {role!r}.", role, [*BUILT_IN_ROLES, *custom])

    for name in sorted(set(custom[role]) - names):
        return _unknown(ToolErrorCode.UNKNOWN_TOOL, f"The role {role!r} names an unknown tool, {name!r}.", name, names)

    return frozenset(set(custom[role]) | ending)


def _unknown(code: ToolErrorCode, problem: str, name: str, names: Iterable[str]) -> ToolError:
    similar, remedy = similar_or_all(name, names)
    return ToolError(code=code, message=f"{problem} {remedy}", suggestions=similar)
