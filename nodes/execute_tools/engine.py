"""Runs one call of a tool. Source: spec 5.

`_permit` resolves the tool, parses the arguments, and checks the cache and the input guards; `_invoke` makes the
attempts; `_accept` normalises, guards, redacts, clips and caches the output; `_finish` adds id and time. The phases:

tool.resolve -> args.parse -> cache -> guard.input -> tool.invoke -> normalise -> guard.output -> redact -> clip
-> cache.store

Each phase emits its trace events: `tool.resolve.{start,ok,fail}`, `args.parse.{start,ok,fail}`,
`cache.{hit,miss,store}`, `guard.{input,output}.{start,ok,block}` and
`tool.invoke.{start,ok,fail,retryable,user_error,timeout}`. A phase returns `(value, None)`, or `(None, outcome)` if it
ends the call.

`CallPolicy.permit` is checked for every call, and earlier by guard for a call that needs approval, so that nobody is
asked about a call that would still be refused. `context_in_scope` enforces the declared effect: a tool that only reads
gets a workspace that refuses to write.
"""

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Self, TypeAlias, TypeVar

import orjson

from mendgraph.nodes.execute_tools.call_policy import NO_BACKOFF, CallPolicy, CallRules, PolicyMemory
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tool_attempt import await_tool, call_tool
from mendgraph.nodes.execute_tools.tool_outcome import (
    GuardrailError,
    RetryableToolError,
    ToolOutcome,
    bad_arguments,
    clip,
    is_usable,
    plain_output,
    raised,
    reason_of,
    refused,
    unknown_tool,
)
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.language.text_protocol import ArgumentProblem, decode_arguments
from mendgraph.nodes.records import CHANGING, JsonMap, Plan, PlanStep, RawCall, ToolCall, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.deadline import await_call, calls_in_loop, monotonic_ms, monotonic_s, pause

__all__ = [
    "DelegatingEngine",
    "Engine",
    "EngineConfig",
    "GuardrailError",
    "InputGuard",
    "OutputGuard",
    "RetryableToolError",
    "ToolOutcome",
]

Call: TypeAlias = ToolCall | RawCall
"""A call with parsed arguments, or with their raw text."""

InputGuard = Callable[[ToolContext, str, JsonMap], Awaitable[None] | None]
"""(context, tool name, arguments); raises GuardrailError to block. An `async def` needs `run_async`."""

OutputGuard = Callable[[ToolContext, str, ToolOutput], Awaitable[None] | None]
"""(context, tool name, output); raises GuardrailError to block. An `async def` needs `run_async`."""

Value = TypeVar("Value")
Phase: TypeAlias = tuple[Value | None, ToolOutcome | None]
"""The value for the next phase, or the outcome that ends the call. Source: spec 5."""


@dataclass(frozen=True)
class EngineConfig:
    """`max_retries` counts attempts after the first; `async_timeout_s` limits an awaited call, in seconds.

    The cache keeps the `cache_size` most recently used results. Source: spec 5 for the retries.
    """

    max_retries: int = 1
    async_timeout_s: float = 30.0
    enable_cache: bool = True
    cache_size: int = 256


@dataclass(frozen=True)
class _PermittedCall:
    """A call that may be invoked. `raw` is the text of its arguments, the cache key."""

    tool: Tool
    arguments: JsonMap
    raw: str


