"""Formats whose calls are JSON objects with a name and arguments, with or without marks around them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from mendgraph.nodes.language.formats.call_format import (
    CallFormat,
    Markup,
    ToolSchemas,
    WrittenCall,
    after_literal,
    after_marks,
    as_json,
    head_pattern,
    incomplete,
    json_value,
    marker_pattern,
)
from mendgraph.nodes.language.text_protocol import decode_arguments, decode_strictly, json_end
from mendgraph.nodes.records import JsonMap

NOT_WHOLE: Final = "its JSON is not whole or not valid"
NO_CALL: Final = "its JSON is not a tool's name and its arguments"

_NAME_KEYS: Final = frozenset({"name", "tool", "function", "action", "tool_name"})
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters", "args", "input", "action_input"})
_THOUGHT_KEYS: Final = ("explanation", "reasoning", "thought", "thoughts")
_ENVELOPE_KEYS: Final = frozenset({"id", "call_id", "tool_call_id", "index", "terminal", *_THOUGHT_KEYS})
_KINDS: Final = frozenset({"function", "tool_call", "tool_use", "function_call"})
_NEXT: Final = re.compile(r"\s*+[,;]?\s*+(?=\{)")
_BARE_KEY: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|(?P<key>(?<!\w)[A-Za-z_]\w*+)(?=\s*+:)', re.DOTALL)
_BEGINS_CALL: Final = re.compile(
    r'\{\s*+"tool_calls"\s*+:\s*+\[\s*+\{|'
    rf'(?:\[\s*+)?\{{\s*+(?:"(?:type|id|terminal|{"|".join(_THOUGHT_KEYS)})"\s*+:\s*+(?:"[^"\n]*+"|true|false)\s*+,\s*+)?'
    r'(?:"function"\s*+:\s*+\{\s*+)?'
    rf'"?(?:{"|".join(sorted(_NAME_KEYS))})"?\s*+:\s*+"[^"\n]*+"\s*+,\s*+"?(?:{"|".join(sorted(_ARGUMENT_KEYS))})"?\s*+:'
)


@dataclass(frozen=True)
class MarkedJson(CallFormat):
    """JSON calls after a mark: one object, a list, or several objects; the end mark is optional."""

    name: str
    markers: tuple[str, ...]
    closing: str = ""
    shape: Callable[[str, JsonMap], Any] = lambda tool, arguments: {"name": tool, "arguments": arguments}

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        return (
            f"Write {self.markers[0]}, then one JSON object with name and arguments, then {self.closing or 'nothing'}."
        )

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return a call between the marks."""
        return f"{self.markers[0]}{as_json(self.shape(tool, arguments))}{self.closing}"

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read all objects after the mark."""
        head = self._head.match(text, position)
        if head is None:
            return None

        calls: list[WrittenCall] = []
        at = head.end()

        while (value := json_value(text, at)) is not None:
            decoded, end = value
            items = calls_in(decoded, tools)
            if not items:
                return Markup(position, self._end(text, end), tuple(calls), NO_CALL)

            calls += items

            further = _NEXT.match(text, end)
            if further is None:
                return Markup(position, self._end(text, end), tuple(calls))

            at = further.end()

        return incomplete(text, position, NOT_WHOLE, calls)

    def _end(self, text: str, end: int) -> int:
        return after_marks(text, after_literal(text, end, self.closing))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return head_pattern(rf"(?:{'|'.join(map(re.escape, self.markers))})\s*+(?=[{{\[])")


@dataclass(frozen=True)
class PlainJson(CallFormat):
    """JSON calls without marks, at the start of a line or in a code fence for data. Quotes around keys are optional."""

    name: str
    markers: tuple[str, ...]
    shape: Callable[[str, JsonMap], str]
    line_start: bool = True
    inline: tuple[str, ...] = (
        '{"tool_calls"',
        '{tool: "{tool}"',
        *(f'{{"{key}": "{{tool}}"' for key in sorted(_NAME_KEYS)),
    )
    fences: frozenset[str] = frozenset(
        {"", "json", "json5", "text", "txt", "plaintext", "tool", "tool_call", "tool_calls", "tool_code"}
    )

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        return "Write one JSON object with the tool's name and its arguments."

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return a call as JSON."""
        return self.shape(tool, arguments)

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read JSON that is a call; other JSON is skipped as a whole."""
        if not self._start.match(text, position):
            return None

        end = json_end(text, position)
        begins_call = _BEGINS_CALL.match(text, position) is not None

        if end is None:
            if begins_call:
                return incomplete(text, position, NOT_WHOLE)
            return None

        calls = calls_in(_decoded(text[position:end]), tools, marked=False)
        if not calls and begins_call:
            return Markup(position, after_marks(text, end), (), NO_CALL)

        return Markup(position, after_marks(text, end) if calls else end, tuple(calls))

    @cached_property
    def _start(self) -> re.Pattern[str]:
        return re.compile("|".join(map(marker_pattern, self.markers)))


def calls_in(value: Any, tools: ToolSchemas, *, marked: bool = True) -> list[WrittenCall]:
    """Return the calls in a decoded value; [] if a part of it is not a call.

    Calls without marks must have arguments.
    """
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]

    items = value if isinstance(value, list) else [value]
    calls = [_call_of(item, tools, marked=marked) for item in items]
    if None not in calls:
        return [call for call in calls if call is not None]

    return []


def _call_of(item: Any, tools: ToolSchemas, *, marked: bool) -> WrittenCall | None:
    """Return the call of an object with exactly a name and arguments, or with a tool's name as its only key."""
    if not isinstance(item, dict):
        return None

    fields = {key: value for key, value in item.items() if not _is_envelope(key, value)}
    terminal = item.get("terminal")
    function = fields.get("function")

    if len(fields) == 1 and isinstance(function, dict):
        fields = function

    names = fields.keys() & _NAME_KEYS
    keys = fields.keys() & _ARGUMENT_KEYS

    if len(fields) == 1 and not names:
        [(written, arguments)] = fields.items()
        if written not in tools.names:
            return None
    elif (
        len(names) == 1 and len(keys) == len(fields) - 1 and (keys or marked or terminal is not None) and len(keys) <= 1
    ):
        written = fields[names.pop()]
        arguments = fields[keys.pop()] if keys else {}
    else:
        return None

    if isinstance(arguments, str):
        arguments = decode_arguments(arguments)

    if not isinstance(written, str) or not written.strip() or not isinstance(arguments, dict | None):
        return None

    return WrittenCall(tools.plain_name(written), arguments or {}, terminal=terminal is True)


