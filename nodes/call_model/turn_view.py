"""The current turn as facts: which files are known, what was found, what changed, and what failed.

Read back from the settled messages, so it needs no channel of its own and survives a resume.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from pydantic import Field

from nodes.language.history import RESULT_MESSAGE_NAME, is_request
from nodes.language.tool_results import parse_text_results
from nodes.records import JsonMap, Record

FOUND_LIMIT = 2_000
"""Characters of one result that is not a file (a listing, search hits) in a rebuilt request."""


class TurnView(Record):
    """What this turn has brought to light. `files` maps paths to their newest known content."""

    files: dict[str, str] = Field(default_factory=dict)
    found: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    failed_steps: int = 0


def view_turn(history: Sequence[AnyMessage]) -> TurnView:
    """Sum up the messages after the last request of a person."""
    files: dict[str, str] = {}
    found: list[str] = []
    changed: dict[str, None] = {}
    failures: list[str] = []
    failed_steps = 0
    for results in _steps(history):
        step_failures = [str(r["error"]["message"]) for r in results if not r.get("ok", True) and r.get("error")]
        failures = step_failures or ([] if any(_changed(r) for r in results) else failures)
        failed_steps += bool(step_failures)
        for data in (r["data"] for r in results if r.get("ok")):
            if isinstance(data.get("content"), str) and "path" in data:
                files[data["path"]] = data["content"]
            elif not _changed({"ok": True, "data": data}):
                found.append(json.dumps(data, ensure_ascii=False)[:FOUND_LIMIT])
            if _changed({"ok": True, "data": data}):
                changed[data["path"]] = None
    return TurnView(
        files=files,
        found=tuple(found[-2:]),
        changed=tuple(changed),
        failures=tuple(failures),
        failed_steps=failed_steps,
    )


def _steps(history: Sequence[AnyMessage]) -> Iterator[list[JsonMap]]:
    """The results of each step of the turn, oldest first."""
    start = max((index for index, message in enumerate(history) if is_request(message)), default=0)
    native: list[JsonMap] = []
    for message in history[start:]:
        if isinstance(message, ToolMessage):
            native += [_loads(message.text)]
            continue
        if native:
            yield native
            native = []
        if isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME:
            yield parse_text_results(message.text)
    if native:
        yield native


def _loads(text: str) -> JsonMap:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _changed(result: JsonMap) -> bool:
    return bool(result.get("ok")) and "action" in result.get("data", {})
