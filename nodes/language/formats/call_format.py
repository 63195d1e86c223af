"""The interface of a tool-call format, and the parts that readers share.

A format has a name, an example, the markers that start its markup, a reader, and a reminder for corrections.
Recognition, hiding in streams, corrections, documents and tests all use the same table of formats.
"""

import json
import re
from abc import ABC, abstractmethod
from ast import literal_eval
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.text_protocol import decode_strictly, json_end
from mendgraph.nodes.records import JsonMap

TOOL_NAME: Final = r"(?P<tool>[\w./:|<>-]{1,200}?)"
"""A pattern for a tool's name, including the decorations that models add."""

OPENERS: Final = (
    r"(?:<(?:[\w-]+:)?(?:tool_calls?|function_calls?|tools)>|<[|｜]DSML[|｜](?:tool|function)_calls>"
    r"|<[|｜]tool[_▁]calls?[_▁](?:section_)?begin[|｜]>(?:function<[|｜]tool_sep[|｜]>)?)"
)
"""Opening marks before calls that carry no further information."""

_OPENING_MARKS: Final = re.compile(rf"(?:{OPENERS}\s*+)++")
_BEFORE: Final = rf"(?:{OPENERS}\s*+){{0,4}}?"
_AFTER: Final = re.compile(
    r"(?:\s*+(?:</(?:[\w-]+:)?(?:tool_calls?|function_calls?|tools)>|</[|｜]DSML[|｜](?:tool|function)_calls>"
    r"|<[|｜]tool[_▁]calls?[_▁](?:section_)?end[|｜]>|<\|(?:im_end|eot_id|eom_id|call|end)\|>|<｜end▁of▁sentence｜>))++"
)
_DECORATED: Final = re.compile(
    r"(?:(?:functions|default_api|tools?|multi_tool_use)[./:])?(?P<name>[\w-]+)(?::\d+)?(?:<[|｜].*)?", re.DOTALL
)


class ToolSchemas(NamedTuple):
    """The names of the available tools and the JSON schemas of their arguments."""

    names: frozenset[str]
    schema_of: Callable[[str], JsonMap] = lambda _: {}

    def plain_name(self, written: str) -> str:
        """Return the tool's name without `functions.`, `:0` and channel marks; an unknown name as it is."""
        written = written.strip()
        if written in self.names:
            return written

        decorated = _DECORATED.fullmatch(written)
        if decorated and decorated["name"] in self.names:
            return decorated["name"]

        return written

    def properties(self, tool: str) -> JsonMap:
        """Return the schemas of the tool's arguments, by name."""
        if tool in self.names:
            properties = self.schema_of(tool).get("properties")
        else:
            properties = None

        return properties if isinstance(properties, dict) else {}

    def types(self, tool: str, key: str) -> frozenset[str]:
        """Return the JSON types of an argument; empty if its schema has none."""
        return types_of(self.properties(tool).get(key), self.schema_of(tool) if tool in self.names else {})

    def requires(self, tool: str, key: str) -> bool:
        """Return whether the argument is required."""
        required = self.schema_of(tool).get("required")
        return isinstance(required, list) and key in required

    def typed(self, tool: str, key: str, text: str) -> Any:
        """Convert raw text to the type in the argument's schema; text stays text if that is allowed."""
        types = self.types(tool, key)
        if "null" in types and text.strip() in {"null", "None"} and not self.requires(tool, key):
            return None
        if not types or "string" in types:
            return text

        value = decode_strictly(text.strip())
        if isinstance(value, dict | list | int | float | str | None):
            return value

        try:
            return literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text


class WrittenCall(NamedTuple):
    """A complete call. `values` are the positions of values written as raw text; empty for JSON.

    A `terminal` call ends the work. Source: spec 4, the Invocation contract.
    """

    tool: str
    arguments: JsonMap
    values: tuple[tuple[int, int], ...] = ()
    terminal: bool = False


class Markup(NamedTuple):
    """A piece of markup: its position, its complete calls, and why the rest cannot be read ("" if nothing is left)."""

    start: int
    end: int
    calls: tuple[WrittenCall, ...] = ()
    problem: str = ""
    quoted: bool = False
    format: str = ""


