"""Spec 4's Environment: runs any action safely, and always answers in the same shape.

It is the engine with a policy made of these settings: there is no second way to run a tool. An action is any object
with a `name` and an `execute(**arguments)`, sync or async.
"""

import asyncio
import inspect
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, Final, Protocol

from pydantic_core import to_jsonable_python

from mendgraph.nodes.execute_tools import call_policy
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, call_here, monotonic_ms, monotonic_s
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox, extension_denial
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import call_fingerprint
from mendgraph.nodes.execute_tools.network.url_rules import names_target, read_url
from mendgraph.nodes.execute_tools.policy.alerts import Vitals, observe_tool
from mendgraph.nodes.execute_tools.registry import ActionRegistry, OpenArguments, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, Redactor
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.execute_tools.tool_run import http_status, reason_of
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult

UNKNOWN: Final = "<unknown>"  # stands for the name of what has none. Source: spec 4.
MOST_RESULTS = 1_000  # finished results that are remembered by their keys; the oldest are forgotten first
Validator = Callable[[JsonMap], JsonMap]
"""Takes the arguments of one action and gives them back, checked and normalised; raises to refuse them."""

_PATH_FIELDS: Final = ("file_name", "filename", "path", "target", "directory")
_LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
_READING: Final = _LISTING | {"read_file", "search_in_file", "file_info"}
_TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
_WRITING: Final = _TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}
_GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})
_NOT_MADE = frozenset({"QuotaError", "RateLimitError", "CircuitOpenError"})
"""Refusals that say nothing of the call, only of the moment: with the same key it may be made later."""

_RETRIES: ContextVar[int] = ContextVar("retries")
"""The retries of the last action, where the hooks of a subclass cannot lose them."""


