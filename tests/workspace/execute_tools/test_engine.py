import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.call_policy import CallPolicy, CallRules, PolicyMemory, RetryPolicy
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig, GuardrailError, RetryableToolError, ToolOutcome
from mendgraph.nodes.execute_tools.network.network import Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.execute_tools.tool_attempt import await_tool, call_tool
from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink
from mendgraph.nodes.records import (
    ChangeKind,
    Effect,
    FileChange,
    Plan,
    PlanStep,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
)
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.row_tables import rows


class Arguments(BaseModel):
    x: int = 0


Body = Callable[[ToolContext, Any], Any]
Runner = Callable[[Engine, ToolCall, ToolContext], ToolOutcome]
CHANGE = FileChange(path="a", kind=ChangeKind.CREATED, sha256_before="", sha256_after="x", diff="")
GUARDED_RUN = "guard.input.start guard.input.ok tool.invoke.start tool.invoke.ok guard.output.start guard.output.ok"


def run_sync(engine: Engine, call: ToolCall, context: ToolContext) -> ToolOutcome:
    return engine.run_sync(call, context)


def run_async(engine: Engine, call: ToolCall, context: ToolContext) -> ToolOutcome:
    return asyncio.run(engine.run_async(call, context))


@pytest.fixture(params=[run_sync, run_async])
def run(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


@pytest.fixture
def sink() -> TraceSink:
    return TraceSink()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=5)


def make(body: Body, effect: Effect = Effect.NONE, model: type[BaseModel] = Arguments, name: str = "t") -> Tool:
    return Tool(name, "d", model, effect, body, cacheable=effect is Effect.READ)


def engine(sink: TraceSink, *tools: Tool, **options: Any) -> Engine:
    return Engine(ActionRegistry(tools), sink, **options)


def call(raw: str = "{}", tool: str = "t", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="c", tool=tool, arguments=arguments, raw_arguments=raw)


def names(events: Iterable[TraceEvent]) -> str:
    return " ".join(event.name for event in events)


def ok(_: ToolContext, arguments: Any) -> ToolOutput:
    return ToolOutput.ok(x=arguments.x)


def recording_body(runs: list[object]) -> Body:
    def body(*_: object) -> ToolOutput:
        runs.append(1)
        return ToolOutput.ok()

    return body


def failing_body(error: BaseException) -> Body:
    def body(*_: object) -> ToolOutput:
        raise error

    return body


def test_unknown_tool_is_an_error_with_a_suggestion(run: Runner, sink: TraceSink, context: ToolContext) -> None:
    done = run(engine(sink, make(ok, name="read_file")), call(tool="raed_file"), context)
    message = "There is no tool 'raed_file'. Did you mean read_file?"
    error = ToolError(code=ToolErrorCode.UNKNOWN_TOOL, message=message, suggestions=("read_file",))
    assert (done.error, done.attempts, done.output) == ("unknown_tool", 0, ToolOutput.failed(error))
    assert names(sink.events) == "tool.resolve.start tool.resolve.fail"


def test_invalid_arguments_are_an_error(run: Runner, sink: TraceSink, context: ToolContext) -> None:
    done = run(engine(sink, make(ok)), call(x="many", y=1), context)
    reasons = "x: input should be a valid integer, unable to parse string as an integer; y: unknown argument (known: x)"
    message = f"The arguments of t do not fit: {reasons}."
    assert (done.error, done.attempts) == (f"bad_args:{reasons}", 0)
    assert done.result == ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message)
    assert sink.events[-1].payload == {"tool_name": "t", "err": reasons}


ENDINGS: list[tuple[BaseException, str]] = [
    (ZeroDivisionError("z"), "tool_error:z"),
    (SystemExit(1), "tool_error:1"),
    (StopIteration(), "tool_error:StopIteration was raised"),
    (asyncio.CancelledError(), "tool_error:CancelledError was raised"),
]


