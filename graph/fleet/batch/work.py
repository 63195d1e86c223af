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

    with Session(context, **of_session) as session, stop.listening(end_early):
        outcome = _end_of(session, order, stop, run).outcome

    return _worked(order, copy, outcome, resumed=run is not None)


def _worked(order: tasks.WorkOrder, copy: Copy, outcome: Outcome, *, resumed: bool) -> tasks.Worked:
    error = None
    patch_sha256 = ""

    patch = compare_copy(copy.folder)
    if isinstance(patch, ToolError):
        error = patch
        patch = b""
    if patch:
        patch_sha256 = sha256(patch).hexdigest()

    changed = outcome.changed_files
    run = get_run(order.run_id, copy.root)
    if not isinstance(run, ToolError):
        changed = run.files

    left_out = find_left_out(copy, changed)
    if isinstance(left_out, ToolError):
        error = left_out
        left_out = {}

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
        patch_sha256=patch_sha256,
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


# --- The run in the store


def _known_run(order: tasks.WorkOrder, root: str) -> RunRecord | ToolError | None:
    """The task's run in the store, None where it has not begun.

    In a shared store the copy has a name that is the same on every machine.
    """
    if uses_postgres():
        folder = workspace_folder(root)
        if isinstance(folder, ToolError):
            return folder

        problem = give_workspace_name(folder, order.shared_name)
        if problem is not None:
            return problem

    run = get_run(order.run_id, root)
    if isinstance(run, ToolError) and run.code is not ToolErrorCode.NOT_FOUND:
        return run
    if isinstance(run, ToolError) or run.run_id != order.run_id:
        return None

    return run


# --- The run


def _end_of(session: Session, order: tasks.WorkOrder, stop: StopRequest, record: RunRecord | None) -> RunResult:
    """The result of the task's run: of a run that has ended, or after working on it."""
    if record is not None:
        result = _final_result(session, record)
        if result is not None:
            return result

    def go_on() -> RunResult:
        last: Event
        if record is None:
            last = session.work(order.task.prompt)
        else:
            [last] = deque(session.resume(), maxlen=1)

        while isinstance(last, Asked):  # without a person, calls that need approval are refused
            last = session.work_on(_NOBODY)

        return session.result()

    result = go_on()
    waited_s = 0.0

    while result.outcome.reason is StopReason.WORKSPACE_BUSY and waited_s < LONGEST_BUSY_S and not stop.reason:
        stop.wait(_POLL_S)
        waited_s += _POLL_S
        result = go_on()

    has_old_limit = record is not None and any(
        getattr(record.context, name) != getattr(session.context, name) for name in _CAPS
    )
    if has_old_limit and result.outcome.reason is StopReason.ACCOUNT_LIMIT and not stop.reason:
        return go_on()  # it resumed under the limit that it began with, which has changed

    return result


def _final_result(session: Session, record: RunRecord) -> RunResult | None:
    """The result of a run that has ended for good; None where it is to continue.

    Where a process was killed between the last step and the update of its record, only the state holds the outcome.
    """
    if record.state == "ended" and record.reason in GOES_ON:
        return None

    try:
        result = session.result()
    except KeyError:  # it was killed before its first step
        return None

    outcome: Outcome | None = result.outcome  # None while its turn is at work
    if outcome is None or outcome.reason in GOES_ON:
        return None

    return result


def _usage(counters: JsonMap) -> tasks.TaskUsage:
    return tasks.TaskUsage(
        calls=counters.get("total_calls", 0),
        input_tokens=counters.get("total_input_tokens", 0),
        output_tokens=counters.get("total_output_tokens", 0),
        cached_tokens=counters.get("cached_tokens", 0),
        reasoning_tokens=counters.get("reasoning_tokens", 0),
        cache_write_tokens=counters.get("cache_write_tokens", 0),
        cost_usd=counters.get("cost_usd", 0.0),
    )


# --- What it may do


def context_of(order: tasks.WorkOrder, root: str) -> AgentContext | ToolError:
    """The user's settings within the limits of the task; INVALID_ARGUMENT where they do not fit together."""
    try:
        allowed = AgentContext.model_validate_json(order.context)
        readable = (*allowed.readable_folders, *installed_folders(root))
        settings = {"workspace": root, "request_permits": False, "readable_folders": readable}

        return AgentContext(**{**allowed.model_dump(), **order.task.limits, **settings})
    except ValidationError as error:
        return invalid(f"The task's settings do not fit together ({tasks.problems_of(error)[0]}).")
