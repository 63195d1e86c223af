"""The steps of a run, read from its checkpoints: what a person chooses from to undo or to fork. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from nodes.records import CallError, Reading, ToolCall, ToolError, ToolErrorCode

CALLING = ("call_model",)
"""What is next where a model call is due: everything before it is settled, so a run can begin there."""


class StepKind(StrEnum):
    """What a step is: where the run starts, a reply with calls, one with the answer, or one that could not be used.

    UNKNOWN: no checkpoint tells of it, but it has changed files.
    """

    START, CALLS, ANSWER = "start", "calls", "answer"
    UNUSABLE, UNKNOWN = "unusable", "unknown"


@dataclass(frozen=True)
class RunStep:
    """One reply of the model and what came of it; `number` counts from 1 in a run, and 0 is its start.

    `turn` counts the requests that came since the run began, or since it was forked from another one, from 1; it is 0
    where that is unknown. `changed` are the files that the step changed and nobody has taken back. `can_fork`: a new
    run can begin after it.
    """

    number: int
    kind: StepKind
    turn: int = 0
    calls: tuple[ToolCall | CallError, ...] = ()
    changed: tuple[str, ...] = ()
    can_fork: bool = False


class Snapshot(Protocol):
    """A checkpoint as LangGraph shows it."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The state."""

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that run next."""


Found = TypeVar("Found", bound=Snapshot)


def read_steps(history: Iterable[Snapshot], changed: Mapping[int, tuple[str, ...]]) -> tuple[RunStep, ...]:
    """The steps in order. `history` is newest first, as LangGraph gives it; `changed` are files by their step."""
    found: dict[int, RunStep] = {}
    turn = 0
    for snapshot in reversed([*history]):
        values = snapshot.values
        number = values.get("step", 0)
        step = found.get(number) or RunStep(number, StepKind.START, max(1, turn))
        if snapshot.next == ("begin_turn",):
            turn += 1
        elif snapshot.next == CALLING:
            found[number] = replace(step, can_fork=True)
        elif snapshot.next == ("heal",):
            found[number] = replace(step, kind=StepKind.UNUSABLE, calls=())
        elif snapshot.next == ("guard",):
            found[number] = replace(step, kind=StepKind.CALLS, calls=tuple(values["items"]))
        elif snapshot.next == ("FINISHED",) and values["reading"] is Reading.ANSWER:
            found[number] = replace(step, kind=StepKind.ANSWER, calls=())
    for number in changed:
        found.setdefault(number, RunStep(number, StepKind.UNKNOWN))
    return tuple(replace(found[number], changed=changed.get(number, ())) for number in sorted(found))


def call_after(history: Iterable[Found], step: int) -> Found | ToolError:
    """The newest checkpoint after a step at which a model call was due; NOT_FOUND names the steps that have one."""
    steps: set[int] = set()
    for snapshot in history:
        if snapshot.next == CALLING:
            number = snapshot.values.get("step", 0)
            if number == step:
                return snapshot
            steps.add(number)
    known = tuple(map(str, sorted(steps)))
    where = "no checkpoint of it is left at which a model call was due"
    if known:
        where = f"it can be after {'one of the steps' if known[1:] else 'step'} {', '.join(known)}"
    message = f"The run cannot be forked after step {step}: {where}."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=known)