def test_exception_of_a_tool_is_a_typed_result_after_one_attempt(run: Runner, context: ToolContext) -> None:
    for error, text in ENDINGS:
        sink = TraceSink()
        done = run(engine(sink, make(failing_body(error)), config=EngineConfig(max_retries=9)), call(), context)
        assert (done.error, done.attempts, done.result.ok) == (text, 1, False)
        assert done.result.error is not None
        assert done.result.error.code is ToolErrorCode.IO_ERROR
        assert names(sink.events).endswith("tool.invoke.start tool.invoke.fail")


def test_keyboard_interrupt_propagates(run: Runner, sink: TraceSink, context: ToolContext) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(engine(sink, make(failing_body(KeyboardInterrupt()))), call(), context)


def test_cancellation_of_a_run_propagates(sink: TraceSink, context: ToolContext) -> None:
    async def slow(*_: object) -> ToolOutput:
        await asyncio.sleep(20)
        return ToolOutput.ok()

    async def cancel() -> None:
        task = asyncio.ensure_future(engine(sink, make(slow)).run_async(call(), context))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


@pytest.mark.parametrize(
    ("failures", "retries", "attempts", "error"),
    [(1, 1, 2, ""), (2, 1, 2, "tool_error:again 2"), (1, 0, 1, "tool_error:again 1"), (3, 5, 4, "")],
)
def test_retryable_failure_is_retried_and_attempts_are_counted(
    run: Runner, sink: TraceSink, context: ToolContext, failures: int, retries: int, attempts: int, error: str
) -> None:
    count = 0

    def body(*_: object) -> ToolOutput:
        nonlocal count
        count += 1
        if count <= failures:
            raise RetryableToolError(f"again {count}")
        return ToolOutput.ok()

    done = run(engine(sink, make(body), config=EngineConfig(max_retries=retries)), call(), context)
    assert (done.error, done.attempts, count) == (error, attempts, attempts)
    invoked = [event.name for event in sink.events if event.name.startswith("tool.invoke")]
    retried = ["tool.invoke.retryable"] * min(failures, attempts)
    assert invoked == ["tool.invoke.start", *retried, *(["tool.invoke.ok"] if not error else [])]


async def later(_: ToolContext, __: str, value: object) -> None:
    await asyncio.sleep(0)
    raise GuardrailError(f"not {value if isinstance(value, dict) else 'this output'}")


class Future:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Iterator[None]:
        yield


class Later:
    async def __call__(self, context: ToolContext, name: str, value: object) -> None:
        await later(context, name, value)


@rows(later, Later(), partial(later))
def test_async_guardrail_is_awaited_by_run_async(guard: Any, context: ToolContext) -> None:
    runs: list[object] = []
    tool = make(recording_body(runs))
    done = run_async(engine(TraceSink(), tool, input_guards=[guard]), call(), context)
    assert (done.error, runs) == ("guardrail:not {'x': 0}", [])
    done = run_async(engine(TraceSink(), tool, output_guards=[guard]), call(), context)
    assert (done.error, done.attempts, runs) == ("guardrail:not this output", 1, [1])


def test_async_guardrail_runs_in_the_callers_loop_in_order(sink: TraceSink, context: ToolContext) -> None:
    visits: list[object] = []

    def note(number: int, *_: object) -> None:
        visits.append(number)

    async def awaited(*_: object) -> None:
        visits.append(asyncio.get_running_loop())

    async def ask() -> ToolOutcome:
        visits.append(asyncio.get_running_loop())
        guards = [partial(note, 1), awaited, partial(note, 2)]
        return await engine(sink, make(lambda *_: ToolOutput.ok()), input_guards=guards).run_async(call(), context)

    assert asyncio.run(ask()).error == ""
    assert visits == [visits[0], 1, visits[0], 2]
    assert [event.name for event in sink.events][-6:] == GUARDED_RUN.split()


@rows("input_guards", "output_guards")
def test_async_guardrail_is_refused_by_run_sync_before_the_tool_runs(side: str, context: ToolContext) -> None:
    sink, runs = TraceSink(), list[object]()
    refusing = engine(sink, make(recording_body(runs)), **{side: [later]})
    done = run_sync(refusing, call(), context)
    assert done.error.startswith("guardrail:later is async, and only run_async awaits a guardrail")
    assert (runs, sink.events[-1].name) == ([], "guard.input.block")


