"""One way for every call, sync and async alike. Source: spec 5.

tool.resolve -> args.parse -> cache -> guard.input -> tool.invoke -> normalise -> guard.output -> redact -> clip
-> cache.store

Each phase emits its own trace events: `tool.resolve.{start,ok,fail}`, `args.parse.{start,ok,fail}`,
`cache.{hit,miss,store}`, `guard.{input,output}.{start,ok,block}` and
`tool.invoke.{start,ok,fail,retryable,user_error,timeout}`. A phase gives `(its value, None)`, or `(None, the run)` that
ends the call. The way of a call is one generator, which `run_sync` and `run_async` drive: it asks them for attempts at
the tool and for work that may block. What is allowed beside the guardrails, for how long and how often, is decided by
the environment's policy.
"""

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from mendgraph.nodes.execute_tools.call_policy import NO_BACKOFF, CallPolicy, CallRules, PolicyMemory
from mendgraph.nodes.execute_tools.files.deadline import (
    CancellationScope,
    await_call,
    call_here,
    calls_in_loop,
    monotonic_ms,
    monotonic_s,
    pause,
)
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
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
from mendgraph.nodes.records import (
    CHANGING,
    Effect,
    JsonMap,
    Plan,
    PlanStep,
    RawCall,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
)

SELF_TIMED_GRACE_S = 5.5  # seconds that a tool which keeps its time by itself has beyond its limit to tidy up


def call_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """What the tool gives back or raises; TimeoutError after `timeout_s` seconds, and no effect after that.

    An async tool gets an event loop of its own, and so RuntimeError inside a running one. Source: spec 5, invariant 5.
    """
    if not tool.asynchronous:
        scope = CancellationScope(context.scope)
        call = partial(tool.s, context_in_scope(tool, context, scope, timeout_s), **arguments)
        return call_here(_patience(tool, timeout_s), call, scope)

    coroutine = await_tool(tool, context, arguments, timeout_s)
    try:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            timeout_s = inf  # asyncio.run fails in this thread, as it should

        patience = _patience(tool, timeout_s) + SELF_TIMED_GRACE_S
        return call_here(patience, partial(asyncio.run, coroutine), CancellationScope())
    finally:
        coroutine.close()


async def await_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """The same in the running event loop; a sync tool gets a thread."""
    scope = CancellationScope(context.scope)
    in_scope = context_in_scope(tool, context, scope, timeout_s)
    call = partial(tool.s, in_scope, **arguments)

    if not (tool.arun or tool.asynchronous):
        return await await_call(call, _patience(tool, timeout_s), scope)

    # Waited for no longer than this, even if it does not let itself be cancelled.
    task = asyncio.ensure_future(_contained(tool, in_scope, arguments))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, also once it was given up

    try:
        done, _ = await asyncio.wait({task}, timeout=_patience(tool, timeout_s))
    finally:
        if not task.done():
            scope.revoke()
            task.cancel()

    if not done:
        raise TimeoutError(f"given up after {timeout_s:g} s")
    if task.cancelled():
        raise RuntimeError("CancelledError was raised")

    return task.result()


def _patience(tool: Tool, timeout_s: float) -> float:
    if tool.self_timed:
        return timeout_s + SELF_TIMED_GRACE_S
    return timeout_s


def context_in_scope(tool: Tool, context: ToolContext, scope: CancellationScope, timeout_s: float) -> ToolContext:
    """The context for one attempt: with what the tool's effect speaks of and no more, and for how long."""
    workspace = context.workspace.in_scope(scope)
    commands = context.commands if tool.effect is Effect.EXECUTE else None
    if commands is not None and not isinstance(commands, ToolError):
        commands = commands.in_scope(scope)

    return replace(
        context,
        workspace=workspace if tool.effect in CHANGING else workspace.unchangeable(),
        commands=commands,
        network=context.network if tool.effect in {Effect.NETWORK, Effect.EXECUTE} else None,
        timeout_s=timeout_s,
        scope=scope,
    )


