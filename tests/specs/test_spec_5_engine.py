"""Spec 5: the seven invariants under the document's own names, the table of errors, and the six helper methods."""

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mendgraph
from mendgraph import Effect, ToolContext, ToolOutput, tool
from mendgraph.documents import (
    ActionRegistry,
    Engine,
    EngineConfig,
    GuardrailError,
    RawCall,
    RetryableToolError,
    ToolRun,
    TraceEvent,
    TraceSink,
)
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.workspace.files.workspace import Workspace

RESOLVE = ["tool.resolve.start", "tool.resolve.ok"]
PARSE = [*RESOLVE, "args.parse.start", "args.parse.ok"]
MISS = [*PARSE, "cache.miss"]
INVOKE = [*MISS, "guard.input.start", "guard.input.ok", "tool.invoke.start"]
OUTPUT = ["tool.invoke.ok", "guard.output.start"]
Body = Callable[..., Any]


def raising(*errors: BaseException) -> Body:
    """Raises one error after the other, then gives its arguments back."""
    remaining = list(errors)

    def body(**arguments: Any) -> ToolOutput:
        if remaining:
            raise remaining.pop(0)
        return ToolOutput.ok(**arguments)

    return body


echo = raising()


def refuse(*_: object) -> None:
    raise GuardrailError("not this")


def tool_of(body: Body, *, coroutine: bool = False) -> Tool:
    """A tool `t(x=7, **kwargs)` that reads, so that its results are cached."""

    def plain(x: int = 7, **kwargs: Any) -> ToolOutput:
        """Do it."""
        output: ToolOutput = body(x=x, **kwargs)
        return output

    async def later(x: int = 7, **kwargs: Any) -> ToolOutput:
        """Do it later."""
        return plain(x, **kwargs)

    return tool(later if coroutine else plain, effect=Effect.READ, name="t")


def engine_of(*tools: Tool, max_retries: int = 1, timeout_s: float = 5.0, **options: Any) -> tuple[Any, TraceSink]:
    """An Engine, whose helper methods are called too, and where it traces."""
    sink = TraceSink(run_id="r", step_id="1", clock=lambda: 5)
    config = EngineConfig(max_retries=max_retries, async_timeout_s=timeout_s)
    return Engine(ActionRegistry(tools), sink, config, **options), sink


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=5)


def called(raw: str = "{}", name: str = "t") -> RawCall:
    return RawCall(call_id="c", tool=name, arguments=raw)


def ended(engine: Engine, how: str, context: ToolContext, call: RawCall) -> ToolRun:
    if how == "run_sync":
        return engine.run_sync(call, context)
    return asyncio.run(engine.run_async(call, context))


def names(events: Iterable[TraceEvent]) -> list[str]:
    return [event.name for event in events]


both_ways = pytest.mark.parametrize("how", ["run_sync", "run_async"])


# --- The seven invariants, under their own names


@both_ways
def test_cache_key_exact_raw_whitespace_matters(how: str, context: ToolContext) -> None:
    seen: list[int] = []

    def body(x: int) -> ToolOutput:
        seen.append(x)
        return ToolOutput.ok()

    engine, sink = engine_of(tool_of(body))
    for raw in ('{"x":1}', '{ "x":1 }', '{"x":1}'):
        ended(engine, how, context, called(raw))
    assert seen == [1, 1]
    assert [name for name in names(sink.events) if name.startswith("cache")] == [
        "cache.miss", "cache.store", "cache.miss", "cache.store", "cache.hit",
    ]  # fmt: skip


@both_ways
def test_cache_hit_short_circuit_no_guards_or_invoke_after_hit(how: str, context: ToolContext) -> None:
    guarded: list[str] = []
    note_in, note_out = (partial(lambda side, *_: guarded.append(side), side) for side in ("in", "out"))
    engine, sink = engine_of(tool_of(echo), input_guards=[note_in], output_guards=[note_out])
    first = ended(engine, how, context, called())
    sink.events.clear()
    second = ended(engine, how, context, called())
    assert names(sink.events) == [*PARSE, "cache.hit"]
    assert (second.output, second.error, second.cached, second.attempts) == (first.output, "", True, 0)
    assert guarded == ["in", "out"]


