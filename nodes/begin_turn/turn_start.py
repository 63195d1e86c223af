"""What a turn begins with: its resources, the channels that are emptied, and the history that its model is shown.

That history is without secrets and without content that the model does not take, and holds what the calls of a step
came to that was cut off before the new request. Files that a request names are read before the model is asked.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol as Interface

from langchain_core.messages import AnyMessage, HumanMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import media_problem, settle_exchange, without_media
from mendgraph.nodes.language.names import (
    TEXT_SUFFIXES,
    asks_for_a_change,
    is_question,
    named_identifiers,
    named_paths,
    reports_a_problem,
)
from mendgraph.nodes.language.project_notes import ProjectNotes, find_notes
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    EditForm,
    JsonMap,
    LoopRecord,
    ModelReply,
    Outcome,
    Plan,
    Profile,
    RawCall,
    Reading,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
)

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


class Files(Interface):
    """The workspace as far as a turn looks at it before the model is asked."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file, which a model may read."""

    def size_of(self, path: str) -> int:
        """Its bytes."""

    def readable(self) -> Iterable[tuple[str, int]]:
        """All files with their sizes in bytes."""

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """The first bytes of a file; None where there is none, or why it is not read."""


Made = tuple[Mapping[int, CallResult], Mapping[str, str]]
"""What the calls of a cut-off step came to: results by their places, and the hashes of files read or written."""


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
    calls_made: Callable[[list[ToolCall | CallError]], Made] = lambda _: ({}, {})
    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    read_ahead: bool = False
    checked: bool = False
    most_notes: int = 0
    tell: Callable[[str, JsonMap], None] = lambda _name, _payload: None


NOT_RUN = "The run was cut off before this call, which has not been made."


class BeginTurnState(TypedDict, total=False):
    """What the node reads. The `items` are empty once they are settled, the `outcome` None until a turn ends."""

    messages: list[AnyMessage]
    plan: Plan
    notes: tuple[ProjectNotes, ...]
    outcome: Outcome | None
    reading: Reading | None
    reply: ModelReply | None
    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    results: list[CallResult]
    profile: Profile


def cut_off_items(state: BeginTurnState) -> list[ToolCall | CallError]:
    """The calls of the last turn that are in no history yet, in the order of the reply."""
    waiting = state.get("outcome") is None and state.get("reading") is Reading.CALLS
    return state.get("items", []) if waiting else []


def close_step(
    messages: Sequence[AnyMessage],
    state: BeginTurnState,
    known: Mapping[int, CallResult],
    specs: Mapping[str, ToolSpec],
    root: str,
) -> list[AnyMessage]:
    """The history with the cut-off step before the new request, which is the last message.

    `known` are the results of calls that were made, by their places; the others get a typed `cancelled` result.
    `specs` and `root` are those of `settle_exchange`.
    """
    items, settled = cut_off_items(state), state.get("results", [])
    not_run = ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN)
    results = [
        settled[place]
        if place < len(settled)
        else known.get(place) or CallResult(call_id=item.call_id, tool=item.tool, result=not_run)
        for place, item in enumerate(items)
    ]
    reply, profile = state.get("reply") or ModelReply(), state.get("profile") or Profile()
    exchange = settle_exchange(reply, items, results, profile.protocol, specs, root) if items else []
    return [*messages[:-1], *exchange, *messages[-1:]]


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


def scrubbed(messages: Sequence[AnyMessage], text: Callable[[str], str]) -> list[AnyMessage] | None:
    """All messages with `text` applied to what people said, half characters replaced; None where nothing changes.

    What models and tools said was scrubbed when it came in.
    """
    clean = [_scrubbed(message, text) if isinstance(message, HumanMessage) else message for message in messages]
    return clean if any(new is not old for new, old in zip(clean, messages, strict=True)) else None


def _scrubbed(message: HumanMessage, text: Callable[[str], str]) -> HumanMessage:
    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return text(storable(part))
        return {**part, "text": clean(part["text"])} if isinstance(part.get("text"), str) else part

    content = message.content
    content = clean(content) if isinstance(content, str) else [clean(part) for part in content]
    return message if content == message.content else message.model_copy(update={"content": content})


# --- Which files a request is about


MAX_NAMED_FILES = 5
"""More files than this would fill a small model's window."""

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

