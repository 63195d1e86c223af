"""How a tool is called: the one place where sync and async differ."""

import asyncio
from functools import partial

from nodes.execute_tools.environment.deadline import await_call, call_within
from nodes.execute_tools.registry import Tool, ToolContext
from nodes.records import Effect, JsonMap


def call_tool(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    """What the tool gives back or raises; TimeoutError after the context's `timeout_s` seconds.

    An effect is never left behind half-way: a writing tool runs to its end, the others until their time is over. An
    async tool gets an event loop of its own, and so RuntimeError inside a running one. Source: spec 5, invariant 5.
    """
    if tool.asynchronous:
        coroutine = await_tool(tool, context, arguments, context.timeout_s)
        try:
            return asyncio.run(coroutine)
        finally:
            coroutine.close()
    if tool.effect is Effect.WRITE:
        return tool.s(context, **arguments)
    return call_within(context.timeout_s, partial(tool.s, context, **arguments))


async def await_tool(tool: Tool, context: ToolContext, arguments: JsonMap, timeout_s: float) -> object:
    """The same in the running event loop, with the smaller of both timeouts; a sync tool gets a thread."""
    limit = min(context.timeout_s, timeout_s)
    if tool.asynchronous:
        return await asyncio.wait_for(_contained(tool, context, arguments), limit)
    return await await_call(partial(tool.s, context, **arguments), None if tool.effect is Effect.WRITE else limit)


async def _contained(tool: Tool, context: ToolContext, arguments: JsonMap) -> object:
    try:
        return await tool.a(context, **arguments)
    except SystemExit as error:  # it would end the event loop, not the call
        raise RuntimeError(f"SystemExit: {error}") from error