class Engine:
    """Runs calls of registered tools. Whatever a tool raises becomes a ToolOutcome, except KeyboardInterrupt."""

    def __init__(
        self,
        registry: ActionRegistry,
        sink: TraceSink,
        config: EngineConfig = EngineConfig(),
        input_guards: Iterable[InputGuard] = (),
        output_guards: Iterable[OutputGuard] = (),
        policy: CallPolicy | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """Without a policy nothing is refused, and spec 5's rule decides on retries.

        With a guardrail that is an `async def`, `run_sync` refuses each call before its tool is invoked.
        """
        self._registry = registry
        self._sink = sink
        self._config = config
        self._input_guards = tuple(input_guards)
        self._output_guards = tuple(output_guards)
        self._async_guards = [guard for guard in (*self._input_guards, *self._output_guards) if _is_async(guard)]
        self._in_loop: Callable[[Coroutine[Any, Any, None]], None] | None = None
        self._cache: OrderedDict[tuple[str, str], ToolOutput] = OrderedDict()
        self._cache_lock = Lock()
        retries = replace(NO_BACKOFF, max_retries=config.max_retries)
        self._policy = policy or CallPolicy(CallRules(retries=retries), PolicyMemory(monotonic_s))
        self._redactor = redactor or Redactor()

    def run_sync(self, call: Call, context: ToolContext) -> ToolOutcome:
        """Run the call in this thread."""
        started_ms = monotonic_ms()
        permitted, outcome = self._permit(call, context)
        if permitted is not None:
            try:
                outcome = self._invoke(permitted, context)
            finally:
                self._policy.settle(permitted.tool, outcome)

        return self._finish(call, outcome, started_ms)

    async def run_async(self, call: Call, context: ToolContext) -> ToolOutcome:
        """Run the call in the running event loop.

        Sync tools and the processing of outputs run in threads; so do the checks before a call if a guardrail is async.
        """
        started_ms = monotonic_ms()
        with calls_in_loop() as in_loop:
            engine = self._awaiting_guards(in_loop)
            permit = partial(engine._permit, call, context)  # noqa: SLF001 - the same class
            permitted, outcome = await await_call(permit) if self._async_guards else permit()
            if permitted is not None:
                try:
                    outcome = await engine._invoke_async(permitted, context)  # noqa: SLF001 - the same class
                finally:
                    self._policy.settle(permitted.tool, outcome)

            return self._finish(call, outcome, started_ms)

    def _awaiting_guards(self, in_loop: Callable[[Coroutine[Any, Any, None]], None]) -> Self:
        """Return a copy of this engine whose async guardrails run `in_loop`."""
        view = copy(self)
        view._in_loop = in_loop  # noqa: SLF001 - the same class
        return view

    def _permit(self, call: Call, context: ToolContext) -> Phase[_PermittedCall]:
        """Resolve the tool, parse the arguments, and check cache, policy and guardrails."""
        tool, refusal = self._resolve(call.tool)
        if tool is None:
            return None, refusal

        arguments, refusal = self._parse_and_coerce(tool, call.arguments)
        if arguments is None:
            return None, refusal

        if isinstance(call, RawCall):
            raw = call.arguments
        else:
            raw = call.raw_arguments

        # A repaired call has no text of its own, and must not share a cache key with other calls.
        raw = raw or orjson.dumps(arguments).decode()
        cached = self._check_cache(tool, raw)
        if cached is not None:
            return None, cached

        arguments, refusal = self._run_input_guardrails(tool, context, arguments)
        if arguments is None:
            return None, refusal

        return _PermittedCall(tool, arguments, raw), None

    def _resolve(self, name: str) -> Phase[Tool]:
        self._sink.emit("tool.resolve.start", {"tool_name": name})
        tool = self._registry.get(name)
        if tool is None:
            self._sink.emit("tool.resolve.fail", {"tool_name": name})
            return None, unknown_tool(name, self._policy.offered(self._registry.specs()))

        self._sink.emit("tool.resolve.ok", {"tool_name": name})
        return tool, None

    def _parse_and_coerce(self, tool: Tool, raw: JsonMap | str) -> Phase[JsonMap]:
        """Validate the arguments; a raw text is decoded first. The result has types, own names and defaults."""
        self._emit("args.parse.start", tool)
        values = decode_arguments(raw or "{}") if isinstance(raw, str) else raw

        if isinstance(values, ArgumentProblem):
            parsed: JsonMap | list[str] = [values.details]
        else:
            parsed = tool.validate(values)

        if isinstance(parsed, list):
            self._emit("args.parse.fail", tool, err="; ".join(parsed))
            return None, bad_arguments(tool.name, parsed)

        self._emit("args.parse.ok", tool, keys=sorted(parsed))
        return parsed, None

    def _check_cache(self, tool: Tool, raw: str) -> ToolOutcome | None:
        """Return the outcome with the result for this exact argument text, or None. Source: spec 5, invariant 1."""
        if not self._is_cached(tool):
            return None

        with self._cache_lock:
            stored = self._cache.get((tool.name, raw))
            if stored is not None:
                self._cache.move_to_end((tool.name, raw))

        if stored is None:
            self._emit("cache.miss", tool)
            return None

        self._emit("cache.hit", tool)
        return ToolOutcome("", tool.name, stored, cached=True)

    def _run_input_guardrails(self, tool: Tool, ctx: ToolContext, args: JsonMap) -> Phase[JsonMap]:
        """Check the permission, the guardrails, and last the quotas, which count the call."""
        self._emit("guard.input.start", tool)
        refusal = self._policy.permit(tool, args)

        if refusal is None and self._async_guards and self._in_loop is None:
            names = ", ".join(getattr(guard, "__name__", type(guard).__name__) for guard in self._async_guards)
            problem = f"{names} is async, and only run_async awaits a guardrail: use that, or a plain one"
            refusal = _blocked(tool, GuardrailError(problem), attempts=0)

        if refusal is None:
            refusal = self._first_refusal(tool, self._input_guards, (ctx, tool.name, args), attempts=0)
        if refusal is None:
            refusal = self._policy.take(tool)

        if refusal is not None:
            self._emit("guard.input.block", tool, reason=refusal.reason)
            return None, refusal

        self._emit("guard.input.ok", tool)
        return args, None

    def _invoke(self, call: _PermittedCall, context: ToolContext) -> ToolOutcome:
        """Attempt the call until it succeeds or may not be retried; all attempts share the time left of the turn."""
        tool = call.tool
        started_s = monotonic_s()
        self._emit("tool.invoke.start", tool)

        attempt = 0
        while True:
            attempt += 1
            failure: BaseException | None = None
            value: object = None
            try:
                value = call_tool(tool, context, call.arguments, self._attempt_s(tool, context, started_s))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - not even SystemExit may end a run
                failure = error
            finally:
                self._forget_reads(tool)

            if failure is None:
                return self._accept(call, context, value, attempt)

            failed = self._attempt_failed(tool, failure, attempt)
            wait_s = self._policy.wait_before_retry(tool, failure, attempt)
            if wait_s is None or not _waited(context, wait_s, started_s):
                return failed

    async def _invoke_async(self, call: _PermittedCall, context: ToolContext) -> ToolOutcome:
        """Do the same in the running event loop."""
        tool = call.tool
        started_s = monotonic_s()
        self._emit("tool.invoke.start", tool)

        attempt = 0
        while True:
            attempt += 1
            failure: BaseException | None = None
            value: object = None
            try:
                attempt_s = min(self._attempt_s(tool, context, started_s), self._config.async_timeout_s)
                value = await await_tool(tool, context, call.arguments, attempt_s)
            except (KeyboardInterrupt, asyncio.CancelledError):
                raise
            except BaseException as error:  # noqa: BLE001 - not even SystemExit may end a run
                failure = error
            finally:
                self._forget_reads(tool)

            if failure is None:
                return await await_call(partial(self._accept, call, context, value, attempt))

            failed = self._attempt_failed(tool, failure, attempt)
            wait_s = self._policy.wait_before_retry(tool, failure, attempt)
            if wait_s is None or not await await_call(partial(_waited, context, wait_s, started_s)):
                return failed

    def _attempt_s(self, tool: Tool, context: ToolContext, started_s: float) -> float:
        """Return the seconds that the next attempt may take."""
        left_s = context.seconds_left + started_s - monotonic_s()
        return max(0.001, min(self._policy.timeout_s(tool, context.timeout_s), left_s))

    def _forget_reads(self, tool: Tool) -> None:
        """Empty the cache after a tool that may have changed files."""
        if tool.effect in CHANGING or tool.child:
            with self._cache_lock:
                self._cache.clear()

    def _attempt_failed(self, tool: Tool, error: BaseException, attempt: int) -> ToolOutcome:
        failed = raised(tool.name, error, attempt)
        if isinstance(error, TimeoutError):
            self._emit("tool.invoke.timeout", tool, attempt=attempt)
            return failed

        kind = "fail"
        if isinstance(error, RetryableToolError):
            kind = "retryable"
        elif isinstance(error, ValueError):
            kind = "user_error"

        self._emit(f"tool.invoke.{kind}", tool, attempt=attempt, err=failed.reason)
        return failed

    def _accept(self, call: _PermittedCall, context: ToolContext, value: object, attempts: int) -> ToolOutcome:
        """Normalise, check, redact, clip and cache what a tool returned, and return the outcome."""
        tool = call.tool
        self._emit("tool.invoke.ok", tool, attempts=attempts)

        try:
            output = plain_output(value)
        except Exception as error:  # noqa: BLE001 - whatever a tool returns, the run goes on
            failed = raised(tool.name, TypeError(f"its result cannot be used ({error})"), attempts)
            if isinstance(value, ToolOutput) and is_usable(value):
                return failed.after(value)
            return failed

        passed, refusal = self._run_output_guardrails(tool, context, output, attempts)
        if refusal is not None:
            return refusal

        output = redacted_output(passed or output, self._redactor)
        keep = context.artifacts.keep if context.artifacts else None
        output = replace(output, result=clip(output.result, keep=keep))
        self._store_cache(tool, call.raw, output)

        return ToolOutcome("", tool.name, output, attempts=attempts)

    def _run_output_guardrails(
        self, tool: Tool, ctx: ToolContext, output: ToolOutput, attempts: int
    ) -> Phase[ToolOutput]:
        self._emit("guard.output.start", tool)
        refusal = self._first_refusal(tool, self._output_guards, (ctx, tool.name, output), attempts)
        if refusal is not None:
            self._emit("guard.output.block", tool, reason=refusal.reason)
            return None, refusal.after(output)

        self._emit("guard.output.ok", tool)
        return output, None

    def _first_refusal(
        self, tool: Tool, guards: Sequence[Callable[..., object]], arguments: tuple[object, ...], attempts: int
    ) -> ToolOutcome | None:
        """Return the outcome of a call that a guardrail blocks, or None."""
        try:
            for guard in guards:
                self._run_guard(guard, arguments)
        except Exception as error:  # noqa: BLE001 - a guardrail that fails must not permit the call
            return _blocked(tool, error, attempts)

        return None

    def _run_guard(self, guard: Callable[..., object], arguments: tuple[object, ...]) -> None:
        answer = guard(*arguments)
        if self._in_loop is not None and _is_async(guard) and inspect.iscoroutine(answer):
            self._in_loop(answer)
        elif inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()

            raise GuardrailError("a guardrail that returns an awaitable must be an `async def`, and needs run_async")

    def _finish(self, call: Call, outcome: ToolOutcome | None, started_ms: int) -> ToolOutcome:
        """Return the outcome with the call's id, its time, and no secret in its error."""
        assert outcome is not None  # noqa: S101 - a phase returns a value or an outcome
        outcome = replace(outcome, call_id=call.call_id, ms=monotonic_ms() - started_ms)
        if not outcome.error:
            return outcome

        output = redacted_output(outcome.output, self._redactor)
        return replace(outcome, output=output, error=self._redactor.text(outcome.error))

    def _store_cache(self, tool: Tool, raw: str, output: ToolOutput) -> None:
        if not (self._is_cached(tool) and output.result.ok):
            return

        with self._cache_lock:
            self._cache[tool.name, raw] = output
            while len(self._cache) > self._config.cache_size:
                self._cache.popitem(last=False)

        self._emit("cache.store", tool)

    def _is_cached(self, tool: Tool) -> bool:
        """Return whether results of the tool are cached: a limited tool has to count each call."""
        return self._config.enable_cache and tool.cacheable and not self._policy.limits(tool)

    def _emit(self, name: str, tool: Tool, **payload: Any) -> None:
        self._sink.emit(name, {"tool_name": tool.name, **payload})


class DelegatingEngine(Engine):
    """An engine that also runs delegated calls; `Engine` has only spec 5's methods."""

    def side_by_side(
        self, calls: Sequence[Call], context: ToolContext, perform: Callable[[dict[int, JsonMap]], Mapping[int, object]]
    ) -> list[ToolOutcome]:
        """Run delegated calls, each of which is a run of its own, at the same time.

        Args:
            calls: the calls, numbered from 0.
            context: the context of all calls.
            perform: receives the arguments of the permitted calls by number and returns their outputs by number. Its
                exceptions are raised, such as an interrupt for an approval.

        Returns:
            one outcome for each call, in order.
        """
        started_ms = monotonic_ms()
        outcomes: dict[int, ToolOutcome] = {}
        permitted: dict[int, _PermittedCall] = {}

        try:
            for number, call in enumerate(calls):
                admitted, refusal = self._permit(call, context)
                if admitted is None:
                    outcomes[number] = self._finish(call, refusal, started_ms)
                else:
                    permitted[number] = admitted
                    self._emit("tool.invoke.start", admitted.tool)

            outputs: Mapping[int, object] = {}
            try:
                if permitted:
                    outputs = perform({number: pending.arguments for number, pending in permitted.items()})
            finally:
                for pending in permitted.values():
                    self._forget_reads(pending.tool)

            for number, output in outputs.items():
                outcome = self._accept(permitted[number], context, output, attempts=1)
                outcomes[number] = self._finish(calls[number], outcome, started_ms)
        finally:
            for number, admitted in permitted.items():
                self._policy.settle(admitted.tool, outcomes.get(number))

        return [outcomes[number] for number in range(len(calls))]


def _waited(context: ToolContext, seconds: float, started_s: float) -> bool:
    """Wait before the next attempt. Return False if the time left is too short or no call may begin any more."""
    if seconds >= context.seconds_left - (monotonic_s() - started_s):
        return False
    if context.scope is not None:
        return context.scope.pause(seconds)

    pause(seconds)
    return True


def _is_async(guard: object) -> bool:
    while isinstance(guard, partial):
        guard = guard.func

    return inspect.iscoroutinefunction(guard) or inspect.iscoroutinefunction(type(guard).__call__)


def _blocked(tool: Tool, error: Exception, attempts: int) -> ToolOutcome:
    return refused(tool.name, reason_of(error), ToolErrorCode.PERMISSION_DENIED, type(error).__name__, attempts)


def _redacted(data: JsonMap, redactor: Redactor) -> JsonMap:
    redacted = redactor.content(data)
    if isinstance(redacted, dict):
        return redacted
    return {"redacted": redacted}


def redacted_output(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """Return the output without secrets. Paths and hashes stay, as they identify the changes."""
    text = redactor.text
    error = output.result.error
    plan = output.plan

    if error is not None:
        suggestions = tuple(map(text, error.suggestions))
        error = error.model_copy(update={"message": text(error.message), "suggestions": suggestions})
        result = ToolResult(ok=False, error=error)
    else:
        result = ToolResult(ok=output.result.ok, data=_redacted(output.result.data, redactor))

    changes = tuple(change.model_copy(update={"diff": text(change.diff)}) for change in output.changes)
    if plan is not None:
        plan = Plan(steps=tuple(PlanStep(title=text(step.title) or "-", status=step.status) for step in plan.steps))

    blocks = output.blocks
    if blocks is not None:
        blocks = tuple(_redacted(block, redactor) for block in blocks)

    artifact = output.artifact
    if artifact is not None:
        artifact = redactor.content(artifact)

    return replace(output, result=result, changes=changes, plan=plan, blocks=blocks, artifact=artifact)