MAX_SMALL_BYTES, MAX_BYTES = 12_000, 60_000
"""Of all files that are read ahead, for a small model (half of its window, about 4,000 tokens) and for others."""

MAX_NAMES = 3
"""Names in code that are searched for; each may have many hits."""


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """All text files of a small workspace, for a request that names none; nothing where there are too many.

    `files` gives paths and sizes in bytes; no more of it is taken than it needs to see that a workspace is not small.
    """
    text = ((path, size) for path, size in files if path.rpartition(".")[2].lower() in TEXT_SUFFIXES)
    seen = list(islice(text, MAX_NAMED_FILES + 1))
    small = len(seen) <= MAX_NAMED_FILES and sum(size for _, size in seen) <= MAX_FEW_BYTES
    return [path for path, _ in seen] if small else []


MOST_LOOKED_AT = 300
"""Files of a workspace among which those are looked for that a request does not name by their whole path."""


def located(paths: Iterable[str], files: Files) -> Iterator[str]:
    """The files that a request means by these paths: by its whole path, or else the only one of this name anywhere."""
    known: list[str] | None = None
    for path in paths:
        if files.exists(path):
            yield path
            continue
        if known is None:
            known = [each for each, _ in islice(files.readable(), MOST_LOOKED_AT)]
        same = [each for each in known if each.endswith(f"/{path}")]
        yield from same[:1] if len(same) == 1 else ()


def preload(request: str, profile: Profile, files: Files, *, checked: bool = False) -> ModelReply | None:
    """The calls that are made before the model is asked, as a reply; None where there are none.

    Files that the request names are read, and with `checked` their code is checked. In the block form, whose requests
    show files and no conversation, a request that names none is about all of a small workspace. In a larger one the
    names in code that it speaks of are searched for, or else the workspace is listed.
    """
    named = list(dict.fromkeys(located(named_paths(request), files)))[:MAX_NAMED_FILES]
    shown = _within(named, files.size_of, MAX_SMALL_BYTES if profile.small else MAX_BYTES)
    if profile.edit_form is not EditForm.BLOCKS:
        return read_ahead(shown) if shown else None
    asked = is_question(request)
    if asked or (not shown and (asks_for_a_change(request) or reports_a_problem(request))):
        shown = list(dict.fromkeys((*shown, *few_files(files.readable()))))[:MAX_NAMED_FILES]
    code = [path for path in shown if path.endswith((".py", ".pyi"))] if checked and not asked else []
    names = [] if shown else named_identifiers(request)[:MAX_NAMES]
    return read_ahead(shown, code, names)


def _within(paths: Sequence[str], size_of: Callable[[str], int], most: int) -> list[str]:
    """Those of these files that fit together into so many bytes, the first ones first; the model may ask for others."""
    kept: list[str] = []
    for path in paths:
        size = size_of(path)
        if size <= most:
            most -= size
            kept.append(path)
    return kept


def read_ahead(paths: Sequence[str], checked: Sequence[str] = (), names: Sequence[str] = ()) -> ModelReply:
    """The reply that reads these files, checks some and searches for names, or lists the workspace for want of all."""
    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": path}) for path in paths]
    if checked:
        calls.append(("run_checks", {"paths": list(checked)}))
    if names:
        calls.append(("search_files", {"pattern": "|".join(rf"\b{name}\b" for name in names)}))
    calls = calls or [("list_files", {"path": "."})]
    raw = [(tool, json.dumps(arguments, ensure_ascii=False)) for tool, arguments in calls]
    return ModelReply(
        calls=tuple(RawCall(call_id=f"ahead_{at}", tool=tool, arguments=text) for at, (tool, text) in enumerate(raw)),
        preloaded=True,
    )


def read_notes(known: Sequence[ProjectNotes], request: str, files: Files, using: TurnResources) -> dict[str, Any]:
    """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
    notes, unread = find_notes(request, files.head, using.scrub, using.most_notes)
    for path, reason in unread:
        using.tell("notes.unread", {"path": path, "reason": reason})
    if notes == tuple(known):
        return {}
    if notes:
        using.tell(
            "notes.read", {"files": [{"path": e.path, "lines": len(e.text.splitlines()), "cut": e.cut} for e in notes]}
        )
    return {"notes": notes}
