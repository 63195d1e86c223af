"""The recorded runs of a workspace: list, inspect, resume, undo, fork and remove them.

Each function takes a run by its id or a prefix of it. It returns a `ToolError` with the remedy if there is no such run,
if another run works in the workspace, or if the store cannot be used; it does not raise these errors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from mendgraph.graph.machine import routes
from mendgraph.graph.machine.run_records import CALLING, TO_THE_CALL, RunRecord, find_run, old_runs, requests_of
from mendgraph.graph.machine.workspace import judged_workspace, recover_open_changes
from mendgraph.graph.persistence.store import Pruned, Store
from mendgraph.graph.runs.applying import apply_again
from mendgraph.graph.runs.events import Asked
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.records import CallError, OutcomeKind, Plan, Reading, ToolCall, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.files.change_records import FileEffect
from mendgraph.nodes.workspace.files.sandbox import StrPath, check_workspace
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from mendgraph.nodes.workspace.journal import restoring
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import copy_artifacts
from mendgraph.nodes.workspace.store.run_lock import Owner, WorkspaceLock, lock_holder

if TYPE_CHECKING:  # importing these takes longer than listing runs
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import StateSnapshot

    from mendgraph.graph.machine.state import RaisedLimits
    from mendgraph.graph.runs.run_result import RunResult
    from mendgraph.graph.runs.session import Session

Result = TypeVar("Result")


class RunState(StrEnum):
    """The state of a run: working, waiting for a person, cut off, forked and not started, or how its last turn ended.

    `RunRecord.resumable` says whether it can be resumed.
    """

    WORKING = "working"
    ASKS = "asks"
    CUT_OFF = "cut off"
    FORKED = "forked"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class StepKind(StrEnum):
    """The kind of a step: the start of the run, or a reply with calls, with the answer, or that could not be used.

    UNKNOWN: no checkpoint is left, but the step has changed files.
    """

    START = "start"
    CALLS = "calls"
    ANSWER = "answer"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ListedRun(RunRecord):
    """The record of a run, its current state, and the files that it has changed and nobody has restored."""

    standing: RunState
    files: tuple[str, ...]


@dataclass(frozen=True)
class RunStep:
    """One reply of the model with its calls; `number` counts from 1 in a run, and 0 is its start.

    `turn` counts the requests since the run began or was forked, from 1; it is 0 if that is unknown. `changed` are the
    files that the step changed and nobody has restored. `can_fork`: a new run can begin after it.
    """

    number: int
    kind: StepKind
    turn: int = 0
    calls: tuple[ToolCall | CallError, ...] = ()
    changed: tuple[str, ...] = ()
    can_fork: bool = False


@dataclass(frozen=True)
class RunDiff:
    """The unified diff of one file, or why there is none.

    `changed_since`: somebody else has changed the file after the run; the diff includes that.
    """

    path: str
    diff: str
    problem: str = ""
    changed_since: bool = False


@dataclass(frozen=True)
class Forked:
    """A new run that begins where its `parent` was after a step. `restored` are the files restored to that step."""

    run_id: str
    parent: str
    restored: restoring.Restored


_MOST_DAYS = 36_500
_ENDS: Mapping[str, RunState] = {
    OutcomeKind.FINISHED: RunState.FINISHED,
    OutcomeKind.BUDGET_STOP: RunState.STOPPED,
    OutcomeKind.SYSTEM_ERROR: RunState.FAILED,
}


def list_runs(workspace: StrPath = ".") -> tuple[ListedRun, ...] | ToolError:
    """Return all runs of the workspace, the one that worked last first."""
    return with_store(workspace, lambda store: _listed(store, store.runs()))


def get_run(run: str = "", workspace: StrPath = ".") -> ListedRun | ToolError:
    """Return one run; without a name the newest one that can be resumed."""

    def get(store: Store) -> ListedRun | ToolError:
        runs = () if run else store.runs()
        stored_run = store.run(run or next((run_summary.run_id for run_summary in runs if run_summary.resumable), ""))

        if isinstance(stored_run, ToolError) and not run:
            message = "No run of this workspace can continue: `mendgraph runs` lists the finished ones."
            if not runs:
                message = "This folder has no runs yet: start a task."

            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

        if isinstance(stored_run, ToolError):
            return stored_run

        return _listed(store, [stored_run])[0]

    return with_store(workspace, get)


def steps_of(run: str, workspace: StrPath = ".") -> tuple[RunStep, ...] | ToolError:
    """Return the steps of a run."""

    def steps(store: Store, record: RunRecord) -> tuple[RunStep, ...]:
        by_step: dict[int, dict[str, None]] = {}
        for change in reversed(Journal(store.folder).changes_of(record.run_id)):
            by_step.setdefault(change.step, {}).update(dict.fromkeys(effect.path for effect in change.effects))

        changed = {step: tuple(paths) for step, paths in by_step.items()}
        return read_steps(small_history(store.saver, record.run_id), changed)

    return _with_run(run, workspace, steps)


def run_plan(run: str, workspace: StrPath = ".") -> Plan | ToolError:
    """Return the current plan of a run; without steps if the model has made none."""

    def plan(store: Store, record: RunRecord) -> Plan:
        return machine_to_read(store.saver).get_state(thread_config(record.run_id)).values.get("plan") or Plan()

    return _with_run(run, workspace, plan)


def run_permissions(run: str, workspace: StrPath = ".") -> tuple[Permission, ...] | ToolError:
    """Return what a person has allowed for this run alone."""

    def permissions(store: Store, record: RunRecord) -> tuple[Permission, ...]:
        values = machine_to_read(store.saver).get_state(thread_config(record.run_id)).values
        return tuple(values.get("permissions") or ())

    return _with_run(run, workspace, permissions)


def run_raises(run: str, workspace: StrPath = ".") -> "RaisedLimits | ToolError":
    """Return the limits of a run that a person has raised, each with its setting and the higher value."""

    def raises(store: Store, record: RunRecord) -> "RaisedLimits":
        values = machine_to_read(store.saver).get_state(thread_config(record.run_id)).values
        return dict(values.get("raised_limits") or {})

    return _with_run(run, workspace, raises)


def run_diffs(
    run: str,
    workspace: StrPath = ".",
    *,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
    attempt: bool = False,
) -> tuple[RunDiff, ...] | ToolError:
    """Return the diffs of a run's files in all its turns, by path; none for a file that is as before.

    With `attempt` they are the changes that were undone last, if any: those that `apply_run` makes again. The content
    of a file that the `rules` deny, that is not text or was too large to be kept is left out.
    """

    def diffs(store: Store) -> tuple[RunDiff, ...] | ToolError:
        if isinstance(journaled := _journaled(store, run), ToolError):
            return journaled

        files = judged_workspace(str(check_workspace(workspace)), rules)
        with Journal(store.folder).connected() as journal:
            if attempt and (undone := restoring.effects_of_last_restore(journal, journaled)):
                return tuple(_undone_diff(journal, files, effect) for effect in undone)

            found_diffs = (
                _diff(journal, files, effect) for effect in restoring.net_effects(journal.changes_of(journaled))
            )

            return tuple(diff for diff in found_diffs if diff is not None)

    return with_store(workspace, diffs)


def resume_run(run: str = "", workspace: StrPath = ".", **options: Any) -> "RunResult | ToolError":
    """Resume a run that was cut off or stopped, by default the newest such one, with its own context.

    A finished run returns its result again; a busy workspace is an outcome. `options` are those of `Session` except the
    context and the thread: a model, tools, rules. A call that needs a person's approval is refused
    (`approval_required`): use `open_run` to approve calls.
    """
    if isinstance(session := open_run(run, workspace, **options), ToolError):
        return session

    with session:
        events = list(session.resume())
        while isinstance(events[-1], Asked):
            events = list(session.answer("nobody"))

        return session.result()


def open_run(run: str = "", workspace: StrPath = ".", **options: Any) -> "Session | ToolError":
    """Return a session of a recorded run, to `resume` it or to send the next request; otherwise as `resume_run`."""
    from mendgraph.graph.runs.session import Session

    if isinstance(stored_run := get_run(run, workspace), ToolError):
        return stored_run

    context = stored_run.context.model_copy(update={"workspace": str(check_workspace(workspace))})
    return Session(context, **{"thread_id": stored_run.run_id, "durability": stored_run.durability, **options})


def undo_run(
    run: str,
    workspace: StrPath = ".",
    *,
    from_step: int = 0,
    skip_changed: bool = False,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
) -> restoring.Restored | ToolError:
    """Restore the files as they were before the run, or before its step `from_step`.

    No file is changed if somebody else has changed one of them since (CONFLICT), or if the `rules` deny one
    (PERMISSION_DENIED), unless `skip_changed` leaves those out.
    """

    def undo(store: Store, root: str) -> restoring.Restored | ToolError:
        if isinstance(journaled := _journaled(store, run), ToolError):
            return journaled

        files = judged_workspace(root, rules)
        restored = restoring.restore(Journal(store.folder), files, journaled, from_step, skip_changed=skip_changed)
        if isinstance(restored, restoring.Restored):
            store.mark_undone(journaled)

        return restored

    return with_store_alone(workspace, "mendgraph undo", undo)


def apply_run(
    run: str, workspace: StrPath = ".", *, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> tuple[restoring.RestoredFile, ...] | ToolError:
    """Restore the changes of a run that were undone last: at its end, or by `undo_run`, which can undo them again.

    All changes are made in the current files, or none. A file that has changed since gets the hunks, if each fits in
    exactly one place (CONFLICT otherwise); a file that the `rules` deny is refused. The result is empty if the files
    have the changes already; NOT_FOUND if nothing was undone.
    """

    def apply(store: Store, root: str) -> tuple[restoring.RestoredFile, ...] | ToolError:
        if isinstance(journaled := _journaled(store, run), ToolError):
            return journaled
        return apply_again(Journal(store.folder), judged_workspace(root, rules), journaled)

    return with_store_alone(workspace, "mendgraph apply", apply)


def fork_run(
    run: str,
    at: int,
    workspace: StrPath = ".",
    *,
    skip_changed: bool = False,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
) -> Forked | ToolError:
    """Start a new run with the conversation, the budget and the files of another run after its step `at`.

    `resume_run` continues it. The later changes of the other run are undone, with `skip_changed` and `rules` as in
    `undo_run`. NOT_FOUND names the steps after which a run can begin.
    """
    from mendgraph.graph.machine.build import build_graph

    def fork(store: Store, root: str) -> Forked | ToolError:
        if isinstance(parent := store.run(run), ToolError):
            return parent

        machine = build_graph(store.saver)
        if isinstance(due := call_after(small_history(store.saver, parent.run_id), at), ToolError):
            return due

        values = machine.get_state(due.config).values  # before anything is changed: it may be unreadable
        journal = Journal(store.folder)
        files = judged_workspace(root, rules)
        restored = restoring.restore(journal, files, parent.run_id, at + 1, skip_changed=skip_changed)

        if isinstance(restored, ToolError):
            return restored

        new = uuid4().hex
        begin_fork(store, new, values, parent, at)
        return Forked(new, parent.run_id, restored)

    return with_store_alone(workspace, "mendgraph fork", fork)


def begin_fork(store: Store, run_id: str, values: Mapping[str, Any], parent: RunRecord, at: int) -> None:
    """Store a run that begins with these values of its parent's state after the step `at`."""
    from mendgraph.graph.machine.build import build_graph

    copy_artifacts(parent.run_id, run_id)
    build_graph(store.saver).update_state(thread_config(run_id), {**values, "run_id": run_id}, as_node=TO_THE_CALL)
    request = requests_of(values)[-1]
    number = str(request.id).rpartition("-")[2]  # see `REQUEST_ID`
    turns = int(number) if number.isdecimal() else 0
    context = values["context"].model_dump_json()
    store.add_fork(run_id, replace(parent, turns=turns, request=request.text, stored_context=context), at)


