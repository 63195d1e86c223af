"""Spec 4's Environment: runs any action safely, and always answers in the same shape.

It is the engine with a policy made of these settings: there is no second way to run a tool. An action is any object
with a `name` and an `execute(**arguments)`, sync or async.
"""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Any

from mendgraph.nodes.execute_tools.actions import (
    GOING_OUT,
    UNKNOWN,
    Action,
    ActionError,
    ExecResult,
    OwnTimeout,
    SeenArguments,
    attempt_of,
    check_content,
    effect_of,
    freed,
    is_plain,
    is_writer,
    json_like,
    lists,
    name_of,
    named_arguments,
    names_a_folder,
    path_fields,
    seen,
    shown,
    value_of,
)
from mendgraph.nodes.execute_tools.call_policy import (
    OPEN_RULES,
    WITHOUT_CHANGE,
    CallPolicy,
    CallRules,
    PolicyMemory,
    RetryPolicy,
    Validator,
)
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig, call_tool
from mendgraph.nodes.execute_tools.files.deadline import monotonic_ms, monotonic_s
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox, extension_denial
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import call_fingerprint
from mendgraph.nodes.execute_tools.network.url_rules import names_target, read_url
from mendgraph.nodes.execute_tools.policy.alerts import Vitals, observe_tool
from mendgraph.nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, Redactor
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.execute_tools.tool_run import http_status, reason_of
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolCall, ToolError, ToolErrorCode

__all__ = ["Action", "Environment", "ExecResult"]

_NOT_MADE = frozenset({"QuotaError", "RateLimitError", "CircuitOpenError"})
"""Refusals that say nothing of the call, only of the moment: with the same key it may be made later."""

_RETRIES: ContextVar[list[int]] = ContextVar("retries")
"""The retries of the action that is being run, where the hooks of a subclass cannot lose them."""


MOST_RESULTS = 1_000
"""Finished results that are remembered; the one that was not asked for the longest is forgotten first."""


