"""Replies that are meant as calls but are written in another harness's form.

A small model prints its call as a JSON block in nine of ten replies; a harness that takes that for the final answer
reports success where nothing was done. Source: 163 of 551 logged replies of a 1.5B model.

Questions that are answered with different caution. `recognised` gives calls to run, so it wants a reply that is calls
and nothing else, to known tools, with nothing left to guess; before a single call at the end of the reply there may be
a sentence that announces it. `looks_like_call` only makes the machine ask again, so it also sees broken calls, calls
after any prose and those in any code fence. `fenced_calls` gives these one by one, to be told or held against others.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from nodes.language.json_dialects import (
    is_call_of_anything,
    read_function_tags,
    read_json,
    read_python_tag,
    read_react,
    read_tool_call_tags,
    read_tool_calls_mark,
)
from nodes.language.lead_sentences import announces
from nodes.language.line_dialects import read_bare_call, read_tool_lines, read_tool_tag
from nodes.language.passages import Passage, before_fence, passages, whole
from nodes.language.python_calls import read_python_calls
from nodes.records import JsonMap, ToolInvocation

Fits = Callable[[str, JsonMap], bool]
"""Whether these arguments fit the tool's schema."""

_Reader = Callable[[str, frozenset[str]], list[ToolInvocation] | None]
_PythonReader = Callable[[str, frozenset[str], Mapping[str, str]], list[ToolInvocation] | None]

_DATA_FENCES = frozenset(
    {"", "json", "text", "txt", "plaintext", "xml", "tool", "tool_call", "tool_calls", "tool_code"}
)
_CODE_FENCES = _DATA_FENCES | {"python", "py", "python3"}
_ENVELOPE = r'(?:"(?:type|id)"\s*+:\s*+"[^"\n]*+"\s*+,\s*+)?(?:"function"\s*+:\s*+\{\s*+)?'
_JSON_CALL = (
    rf'\{{\s*+{_ENVELOPE}"(?:name|tool|function|action)"\s*+:\s*+"(?P<tool>[^"\n]*+)"\s*+,'
    r'\s*+"(?:arguments|parameters|args|input|action_input)"\s*+:'
)
_NAME = r"(?P<tool>[\w.-]++)[ \t]*+"
_TAGGED = re.compile(
    r"^[ \t]*+(?:<tool_call>|<function_call>|<tools>|<function=|<tool:|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|(?i:action)[ \t]*+:)",
    re.MULTILINE,
)


class Dialect(NamedTuple):
    """One foreign form of a call.

    `read` gives the calls of a body that is nothing but calls in this form, else None. `mark` finds the beginning of
    such a call at the start of a line; its group `tool`, if it has one, must be a known tool. `fences` are the info
    words under which the form may stand in a fenced block; None is any. `read_as_python` stands in for `read` where the
    form is Python's: an example in a text may look like that, so the arguments have to fit. Without `anywhere` only a
    fence that begins or ends the reply counts.
    """

    name: str
    mark: re.Pattern[str]
    read: _Reader | None = None
    read_as_python: _PythonReader | None = None
    fences: frozenset[str] | None = _DATA_FENCES
    anywhere: bool = True


class Rescue(NamedTuple):
    """The form in which a reply was written, for the trace, and its calls in order, with line number 0."""

    dialect: str
    calls: list[ToolInvocation]


class FencedCall(NamedTuple):
    """A code fence that holds calls in a foreign form, from its first line on: its text, and the calls if it is whole.

    `tool` is the first tool that it names, "" where it names none at the beginning of a line.
    """

    line_number: int
    dialect: str
    tool: str
    source: str
    calls: list[ToolInvocation]


class _Vocabulary(NamedTuple):
    """What a call can be checked against."""

    known_tools: frozenset[str]
    fits: Fits | None
    only_required: Mapping[str, str]

    def fit(self, calls: list[ToolInvocation]) -> bool:
        return self.fits is None or all(self.fits(call.tool_name, call.args) for call in calls)