def prune_runs(
    workspace: StrPath = ".", *, keep: int | None = None, older_than_days: float | None = None, unfinished: bool = False
) -> Pruned | ToolError:
    """Delete the records of runs that are `older_than_days`, except the newest `keep` ones.

    Without a limit nothing is deleted. A run that can be resumed is kept, unless `unfinished` is set. A deleted run
    cannot be undone: its files stay as they are.
    """
    if keep is not None and keep < 0:
        return invalid(f"{keep} runs cannot be kept: use 0 or more.")
    if older_than_days is not None and not 0 <= older_than_days <= _MOST_DAYS:
        return invalid(f"Runs cannot be {older_than_days:g} days old: use a number from 0 to {_MOST_DAYS}.")

    def prune(store: Store, _: str) -> Pruned:
        limited = keep is not None or older_than_days is not None
        oldest = datetime.now(UTC) - timedelta(days=older_than_days or 0.0)

        if limited:
            doomed = old_runs(store.runs(), keep or 0, oldest, unfinished=unfinished)
        else:
            doomed = []

        return store.prune(doomed)

    return with_store_alone(workspace, "mendgraph runs prune", prune)


# --- The store


def with_store(workspace: StrPath, use: Callable[[Store], Result | ToolError]) -> Result | ToolError:
    """Return the result of `use` with the workspace's store; IO_ERROR if the store cannot be used."""
    if isinstance(root := check_workspace(workspace), ToolError):
        return root

    try:
        with closing(Store(root)) as store:
            return use(store)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))


