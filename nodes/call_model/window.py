"""Which part of the history the model is shown, so that it fits the model's window.

The history itself stays complete. A `Window` says from where on it is shown, and holds the text that stands for what
was before. Between two compactions the view only grows at its end, so that endpoints can keep its prefix.
"""

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.call_model.prompts.estimates import estimate_tokens
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_request
from mendgraph.nodes.language.project_notes import ProjectNotes, notes_text
from mendgraph.nodes.language.text_protocol import parse_text_results, render_native_result, render_text_results
from mendgraph.nodes.records import CallResult, JsonMap, Record, ToolError, ToolErrorCode, ToolResult

SizeOf = Callable[[AnyMessage], int]
"""(message) -> its tokens, estimated. Asked for each message of a view at each call, so it should know them again."""

StandIns = dict[str, tuple[AnyMessage, AnyMessage]]
"""What is shown in place of messages, by id, each with what it was made of: kept by a run, so each is made once."""

MOST_STAND_INS = 2_000


class Window(Record):
    """What is shown of a thread's history; the default shows all of it.

    `first` is the id of the first message that is shown as it is, `head` the text that stands for those before it, and
    `cleared` are the messages whose results are replaced by notes. An id that the history does not have hides nothing.
    `summary` is the model's own in the head; after one that was of no use, `no_summary` is asked for any more.
    `tokens` is the window as an endpoint named it when it refused a request.
    """

    first: str = ""
    head: str = ""
    cleared: tuple[str, ...] = ()
    summary: str = ""
    no_summary: bool = False
    tokens: int | None = None


WHOLE = Window()


def shown(history: Sequence[AnyMessage], window: Window, made: StandIns | None = None) -> list[AnyMessage]:
    """The messages that the model is shown; the same objects from call to call where `made` is the same.

    A head that would stand right before a request is one message with it: some endpoints take no two in a row.
    """
    start, made = first_shown(history, window), {} if made is None else made
    if len(made) > MOST_STAND_INS:
        made.clear()
    view = shown_after(history, window.cleared, start, made)
    if not start:
        return view
    if view and is_request(view[0]) and isinstance(view[0].content, str):
        return [_added("head", f"{window.head}\n\n{view[0].content}", made), *view[1:]]
    return [_added("head", window.head, made), *view]


def shown_after(history: Sequence[AnyMessage], cleared: Sequence[str], start: int, made: StandIns) -> list[AnyMessage]:
    """The messages from `start` on, with stand-ins for those that are cleared."""
    if not cleared:
        return list(history[start:])
    known = frozenset(cleared)
    return [stand_in(message, made) or message if message.id in known else message for message in history[start:]]


def first_shown(history: Sequence[AnyMessage], window: Window) -> int:
    """The place of the first message that is shown as it is; 0 where none is hidden."""
    if not window.first:
        return 0
    # From the end: what is shown is short, what is hidden may be long.
    return next((place for place in range(len(history) - 1, 0, -1) if history[place].id == window.first), 0)


def stand_in(message: AnyMessage, made: StandIns) -> AnyMessage | None:
    """The message without its results, made once; None where it carries none."""
    known = made.get(message.id or "")
    if known is None or known[0] != message:
        cleared = without_results(message)
        if cleared is None:
            return None
        known = made[message.id or ""] = (message, cleared)
    return known[1]


def _added(kind: str, text: str, made: StandIns) -> AnyMessage:
    """A message that the history does not have. Whoever remembers messages takes no other for it, by its id."""
    name = f"{kind}-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    message = HumanMessage(text, id=name)
    return made.setdefault(name, (message, message))[1]


LARGEST_KEPT_FIELD = 200
"""Characters of JSON up to which a field of a cleared result stays: paths, counts, exit codes, references."""

LONGEST_ERROR = 400
"""Characters of an error's message that stay."""

NOTE_FIELD = "left_out"


def is_result(message: AnyMessage) -> bool:
    """Does this message carry results of calls?"""
    return isinstance(message, ToolMessage) or (
        isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME
    )


