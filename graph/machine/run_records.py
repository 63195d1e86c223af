"""The record of a run beside its checkpoints: its requests, its context and how it ended. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import OutcomeKind, StopReason, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.store.database import StoreError

Durability = Literal["sync", "async", "exit"]
"""When a step is written to the disk: before the next one begins, while the next one runs, or when the turn ends."""

UNDONE: Final = "undone"
"""The reason of an unfinished run whose changes a person has undone."""

REQUEST_ID: Final = "request-"
"""Prefix of the ids of requests that the store knows; the number of the turn follows, the same when sent again."""

_AFRESH: Final = "Your changes of the files were taken back since, so read them again. The task is: "
CARRY_OUT: Final = "Carry out the plan."
"""The request after a turn in mode plan."""

_GO_ON: Final = "Go on with this task, which is not finished yet: "

LONGEST_TEXT: Final = 2_000
"""Characters of a run's first request and last messages in its record; the history has all of them."""


@dataclass(frozen=True)
class RunRecord:
    """One thread of a workspace. Times are UTC in ISO format, `turns` counts its requests.

    `task` is the beginning of the first request, `request` the last one. `state` is "working" from the record of a turn
    to its end, so also for a run that was cut off; the five fields after it say how the last turn ended. `parent` is
    the run that this one was forked from, after its step `forked_at`.
    """

    run_id: str
    task: str
    created: str
    updated: str
    turns: int
    request: str
    state: Literal["working", "ended"]
    kind: str
    reason: str
    message: str
    answer: str
    changed: tuple[str, ...]
    stored_context: str
    durability: Durability
    parent: str
    forked_at: int | None

    @property
    def resumable(self) -> bool:
        """Whether it can be resumed: it was cut off, or has ended without an answer."""
        return self.state == "working" or self.kind != OutcomeKind.FINISHED

    @cached_property
    def context(self) -> AgentContext:
        """The context of its last turn.

        Raises StoreError: another version of mendgraph wrote it, and this one does not allow it.
        """
        try:
            return AgentContext.model_validate_json(self.stored_context)
        except ValueError as error:
            line = " ".join(str(error).split())
            message = (
                f"The settings of the run {self.run_id} cannot be read ({line}): another version of mendgraph wrote"
                " them. Continue with that version, or start a new run."
            )
            raise StoreError(message) from error


def run_record(row: tuple[Any, ...]) -> RunRecord:
    """Return the record of a row of the table `runs`, whose columns are in the order of the fields.

    Raises StoreError: the row is damaged.
    """
    values = dict(zip(_COLUMNS, row, strict=True))
    try:
        changed = tuple(map(str, json.loads(values["changed"])))
        _ = [datetime.fromisoformat(values[name]) for name in ("created", "updated")]
        return RunRecord(**{**values, "changed": changed, "kind": values["kind"] and OutcomeKind(values["kind"]).value})
    except (ValueError, TypeError, RecursionError) as error:
        message = f"The record of the run {row[0]} is damaged ({str(error)[:99]}): restore a backup."
        raise StoreError(message) from error


_COLUMNS: Final = tuple(field.name for field in fields(RunRecord))


def resuming_request(request: str, *, undone: bool = False) -> str:
    """Return the request of a turn that resumes an unfinished task."""
    task = request.removeprefix(_AFRESH).removeprefix(_GO_ON)
    return f"{_AFRESH if undone else _GO_ON}{task}"


def is_resuming(request: str) -> bool:
    """Return whether this request resumes a task whose changes are kept: there may be nothing left to change."""
    return request.startswith(_GO_ON)