def recognised(
    text: str,
    known_tools: frozenset[str],
    fits: Fits | None = None,
    only_required: Mapping[str, str] | None = None,
) -> Rescue | None:
    """The calls of a reply that is nothing but calls in one foreign form; None for everything else.

    Around the calls there may be white space, a code fence each or one around all, and a leading word such as
    "Action:". Before one call that ends the reply there may be a sentence that announces it.

    Args:
        text: The whole reply.
        known_tools: The tools that there are.
        fits: Calls in Python's form, and those after a sentence, are only read where their arguments fit.
        only_required: For each tool with exactly one required argument its name: a Python call may leave it out.
    """
    words = _Vocabulary(known_tools, fits, only_required or {})
    return _read(whole(text), words) or _read_fences(text, words) or _read_announced(text, words)


def read_dialect(
    text: str,
    known_tools: frozenset[str],
    fits: Fits | None = None,
    only_required: Mapping[str, str] | None = None,
) -> list[ToolInvocation] | None:
    """The calls that `recognised` finds, or None."""
    found = recognised(text, known_tools, fits, only_required)
    return found.calls if found else None


def looks_like_call(text: str, known_tools: frozenset[str]) -> str | None:
    """The name of the dialect that a reply is meant in, also where `read_dialect` cannot read it; None for answers.

    Code that calls a function of a tool's name counts at the beginning or the end of the reply only. A reply that is
    one JSON call as a whole is meant as such whatever tool it names.
    """
    if found := recognised(text, known_tools):
        return found.dialect
    parts = passages(text)
    for dialect in DIALECTS:
        places = parts if dialect.anywhere else [part for part in parts if part.opening is None or part in _ends(parts)]
        if any(_marked(dialect, part, known_tools) is not None for part in places):
            return dialect.name
    alone = len(parts) == 1 and (parts[0].info is None or parts[0].info in _DATA_FENCES)
    return "json" if alone and is_call_of_anything(parts[0].body) else None


def fenced_calls(text: str, known_tools: frozenset[str]) -> list[FencedCall]:
    """The code fences of a reply that hold calls in a foreign form, in order; `tool:` lines are none."""
    found: list[FencedCall] = []
    parts = passages(text)
    words = _Vocabulary(known_tools, None, {})
    for part in parts:
        if part.opening is None:
            continue
        for dialect in DIALECTS:
            tool = _marked(dialect, part, known_tools) if dialect.anywhere or part in _ends(parts) else None
            if tool is not None and dialect.name != "tool_line":
                rescue = _read(part, words)
                calls = rescue.calls if rescue else []
                found.append(
                    FencedCall(part.line, dialect.name, calls[0].tool_name if calls else tool, part.body, calls)
                )
                break
    return found


def holds_call(opening: str, body: str, known_tools: frozenset[str]) -> bool:
    """Whether a code fence, given the line that opens it and its inside, holds a call in a foreign form, or its start.

    Code in Python's form is none here: it may be any code.
    """
    part = Passage(opening, body.strip())
    forms = (dialect for dialect in DIALECTS if dialect.anywhere and dialect.name != "tool_line")
    return any(_marked(dialect, part, known_tools) is not None for dialect in forms)


def describe_dialect(name: str) -> str:
    """What an `ExtractionError` about a reply in this dialect says, in either protocol."""
    return f"The reply looks like a tool call in the form '{name}', which does not run. Nothing was executed."


def _read(passage: Passage, words: _Vocabulary) -> Rescue | None:
    """The calls of a passage that is nothing but calls."""
    if passage.is_file:
        return None
    for dialect in DIALECTS:
        if not _may_stand_in(dialect, passage):
            continue
        if dialect.read and (calls := dialect.read(passage.body, words.known_tools)):
            return Rescue(dialect.name, calls)
        as_python = dialect.read_as_python
        calls = as_python(passage.body, words.known_tools, words.only_required) if as_python else None
        if calls and words.fit(calls):
            return Rescue(dialect.name, calls)
    return None


