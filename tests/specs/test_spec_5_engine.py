"""Spec 5 as a table: each way that a call can end, with its trace, its error string and its attempts, both ways."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from nodes.execute_tools.engine import Engine, EngineConfig, GuardrailError, RetryableToolError, ToolRun
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from nodes.execute_tools.trace import TraceSink
from nodes.records import Effect, RawCall


class Arguments(BaseModel):
    model_config = ConfigDict(extra="allow")

    x: int = 7


RESOLVE = ["tool.resolve.start", "tool.resolve.ok"]
PARSE = [*RESOLVE, "args.parse.start", "args.parse.ok", "cache.miss"]
GUARD_IN = [*PARSE, "guard.input.start", "guard.input.ok", "tool.invoke.start"]
INVOKE = [*GUARD_IN, "tool.invoke.ok"]
WHOLE = [*INVOKE, "guard.output.start", "guard.output.ok"]

Body = Callable[[ToolContext, Any], Any]


def raising(*errors: BaseException) -> Body:
    """Raises one error after the other, then works."""
    left = list(errors)

    def body(_: ToolContext, arguments: Arguments) -> ToolOutput:
        if left:
            raise left.pop(0)
        return ToolOutput.ok(**arguments.model_dump())

    return body


def refuse(*_: object) -> None:
    raise GuardrailError("not this")


CASES: dict[str, tuple[str, Callable[[], Body], dict[str, Any], list[str], str, int]] = {
    "good": ('{"x": 1}', raising, {}, [*WHOLE, "cache.store"], "", 1),
    "defaults": ("", raising, {}, [*WHOLE, "cache.store"], "", 1),
    "extras": ('{"y": [1]}', raising, {}, [*WHOLE, "cache.store"], "", 1),
    "bad JSON": ('{"x": ', raising, {}, [*RESOLVE, "args.parse.start", "args.parse.fail"], "bad_args:", 0),
    "no object": ("[1]", raising, {}, [*RESOLVE, "args.parse.start", "args.parse.fail"], "bad_args:", 0),
    "bad type": ('{"x": "many"}', raising, {}, [*RESOLVE, "args.parse.start", "args.parse.fail"], "bad_args:x: ", 0),
    "blocked before": (
        "{}",
        raising,
        {"input_guards": [refuse]},
        [*PARSE, "guard.input.start", "guard.input.block"],
        "guardrail:not this",
        0,
    ),
    "blocked after": (
        "{}",
        raising,
        {"output_guards": [refuse]},
        [*INVOKE, "guard.output.start", "guard.output.block"],
        "guardrail:not this",
        1,
    ),
    "caller's mistake": (
        "{}",
        lambda: raising(ValueError("bad")),
        {},
        [*GUARD_IN, "tool.invoke.user_error"],
        "user_error:bad",
        1,
    ),
    "tool's mistake": (
        "{}",
        lambda: raising(RuntimeError("broken")),
        {},
        [*GUARD_IN, "tool.invoke.fail"],
        "tool_error:broken",
        1,
    ),
    "timeout": ("{}", lambda: raising(TimeoutError()), {}, [*GUARD_IN, "tool.invoke.timeout"], "tool_error:timeout", 1),
    "once more": (
        "{}",
        lambda: raising(RetryableToolError("busy")),
        {},
        [*GUARD_IN, "tool.invoke.retryable", "tool.invoke.ok", *WHOLE[len(INVOKE) :], "cache.store"],
        "",
        2,
    ),
    "never": (
        "{}",
        lambda: raising(*[RetryableToolError("busy")] * 3),
        {},
        [*GUARD_IN, *["tool.invoke.retryable"] * 2],
        "tool_error:busy",
        2,
    ),
}


def run(
    how: str, raw: str, body: Body, options: dict[str, Any], folder: Path, *, coroutine: bool
) -> tuple[ToolRun, TraceSink]:
    async def later(context: ToolContext, arguments: Any) -> Any:
        return body(context, arguments)

    tool = Tool("t", "d", Arguments, Effect.READ, later if coroutine else body, cacheable=True)
    sink = TraceSink(run_id="r", step_id="1", clock=lambda: 5)
    engine = Engine(ActionRegistry([tool]), sink, EngineConfig(max_retries=1), **options)
    context = ToolContext(Workspace(str(folder), lambda *_: None), timeout_s=5)
    call = RawCall(call_id="c", tool="t", arguments=raw)
    done = engine.run_sync(call, context) if how == "sync" else asyncio.run(engine.run_async(call, context))
    return done, sink


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("coroutine", [False, True], ids=["plain tool", "async tool"])
def test_both_ways_leave_the_same_trace_and_end_the_same(tmp_path: Path, case: str, coroutine: bool) -> None:
    raw, make, options, names, error, attempts = CASES[case]
    ends, traces = [], []
    for how in ("sync", "async"):
        done, sink = run(how, raw, make(), options, tmp_path, coroutine=coroutine)
        ends.append((done.error, done.error_type, done.attempts, done.retries, done.output, done.cached))
        traces.append(sink.events)
    assert [event.name for event in traces[0]] == names
    assert traces[0] == traces[1]
    assert {(event.run_id, event.step_id, event.ms) for event in traces[0]} == {("r", "1", 0)}
    assert ends[0] == ends[1]
    assert (ends[0][0][: len(error)], ends[0][2]) == (error, attempts)


def test_the_exact_text_of_the_arguments_is_what_a_raw_call_says(tmp_path: Path) -> None:
    done, _ = run("sync", '{"x": "3", "extra": {"deep": [1]}}', raising(), {}, tmp_path, coroutine=False)
    assert done.result.data == {"x": 3, "extra": {"deep": [1]}}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"x": 1, "x": 2}', "bad_args:"),
        ('{"x": NaN}', "bad_args:"),
        ('{"x": 1', "bad_args:"),
        ('{"a": "\\ud800"}', "bad_args:"),
    ],
)
def test_what_is_no_argument_object_is_refused_with_a_reason(tmp_path: Path, raw: str, reason: str) -> None:
    done, _ = run("sync", raw, raising(AssertionError("it ran")), {}, tmp_path, coroutine=False)
    assert done.error.startswith(reason)
    assert len(done.error) > len(reason)
