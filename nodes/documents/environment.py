"""Spec 4's Environment: runs an action under its rules and returns every outcome in one form.

An action is a `Tool`, or any object with a `name` and an `execute(**arguments)`, sync or async. Arguments and results
are passed on as they are: no iterator, file or cursor is consumed.
"""

import asyncio
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Final

from mendgraph.nodes.execute_tools import action_names, call_policy
from mendgraph.nodes.execute_tools.network.url_rules import names_target, parse_url
from mendgraph.nodes.execute_tools.plain_values import comparable, json_like, without_known
from mendgraph.nodes.execute_tools.policy.alerts import Vitals, observe_tool
from mendgraph.nodes.execute_tools.registry import (
    Action,
    ActionError,
    ActionRegistry,
    OpenArguments,
    Tool,
    ToolContext,
    ToolOutput,
    Validator,
    action_value,
    no_workspace,
)
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, Redactor
from mendgraph.nodes.execute_tools.signatures import context_parameter
from mendgraph.nodes.execute_tools.tool_attempt import SELF_TIMED_GRACE_S, call_tool
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome, clip, http_status, raised, reason_of
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.deadline import call_within, monotonic_ms, monotonic_s, pause
from mendgraph.nodes.workspace.files.sandbox import PathAccess, PathSandbox, extension_denial
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.journal.journal import call_fingerprint
from mendgraph.nodes.workspace.store.audit_log import AuditLog

UNKNOWN: Final = "<unknown>"  # the name of an action without one. Source: spec 4.
MOST_RESULTS = 1_000  # results that are stored by idempotency key; the oldest are removed first

_RETRY_LATER: Final = frozenset({"QuotaError", "RateLimitError", "CircuitOpenError"})
"""Refusals after which the same idempotency key may be used again."""

_RETRIES: ContextVar[int] = ContextVar("retries", default=0)
"""The retries of the running action: spec 4's hooks have no place for them in their signatures."""