class Action(Protocol):
    """What an environment runs. It may declare its `effect`; without one it counts as changing the world."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def execute(self) -> Callable[..., Any]:
        """The method that does it. Whatever it raises becomes an error of the result."""


@dataclass
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `data` is the very object that the action gave back; only where a secret can be seen in it, it is a copy made of
    JSON values without secrets. `args` are always such a copy. `error` and `error_type` (the name of the exception, or
    the code of a tool's typed error) are None where it went well, `data` is None where it did not.
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
        return {each.name: getattr(self, each.name) for each in fields(self)}


class ActionError(RuntimeError):
    """An action came to no value: it was refused, or failed by a typed error. `kind` is the result's `error_type`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Environment:
    """Runs actions. Every default is spec 4's; `rules` adds what its text asks for beside its code.

    Files: with a `base_dir`, path arguments of file actions become real paths inside it, of these extensions (none
    given: of any); without one they become absolute, and nothing restricts where they lead. Network: actions that go
    out are refused unless `allow_net`, and then limited to `allowed_domains` (none given: to any). The attributes may
    be changed; the next action heeds them. Subclasses may override the methods with a leading underscore, which are
    spec 4's. Source: spec 4.

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
    ) -> None:
        """With a `breaker`, an action whose endpoint is down rests for a while; `secrets` are never shown.

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
        self._rules, self._audit = rules, audit
        self._retries("", None)  # made for each action; what makes no sense is refused here
        self._used: dict[str, int] = {}
        self._memory = call_policy.PolicyMemory(clock, breaker)
        self._results: OrderedDict[str, tuple[str, ExecResult | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._redactor = Redactor(secrets)
        self._vitals = Vitals()
        closed = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="This environment has no workspace.")
        self._context = ToolContext(Workspace(os.sep, lambda *_: closed), timeout_s=inf)

    def execute_action(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> JsonMap:
        """Run one action: `{ok, action, args, data, error, ms, retries, error_type}`, and never an exception.

        With the same `idempotency_key` the same call is done once, and its result given again; the same key with other
        arguments is refused. Only KeyboardInterrupt passes.
        """
        return self.execute(action, args, idempotency_key=idempotency_key).to_dict()

    def execute(self, action: Action, args: Mapping[str, Any], *, idempotency_key: str = "") -> ExecResult:
        """The same as a record."""
        name, given = UNKNOWN, dict[str, Any]()
        try:
            try:
                name = _name_of(action)
            finally:  # what has no name is shown with its arguments as well
                given = _named_arguments(args)
            if idempotency_key:
                return self._once(idempotency_key, action, name, given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action, arguments and key are, the caller gets a result
            return self._reported(_failed(name, given, error))
        return self._run(action, name, given)

    def _once(self, key: str, action: Action, name: str, given: JsonMap) -> ExecResult:
        """The result that this key has already, or that of the call, which is made now.

        Source: Stripe's API reference, "Idempotent requests": the first result is given again, and a key that comes
        back with other parameters is an error.
        """
        mark = call_fingerprint(name, to_jsonable_python(given))  # raises for what cannot be compared
        with self._lock:
            known, result = self._results.get(key, (mark, None))
            if known != mark:
                message = "This idempotency key belongs to another call: use a new key for other arguments."
                raise ActionError(message, "IdempotencyError")
            if result is not None:
                return result
            if key in self._results:
                message = "The same call is being made at this moment: wait for its result."
                raise ActionError(message, "IdempotencyError")
            self._results[key] = (mark, None)
        # Cut off by Ctrl-C, it stays "in progress": whether it had its effect is unknown, so it is not made again.
        result = self._run(action, name, given)
        with self._lock:
            self._results[key] = (mark, result)
            if result.error_type in _NOT_MADE:
                del self._results[key]
            if len(self._results) > MOST_RESULTS:
                del self._results[next(each for each, (_, ended) in self._results.items() if ended)]
        return result

    def _run(self, action: Action, name: str, given: JsonMap) -> ExecResult:
        started, outer = monotonic_ms(), _RETRIES.set(0)
        try:
            effect = _effect_of(action)
            self._permit(Tool(name, name, OpenArguments, effect or effect_by_name(name), lambda *_: None))
            prepared = self._prepare_args(name, dict(given))
            value = self._run_with_retries(action, prepared)
            told = json_like(value)
            safe = self._redactor.content(told)
            result = ExecResult(True, name, prepared, data=value if safe == told else safe)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action and hooks do, the caller gets a result
            result = _failed(name, given, error)
        retries = _RETRIES.get()
        _RETRIES.reset(outer)
        return self._reported(replace(result, ms=monotonic_ms() - started, retries=retries))

    def _prepare_args(self, action_name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Paths made safe, contents, addresses and the action's own validator heeded; what is refused raises."""
        for field in _PATH_FIELDS if action_name in _READING | _WRITING else ():
            if field in args:
                args[field] = self._safe_path(args[field])
                into_folder = action_name == "move_file" and field in {"target", "directory"}
                if action_name not in _LISTING and not (into_folder and os.path.isdir(args[field])):
                    self._check_extension(args[field])
        if action_name in _TEXT_WRITING and not isinstance(args.get("content"), str):
            raise ValueError("Missing or invalid 'content' for write/append operation.")
        if action_name in _GOING_OUT:
            if not self.allow_net:
                raise PermissionError("Network access is disabled in this Environment.")
            url = args.get("url")
            if not isinstance(url, str) or not url:
                raise ValueError("A non-empty 'url' is required.")
            self._check_domain(url)
        validator = self.arg_validators.get(action_name)
        return args if validator is None else _named_arguments(validator(args))

    def _run_with_retries(self, action: Action, args: dict[str, Any]) -> Any:
        name, effect = _name_of(action), _effect_of(action)
        values, errors = list[Any](), list[BaseException]()

        def attempt(_: ToolContext, __: OpenArguments) -> ToolOutput:
            errors.clear()
            try:
                returned = self._run_with_timeout(action, args, self._rules.timeouts.get(name, self.timeout_s))
            except BaseException as error:
                errors.append(error)
                raise
            # A caller in Python is given the data of a tool's result.
            result = returned.result if isinstance(returned, ToolOutput) else returned
            if isinstance(result, ToolResult):
                result = result.data if result.error is None else result.error
            values.append(result)
            if isinstance(result, ToolError):
                return ToolOutput.failed(result)
            status = http_status(returned)
            return ToolOutput.ok() if status is None else ToolOutput.ok(status=status)

        tool = Tool(name, name, OpenArguments, effect or effect_by_name(name), attempt, remote=name in _GOING_OUT)
        rules = replace(self._rules, timeouts={}, retries=self._retries(name, effect))
        engine = Engine(
            ActionRegistry([tool]),
            TraceSink(),
            EngineConfig(enable_cache=False),
            policy=call_policy.CallPolicy(rules, self._memory, used=self._used),
            redactor=self._redactor,
        )
        call = ToolCall(call_id="", tool=name, arguments={"text": _in_words(args)}, raw_arguments="")
        run = engine.run_sync(call, self._context)
        _RETRIES.set(max(0, run.attempts - 1))
        if errors:
            raise errors[-1]
        if run.result.error is not None:
            raise ActionError(run.result.error.message, run.error_type or run.result.error.code.value)
        return values[-1]

    def _run_with_timeout(self, action: Action, args: dict[str, Any], timeout_s: float) -> Any:

        def run() -> tuple[Any, TimeoutError | None]:
            try:
                return _awaited(action.execute(**args)), None
            except TimeoutError as error:  # its own
                return None, error

        try:
            value, own = call_here(max(0.001, timeout_s), run, CancellationScope())
        except TimeoutError:
            raise TimeoutError(f"Action '{action.name}' timed out after {timeout_s:.1f}s") from None
        if own is not None:
            raise own
        return value

    def _safe_path(self, file_name: str) -> str:
        """The absolute path; with a `base_dir` the real one, where it leads out of that PermissionError is raised."""
        path = os.fspath(file_name) if isinstance(file_name, os.PathLike) else file_name
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
        if extension_denial(full_path, {each.lower() for each in self.allowed_exts or ()}) is not None:
            raise PermissionError(f"Extension '{os.path.splitext(full_path)[1]}' not allowed.")

    def _check_domain(self, url: str) -> None:
        """Only http and https, and only to allowed hosts, read as this package's tools read an address."""
        if isinstance(target := read_url(url), ToolError):
            raise PermissionError(target.message)
        if self.allowed_domains and not names_target(self.allowed_domains, target):
            raise PermissionError(f"Domain '{target.host}' not allowed.")

    def _log(self, record: JsonMap) -> None:
        """Tell whoever listens, without secrets; none of them can break the run."""
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
                return [unnamed(each) for each in value]
            if not isinstance(value, dict):
                return value
            return {
                key: PLACEHOLDER if isinstance(each, str) and self._REDACT_KEYS.search(key) else unnamed(each)
                for key, each in value.items()
            }

        fields = {key: json_like(each) for key, each in obj.items()} if isinstance(obj, dict) else json_like(obj)
        return unnamed(self._redactor.value(fields))

    def _permit(self, tool: Tool) -> None:
        if (refusal := call_policy.CallPolicy(self._rules, self._memory).permit(tool, {})) is not None:
            raise ActionError(refusal.reason, refusal.error_type)

    def _retries(self, name: str, effect: Effect | None) -> call_policy.RetryPolicy:
        """A timeout leaves open what was done: what is known to change something is not done again. Source: spec 4."""
        changing = name in _WRITING | {"http_post"} if effect is None else effect in CHANGING
        named = self.retry_exceptions
        exceptions = (named,) if isinstance(named, type) else tuple(named)
        repeatable = call_policy.WITHOUT_CHANGE if changing else frozenset(Effect)
        return call_policy.RetryPolicy(self.max_retries, self.retry_backoff_s, exceptions, repeatable)

    def _reported(self, result: ExecResult) -> ExecResult:
        error = None if result.error is None else self._redactor.text(result.error)
        action = self._redactor.text(result.action)
        result = replace(result, action=action, args=self._redact(result.args), error=error)
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **asdict(alert)})
        return result


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


def _effect_of(action: Action) -> Effect | None:
    effect = getattr(action, "effect", None)
    return effect if isinstance(effect, Effect) else None


def effect_by_name(action: str) -> Effect:
    """What an action of this name does; one that is not known counts as changing the world."""
    if action in _READING:
        return Effect.READ
    return Effect.NETWORK if action in {"http_get", "fetch_url"} else Effect.WRITE


def _awaited(value: Any) -> Any:
    """What a coroutine comes to, in a loop of its own; anything else as it is."""
    if not inspect.iscoroutine(value):
        return value
    try:
        return asyncio.run(value)
    finally:
        value.close()


def json_like(value: Any) -> Any:
    """A copy made of JSON values; its `repr` where it has none, or contains itself."""
    try:
        return to_jsonable_python(value, fallback=_in_words)
    except Exception:  # noqa: BLE001 - a value may fight back in any way
        return _in_words(value)


def _in_words(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a value may fight back in any way
        return f"<{type(value).__name__}>"


def _failed(name: str, args: JsonMap, error: BaseException) -> ExecResult:
    kind = error.kind if isinstance(error, ActionError) else type(error).__name__
    return ExecResult(False, name, args, error=reason_of(error), error_type=kind)