class CallFormat(ABC):
    """One format.

    `markers` are the strings that start its markup; `{tool}` stands for each tool's name. With `line_start` they count
    only at the start of a line; those in `inline` count anywhere. `fences` are the info strings of code fences that
    belong to the format; with `fenced_only` it runs nowhere else. `weak` markup has no marks of its own: only calls may
    follow it.
    """

    name: str
    markers: tuple[str, ...]
    line_start: bool = False
    weak: bool = False
    fences: frozenset[str] = frozenset()
    fenced_only: bool = False
    inline: tuple[str, ...] = ()

    @property
    @abstractmethod
    def reminder(self) -> str:
        """A description of the complete format, for corrections of incomplete calls."""

    @abstractmethod
    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return a call in this format."""

    @abstractmethod
    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read the markup at `position`; None for another format.

        Incomplete markup has a problem. Markup without calls and without a problem is other text, and is skipped.
        """

    def end_marks(self, tools: ToolSchemas) -> re.Pattern[str] | None:  # noqa: ARG002 - of each tool, in some formats
        """A pattern for the end of a call with raw values; None if values are quoted."""
        return None


def head_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for the start of a call, with optional opening marks before it."""
    return re.compile(_BEFORE + pattern, re.DOTALL)


def read_head(
    pattern: re.Pattern[str], text: str, position: int, tools: ToolSchemas, *, known: bool
) -> tuple[str, int] | None:
    """Return the tool's name and the position after the start of a call; None for another format.

    With `known` the start alone does not identify a call, and the tool must be a known one.
    """
    match = pattern.match(text, position)
    if match is None:
        return None

    tool = tools.plain_name(match["tool"])
    if tool in tools.names or not known:
        return (tool, match.end())

    return None


def marker_pattern(marker: str, tools: str = "") -> str:
    """Return a pattern for a marker, with `tools` for a name and optional white space after brackets."""
    literal = re.escape(marker.replace("{tool}", "\0")).replace(r"\{", r"\{\s*+").replace(r"\ ", r"\s*+")
    literal = re.sub(r"\A\\\[(?!TOOL)", r"\\[\\s*+", literal)
    return literal.replace("\0", f"(?:{tools})")


def skip_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    while position < len(text) and text[position].isspace():
        position += 1

    return position


def after_literal(text: str, position: int, literal: str) -> int:
    """Return the position after the literal and white space before it; `position` if it does not follow."""
    start = skip_space(text, position)
    if literal and text.startswith(literal, start):
        return start + len(literal)

    return position


def after_openers(text: str, position: int) -> int:
    """Return the position after the opening marks at `position`."""
    opening = _OPENING_MARKS.match(text, position)
    return opening.end() if opening else position


def after_marks(text: str, position: int) -> int:
    """Return the position after the closing marks at `position`."""
    closing = _AFTER.match(text, position)
    return closing.end() if closing else position


def incomplete(text: str, start: int, problem: str, calls: Sequence[WrittenCall] = ()) -> Markup:
    """Return markup that cannot be read; it extends to the end, because the rest may belong to it."""
    return Markup(start, len(text), tuple(calls), problem)


def json_value(text: str, position: int) -> tuple[Any, int] | None:
    """Return the JSON object or list at `position` and its end; None if it is incomplete."""
    if text[position : position + 1] not in {"{", "["}:
        return None

    end = json_end(text, position)
    if end is None:
        return None

    value = decode_strictly(text[position:end])
    if isinstance(value, dict | list):
        return (value, end)

    return None


def types_of(schema: Any, whole: JsonMap, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if it names none."""
    if not isinstance(schema, dict) or depth > _MOST_REFERENCES:
        return frozenset()

    reference = schema.get("$ref")
    if isinstance(reference, str):
        target: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None

        return types_of(target, whole, depth + 1)

    types = schema.get("type")
    names = {type_name for type_name in (types if isinstance(types, list) else [types]) if isinstance(type_name, str)}

    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            names |= types_of(part, whole, depth + 1)

    return frozenset(names)


_MOST_REFERENCES: Final = 8


def as_json(value: Any) -> str:
    """Return the value as JSON in the notation of models."""
    return json.dumps(value, ensure_ascii=False)


def as_raw(value: Any) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else as_json(value)
