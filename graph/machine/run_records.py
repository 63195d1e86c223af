"""What is written down of a run beside its checkpoints: what it was asked, with which context, how it ended. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import OutcomeKind, StopReason, ToolError, ToolErrorCode, invalid

Durability = Literal["sync", "async", "exit"]
"""When a step is on the disk: before the next one begins, while the next one runs, or when the turn ends."""

UNDONE: Final = "undone"
"""The reason of a run that was not finished when a person took back what it had changed."""

REQUEST_ID: Final = "request-"
"""How the ids of requests begin that the store knows of; the number of the turn follows, the same when sent again."""

_AFRESH: Final = "Your changes of the files were taken back since, so look at them anew. The task is: "
_GO_ON: Final = "Go on with this task, which is not finished yet: "

LONGEST_TEXT: Final = 2_000
"""Characters that are kept of a run's first request, and of what was said at its end; the history has all of it."""


@dataclass(frozen=True)
class RunRecord:
    """One thread of a workspace. Times are UTC in ISO format, `turns` counts its requests.

    `task` is the first request, `request` the last one, to the letter. `state` is "working" from the moment that a
    turn is written down until it has ended, so it is that of a run that was cut off as well; the five fields after it
    tell how the last turn ended. `parent` is the run that this one was forked from, after its step `forked_at`.
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
        """Whether it can go on: it was cut off, or has ended in another way than with its answer."""
        return self.state == "working" or self.kind != OutcomeKind.FINISHED

    @cached_property
    def context(self) -> AgentContext:
        """The context that its last turn began with.

        Raises StoreError: another version of mendgraph wrote it, and this one does not allow it.
        """
        try:
            return AgentContext.model_validate_json(self.stored_context)
        except ValueError as error:
            line = " ".join(str(error).split())
            message = (
                f"The settings of the run {self.run_id} cannot be read ({line}): another version of mendgraph wrote"
                " them. Go on with that version, or begin a new run."
            )
            raise StoreError(message) from error


def run_record(row: tuple[Any, ...]) -> RunRecord:
    """The record from a row of the table `runs`, whose columns are in the order of the fields.

    Raises StoreError: the row is damaged.
    """
    values = dict(zip(_COLUMNS, row, strict=True))
    try:
        changed = tuple(map(str, json.loads(values["changed"])))
        _ = [datetime.fromisoformat(values[name]) for name in ("created", "updated")]
        return RunRecord(**{**values, "changed": changed, "kind": values["kind"] and OutcomeKind(values["kind"]).value})
    except (ValueError, TypeError, RecursionError) as error:
        message = f"What is written down of the run {row[0]} is damaged ({str(error)[:99]}): put a backup in its place."
        raise StoreError(message) from error


_COLUMNS: Final = tuple(field.name for field in fields(RunRecord))


def resuming_request(request: str, *, undone: bool = False) -> str:
    """What the model is told in the turn that takes an unfinished task up again."""
    task = request.removeprefix(_AFRESH).removeprefix(_GO_ON)
    return f"{_AFRESH if undone else _GO_ON}{task}"


def is_resuming(request: str) -> bool:
    """Whether this is such a request of a task that is half done, so that there may be nothing left to change."""
    return request.startswith(_GO_ON)


def bounded(text: str) -> str:
    """The beginning of a text that is long."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - 3]}..."


def find_run(prefix: str, records: Iterable[RunRecord]) -> RunRecord | ToolError:
    """The run with this id, or the only one whose id begins so; an error names those that could be meant."""
    if not prefix:
        return invalid("No run is named: give its id, or the beginning of it. `mendgraph runs` lists them.")

    records_by_id = {record.run_id: record for record in records}
    if prefix in records_by_id:
        return records_by_id[prefix]

    meant = [run_id for run_id in records_by_id if run_id.startswith(prefix)]
    if len(meant) == 1:
        return records_by_id[meant[0]]
    if meant:
        return invalid(f"{len(meant)} runs of this workspace begin with {prefix!r}: give more of the id.", *meant[:3])

    message = f"There is no run {prefix!r} in this workspace: `mendgraph runs` lists those that there are."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=closest_names(prefix, records_by_id))


def old_runs(records: Sequence[RunRecord], keep: int, oldest: datetime, *, unfinished: bool) -> list[str]:
    """The runs after the newest `keep` that were last at work before `oldest`; those that can go on if `unfinished`.

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
    """The runs that `context` wants removed by themselves; `records` are newest first, `sizes` their bytes.

    One that was stopped or failed may be resumed for 30 days at least, and goes by its age alone. One that is at work,
    waits for a person or was cut off stays, and so does the newest.
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


# --- How a run that was begun goes on

CALLING = ("call_model",)
"""What is next where a model call is due: everything before it is settled, so a run can begin there."""

TO_THE_CALL = "begin_turn"
"""Passed as `as_node` to `update_state`: the router of this node leads to `call_model`."""

RETRIED = frozenset({StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED})
"""Reasons that say nothing of the work: the call that did not happen is made again, as if nothing had been."""


class ResumePlan(StrEnum):
    """What a resumed run does.

    SEND_AGAIN: its request never arrived. GO_ON: it was cut off in a turn. GO_BACK: it was stopped before a model call;
    make that call. NEW_TURN: it ended early for another reason. NOTHING: it has finished.
    """

    SEND_AGAIN, GO_ON, GO_BACK = "send_again", "go_on", "go_back"
    NEW_TURN, NOTHING = "new_turn", "nothing"


def resume_plan(values: Mapping[str, Any], request_id: str, *, undone: bool = False, anew: bool = False) -> ResumePlan:
    """How to go on from the newest state; `request_id` is the message that began the turn, "" where nobody knows it.

    Where what the turn changed was `undone` since, its history tells what is not so any more: a new turn says that. A
    turn keeps the context that it began with: who wants to go on with another one (`anew`) begins a new turn as well.
    """
    messages = values.get("messages") or []
    if request_id and all(message.id != request_id for message in messages):
        return ResumePlan.SEND_AGAIN

    outcome = values.get("outcome")
    if not messages or messages[-1].type != "ai":
        outcome = None  # that of the turn before

    if outcome is not None and outcome.kind is OutcomeKind.FINISHED:
        return ResumePlan.NOTHING
    if undone or anew:
        return ResumePlan.NEW_TURN
    if outcome is None:
        return ResumePlan.GO_ON
    if outcome.reason in RETRIED:
        return ResumePlan.GO_BACK

    return ResumePlan.NEW_TURN


def requests_of(values: Mapping[str, Any]) -> list[Any]:
    """The messages in which a person asked for something, oldest first."""
    from mendgraph.nodes.language.history import is_request

    return [message for message in values.get("messages", ()) if is_request(message)]
