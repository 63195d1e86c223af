"""One attempt at a tool: it gets what its effect permits, and no more time than its limit."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, call_here
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolError

SELF_TIMED_GRACE_S = 5.5  # seconds that a tool which keeps its time by itself has beyond its limit to tidy up


def call_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """What the tool returns or raises; TimeoutError after `timeout_s` seconds, and no effect after that.

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
    """As `call_tool`, in the running event loop; a sync tool gets a thread."""
    scope = CancellationScope(context.scope)
    in_scope = context_in_scope(tool, context, scope, timeout_s)

    if not (tool.arun or tool.asynchronous):
        return await await_call(partial(tool.s, in_scope, **arguments), _patience(tool, timeout_s), scope)

    # Waited for no longer than this, even if it does not let itself be cancelled.
    task = asyncio.ensure_future(_call_async_tool(tool, in_scope, arguments))
    task.add_done_callback(_retrieve_exception)

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


def _retrieve_exception(task: "asyncio.Task[object]") -> None:
    """Keep asyncio from logging the exception of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


async def _call_async_tool(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    try:
        return await tool.a(context, **arguments)
    except SystemExit as error:  # it would end the event loop, not the call
        raise RuntimeError(f"SystemExit: {error}") from error


def context_in_scope(tool: Tool, context: ToolContext, scope: CancellationScope, timeout_s: float) -> ToolContext:
    """The context for one attempt of at most `timeout_s` seconds: it holds what the tool's effect permits."""
    workspace = context.workspace.in_scope(scope)
    if tool.effect not in CHANGING:
        workspace = workspace.unchangeable()

    commands = context.commands if tool.effect is Effect.EXECUTE else None
    if commands is not None and not isinstance(commands, ToolError):
        commands = commands.in_scope(scope)

    network = context.network if tool.effect in {Effect.NETWORK, Effect.EXECUTE} else None
    return replace(context, workspace=workspace, commands=commands, network=network, timeout_s=timeout_s, scope=scope)