def test_trace_payload_copy() -> None:
    sink, payload = TraceSink(), {"tool_name": "t"}
    sink.emit("event", payload)
    payload["tool_name"] = "other"
    assert sink.events[0].payload == {"tool_name": "t"}


@both_ways
@pytest.mark.parametrize("annotated", [True, False])
def test_unknown_args_passthrough(how: str, context: ToolContext, annotated: bool) -> None:
    def body(x: int = 7, **kwargs: Any) -> ToolOutput:
        """Give the arguments back."""
        return ToolOutput.ok(x=x, kwargs=kwargs)

    if not annotated:  # the document writes a bare **kwargs
        del body.__annotations__["kwargs"]
    engine, _ = engine_of(tool(body, effect=Effect.READ, name="t"))
    run = ended(engine, how, context, called('{"x": "3", "extra": {"deep": [1]}}'))
    assert run.result.data == {"x": 3, "kwargs": {"extra": {"deep": [1]}}}


def test_nested_loop_run_sync_async_tool_maps_to_tool_error(context: ToolContext) -> None:
    engine, sink = engine_of(tool_of(echo, coroutine=True), max_retries=3)

    async def inside() -> ToolRun:
        return ended(engine, "run_sync", context, called())

    with warnings.catch_warnings(record=True) as warned:
        run = asyncio.run(inside())
    assert run.error == "tool_error:asyncio.run() cannot be called from a running event loop"
    assert (run.error_type, run.attempts, warned) == ("RuntimeError", 1, [])
    assert names(sink.events) == [*INVOKE, "tool.invoke.fail"]


def test_async_timeout_no_retry(context: ToolContext) -> None:
    started: list[int] = []

    async def never(x: int) -> None:
        """Never ends."""
        started.append(x)
        await asyncio.Event().wait()

    engine, sink = engine_of(tool(never, effect=Effect.READ, name="t"), max_retries=5, timeout_s=0.01)
    run = ended(engine, "run_async", context, called('{"x": 1}'))
    assert (run.error, run.attempts, started) == ("tool_error:timeout", 1, [1])
    assert names(sink.events)[-2:] == ["tool.invoke.start", "tool.invoke.timeout"]


@both_ways
@pytest.mark.parametrize("coroutine", [False, True], ids=["plain tool", "async tool"])
def test_execution_order(how: str, context: ToolContext, coroutine: bool) -> None:
    engine, sink = engine_of(tool_of(raising(RetryableToolError("busy")), coroutine=coroutine))
    run = ended(engine, how, context, called('{"x": "3"}'))
    assert names(sink.events) == [
        "tool.resolve.start", "tool.resolve.ok",
        "args.parse.start", "args.parse.ok",
        "cache.miss",
        "guard.input.start", "guard.input.ok",
        "tool.invoke.start", "tool.invoke.retryable", "tool.invoke.ok",
        "guard.output.start", "guard.output.ok",
        "cache.store",
    ]  # fmt: skip
    assert (run.result.data, run.attempts) == ({"x": 3}, 2)
    assert {(event.run_id, event.step_id, event.payload["tool_name"]) for event in sink.events} == {("r", "1", "t")}


# --- The table of errors

