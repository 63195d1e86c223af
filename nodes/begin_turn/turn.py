"""What a turn begins with: its resources, the channels that are reset, and the project's notes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.project_notes import (
    AGENTS,
    ProjectNotes,
    SkillFolder,
    find_notes,
    find_skills,
    listed_notes,
    remembered,
)
from mendgraph.nodes.language.read_ahead import Files
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    JsonMap,
    LoopRecord,
    ModelReply,
    Outcome,
    Plan,
    Profile,
    Reading,
    StopCause,
    ToolCall,
    ToolSpec,
    Verdict,
)

FRESH_TURN: Mapping[str, Any] = MappingProxyType(
    {
        "preload": None,
        "pending_call": None,
        "reply": None,
        "reading": None,
        "items": [],
        "errors": [],
        "answer": None,
        "verdicts": [],
        "results": [],
        "corrections": [],
        "healing_attempts": [],
        "loop": LoopRecord(),
        "stop": None,
        "outcome": None,
    }
)
"""The channels that last as long as a turn, at its start; `changes`, to which nodes add, is replaced as well."""

CallsMade = tuple[Mapping[int, CallResult], Mapping[str, str]]
"""The results of the calls of a cut-off step by their places, and the hashes of files that they read or wrote."""


@dataclass(frozen=True)
class TurnResources:
    """What a turn begins with.

    `problem` is why the run cannot be made with its context; it ends the run, and then `files` may be None. `replace`
    marks a value that replaces a channel instead of adding to it. `refused_media` returns the kinds of content of a
    message that the model does not take. `preload` returns a reply that reads files before the model is called, from
    the request and the files of the last turn. `most_notes` is the number of bytes of the project's notes; skills get
    half of it, and so do `agents`, the descriptions of agents by their names. `tell` sends a trace event.
    """

    profile: Profile
    problem: StopCause | None
    replace: Callable[[Any], Any]
    scrub: Callable[[str], str]
    files: Files | None
    root: str = ""
    model_name: Callable[[], str] = str
    refused_media: Callable[[AnyMessage], list[str]] = lambda _: []
    calls_made: Callable[[list[ToolCall | CallError]], CallsMade] = lambda _: ({}, {})
    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    preload: Callable[[str, Files, Sequence[str]], ModelReply | None] | None = None
    most_notes: int = 0
    skills: Iterable[SkillFolder] = ()
    remembered: Sequence[str] = ()
    agents: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[str, JsonMap], None] = lambda _name, _payload: None


class BeginTurnState(TypedDict, total=False):
    """What the node reads. The `items` are empty once they are settled, the `outcome` is None until a turn ends."""

    messages: list[AnyMessage]
    plan: Plan
    notes: tuple[ProjectNotes, ...]
    outcome: Outcome | None
    structured_response: Any
    reading: Reading | None
    reply: ModelReply | None
    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    results: list[CallResult]
    profile: Profile


def fresh_update(state: BeginTurnState, resources: TurnResources, files_read: Mapping[str, str]) -> dict[str, Any]:
    """Return the update that removes the work of the last turn.

    `files_read` is written even if it is empty: a channel's snapshots are taken where it is written.
    """
    update = {
        **FRESH_TURN,
        "changes": resources.replace([]),
        "plan": state.get("plan") or Plan(),
        "profile": resources.profile,
        "files_read": dict(files_read),
    }
    if state.get("structured_response") is not None:
        update["structured_response"] = None

    return update


def files_of_last_turn(state: BeginTurnState) -> tuple[str, ...]:
    """Return the files that the last turn changed or restored."""
    outcome = state.get("outcome")
    if outcome is None:
        return ()
    return (*outcome.changed_files, *outcome.restored)


def read_notes(
    last: Sequence[ProjectNotes], request: str, files: Files, resources: TurnResources
) -> dict[str, tuple[ProjectNotes, ...]]:
    """Return the update with the project's notes; empty if they are those of the last turn."""
    scrub = resources.scrub
    notes, unread = find_notes(request, files.head, scrub, resources.most_notes)
    skills, left_out = find_skills(resources.skills, scrub, resources.most_notes // 2)
    agents = [f"- {name}: {scrub(description)}" for name, description in resources.agents.items()]
    listed = listed_notes(AGENTS, agents, resources.most_notes // 2)
    notes = (*notes, *remembered([scrub(note) for note in resources.remembered]), *skills, *listed)

    for path, reason in (*unread, *left_out):
        resources.tell("notes.unread", {"path": path, "reason": reason})

    if notes == tuple(last):
        return {}

    if notes:
        rows = [{"path": note.path, "lines": len(note.text.splitlines()), "cut": note.cut} for note in notes]
        resources.tell("notes.read", {"files": rows})

    return {"notes": notes}
