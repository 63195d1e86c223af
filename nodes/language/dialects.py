"""Replies that are meant as calls but are written in another harness's form.

A small model prints its call as a JSON block in nine of ten replies; a harness that takes that for the final answer
reports success where nothing was done. Source: 163 of 551 logged replies of a 1.5B model.

`recognised` gives calls to run, so it wants a reply that is calls and nothing else, to known tools, with nothing left
to guess. Nothing of a call in Python's form is evaluated: its arguments must be literals that JSON has as well.
`looks_like_call` only makes the machine ask again, so it also sees broken calls, calls after any prose, those in a code
fence, and forms that are not read at all. `fenced_calls` gives the code fences that hold calls, to be told.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.json_arguments import MAX_ARGUMENT_CHARS, decode_arguments, decode_strictly
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, extract_in_order, fence_after, json_end, parse_tool_line
from mendgraph.nodes.records import JsonMap, ToolInvocation

NO_SINGLE: Final[Mapping[str, str]] = MappingProxyType({})

_FILE_NAME = re.compile(r"/?(?:[\w@.+-]++/)*(?:[\w@.+-]*\.[A-Za-z]\w{0,9}|(?<=/)[\w@.+-]++|Makefile|Dockerfile)")
_LEADING_WORD = re.compile(r"\s*+(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:")
_COMMENT = re.compile(r"(?:#+|//+)[ \t]*+([^\n]*+)")


class Passage(NamedTuple):
    """A passage of a reply: the inside of a code fence with the line that opens it, or prose (`opening` is None).

    `line` and `end` are the numbers of its first and last line, those of the fence itself included.
    """

    opening: str | None
    body: str
    line: int = 1
    end: int = 1

    @property
    def info(self) -> str:
        """The first word after the fence's marks, in lower case."""
        return next(iter(self._words()), "").lower()

    @property
    def is_file(self) -> bool:
        """Whether the fence, or a comment in the first line inside, says that this is the text of a file."""
        comment = _COMMENT.match(self.body) if self.opening is not None else None
        named = comment[1].split() if comment else []
        return any(
            _FILE_NAME.fullmatch(word.strip("*`_\"'():,;")) for word in [*named[: len(named) == 1], *self._words()]
        )

    def _words(self) -> list[str]:
        return (self.opening or "").strip().lstrip("`~").split()


class Rescue(NamedTuple):
    """The form in which a reply was written, for the trace, and its calls in order, with line number 0."""

    dialect: str
    calls: list[ToolInvocation]


def recognised(text: str, known_tools: frozenset[str], only_required: Mapping[str, str] = NO_SINGLE) -> Rescue | None:
    """The calls of a reply that is nothing but calls in a foreign form; None for everything else.

    Around the calls there may be white space, a code fence each or one around all, and a leading word such as
    "Action:". `only_required` is, for each tool with exactly one required argument, its name: a Python call may leave
    it out.
    """
    if found := _read(_whole(text), known_tools, only_required):
        return found
    parts = passages(text)
    read = [_read(part, known_tools, only_required) for part in parts if part.opening is not None]
    found_all = [each for each in read if each is not None]
    if not found_all or len(found_all) < len(parts):
        return None
    return Rescue(found_all[0].dialect, [call for each in found_all for call in each.calls])


def looks_like_call(text: str, known_tools: frozenset[str]) -> str | None:
    """The name of the dialect that a reply is meant in, also where `recognised` cannot read it; None for answers.

    Code that calls a function of a tool's name counts at the beginning or the end of the reply only. A reply that is
    one JSON call as a whole is meant as such whatever tool it names.
    """
    if found := recognised(text, known_tools):
        return found.dialect
    parts = passages(text)
    for part in parts:
        if dialect := _meant(part, known_tools, is_end=part in {parts[0], parts[-1]}):
            return dialect.name
    return "json" if len(parts) == 1 and _may_hold_data(parts[0]) and _is_call_of_anything(parts[0].body) else None


def begins_call(line: str) -> bool:
    """Whether a call in a foreign form begins with this line, whatever its tool is called."""
    return _LEADING_WORD.match(line) is not None or any(each.mark.match(line) for each in DIALECTS if each.anywhere)


def fenced_calls(text: str, known_tools: frozenset[str]) -> list[Passage]:
    """The code fences of a reply that hold calls in a foreign form, in order; `tool:` lines are none."""
    fences = [part for part in passages(text) if part.opening is not None]
    meant = [(part, _meant(part, known_tools, is_end=False)) for part in fences]
    return [part for part, dialect in meant if dialect is not None and dialect.name != "tool_line"]


def describe_dialect(name: str) -> str:
    """What an `ExtractionError` about a reply in this dialect says, in either protocol."""
    return (
        f"The reply looks like a tool call in the form '{name}', which does not run. Nothing was executed."
        " An answer that quotes calls is given with final_answer."
    )