class IdempotentResults:
    """What became of actions, by idempotency key, for any number of threads. One that runs is never forgotten.

    Source: Stripe's API reference, "Idempotent requests": the first result is given again, and a key that comes back
    with other parameters is an error.
    """

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[str, ExecResult | None]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, key: str, fingerprint: str) -> ExecResult | None:
        """The result of the same call; None says: make it now, then call `end`, whatever happens.

        Raises:
            ActionError: the key belongs to another call, or its call is being made.
        """
        with self._lock:
            known = self._known.get(key)
            if known is None:
                self._known[key] = (fingerprint, None)
                return None
            if known[0] != fingerprint:
                message = "This idempotency key belongs to another call: use a new key for other arguments."
                raise ActionError(message, "IdempotencyError")
            if known[1] is None:
                message = "The same call is being made at this moment: wait for its result."
                raise ActionError(message, "IdempotencyError")
            self._known.move_to_end(key)
            return known[1]

    def end(self, key: str, fingerprint: str, result: ExecResult | None) -> None:
        """Keep what the call came to; None says that it had no effect, so it may be made as if for the first time."""
        with self._lock:
            if result is None:
                del self._known[key]
                return
            self._known[key] = (fingerprint, result)
            finished = [each for each, (_, known) in self._known.items() if known is not None]
            for each in finished[: max(0, len(finished) - self._most)]:
                del self._known[each]


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
        rules: CallRules = OPEN_RULES,
        breaker: BreakerConfig | None = None,
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
        self.arg_validators = {**rules.validators, **(arg_validators or {})}
        self.logger = logger
        self._rules, self._audit = rules, audit
        self._retries("", None)  # made for each action; what makes no sense is refused here
        self._used: dict[str, int] = {}
        self._memory = PolicyMemory(clock, breaker)
        self._results = IdempotentResults()
        self._redactor = Redactor(secrets)
        self._vitals = Vitals()
        self._context = ToolContext(Workspace(os.sep, _closed), timeout_s=inf)

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
                name = name_of(action)
            finally:  # what has no name is shown with its arguments as well
                given = named_arguments(args)
            if idempotency_key or not isinstance(idempotency_key, str):
                return self._once(idempotency_key, action, name, given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action, arguments and key are, the caller gets a result
            return self._reported(_failed(name, given, error))
        return self._run(action, name, given)

    def _once(self, key: str, action: Action, name: str, given: JsonMap) -> ExecResult:
        if not isinstance(key, str):
            raise TypeError(f"an idempotency key is a text, not {type(key).__name__}")
        if not is_plain(given):
            raise TypeError("with an idempotency key all arguments are plain values, as no others can be compared")
        mark = call_fingerprint(name, json_like(given))
        known = self._results.begin(key, mark)
        if known is not None:
            return _copied(known)
        # Cut off by Ctrl-C, it stays "in progress": whether it had its effect is unknown, so it is not made again.
        result = self._run(action, name, given)
        self._results.end(key, mark, None if result.error_type in _NOT_MADE else _copied(result))
        return result

    def _run(self, action: Action, name: str, given: JsonMap) -> ExecResult:
        started, retries = monotonic_ms(), list[int]()
        outer = _RETRIES.set(retries)
        try:
            self._permit(name, _effect_of(action))
            prepared = self._prepare_args(name, dict(given))
            data = self._run_with_retries(action, prepared)
            result = ExecResult(True, name, prepared, data=freed(data, self._redactor))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever action and hooks do, the caller gets a result
            result = _failed(name, given, error)
        finally:
            _RETRIES.reset(outer)
        return self._reported(replace(result, ms=monotonic_ms() - started, retries=sum(retries)))

    # --- Spec 4's own steps, which a subclass may override ------------------------------------------------------

    def _prepare_args(self, action_name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Paths made safe, contents, addresses and the action's own validator heeded; what is refused raises."""
        for field in path_fields(action_name):
            if field in args:
                args[field] = self._safe_path(args[field])
                is_folder = names_a_folder(action_name, field) and os.path.isdir(args[field])
                if not (is_folder or lists(action_name)):
                    self._check_extension(args[field])
        check_content(action_name, args)
        if action_name in GOING_OUT:
            if not self.allow_net:
                raise PermissionError("Network access is disabled in this Environment.")
            url = args.get("url")
            if not isinstance(url, str) or not url:
                raise ValueError("A non-empty 'url' is required.")
            self._check_domain(url)
        validator = self.arg_validators.get(action_name)
        if validator is None:
            return args
        checked = validator(args)
        if not isinstance(checked, Mapping):
            raise TypeError(f"the validator of {action_name} returned no arguments")
        return named_arguments(checked)

    def _run_with_retries(self, action: Action, args: dict[str, Any]) -> Any:
        """What the action gives back, after as many attempts as the engine and its policy allow; else it raises."""
        name, effect = name_of(action), _effect_of(action)
        values, errors = list[Any](), list[BaseException]()

        def attempt(_: ToolContext, __: SeenArguments) -> ToolOutput:
            errors.clear()
            try:
                returned = self._run_with_timeout(action, args, self._rules.timeouts.get(name, self.timeout_s))
            except BaseException as error:
                errors.append(error)
                raise
            values.append(value_of(returned))
            return seen(values[-1], http_status(returned))

        rules = replace(self._rules, timeouts={}, validators={}, retries=self._retries(name, effect))
        tool = Tool(name, name, SeenArguments, effect or effect_of(name), attempt, remote=name in GOING_OUT)
        engine = Engine(
            ActionRegistry([tool]),
            TraceSink(),
            EngineConfig(enable_cache=False),
            policy=CallPolicy(rules, self._memory, used=self._used),
            redactor=self._redactor,
        )
        arguments = SeenArguments(text=json.dumps(json_like(args))).model_dump()
        run = engine.run_sync(ToolCall(call_id="", tool=name, arguments=arguments, raw_arguments=""), self._context)
        _RETRIES.get([]).append(run.retries)
        if errors:
            raise errors[-1]
        if run.result.error is not None:
            raise ActionError(run.result.error.message, run.error_type or run.result.error.code.value)
        return values[-1]

    def _run_with_timeout(self, action: Action, args: dict[str, Any], timeout_s: float) -> Any:
        """One attempt: what the action gives back or raises, and TimeoutError as soon as its time is over."""
        try:
            returned = call_tool(attempt_of(action, args), self._context, {}, max(0.001, timeout_s))
        except TimeoutError:
            raise TimeoutError(f"Action '{action.name}' timed out after {timeout_s:.1f}s") from None
        if isinstance(returned, OwnTimeout):
            raise returned.error
        return returned

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
        place = sandbox.locate(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError):
            denied = place.code is ToolErrorCode.PERMISSION_DENIED
            raise PermissionError("Path traversal blocked.") if denied else ValueError(place.message)
        return os.path.normpath(os.path.join(sandbox.root, place.real))

    def _check_extension(self, full_path: str) -> None:
        if extension_denial(full_path, {each.lower() for each in self.allowed_exts or ()}) is not None:
            raise PermissionError(f"Extension '{os.path.splitext(full_path)[1]}' not allowed.")

    def _check_domain(self, url: str) -> None:
        """Only http and https, and only to allowed hosts, read as this package's tools read an address."""
        target = read_url(url)
        if isinstance(target, ToolError):
            raise PermissionError(target.message)
        if self.allowed_domains and not names_target(self.allowed_domains, target):
            raise PermissionError(f"Domain '{target.host}' not allowed.")

    def _log(self, record: JsonMap) -> None:
        """Tell whoever listens, without secrets; none of them can break the run."""
        safe = self._redact(record)
        if self._audit is not None:
            self._audit.write(safe)
        if self.logger is None:
            return
        try:
            self.logger(safe)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S110 - spec 4: logging never breaks an action
            pass

    def _redact(self, obj: Any) -> Any:
        """A copy made of JSON values, without what the redactor knows and what stands under `_REDACT_KEYS`."""
        if isinstance(obj, dict):
            return self._unnamed(shown(obj, self._redactor))
        return self._unnamed(self._redactor.value(json_like(obj, self._redactor.forms)))

    # ------------------------------------------------------------------------------------------------------------

    def _unnamed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unnamed(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: PLACEHOLDER if isinstance(each, str) and self._REDACT_KEYS.search(key) else self._unnamed(each)
            for key, each in value.items()
        }

    def _permit(self, name: str, effect: Effect | None) -> None:
        """Whether the action may be used at all, before its arguments are looked at."""
        tool = Tool(name, name, SeenArguments, effect or effect_of(name), seen)
        refusal = CallPolicy(self._rules, self._memory).permit(tool, {})
        if refusal is not None:
            raise ActionError(refusal.reason, refusal.error_type)

    def _retries(self, name: str, effect: Effect | None) -> RetryPolicy:
        """A timeout leaves open what was done: what is known to change something is not done again. Source: spec 4."""
        changing = is_writer(name) if effect is None else effect in CHANGING
        repeatable = WITHOUT_CHANGE if changing else frozenset(Effect)
        named = self.retry_exceptions
        exceptions = (named,) if isinstance(named, type) else tuple(named)
        return RetryPolicy(self.max_retries, self.retry_backoff_s, exceptions, repeatable)

    def _reported(self, result: ExecResult) -> ExecResult:
        """The result without secrets, told to whoever listens."""
        error = None if result.error is None else self._redactor.text(result.error)
        action = self._redactor.text(result.action)
        result = replace(result, action=action, args=self._redact(result.args), error=error)
        self._log({"event": "action_ok" if result.ok else "action_error", **result.to_dict()})
        self._vitals, alert = observe_tool(self._vitals, result.ok)
        if alert is not None:
            self._log({"event": "alert", **alert.as_map()})
        return result


def _effect_of(action: Action) -> Effect | None:
    """What the action says that it does, None where it says nothing."""
    effect = getattr(action, "effect", None)
    return effect if isinstance(effect, Effect) else None


def _failed(name: str, args: JsonMap, error: BaseException) -> ExecResult:
    kind = error.kind if isinstance(error, ActionError) else type(error).__name__
    return ExecResult(False, name, args, error=reason_of(error), error_type=kind)


def _copied(result: ExecResult) -> ExecResult:
    """A copy that its caller may change; what cannot be copied is shared."""
    try:
        return deepcopy(result)
    except Exception:  # noqa: BLE001 - an object of the action's own may refuse in any way
        return replace(result)


def _closed(path: str, _for_write: bool) -> ToolError | None:
    """Actions reach files by themselves, and not through the engine's workspace."""
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"This environment has no workspace for {path!r}.")
