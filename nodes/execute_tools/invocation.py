"""How a tool is called: the one place where sync and async differ."""

import asyncio
from dataclasses import replace
from functools import partial

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, call_here, call_isolated
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.records import CHANGING, Effect, JsonMap, ToolError

SELF_TIMED_GRACE_S = 2.0
"""How much longer than its own limit a tool that keeps its time by itself is waited for."""
_LAST_WORDS_S = 0.05
"""How long a cancelled coroutine may take to end; one that will not end is left to the event loop."""


def call_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """What the tool gives back or raises; TimeoutError after `timeout_s` seconds, and no effect after that.

    An async tool gets an event loop of its own, and so RuntimeError inside a running one. Source: spec 5, invariant 5.
    """
    if tool.asynchronous:
        return _run_loop(tool, context, arguments, timeout_s)
    scope = CancellationScope(context.scope)
    call = partial(tool.s, _in_scope(tool, context, scope, timeout_s), **arguments)
    if tool.isolated:
        return call_isolated(timeout_s, call)
    return call_here(_patience(tool, timeout_s), call, scope)


async def await_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """The same in the running event loop; a sync tool gets a thread."""
    scope = CancellationScope(context.scope)
    in_scope = _in_scope(tool, context, scope, timeout_s)
    if tool.asynchronous:
        return await _within(_patience(tool, timeout_s), tool, in_scope, arguments, scope)
    call = partial(tool.s, in_scope, **arguments)
    if tool.isolated:
        return await await_call(partial(call_isolated, timeout_s, call))
    return await await_call(call, _patience(tool, timeout_s), scope)


def _run_loop(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    coroutine = await_tool(tool, context, arguments, timeout_s)
    run = partial(asyncio.run, coroutine)
    try:
        if _in_a_loop():
            return run()  # fails, as it should
        return call_here(_patience(tool, timeout_s) + SELF_TIMED_GRACE_S, run, CancellationScope())
    finally:
        coroutine.close()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _patience(tool: Tool, timeout_s: float) -> float:
    return timeout_s + SELF_TIMED_GRACE_S if tool.self_timed else timeout_s


def _in_scope(tool: Tool, context: ToolContext, scope: CancellationScope, timeout_s: float) -> ToolContext:
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


async def _within(
    seconds: float, tool: Tool, context: ToolContext, arguments: JsonMap, scope: CancellationScope
) -> object:
    """Wait no longer than this, even for a coroutine that does not let itself be cancelled."""
    task = asyncio.ensure_future(_contained(tool, context, arguments))
    task.add_done_callback(_heard)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        scope.revoke()
        task.cancel()
        raise
    if done:
        if task.cancelled():
            raise RuntimeError("CancelledError was raised")
        return task.result()
    scope.revoke()
    task.cancel()
    await asyncio.wait({task}, timeout=_LAST_WORDS_S)
    raise TimeoutError(f"given up after {seconds:g} s")


def _heard(task: "asyncio.Task[object]") -> None:
    """What a call raises after it was given up is nobody's: the loop need not report it."""
    if not task.cancelled():
        task.exception()


async def _contained(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    try:
        return await tool.a(context, **arguments)
    except SystemExit as error:  # it would end the event loop, not the call
        raise RuntimeError(f"SystemExit: {error}") from error