def passages(text: str) -> list[Passage]:
    """The passages of a reply in order, without its leading word and without blank prose."""
    found: list[Passage] = []
    opening: str | None = None
    fence, lines, first, number = "", list[str](), 1, 1
    lead = _lead_end(text)
    for number, line in enumerate(text[lead:].splitlines(keepends=True), start=1 + text.count("\n", 0, lead)):
        before, fence = fence, fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue
        found.append(Passage(opening, "".join(lines).strip(), first, number))
        opening, lines, first = (line if fence else None), [], number
    found.append(Passage(opening, "".join(lines).strip(), first, number))
    return [passage for passage in found if passage.opening is not None or passage.body]


def _whole(text: str) -> Passage:
    """The reply as one passage: without its leading word, and without the fence if one stands around all of it."""
    body = text[_lead_end(text) :].strip()
    first, _, rest = body.partition("\n")
    fence = fence_after(first, "")
    if not fence:
        return Passage(None, body)
    inside, _, last = rest.rpartition("\n")
    return Passage(first, (rest if fence_after(last, fence) else inside).strip())


def _lead_end(text: str) -> int:
    lead = _LEADING_WORD.match(text)
    return lead.end() if lead else 0


_OPENS = re.compile(r"\s*+(?:<(?:tool_call|function_call|tools)>\s*+)?(?=[{\[])")
_CLOSES = re.compile(r"\s*+(?:</(?:tool_call|function_call|tools)>\s*+)?")
_NAME_KEYS = frozenset({"name", "tool", "function", "action"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "action_input"})
_KINDS = frozenset({"function", "tool_call", "tool_use", "function_call"})


def _read_json(body: str, known_tools: frozenset[str], _: Mapping[str, str]) -> list[ToolInvocation]:
    """JSON objects or lists of them, one after the other, also in tags: `<tool_call>{...}</tool_call>`."""
    calls: list[ToolInvocation] = []
    at = 0
    while at < len(body):
        opened = _OPENS.match(body, at)
        end = json_end(body, opened.end()) if opened else None
        if opened is None or end is None:
            return []
        value = decode_strictly(body[opened.end() : end])
        found = [_call_of(item, known_tools) for item in (value if isinstance(value, list) else [value])]
        if not found or None in found:
            return []
        calls += [call for call in found if call is not None]
        closed = _CLOSES.match(body, end)
        at = closed.end() if closed else end
    return calls


def _call_of(item: Any, known_tools: frozenset[str]) -> ToolInvocation | None:
    """The call that a JSON object with exactly a known tool's name and its arguments means."""
    if not isinstance(item, dict):
        return None
    inner = {key: value for key, value in item.items() if not _is_envelope(key, value)}
    function = inner.get("function")
    name, arguments = _name_and_arguments(function if len(inner) == 1 and isinstance(function, dict) else inner)
    if isinstance(arguments, str):
        arguments = decode_arguments(arguments)
    fits = isinstance(name, str) and name in known_tools and isinstance(arguments, dict)
    return ToolInvocation(name, arguments, 0) if fits else None


def _is_envelope(key: str, value: Any) -> bool:
    """Whether this is what endpoints put around a call."""
    return isinstance(value, str) and (key in {"id", "call_id"} or (key == "type" and value in _KINDS))


def _name_and_arguments(item: JsonMap) -> tuple[Any, Any]:
    """The values of an object that has a call's two fields and no others; Nones for anything else."""
    names, arguments = (item.keys() & keys for keys in (_NAME_KEYS, _ARGUMENT_KEYS))
    both = len(item) == len(("name", "arguments")) and names and arguments
    return (item[names.pop()], item[arguments.pop()]) if both else (None, None)


def _is_call_of_anything(body: str) -> bool:
    """Whether a body is one call as JSON, whatever its tool is called: a model invents tools as well."""
    value = decode_strictly(body) if body.lstrip().startswith("{") else None
    name, arguments = _name_and_arguments(value) if isinstance(value, dict) else (None, None)
    return isinstance(name, str) and name.isidentifier() and isinstance(arguments, dict) and bool(arguments)


def _read_tool_lines(body: str, known_tools: frozenset[str], _: Mapping[str, str]) -> list[ToolInvocation]:
    """`tool:` lines and nothing else, such as stand in a code fence by mistake."""
    calls = extract_in_order(body, known_tools)
    found = [call.outcome._replace(line_number=0) for call in calls if isinstance(call.outcome, ToolInvocation)]
    taken = {number for call in calls for number in range(call.line_number, call.end_line + 1)}
    rest = [line for number, line in enumerate(body.splitlines(), 1) if line.strip() and number not in taken]
    return found if len(found) == len(calls) and not rest else []


def _read_bare_call(body: str, known_tools: frozenset[str], _: Mapping[str, str]) -> list[ToolInvocation]:
    """`name({json})`, a tool line that lacks its prefix."""
    outcome = parse_tool_line(f"{TOOL_PREFIX} {body}", 0, known_tools)
    return [outcome] if isinstance(outcome, ToolInvocation) else []