def hidden(*arguments: Any) -> Any:
    return later(*arguments)


@rows(hidden, lambda *_: Future())
def test_guardrail_that_returns_an_awaitable_without_being_async_blocks(guard: Any, context: ToolContext) -> None:
    guarded = engine(TraceSink(), make(lambda *_: ToolOutput.ok()), input_guards=[guard])
    done = run_sync(guarded, call(), context)
    assert done.error == "guardrail:a guardrail that returns an awaitable must be an `async def`, and needs run_async"


def test_cache_keeps_the_most_recently_used_results(sink: TraceSink, context: ToolContext) -> None:
    small = engine(sink, make(ok, Effect.READ), config=EngineConfig(cache_size=2))
    hits = [run_sync(small, call(f'{{"x": {x}}}', x=x), context).cached for x in (1, 2, 1, 3, 1, 2)]
    assert hits == [False, False, True, False, True, False]
    assert EngineConfig().cache_size == 256


def test_output_guardrail_blocks_the_result_but_the_change_is_recorded(
    run: Runner, sink: TraceSink, context: ToolContext
) -> None:
    def guard(_: ToolContext, __: str, output: ToolOutput) -> None:
        raise GuardrailError(f"not {output.result.data}")

    output = ToolOutput(ToolResult.success(a=1), (CHANGE,), {"a": "x"})
    done = run(engine(sink, make(lambda *_: output, Effect.WRITE), output_guards=[guard]), call(), context)
    blocked = ToolResult.failure(ToolErrorCode.PERMISSION_DENIED, "not {'a': 1}")
    assert done.output == ToolOutput(blocked, (CHANGE,), {"a": "x"})
    assert (done.error, done.attempts, done.error_type) == ("guardrail:not {'a': 1}", 1, "GuardrailError")
    assert names(sink.events).endswith("tool.invoke.ok guard.output.start guard.output.block")


def counted(counts: list[int]) -> Body:
    def body(_: ToolContext, arguments: Any) -> ToolOutput:
        counts.append(arguments.x)
        return ToolOutput(ToolResult.success(n=len(counts)), files_read={"a": "x"})

    return body


def counted_around(other: Tool, context: ToolContext) -> int:
    """How often a reading tool runs that is called with the same arguments before and after another tool."""
    counts: list[int] = []
    cached = engine(TraceSink(), make(counted(counts), Effect.READ), other)
    for tool_call in (call(), call(tool="other"), call()):
        run_sync(cached, tool_call, context)
    return len(counts)


def test_calls_without_raw_arguments_have_separate_cache_keys(sink: TraceSink, context: ToolContext) -> None:
    counts: list[int] = []
    cached = engine(sink, make(counted(counts), Effect.READ))
    for x in (1, 2, 1):
        run_sync(cached, call("", x=x), context)
    assert counts == [1, 2]


@rows(None, ValueError("x"), RetryableToolError("x"))
def test_cache_is_cleared_after_a_writing_tool_whatever_its_result(
    error: Exception | None, context: ToolContext
) -> None:
    writer = make(ok if error is None else failing_body(error), Effect.WRITE, name="other")
    assert counted_around(writer, context) == 2


@rows(
    (Effect.NONE, False, False, False),
    (Effect.READ, False, False, False),
    (Effect.WRITE, True, False, False),
    (Effect.EXECUTE, True, True, True),
    (Effect.NETWORK, False, False, True),
)
def test_tool_gets_only_the_context_that_its_effect_allows(
    effect: Effect, changes: bool, has_commands: bool, has_network: bool, run: Runner, tmp_path: Path
) -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def body(context: ToolContext, _: Any) -> ToolOutput:
        written = context.workspace.write_file("new.txt", b"x", expected_sha256="")
        seen.append((not isinstance(written, ToolError), context.commands is not None, context.network is not None))
        return ToolOutput.ok()

    commands = ToolError(code=ToolErrorCode.UNAVAILABLE, message="There is no sandbox.")
    workspace, network = Workspace(str(tmp_path), lambda *_: None), Network(NetworkRules())
    everything = ToolContext(workspace, timeout_s=5, commands=commands, network=network)
    run(engine(TraceSink(), make(body, effect)), call(), everything)
    assert seen == [(changes, has_commands, has_network)]


