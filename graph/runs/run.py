"""Run tasks from Python: to the outcome, or event by event, with a person or a program that approves calls."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, Unpack, cast

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.context_fields import ContextFields
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.runs.events import Asked, Event
from mendgraph.graph.runs.images import Image
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.session import Session
from mendgraph.nodes.guard.approval_formats import Action, ApprovalAnswer, ApprovalRequest

__all__ = ["Approve", "RunResult", "Session", "TaskOptions", "arun_task", "astream_task", "run_task", "stream_task"]

Answer = Action | ApprovalAnswer
"""One word for all calls, such as "approve" or "reject", or a decision for each: see `ApprovalAnswer`."""

Approve = Callable[[ApprovalRequest], Answer | Awaitable[Answer]]
"""Decides on the calls of one reply that need approval, in mode "ask": a function of the request, sync or async."""

_NOBODY: Answer = "nobody"


class TaskOptions(ContextFields, SessionOptions, total=False):
    """The keyword arguments of `run_task`: fields of `AgentContext`, and options of `Session`."""


def run_task(
    task: str,
    context: AgentContext | None = None,
    *,
    approve: Approve | None = None,
    images: Sequence[Image] = (),
    **options: Unpack[TaskOptions],
) -> RunResult:
    """Run one task to its outcome.

    Args:
        task: the request.
        context: workspace, model, permissions and limits; by default those of `AgentContext()`.
        approve: decides on calls that need a person's approval in mode "ask", and answers the model with
            `questions=True`. Without it every such call is refused with the code `approval_required`, and the model
            continues without it.
        images: files, or the bytes of images, that the model sees with the request: PNG, JPEG, GIF or WebP.
        options: fields of `AgentContext`, such as workspace and mode, in place of those of `context`; and options of
            `Session`, such as model, tools, middleware, system_prompt, response_format, checkpointer and thread_id.

    Returns:
        How the run ended, what it answered and changed. A limit, a failing provider, a refused command or a busy
        workspace are outcomes of a run; none of them raises.

    Raises:
        TypeError, ValueError: an option is unknown or invalid; the message names it.
        Exception: what `approve` raises. The run then waits for approval, and `open_run` continues it.
    """
    with _open_session(context, options) as session:
        last = session.work(task, images=images)
        while isinstance(last, Asked):
            last = session.work_on(_answer(approve, last))

        return session.result()


async def arun_task(
    task: str,
    context: AgentContext | None = None,
    *,
    approve: Approve | None = None,
    images: Sequence[Image] = (),
    **options: Unpack[TaskOptions],
) -> RunResult:
    """Run one task to its outcome without blocking the event loop; otherwise as `run_task`.

    A sync `approve` is called in a thread, so that it may wait for a person. A cancelled run makes no further changes
    and can be resumed.
    """
    session = _open_session(context, options)
    try:
        last = await _last_of(session.astream(task, images=images))
        while isinstance(last, Asked):
            last = await _last_of(session.aanswer(await _aanswer(approve, last)))

        return await asyncio.to_thread(session.result)
    finally:
        await session.aclose()


def stream_task(
    task: str,
    context: AgentContext | None = None,
    *,
    approve: Approve | None = None,
    images: Sequence[Image] = (),
    **options: Unpack[TaskOptions],
) -> Generator[Event, None, None]:
    """Run one task and yield the typed events of `mendgraph.graph.runs.events`; the last one is `Ended`.

    Arguments and errors are those of `run_task`. Nothing runs before the first event is requested. `Asked` has the
    calls that need approval; `approve` is called when the next event is requested. Closing the generator, as a `break`
    out of a `for` statement does, stops the run: the model call is dropped, a running tool is waited for, files are
    complete, the workspace is unlocked, and `resume_run` continues from there.
    """
    with _open_session(context, options) as session:
        events = session.stream(task, images=images)

        while True:
            last: Event | None = None
            with closing(events):
                for last in events:
                    yield last

            if not isinstance(last, Asked):
                return

            events = session.answer(_answer(approve, last))


async def astream_task(
    task: str,
    context: AgentContext | None = None,
    *,
    approve: Approve | None = None,
    images: Sequence[Image] = (),
    **options: Unpack[TaskOptions],
) -> AsyncGenerator[Event, None]:
    """Run one task and yield its events without blocking the event loop; otherwise as `stream_task`.

    Python closes an async generator late. To stop the run at once when you leave the loop early, use
    `async with contextlib.aclosing(astream_task(...)) as events`.
    """
    session = _open_session(context, options)
    try:
        events = session.astream(task, images=images)

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


def _open_session(context: AgentContext | None, options: TaskOptions) -> Session:
    """Open a session with the fields of the context that are among the options."""
    fields, session_options = split_options(options)
    if fields and isinstance(context, AgentContext | None):
        context = AgentContext(**{**dict(context or ()), **fields})

    return Session(context, **session_options)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the context and the options of a session."""
    names = ContextFields.__annotations__.keys()
    fields = {name: value for name, value in options.items() if name in names}
    session_options = {name: value for name, value in options.items() if name not in names}

    return fields, session_options


async def _last_of(events: AsyncGenerator[Event, None]) -> Event:
    return [event async for event in events][-1]


def _answer(approve: Approve | None, event: Asked) -> Answer:
    """Return the decision. An async function gets an event loop of its own, so it fails inside a running one."""
    if approve is None:
        return _NOBODY

    answer = approve(cast("ApprovalRequest", event.request))
    if not inspect.isawaitable(answer):
        return answer

    return asyncio.run(_awaited(answer))


async def _aanswer(approve: Approve | None, event: Asked) -> Answer:
    """Return the decision; a sync function is called in a thread."""
    if approve is None:
        return _NOBODY

    answer = await asyncio.to_thread(approve, cast("ApprovalRequest", event.request))
    if inspect.isawaitable(answer):
        return await answer

    return answer


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer
