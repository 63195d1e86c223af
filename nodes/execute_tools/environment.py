"""Spec 4's Environment: runs any action safely, and always answers in the same shape.

It is the engine with a policy made of these settings: there is no second way to run a tool. An action is a `Tool`, or
any object with a `name` and an `execute(**arguments)`, sync or async. What an action takes and returns is handed on as
it is: an iterator, a file or a cursor is never looked into.
"""

import asyncio
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from math import inf
from typing import Any, Final

from mendgraph.nodes.execute_tools import action_names, call_policy
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, call_within, monotonic_ms, monotonic_s
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox, extension_denial
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import call_fingerprint
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
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.execute_tools.tool_attempt import SELF_TIMED_GRACE_S, await_tool, call_tool
from mendgraph.nodes.execute_tools.tool_run import ToolRun, http_status, reason_of
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolCall, ToolError, ToolErrorCode

UNKNOWN: Final = "<unknown>"  # stands for the name of what has none. Source: spec 4.
MOST_RESULTS = 1_000  # finished results that are remembered by their keys; the oldest are forgotten first
MOST_LOGGED: Final = 2_000  # values of one result that stand in the log; what is beyond is counted

_NOT_MADE = frozenset({"QuotaError", "RateLimitError", "CircuitOpenError"})
"""Refusals that say nothing of the call, only of the moment: with the same key it may be made later."""

_RETRIES: ContextVar[int] = ContextVar("retries")
"""The retries of the last action, where the hooks of a subclass cannot lose them."""


