"""One task of a batch: its copy, its settings, its run, its patch. Any thread on any machine may do it."""

import os
from collections import deque
from hashlib import sha256
from typing import Final

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import tasks
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.machine.run_records import RETRIED, UNDONE, RunRecord
from mendgraph.graph.runs.events import Asked, Event
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import get_run
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.copies.copy_sources import installed_folders
from mendgraph.nodes.execute_tools.copies.workspace_copies import Copy, compare_copy, find_left_out, make_copy
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.database import uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import give_workspace_name, workspace_folder
from mendgraph.nodes.records import JsonMap, Outcome, StopReason, ToolError, ToolErrorCode, invalid

GOES_ON: Final = RETRIED | {*tasks.LEFT_OPEN, UNDONE}
"""Ends of a run that was stopped before its work was done: it is taken up, where others stand as they are."""

LONGEST_BUSY_S: Final = 60.0
"""How long a copy may be held by a worker that was killed, or a machine that was lost, before the task has failed."""

_POLL_S: Final = 0.25
_NOBODY: Final = "nobody"
_CAPS: Final = ("max_tokens_per_account", "max_cost_usd_per_account")


def work(
    order: tasks.WorkOrder, stop: StopRequest | None = None, options: SessionOptions | None = None
) -> tasks.Worked:
    """Work on a task to its end: make its copy, resume its run if the store knows it, else begin it.

    `stop.ask(...)` lets it end early, from any thread; whoever asks repeats it until `work` returns, as a turn that
    begins in the same moment may miss it once. `options` are those of `Session`, without its context and thread.

    Never raises: what went wrong is in the result.
    """
    started_at = monotonic_s()

    try:
        done = _work(order, stop or StopRequest(), options or {})
    except Exception as error:  # noqa: BLE001 - one task's surprise is that task's result; the others go on
        text = Redactor(known_values(os.environ)).text(f"{type(error).__name__}: {error}")
        surprise = ToolError(
            code=ToolErrorCode.IO_ERROR, message=f"The worker met an error that nobody expected ({text})."
        )
        done = tasks.Worked(tasks.failed(order, surprise, tasks.WORKER_FAILED))

    return done._replace(result=done.result.model_copy(update={"seconds": round(monotonic_s() - started_at, 3)}))


def _work(order: tasks.WorkOrder, stop: StopRequest, options: SessionOptions) -> tasks.Worked:
    if stop.reason:
        return tasks.Worked(tasks.cancelled(order, stop.reason))

    task = order.task
    copy = make_copy(task.workspace, task.revision, order.folder, without=order.without)
    if isinstance(copy, ToolError):
        return tasks.Worked(tasks.failed(order, copy))

    context = context_of(order, copy.root)
    if isinstance(context, ToolError):
        return tasks.Worked(tasks.failed(order, context, StopReason.INVALID_REQUEST))

    run = _known_run(order, copy.root)
    if isinstance(run, ToolError):
        return tasks.Worked(tasks.failed(order, run, StopReason.STORE_FAILED))

    of_session: SessionOptions = {"durability": order.durability, **options, "thread_id": order.run_id}

    def end_early() -> None:  # once the step is whole: its model hears nothing of calls that were left out
        session.stop(stop.reason, in_step=False)

    with Session(context, **of_session) as session, stop.told(end_early):
        outcome = _end_of(session, order, stop, run).outcome

    return _worked(order, copy, outcome, resumed=run is not None)


def _worked(order: tasks.WorkOrder, copy: Copy, outcome: Outcome, *, resumed: bool) -> tasks.Worked:
    patch = compare_copy(copy.folder)
    error, patch = (patch, b"") if isinstance(patch, ToolError) else (None, patch)
    run = get_run(order.run_id, copy.root)

    if isinstance(run, ToolError):
        changed = outcome.changed_files
    else:
        changed = run.files

    left_out = find_left_out(copy, changed)
    error, left_out = (left_out, {}) if isinstance(left_out, ToolError) else (error, left_out)
    result = tasks.TaskResult(
        id=order.task.id,
        kind=outcome.kind,
        reason=outcome.reason,
        message=outcome.message,
        answer=outcome.answer,
        value=outcome.value,
        changed=changed,
        restored=outcome.restored,
        refused=outcome.refused,
        left_out=tuple(f"{name}: {reason}" for name, reason in left_out.items()),
        verified=outcome.verified,
        patch_sha256=sha256(patch).hexdigest() if patch else "",
        usage=_usage(outcome.usage),
        run_id=order.run_id,
        copy_path=copy.root,
        base=copy.base,
        tries=order.tries,
        resumed=resumed,
        error=error,
        task=order.task_hash,
    )

    return tasks.Worked(result, patch)