def _read_python_calls(
    body: str, known_tools: frozenset[str], only_required: Mapping[str, str]
) -> list[ToolInvocation]:
    """Python calls on lines of their own, as `read_file(path="a.py")`; before each may stand `tool:`."""
    if len(body) > MAX_ARGUMENT_CHARS or "\r" in body:  # which Python reads as a line feed: a file would lose it
        return []
    try:
        calls = [_python_call(statement, only_required) for statement in parse_quietly(body).body]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []
    return calls if all(call.tool_name in known_tools for call in calls) else []


def _python_call(statement: ast.stmt, only_required: Mapping[str, str]) -> ToolInvocation:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            pass
        case ast.AnnAssign(target=ast.Name(id="tool"), annotation=ast.Call() as call, value=None):  # `tool: name(...)`
            pass
        case _:
            raise ValueError
    tool = ast.unparse(call.func)
    named = [(only_required.get(tool), value) for value in call.args]
    named += [(keyword.arg, keyword.value) for keyword in call.keywords]
    arguments = {name: ast.literal_eval(value) for name, value in named if name}
    if len(arguments) < len(named) or decode_arguments(json.dumps(arguments)) != arguments:
        raise ValueError
    return ToolInvocation(tool, arguments, 0)


class Dialect(NamedTuple):
    """One foreign form of a call.

    `mark` finds the beginning of such a call; its group `tool`, if it has one, must be a known tool. A form without
    `read` is only told from an answer. `fences` are the info words under which the form may stand in a fenced block;
    None is any. Without `anywhere` only a passage that begins or ends the reply counts.
    """

    name: str
    mark: re.Pattern[str]
    read: Callable[[str, frozenset[str], Mapping[str, str]], list[ToolInvocation]] | None
    fences: frozenset[str] | None
    anywhere: bool = True


_DATA: Final = frozenset(
    {"", "json", "text", "txt", "plaintext", "xml", "tool", "tool_call", "tool_calls", "tool_code"}
)

DIALECTS: Final = (
    # Llama, Mistral and ReAct: nobody prints them who was asked for another form, and so they are not read
    Dialect(
        "another harness",
        re.compile(
            r"^[ \t]*+(?:<function=|<tool:|\[TOOL_CALLS\]|<\|python_tag\|>|(?i:action[ _]input)[ \t]*+:)", re.MULTILINE
        ),
        None,
        _DATA,
    ),
    Dialect(
        "json",
        re.compile(
            r"^[ \t]*+(?:<(?:tool_call|function_call|tools)>"  # as Hermes and Qwen have it
            r'|(?:\[\s*+)?\{\s*+(?:"(?:type|id)"\s*+:\s*+"[^"\n]*+"\s*+,\s*+)?(?:"function"\s*+:\s*+\{\s*+)?'
            r'"(?:name|tool|function|action)"\s*+:\s*+"(?P<tool>[^"\n]*+)"\s*+,'
            r'\s*+"(?:arguments|parameters|args|input|action_input)"\s*+:)',
            re.MULTILINE,
        ),
        _read_json,
        _DATA,
    ),
    Dialect(
        "tool_line",
        re.compile(r"^[ \t]*+tool:[ \t]*+(?P<tool>[\w.-]++)[ \t]*+\(", re.MULTILINE),
        _read_tool_lines,
        fences=None,
    ),
    Dialect("bare_call", re.compile(r"\A(?P<tool>[\w.-]++)[ \t]*+\([ \t]*+\{"), _read_bare_call, _DATA),
    Dialect(
        "python_call",
        re.compile(r"\A(?P<tool>[\w.-]++)[ \t]*+\(\s*+(?:[A-Za-z_]\w*+\s*+=\s*+)?[\"'\[{\d].*\)\Z", re.DOTALL),
        _read_python_calls,
        _DATA | {"python", "py", "python3"},
        anywhere=False,
    ),
)
"""Tried in this order."""


def _read(passage: Passage, known_tools: frozenset[str], only_required: Mapping[str, str]) -> Rescue | None:
    """The calls of a passage that is nothing but calls."""
    for dialect in DIALECTS:
        if dialect.read is None or passage.is_file or not _may_stand_in(dialect, passage):
            continue
        if calls := dialect.read(passage.body, known_tools, only_required):
            return Rescue(dialect.name, calls)
    return None


def _meant(passage: Passage, known_tools: frozenset[str], *, is_end: bool) -> Dialect | None:
    """The dialect in which a passage holds a call, or its beginning."""
    for dialect in DIALECTS:
        if _may_stand_in(dialect, passage) and (dialect.anywhere or is_end):
            tools = (match.groupdict().get("tool") for match in dialect.mark.finditer(passage.body))
            if any(tool is None or tool in known_tools for tool in tools):
                return dialect
    return None


def _may_stand_in(dialect: Dialect, passage: Passage) -> bool:
    return passage.opening is None or dialect.fences is None or passage.info in dialect.fences


def _may_hold_data(passage: Passage) -> bool:
    return passage.opening is None or passage.info in _DATA
