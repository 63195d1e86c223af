"""The runs of a workspace after they were begun: list them, look at their steps, go on with them, forget them.

Each function takes a run by its id or the beginning of it. It gives a `ToolError` that names the remedy where there is
no such run, where another run works in the workspace, or where the store cannot be used; it raises nothing of the kind.
`graph.time_travel` takes back what they did.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from graph.events import Asked
from graph.open_store import with_store, with_store_alone
from graph.run_records import old_runs
from graph.run_steps import RunStep, read_steps
from graph.step_history import step_history
from graph.store import Pruned, RunRecord, Store
from nodes.execute_tools.environment.database import StoreError, UnreadableValueError
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.run_lock import lock_holder
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.records import OutcomeKind, ToolError, ToolErrorCode

if TYPE_CHECKING:  # who only looks does not wait for what a run needs
    from graph.run import RunResult, Session


class RunState(StrEnum):
    """Where a run stands. The first four can go on: at work, waiting for a person, cut off, or forked and not begun.

    Of a run that is DAMAGED what is stored cannot be read; others are not concerned.
    """

    WORKING, ASKS, CUT_OFF, FORKED = "working", "asks", "cut off", "forked"
    FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
    DAMAGED = "damaged"


_MOST_DAYS = 36_500
_ENDS: Mapping[str, RunState] = {
    OutcomeKind.FINISHED: RunState.FINISHED,
    OutcomeKind.BUDGET_STOP: RunState.STOPPED,
    OutcomeKind.SYSTEM_ERROR: RunState.FAILED,
}


@dataclass(frozen=True)
class ListedRun(RunRecord):
    """What is written down of a run, and where it stands now.

    `files` are those that it has changed in all its turns, and that nobody has taken back.
    """

    standing: RunState
    files: tuple[str, ...]


def list_runs(workspace: str = ".") -> tuple[ListedRun, ...] | ToolError:
    """All runs of the workspace; the one that was at work last comes first."""
    return with_store(workspace, lambda store: _listed(store, store.runs()))


def get_run(run: str = "", workspace: str = ".") -> ListedRun | ToolError:
    """One run; without a name the newest one that can go on."""

    def get(store: Store) -> ListedRun | ToolError:
        found = _found(store, run)
        return found if isinstance(found, ToolError) else _listed(store, [found])[0]

    return with_store(workspace, get)


def steps_of(run: str, workspace: str = ".") -> tuple[RunStep, ...] | ToolError:
    """The steps of a run: what it did in each, and after which of them it can be forked."""

    def steps(store: Store) -> tuple[RunStep, ...] | ToolError:
        found = store.run(run)
        if isinstance(found, ToolError):
            return found
        by_step: dict[int, dict[str, None]] = {}
        for change in reversed(Journal(store.folder).changes_of(found.run_id)):
            by_step.setdefault(change.step, {}).update(dict.fromkeys(effect.path for effect in change.effects))
        changed = {step: tuple(paths) for step, paths in by_step.items()}
        return read_steps(step_history(store.saver, found.run_id), changed)

    return with_store(workspace, steps)


def resume_run(run: str = "", workspace: str = ".", **options: Any) -> "RunResult | ToolError":
    """Go on with a run that was cut off or stopped, by default the newest such one, with the context that it had.

    A run that has finished gives its result once more; a busy workspace is the outcome of a run, as for any.
    `options` are those of `Session` without the context and the thread: a model, tools, rules. A call that needs a
    person's approval is refused (`approval_required`): ask for approvals through `open_run`.
    """
    session = open_run(run, workspace, **options)
    if isinstance(session, ToolError):
        return session
    with session:
        events = list(session.resume())
        while isinstance(events[-1], Asked):
            events = list(session.answer("nobody"))
        return session.result()


def open_run(run: str = "", workspace: str = ".", **options: Any) -> "Session | ToolError":
    """A session of a run that is known, to `resume` it or to send it the next request; otherwise as `resume_run`."""
    from graph.run import Session

    found = get_run(run, workspace)
    if isinstance(found, ToolError):
        return found
    context = found.context.model_copy(update={"workspace": str(check_workspace(workspace))})
    return Session(context, **{"thread_id": found.run_id, "durability": found.durability, **options})


def prune_runs(
    workspace: str = ".", *, keep: int | None = None, older_than_days: float | None = None, unfinished: bool = False
) -> Pruned | ToolError:
    """Forget runs with all that is kept of them, but not the newest `keep` ones, nor any that is not `older_than_days`.

    With neither limit nothing is forgotten. A run that can go on is kept, unless `unfinished` says otherwise. What was
    forgotten cannot be undone any more: its files stay as they are.
    """
    if keep is not None and keep < 0:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"{keep} runs cannot be kept: give 0 or more.")
    if older_than_days is not None and not 0 <= older_than_days <= _MOST_DAYS:
        message = f"Runs cannot be {older_than_days:g} days old: give a number between 0 and {_MOST_DAYS}."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)

    def prune(store: Store, _: str) -> Pruned:
        limited = keep is not None or older_than_days is not None
        oldest = datetime.now(UTC) - timedelta(days=older_than_days or 0.0)
        doomed = old_runs(store.runs(), keep or 0, oldest, unfinished=unfinished) if limited else []
        freed = sum(map(store.delete, doomed))
        return Pruned(tuple(doomed), freed + store.shrink())

    return with_store_alone(workspace, "mendgraph runs prune", prune)


# --- One run


def _found(store: Store, run: str) -> RunRecord | ToolError:
    if run:
        return store.run(run)
    for record in store.runs():
        if record.resumable:
            return store.run(record.run_id)
    message = "No run of this workspace can go on: `mendgraph runs` lists those that have finished."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def _listed(store: Store, records: Iterable[RunRecord]) -> tuple[ListedRun, ...]:
    holder, journal = lock_holder(store.folder), Journal(store.folder)
    at_work = holder.run_id if holder else ""

    def listed(record: RunRecord) -> ListedRun:
        written = {each.name: getattr(record, each.name) for each in fields(RunRecord)}
        try:
            effects = [effect for change in journal.changes_of(record.run_id) for effect in change.effects]
        except UnreadableValueError as error:
            return ListedRun(**{**written, "damage": str(error)}, standing=RunState.DAMAGED, files=())
        files = sorted({effect.path for effect in effects})
        return ListedRun(**written, standing=_standing(store, record, at_work), files=tuple(files))

    return tuple(map(listed, records))


def _standing(store: Store, record: RunRecord, at_work: str) -> RunState:
    if record.damage:
        return RunState.DAMAGED
    if record.run_id == at_work:
        return RunState.WORKING
    if record.state == "ended" and record.kind:
        return _ENDS[record.kind]
    with suppress(StoreError):  # a state of another version: it cannot go on, and the list is there all the same
        newest = next(step_history(store.saver, record.run_id), None)
        if newest is not None and newest.interrupts:
            return RunState.ASKS
    return RunState.CUT_OFF if record.state == "working" else RunState.FORKED