# --- What the store knows


def _known_run(order: tasks.WorkOrder, root: str) -> RunRecord | ToolError | None:
    """What the store knows of the task's run, None where it was not begun yet.

    In a shared store the copy has a name that is the same on every machine.
    """
    if uses_postgres():
        folder = workspace_folder(root)
        problem = folder if isinstance(folder, ToolError) else give_workspace_name(folder, order.shared_name)
        if problem is not None:
            return problem

    run = get_run(order.run_id, root)
    if isinstance(run, ToolError):
        return None if run.code is ToolErrorCode.NOT_FOUND else run

    return run if run.run_id == order.run_id else None


# --- The run


def _end_of(session: Session, order: tasks.WorkOrder, stop: StopRequest, known: RunRecord | None) -> RunResult:
    """The end of the task's run: the one that it has, or the one that it comes to."""
    if known is not None and (ended := _standing(session, known)) is not None:
        return ended

    def go_on() -> RunResult:
        last: Event = session.work(order.task.prompt) if known is None else deque(session.resume(), maxlen=1)[0]
        while isinstance(last, Asked):  # nobody can be asked, so what needs a person's approval is refused
            last = session.work_on(_NOBODY)

        return session.result()

    result = go_on()
    waited_s = 0.0

    while result.outcome.reason is StopReason.WORKSPACE_BUSY and waited_s < LONGEST_BUSY_S and not stop.reason:
        stop.wait(_POLL_S)
        waited_s += _POLL_S
        result = go_on()

    old = known is not None and any(getattr(known.context, name) != getattr(session.context, name) for name in _CAPS)
    if old and result.outcome.reason is StopReason.ACCOUNT_LIMIT and not stop.reason:
        return go_on()  # it went on under the limit that it was begun with, and there is another one now

    return result


def _standing(session: Session, known: RunRecord) -> RunResult | None:
    """The end that the run has and keeps; None where it is to go on.

    A process that is killed between the last step and the note of its end leaves the end in the state alone.
    """
    if known.state == "ended" and known.reason in GOES_ON:
        return None

    try:
        ended = session.result()
    except KeyError:  # it was killed before its first step
        return None

    outcome: Outcome | None = ended.outcome  # None while its turn is at work
    if outcome is None or outcome.reason in GOES_ON:
        return None

    return ended


def _usage(used: JsonMap) -> tasks.TaskUsage:
    return tasks.TaskUsage(
        calls=used.get("total_calls", 0),
        input_tokens=used.get("total_input_tokens", 0),
        output_tokens=used.get("total_output_tokens", 0),
        cached_tokens=used.get("cached_tokens", 0),
        reasoning_tokens=used.get("reasoning_tokens", 0),
        cache_write_tokens=used.get("cache_write_tokens", 0),
        cost_usd=used.get("cost_usd", 0.0),
    )


# --- What it may do


def context_of(order: tasks.WorkOrder, root: str) -> AgentContext | ToolError:
    """What the user allows, within the task's own limits; INVALID_ARGUMENT says what refuses the task its run."""
    try:
        allowed = AgentContext.model_validate_json(order.context)
        readable = (*allowed.readable_folders, *installed_folders(root))
        settings = {"workspace": root, "request_permits": False, "readable_folders": readable}

        return AgentContext(**{**allowed.model_dump(), **order.task.limits, **settings})
    except ValidationError as error:
        return invalid(f"The task's settings do not fit together ({tasks.problems_of(error)[0]}).")
