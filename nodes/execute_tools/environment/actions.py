"""Spec 4's Environment: runs any action safely, and always answers in the same shape.

It is the engine with a policy made of these settings: there is no second way to run a tool. An action is any object
with a `name` and an `execute(**arguments)`, sync or async.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from nodes.execute_tools.action_arguments import (
    ActionRules,
    check_content,
    check_domain,
    check_extension,
    named_arguments,
    names_a_folder,
)
from nodes.execute_tools.action_attempts import UNKNOWN, Action, Attempts, ExecResult, SeenArguments, name_of, tool_of
from nodes.execute_tools.engine import Engine, EngineConfig
from nodes.execute_tools.environment.audit_log import AuditLog
from nodes.execute_tools.environment.deadline import monotonic_s
from nodes.execute_tools.environment.sandbox import PathAccess, PathSandbox
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.plain_values import freed, is_plain, json_like, shown
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
from nodes.execute_tools.tool_run import ToolRun, reason_of
from nodes.execute_tools.trace import TraceSink
from nodes.records import JsonMap, ToolCall, ToolError, ToolErrorCode

__all__ = ["Action", "Environment", "ExecResult"]


class Environment:
    """The gateway for actions. Every default is spec 4's; `rules` adds what its text asks for beside its code.

    Files: with a `base_dir`, path arguments of file actions become real paths inside it, of these extensions (none
    given: of any); without one they become absolute, and nothing restricts where they lead. Network: actions that go
    out are refused unless `allow_net`, and then limited to `allowed_domains` (none given: to any). Source: spec 4.

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
            ValueError: a number of the retries is negative.
        """
        self._base_dir = None if base_dir is None else os.path.abspath(base_dir)
        self._sandbox = None if base_dir is None else PathSandbox(base_dir)
        self._exts, self._domains = frozenset(allowed_exts or ()), frozenset(allowed_domains or ())
        self._actions = ActionRules(
            allowed_exts=frozenset(each.lower() for each in self._exts),
            allow_net=allow_net,
            allowed_domains=frozenset(each.lower() for each in self._domains),
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

    @property
    def base_dir(self) -> str | None:
        """The absolute path of the folder that file actions stay in, None where nothing keeps them."""
        return self._base_dir

    @property
    def allowed_exts(self) -> set[str]:
        """The extensions that files may have; empty means any."""
        return set(self._exts)

    @property
    def allow_net(self) -> bool:
        """Whether actions may go out."""
        return self._actions.allow_net

    @property
    def allowed_domains(self) -> set[str]:
        """The hosts that they may go to; empty means any."""
        return set(self._domains)

    @property
    def timeout_s(self) -> float:
        """Seconds that an attempt may take, unless `rules.timeouts` names the action."""
        return self._timeout_s

    @property
    def max_retries(self) -> int:
        """The most attempts after the first."""
        return self._rules.retries.max_retries

    @property
    def retry_backoff_s(self) -> float:
        """Seconds before the first retry; twice as many before the second, and so on."""
        return self._rules.retries.backoff_s

    @property
    def retry_exceptions(self) -> tuple[type[BaseException], ...]:
        """What is worth another attempt."""
        return self._rules.retries.exceptions

    @property
    def arg_validators(self) -> dict[str, Validator]:
        """The validators, by the name of their action; those of `rules` are among them."""
        return dict(self._validators)

    @property
    def logger(self) -> Callable[[JsonMap], None] | None:
        """Who is told of each action."""
        return self._logger

    def execute_action(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> JsonMap:
        """Run one action: `{ok, action, args, data, error, error_type, ms, retries}`, and never an exception.

        With the same `idempotency_key` the same call is done once, and its result given again; the same key with other
        arguments is refused. Only KeyboardInterrupt passes.
        """
        return self.execute(action, args, idempotency_key=idempotency_key).to_dict()

    def execute(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """The same as a record."""
        name, given = UNKNOWN, dict[str, Any]()
        try:
            name = name_of(action)
            given = named_arguments(args)
            tool, attempts = tool_of(action, name, self._actions.effect(name))
            if idempotency_key or not isinstance(idempotency_key, str):
                return self._once(idempotency_key, tool, given, attempts)
            return self._run(tool, given, attempts)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action, arguments and key are, the caller gets a result
            return self._told(self._failed(name, given, reason_of(error), type(error).__name__))

    def _once(self, key: str, tool: Tool, given: JsonMap, attempts: Attempts) -> ExecResult:
        if not isinstance(key, str):
            raise TypeError(f"an idempotency key is a text, not {type(key).__name__}")
        if not is_plain(given):
            raise TypeError("with an idempotency key all arguments are plain values, as no others can be compared")
        mark = call_fingerprint(tool.name, json_like(given))
        begun = self._results.begin(key, mark)
        if isinstance(begun, Stored):
            return deepcopy(begun.value)
        if isinstance(begun, Conflict):
            return self._told(self._failed(tool.name, given, begun.message, "IdempotencyError"))
        # Cut off by Ctrl-C, it stays "in progress": whether it had its effect is unknown, so it is not made again.
        result = self._run(tool, given, attempts)
        self._results.finish(key, mark, deepcopy(result))
        return result

    def _run(self, tool: Tool, given: JsonMap, attempts: Attempts) -> ExecResult:
        attempts.arguments = given
        seconds = self._seconds(tool.name)
        engine = Engine(
            ActionRegistry([tool]),
            TraceSink(),
            EngineConfig(async_timeout_s=seconds, enable_cache=False),
            policy=self._policy(tool.name, attempts),
            redactor=self._redactor,
        )
        seen = SeenArguments(text=json.dumps(json_like(given))).model_dump()
        context = ToolContext(self._workspace, timeout_s=seconds)
        run = engine.run_sync(ToolCall(call_id="", tool=tool.name, arguments=seen, raw_arguments=""), context)
        return self._told(self._result(run, tool.name, attempts))

    def _seconds(self, name: str) -> float:
        return self._rules.timeouts.get(name, self._timeout_s)

    def _policy(self, name: str, attempts: Attempts) -> CallPolicy:
        def prepared(seen: JsonMap) -> JsonMap:
            arguments = self._prepare(name, attempts.arguments)
            if name in self._validators:
                arguments = _validated(name, self._validators[name], arguments)
            attempts.arguments = arguments
            return seen

        rules = replace(self._rules, validators={name: prepared})
        return CallPolicy(rules, self._memory, used=self._used)

    def _prepare(self, name: str, arguments: JsonMap) -> JsonMap:
        """Paths made safe, contents and addresses checked; what is refused raises."""
        for field in self._actions.path_fields(name):
            if field in arguments:
                arguments = {**arguments, field: self._safe_path(name, field, arguments[field])}
        check_content(name, arguments)
        check_domain(self._actions, name, arguments)
        return arguments

    def _safe_path(self, name: str, field: str, given: Any) -> str:
        path = os.fspath(given) if isinstance(given, os.PathLike) else given
        if not isinstance(path, str):
            raise TypeError("A path must be text.")
        if self._sandbox is None:
            path = os.path.abspath(path)
        else:
            place = self._sandbox.locate(path, self._access(name))
            if isinstance(place, ToolError):
                denied = place.code is ToolErrorCode.PERMISSION_DENIED
                raise PermissionError("Path traversal blocked.") if denied else ValueError(place.message)
            path = os.path.normpath(os.path.join(self._sandbox.root, place.real))
        if not self._is_folder(name, field, path):
            check_extension(self._actions, path)
        return path

    def _is_folder(self, name: str, field: str, path: str) -> bool:
        """Whether this is no file that could be of a kind."""
        if self._access(name) is PathAccess.LIST_DIR:
            return True
        return names_a_folder(name, field) and os.path.isdir(path)

    def _access(self, name: str) -> PathAccess:
        return PathAccess(self._actions.access(name))

    def _result(self, run: ToolRun, name: str, attempts: Attempts) -> ExecResult:
        ended = ExecResult(run.result.ok, name, attempts.arguments, ms=run.ms, retries=run.retries)
        if run.result.error is None:
            return replace(ended, data=freed(attempts.values[run.result.data["attempt"]], self._redactor))
        error = run.result.error
        kind, _, reason = run.error.partition(":")
        message = reason if kind in {"user_error", "tool_error", "guardrail", "bad_args"} else error.message
        if run.error == "tool_error:timeout":
            own = attempts.own_timeout
            message = (
                f"Action '{name}' timed out after {_shown_s(self._seconds(name))}s" if own is None else reason_of(own)
            )
        return replace(ended, error=message, error_type=run.error_type or error.code.value)

    def _failed(self, name: str, args: JsonMap, error: str, kind: str) -> ExecResult:
        return ExecResult(False, name, args, error=error, error_type=kind)

    def _told(self, result: ExecResult) -> ExecResult:
        """The result without secrets, told to whoever listens; none of them can break the run."""
        error = None if result.error is None else self._redactor.text(result.error)
        action = self._redactor.text(result.action)
        result = replace(result, action=action, args=shown(result.args, self._redactor), error=error)
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **alert.as_map()})
        return result

    def _log(self, record: JsonMap) -> None:
        safe = shown(record, self._redactor)
        if self._audit is not None:
            self._audit.write(safe)
        if self._logger is None:
            return
        try:
            self._logger(safe)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S110 - spec 4: logging never breaks an action
            pass


def _validated(name: str, validator: Validator, arguments: JsonMap) -> JsonMap:
    checked = validator(dict(arguments))
    if not isinstance(checked, Mapping):
        raise TypeError(f"the validator of {name} returned no arguments")
    return named_arguments(checked)


def _shown_s(seconds: float) -> str:
    """With one digit after the point, as in spec 4, or more where they are needed."""
    text = f"{seconds:.1f}"
    return text if float(text) == seconds else f"{seconds:g}"


def _open(_path: str, _for_write: bool) -> ToolError | None:
    return None


def _closed(path: str, _for_write: bool) -> ToolError | None:
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"This environment has no base_dir for {path!r}.")
