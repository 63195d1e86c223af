"""What an MCP server says, as bounded JSON data for a model. Pure: it takes the messages as plain maps.

Source of the shapes: the Model Context Protocol, revision 2025-06-18, "Tools", and its schema of content blocks.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from nodes.records import JsonMap, ToolError, ToolErrorCode, ToolResult

LONGEST_DESCRIPTION = 1_024
"""Characters of a description. Source: what OpenAI's API takes of one."""

LONGEST_ERROR = 2_000
LONGEST_SCHEMA = 65_536
"""Bytes of one tool's schema."""

_LONGEST_NAME = 100
"""Characters of a property's name."""


def plain_text(text: str, most: int) -> str:
    """One line of at most `most` characters: white space in one, control and invisible characters escaped."""
    line = " ".join(text[: 4 * most].split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def bounded_schema(schema: Mapping[str, Any]) -> JsonMap | str:
    """The schema with its descriptions made plain, or why it cannot be offered to a model."""
    try:
        bounded: JsonMap = _bounded(schema)
        size = len(orjson.dumps(bounded))
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return bounded if size <= LONGEST_SCHEMA else f"it has {size} bytes, and {LONGEST_SCHEMA} are the most"


def call_result(name: str, answer: Mapping[str, Any]) -> ToolResult:
    """The envelope for what the tool `name` answered: `text`, `structured` and `attachments`, each where there is one.

    Text that only repeats the structured content is left out. Of images, sounds and files there is the type and the
    size in bytes.
    """
    blocks = [block for block in answer.get("content") or () if isinstance(block, Mapping)]
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.get("isError"):
        said = plain_text("\n".join(texts), LONGEST_ERROR) or "it gave no reason"
        return ToolResult(ok=False, error=ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {said}"))
    structured = answer.get("structuredContent")
    if structured is not None:
        texts = [text for text in texts if not _repeats(text, structured)]
    attachments = [_attachment(block) for block in blocks if block.get("type") != "text"]
    data: JsonMap = {"text": "\n".join(texts)} if texts or not (structured or attachments) else {}
    if structured is not None:
        data["structured"] = structured
    if attachments:
        data["attachments"] = attachments
    return ToolResult(ok=True, data=data)


def _bounded(node: Any) -> Any:
    if isinstance(node, list):
        return [_bounded(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    for name in node:
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise ValueError(f"it has the unreadable name {plain_text(name, _LONGEST_NAME)!r}")
    return {
        key: plain_text(value, LONGEST_DESCRIPTION)
        if key == "description" and isinstance(value, str)
        else _bounded(value)
        for key, value in node.items()
    }


def _repeats(text: str, structured: Any) -> bool:
    """Whether a text says what the structured content says, as the protocol asks servers to do for old clients."""
    known = [structured]
    if isinstance(structured, Mapping) and structured.keys() == {"result"}:
        inner = structured["result"]
        known += [inner, *(inner if isinstance(inner, list) else ())]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text in known
    return value in known or text in known


def _attachment(block: Mapping[str, Any]) -> JsonMap:
    """What is to be known of a content block that is not text. The text of an embedded file is kept."""
    kind = plain_text(str(block.get("type", "")), _LONGEST_NAME)
    inner = block.get("resource") if kind == "resource" else block
    inner = inner if isinstance(inner, Mapping) else {}
    found = {
        "type": kind,
        "mime_type": _short(inner.get("mimeType")),
        "uri": _short(inner.get("uri")),
        "bytes": _size(inner),
        "text": inner.get("text"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _short(value: object) -> str | None:
    return plain_text(value, LONGEST_DESCRIPTION) if isinstance(value, str) else None


def _size(block: Mapping[str, Any]) -> int | None:
    """Bytes of the content, by the length of its base64 (RFC 4648: four characters for three bytes)."""
    if isinstance(block.get("text"), str):
        return len(block["text"].encode("utf-8", "surrogatepass"))
    encoded = block.get("data", block.get("blob"))
    if isinstance(encoded, str):
        return len(encoded) * 3 // 4 - encoded[-2:].count("=")
    size = block.get("size")
    return size if isinstance(size, int) else None
