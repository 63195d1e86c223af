"""Calls that are JSON in another harness's form: bare objects, tags, and the marks of model families.

Each reader gives the calls of a body that is nothing but calls in its form, to known tools, else None. Each costs
linear time. A body is only read where its JSON is whole: what is cut is never closed.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from nodes.language.json_arguments import decode_strictly
from nodes.language.repeated_edits import join_edits, split_call
from nodes.language.text_protocol import json_end
from nodes.records import ToolInvocation

Reader = Callable[[str, frozenset[str]], list[ToolInvocation] | None]

_NAME_KEYS = frozenset({"name", "tool", "function", "action"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "action_input"})
_KINDS = frozenset({"function", "tool_call", "tool_use", "function_call"})
_NAME = r"(?P<tool>[\w.-]++)"


class _Form(NamedTuple):
    """A call is `opening`, one JSON value, `closing`. Where `opening` names a `tool`, the value is its arguments."""

    start: re.Pattern[str]
    opening: re.Pattern[str]
    closing: re.Pattern[str]

    def read(self, body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
        """The calls of a body that begins with `start` and is nothing but such calls."""
        calls: list[ToolInvocation] = []
        at = 0 if self.start.match(body) else len(body)
        while at < len(body):
            opening = self.opening.match(body, at)
            end = json_end(body, opening.end()) if opening else None
            closing = self.closing.match(body, end) if end is not None else None
            if opening is None or closing is None:
                return None
            value = decode_strictly(body[opening.end() : end], join=join_edits)
            tool = opening.groupdict().get("tool")
            found = _calls_of({"name": tool, "arguments": value} if tool else value, known_tools)
            if not found:
                return None
            calls += found
            at = closing.end()
        return calls or None


def _form(opening: str, closing: str = "", start: str = "") -> Reader:
    json_follows = re.compile(rf"\s*+{opening}\s*+(?=[{{\[])")
    return _Form(re.compile(start), json_follows, re.compile(rf"\s*+{closing}\s*+")).read


def is_call_of_anything(body: str) -> bool:
    """Whether a body is one call as JSON, whatever its tool is called: a model invents tools as well."""
    value = decode_strictly(body) if body.lstrip().startswith("{") else None
    if not isinstance(value, dict) or len(value) != len(("name", "arguments")):
        return False
    names, arguments = (value.keys() & keys for keys in (_NAME_KEYS, _ARGUMENT_KEYS))
    if len(names) != 1 or len(arguments) != 1:
        return False
    name = value[names.pop()]
    return isinstance(name, str) and name.isidentifier() and _is_full_object(value[arguments.pop()])


def _is_full_object(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


read_json = _form("")
"""Objects and lists of objects, one after the other."""

read_tool_call_tags = _form("<(?:tool_call|function_call|tools)>", "</(?:tool_call|function_call|tools)>")
"""Hermes and Qwen: `<tool_call>{...}</tool_call>`."""

read_function_tags = _form(f"<function={_NAME}>", "</function>")
"""Llama: `<function=name>{...}</function>`."""

read_tool_calls_mark = _form(
    rf"(?:\[TOOL_CALLS\])?\s*+(?:{_NAME}\s*+(?:\[CALL_ID\]\w*+)?(?:\[ARGS\])?)?",
    start=r"\[TOOL_CALLS\]|[\w.-]++\[ARGS\]",
)
"""Mistral: `[TOOL_CALLS] [{...}]` and `[TOOL_CALLS]name[ARGS]{...}`, of which a server may drop one of the marks."""

read_python_tag = _form(r"(?:<\|python_tag\|>|;)?", r"(?:<\|eom_id\|>|<\|eot_id\|>)?", start=r"<\|python_tag\|>")
"""Llama: `<|python_tag|>{...}`, several separated by `;`."""

read_react = _form(rf"(?:(?i:action)[ \t]*+:\s*+)?`?{_NAME}`?[ \t]*+\r?\n\s*+(?i:action[ _]input)[ \t]*+:")
"""ReAct: `Action: name` and `Action Input: {...}`; the first word may have been taken off."""


def _calls_of(value: Any, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    items = value if isinstance(value, list) else [value]
    calls = [_call_of(item, known_tools) for item in items]
    return [call for call in calls if call is not None] if None not in calls else None


def _call_of(item: Any, known_tools: frozenset[str]) -> ToolInvocation | None:
    """The call that a JSON object with exactly a known tool's name and its arguments means."""
    if not isinstance(item, dict):
        return None
    item = _unwrapped(item)
    names, arguments_keys = item.keys() & _NAME_KEYS, item.keys() & _ARGUMENT_KEYS
    if len(names) != 1 or len(arguments_keys) != 1 or len(item) != 2:
        return None
    name, arguments = item[names.pop()], item[arguments_keys.pop()]
    if isinstance(arguments, str):
        arguments = decode_strictly(arguments, join=join_edits)
    if not isinstance(name, str) or name not in known_tools or not isinstance(arguments, dict):
        return None
    call = split_call(name, arguments, known_tools)
    return ToolInvocation(call.tool, call.arguments, 0) if call else None


def _unwrapped(item: dict[str, Any]) -> dict[str, Any]:
    """The object without what endpoints put around a call: `type`, `id`, and `function` as an object of its own."""
    inner = {key: value for key, value in item.items() if not _is_envelope(key, value)}
    function = inner.get("function")
    return function if len(inner) == 1 and isinstance(function, dict) else inner


def _is_envelope(key: str, value: Any) -> bool:
    return isinstance(value, str) and (key in {"id", "call_id"} or (key == "type" and value in _KINDS))