def with_store_alone(
    workspace: StrPath, who: str, use: Callable[[Store, str], Result | ToolError]
) -> Result | ToolError:
    """Return the result of `use` with the store and the real path of the locked workspace.

    UNAVAILABLE if a run works there. Interrupted changes are recovered before. `who` is the owner that others see.
    """

    def with_lock(store: Store) -> Result | ToolError:
        root = str(check_workspace(workspace))
        store.check()  # before its folder is locked: another version may lock it in another way
        lock = WorkspaceLock(store.folder)
        if (busy := lock.acquire(Owner(who))) is not None:
            return busy

        with lock:
            decided = recover_open_changes(Journal(store.folder), root)
            if isinstance(decided, ToolError):
                return decided
            return use(store, root)

    return with_store(workspace, with_lock)


def _with_run(run: str, workspace: StrPath, use: Callable[[Store, RunRecord], Result]) -> Result | ToolError:
    def with_found(store: Store) -> Result | ToolError:
        stored_run = store.run(run)
        if isinstance(stored_run, ToolError):
            return stored_run
        return use(store, stored_run)

    return with_store(workspace, with_found)


def _listed(store: Store, records: Iterable[RunRecord]) -> tuple[ListedRun, ...]:
    holder = lock_holder(store.folder)
    at_work = holder.run_id if holder else ""

    def listed(record: RunRecord, journal: Journal) -> ListedRun:
        written = {field.name: getattr(record, field.name) for field in fields(RunRecord)}
        files = sorted({effect.path for change in journal.changes_of(record.run_id) for effect in change.effects})
        return ListedRun(**written, standing=_standing(store, record, at_work), files=tuple(files))

    with Journal(store.folder).connected() as journal:
        return tuple(listed(record, journal) for record in records)


