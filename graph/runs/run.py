"""Run tasks from Python: one task to its outcome, or event by event, with a person or a program that approves calls."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from typing import Unpack, cast

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.runs.events import Asked, Event
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.session import Session
from mendgraph.nodes.guard.approvals import Action, ApprovalAnswer, ApprovalRequest

__all__ = ["Approve", "RunResult", "Session", "arun_task", "astream_task", "run_task", "stream_task"]

Answer = Action | ApprovalAnswer
"""One word for all calls, such as "approve" or "reject", or a decision for each: see `ApprovalAnswer`."""

Approve = Callable[[ApprovalRequest], Answer | Awaitable[Answer]]
"""Decides on the calls of one reply that need approval, in mode "ask": a function of the request, sync or async."""

_NOBODY: Answer = "nobody"


def run_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> RunResult:
    """Run one task to its outcome.

    Args:
        task: what is wanted, in words.
        context: workspace, model, permissions and limits; by default those of `AgentContext()`.
        approve: answers what needs a person's approval in mode "ask". Without it every such call is refused with the
            code `approval_required`, and the model goes on without it.
        options: those of `Session`, such as model, tools, middleware, system_prompt, response_format, checkpointer and
            thread_id.

    Returns:
        How the run ended, what it answered and changed. A limit, a failing provider, a refused command or a busy
        workspace are outcomes of a run; none of them raises.

    Raises:
        TypeError, ValueError: the options are wrong, such as a tool that is none.
        Exception: what `approve` raises. The run then waits where it asked, and `open_run` goes on with it.
    """
    with Session(context, **options) as session:
        last = session.work(task)
        while isinstance(last, Asked):
            last = session.work_on(_answer(approve, last))

        return session.result()


async def arun_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> RunResult:
    """Run one task to its outcome without blocking the event loop; otherwise as `run_task`.

    A sync `approve` is called in a thread, so that it may wait for a person. A cancelled run changes nothing any more
    and can be resumed.
    """
    session = Session(context, **options)
    try:
        last = await _last_of(session.astream(task))
        while isinstance(last, Asked):
            last = await _last_of(session.aanswer(await _aanswer(approve, last)))

        return await asyncio.to_thread(session.result)
    finally:
        await session.aclose()


def stream_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> Generator[Event, None, None]:
    """Run one task and yield what happens, as the typed events of `mendgraph.graph.runs.events`; `Ended` is last.

    Arguments and failures are those of `run_task`. `Asked` tells what needs approval; `approve` is called when the next
    event is wanted. The run stops when the generator is closed, as a `break` out of a `for` statement does: the model
    call is dropped, a tool that runs is waited for, files are whole, the workspace is free, and `resume_run` goes on
    from there. Nothing runs before the first event is wanted.
    """
    with Session(context, **options) as session:
        events = session.stream(task)

        while True:
            last: Event | None = None
            with closing(events):
                for last in events:
                    yield last

            if not isinstance(last, Asked):
                return

            events = session.answer(_answer(approve, last))


async def astream_task(
    task: str, context: AgentContext | None = None, *, approve: Approve | None = None, **options: Unpack[SessionOptions]
) -> AsyncGenerator[Event, None]:
    """Run one task and yield what happens, without blocking the event loop; otherwise as `stream_task`.

    Python closes an async generator late. Who may leave before its end writes
    `async with contextlib.aclosing(astream_task(...)) as events`, which stops the run at once.
    """
    session = Session(context, **options)
    try:
        events = session.astream(task)

        while True:
            last: Event | None = None
            async with aclosing(events):
                async for last in events:
                    yield last

            if not isinstance(last, Asked):
                return

            events = session.aanswer(await _aanswer(approve, last))
    finally:
        await session.aclose()


async def _last_of(events: AsyncGenerator[Event, None]) -> Event:
    return [event async for event in events][-1]


def _answer(approve: Approve | None, event: Asked) -> Answer:
    """What is decided, in this thread. An async function gets a loop of its own, so it fails inside a running one."""
    if approve is None:
        return _NOBODY

    answer = approve(cast("ApprovalRequest", event.request))
    if not inspect.isawaitable(answer):
        return answer

    return asyncio.run(_awaited(answer))


async def _aanswer(approve: Approve | None, event: Asked) -> Answer:
    """What is decided; a sync function is called in a thread."""
    if approve is None:
        return _NOBODY

    answer = await asyncio.to_thread(approve, cast("ApprovalRequest", event.request))
    if inspect.isawaitable(answer):
        return await answer

    return answer


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer
