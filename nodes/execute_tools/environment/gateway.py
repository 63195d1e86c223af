"""Spec 4's Environment: runs any action safely, and always answers in the same shape.

It is the engine with a policy made of these settings: there is no second way to run a tool. An action is any object
with a `name` and an `execute(**arguments)`, sync or async.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from nodes.execute_tools.action_arguments import ActionRules, check_content, check_domain, check_extension
from nodes.execute_tools.engine import Engine, EngineConfig
from nodes.execute_tools.environment.audit_log import AuditLog
from nodes.execute_tools.environment.deadline import monotonic_s
from nodes.execute_tools.environment.sandbox import PathAccess, PathSandbox
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.policy.alerts import Vitals, observe_tool
from nodes.execute_tools.policy.call_policy import (
    DEFAULT_BREAKER,
    OPEN_RULES,
    CallPolicy,
    CallRules,
    PolicyMemory,
    Validator,
)
from nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from nodes.execute_tools.policy.idempotency import Conflict, IdempotentResults, Stored, call_fingerprint
from nodes.execute_tools.policy.retries import RetryPolicy
from nodes.execute_tools.redact import Redactor
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from nodes.execute_tools.tool_run import ToolRun
from nodes.execute_tools.trace import TraceSink
from nodes.records import Effect, JsonMap, ToolCall, ToolError, ToolErrorCode


class Action(Protocol):
    """What an environment runs. It may declare its `effect`; without one it counts as changing the world."""

    name: str

    def execute(self, **arguments: Any) -> Any:
        """Do it. Whatever it raises becomes an error of the result."""


@dataclass(frozen=True)
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `error` and `error_type` (the name of the exception, or the code of a tool's typed error) are None where it went
    well, `data` is None where it did not. `args` are without secrets.
    """

    ok: bool
    action: str
    args: JsonMap
    data: Any | None = None
    error: str | None = None
    error_type: str | None = None
    ms: int = 0
    retries: int = 0

    def to_dict(self) -> JsonMap:
        """All fields by name."""
        return asdict(self)


class _Anything(BaseModel):
    """Arguments of an action that has no schema of its own."""

    model_config = ConfigDict(extra="allow")


