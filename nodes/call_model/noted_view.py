"""Where a model meets the project's notes: at the front of the first message of a person, and never as its orders.

Some endpoints take no two messages of one role in a row, so notes and request are one message. It is made once, so
that its bytes are known from call to call.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from langchain_core.messages import AnyMessage, HumanMessage

from nodes.call_model.bounded_blocks import estimated_tokens
from nodes.call_model.window import StandIns
from nodes.language.history import RESULT_MESSAGE_NAME
from nodes.language.project_notes import ProjectNotes, notes_text
from nodes.records import JsonMap

REQUEST: Final = "The request:"


def with_notes(view: Sequence[AnyMessage], notes: Sequence[ProjectNotes], made: StandIns) -> list[AnyMessage]:
    """The messages that are shown, with the notes before the first one; the same objects from call to call."""
    if not notes:
        return list(view)
    first = view[0] if view else None
    joins = isinstance(first, HumanMessage) and first.name != RESULT_MESSAGE_NAME and isinstance(first.content, str)
    said = notes_before(notes, str(first.content)) if first is not None and joins else notes_text(notes)
    name = f"notes-{sha256(said.encode('utf-8', 'replace')).hexdigest()[:16]}"
    message = HumanMessage(said, id=name)
    front = made.setdefault(name, (message, message))[1]
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
    return estimated_tokens([{"content": notes_before(notes, "")}]) if notes else 0