def _read_fences(text: str, words: _Vocabulary) -> Rescue | None:
    """The calls of a reply that is several fenced blocks, all of them calls in the same form."""
    parts = passages(text)
    if len(parts) < 2 or any(part.opening is None for part in parts):
        return None
    found: list[Rescue] = []
    for part in parts:
        rescue = _read(part, words)
        if rescue is None or rescue.dialect != (found or [rescue])[0].dialect:
            return None
        found.append(rescue)
    return Rescue(found[0].dialect, [call for rescue in found for call in rescue.calls])


def _read_announced(text: str, words: _Vocabulary) -> Rescue | None:
    """The one call that ends a reply after a sentence which says that it comes."""
    for lead, rest in _led(text):
        rescue = _read(whole(rest), words)
        if rescue and len(rescue.calls) == 1 and announces(lead, rescue.calls[0].args) and words.fit(rescue.calls):
            return rescue
    return None


def _led(text: str) -> Iterator[tuple[str, str]]:
    """A reply cut before its first code fence, and one without fences before it cut at the first tag."""
    if fenced := before_fence(text):
        yield fenced
    tag = _TAGGED.search(text)
    if tag and text[: tag.start()].strip():
        yield text[: tag.start()], text[tag.start() :]


def _ends(parts: list[Passage]) -> tuple[Passage, ...]:
    return (parts[0], parts[-1])


def _marked(dialect: Dialect, passage: Passage, known_tools: frozenset[str]) -> str | None:
    """The tool that a call in this dialect names, "" where it names none; None where there is no such call."""
    if not _may_stand_in(dialect, passage):
        return None
    names = (match.groupdict().get("tool") for match in dialect.mark.finditer(passage.body))
    return next((name or "" for name in names if name is None or name in known_tools), None)


def _may_stand_in(dialect: Dialect, passage: Passage) -> bool:
    return passage.opening is None or dialect.fences is None or passage.info in dialect.fences


_line = partial(re.compile, flags=re.MULTILINE)

DIALECTS: tuple[Dialect, ...] = (
    Dialect("tool_call_tags", _line(r"^[ \t]*+<(?:tool_call|function_call|tools)>"), read_tool_call_tags),
    Dialect("function_tags", _line(r"^[ \t]*+<function=(?P<tool>[\w.-]++)>"), read_function_tags),
    Dialect("tool_calls_mark", _line(r"^[ \t]*+(?:\[TOOL_CALLS\]|[\w.-]++\[ARGS\])"), read_tool_calls_mark),
    Dialect(
        "python_tag",
        _line(r"^[ \t]*+<\|python_tag\|>"),
        read_python_tag,
    ),
    Dialect("tool_tag", _line(r"^[ \t]*+<tool:[ \t]*+[\w.-]++[ \t]*+[(\w{]"), read_as_python=read_tool_tag),
    Dialect(
        "react",
        _line(rf"^[ \t]*+(?:(?i:action)[ \t]*+:[ \t]*+)?`?{_NAME}`?[ \t]*+\r?\n\s*+(?i:action input)"),
        read_react,
    ),
    Dialect("json", _line(rf"^[ \t]*+(?:\[\s*+)?{_JSON_CALL}"), read_json),
    Dialect("tool_line", _line(rf"^[ \t]*+tool:[ \t]*+{_NAME}\("), read_tool_lines, fences=None),
    Dialect("bare_call", re.compile(rf"\A{_NAME}\([ \t]*+\{{"), read_bare_call),
    Dialect(
        "python_call",
        re.compile(rf"\A{_NAME}\(\s*+(?:[A-Za-z_]\w*+\s*+=\s*+)?[\"'\[{{\d].*\)\Z", re.DOTALL),
        read_as_python=read_python_calls,
        fences=_CODE_FENCES,
        anywhere=False,
    ),
)
"""Tried in this order: tags before the JSON that they hold."""
