"""A reply that calls tools, written once for both protocols: as `tool:` lines in the text, or as native calls."""

import json
from dataclasses import dataclass

from tests.doubles.replies import Message, Reply, Usage
from tests.vocabulary import JsonMap, Protocol

__all__ = ["ToolCallScript", "Use", "arguments_text", "in_protocol", "message_of", "use"]

ToolCallScript = tuple[str, JsonMap | str]
"""A tool and its arguments. Arguments that are a text are sent as they are, also where they are no JSON."""


@dataclass(frozen=True)
class Use:
    """A reply that calls tools.

    `usage` is as in `Message`. `cut` marks a reply that the token limit ended.
    """

    calls: tuple[ToolCallScript, ...]
    usage: Usage = None
    cut: bool = False


def use(*calls: ToolCallScript, usage: Usage = None) -> Use:
    return Use(calls, usage)


def in_protocol(reply: Use | Reply, protocol: Protocol) -> Reply:
    """Write a reply in one protocol; a reply that is no `Use` is the same in both."""
    return message_of(reply, protocol) if isinstance(reply, Use) else reply


def message_of(reply: Use | Message, protocol: Protocol) -> Message:
    if isinstance(reply, Message):
        return reply

    calls = tuple((tool, arguments_text(arguments)) for tool, arguments in reply.calls)
    if protocol is Protocol.NATIVE:
        return Message(calls=calls, finish_reason="length" if reply.cut else "tool_calls", usage=reply.usage)

    lines = "\n".join(f"tool: {tool}({arguments})" for tool, arguments in calls)
    return Message(text=lines, finish_reason="length" if reply.cut else "stop", usage=reply.usage)


def arguments_text(arguments: JsonMap | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