def without_results(message: AnyMessage) -> AnyMessage | None:
    """The message with short stand-ins for its results, under an id of its own; None where it carries none."""
    if not isinstance(message.content, str) or not is_result(message):
        return None
    if isinstance(message, ToolMessage):
        content = _without_result(message.content, message.name or "", failed=message.status == "error")
    else:
        content = "\n".join(map(_without_line, message.content.split("\n")))
    return message.model_copy(update={"content": content, "id": f"{message.id}-cleared"})


def _without_result(text: str, tool: str, *, failed: bool) -> str:
    """The stand-in of a native result; what is no envelope of ours is left out as a whole."""
    try:
        envelope: Any = json.loads(text)
    except (ValueError, RecursionError):
        envelope = None
    result = _stand_in(envelope, tool) if isinstance(envelope, dict) else None
    if result is None:
        data = {NOTE_FIELD: _note(len(text), tool, {})}
        error = ToolError(code=ToolErrorCode.IO_ERROR, message=_clipped(text)) if failed else None
        result = ToolResult(ok=not failed, data={} if failed else data, error=error)
    return render_native_result(CallResult(call_id="", tool=tool, result=result))


def _without_line(line: str) -> str:
    for envelope in parse_text_results(line):
        tool = str(envelope.get("tool", ""))
        result = _stand_in(envelope, tool)
        if result is not None:
            return render_text_results([CallResult(call_id="", tool=tool, result=result)])
    return _clipped(line)


def _stand_in(envelope: JsonMap, tool: str) -> ToolResult | None:
    data, error = envelope.get("data"), envelope.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        known = ToolErrorCode(code) if code in set(ToolErrorCode) else ToolErrorCode.IO_ERROR
        return ToolResult.failure(known, _clipped(str(error.get("message", ""))))
    if not isinstance(data, dict):
        return None
    kept = {name: value for name, value in data.items() if name != NOTE_FIELD and _length(value) <= LARGEST_KEPT_FIELD}
    if len(kept) == len(data):
        return ToolResult(ok=True, data=data)
    left = sum(_length(value) for name, value in data.items() if name not in kept)
    return ToolResult(ok=True, data={**kept, NOTE_FIELD: _note(left, tool, kept)})


def _length(value: Any) -> int:
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _note(characters: int, tool: str, kept: JsonMap) -> str:
    """What is missing, and how to get it again: what a change gave back is gone, but its file can be read."""
    path = kept.get("path")
    if isinstance(path, str) and not kept.keys().isdisjoint({"action", "replacements"}):
        return f"{characters} characters, to save room; read {path} to see it as it is"
    call = f"call {tool or 'the tool'} on {path}" if isinstance(path, str) else "make the same call"
    return f"{characters} characters, to save room; {call} again if you need them, fewer at a time if they are many"


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_ERROR:
        return text
    return f"{text[:LONGEST_ERROR]} [... {len(text) - LONGEST_ERROR} more characters]"


REQUEST: Final = "The request:"


def with_notes(view: Sequence[AnyMessage], notes: Sequence[ProjectNotes], made: StandIns) -> list[AnyMessage]:
    """The messages that are shown, with the notes before the first one; the same objects from call to call."""
    if not notes:
        return list(view)
    first = view[0] if view else None
    joins = isinstance(first, HumanMessage) and first.name != RESULT_MESSAGE_NAME and isinstance(first.content, str)
    said = notes_before(notes, str(first.content)) if first is not None and joins else notes_text(notes)
    front = _added("notes", said, made)
    return [front, *view[1:]] if joins else [front, *view]


def notes_before(notes: Sequence[ProjectNotes], request: str) -> str:
    """The notes, and behind them what the person says."""
    return f"{notes_text(notes)}\n\n{REQUEST}\n{request}"


def noted_request(messages: Sequence[JsonMap], notes: Sequence[ProjectNotes]) -> tuple[JsonMap, ...]:
    """The messages of a request in block form, which ends with the one that has the notes before it."""
    if not notes:
        return tuple(messages)
    *others, last = messages
    return (*others, {**last, "content": notes_before(notes, str(last["content"]))})


def notes_tokens(notes: Sequence[ProjectNotes]) -> int:
    """The tokens of the notes in a request, estimated."""
    return estimate_tokens(len(notes_before(notes, "").encode("utf-8", "replace")), 1) if notes else 0