def _standing(store: Store, record: RunRecord, at_work: str) -> RunState:
    if record.run_id == at_work:
        return RunState.WORKING
    if record.state == "ended" and record.kind:
        return _ENDS[record.kind]

    with suppress(StoreError):  # a state of another version: it cannot go on, and the list is there all the same
        newest = next(small_history(store.saver, record.run_id), None)
        if newest is not None and newest.interrupts:
            return RunState.ASKS

    if record.state == "working":
        return RunState.CUT_OFF

    return RunState.FORKED


def _journaled(store: Store, run: str) -> str | ToolError:
    """Return the id of a recorded run, or of one of the user's graphs; its settings may be damaged."""
    stored_run = find_run(run, store.runs())
    if isinstance(stored_run, RunRecord):
        return stored_run.run_id

    meant = [thread for thread in Journal(store.folder).threads() if run and thread.startswith(run)]
    return meant[0] if len(meant) == 1 else stored_run


def _undone_diff(journal: Journal, files: Workspace, effect: FileEffect) -> RunDiff:
    from mendgraph.graph.runs.run_result import file_diff

    denied = files.denied(effect.path)
    attempt = journal.backup(effect.before.sha256) if effect.before.sha256 else None
    before = journal.backup(effect.after.sha256) if effect.after.sha256 else None
    diff = "" if denied else file_diff(effect.path, before, attempt, whole=True)

    if denied:
        problem = denied.message
    else:
        problem = "it is not a text file, or the text is the same"

    return RunDiff(effect.path, diff or "", "" if diff else problem)


