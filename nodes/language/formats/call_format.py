"""What a tool-call format is, and what reading a piece of markup gives.

A format has a name, an example, the strings with which its markup starts, a reader and a reminder for the correction.
Whatever else the project does with formats (recognition, hiding in a stream, corrections, documents, tests) uses these.
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
"""A tool's name in a pattern, with what models decorate it with."""

OPENERS: Final = (
    r"(?:<(?:[\w-]+:)?(?:tool_calls?|function_calls?|tools)>|<[|｜]DSML[|｜](?:tool|function)_calls>"
    r"|<[|｜]tool[_▁]calls?[_▁](?:section_)?begin[|｜]>(?:function<[|｜]tool_sep[|｜]>)?)"
)
"""Marks before calls that say nothing more about them."""

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
    """The tools that there are, and the JSON schema of the arguments of each."""

    names: frozenset[str]
    schema_of: Callable[[str], JsonMap] = lambda _: {}

    def plain_name(self, written: str) -> str:
        """The name of the tool that is meant, without `functions.`, `:0` and channel marks; other names as written."""
        written = written.strip()
        if written in self.names:
            return written

        decorated = _DECORATED.fullmatch(written)
        if decorated and decorated["name"] in self.names:
            return decorated["name"]

        return written

    def properties(self, tool: str) -> JsonMap:
        """The schemas of the tool's arguments, by name."""
        if tool in self.names:
            properties = self.schema_of(tool).get("properties")
        else:
            properties = None

        return properties if isinstance(properties, dict) else {}

    def types(self, tool: str, key: str) -> frozenset[str]:
        """The JSON types that an argument may have; none where its schema does not say."""
        return types_of(self.properties(tool).get(key), self.schema_of(tool) if tool in self.names else {})

    def requires(self, tool: str, key: str) -> bool:
        """Whether a tool cannot be called without this argument."""
        required = self.schema_of(tool).get("required")
        return isinstance(required, list) and key in required

    def typed(self, tool: str, key: str, text: str) -> Any:
        """The value that raw text stands for, by the schema of the argument: text where that may be text."""
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
    """One complete call. `values` are the places of the values that stand there as raw text, none in JSON.

    A `terminal` call says that the work ends with it. Source: spec 4, the Invocation contract.
    """

    tool: str
    arguments: JsonMap
    values: tuple[tuple[int, int], ...] = ()
    terminal: bool = False


class Markup(NamedTuple):
    """A piece of markup: its place, its complete calls, and why the rest of it cannot be read ("" where all is)."""

    start: int
    end: int
    calls: tuple[WrittenCall, ...] = ()
    problem: str = ""
    quoted: bool = False
    format: str = ""


class CallFormat(ABC):
    """One format.

    `markers` are the strings with which its markup starts; `{tool}` in one stands for the name of each tool. Where
    `line_start`, they count at the beginning of a line only, and those in `inline` anywhere. `fences` are the info
    words of code fences that are part of the format, and `fenced_only` says that it runs nowhere else. Markup that is
    `weak` is told from an answer by its place alone: nothing but calls may follow it.
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
        """How the format is written whole, for the correction of a call that is not."""

    @abstractmethod
    def example(self, tool: str, arguments: JsonMap) -> str:
        """A call of this tool in the format."""

    @abstractmethod
    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """The markup that starts at `position`, with a problem where it is incomplete; None for another format.

        Markup without calls and without a problem is text that is no call and may be passed over.
        """

    def end_marks(self, tools: ToolSchemas) -> re.Pattern[str] | None:  # noqa: ARG002 - of each tool, in some formats
        """What ends a call whose values are raw text; None where values are quoted and cannot hold it unseen."""
        return None


def head_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern for the beginning of a call, with the marks that may stand before it."""
    return re.compile(_BEFORE + pattern, re.DOTALL)


def read_head(
    pattern: re.Pattern[str], text: str, position: int, tools: ToolSchemas, *, known: bool
) -> tuple[str, int] | None:
    """The tool that the beginning of a call names, and where that ends; None for another format.

    With `known` the beginning alone tells no call, and the tool has to be a known one.
    """
    match = pattern.match(text, position)
    if match is None:
        return None

    tool = tools.plain_name(match["tool"])
    if tool in tools.names or not known:
        return (tool, match.end())

    return None


def marker_pattern(marker: str, tools: str = "") -> str:
    """A marker as a pattern, with `tools` for a name. White space is free behind a bracket and where there is some."""
    literal = re.escape(marker.replace("{tool}", "\0")).replace(r"\{", r"\{\s*+").replace(r"\ ", r"\s*+")
    literal = re.sub(r"\A\\\[(?!TOOL)", r"\\[\\s*+", literal)
    return literal.replace("\0", f"(?:{tools})")


def skip_space(text: str, position: int) -> int:
    """The place of the first character from `position` on that is no white space."""
    while position < len(text) and text[position].isspace():
        position += 1

    return position


def after_literal(text: str, position: int, literal: str) -> int:
    """Just behind a literal that follows, white space apart; `position` where it does not."""
    start = skip_space(text, position)
    if literal and text.startswith(literal, start):
        return start + len(literal)

    return position


def after_openers(text: str, position: int) -> int:
    """Just behind the opening marks that stand at `position`."""
    opening = _OPENING_MARKS.match(text, position)
    return opening.end() if opening else position


def after_marks(text: str, position: int) -> int:
    """Just behind the closing marks that follow at `position`."""
    closing = _AFTER.match(text, position)
    return closing.end() if closing else position


def incomplete(text: str, start: int, problem: str, calls: Sequence[WrittenCall] = ()) -> Markup:
    """Markup that cannot be read: what follows may belong to it, so all of the text does."""
    return Markup(start, len(text), tuple(calls), problem)


def json_value(text: str, position: int) -> tuple[Any, int] | None:
    """The JSON object or list that begins at `position` and where it ends; None where it is not whole."""
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
    """The JSON types that a schema allows; none where it does not say."""
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
    """A value as models write JSON."""
    return json.dumps(value, ensure_ascii=False)


def as_raw(value: Any) -> str:
    """A value as raw text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)