ERRORS: dict[str, tuple[RawCall, list[BaseException], dict[str, Any], str, int, list[str]]] = {
    "unknown tool": (called(name="u"), [], {}, "unknown_tool", 0, ["tool.resolve.start", "tool.resolve.fail"]),
    "bad JSON": (called('{"x": '), [], {}, "bad_args:", 0, [*RESOLVE, "args.parse.start", "args.parse.fail"]),
    "no object": (called("[1]"), [], {}, "bad_args:", 0, [*RESOLVE, "args.parse.start", "args.parse.fail"]),
    "bad type": (called('{"x": "m"}'), [], {}, "bad_args:x: ", 0, [*RESOLVE, "args.parse.start", "args.parse.fail"]),
    "ValueError": (called(), [ValueError("bad")], {}, "user_error:bad", 1, [*INVOKE, "tool.invoke.user_error"]),
    "RetryableToolError": (
        called(), [RetryableToolError("busy")] * 9, {}, "tool_error:busy", 3, [*INVOKE, *["tool.invoke.retryable"] * 3],
    ),
    "RuntimeError": (called(), [RuntimeError("bad")], {}, "tool_error:bad", 1, [*INVOKE, "tool.invoke.fail"]),
    "timeout": (called(), [TimeoutError()], {}, "tool_error:timeout", 1, [*INVOKE, "tool.invoke.timeout"]),
    "GuardrailError of input": (called(), [], {"input_guards": [refuse]}, "guardrail:not this", 0,
                                [*MISS, "guard.input.start", "guard.input.block"]),
    "GuardrailError of output": (called(), [], {"output_guards": [refuse]}, "guardrail:not this", 1,
                                 [*INVOKE, *OUTPUT, "guard.output.block"]),
}  # fmt: skip
"""(call, what the tool raises, guards, error string, attempts of three that would be allowed, events)."""


@pytest.mark.parametrize("condition", ERRORS)
@pytest.mark.parametrize("coroutine", [False, True], ids=["plain tool", "async tool"])
def test_error_has_its_string_attempts_and_trace_in_both_ways(
    context: ToolContext, condition: str, coroutine: bool
) -> None:
    call, errors, guards, error, attempts, events = ERRORS[condition]
    runs, traces = [], []
    for how in ("run_sync", "run_async"):
        engine, sink = engine_of(tool_of(raising(*errors), coroutine=coroutine), max_retries=2, **guards)
        runs.append(replace(ended(engine, how, context, call), ms=0))
        traces.append(sink.events)
    assert (runs[0], traces[0]) == (runs[1], traces[1])
    assert (runs[0].error[: len(error)], runs[0].attempts, runs[0].result.ok) == (error, attempts, False)
    assert names(traces[0]) == events
    assert runs[0].error.partition(":")[2] or error == "unknown_tool"


@pytest.mark.parametrize("raw", ['{"x": 1, "x": 2}', '{"x": NaN}', '{"x": 1', '{"a": "\\ud800"}'])
def test_text_that_is_not_an_argument_object_is_refused_with_a_reason(context: ToolContext, raw: str) -> None:
    engine, _ = engine_of(tool_of(raising(AssertionError("it ran"))))
    reason = engine.run_sync(called(raw), context).error
    assert (reason.startswith("bad_args:"), reason == "bad_args:") == (True, False)


# --- The helper methods

HELPERS = {
    "_resolve": ["name"],
    "_parse_and_coerce": ["tool", "raw"],
    "_check_cache": ["tool", "raw"],
    "_run_input_guardrails": ["tool", "ctx", "args"],
    "_run_output_guardrails": ["tool", "ctx", "output", "attempts"],
    "_store_cache": ["tool", "raw", "output"],
}


def test_helper_takes_the_documents_parameters() -> None:
    parameters = {name: list(inspect.signature(getattr(Engine, name)).parameters)[1:] for name in HELPERS}
    assert parameters == HELPERS


@both_ways
def test_each_phase_exists_once_and_serves_both_ways(how: str, context: ToolContext) -> None:
    uses: list[str] = []

    def watched(helper: str) -> Body:
        def use(engine: Engine, *arguments: Any) -> Any:
            uses.append(helper)
            return getattr(Engine, helper)(engine, *arguments)

        return use

    kind: Any = type("Watched", (Engine,), {helper: watched(helper) for helper in HELPERS})
    assert ended(kind(ActionRegistry([tool_of(echo)]), TraceSink()), how, context, called()).error == ""
    assert uses == list(HELPERS)