@dataclass
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `data` is the very object that the action gave back; only where one of the environment's `secrets` stands in it, it
    is a copy without them. `args` are always a copy without secrets. `error` and `error_type` (the name of the
    exception, or the code of a tool's typed error) are None where it went well, `data` is None where it did not.
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
        """All fields by name, in this order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class _Request:
    """An action that is to be run. `mark` tells the call from others with the same `key`."""

    action: Action
    name: str
    args: JsonMap
    key: str
    mark: str
    started: int


class Environment:
    """Runs actions. Every default is spec 4's; `rules` adds what its text asks for beside its code.

    Files: with a `base_dir`, path arguments of file actions become real paths inside it, of these extensions (none
    given: of any); without one they become absolute, and nothing restricts where they lead. Network: actions that go
    out are refused unless `allow_net`, and then limited to `allowed_domains` (none given: to any). The attributes may
    be changed; the next action heeds them. Subclasses may override spec 4's hooks: `_prepare_args`,
    `_run_with_retries`, `_run_with_timeout`, `_safe_path`, `_check_extension`, `_check_domain`, `_log` and `_redact`.
    Source: spec 4.

    An action that opens the path by itself opens a name, which another program may swap meanwhile; the tools of this
    package use the workspace's handles instead.
    """

    _REDACT_KEYS = re.compile(r"(password|secret|token|api_?key|authorization|bearer)", re.IGNORECASE)
    """Names whose texts are not shown, beside those that the redactor knows. Source: spec 4."""

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
        """With a `breaker`, an action whose endpoint is down rests for a while; `secrets` are never shown.

        With `actions`, an action may be named, and no other name is known; their validators come before all else.
        A timeout is not retried where the action is known to change something: by its `effect`, or by its name.

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
        self._retries("", None)  # made for each action; what makes no sense is refused here
        self._used: dict[str, int] = {}
        self._memory = call_policy.PolicyMemory(clock, breaker)
        self._results: OrderedDict[str, tuple[str, ExecResult | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._redactor = Redactor(secrets)
        self._vitals = Vitals()
        self._actions = actions
        self._context = ToolContext(no_workspace(), timeout_s=inf)

    def execute_action(self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = "") -> JsonMap:
        """Run one action: `{ok, action, args, data, error, ms, retries, error_type}`, and never an exception.

        With the same `idempotency_key` the same call is done once, and its result given again; the same key with other
        arguments is refused. Only KeyboardInterrupt passes. An async action runs in an event loop of its own, in a
        thread where one runs here already.
        """
        return self.execute(action, args, idempotency_key=idempotency_key).to_dict()

    async def aexecute_action(
        self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = ""
    ) -> JsonMap:
        """The same in the running event loop, where async actions run; a sync action has a thread.

        It asks `_arun_with_retries` and `_arun_with_timeout` in place of the two hooks of these names without the "a".
        A cancelled task passes its CancelledError on, after the action was told by its cancel flag.
        """
        return (await self.aexecute(action, args, idempotency_key=idempotency_key)).to_dict()

    def execute(self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """The same as a record."""
        request = self._begun(action, args, idempotency_key)
        if isinstance(request, ExecResult):
            return request

        outer = _RETRIES.set(0)

        try:
            prepared = self._permitted(request)
            result = self._succeeded(request, prepared, self._run_with_retries(request.action, prepared))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action and hooks do, the caller gets a result
            result = _failed(request.name, request.args, error)

        return self._ended(request, result, outer)

    async def aexecute(self, action: Action | str, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """The same as a record, in the running event loop."""
        request = self._begun(action, args, idempotency_key)
        if isinstance(request, ExecResult):
            return request

        outer = _RETRIES.set(0)

        try:
            prepared = self._permitted(request)
            result = self._succeeded(request, prepared, await self._arun_with_retries(request.action, prepared))
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action and hooks do, the caller gets a result
            result = _failed(request.name, request.args, error)

        return self._ended(request, result, outer)

    def _begun(self, action: Action | str, args: object, key: str) -> _Request | ExecResult:
        """The request to run, or the result that it has already.

        Source: Stripe's API reference, "Idempotent requests": the first result is given again, and a key that comes
        back with other parameters is an error.
        """
        started = monotonic_ms()
        name = UNKNOWN
        arguments = dict[str, Any]()

        try:
            try:
                if isinstance(action, str):
                    name = action
                    action = self._registered(action)

                name = _name_of(action)
            finally:  # what has no name is shown with its arguments as well
                arguments = _named_arguments(args)

            mark = call_fingerprint(name, comparable(arguments)) if key else ""
            ended = self._reserved(key, mark) if key else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action, arguments and key are, the caller gets a result
            return self._reported(_failed(name, arguments, error))

        return ended or _Request(action, name, arguments, key, mark, started)

    def _registered(self, name: str) -> Tool:
        registered = None if self._actions is None else self._actions.get(name)
        if registered is None:
            names = sorted(self._actions.names()) if self._actions is not None else []
            raise ActionError(f"There is no action {name!r}. There are: {', '.join(names) or 'none'}.", "unknown_tool")

        return registered

    def _reserved(self, key: str, mark: str) -> ExecResult | None:
        """The result of the call with this key; None where it is to be made now, and no other call with the key is."""
        with self._lock:
            recorded, result = self._results.get(key, (mark, None))
            if recorded != mark:
                message = "This idempotency key belongs to another call: use a new key for other arguments."
                raise ActionError(message, "IdempotencyError")

            if result is None and key in self._results:
                message = "The same call is being made at this moment: wait for its result."
                raise ActionError(message, "IdempotencyError")

            if result is None:
                self._results[key] = (mark, None)

            return result

    def _permitted(self, request: _Request) -> dict[str, Any]:
        """The arguments that the action gets; what is refused raises."""
        effect = action_names.declared_effect(request.action) or action_names.effect_by_name(request.name)
        self._permit(Tool(request.name, request.name, OpenArguments, effect, lambda *_: None))
        args = dict(request.args) if self._actions is None else self._actions.normalised(request.name, request.args)
        return self._prepare_args(request.name, args)

    def _succeeded(self, request: _Request, prepared: dict[str, Any], value: Any) -> ExecResult:
        return ExecResult(True, request.name, prepared, data=without_known(value, self._redactor))

    def _ended(self, request: _Request, result: ExecResult, outer: Any) -> ExecResult:
        retries = _RETRIES.get()
        _RETRIES.reset(outer)
        result = self._reported(replace(result, ms=monotonic_ms() - request.started, retries=retries))

        if not request.key:
            return result

        # Cut off by Ctrl-C, it stays "in progress": whether it had its effect is unknown, so it is not made again.
        with self._lock:
            self._results[request.key] = (request.mark, result)
            if result.error_type in _NOT_MADE:
                del self._results[request.key]

            if len(self._results) > MOST_RESULTS:
                del self._results[next(key for key, (_, ended) in self._results.items() if ended)]
        return result

    def _prepare_args(self, action_name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Paths made safe, contents, addresses and the action's own validator heeded; what is refused raises."""
        for field in action_names.FILE_NAMES if action_name in action_names.READING | action_names.WRITING else ():
            if field in args:
                args[field] = self._safe_path(args[field])
                into_folder = action_name == "move_file" and field in {"target", "directory"}
                if action_name not in action_names.LISTING and not (into_folder and os.path.isdir(args[field])):
                    self._check_extension(args[field])
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
        return _named_arguments(validator(args))

    def _run_with_retries(self, action: Action, args: dict[str, Any]) -> Any:
        attempts = _Attempts()

        def attempt(*_: object) -> ToolOutput:
            with attempts.watched():
                return attempts.returned(self._run_with_timeout(action, args, self._seconds(action)))

        engine, call = self._engine(action, args, attempt)
        return attempts.value_of(engine.run_sync(call, self._context))

    async def _arun_with_retries(self, action: Action, args: dict[str, Any]) -> Any:
        attempts = _Attempts()

        async def attempt(*_: object) -> ToolOutput:
            with attempts.watched():
                return attempts.returned(await self._arun_with_timeout(action, args, self._seconds(action)))

        engine, call = self._engine(action, args, attempt)
        return attempts.value_of(await engine.run_async(call, self._context))

    def _run_with_timeout(self, action: Action, args: dict[str, Any], timeout_s: float) -> Any:
        seconds = max(0.001, timeout_s)
        scopes = list[CancellationScope]()
        call = partial(call_tool, self._call_of(action, args, scopes), self._context_of(action), {}, seconds)
        with _timed(action, timeout_s, scopes):
            if _runs_loop():
                return call_within(seconds + SELF_TIMED_GRACE_S, call)
            return call()

    async def _arun_with_timeout(self, action: Action, args: dict[str, Any], timeout_s: float) -> Any:
        scopes = list[CancellationScope]()
        with _timed(action, timeout_s, scopes):
            call = self._call_of(action, args, scopes)
            return await await_tool(call, self._context_of(action), {}, max(0.001, timeout_s))

    def _seconds(self, action: Action) -> float:
        return self._rules.timeouts.get(_name_of(action), self.timeout_s)

    def _engine(self, action: Action, args: dict[str, Any], attempt: Callable[..., Any]) -> tuple[Engine, ToolCall]:
        """The engine whose one tool makes an attempt at the action, and its call.

        The call's arguments only tell the policy whether something in them stands for a secret.
        """
        name = _name_of(action)
        effect = action_names.declared_effect(action)
        remote = name in action_names.GOING_OUT
        tool = Tool(name, name, OpenArguments, effect or action_names.effect_by_name(name), attempt, remote=remote)
        rules = replace(self._rules, timeouts={}, retries=self._retries(name, effect))
        engine = Engine(
            ActionRegistry([tool]),
            TraceSink(),
            EngineConfig(async_timeout_s=inf, enable_cache=False),
            policy=call_policy.CallPolicy(rules, self._memory, used=self._used),
            redactor=self._redactor,
        )
        words = {"text": str(json_like(args))}
        return engine, ToolCall(call_id="", tool=name, arguments=words, raw_arguments="")

    def _call_of(self, action: Action, args: dict[str, Any], scopes: list[CancellationScope]) -> Tool:
        """One call of the action as a tool without arguments; `scopes` get that of the call, its cancel flag."""

        def call(context: ToolContext) -> Any:
            if context.scope is not None:
                scopes.append(context.scope)
            if isinstance(action, Tool):
                return (action.a if is_async else action.s)(context, **args)
            field = context_parameter(action.execute, ToolContext)
            return action.execute(**args, **({field: context} if field else {}))

        async def in_loop(context: ToolContext, _: object) -> Any:
            value = call(context)
            return await value if isawaitable(value) else value

        is_async = (
            (action.asynchronous or action.arun) if isinstance(action, Tool) else iscoroutinefunction(action.execute)
        )
        run = in_loop if is_async else lambda context, _: call(context)
        return Tool(
            action.name,
            action.name,
            OpenArguments,
            action_names.declared_effect(action) or action_names.effect_by_name(action.name),
            run,
        )

    def _context_of(self, action: Action) -> ToolContext:
        """What a tool may use: the files of `base_dir`, and nothing else."""
        if not isinstance(action, Tool) or self.base_dir is None or not os.path.isdir(self.base_dir):
            return self._context
        extensions = frozenset(extension.lower() for extension in self.allowed_exts or ())
        return replace(
            self._context, workspace=Workspace(self.base_dir, lambda *_: None, allowed_extensions=extensions)
        )

    def _safe_path(self, file_name: str) -> str:
        """The absolute path; with a `base_dir` the real one, where it leads out of that PermissionError is raised."""
        if isinstance(file_name, os.PathLike):
            path = os.fspath(file_name)
        else:
            path = file_name
        if not isinstance(path, str):
            raise TypeError("A path must be text.")
        full = os.path.abspath(os.path.join(self.base_dir or "", path))
        if self.base_dir is None:
            return full
        if not os.path.isdir(self.base_dir):  # nor is there anything in it that could lead elsewhere
            if not os.path.join(full, "").startswith(os.path.join(self.base_dir, "")):
                raise PermissionError("Path traversal blocked.")
            return full
        sandbox = PathSandbox(self.base_dir)
        if isinstance(place := sandbox.locate(path, PathAccess.LIST_DIR), ToolError):
            denied = place.code is ToolErrorCode.PERMISSION_DENIED
            raise PermissionError("Path traversal blocked.") if denied else ValueError(place.message)
        return os.path.normpath(os.path.join(sandbox.root, place.real))

    def _check_extension(self, full_path: str) -> None:
        if extension_denial(full_path, {extension.lower() for extension in self.allowed_exts or ()}) is not None:
            raise PermissionError(f"Extension '{os.path.splitext(full_path)[1]}' not allowed.")

    def _check_domain(self, url: str) -> None:
        """Only http and https, and only to allowed hosts, read as this package's tools read an address."""
        if isinstance(target := parse_url(url), ToolError):
            raise PermissionError(target.message)
        if self.allowed_domains and not names_target(self.allowed_domains, target):
            raise PermissionError(f"Domain '{target.host}' not allowed.")

    def _log(self, record: JsonMap) -> None:
        """Tell whoever listens, without secrets; none of them can break the run. Of long data the beginning is told."""
        if self._audit is None and self.logger is None:
            return
        if "data" in record:
            record = {**record, "data": json_like(record["data"], MOST_LOGGED)}
        safe = self._redact(record)
        if self._audit is not None:
            self._audit.write(safe)
        try:
            if self.logger is not None:
                self.logger(safe)
        except Exception:  # noqa: BLE001, S110 - spec 4: logging never breaks an action
            pass

    def _redact(self, obj: Any) -> Any:
        """A copy made of JSON values, without what the redactor knows and what stands under `_REDACT_KEYS`.

        Of a map, what cannot be looked through costs no more than its own field.
        """

        def unnamed(value: Any) -> Any:
            if isinstance(value, list):
                return [unnamed(item) for item in value]
            if not isinstance(value, dict):
                return value
            return {
                key: PLACEHOLDER if isinstance(item, str) and self._REDACT_KEYS.search(key) else unnamed(item)
                for key, item in value.items()
            }

        if isinstance(obj, dict):
            fields = {key: json_like(item) for key, item in obj.items()}
        else:
            fields = json_like(obj)
        return unnamed(self._redactor.value(fields))

    def _permit(self, tool: Tool) -> None:
        if (refusal := call_policy.CallPolicy(self._rules, self._memory).permit(tool, {})) is not None:
            raise ActionError(refusal.reason, refusal.error_type)

    def _retries(self, name: str, effect: Effect | None) -> call_policy.RetryPolicy:
        """A timeout leaves open what was done: what is known to change something is not done again. Source: spec 4."""
        if effect is None:
            changing = name in action_names.WRITING | {"http_post"}
        else:
            changing = effect in CHANGING
        named = self.retry_exceptions
        exceptions = (named,) if isinstance(named, type) else tuple(named)
        if changing:
            repeatable = call_policy.WITHOUT_CHANGE
        else:
            repeatable = frozenset(Effect)
        return call_policy.RetryPolicy(self.max_retries, self.retry_backoff_s, exceptions, repeatable)

    def _reported(self, result: ExecResult) -> ExecResult:
        if result.error is None:
            error = None
        else:
            error = self._redactor.text(result.error)
        action = self._redactor.text(result.action)
        result = replace(result, action=action, args=self._redact(result.args), error=error)
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **asdict(alert)})
        return result


class _Attempts:
    """What the attempts at one action came to, as its caller is to have it: the engine knows JSON values only."""

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep what one attempt raises."""
        self._error = None
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def returned(self, output: object) -> ToolOutput:
        """Keep what one attempt gave back; gives what the engine has to know of it."""
        self._value = action_value(output)
        if isinstance(self._value, ToolError):
            return ToolOutput.failed(self._value)
        status = http_status(output)
        if status is None:
            return ToolOutput.ok()
        return ToolOutput.ok(status=status)

    def value_of(self, run: ToolRun) -> Any:
        """What the last attempt came to; what it raised, or why there was none, is raised."""
        _RETRIES.set(max(0, run.attempts - 1))
        if self._error is not None:
            raise self._error
        if run.result.error is not None:
            raise ActionError(run.result.error.message, run.error_type or run.result.error.code.value)
        return self._value


@contextmanager
def _timed(action: Action, timeout_s: float, scopes: list[CancellationScope]) -> Iterator[None]:
    """Name the action whose time was over; a TimeoutError of its own passes as it is."""
    try:
        yield
    except TimeoutError:
        if scopes and not scopes[-1].over:
            raise
        raise TimeoutError(f"Action '{action.name}' timed out after {timeout_s:.1f}s") from None


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _name_of(action: Action) -> str:
    """What the action is called; TypeError where it has no name: it could not be allowed, counted or found in a log."""
    name = getattr(action, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError("an action needs a name: a text that is not empty")
    return name


def _named_arguments(arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of an action are a mapping, not {type(arguments).__name__}")
    return dict(arguments)


def _failed(name: str, args: JsonMap, error: BaseException) -> ExecResult:
    if isinstance(error, ActionError):
        kind = error.kind
    else:
        kind = type(error).__name__
    return ExecResult(False, name, args, error=reason_of(error), error_type=kind)
