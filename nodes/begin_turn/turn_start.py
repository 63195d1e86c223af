"""What a turn begins with: its resources, the channels that are emptied, and the history that its model is shown.

That history is without secrets and without content that the model does not take, and holds what the calls of a step
came to that was cut off before the new request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import HANDOFF_MESSAGE_NAME, close_dangling_calls, is_request, settle_exchange
from mendgraph.nodes.language.media import media_problem, without_media
from mendgraph.nodes.language.project_notes import ProjectNotes, SkillFolder, find_notes, find_skills, remembered
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
    ToolCall,
    ToolErrorCode,
    ToolResult,
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
"""The channels that last as long as a turn, at their start; `changes`, to which nodes add, is replaced besides."""


Made = tuple[Mapping[int, CallResult], Mapping[str, str]]
"""What the calls of a cut-off step came to: results by their places, and the hashes of files read or written."""


@dataclass(frozen=True)
class TurnResources:
    """What a turn begins with.

    `problem` is what is wrong with the run's context; it ends the run here, as a missing request does, and then there
    need be no `files`. `replace` marks what takes a channel's place, instead of adding to it. `refused_media` says what
    a message holds that the model does not take; `calls_made` what became of the calls of a step that was cut off.
    `preload` makes the reply that reads files before the model is called, by the request and the last changes.
    `most_notes` are the bytes that the model is told of the project's notes, and half of it those of skills. `tell`
    gives an event to who listens.
    """

    profile: Profile
    problem: str | None
    replace: Callable[[Any], Any]
    scrub: Callable[[str], str]
    files: Files | None
    root: str = ""
    model_name: Callable[[], str] = str
    refused_media: Callable[[AnyMessage], list[str]] = lambda _: []
    calls_made: Callable[[list[ToolCall | CallError]], Made] = lambda _: ({}, {})
    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    preload: Callable[[str, Files, Sequence[str]], ModelReply | None] | None = None
    most_notes: int = 0
    skills: Iterable[SkillFolder] = ()
    remembered: Sequence[str] = ()
    tell: Callable[[str, JsonMap], None] = lambda _name, _payload: None


HANDED_ON = "This is handed to you now: work on the person's last request, with what was said since."
NO_REQUEST = "There is no request: send a person's message, with text in it."
NOT_RUN = "The run was cut off before this call, which has not been made."


class BeginTurnState(TypedDict, total=False):
    """What the node reads. The `items` are empty once they are settled, the `outcome` None until a turn ends."""

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


def fresh_update(state: BeginTurnState, using: TurnResources, files_read: Mapping[str, str]) -> dict[str, Any]:
    """The update by which a turn starts without the work of the last one.

    `files_read` is written even where it is empty: snapshots of a channel are taken where it is written.
    """
    update = {
        **FRESH_TURN,
        "changes": using.replace([]),
        "plan": state.get("plan") or Plan(),
        "profile": using.profile,
        "files_read": dict(files_read),
    }
    if state.get("structured_response") is not None:
        update["structured_response"] = None

    return update


def files_of_last_turn(state: BeginTurnState) -> tuple[str, ...]:
    """The files that the last turn has changed or restored."""
    outcome = state.get("outcome")
    if outcome is None:
        return ()

    return (*outcome.changed_files, *outcome.restored)


def cut_off_items(state: BeginTurnState) -> list[ToolCall | CallError]:
    """The calls of the last turn that are in no history yet, in the order of the reply."""
    waiting = state.get("outcome") is None and state.get("reading") is Reading.CALLS
    return state.get("items", []) if waiting else []


def close_step(
    messages: Sequence[AnyMessage], state: BeginTurnState, using: TurnResources
) -> tuple[Sequence[AnyMessage], Mapping[str, str]]:
    """The history with the cut-off step before the new request, and the hashes of files that its calls read or wrote.

    Calls that were not made get a typed `cancelled` result.
    """
    items = cut_off_items(state)
    if not items:
        return messages, {}

    call_results: Mapping[int, CallResult] = {}
    files_read: Mapping[str, str] = {}
    if state.get("verdicts"):
        call_results, files_read = using.calls_made(items)

    settled = state.get("results", [])
    results = []

    for place, item in enumerate(items):
        result = settled[place] if place < len(settled) else call_results.get(place)
        if result is None:
            not_run = ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN)
            result = CallResult(call_id=item.call_id, tool=item.tool, result=not_run)

        results.append(result)

    reply = state.get("reply") or ModelReply()
    profile = state.get("profile") or Profile()
    before = place_of_request(messages)
    exchange = settle_exchange(reply, items, results, profile.protocol, using.specs, using.root)
    return [*messages[:before], *exchange, *messages[before:]], files_read


def place_of_request(messages: Sequence[AnyMessage]) -> int:
    """The place of the last person's message, which is the request; -1 where there is none."""
    for place in range(len(messages) - 1, -1, -1):
        if is_request(messages[place]):
            return place

    return -1