class Environment:
    """The gateway for actions. Every default is spec 4's; `rules` adds what its text asks for beside its code.

    Files: with a `base_dir`, path arguments of file actions become real paths inside it, of these extensions (none
    given: of any). Network: actions that go out are refused unless `allow_net`, and then limited to
    `allowed_domains` (none given: to any). Source: spec 4.

    An action that opens the path by itself opens a name, which another program may swap meanwhile; the tools of this
    house use the workspace's handles instead.
    """

    def __init__(  # noqa: PLR0913 - spec 4's constructor, and its policies
        self,
        *,
        base_dir: str | None = None,
        allowed_exts: Iterable[str] | None = (".txt", ".md"),
        allow_net: bool = False,
        allowed_domains: Iterable[str] | None = None,
        timeout_s: float = 10.0,
        max_retries: int = 1,
        retry_backoff_s: float = 0.5,
        retry_exceptions: tuple[type[BaseException], ...] = (TimeoutError,),
        arg_validators: Mapping[str, Validator] | None = None,
        logger: Callable[[JsonMap], None] | None = None,
        rules: CallRules = OPEN_RULES,
        breaker: BreakerConfig = DEFAULT_BREAKER,
        secrets: Iterable[str] = (),
        audit: AuditLog | None = None,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        """`retry_exceptions` of TimeoutError count only for actions that change nothing; `secrets` are never shown.

        Raises:
            OSError: `base_dir` is no directory.
        """
        self._sandbox = None if base_dir is None else PathSandbox(base_dir)
        self._actions = ActionRules(
            allowed_exts=frozenset(each.lower() for each in allowed_exts or ()),
            allow_net=allow_net,
            allowed_domains=frozenset(each.lower() for each in allowed_domains or ()),
        )
        self._timeout_s = float(timeout_s)
        self._rules = replace(
            rules, retries=RetryPolicy(int(max_retries), float(retry_backoff_s), tuple(retry_exceptions))
        )
        self._validators = {**rules.validators, **(arg_validators or {})}
        self._logger, self._audit = logger, audit
        self._used: dict[str, int] = {}
        self._memory = PolicyMemory(clock, breaker)
        self._results: IdempotentResults[ExecResult] = IdempotentResults()
        self._redactor = Redactor(secrets)
        self._vitals = Vitals()
        root = os.getcwd() if self._sandbox is None else self._sandbox.root
        self._workspace = Workspace(root, _closed if self._sandbox is None else _open)

    def execute_action(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> JsonMap:
        """Run one action: `{ok, action, args, data, error, error_type, ms, retries}`, and never an exception.

        With the same `idempotency_key` the same call is done once, and its result given again; the same key with other
        arguments is refused. Only KeyboardInterrupt passes.
        """
        return self.execute(action, args, idempotency_key=idempotency_key).to_dict()

    def execute(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """The same as a record."""
        name = str(getattr(action, "name", "<unknown>"))
        given = dict(args)
        if not idempotency_key:
            return self._run(action, name, given)
        try:
            mark = call_fingerprint(name, given)
        except TypeError as error:
            return self._told(ExecResult(False, name, given, error=str(error), error_type="TypeError"))
        begun = self._results.begin(idempotency_key, mark)
        if isinstance(begun, Stored):
            return begun.value
        if isinstance(begun, Conflict):
            return self._told(ExecResult(False, name, given, error=begun.message, error_type="IdempotencyError"))
        # Cut off by Ctrl-C, it stays "in progress": whether it had its effect is unknown, so it is not made again.
        result = self._run(action, name, given)
        self._results.finish(idempotency_key, mark, result)
        return result

    def _run(self, action: Action, name: str, given: JsonMap) -> ExecResult:
        guarded: list[JsonMap] = []
        tool, values = self._tool(action, name)
        engine = Engine(
            ActionRegistry([tool]),
            TraceSink(),
            EngineConfig(async_timeout_s=self._timeout_s, enable_cache=False),
            policy=self._policy(name, guarded),
            redactor=self._redactor,
        )
        context = ToolContext(self._workspace, timeout_s=self._timeout_s)
        run = engine.run_sync(ToolCall(call_id="", tool=name, arguments=given, raw_arguments=""), context)
        return self._told(self._result(run, name, guarded[-1] if guarded else given, values))

    def _policy(self, name: str, guarded: list[JsonMap]) -> CallPolicy:
        def prepared(arguments: JsonMap) -> JsonMap:
            arguments = self._prepare(name, arguments)
            arguments = self._validators[name](arguments) if name in self._validators else arguments
            guarded.append(arguments)
            return arguments

        rules = replace(self._rules, validators={name: prepared})
        return CallPolicy(rules, self._memory, used=self._used)

    def _prepare(self, name: str, arguments: JsonMap) -> JsonMap:
        """Paths made safe, contents and addresses checked; what is refused raises."""
        for field in self._actions.path_fields(name):
            if field in arguments:
                arguments = {**arguments, field: self._safe_path(name, arguments[field])}
        check_content(name, arguments)
        check_domain(self._actions, name, arguments)
        return arguments

    def _safe_path(self, name: str, path: Any) -> Any:
        if not isinstance(path, str):
            raise TypeError("A path must be text.")
        if self._sandbox is not None:
            place = self._sandbox.locate(path, self._access(name))
            if isinstance(place, ToolError):
                denied = place.code is ToolErrorCode.PERMISSION_DENIED
                raise PermissionError("Path traversal blocked.") if denied else ValueError(place.message)
            path = os.path.normpath(os.path.join(self._sandbox.root, place.real))
        if self._access(name) is not PathAccess.LIST_DIR:
            check_extension(self._actions, path)
        return path

    def _access(self, name: str) -> PathAccess:
        return PathAccess(self._actions.access(name))

    def _tool(self, action: Action, name: str) -> tuple[Tool, list[Any]]:
        """The action as a tool, and the list that receives what it gives back."""
        values: list[Any] = []

        def run(_: ToolContext, arguments: _Anything) -> Any:
            values.append(action.execute(**arguments.model_dump()))
            return values[-1]

        async def arun(_: ToolContext, arguments: _Anything) -> Any:
            values.append(await action.execute(**arguments.model_dump()))
            return values[-1]

        effect = getattr(action, "effect", None)
        body = arun if inspect.iscoroutinefunction(getattr(action, "execute", None)) else run
        known = effect if isinstance(effect, Effect) else self._actions.effect(name)
        return Tool(name, name, _Anything, known, body), values

    def _result(self, run: ToolRun, name: str, args: JsonMap, values: list[Any]) -> ExecResult:
        ended = ExecResult(run.result.ok, name, args, ms=run.ms, retries=run.retries)
        if run.result.error is None:
            data = run.result.data
            wrapped = set(data) == {"value"} and not (values and isinstance(values[-1], Mapping))
            return replace(ended, data=data["value"] if wrapped else data)
        error = run.result.error
        kind, _, reason = run.error.partition(":")
        message = reason if kind in {"user_error", "tool_error", "guardrail", "bad_args"} else error.message
        if run.error == "tool_error:timeout":
            message = f"Action '{name}' timed out after {self._timeout_s:.1f}s"
        return replace(ended, error=message, error_type=run.error_type or error.code.value)

    def _told(self, result: ExecResult) -> ExecResult:
        """The result without secrets, told to whoever listens; none of them can break the run."""
        args = self._redactor.value(result.args)
        error = None if result.error is None else self._redactor.text(result.error)
        result = replace(result, args=args if isinstance(args, dict) else {}, error=error)
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **alert.as_map()})
        return result

    def _log(self, record: JsonMap) -> None:
        safe = self._redactor.value(record)
        if self._audit is not None and isinstance(safe, dict):
            self._audit.write(safe)
        if self._logger is not None:
            with suppress(Exception):  # spec 4: logging never breaks an action
                self._logger(safe)


def _open(_path: str, _for_write: bool) -> ToolError | None:
    return None


def _closed(path: str, _for_write: bool) -> ToolError | None:
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"This environment has no base_dir for {path!r}.")