def bounded(text: str) -> str:
    """Return the text, cut to `LONGEST_TEXT`."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - 3]}..."


def find_run(prefix: str, records: Iterable[RunRecord]) -> RunRecord | ToolError:
    """Return the run with this id, or the only one with this prefix; an error suggests candidates."""
    if not prefix:
        return invalid("Name a run by its id or first characters. `mendgraph runs` lists them.")

    records_by_id = {record.run_id: record for record in records}
    if prefix in records_by_id:
        return records_by_id[prefix]

    meant = [run_id for run_id in records_by_id if run_id.startswith(prefix)]
    if len(meant) == 1:
        return records_by_id[meant[0]]
    if meant:
        return invalid(f"{len(meant)} runs of this workspace start with {prefix!r}: use more of the id.", *meant[:3])

    message = f"There is no run {prefix!r} in this workspace: `mendgraph runs` lists the existing ones."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=closest_names(prefix, records_by_id))


def old_runs(records: Sequence[RunRecord], keep: int, oldest: datetime, *, unfinished: bool) -> list[str]:
    """Return the runs after the newest `keep` that last worked before `oldest`, resumable ones only if `unfinished`.

    `records` are newest first.
    """
    return [
        record.run_id
        for record in records[keep:]
        if datetime.fromisoformat(record.updated) <= oldest and (unfinished or not record.resumable)
    ]


def runs_to_prune(
    records: Sequence[RunRecord], sizes: Mapping[str, int], context: AgentContext, now: datetime
) -> list[str]:
    """Return the runs to remove by the limits of `context`; `records` are newest first, `sizes` their bytes.

    A run that was stopped or failed is kept for at least 30 days, and removed by its age alone. A run that works, waits
    for a person or was cut off is kept, and so is the newest.
    """
    removed: list[str] = []

    if context.keep_days is not None:
        keep_for = timedelta(days=context.keep_days)
        ended = [record for record in records[1:] if record.state == "ended" and record.kind]
        removed += old_runs(ended, 0, now - max(keep_for, timedelta(days=30)), unfinished=True)
        removed += old_runs(records, 1, now - keep_for, unfinished=False)

    if context.keep_runs is not None:
        removed += old_runs(records, context.keep_runs, now, unfinished=False)

    remaining = sum(size for run, size in sizes.items() if run not in removed)

    for run in reversed(old_runs(records, 1, now, unfinished=False)):
        if context.keep_mb is not None and remaining > context.keep_mb * 1_000_000 and run not in removed:
            removed.append(run)
            remaining -= sizes.get(run, 0)

    return [*dict.fromkeys(removed)]


# --- Resuming

CALLING = ("call_model",)
"""`next` of a checkpoint before a model call: everything before is settled, so a run can begin there."""

TO_THE_CALL = "begin_turn"
"""Passed as `as_node` to `update_state`: the router of this node leads to `call_model`."""

RETRIED = frozenset({StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED})
"""Reasons that do not concern the work: a resume makes the model call that did not happen."""


class ResumePlan(StrEnum):
    """How a run is resumed.

    SEND_AGAIN: its request never arrived. GO_ON: it was cut off in a turn. GO_BACK: it was stopped before a model call,
    which is made. NEW_TURN: it ended early for another reason. CARRY_OUT: it has finished with a plan.
    NOTHING: it has finished.
    """

    SEND_AGAIN = "send_again"
    GO_ON = "go_on"
    GO_BACK = "go_back"
    NEW_TURN = "new_turn"
    CARRY_OUT = "carry_out"
    NOTHING = "nothing"


def resume_plan(values: Mapping[str, Any], request_id: str, *, undone: bool = False, anew: bool = False) -> ResumePlan:
    """Return how to resume from the newest state; `request_id` is the id of the turn's request, "" if unknown.

    If the changes of the turn were `undone`, its history is outdated: a new turn says so. A turn keeps its context, so
    another context (`anew`) needs a new turn; a finished one has none, unless it was a plan to carry out.
    """
    messages = values.get("messages") or []
    if request_id and all(message.id != request_id for message in messages):
        return ResumePlan.SEND_AGAIN

    outcome = values.get("outcome")
    if not messages or messages[-1].type != "ai":
        outcome = None  # that of the turn before

    if outcome is not None and outcome.kind is OutcomeKind.FINISHED:
        return ResumePlan.CARRY_OUT if anew and values["context"].mode == "plan" else ResumePlan.NOTHING
    if undone or anew:
        return ResumePlan.NEW_TURN
    if outcome is None:
        return ResumePlan.GO_ON
    if outcome.reason in RETRIED:
        return ResumePlan.GO_BACK

    return ResumePlan.NEW_TURN


def requests_of(values: Mapping[str, Any]) -> list[Any]:
    """Return the requests, oldest first."""
    from mendgraph.nodes.language.history import is_request

    return [message for message in values.get("messages", ()) if is_request(message)]
