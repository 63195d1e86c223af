"""What a turn begins with: which resources it has, which channels are emptied, what its model can be shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from mendgraph.nodes.begin_turn.noted_files import find_notes
from mendgraph.nodes.language.content_blocks import media_problem, without_media
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import CallError, CallResult, JsonMap, LoopRecord, Profile, ToolCall, ToolError, ToolSpec

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


def without_refused_media(
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


def read_notes(known: Sequence[ProjectNotes], request: str, files: Files, using: TurnResources) -> dict[str, Any]:
    """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
    found = find_notes(request, files.head, using.scrub, using.most_notes)
    for path, reason in found.unread:
        using.tell("notes.unread", {"path": path, "reason": reason})
    if found.notes == tuple(known):
        return {}
    if found.notes:
        told = [{"path": each.path, "lines": each.lines, "cut": each.cut} for each in found.notes]
        using.tell("notes.read", {"files": told})
    return {"notes": found.notes}