def test_helpers_return_a_value_or_an_error_and_trace_it(context: ToolContext) -> None:
    tool, output = tool_of(echo), ToolOutput.ok(x=1)
    engine, sink = engine_of(tool)
    assert engine._resolve("t") == (tool, None)
    assert engine._parse_and_coerce(tool, '{"x": "3"}') == ({"x": 3}, None)
    assert engine._parse_and_coerce(tool, "{}") == ({"x": 7}, None)
    assert engine._run_input_guardrails(tool, context, {"x": 1}) == ({"x": 1}, None)
    assert engine._run_output_guardrails(tool, context, output, 2) == (output, None)
    guards = [f"guard.{side}.{word}" for side in ("input", "output") for word in ("start", "ok")]
    assert names(sink.events) == [*PARSE, *PARSE[2:], *guards]

    closed, blocks = engine_of(tool, input_guards=[refuse], output_guards=[refuse])
    failed = (
        closed._resolve("u"),
        closed._parse_and_coerce(tool, '{"x": '),
        closed._run_input_guardrails(tool, context, {"x": 1}),
        closed._run_output_guardrails(tool, context, output, 2),
    )
    assert [value for value, _ in failed] == [None] * 4
    errors = [(error.error.partition(":")[0], error.attempts) for _, error in failed]
    assert errors == [("unknown_tool", 0), ("bad_args", 0), ("guardrail", 0), ("guardrail", 2)]
    ends = ["tool.resolve.fail", "args.parse.fail", "guard.input.block", "guard.output.block"]
    assert names(blocks.events)[1::2] == ends


def test_store_cache_stores_what_check_cache_returns() -> None:
    tool, output = tool_of(echo), ToolOutput.ok(x=1)
    engine, sink = engine_of(tool)
    assert engine._check_cache(tool, "{}") is None
    engine._store_cache(tool, "{}", output)
    hit = engine._check_cache(tool, "{}")
    assert (hit.output, hit.cached, hit.error) == (output, True, "")
    assert engine._check_cache(tool, "{ }") is None
    assert names(sink.events) == ["cache.miss", "cache.store", "cache.hit", "cache.miss"]


# --- The invocation, which alone differs


class Watched(Tool):
    """Says which of its two entries is used. Called by its own name, with the context and the arguments."""

    uses: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012 - of the class: the instances are frozen

    def s(self, context: ToolContext, /, **arguments: Any) -> Any:
        Watched.uses.append(("s", arguments))
        return super().s(context, **arguments)

    async def a(self, context: ToolContext, /, **arguments: Any) -> Any:
        Watched.uses.append(("a", arguments))
        return await super().a(context, **arguments)


@pytest.mark.parametrize(("how", "coroutine", "entry"), [("run_sync", False, "s"), ("run_async", True, "a")])
def test_run_sync_calls_tool_s_and_run_async_awaits_tool_a(
    context: ToolContext, how: str, coroutine: bool, entry: str
) -> None:
    Watched.uses.clear()
    plain = tool_of(echo, coroutine=coroutine)
    watched = Watched("t", "d", plain.arguments, plain.effect, plain.run)
    engine, _ = engine_of(watched)
    assert ended(engine, how, context, called('{"x": 1}')).result.data == {"x": 1}
    assert Watched.uses == [(entry, {"x": 1})]


def test_only_run_sync_and_run_async_run_calls_and_their_errors_are_public() -> None:
    assert [name for name in vars(Engine) if not name.startswith("_")] == ["run_sync", "run_async"]
    assert [inspect.iscoroutinefunction(method) for method in (Engine.run_sync, Engine.run_async)] == [False, True]
    assert (mendgraph.RetryableToolError, mendgraph.GuardrailError) == (RetryableToolError, GuardrailError)