@dataclass
class ExecResult:
    """The outcome of an action. `ms` is wall time in milliseconds, `retries` counts attempts after the first.

    `data` is the object that the action returned, or a copy without the environment's `secrets` if it contains one.
    `args` are a copy without secrets. `error_type` is the name of the exception, or the code of a tool's typed error.
    """

    ok: bool
    action: str
    args: JsonMap
    data: Any | None = None
    error: str | None = None
    ms: int = 0
    retries: int = 0
    error_type: str | None = None

    def to_dict(self) -> JsonMap:
        """Return all fields by name, in this order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Environment:
    """Runs actions. Every default is spec 4's; `rules` adds what its text asks for beside its code.

    Files: with a `base_dir`, path arguments of file actions become real paths inside it, with one of `allowed_exts`
    (empty: any). Without a `base_dir` they become absolute and are not restricted. Network: actions that go out are
    refused unless `allow_net`, and are limited to `allowed_domains` (empty: any). Attributes may be changed between
    actions. Subclasses may override spec 4's hooks: `_prepare_args`, `_run_with_retries`, `_run_with_timeout`,
    `_safe_path`, `_check_extension`, `_check_domain`, `_log` and `_redact`.

    An action that opens a path itself opens a name, which another program may replace meanwhile; this package's tools
    use the workspace's handles instead.
    """

    _REDACT_KEYS = re.compile(r"(password|secret|token|api_?key|authorization|bearer)", re.IGNORECASE)
    """Names whose texts are redacted, beside those that the redactor knows. Source: spec 4."""

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
        rules: call_policy.CallRules = call_policy.OPEN_RULES,
        breaker: call_policy.BreakerConfig | None = None,
        secrets: Iterable[str] = (),
        audit: AuditLog | None = None,
        clock: Callable[[], float] = monotonic_s,
        actions: ActionRegistry | None = None,
    ) -> None:
        """With a `breaker`, an action whose endpoint is down is refused for a while; `secrets` are never shown.

        With `actions`, an action may be given by name, and their validators run first. A timeout is not retried after
        an action that changes something, by its `effect` or by its name.

        Raises:
            ValueError: a number of the retries is negative.
        """
        self.base_dir = os.path.abspath(base_dir) if base_dir else None
        self.allowed_exts = set(allowed_exts or ())
        self.allow_net = allow_net
        self.allowed_domains = set(allowed_domains or ())
        self.timeout_s = float(timeout_s)
        self.max_retries = int(max_retries)
        self.retry_backoff_s = float(retry_backoff_s)
        self.retry_exceptions = retry_exceptions
        self.arg_validators = dict(arg_validators or {})
        self.logger = logger
        self._rules = rules
        self._audit = audit
        self._used: dict[str, int] = {}
        self._memory = call_policy.PolicyMemory(clock, breaker)
        self._results: OrderedDict[str, tuple[str, ExecResult | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._redactor = Redactor(secrets)
        self._vitals = Vitals()
        self._actions = actions
        self._retry_policy("", None)  # refuses negative numbers

    def execute_action(self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = "") -> JsonMap:
        """Run one action and return `{ok, action, args, data, error, ms, retries, error_type}`.

        Only KeyboardInterrupt is raised. A call with a known `idempotency_key` returns the first result; the same key
        with other arguments is refused. An async action runs in its own event loop, in a thread if one is running here.
        """
        return self.execute(action, args, idempotency_key=idempotency_key).to_dict()

    def execute(self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """Run one action and return the result as a record."""
        outer = _RETRIES.set(0)
        try:
            return self._execute(action, args, idempotency_key)
        finally:
            _RETRIES.reset(outer)

    def _execute(self, action: Action | str, args: Mapping[str, Any], idempotency_key: str) -> ExecResult:
        started = monotonic_ms()
        result = ExecResult(False, UNKNOWN, {})
        fingerprint = ""

        try:
            action = self._identify(action, args, result)
            if idempotency_key:
                fingerprint = call_fingerprint(result.action, comparable(result.args))
                earlier = self._claim(idempotency_key, fingerprint)
                if earlier is not None:
                    return earlier
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever is wrong with the call, the caller gets a result
            return self._report(result, error)

        failure: BaseException | None = None
        try:
            self._permit(action)
            prepared = self._prepare_args(result.action, self._normalised(result.action, result.args))
            data = self._run_with_retries(action, prepared)
            result = replace(result, ok=True, args=prepared, data=without_known(data, self._redactor))
        except KeyboardInterrupt:
            raise  # with an idempotency key the call stays "in progress": whether it had its effect is unknown
        except BaseException as error:  # noqa: BLE001 - whatever action and hooks do, the caller gets a result
            failure = error

        result = replace(result, ms=monotonic_ms() - started, retries=_RETRIES.get())
        result = self._report(result, failure)
        if idempotency_key:
            self._remember(idempotency_key, fingerprint, result)

        return result

    def _identify(self, action: Action | str, args: object, result: ExecResult) -> Action:
        """Return the action, and write its name and its arguments into the result."""
        if isinstance(args, Mapping):
            result.args = dict(args)

        if isinstance(action, str):
            result.action = action
            registered = self._actions.get(action) if self._actions is not None else None
            if registered is None:
                names = sorted(self._actions.names()) if self._actions is not None else []
                message = f"There is no action {action!r}. There are: {', '.join(names) or 'none'}."
                raise ActionError(message, "unknown_tool")

            action = registered

        result.action = _name_of(action)
        if not isinstance(args, Mapping):
            raise TypeError(f"the arguments of an action are a mapping, not {type(args).__name__}")

        return action

    def _claim(self, key: str, fingerprint: str) -> ExecResult | None:
        """Return the stored result for this key, or claim the key. Source: Stripe's API, "Idempotent requests"."""
        with self._lock:
            if key not in self._results:
                self._results[key] = (fingerprint, None)
                return None

            recorded, result = self._results[key]

        if recorded != fingerprint:
            message = "This idempotency key belongs to another call: use a new key for other arguments."
            raise ActionError(message, "IdempotencyError")
        if result is None:
            raise ActionError("The same call is being made at this moment: wait for its result.", "IdempotencyError")

        return result

    def _remember(self, key: str, fingerprint: str, result: ExecResult) -> None:
        with self._lock:
            self._results[key] = (fingerprint, result)
            if result.error_type in _RETRY_LATER:
                del self._results[key]

            if len(self._results) > MOST_RESULTS:
                del self._results[next(key for key, (_, finished) in self._results.items() if finished)]

    def _normalised(self, name: str, args: JsonMap) -> JsonMap:
        return dict(args) if self._actions is None else self._actions.normalised(name, args)

    # --- Checks before the action

    def _permit(self, action: Action, args: Mapping[str, Any] | None = None) -> None:
        policy = call_policy.CallPolicy(self._rules, self._memory)
        arguments = {"text": str(json_like(args or {}))}  # the policy looks for marks of secrets in it
        refusal = policy.permit(self._as_tool(action), arguments)
        if refusal is not None:
            raise ActionError(refusal.reason, refusal.error_type)

    def _prepare_args(self, action_name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Make paths safe, check contents and addresses, and run the action's own validator."""
        if action_name in action_names.READING | action_names.WRITING:
            self._prepare_paths(action_name, args)

        if action_name in action_names.TEXT_WRITING and not isinstance(args.get("content"), str):
            raise ValueError("Missing or invalid 'content' for write/append operation.")

        if action_name in action_names.GOING_OUT:
            if not self.allow_net:
                raise PermissionError("Network access is disabled in this Environment.")

            url = args.get("url")
            if not isinstance(url, str) or not url:
                raise ValueError("A non-empty 'url' is required.")

            self._check_domain(url)

        validator = self.arg_validators.get(action_name)
        if validator is None:
            return args

        validated = validator(args)
        if not isinstance(validated, Mapping):
            raise TypeError(f"the arguments of an action are a mapping, not {type(validated).__name__}")

        return dict(validated)

    def _prepare_paths(self, action_name: str, args: dict[str, Any]) -> None:
        for field in action_names.FILE_NAMES:
            if field not in args:
                continue

            args[field] = self._safe_path(args[field])
            is_folder = action_name == "move_file" and field in {"target", "directory"} and os.path.isdir(args[field])
            if action_name not in action_names.LISTING and not is_folder:
                self._check_extension(args[field])

    def _safe_path(self, file_name: str) -> str:
        """Return the absolute path; with a `base_dir` the real one, or PermissionError if it leads outside."""
        path = os.fspath(file_name) if isinstance(file_name, os.PathLike) else file_name
        if not isinstance(path, str):
            raise TypeError("A path must be text.")

        full = os.path.abspath(os.path.join(self.base_dir or "", path))
        if self.base_dir is None:
            return full

        if not os.path.isdir(self.base_dir):  # so no link in it can lead elsewhere
            if not os.path.join(full, "").startswith(os.path.join(self.base_dir, "")):
                raise PermissionError("Path traversal blocked.")

            return full

        sandbox = PathSandbox(self.base_dir)
        place = sandbox.locate(path, PathAccess.LIST_DIR)
        if not isinstance(place, ToolError):
            return os.path.normpath(os.path.join(sandbox.root, place.real))
        if place.code is ToolErrorCode.PERMISSION_DENIED:
            raise PermissionError("Path traversal blocked.")

        raise ValueError(place.message)

    def _check_extension(self, full_path: str) -> None:
        if extension_denial(full_path, {extension.lower() for extension in self.allowed_exts or ()}) is not None:
            raise PermissionError(f"Extension '{os.path.splitext(full_path)[1]}' not allowed.")

    def _check_domain(self, url: str) -> None:
        """Allow only http and https, and only the allowed hosts."""
        target = parse_url(url)
        if isinstance(target, ToolError):
            raise PermissionError(target.message)
        if self.allowed_domains and not names_target(self.allowed_domains, target):
            raise PermissionError(f"Domain '{target.host}' not allowed.")

    # --- Running the action

    def _run_with_retries(self, action: Action, args: dict[str, Any]) -> Any:
        self._permit(action, args)
        tool = self._as_tool(action)
        retries = self._retry_policy(tool.name, action_names.declared_effect(action))
        rules = replace(self._rules, retries=retries)
        policy = call_policy.CallPolicy(rules, self._memory, used=self._used)
        refusal = policy.take(tool)
        if refusal is not None:
            raise ActionError(refusal.reason, refusal.error_type)

        outcome: ToolOutcome | None = None
        attempt = 0
        try:
            while True:
                _RETRIES.set(attempt)
                attempt += 1
                try:
                    seconds = self._rules.timeouts.get(tool.name, self.timeout_s)
                    value = action_value(self._run_with_timeout(action, args, seconds))
                    break
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    outcome = raised(tool.name, error, attempt)
                    wait_s = policy.wait_before_retry(tool, error, attempt)
                    if wait_s is None:
                        raise

                pause(wait_s)

            outcome = ToolOutcome("", tool.name, _output_of(value))
        finally:
            policy.settle(tool, outcome)

        if isinstance(value, ToolError):
            raise ActionError(value.message, value.code.value)

        return value

    def _run_with_timeout(self, action: Action, args: dict[str, Any], timeout_s: float) -> Any:
        seconds = max(0.001, timeout_s)
        call = partial(call_tool, self._as_tool(action), self._context(action), args, seconds)
        started_s = monotonic_s()
        try:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                call = partial(call_within, seconds + SELF_TIMED_GRACE_S, call)

            return call()
        except TimeoutError:
            if monotonic_s() - started_s < seconds:
                raise  # the action's own

            raise TimeoutError(f"Action '{action.name}' timed out after {timeout_s:.1f}s") from None

    def _retry_policy(self, name: str, effect: Effect | None) -> call_policy.RetryPolicy:
        """A timeout leaves open what happened, so an action that changes something is not repeated. Source: spec 4."""
        changes = name in action_names.WRITING | {"http_post"} if effect is None else effect in CHANGING
        listed = self.retry_exceptions
        return call_policy.RetryPolicy(
            max_retries=self.max_retries,
            backoff_s=self.retry_backoff_s,
            exceptions=(listed,) if isinstance(listed, type) else tuple(listed),
            repeatable=call_policy.WITHOUT_CHANGE if changes else frozenset(Effect),
        )

    def _as_tool(self, action: Action) -> Tool:
        """Return the action as a tool with any arguments; a tool stays as it is."""
        if isinstance(action, Tool):
            return action

        name = _name_of(action)

        def run(context: ToolContext, arguments: OpenArguments) -> Any:
            values = dict(arguments.model_extra or {})
            parameter = context_parameter(action.execute, ToolContext)
            if parameter:
                values[parameter] = context

            return action.execute(**values)

        async def run_async(context: ToolContext, arguments: OpenArguments) -> Any:
            return await run(context, arguments)

        return Tool(
            name,
            name,
            OpenArguments,
            action_names.declared_effect(action) or action_names.effect_by_name(name),
            run_async if iscoroutinefunction(getattr(action, "execute", None)) else run,
            remote=name in action_names.GOING_OUT,
        )

    def _context(self, action: Action) -> ToolContext:
        """Return the context of a call: a tool may use the files of `base_dir`, and nothing else."""
        workspace = no_workspace()
        if isinstance(action, Tool) and self.base_dir is not None and os.path.isdir(self.base_dir):
            extensions = frozenset(extension.lower() for extension in self.allowed_exts or ())
            workspace = Workspace(self.base_dir, lambda *_: None, allowed_extensions=extensions)

        return ToolContext(workspace, timeout_s=inf)

    # --- Reporting the result

    def _report(self, result: ExecResult, failure: BaseException | None) -> ExecResult:
        """Log the result without secrets, with the failure if there is one, and return it."""
        if failure is not None:
            kind = failure.kind if isinstance(failure, ActionError) else type(failure).__name__
            result = replace(result, error=self._redactor.text(reason_of(failure)), error_type=kind)

        result = replace(result, action=self._redactor.text(result.action), args=self._redact(result.args))
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **asdict(alert)})

        return result

    def _log(self, record: JsonMap) -> None:
        """Send the record without secrets to the audit log and the logger, whose failures are ignored."""
        if self._audit is None and self.logger is None:
            return

        if "data" in record:
            data = {"data": json_like(record["data"])}
            with suppress(TypeError):  # integers beyond 64 bits and lone surrogates cannot be measured
                data = clip(ToolResult(ok=True, data=data)).data

            record = {**record, "data": None, **data}

        safe = self._redact(record)
        if self._audit is not None:
            self._audit.write(safe)

        if self.logger is not None:
            with suppress(Exception):  # spec 4: logging never breaks an action
                self.logger(safe)

    def _redact(self, obj: Any) -> Any:
        """Return a copy as JSON values, without known secrets and without texts under `_REDACT_KEYS`."""
        if isinstance(obj, dict):  # a field that cannot be copied is replaced alone
            plain: Any = {key: json_like(item) for key, item in obj.items()}
        else:
            plain = json_like(obj)

        return self._without_named(self._redactor.value(plain))

    def _without_named(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without_named(item) for item in value]
        if not isinstance(value, dict):
            return value

        redacted = {}
        for key, item in value.items():
            is_secret = isinstance(item, str) and self._REDACT_KEYS.search(key)
            redacted[key] = PLACEHOLDER if is_secret else self._without_named(item)

        return redacted


def _output_of(value: object) -> ToolOutput:
    """Return what the circuit breaker has to know of a value: its error, or its HTTP status."""
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)

    status = http_status(value)
    return ToolOutput.ok() if status is None else ToolOutput.ok(status=status)


def _name_of(action: Action) -> str:
    name = getattr(action, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError("an action needs a name: a text that is not empty")

    return name
