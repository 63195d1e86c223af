"""Runs one call of a tool. Source: spec 5.

`_permit` resolves the tool, parses the arguments, asks the cache and the input guards; `_invoke` makes the attempts;
`_accept` normalises, guards, redacts, clips and caches the output; `_finish` adds id and time. As trace phases:

tool.resolve -> args.parse -> cache -> guard.input -> tool.invoke -> normalise -> guard.output -> redact -> clip
-> cache.store

Each phase emits its trace events: `tool.resolve.{start,ok,fail}`, `args.parse.{start,ok,fail}`,
`cache.{hit,miss,store}`, `guard.{input,output}.{start,ok,block}` and
`tool.invoke.{start,ok,fail,retryable,user_error,timeout}`. A phase returns `(value, None)`, or `(None, run)`
with the outcome of the call where it ends the call.

The engine asks `CallPolicy.permit` for every call. Guard asks it as well, earlier, for a call that a person would have
to approve, so that nobody is asked about a call that would be refused anyway. `context_in_scope` enforces the declared
effect: a tool that only reads gets a workspace that refuses to write.
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
from mendgraph.nodes.execute_tools.files.deadline import await_call, calls_in_loop, monotonic_ms, monotonic_s, pause
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tool_attempt import await_tool, call_tool
from mendgraph.nodes.execute_tools.tool_run import (
    GuardrailError,
    RetryableToolError,
    ToolRun,
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

__all__ = [
    "DelegatingEngine",
    "Engine",
    "EngineConfig",
    "GuardrailError",
    "InputGuard",
    "OutputGuard",
    "RetryableToolError",
    "ToolRun",
]

Call: TypeAlias = ToolCall | RawCall
"""A call whose arguments were read and judged, or one with their raw text."""

InputGuard = Callable[[ToolContext, str, JsonMap], Awaitable[None] | None]
"""(context, tool name, arguments); raises GuardrailError to block. An `async def` is for `run_async` alone."""

OutputGuard = Callable[[ToolContext, str, ToolOutput], Awaitable[None] | None]
"""(context, tool name, output); raises GuardrailError to block. An `async def` is for `run_async` alone."""

Value = TypeVar("Value")
Phase: TypeAlias = tuple[Value | None, ToolRun | None]
"""What a phase returns: a value for the next one, or the run that ends the call. Source: spec 5."""


@dataclass(frozen=True)
class EngineConfig:
    """`max_retries` counts attempts after the first; `async_timeout_s` bounds an awaited call, in seconds.

    The cache holds `cache_size` results; a further one replaces the one that was not used for the longest time. Source:
    spec 5 for the retries; the seconds are those of a tool's own default.
    """

    max_retries: int = 1
    async_timeout_s: float = 30.0
    enable_cache: bool = True
    cache_size: int = 256


@dataclass(frozen=True)
class _PermittedCall:
    """A call that may be invoked. `raw` is the text of its arguments, the key in the cache."""

    tool: Tool
    arguments: JsonMap
    raw: str


class Engine:
    """Runs calls of registered tools. Whatever a tool does, the caller gets a ToolRun; only an interrupt passes."""

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
        """Without a policy nothing is refused, and only spec 5's own rule decides on retries.

        With a guardrail that is an `async def` the engine is for `run_async`: `run_sync` refuses each call, before its
        tool is invoked.
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

    def run_sync(self, call: Call, context: ToolContext) -> ToolRun:
        """Run the call and wait for it."""
        started_ms = monotonic_ms()
        permitted, run = self._permit(call, context)
        if permitted is not None:
            try:
                run = self._invoke(permitted, context)
            finally:
                self._policy.settle(permitted.tool, run)

        return self._finish(call, run, started_ms)

    async def run_async(self, call: Call, context: ToolContext) -> ToolRun:
        """Run the call in an event loop, where an async tool or guardrail runs.

        A sync tool, and the work on an output, has a thread; so has the work before a call where a guardrail is async.
        """
        started_ms = monotonic_ms()
        with calls_in_loop() as in_loop:
            engine = self._awaiting_guards(in_loop)
            permit = partial(engine._permit, call, context)  # noqa: SLF001 - the same class
            permitted, run = await await_call(permit) if self._async_guards else permit()
            if permitted is not None:
                try:
                    run = await engine._invoke_async(permitted, context)  # noqa: SLF001 - the same class
                finally:
                    self._policy.settle(permitted.tool, run)

            return self._finish(call, run, started_ms)

    def _awaiting_guards(self, in_loop: Callable[[Coroutine[Any, Any, None]], None]) -> Self:
        """A view of this engine whose async guardrails run `in_loop`."""
        view = copy(self)
        view._in_loop = in_loop  # noqa: SLF001 - the same class
        return view

    def _permit(self, call: Call, context: ToolContext) -> Phase[_PermittedCall]:
        """Find the tool, read the arguments, look into the cache, ask the policy and the guardrails."""
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

        # A call that a repair has put together has no text of its own, and must not share a key with others.
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
        """Types, aliases and defaults. Values that guard has judged are taken as they are, a raw text is read here."""
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

    def _check_cache(self, tool: Tool, raw: str) -> ToolRun | None:
        """The stored result, which ends the call, by the exact argument text. Source: spec 5, invariant 1."""
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
        return ToolRun("", tool.name, stored, cached=True)

    def _run_input_guardrails(self, tool: Tool, ctx: ToolContext, args: JsonMap) -> Phase[JsonMap]:
        """The environment's permission, the guardrails, and last what is counted."""
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

    def _invoke(self, call: _PermittedCall, context: ToolContext) -> ToolRun:
        """Attempt the call until it succeeds or is not to be retried: all attempts share what the turn has left."""
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

    async def _invoke_async(self, call: _PermittedCall, context: ToolContext) -> ToolRun:
        """As `_invoke`, in the running event loop."""
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
        """The seconds that the next attempt may take."""
        left_s = context.seconds_left + started_s - monotonic_s()
        return max(0.001, min(self._policy.timeout_s(tool, context.timeout_s), left_s))

    def _forget_reads(self, tool: Tool) -> None:
        """Empty the cache after a tool that may have changed the files that its results were read from."""
        if tool.effect in CHANGING or tool.child:
            with self._cache_lock:
                self._cache.clear()

    def _attempt_failed(self, tool: Tool, error: BaseException, attempt: int) -> ToolRun:
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

    def _accept(self, call: _PermittedCall, context: ToolContext, value: object, attempts: int) -> ToolRun:
        """The run of a tool that returned `value`: normalise, judge, redact, clip and store it."""
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

        return ToolRun("", tool.name, output, attempts=attempts)

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
    ) -> ToolRun | None:
        """The run of a call that a guardrail blocks, None if it passes all of them."""
        try:
            for guard in guards:
                self._run_guard(guard, arguments)
        except Exception as error:  # noqa: BLE001 - a guardrail that breaks must not permit the call
            return _blocked(tool, error, attempts)

        return None

    def _run_guard(self, guard: Callable[..., object], arguments: tuple[object, ...]) -> None:
        answer = guard(*arguments)
        if self._in_loop is not None and _is_async(guard) and inspect.iscoroutine(answer):
            self._in_loop(answer)
        elif inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()

            raise GuardrailError("a guardrail that gives an awaitable has to be an `async def`, and run by run_async")

    def _finish(self, call: Call, run: ToolRun | None, started_ms: int) -> ToolRun:
        """The run with the call's id, its time, and no secret in its error."""
        assert run is not None  # noqa: S101 - a phase gives a value or a run
        run = replace(run, call_id=call.call_id, ms=monotonic_ms() - started_ms)
        if not run.error:
            return run

        output = redacted_output(run.output, self._redactor)
        return replace(run, output=output, error=self._redactor.text(run.error))

    def _store_cache(self, tool: Tool, raw: str, output: ToolOutput) -> None:
        if not (self._is_cached(tool) and output.result.ok):
            return

        with self._cache_lock:
            self._cache[tool.name, raw] = output
            while len(self._cache) > self._config.cache_size:
                self._cache.popitem(last=False)

        self._emit("cache.store", tool)

    def _is_cached(self, tool: Tool) -> bool:
        """What is limited has to count each call."""
        return self._config.enable_cache and tool.cacheable and not self._policy.limits(tool)

    def _emit(self, name: str, tool: Tool, **payload: Any) -> None:
        self._sink.emit(name, {"tool_name": tool.name, **payload})


