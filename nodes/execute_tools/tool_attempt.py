"""One attempt at a tool: with the context that its effect permits, and within its time limit."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolError
from mendgraph.nodes.workspace.files.deadline import CancellationScope, await_call, call_here

SELF_TIMED_GRACE_S = 5.5  # seconds that a self-timed tool has beyond its limit to clean up


def call_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """Run the tool; TimeoutError after `timeout_s` seconds, and no effect after that.

    An async tool runs with `asyncio.run`, which raises RuntimeError inside a running loop. Source: spec 5, invariant 5.
    """
    if not tool.asynchronous:
        scope = CancellationScope(context.scope)
        call = partial(tool.s, context_in_scope(tool, context, scope, timeout_s), **arguments)
        return call_here(_patience(tool, timeout_s), call, scope)

    coroutine = await_tool(tool, context, arguments, timeout_s)
    try:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            timeout_s = inf  # asyncio.run fails in this thread, as spec 5 says

        patience = _patience(tool, timeout_s) + SELF_TIMED_GRACE_S
        return call_here(patience, partial(asyncio.run, coroutine), CancellationScope())
    finally:
        coroutine.close()


async def await_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """Run the tool in the running event loop; a sync tool runs in a thread."""
    scope = CancellationScope(context.scope)
    in_scope = context_in_scope(tool, context, scope, timeout_s)

    if not (tool.arun or tool.asynchronous):
        return await await_call(partial(tool.s, in_scope, **arguments), _patience(tool, timeout_s), scope)

    # The wait ends at the timeout even if the task does not let itself be cancelled.
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
    """Keep asyncio from logging the exception of an abandoned task."""
    if not task.cancelled():
        task.exception()


async def _call_async_tool(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    try:
        return await tool.a(context, **arguments)
    except SystemExit as error:  # it would end the event loop, not the call
        raise RuntimeError(f"SystemExit: {error}") from error


def context_in_scope(tool: Tool, context: ToolContext, scope: CancellationScope, timeout_s: float) -> ToolContext:
    """Return the context for one attempt of at most `timeout_s` seconds, with what the tool's effect permits."""
    workspace = context.workspace.in_scope(scope)
    if tool.effect not in CHANGING:
        workspace = workspace.unchangeable()

    commands = context.commands if tool.effect is Effect.EXECUTE else None
    if commands is not None and not isinstance(commands, ToolError):
        commands = commands.in_scope(scope)

    network, search = context.network, context.search
    if tool.effect not in {Effect.NETWORK, Effect.EXECUTE}:
        network = search = None

    return replace(
        context,
        workspace=workspace,
        commands=commands,
        network=network,
        search=search,
        timeout_s=timeout_s,
        scope=scope,
    )
