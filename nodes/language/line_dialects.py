"""Calls that are a line of text in almost our form: in a code fence, in a tag, without `tool:`, with other brackets."""

import re
from collections.abc import Mapping

from nodes.language.python_calls import read_python_calls
from nodes.language.text_protocol import TOOL_PREFIX, extract_in_order, parse_tool_line, without_bodies
from nodes.records import JsonMap, ToolInvocation

_TAG_HEAD = re.compile(r"(?P<tool>[\w.-]++)(?=[ \t\r\n])")
_ATTRIBUTE = re.compile(r"""\s++(?P<name>[A-Za-z_]\w*+)=(?:"(?P<double>[^"<>&]*+)"|'(?P<single>[^'<>&]*+)')""")


def read_tool_lines(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    """`tool:` lines and nothing else, such as stand in a code fence by mistake."""
    calls = extract_in_order(body, known_tools, {})
    found = [call.outcome for call in calls if isinstance(call.outcome, ToolInvocation)]
    rest = [line for line in without_bodies(body, calls).split("\n") if line.strip()]
    if not calls or len(found) < len(calls) or len(rest) > len(calls):
        return None
    return [call._replace(line_number=0) for call in found]


def read_bare_call(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    """`name({json})`, a tool line that lacks its prefix."""
    outcome = parse_tool_line(f"{TOOL_PREFIX} {body}", 0, known_tools)
    return [outcome] if isinstance(outcome, ToolInvocation) and not body.startswith(TOOL_PREFIX) else None


def read_tool_tag(
    body: str, known_tools: frozenset[str], only_required: Mapping[str, str]
) -> list[ToolInvocation] | None:
    """`<tool: name({json})>`, and with a Python call, a JSON object or XML attributes in the place of `({json})`."""
    if not (body.startswith("<tool:") and body.endswith(">")):
        return None
    inside = body.removeprefix("<tool:").removesuffix(">").removesuffix("/").strip()
    if inside.endswith(")"):
        return read_bare_call(inside, known_tools) or read_python_calls(inside, known_tools, only_required)
    head = _TAG_HEAD.match(inside)
    rest = inside[head.end() :] if head else ""
    if head is None or head["tool"] not in known_tools:
        return None
    if rest.rstrip().endswith("}"):
        return read_bare_call(f"{head['tool']}({rest})", known_tools)
    arguments = _attributes(rest)
    return [ToolInvocation(head["tool"], arguments, 0)] if arguments else None


def _attributes(text: str) -> JsonMap | None:
    """The attributes that a tag consists of; None for anything else, for equal names and for what XML escapes."""
    arguments: JsonMap = {}
    at = 0
    while attribute := _ATTRIBUTE.match(text, at):
        if attribute["name"] in arguments:
            return None
        arguments[attribute["name"]] = attribute["double"] if attribute["single"] is None else attribute["single"]
        at = attribute.end()
    return arguments if at == len(text) else None