def is_answered(messages: Sequence[AnyMessage], outcome: Outcome | None) -> bool:
    """Whether nothing was said since the thread's last turn: its own last words are the last message."""
    if outcome is None or not messages or not isinstance(messages[-1], AIMessage):
        return False

    request = messages[-1].text
    return request == (outcome.answer or "Done.") or request.startswith(f"{outcome.kind.value} (")


def handed_on(messages: Sequence[AnyMessage]) -> list[AnyMessage] | None:
    """The history as a model can go on with it; None where it is that already.

    Each call has its result. Where others spoke last, a message says that it is our model's turn, and ends their part.
    """
    repaired = close_dangling_calls(messages)
    if is_request(messages[-1]):
        return repaired

    return [*(repaired or messages), HumanMessage(HANDED_ON, name=HANDOFF_MESSAGE_NAME)]


def without_refused_media(
    messages: Sequence[AnyMessage], using: TurnResources
) -> tuple[str | None, Sequence[AnyMessage]]:
    """Why the request cannot be shown to its model, None where it can; and the messages without such content.

    Else one image would keep a thread from ever going on.
    """
    refused = [using.refused_media(message) for message in messages]
    if not any(refused):
        return None, messages

    problem = media_problem(refused[place_of_request(messages)], using.model_name())
    return problem or None, [without_media(message, kinds) for message, kinds in zip(messages, refused, strict=True)]


def scrubbed(messages: Sequence[AnyMessage], text: Callable[[str], str]) -> list[AnyMessage] | None:
    """All messages with `text` applied to what people said, half characters replaced; None where nothing changes.

    What models and tools said was scrubbed when it came in.
    """
    clean = [_scrubbed(message, text) if isinstance(message, HumanMessage) else message for message in messages]
    if any(new is not old for new, old in zip(clean, messages, strict=True)):
        return clean

    return None


HIDDEN_NAME: Final = "redacted"
"""Stands for the name of a message that holds a secret: endpoints allow no spaces in one."""

_WORDS: Final = frozenset({"text", "filename", "title"})
"""What is written in words in a part of a message; the other values are data and identifiers."""


def _scrubbed(message: HumanMessage, text: Callable[[str], str]) -> HumanMessage:
    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return text(storable(part))

        words = {key: clean(part[key]) for key in _WORDS & part.keys() if isinstance(part[key], str)}
        if isinstance(part.get("file"), dict):  # OpenAI's form of a file
            words["file"] = clean(part["file"])

        return {**part, **words}

    content = message.content
    name = message.name

    if isinstance(content, str):
        content = clean(content)
    else:
        content = [clean(part) for part in content]

    if name and clean(name) != name:
        name = HIDDEN_NAME

    if (content, name) == (message.content, message.name):
        return message

    return message.model_copy(update={"content": content, "name": name})


def read_notes(last: Sequence[ProjectNotes], request: str, files: Files, using: TurnResources) -> dict[str, Any]:
    """The update with the project's notes as this turn begins; empty where they are those of the `last` turn."""
    notes, unread = find_notes(request, files.head, using.scrub, using.most_notes)
    skills, left_out = find_skills(using.skills, using.scrub, using.most_notes // 2)
    notes = (*notes, *remembered([using.scrub(note) for note in using.remembered]), *skills)

    for path, reason in (*unread, *left_out):
        using.tell("notes.unread", {"path": path, "reason": reason})

    if notes == tuple(last):
        return {}

    if notes:
        rows = [{"path": note.path, "lines": len(note.text.splitlines()), "cut": note.cut} for note in notes]
        using.tell("notes.read", {"files": rows})

    return {"notes": notes}
