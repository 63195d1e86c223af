"""Run one task of a batch: its copy, its settings, its run, its patch. Any thread on any machine can do it."""

import os
from hashlib import sha256
from typing import Final

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.tasks import (
    UNFINISHED,
    WORKER_FAILED,
    TaskOutput,
    TaskResult,
    TaskUsage,
    WorkOrder,
    cancelled_result,
    failed_result,
    problems_of,
)
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.graph.machine.run_records import RETRIED, UNDONE, RunRecord
from mendgraph.graph.runs.events import Asked
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import get_run
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.records import JsonMap, Outcome, StopReason, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.copies.workspace_copies import Copy, compare_copy, find_left_out, make_copy
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.store.database import uses_postgres
from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, workspace_folder

CONTINUED: Final = RETRIED | {*UNFINISHED, UNDONE}
"""Ends of a run that was stopped before its work was done: such a run is resumed, all others keep their end."""

LONGEST_BUSY_S: Final = 60.0
"""How long a copy may be locked by a killed worker or a lost machine before the task fails."""

_POLL_S: Final = 0.25
_NOBODY: Final = "nobody"
_BATCH_LIMITS: Final = ("max_tokens_per_account", "max_cost_usd_per_account")


def run_order(order: WorkOrder, stop: StopRequest | None = None, options: SessionOptions | None = None) -> TaskOutput:
    """Run a task to its end: make its copy, then resume its run if the store has it, or begin it.

    `stop.ask(...)` ends it early, from any thread; repeat it until this returns, as a turn that just begins may miss
    one. `options` are those of `Session` without context and thread.

    Never raises: an error is the task's result.
    """
    started_at = monotonic_s()

    try:
        output = _run(order, stop or StopRequest(), options or {})
    except Exception as error:  # noqa: BLE001 - an unexpected error of one task is that task's result
        text = Redactor(known_values(os.environ)).text(f"{type(error).__name__}: {error}")
        problem = ToolError(code=ToolErrorCode.IO_ERROR, message=f"The worker met an unexpected error ({text}).")
        output = TaskOutput(failed_result(order, problem, WORKER_FAILED))

    seconds = round(monotonic_s() - started_at, 3)
    return output._replace(result=output.result.model_copy(update={"seconds": seconds}))


def _run(order: WorkOrder, stop: StopRequest, options: SessionOptions) -> TaskOutput:
    if stop.reason:
        return TaskOutput(cancelled_result(order, stop.reason))

    task = order.task
    copy = make_copy(task.workspace, task.revision, order.folder, without=order.without)
    if isinstance(copy, ToolError):
        return TaskOutput(failed_result(order, copy))

    context = context_of(order, copy)
    if isinstance(context, ToolError):
        return TaskOutput(failed_result(order, context, StopReason.INVALID_REQUEST))

    record = _find_run(order, copy.root)
    if isinstance(record, ToolError):
        return TaskOutput(failed_result(order, record, StopReason.STORE_FAILED))

    session_options: SessionOptions = {"durability": order.durability, **options, "thread_id": order.run_id}

    def end_early() -> None:  # after a whole step, so that the model is not told about calls that were left out
        session.stop(stop.reason, in_step=False)

    with Session(context, **session_options) as session, stop.listening(end_early):
        outcome = _result_of_run(session, order, stop, record).outcome

    return _output(order, copy, outcome, resumed=record is not None)


def _output(order: WorkOrder, copy: Copy, outcome: Outcome, *, resumed: bool) -> TaskOutput:
    """Return the outcome with the patch of the copy."""
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

    result = TaskResult(
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

    return TaskOutput(result, patch)


def _find_run(order: WorkOrder, root: str) -> RunRecord | ToolError | None:
    """Return the task's run in the store, None if it has not begun.

    In a shared store the copy has the same name on every machine.
    """
    if uses_postgres():
        folder = workspace_folder(root)
        if isinstance(folder, ToolError):
            return folder

        problem = give_workspace_name(folder, order.workspace_name)
        if problem is not None:
            return problem

    run = get_run(order.run_id, root)
    if isinstance(run, ToolError):
        return None if run.code is ToolErrorCode.NOT_FOUND else run
    if run.run_id != order.run_id:
        return None

    return run


def _result_of_run(session: Session, order: WorkOrder, stop: StopRequest, record: RunRecord | None) -> RunResult:
    """Return the result of a run that has ended, or begin or resume it and return its result."""
    if record is not None:
        final = _final_result(session, record)
        if final is not None:
            return final

    result = _work(session, order, resume=record is not None)
    waited_s = 0.0

    while result.outcome.reason is StopReason.WORKSPACE_BUSY and waited_s < LONGEST_BUSY_S and not stop.reason:
        stop.wait(_POLL_S)
        waited_s += _POLL_S
        result = _work(session, order, resume=record is not None)

    if record is None or stop.reason or result.outcome.reason is not StopReason.ACCOUNT_LIMIT:
        return result

    for name in _BATCH_LIMITS:
        if getattr(record.context, name) != getattr(session.context, name):
            return _work(session, order, resume=True)  # it was resumed under the limit that it began with

    return result


def _work(session: Session, order: WorkOrder, *, resume: bool) -> RunResult:
    """Begin or resume the run; calls that need an approval are refused, as there is nobody to ask."""
    if resume:
        *_, event = session.resume()
    else:
        event = session.work(order.task.prompt)

    while isinstance(event, Asked):
        event = session.work_on(_NOBODY)

    return session.result()


def _final_result(session: Session, record: RunRecord) -> RunResult | None:
    """Return the result of a run that has ended for good, None for one that continues.

    After a kill between the last step and the update of the record, only the state has the outcome.
    """
    if record.state == "ended" and record.reason in CONTINUED:
        return None

    try:
        result = session.result()
    except KeyError:  # killed before its first step
        return None

    outcome: Outcome | None = result.outcome  # None during a turn
    if outcome is None or outcome.reason in CONTINUED:
        return None

    return result


def _usage(counters: JsonMap) -> TaskUsage:
    return TaskUsage(
        calls=counters.get("total_calls", 0),
        input_tokens=counters.get("total_input_tokens", 0),
        output_tokens=counters.get("total_output_tokens", 0),
        cached_tokens=counters.get("cached_tokens", 0),
        reasoning_tokens=counters.get("reasoning_tokens", 0),
        cache_write_tokens=counters.get("cache_write_tokens", 0),
        cost_usd=counters.get("cost_usd", 0.0),
    )


def context_of(order: WorkOrder, copy: Copy) -> AgentContext | ToolError:
    """Return the user's settings with the limits of the task, INVALID_ARGUMENT if they do not fit together."""
    try:
        allowed = AgentContext.model_validate_json(order.context)
        readable = (*allowed.readable_folders, *copy.installed.values())
        settings = {"workspace": copy.root, "request_permits": False, "readable_folders": readable, "hooks": "off"}

        return AgentContext(**{**allowed.model_dump(), **order.task.limits, **settings})
    except ValidationError as error:
        return invalid(f"The task's settings do not fit together ({problems_of(error)[0]}).")
