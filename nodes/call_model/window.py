"""The part of the history that the model is shown.

The history stays complete. A `Window` says where the shown part begins, and holds the text that replaces the part
before. Cleared results and that text are stand-ins: the same message objects at each call.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_typed
from mendgraph.nodes.language.project_notes import ProjectNotes, notes_text
from mendgraph.nodes.language.text_protocol import parse_text_results, render_native_result, render_text_results
from mendgraph.nodes.records import CallResult, JsonMap, Record, ToolErrorCode, ToolResult

StandIns = dict[str, tuple[AnyMessage, AnyMessage]]
"""Messages and their replacements by message id; kept by a machine, so that each is made once."""

TRIGGER: Final = 0.85  # the share of the window for a request and its reply
MOST_STAND_INS: Final = 2_000
LARGEST_KEPT_FIELD: Final = 200  # characters of JSON of a field that a cleared result keeps
LONGEST_ERROR: Final = 400  # characters of an error's message that are kept
NOTE_FIELD: Final = "left_out"


class Window(Record):
    """The part of a thread's history that is shown; the default shows all of it.

    Attributes:
        first: id of the first message that is shown unchanged; an unknown id hides nothing.
        head: the text that replaces the messages before it.
        cleared: ids of the messages whose results are replaced by notes.
        summary: the model's summary in the head.
        no_summary: whether the last summary was unusable, so that no other is requested.
        tokens: the estimated size of a request that the endpoint has refused as too long.
    """

    first: str = ""
    head: str = ""
    cleared: tuple[str, ...] = ()
    summary: str = ""
    no_summary: bool = False
    tokens: int | None = None


WHOLE: Final = Window()


def shown(history: Sequence[AnyMessage], window: Window, stand_ins: StandIns | None = None) -> list[AnyMessage]:
    """Return the messages for the model; the same objects at each call with the same `stand_ins`.

    A head directly before a request is merged with it, as some endpoints refuse two user messages in a row.
    """
    start = first_shown(history, window)
    if stand_ins is None:
        stand_ins = {}

    if len(stand_ins) > MOST_STAND_INS:
        stand_ins.clear()

    view = shown_after(history, window.cleared, start, stand_ins)
    if not start:
        return view

    if view and is_typed(view[0]) and isinstance(view[0].content, str):
        return [_added("head", f"{window.head}\n\n{view[0].content}", stand_ins), *view[1:]]

    return [_added("head", window.head, stand_ins), *view]


def shown_after(
    history: Sequence[AnyMessage], cleared: Sequence[str], start: int, stand_ins: StandIns
) -> list[AnyMessage]:
    """Return the messages from `start` on, with stand-ins for `cleared` ones."""
    if not cleared:
        return list(history[start:])

    cleared_ids = frozenset(cleared)
    view = []
    for message in history[start:]:
        replacement = stand_in(message, stand_ins) if message.id in cleared_ids else None
        view.append(replacement or message)

    return view


def first_shown(history: Sequence[AnyMessage], window: Window) -> int:
    """Return the index of the first message that is shown unchanged."""
    if not window.first:
        return 0

    # From the end, as the shown part is short and the hidden part may be long.
    for place in range(len(history) - 1, 0, -1):
        if history[place].id == window.first:
            return place

    return 0


def stand_in(message: AnyMessage, stand_ins: StandIns) -> AnyMessage | None:
    """Return the message without its results, or None if it has none."""
    message_id = message.id or ""
    cached = stand_ins.get(message_id)
    if cached is not None and cached[0] == message:
        return cached[1]

    cleared = without_results(message)
    if cleared is not None:
        stand_ins[message_id] = (message, cleared)

    return cleared


def _added(kind: str, text: str, stand_ins: StandIns) -> AnyMessage:
    """Return a message that the history does not have, with an id of its own."""
    name = f"{kind}-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    message = HumanMessage(text, id=name)
    return stand_ins.setdefault(name, (message, message))[1]


# --- Clearing results


def is_result(message: AnyMessage) -> bool:
    """Return whether this message contains results of calls."""
    in_text = isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME
    return in_text or isinstance(message, ToolMessage)


def without_results(message: AnyMessage) -> AnyMessage | None:
    """Return the message with notes instead of its results, under another id, or None if it has none."""
    if not is_result(message):
        return None

    if isinstance(message, ToolMessage):
        content = _without_native_result(message.text, message.name or "", failed=message.status == "error")
    else:
        content = "\n".join(map(_without_result_line, message.text.split("\n")))

    return message.model_copy(update={"content": content, "id": f"{message.id}-cleared"})


def _without_native_result(text: str, tool: str, *, failed: bool) -> str:
    """Return the short form of a native result; nothing is kept of a foreign one."""
    try:
        envelope: Any = json.loads(text)
    except (ValueError, RecursionError):
        envelope = None

    result = None
    if isinstance(envelope, dict):
        result = _short_result(envelope, tool)

    if result is None and failed:
        result = ToolResult.failure(ToolErrorCode.IO_ERROR, _clipped(text))
    elif result is None:
        result = ToolResult(ok=True, data={NOTE_FIELD: _note(len(text), tool, {})})

    return render_native_result(CallResult(call_id="", tool=tool, result=result))


def _without_result_line(line: str) -> str:
    for envelope in parse_text_results(line):
        tool = str(envelope.get("tool", ""))
        result = _short_result(envelope, tool)
        if result is not None:
            return render_text_results([CallResult(call_id="", tool=tool, result=result)])

    return _clipped(line)


def _short_result(envelope: JsonMap, tool: str) -> ToolResult | None:
    """Return the result with its short fields and a note on the others, or None without data and error."""
    error = envelope.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        if code not in tuple(ToolErrorCode):
            code = ToolErrorCode.IO_ERROR

        return ToolResult.failure(ToolErrorCode(code), _clipped(str(error.get("message", ""))))

    data = envelope.get("data")
    if not isinstance(data, dict):
        return None

    short_fields = {}
    removed_length = 0
    for name, value in data.items():
        length = _json_length(value)
        if name == NOTE_FIELD or length > LARGEST_KEPT_FIELD:
            removed_length += length
        else:
            short_fields[name] = value

    if len(short_fields) == len(data):
        return ToolResult(ok=True, data=data)

    note = _note(removed_length, tool, short_fields)
    return ToolResult(ok=True, data={**short_fields, NOTE_FIELD: note})


def _json_length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)

    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _note(characters: int, tool: str, fields: JsonMap) -> str:
    """Return a note on what was removed, and how to read it again."""
    path = fields.get("path")
    is_path = isinstance(path, str)
    if is_path and not fields.keys().isdisjoint({"action", "replacements"}):
        return f"{characters} characters, to save room; read {path} to see it as it is"

    call = f"call {tool or 'the tool'} on {path}" if is_path else "make the same call"
    return f"{characters} characters, to save room; {call} again if you need them, fewer at a time if they are many"


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_ERROR:
        return text

    return f"{text[:LONGEST_ERROR]} [... {len(text) - LONGEST_ERROR} more characters]"


# --- Project notes


def with_notes(view: Sequence[AnyMessage], notes: Sequence[ProjectNotes], stand_ins: StandIns) -> list[AnyMessage]:
    """Return the messages with the notes before the first one; the same objects at each call."""
    if not notes:
        return list(view)

    first = view[0] if view else None
    if isinstance(first, HumanMessage) and first.name != RESULT_MESSAGE_NAME and isinstance(first.content, str):
        return [_added("notes", notes_before(notes, first.content), stand_ins), *view[1:]]

    return [_added("notes", notes_text(notes), stand_ins), *view]


def notes_before(notes: Sequence[ProjectNotes], request: str) -> str:
    """Return the notes followed by the request."""
    return f"{notes_text(notes)}\n\nThe request:\n{request}"
