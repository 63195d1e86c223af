import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.engine import await_tool, call_tool
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.records import Effect


class Nothing(BaseModel):
    pass


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=5)


def make(function: Callable[..., Any], effect: Effect = Effect.READ) -> Tool:
    return Tool("t", "d", Nothing, effect, function)


def both(tool: Tool, context: ToolContext, timeout_s: float = 5) -> list[object]:
    return [call_tool(tool, context, {}, timeout_s), asyncio.run(await_tool(tool, context, {}, timeout_s))]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_after_its_deadline_a_tool_changes_nothing(context: ToolContext, tmp_path: Path, asynchronous: bool) -> None:
    tried = threading.Event()

    def write(given: ToolContext, _: Nothing) -> ToolOutput:
        try:
            while given.scope is not None and not given.scope.over:
                threading.Event().wait(0.01)
        finally:
            try:
                given.workspace.write_file("late.txt", b"late", expected_sha256="")
            finally:
                tried.set()
        return ToolOutput.ok()

    async def awrite(given: ToolContext, _: Nothing) -> ToolOutput:
        try:
            await asyncio.sleep(20)
        finally:
            try:
                given.workspace.write_file("late.txt", b"late", expected_sha256="")
            finally:
                tried.set()
        return ToolOutput.ok()

    tool = make(awrite if asynchronous else write, Effect.WRITE)
    ways: list[Callable[[], object]] = [
        lambda: call_tool(tool, context, {}, 0.05),
        lambda: asyncio.run(await_tool(tool, context, {}, 0.05)),
    ]
    for way in ways:
        tried.clear()
        with pytest.raises(TimeoutError):
            way()
        assert tried.wait(5)
        assert list(tmp_path.iterdir()) == []


def test_a_sleeping_tool_is_given_up_at_once_and_leaves_nothing(context: ToolContext) -> None:
    """In the main thread, and in an event loop (async)."""

    def sleep(*_: object) -> ToolOutput:
        time.sleep(30)
        return ToolOutput.ok()

    async def asleep(*_: object) -> ToolOutput:
        await asyncio.sleep(30)
        return ToolOutput.ok()

    ways: list[Callable[[], object]] = [
        lambda: call_tool(make(sleep), context, {}, 0.2),
        lambda: call_tool(make(asleep), context, {}, 0.2),
        lambda: asyncio.run(await_tool(make(asleep), context, {}, 0.2)),
    ]
    for way in ways:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            way()
        assert time.monotonic() - started < 0.5
        for thread in threading.enumerate():
            if thread.name == "tool":
                thread.join(1)
        assert [thread.name for thread in threading.enumerate() if thread.name == "tool"] == []


def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left_behind(context: ToolContext) -> None:
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
            await await_tool(make(stubborn), context, {}, 0.05)
        release.set()

    asyncio.run(inside())


def test_a_tool_that_keeps_its_own_time_is_waited_for_a_little_longer(context: ToolContext) -> None:
    def slow(*_: object) -> ToolOutput:
        time.sleep(0.1)
        return ToolOutput.ok(own=True)

    assert both(replace(make(slow), self_timed=True), context, 0.01) == [ToolOutput.ok(own=True)] * 2


def test_an_async_tool_that_exits_does_not_end_the_event_loop(context: ToolContext) -> None:
    async def leave(*_: object) -> ToolOutput:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        asyncio.run(await_tool(make(leave), context, {}, 5))


def test_a_cancellation_of_its_own_is_an_error_of_the_tool(context: ToolContext) -> None:
    async def leave(*_: object) -> ToolOutput:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="CancelledError was raised"):
        asyncio.run(await_tool(make(leave), context, {}, 5))