def _is_envelope(key: str, value: Any) -> bool:
    return key in _ENVELOPE_KEYS or (key == "type" and isinstance(value, str) and value in _KINDS)


def _decoded(text: str) -> Any:
    value = decode_strictly(text)
    if isinstance(value, dict | list):
        return value

    quoted = _BARE_KEY.sub(lambda match: f'"{match["key"]}"' if match["key"] else match[0], text)
    return decode_strictly(quoted) if quoted != text else value


def _object(name_key: str, arguments_key: str) -> Callable[[str, JsonMap], str]:
    return lambda tool, arguments: as_json({name_key: tool, arguments_key: arguments})


def _listed(tool: str, arguments: JsonMap) -> Any:
    return [{"name": tool, "arguments": arguments}]


_OPENAI: Final = PlainJson(
    "openai_json",
    ('{"tool_calls"',),
    lambda tool, arguments: as_json(
        {"tool_calls": [{"id": "1", "type": "function", "function": {"name": tool, "arguments": as_json(arguments)}}]}
    ),
)
_KEYS: Final = (
    "name",
    "tool",
    "function",
    "tool_name",
    "type",
    "id",
    "terminal",
    *_THOUGHT_KEYS,
    *sorted(_ARGUMENT_KEYS - {"action_input"}),
)

MARKED_JSON: Final = (
    MarkedJson("hermes", ("<tool_call>", "<function_call>", "<tools>", "<tool>"), "</tool_call>"),
    MarkedJson("llama3", ("<|python_tag|>",), "<|eom_id|>", lambda tool, args: {"name": tool, "parameters": args}),
    MarkedJson("mistral", ("[TOOL_CALLS]",), "", _listed),
    MarkedJson("granite", ("<|tool_call|>",), "<|/tool_call|>", _listed),
    MarkedJson("phi4", ("functools",), "", _listed),
    MarkedJson("jamba", ("<tool_calls>",), "</tool_calls>", _listed),
    MarkedJson("nemotron", ("<TOOLCALL>",), "</TOOLCALL>", _listed),
    MarkedJson("internlm", ("<|action_start|><|plugin|>",), "<|action_end|>"),
    MarkedJson(
        "command",
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
        lambda tool, args: [{"tool_call_id": "0", "tool_name": tool, "parameters": args}],
    ),
    MarkedJson("lm_studio", ("[TOOL_REQUEST]",), "[END_TOOL_REQUEST]"),
    MarkedJson("apertus", ("<|tools_prefix|>",), "<|tools_suffix|>", lambda tool, args: [{tool: args}]),
    MarkedJson("gigachat", ("function_call<|role_sep|>",)),
)

PLAIN_JSON: Final = (
    _OPENAI,
    PlainJson("langchain_json", ('{"action"', '{"action_input"'), _object("action", "action_input")),
    PlainJson(
        "spec4", ("{tool:",), lambda tool, arguments: f'{{tool: "{tool}", args: {as_json(arguments)}, terminal: false}}'
    ),
    PlainJson("json", tuple(f'{mark}{{"{key}"' for mark in ("", "[") for key in _KEYS), _object("name", "arguments")),
)