async def _contained(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    try:
        return await tool.a(context, **arguments)
    except SystemExit as error:  # it would end the event loop, not the call
        raise RuntimeError(f"SystemExit: {error}") from error


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
Call = ToolCall | RawCall
"""A call whose arguments were read and judged, or one with their raw text."""

InputGuard = Callable[[ToolContext, str, JsonMap], Awaitable[None] | None]
"""(context, tool name, arguments); raises GuardrailError to block. An `async def` is for `run_async` alone."""

OutputGuard = Callable[[ToolContext, str, ToolOutput], Awaitable[None] | None]
"""(context, tool name, output); raises GuardrailError to block. An `async def` is for `run_async` alone."""

Value = TypeVar("Value")
Phase: TypeAlias = tuple[Value | None, ToolRun | None]
"""What a phase came to: a value for the next one, or how the call ended. Source: spec 5."""


@dataclass(frozen=True)
class EngineConfig:
    """`max_retries` counts attempts after the first; `async_timeout_s` bounds an awaited call, in seconds.

    The cache holds `cache_size` results; a further one takes the place of the one that was used longest ago. Source:
    spec 5 for the retries; the seconds are those of a tool's own default.
    """

    max_retries: int = 1
    async_timeout_s: float = 30.0
    enable_cache: bool = True
    cache_size: int = 256


class _Attempt(NamedTuple):
    """Invoke the tool once. Answered by `(what it gave back, None)`, or by `(None, what it raised)`."""

    tool: Tool
    context: ToolContext
    arguments: JsonMap
    timeout_s: float


Steps: TypeAlias = Generator[_Attempt | Callable[[], object] | ToolRun, Any, Value]
"""The way of a call, which ends with its run; a function that it asks for may block, and is answered by its value."""


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
        with closing(self._steps(call, context)) as steps:
            step = next(steps)
            while not isinstance(step, ToolRun):
                if callable(step):
                    step = steps.send(step())
                    continue

                try:
                    answer: object = (call_tool(*step), None)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - not even SystemExit may end a run
                    answer = None, error

                step = steps.send(answer)

            return step

    async def run_async(self, call: Call, context: ToolContext) -> ToolRun:
        """The same in an event loop, where an async tool or guardrail runs.

        A sync tool, and the work on an output, has a thread; so has the work before a call where a guardrail is async.
        """
        view = copy(self)
        with calls_in_loop() as in_loop, closing(view._steps(call, context)) as steps:  # noqa: SLF001 - its own kind
            view._in_loop = in_loop  # noqa: SLF001 - its own kind
            step = next(steps)

            while not isinstance(step, ToolRun):
                if callable(step):
                    step = steps.send(await await_call(step))
                    continue

                seconds = min(step.timeout_s, self._config.async_timeout_s)
                try:
                    answer: object = (await await_tool(*step._replace(timeout_s=seconds)), None)
                except (KeyboardInterrupt, asyncio.CancelledError):
                    raise
                except BaseException as error:  # noqa: BLE001 - not even SystemExit may end a run
                    answer = None, error

                step = steps.send(answer)

            return step

    def _steps(self, call: Call, context: ToolContext) -> Steps[None]:
        started = monotonic_ms()
        before = partial(self._before, call, context)
        waits = self._async_guards and self._in_loop is not None
        phase: Phase[tuple[Tool, JsonMap, str]] = (yield before) if waits else before()
        ready, run = phase

        if ready is not None:
            try:
                invoked, run = yield from self._invoke(*ready[:2], context)
                if invoked is not None:
                    run = yield partial(self._after, context, *ready, *invoked)
            finally:
                self._policy.settle(ready[0], run)

        assert run is not None  # noqa: S101 - a phase gives a value or a run
        run = replace(run, call_id=call.call_id, ms=monotonic_ms() - started)
        if run.error:
            output = redacted_output(run.output, self._redactor)
            run = replace(run, output=output, error=self._redactor.text(run.error))

        yield run

    def _before(self, call: Call, context: ToolContext) -> Phase[tuple[Tool, JsonMap, str]]:
        """The tool, its arguments, and the call's key in the cache."""
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
        if (hit := self._check_cache(tool, raw)) is not None:
            return None, hit

        admitted, refusal = self._run_input_guardrails(tool, context, arguments)
        if admitted is None:
            return (None, refusal)

        return ((tool, admitted, raw), None)

    def _resolve(self, name: str) -> Phase[Tool]:
        self._sink.emit("tool.resolve.start", {"tool_name": name})
        tool = self._registry.get(name)
        self._sink.emit("tool.resolve.fail" if tool is None else "tool.resolve.ok", {"tool_name": name})

        if tool is not None:
            return tool, None

        return None, unknown_tool(name, self._policy.offered(self._registry.specs()))

    def _parse_and_coerce(self, tool: Tool, raw: JsonMap | str) -> Phase[JsonMap]:
        """Types, aliases and defaults. Values that guard has judged are taken as they are, a raw text is read here."""
        self._emit("args.parse.start", tool)
        values = decode_arguments(raw or "{}") if isinstance(raw, str) else raw
        parsed = [values.details] if isinstance(values, ArgumentProblem) else tool.validate(values)

        if isinstance(parsed, dict):
            self._emit("args.parse.ok", tool, keys=sorted(parsed))
            return parsed, None

        self._emit("args.parse.fail", tool, err="; ".join(parsed))
        return None, bad_arguments(tool.name, parsed)

    def _check_cache(self, tool: Tool, raw: str) -> ToolRun | None:
        """The stored result, which ends the call, by the exact argument text. Source: spec 5, invariant 1."""
        if not self._is_cached(tool):
            return None

        with self._cache_lock:
            stored = self._cache.get((tool.name, raw))
            if stored is not None:
                self._cache.move_to_end((tool.name, raw))

        self._emit("cache.miss" if stored is None else "cache.hit", tool)
        if stored is None:
            return None

        return ToolRun("", tool.name, stored, cached=True)

    def _run_input_guardrails(self, tool: Tool, ctx: ToolContext, args: JsonMap) -> Phase[JsonMap]:
        """The environment's permission, the guardrails, and last what is counted."""
        self._emit("guard.input.start", tool)
        checks = [self._refuse_async_guards]
        checks += [partial(self._ask, guard, ctx, tool.name, args) for guard in self._input_guards]
        refusal = self._policy.permit(tool, args) or _first_refusal(tool, checks, attempts=0) or self._policy.take(tool)

        if refusal is not None:
            self._emit("guard.input.block", tool, reason=refusal.reason)
            return None, refusal

        self._emit("guard.input.ok", tool)
        return args, None

    def _invoke(self, tool: Tool, arguments: JsonMap, context: ToolContext) -> Steps[Phase[tuple[object, int]]]:
        """What the tool gave back, and after how many attempts: all of them share what the turn has left."""
        started = monotonic_s()
        attempt = 0
        self._emit("tool.invoke.start", tool)

        while True:
            attempt += 1
            remaining_s = min(
                self._policy.timeout_s(tool, context.timeout_s), context.seconds_left + started - monotonic_s()
            )

            try:
                value, error = yield _Attempt(tool, context, arguments, max(0.001, remaining_s))
            finally:
                if tool.effect in CHANGING or tool.child:  # nothing that was read is known to hold any more
                    with self._cache_lock:
                        self._cache.clear()

            if error is None:
                self._emit("tool.invoke.ok", tool, attempts=attempt)
                return (value, attempt), None

            failed = raised(tool.name, error, attempt)

            if isinstance(error, TimeoutError):
                self._emit("tool.invoke.timeout", tool, attempt=attempt)
            else:
                kind = "user_error" if isinstance(error, ValueError) else "fail"
                kind = "retryable" if isinstance(error, RetryableToolError) else kind
                self._emit(f"tool.invoke.{kind}", tool, attempt=attempt, err=failed.reason)

            wait = self._policy.wait_before_retry(tool, error, attempt)
            if wait is None or not (yield partial(_waited, context, wait, started)):
                return None, failed

    def _after(self, context: ToolContext, tool: Tool, _: JsonMap, raw: str, value: object, attempts: int) -> ToolRun:
        try:
            output = plain_output(value)
        except Exception as error:  # noqa: BLE001 - whatever a tool gave back, the run goes on
            failed = raised(tool.name, TypeError(f"its result cannot be used ({error})"), attempts)
            if isinstance(value, ToolOutput) and is_usable(value):
                return failed.after(value)
            return failed

        passed, refusal = self._run_output_guardrails(tool, context, output, attempts)
        if refusal is not None:
            return refusal

        output = redacted_output(passed or output, self._redactor)
        output = replace(output, result=clip(output.result, keep=context.kept.keep if context.kept else None))
        self._store_cache(tool, raw, output)

        return ToolRun("", tool.name, output, attempts=attempts)

    def _run_output_guardrails(
        self, tool: Tool, ctx: ToolContext, output: ToolOutput, attempts: int
    ) -> Phase[ToolOutput]:
        self._emit("guard.output.start", tool)
        checks = [partial(self._ask, guard, ctx, tool.name, output) for guard in self._output_guards]
        if (refusal := _first_refusal(tool, checks, attempts)) is not None:
            self._emit("guard.output.block", tool, reason=refusal.reason)
            return None, refusal.after(output)

        self._emit("guard.output.ok", tool)
        return output, None

    def _store_cache(self, tool: Tool, raw: str, output: ToolOutput) -> None:
        if self._is_cached(tool) and output.result.ok:
            with self._cache_lock:
                self._cache[tool.name, raw] = output
                while len(self._cache) > self._config.cache_size:
                    self._cache.popitem(last=False)

            self._emit("cache.store", tool)

    def _refuse_async_guards(self) -> None:
        if self._async_guards and self._in_loop is None:
            names = ", ".join(getattr(guard, "__name__", type(guard).__name__) for guard in self._async_guards)
            raise GuardrailError(f"{names} is async, and only run_async awaits a guardrail: use that, or a plain one")

    def _ask(self, guard: Callable[..., object], *arguments: object) -> None:
        verdict = guard(*arguments)
        if self._in_loop is not None and _is_async(guard) and inspect.iscoroutine(verdict):
            self._in_loop(verdict)
        elif inspect.isawaitable(verdict):
            if inspect.iscoroutine(verdict):
                verdict.close()

            raise GuardrailError("a guardrail that gives an awaitable has to be an `async def`, and run by run_async")

    def _is_cached(self, tool: Tool) -> bool:
        """What is limited has to count each call."""
        return self._config.enable_cache and tool.cacheable and not self._policy.limits(tool)

    def _emit(self, name: str, tool: Tool, **payload: Any) -> None:
        self._sink.emit(name, {"tool_name": tool.name, **payload})


class DelegatingEngine(Engine):
    """An engine that also runs calls that are runs of their own. `Engine` itself has spec 5's methods alone."""

    def side_by_side(
        self, calls: Sequence[Call], context: ToolContext, perform: Callable[[dict[int, JsonMap]], dict[int, object]]
    ) -> list[ToolRun]:
        """Run calls that are runs of their own, side by side: `perform` is given the arguments of those that may run.

        It gives back what each comes to, by the same numbers. Whatever it raises passes, as a question to a person.
        """
        with ExitStack() as opened:
            ways = [opened.enter_context(closing(self._steps(call, context))) for call in calls]
            steps: list[Any] = [next(way) for way in ways]
            allowed = {number: step.arguments for number, step in enumerate(steps) if isinstance(step, _Attempt)}

            for number, output in (perform(allowed) if allowed else {}).items():
                steps[number] = ways[number].send((output, None))
                while callable(steps[number]):
                    steps[number] = ways[number].send(steps[number]())

            return steps


def _waited(context: ToolContext, seconds: float, started: float) -> bool:
    """Wait before the next attempt; False where nothing may begin any more, or the time left is no longer."""
    if seconds >= context.seconds_left - (monotonic_s() - started):
        return False
    if context.scope is not None:
        return context.scope.pause(seconds)

    pause(seconds)
    return True


def _is_async(guard: object) -> bool:
    while isinstance(guard, partial):
        guard = guard.func

    return inspect.iscoroutinefunction(guard) or inspect.iscoroutinefunction(type(guard).__call__)


def _first_refusal(tool: Tool, checks: Sequence[Callable[[], None]], attempts: int) -> ToolRun | None:
    try:
        for check in checks:
            check()
    except Exception as error:  # noqa: BLE001 - a guardrail that breaks must not open the way
        code = ToolErrorCode.PERMISSION_DENIED
        return refused(tool.name, reason_of(error), code, type(error).__name__, attempts)

    return None


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

    blocks = output.blocks and tuple(_redacted(block, redactor) for block in output.blocks)

    if output.artifact is None:
        artifact = None
    else:
        artifact = redactor.content(output.artifact)

    return replace(output, result=result, changes=changes, plan=plan, blocks=blocks, artifact=artifact)