@rows(*Effect)
def test_cache_is_cleared_by_tools_that_may_change_files(effect: Effect, context: ToolContext) -> None:
    other = make(ok, effect, name="other")
    assert counted_around(other, context) == (2 if effect in {Effect.WRITE, Effect.EXECUTE} else 1)
    assert counted_around(replace(other, child=True), context) == 2


def test_failed_result_is_not_cached(sink: TraceSink, context: ToolContext) -> None:
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="There is no a.py.")
    outputs = iter([ToolOutput.failed(error), ToolOutput.ok(n=1)])
    cached = engine(sink, make(lambda *_: next(outputs), Effect.READ))
    assert [run_sync(cached, call(), context).result.ok for _ in range(2)] == [False, True]


def test_every_part_of_an_output_is_redacted(sink: TraceSink, context: ToolContext) -> None:
    word = "quokka-4471-lantern"
    change = CHANGE.model_copy(update={"path": f"{word}.py", "diff": f"+{word}"})
    blocks = ({"type": "text", "text": word},)
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message=f"no {word}", suggestions=(f"a/{word}",))
    plan = Plan(steps=(PlanStep(title=f"use {word}"),))
    output = ToolOutput(ToolResult.success(text=word), (change,), plan=plan, blocks=blocks, artifact={"deep": [word]})
    outputs = iter([output, ToolOutput.failed(error)])
    hiding = engine(sink, make(lambda *_: next(outputs), Effect.WRITE), redactor=Redactor([word]))

    redacted, failed = (run_sync(hiding, call(), context).output for _ in range(2))

    assert redacted.result.data == {"text": MARK}
    assert [(changed.path, changed.diff) for changed in redacted.changes] == [(f"{word}.py", f"+{MARK}")]
    assert redacted.plan == Plan(steps=(PlanStep(title=f"use {MARK}"),))
    assert (redacted.blocks, redacted.artifact) == (({"type": "text", "text": MARK},), {"deep": [MARK]})
    assert failed.result.error == error.model_copy(update={"message": f"no {MARK}", "suggestions": (f"a/{MARK}",)})


def test_async_call_is_limited_by_the_configured_timeout(sink: TraceSink, context: ToolContext) -> None:
    async def slow(*_: object) -> ToolOutput:
        await asyncio.sleep(30)
        return ToolOutput.ok()

    impatient = engine(sink, make(slow), config=EngineConfig(async_timeout_s=0.05))
    done = run_async(impatient, call(), replace(context, timeout_s=25.0))
    assert done.error == "tool_error:timeout"
    assert EngineConfig() == EngineConfig(max_retries=1, async_timeout_s=30.0, enable_cache=True)


def test_all_attempts_share_the_time_left(sink: TraceSink, context: ToolContext) -> None:
    seen: list[float] = []

    def body(context: ToolContext, _: Any) -> ToolOutput:
        seen.append(context.timeout_s)
        time.sleep(0.2)
        raise RetryableToolError("again")

    retrying = engine(sink, make(body), config=EngineConfig(max_retries=2))
    run_sync(retrying, call(), replace(context, timeout_s=1.0, seconds_left=1.3))
    assert seen[:2] == [1.0, 1.0]
    assert 0.5 < seen[2] < 0.95


@pytest.mark.parametrize("closed", [True, False])
def test_closed_scope_prevents_retries(run: Runner, sink: TraceSink, context: ToolContext, closed: bool) -> None:
    scope = CancellationScope()
    if closed:
        scope.close()
    done = run(engine(sink, make(failing_body(RetryableToolError("x")))), call(), replace(context, scope=scope))
    assert (done.error, done.attempts) == ("tool_error:x", 1 if closed else EngineConfig().max_retries + 1)


def test_retry_beyond_the_time_left_is_not_waited_for(run: Runner, sink: TraceSink, context: ToolContext) -> None:
    rules = CallRules(retries=RetryPolicy(max_retries=3, backoff_s=60.0))
    policy = CallPolicy(rules, PolicyMemory(lambda: 0.0))
    patient = engine(sink, make(failing_body(RetryableToolError("x"))), policy=policy)
    done = run(patient, call(), replace(context, seconds_left=20.0))
    assert (done.error, done.attempts) == ("tool_error:x", 1)