class DelegatingEngine(Engine):
    """An engine that also runs calls that are runs of their own. `Engine` itself has spec 5's methods alone."""

    def side_by_side(
        self, calls: Sequence[Call], context: ToolContext, perform: Callable[[dict[int, JsonMap]], Mapping[int, object]]
    ) -> list[ToolRun]:
        """Run calls that are runs of their own, at the same time.

        Args:
            calls: the calls, which are numbered from 0.
            context: what they may use.
            perform: gets the arguments of the permitted calls by number, and returns their outputs by number. What it
                raises passes, as an interrupt that asks a person.

        Returns:
            one run for each call, in their order.
        """
        started_ms = monotonic_ms()
        runs: dict[int, ToolRun] = {}
        permitted: dict[int, _PermittedCall] = {}

        try:
            for number, call in enumerate(calls):
                admitted, refusal = self._permit(call, context)
                if admitted is None:
                    runs[number] = self._finish(call, refusal, started_ms)
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
                run = self._accept(permitted[number], context, output, attempts=1)
                runs[number] = self._finish(calls[number], run, started_ms)
        finally:
            for number, admitted in permitted.items():
                self._policy.settle(admitted.tool, runs.get(number))

        return [runs[number] for number in range(len(calls))]


def _waited(context: ToolContext, seconds: float, started_s: float) -> bool:
    """Wait before the next attempt; False where nothing may begin any more, or the time left is no longer."""
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


def _blocked(tool: Tool, error: Exception, attempts: int) -> ToolRun:
    return refused(tool.name, reason_of(error), ToolErrorCode.PERMISSION_DENIED, type(error).__name__, attempts)


def _redacted(data: JsonMap, redactor: Redactor) -> JsonMap:
    redacted = redactor.content(data)
    if isinstance(redacted, dict):
        return redacted
    return {"redacted": redacted}


def redacted_output(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """The output without secrets. Paths and hashes stay: they say which file was changed, and to what."""
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
