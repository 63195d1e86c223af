"""Replies that are meant as calls but are written in another harness's form.

A small model prints its call as a JSON block in nine of ten replies; a harness that takes that for the final answer
reports success where nothing was done. Source: 163 of 551 logged replies of a 1.5B model.

Two questions, answered with different caution. `read_dialect` gives calls to run, so it wants a reply that is a call
and nothing else, to known tools, with nothing left to guess. `looks_like_call` only makes the machine ask again, so it
also sees broken calls and calls after a sentence of prose; a call quoted between two passages of prose is an example.
"""

import re
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from nodes.language.json_arguments import decode_strictly
from nodes.language.text_protocol import fence_after, parse_tool_line
from nodes.records import ToolInvocation

_Reader = Callable[[str, frozenset[str]], list[ToolInvocation] | None]

_LEADING_WORD = re.compile(r"\s*+(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:")
_DATA_FENCES = frozenset(
    {"", "json", "text", "txt", "plaintext", "xml", "tool", "tool_call", "tool_calls", "tool_code"}
)
_JSON_CALL = r'\{\s*+"(?:name|tool)"\s*+:\s*+"(?P<tool>[^"\n]*+)"\s*+,\s*+"(?:arguments|parameters|args)"\s*+:'
_BETWEEN_TAGS = re.compile(r"</tool_call>\s*+<tool_call>")


class Dialect(NamedTuple):
    """One foreign form of a call.

    `read` gives the calls of a body that is nothing but calls in this form, else None. `mark` finds the beginning of
    such a call at the start of a line; its group `tool`, if it has one, must be a known tool. `fences` are the info
    words under which the form may stand in a fenced block; None is any.
    """

    name: str
    read: _Reader
    mark: re.Pattern[str]
    fences: frozenset[str] | None = _DATA_FENCES


class _Segment(NamedTuple):
    """A passage of a reply: the inside of a code fence with its info word, or prose (`info` is None)."""

    info: str | None
    body: str


def read_dialect(text: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    """The calls of a reply that is nothing but calls in one foreign form, in order, with line number 0; else None.

    Around the calls there may be white space, one code fence, and a leading word such as "Action:".
    """
    found = _recognise(text, known_tools)
    return found[1] if found else None


def looks_like_call(text: str, known_tools: frozenset[str]) -> str | None:
    """The name of the dialect that a reply is meant in, also where `read_dialect` cannot read it; None for answers.

    Apart from prose, only a fenced block that begins or ends the reply counts.
    """
    if found := _recognise(text, known_tools):
        return found[0].name
    segments = _segments(text)
    ends = (0, len(segments) - 1)
    places = [segment for index, segment in enumerate(segments) if segment.info is None or index in ends]
    for dialect in DIALECTS:
        if any(_is_marked(dialect, segment, known_tools) for segment in places):
            return dialect.name
    return None


def describe_dialect(name: str) -> str:
    """What an `ExtractionError` about a reply in this dialect says, in either protocol."""
    return f"The reply looks like a tool call in the form '{name}', which does not run. Nothing was executed."


def _recognise(text: str, known_tools: frozenset[str]) -> tuple[Dialect, list[ToolInvocation]] | None:
    whole = _whole(text)
    for dialect in DIALECTS:
        if _may_stand_in(dialect, whole) and (calls := dialect.read(whole.body, known_tools)):
            return dialect, calls
    return None


def _is_marked(dialect: Dialect, segment: _Segment, known_tools: frozenset[str]) -> bool:
    if not _may_stand_in(dialect, segment):
        return False
    names = (match.groupdict().get("tool") for match in dialect.mark.finditer(segment.body))
    return any(name is None or name in known_tools for name in names)


def _may_stand_in(dialect: Dialect, segment: _Segment) -> bool:
    return segment.info is None or dialect.fences is None or segment.info in dialect.fences


def _whole(text: str) -> _Segment:
    """The reply as one passage: without its leading word, and without the fence if one stands around all of it."""
    body = text[_lead_end(text) :].strip()
    first, _, rest = body.partition("\n")
    fence = fence_after(first, "")
    if not fence:
        return _Segment(None, body)
    inside, _, last = rest.rpartition("\n")
    return _Segment(_info_word(first), (rest if fence_after(last, fence) else inside).strip())


def _segments(text: str) -> list[_Segment]:
    """The passages of a reply in order, without its leading word and without blank prose."""
    segments: list[_Segment] = []
    info: str | None = None
    fence, lines = "", list[str]()
    for line in text[_lead_end(text) :].splitlines(keepends=True):
        before, fence = fence, fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue
        segments.append(_Segment(info, "".join(lines).strip()))
        info, lines = (_info_word(line) if fence else None), []
    segments.append(_Segment(info, "".join(lines).strip()))
    return [segment for segment in segments if segment.info is not None or segment.body]


def _lead_end(text: str) -> int:
    lead = _LEADING_WORD.match(text)
    return lead.end() if lead else 0


def _info_word(line: str) -> str:
    words = line.strip().lstrip("`~").lower().split(maxsplit=1)
    return words[0] if words else ""


def _read_json(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    value = decode_strictly(body)
    calls = [_call_of(item, known_tools) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if None not in calls else None


def _call_of(item: object, known_tools: frozenset[str]) -> ToolInvocation | None:
    """The call that a JSON object with exactly a known tool's name and an object of arguments means."""
    if not isinstance(item, dict):
        return None
    for name_key, arguments_key in product(("name", "tool"), ("arguments", "parameters", "args")):
        if item.keys() == {name_key, arguments_key}:
            name, arguments = item[name_key], item[arguments_key]
            fits = isinstance(name, str) and name in known_tools and isinstance(arguments, dict)
            return ToolInvocation(name, arguments, 0) if fits else None
    return None


def _read_tags(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    if not (body.startswith("<tool_call>") and body.endswith("</tool_call>")):
        return None
    inside = body.removeprefix("<tool_call>").removesuffix("</tool_call>")
    calls = [_call_of(decode_strictly(part.strip()), known_tools) for part in _BETWEEN_TAGS.split(inside)]
    return [call for call in calls if call is not None] if None not in calls else None


def _read_tool_tag(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    if not (body.startswith("<tool:") and body.endswith(">")):
        return None
    return _read_tool_line(body[1:-1].removesuffix("/"), known_tools)


def _read_tool_line(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    outcome = parse_tool_line(body, 0, known_tools)
    return [outcome] if isinstance(outcome, ToolInvocation) else None


def _read_bare_call(body: str, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    return _read_tool_line(f"tool: {body}", known_tools) if "tool:" not in body else None


DIALECTS: tuple[Dialect, ...] = (
    Dialect("tool_call_tags", _read_tags, re.compile(r"^[ \t]*+<tool_call>", re.MULTILINE)),
    Dialect("tool_tag", _read_tool_tag, re.compile(r"^[ \t]*+<tool:[ \t]*+[\w.-]++[ \t]*+\(", re.MULTILINE)),
    Dialect("json", _read_json, re.compile(rf"^[ \t]*+(?:\[\s*+)?{_JSON_CALL}", re.MULTILINE)),
    Dialect(
        "tool_line",
        _read_tool_line,
        re.compile(r"^[ \t]*+tool:[ \t]*+(?P<tool>[\w.-]++)[ \t]*+\(", re.MULTILINE),
        fences=None,
    ),
    Dialect("bare_call", _read_bare_call, re.compile(r"\A(?P<tool>[\w.-]++)[ \t]*+\([ \t]*+\{")),
)
"""Tried in this order: tags before the JSON that they hold."""