def test_non_json_result_is_an_error_and_the_change_is_recorded(sink: TraceSink, context: ToolContext) -> None:
    output = ToolOutput(ToolResult.success(a=object()), (CHANGE,))
    done = run_sync(engine(sink, make(lambda *_: output, Effect.WRITE)), call(), context)
    reason = "its result cannot be used (Type is not JSON serializable: object)"
    assert (done.error, done.attempts, done.output.changes) == (f"tool_error:{reason}", 1, (CHANGE,))
    assert done.result == ToolResult.failure(ToolErrorCode.IO_ERROR, f"t failed: TypeError: {reason}")


# --- One attempt


class Nothing(BaseModel):
    pass


def tool_of(function: Callable[..., Any], effect: Effect = Effect.READ) -> Tool:
    return Tool("t", "d", Nothing, effect, function)


def attempts_of(tool: Tool, context: ToolContext, timeout_s: float = 5) -> list[Callable[[], object]]:
    """One attempt at a call, as a sync and as an async function."""
    return [
        lambda: call_tool(tool, context, {}, timeout_s),
        lambda: asyncio.run(await_tool(tool, context, {}, timeout_s)),
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tool_changes_nothing_after_its_deadline(context: ToolContext, tmp_path: Path, asynchronous: bool) -> None:
    tried = threading.Event()

    def write_late(context: ToolContext) -> None:
        try:
            context.workspace.write_file("late.txt", b"late", expected_sha256="")
        finally:
            tried.set()

    def write(context: ToolContext, _: Nothing) -> None:
        try:
            while context.scope is not None and not context.scope.over:
                time.sleep(0.01)
        finally:
            write_late(context)

    async def awrite(context: ToolContext, _: Nothing) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            write_late(context)

    tool = tool_of(awrite if asynchronous else write, Effect.WRITE)
    for way in attempts_of(tool, context, 0.05):
        tried.clear()
        with pytest.raises(TimeoutError):
            way()
        assert tried.wait(5)
        assert list(tmp_path.iterdir()) == []


def test_sleeping_tool_is_stopped_at_once_and_leaves_no_thread(context: ToolContext) -> None:
    """In the main thread, and in an event loop (async)."""

    def sleep(*_: object) -> None:
        time.sleep(30)

    async def asleep(*_: object) -> None:
        await asyncio.sleep(30)

    for way in (attempts_of(tool_of(sleep), context, 0.2)[0], *attempts_of(tool_of(asleep), context, 0.2)):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            way()
        assert time.monotonic() - started < 0.5
        for thread in threading.enumerate():
            if thread.name == "tool":
                thread.join(1)
        assert [thread.name for thread in threading.enumerate() if thread.name == "tool"] == []


def test_coroutine_that_ignores_cancellation_is_abandoned(context: ToolContext) -> None:
    release = asyncio.Event()

    async def stubborn(*_: object) -> ToolOutput:
        while not release.is_set():
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                continue
        return ToolOutput.ok()

    async def inside() -> None:
        with pytest.raises(TimeoutError):
            await await_tool(tool_of(stubborn), context, {}, 0.05)
        release.set()

    asyncio.run(inside())


def test_self_timed_tool_gets_a_grace_period(context: ToolContext) -> None:
    def slow(*_: object) -> ToolOutput:
        time.sleep(0.1)
        return ToolOutput.ok(own=True)

    ways = attempts_of(replace(tool_of(slow), self_timed=True), context, 0.01)
    assert [way() for way in ways] == [ToolOutput.ok(own=True)] * 2


@rows((SystemExit(3), "SystemExit: 3"), (asyncio.CancelledError(), "CancelledError was raised"))
def test_async_tool_that_exits_or_cancels_does_not_end_the_event_loop(
    error: BaseException, message: str, context: ToolContext
) -> None:
    async def leave(*_: object) -> None:
        raise error

    with pytest.raises(RuntimeError, match=message):
        attempts_of(tool_of(leave), context)[1]()
