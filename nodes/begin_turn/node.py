"""In: the messages as they came. Out: a turn at its start, or why the request cannot be worked on.

Looks at files through what it is given, and changes none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from nodes.begin_turn.history import CutOffState, close_step, cut_off_items, scrubbed
from nodes.begin_turn.named_files import Ahead, preload
from nodes.begin_turn.noted_files import find_notes
from nodes.language.history import close_dangling_calls, is_request
from nodes.language.media import media_problem, without_media
from nodes.language.project_notes import ProjectNotes
from nodes.records import (
    CallError,
    CallResult,
    JsonMap,
    LoopRecord,
    Plan,
    Profile,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolSpec,
)

Update = dict[str, Any]

FRESH_TURN: Mapping[str, Any] = MappingProxyType(
    {
        "preload": None,
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
"""The channels that last as long as a turn, at their start; `changes`, to which nodes add, is replaced besides."""


class BeginTurnState(CutOffState, total=False):
    """What the node reads."""

    messages: list[AnyMessage]
    plan: Plan
    notes: tuple[ProjectNotes, ...]


class Files(Protocol):
    """The workspace as far as a turn looks at it before the model is asked."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file, which a model may read."""

    def size_of(self, path: str) -> int:
        """Its bytes."""

    def readable(self) -> Iterable[tuple[str, int]]:
        """All files with their sizes in bytes."""

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """The first bytes of a file; None where there is none, or why it is not read."""


class Made(TypedDict):
    """What the calls of a cut-off step came to: results by their places, and the hashes of files read or written."""

    results: Mapping[int, CallResult]
    files_read: Mapping[str, str]


@dataclass(frozen=True)
class TurnResources:
    """What a turn begins with.

    `problem` is what is wrong with the run's context; it ends the run here, as a missing request does, and then there
    need be no `files`. `replace` marks what takes a channel's place, instead of adding to it. `refused_media` says what
    a message holds that the model does not take; `calls_made` what became of the calls of a step that was cut off.
    `tell` gives an event to who listens.
    """

    profile: Profile
    problem: str | None
    replace: Callable[[Any], Any]
    scrub: Callable[[str], str]
    files: Files | None
    root: str = ""
    model_name: Callable[[], str] = str
    refused_media: Callable[[AnyMessage], list[str]] = lambda _: []
    calls_made: Callable[[list[ToolCall | CallError]], Made] = lambda _: Made(results={}, files_read={})
    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    read_ahead: bool = False
    checked: bool = False
    most_notes: int = 0
    tell: Callable[[str, JsonMap], None] = lambda _name, _payload: None


def begin_turn(state: BeginTurnState, using: TurnResources) -> Update:
    """Forget the last turn's work, close what it left open, and prepare what is done before the model is asked.

    A step that was cut off enters the history; a person's words lose their secrets.
    """
    given = state.get("messages") or []
    problem, messages = (using.problem, given) if using.problem else _without_refused_media(given, using)
    messages = scrubbed(messages, using.scrub) or messages
    items, made = [] if using.problem else cut_off_items(state), Made(results={}, files_read={})
    if items:
        made = using.calls_made(items) if state.get("verdicts") else made
        messages = close_step(messages, state, made["results"], using.specs, using.root)
    update: Update = {**FRESH_TURN, "changes": using.replace([]), "plan": state.get("plan") or Plan()}
    # The empty map adds nothing; snapshots of a channel are taken where it is written.
    update |= {"profile": using.profile, "files_read": dict(made["files_read"])}
    if not messages or not is_request(messages[-1]) or not messages[-1].text.strip():
        problem = problem or "There is no request: the last message has to be a person's, with text in it."
    repaired = None if problem else close_dangling_calls(messages)
    if repaired is not None or messages is not given:
        update["messages"] = using.replace(messages if repaired is None else repaired)
    if problem or using.files is None:
        return {**update, "stop": StopCause(reason=StopReason.INVALID_REQUEST, message=str(problem))}
    ahead = Ahead(files=using.read_ahead, checked=using.checked, size_of=using.files.size_of)
    request = messages[-1].text
    update["preload"] = preload(request, using.profile, ahead, using.files.exists, using.files.readable)
    return update | _notes(state, request.replace(f"{using.root}/", ""), using.files, using)


def _without_refused_media(
    messages: Sequence[AnyMessage], using: TurnResources
) -> tuple[str | None, Sequence[AnyMessage]]:
    """Why the request cannot be shown to its model, None where it can; and the messages without such content.

    Else one image would keep a thread from ever going on.
    """
    refused = [using.refused_media(each) for each in messages]
    if not any(refused):
        return None, messages
    problem = media_problem(refused[-1], using.model_name())
    return problem or None, [without_media(each, kinds) for each, kinds in zip(messages, refused, strict=True)]


def _notes(state: BeginTurnState, request: str, files: Files, using: TurnResources) -> Update:
    """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
    found = find_notes(request, files.head, using.scrub, using.most_notes)
    for path, reason in found.unread:
        using.tell("notes.unread", {"path": path, "reason": reason})
    if found.notes == tuple(state.get("notes") or ()):
        return {}
    if found.notes:
        told = [{"path": each.path, "lines": each.lines, "cut": each.cut} for each in found.notes]
        using.tell("notes.read", {"files": told})
    return {"notes": found.notes}
