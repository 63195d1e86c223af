import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.invocation import await_tool, call_tool
from nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from nodes.records import Effect


class Nothing(BaseModel):
    pass


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=5)


def make(function: Callable[..., Any], effect: Effect = Effect.READ) -> Tool:
    return Tool("t", "d", Nothing, effect, function)


def both(tool: Tool, context: ToolContext, timeout_s: float = 5) -> list[object]:
    return [call_tool(tool, context, {}), asyncio.run(await_tool(tool, context, {}, timeout_s))]


@pytest.mark.parametrize("effect", Effect)
def test_sync_and_async_tools_run_both_ways(context: ToolContext, effect: Effect) -> None:
    async def later(*_: object) -> ToolOutput:
        await asyncio.sleep(0)
        return ToolOutput.ok(a=1)

    assert both(make(later, effect), context) == [ToolOutput.ok(a=1)] * 2
    assert both(make(lambda *_: ToolOutput.ok(a=1), effect), context) == [ToolOutput.ok(a=1)] * 2


def test_a_tool_that_only_looks_is_given_up_at_the_deadline(context: ToolContext) -> None:
    release = threading.Event()
    slow = make(lambda *_: release.wait(20))
    try:
        with pytest.raises(TimeoutError):
            call_tool(slow, replace(context, timeout_s=0.01), {})
        with pytest.raises(TimeoutError):
            asyncio.run(await_tool(slow, replace(context, timeout_s=0.01), {}, 5))
        with pytest.raises(TimeoutError):
            asyncio.run(await_tool(slow, context, {}, 0.01))
    finally:
        release.set()


def test_a_tool_that_writes_runs_to_its_end(context: ToolContext) -> None:
    pause = threading.Event()

    def slow(*_: object) -> ToolOutput:
        pause.wait(0.05)
        return ToolOutput.ok(done=True)

    assert both(make(slow, Effect.WRITE), replace(context, timeout_s=0.01), 0.01) == [ToolOutput.ok(done=True)] * 2


def test_an_async_tool_is_cancelled_at_the_deadline(context: ToolContext) -> None:
    cancelled: list[bool] = []

    async def slow(*_: object) -> ToolOutput:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return ToolOutput.ok()

    with pytest.raises(TimeoutError):
        call_tool(make(slow), replace(context, timeout_s=0.01), {})
    with pytest.raises(TimeoutError):
        asyncio.run(await_tool(make(slow), context, {}, 0.01))
    assert cancelled == [True, True]


def test_an_async_tool_that_exits_does_not_end_the_event_loop(context: ToolContext) -> None:
    async def leave(*_: object) -> ToolOutput:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        asyncio.run(await_tool(make(leave), context, {}, 5))


def test_inside_a_loop_an_async_tool_cannot_be_called_synchronously(context: ToolContext) -> None:
    async def later(*_: object) -> ToolOutput:
        return ToolOutput.ok()

    async def inside() -> None:
        call_tool(make(later), context, {})

    with pytest.raises(RuntimeError, match=r"asyncio\.run\(\) cannot be called"):
        asyncio.run(inside())
