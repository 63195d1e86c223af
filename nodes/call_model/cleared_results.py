"""Old tool results without their large fields: what is left says what is missing and how to get it again.

The stand-ins are results like any other, one line or one JSON text each, so everything that reads results reads them.
"""

import json
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from nodes.language.history import RESULT_MESSAGE_NAME
from nodes.language.tool_results import parse_text_results, render_native_result, render_text_results
from nodes.records import CallResult, JsonMap, ToolError, ToolErrorCode, ToolResult

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
    """The stand-in of one `tool_result({...})` line; a line that is none is kept short."""
    for envelope in parse_text_results(line):
        tool = str(envelope.get("tool", ""))
        result = _stand_in(envelope, tool)
        if result is not None:
            return render_text_results([CallResult(call_id="", tool=tool, result=result)])
    return _clipped(line)


def _stand_in(envelope: JsonMap, tool: str) -> ToolResult | None:
    """The result without its large fields, or None where this is no envelope of ours."""
    data, error = envelope.get("data"), envelope.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        known = ToolErrorCode(code) if code in set(ToolErrorCode) else ToolErrorCode.IO_ERROR
        return ToolResult.failure(known, _clipped(str(error.get("message", ""))))
    if not isinstance(data, dict):
        return None
    kept = {name: value for name, value in data.items() if name != NOTE_FIELD and _is_small(value)}
    if len(kept) == len(data):
        return ToolResult(ok=True, data=data)
    left = sum(_length(value) for name, value in data.items() if name not in kept)
    return ToolResult(ok=True, data={**kept, NOTE_FIELD: _note(left, tool, kept)})


def _is_small(value: Any) -> bool:
    return _length(value) <= LARGEST_KEPT_FIELD


def _length(value: Any) -> int:
    """Characters of a text, or of the JSON of anything else."""
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
