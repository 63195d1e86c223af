"""What a run says of the project's notes that it has read, and of those that it could not. Pure."""

from collections.abc import Mapping
from typing import Any

from graph.terminal.call_words import count_of
from graph.terminal.plain_text import one_line

READ, UNREAD = "notes.read", "notes.unread"
"""The trace events that tell of notes."""


def notes_lines(name: str, payload: Mapping[str, Any]) -> list[str]:
    """A line for each file of this event, none where the event is another one."""
    if name == UNREAD:
        return [
            f"→ {one_line(str(payload.get('path', '')))}  not read as notes: {one_line(str(payload.get('reason')))}"
        ]
    if name != READ:
        return []
    return [_read(each) for each in payload.get("files", ())]


def _read(file: Mapping[str, Any]) -> str:
    """One file that a model is told of."""
    cut = ", the rest left out" if file.get("cut") else ""
    return f"→ {one_line(str(file.get('path', '')))}  {count_of(int(file.get('lines', 0)), 'line')} of notes{cut}"
