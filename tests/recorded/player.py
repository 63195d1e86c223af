"""Plays a recorded run through `mendgraph.Session`: each turn by a session of its own, as by a new process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from mendgraph import (
    AgentContext,
    Asked,
    Compacted,
    Denied,
    Event,
    HealingBegan,
    LoopOverridden,
    Outcome,
    Rescued,
    RunResult,
    Session,
    StepDone,
)
from tests.recorded.cassette import MODEL
from tests.recorded.recorded_run import RESUME, RecordedRun, Turn
from tests.vocabulary import JsonMap

DEFAULTS: JsonMap = {"model": MODEL, "window_tokens": 8192, "evidence": False, "seed": 1}
"""The settings of each run: what a run with the embedded model has, without evidence, which needs a sandbox. The seed
makes recordings repeatable."""


@dataclass(frozen=True)
class PlayedTurn:
    """What a turn led to."""

    result: RunResult
    steps: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """How the turn ended."""
        return self.result.outcome


def play(run: RecordedRun, base_url: str, workspace: Path) -> list[PlayedTurn]:
    """Play all turns in the workspace, which holds the run's files."""
    thread_id = uuid4().hex
    played = []
    for turn in run.turns:
        settings = {**DEFAULTS, **run.settings, **turn.settings}
        context = AgentContext(workspace=workspace, base_url=base_url, **settings)
        with Session(context, thread_id=thread_id) as session:
            steps = tuple(step for event in _events(session, turn) for step in steps_of(event))
            played.append(PlayedTurn(session.result(), steps))
    return played


def _events(session: Session, turn: Turn) -> Iterator[Event]:
    events = session.resume() if turn.request == RESUME else session.stream(turn.request)
    while True:
        last: Event | None = None
        for last in events:
            yield last
        if not isinstance(last, Asked):
            return
        events = session.answer(turn.decision)


def steps_of(event: Event) -> list[str]:
    """An event in the words of the table; nothing for what the results of the step say as well."""
    match event:
        case StepDone(results):
            return [f"{result.tool}: {result.result.error.code if result.result.error else 'ok'}" for result in results]
        case Denied(tool, verdict):
            return [f"{tool} denied by {verdict.rule}"]
        case HealingBegan(_, errors):
            return [f"asked again: {', '.join(error.error_type.name.lower() for error in errors)}"]
        case Rescued(calls):
            return [f"repaired: {', '.join(call.tool for call in calls)}"]
        case Asked(request):
            return [f"approval requested: {', '.join(call['tool'] for call in request['calls'])}"]
        case LoopOverridden(overrides):
            return [f"overridden: {', '.join(override.tool for override in overrides)}"]
        case Compacted(_, kind):
            return [f"history {kind}"]
        case _:
            return []