def _diff(journal: Journal, files: Workspace, effect: FileEffect) -> RunDiff | None:
    now = files.read_file(effect.path)
    if isinstance(now, ToolError) and now.code is not ToolErrorCode.NOT_FOUND:
        return RunDiff(effect.path, "", now.message)

    sha256 = now.sha256 if isinstance(now, FileContent) else ""
    if sha256 == effect.before.sha256:
        return None

    since = sha256 != effect.after.sha256

    if effect.before.sha256:
        before = journal.backup(effect.before.sha256)
    else:
        before = None

    if before is None and effect.before.sha256:
        return RunDiff(effect.path, "", "its earlier content was not stored, or is damaged", since)

    from mendgraph.graph.runs.run_result import file_diff

    diff = file_diff(effect.path, before, now.data if isinstance(now, FileContent) else None)
    if diff is None:
        return RunDiff(effect.path, "", "it is not a text file", since)

    return RunDiff(effect.path, diff, "" if diff else "only its line endings differ, or the file is empty", since)


# --- Its checkpoints


def small_history(saver: "BaseCheckpointSaver[Any]", run_id: str, namespace: str = "") -> "Iterator[StateSnapshot]":
    """Yield the checkpoints of a run or of its child `namespace`, newest first, without the channels that grow.

    A conversation is rebuilt from many checkpoints; doing that for each checkpoint of a long run takes minutes.

    Raises:
        StoreError: one cannot be read.
    """
    return machine_to_read(saver).get_state_history(thread_config(run_id, namespace))


def machine_to_read(saver: "BaseCheckpointSaver[Any]", state: Any = None) -> "CompiledStateGraph[Any, Any, Any, Any]":
    """Return a machine with our nodes and the channels of `state`, by default the small ones; it is never run."""
    from langchain_core.runnables import RunnablePassthrough
    from langgraph.graph import StateGraph

    from mendgraph.graph.machine.serializer import refuse_pruned_histories
    from mendgraph.graph.machine.state import SmallState

    builder = StateGraph(state or SmallState)
    for node in routes.NODES:
        builder.add_node(node, RunnablePassthrough())

    builder.add_edge(routes.TRANSITIONS[0].source, routes.TRANSITIONS[0].target)
    return builder.compile(checkpointer=refuse_pruned_histories(saver))


def thread_config(run_id: str, namespace: str = "") -> "RunnableConfig":
    """Return LangGraph's config of a run, or of its child with this namespace."""
    return {"configurable": {"thread_id": run_id, **({"checkpoint_ns": namespace} if namespace else {})}}


def read_steps(history: "Iterable[StateSnapshot]", changed: Mapping[int, tuple[str, ...]]) -> tuple[RunStep, ...]:
    """Return the steps in order. `history` is newest first; `changed` has the changed files of each step."""
    steps_by_number: dict[int, RunStep] = {}
    turn = 0

    for snapshot in reversed([*history]):
        values = snapshot.values
        number = values.get("step", 0)
        step = steps_by_number.get(number) or RunStep(number, StepKind.START, max(1, turn))

        if snapshot.next == ("begin_turn",):
            turn += 1
        elif snapshot.next == CALLING:
            steps_by_number[number] = replace(step, can_fork=True)
        elif snapshot.next == ("heal",):
            steps_by_number[number] = replace(step, kind=StepKind.UNUSABLE, calls=())
        elif snapshot.next == ("guard",) and not values.get("stop"):  # otherwise a person is asked about a limit
            steps_by_number[number] = replace(step, kind=StepKind.CALLS, calls=tuple(values["items"]))
        elif snapshot.next == ("FINISHED",) and values["reading"] is Reading.ANSWER:
            steps_by_number[number] = replace(step, kind=StepKind.ANSWER, calls=())

    for number in changed:
        steps_by_number.setdefault(number, RunStep(number, StepKind.UNKNOWN))

    return tuple(
        replace(steps_by_number[number], changed=changed.get(number, ())) for number in sorted(steps_by_number)
    )


def call_after(history: "Iterable[StateSnapshot]", step: int) -> "StateSnapshot | ToolError":
    """Return the newest checkpoint after a step before a model call; NOT_FOUND names the steps that have one."""
    due = [
        (snapshot.values.get("step", 0), snapshot)
        for snapshot in history
        if snapshot.next == CALLING and snapshot.values.get("pending_call") is None
    ]
    snapshot_at = next((snapshot for number, snapshot in due if number == step), None)

    if snapshot_at is not None:
        return snapshot_at

    step_names = tuple(map(str, sorted({number for number, _ in due})))
    where = "it has no checkpoint before a model call"
    if step_names:
        where = f"it can be after {'one of the steps' if step_names[1:] else 'step'} {', '.join(step_names)}"

    message = f"The run cannot be forked after step {step}: {where}."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=step_names)
