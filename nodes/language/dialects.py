"""Replies that are meant as calls but are written in another harness's form.

A small model prints its call as a JSON block in nine of ten replies; a harness that takes that for the final answer
reports success where nothing was done. Source: 163 of 551 logged replies of a 1.5B model.

Questions that are answered with different caution. `recognised` gives calls to run, so it wants a reply that is calls
and nothing else, to known tools, with nothing left to guess; before a single call at the end of the reply there may be
a sentence that announces it. Nothing of a call in Python's form is evaluated: its arguments must be literals that JSON
has as well. `looks_like_call` only makes the machine ask again, so it also sees broken calls, calls
after any prose and those in any code fence. `fenced_calls` gives these one by one, to be told or held against others.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.json_arguments import (
    MAX_ARGUMENT_CHARS,
    Pairs,
    decode_arguments,
    decode_strictly,
    join_edits,
    split_call,
)
from mendgraph.nodes.language.text_protocol import (
    TOOL_PREFIX,
    extract_in_order,
    fence_after,
    json_end,
    parse_tool_line,
    without_bodies,
)
from mendgraph.nodes.records import JsonMap, ToolInvocation

FILE_NAME = re.compile(r"/?(?:[\w@.+-]++/)*(?:[\w@.+-]*\.[A-Za-z]\w{0,9}|(?<=/)[\w@.+-]++|Makefile|Dockerfile)")
"""A path as it is written in prose: with a suffix, or with a directory. For `fullmatch`."""

_LEADING_WORD = re.compile(r"\s*+(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:")
_COMMENT = re.compile(r"(?:#+|//+)[ \t]*+([^\n]*+)")


class Passage(NamedTuple):
    """A passage of a reply: the inside of a code fence with the line that opens it, or prose (`opening` is None).

    `line` is the number of its first line, the fence's own included.
    """

    opening: str | None
    body: str
    line: int = 1

    @property
    def info(self) -> str | None:
        """The first word after the fence's marks, in lower case; None for prose."""
        words = self._words()
        return None if self.opening is None else words[0].lower() if words else ""

    @property
    def is_file(self) -> bool:
        """Whether the fence, or a comment in the first line inside, says that this is the text of a file."""
        comment = _COMMENT.match(self.body) if self.opening is not None else None
        named = comment[1].split() if comment else []
        return (len(named) == 1 and is_file_name(named[0])) or any(map(is_file_name, self._words()))

    def _words(self) -> list[str]:
        return (self.opening or "").strip().lstrip("`~").split()


def whole(text: str) -> Passage:
    """The reply as one passage: without its leading word, and without the fence if one stands around all of it."""
    body = text[_lead_end(text) :].strip()
    first, _, rest = body.partition("\n")
    fence = fence_after(first, "")
    if not fence:
        return Passage(None, body)
    inside, _, last = rest.rpartition("\n")
    return Passage(first, (rest if fence_after(last, fence) else inside).strip())


def passages(text: str) -> list[Passage]:
    """The passages of a reply in order, without its leading word and without blank prose."""
    found: list[Passage] = []
    opening: str | None = None
    fence, lines, first = "", list[str](), 1
    lead = _lead_end(text)
    for number, line in enumerate(text[lead:].splitlines(keepends=True), start=1 + text.count("\n", 0, lead)):
        before, fence = fence, fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue
        found.append(Passage(opening, "".join(lines).strip(), first))
        opening, lines, first = (line if fence else None), [], number
    found.append(Passage(opening, "".join(lines).strip(), first))
    return [passage for passage in found if passage.opening is not None or passage.body]


def before_fence(text: str) -> tuple[str, str] | None:
    """The prose before the first fence, and everything from there on; None where there is no fence or no prose."""
    at = 0
    for line in text.splitlines(keepends=True):
        if fence_after(line, ""):
            return (text[:at], text[at:]) if text[:at].strip() else None
        at += len(line)
    return None


def is_file_name(text: str) -> bool:
    """Whether a word, apart from the marks of Markdown around it, is a path: of a file, or inside a directory."""
    return FILE_NAME.fullmatch(text.strip("*`_\"'():,;").rstrip(".")) is not None


def _lead_end(text: str) -> int:
    lead = _LEADING_WORD.match(text)
    return lead.end() if lead else 0


Fits = Callable[[str, JsonMap], bool]
"""Whether these arguments fit the tool's schema."""

NO_SINGLE: Mapping[str, str] = MappingProxyType({})


class _Vocabulary(NamedTuple):
    """What a call can be checked against."""

    known_tools: frozenset[str]
    fits: Fits | None = None
    only_required: Mapping[str, str] = NO_SINGLE

    def fit(self, calls: list[ToolInvocation]) -> bool:
        return self.fits is None or all(self.fits(call.tool_name, call.args) for call in calls)


_Reader = Callable[[str, _Vocabulary], list[ToolInvocation] | None]
"""Gives the calls of a body that is nothing but calls in one form, else None."""

_DATA_FENCES = frozenset(
    {"", "json", "text", "txt", "plaintext", "xml", "tool", "tool_call", "tool_calls", "tool_code"}
)
_NAME_KEYS = frozenset({"name", "tool", "function", "action"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "action_input"})
_KINDS = frozenset({"function", "tool_call", "tool_use", "function_call"})


class Dialect(NamedTuple):
    """One foreign form of a call.

    `mark` finds the beginning of such a call; its group `tool`, if it has one, must be a known tool. A form without
    `read` is only told from an answer. `fences` are the info words under which the form may stand in a fenced block;
    None is any. Without `anywhere` only a fence that begins or ends the reply counts.
    """

    name: str
    mark: re.Pattern[str]
    read: _Reader | None = None
    fences: frozenset[str] | None = _DATA_FENCES
    anywhere: bool = True


def _in_json(name: str, opening: str, closing: str = "", start: str = "", mark: str = "") -> Dialect:
    """Calls of which each is `opening`, one JSON value, `closing`; the first one begins with `start`.

    Where `opening` names a `tool`, the value is its arguments; else it is a call, or a list of calls.
    """
    begins = re.compile(start)
    opens, closes = re.compile(rf"\s*+{opening}\s*+(?=[{{\[])"), re.compile(rf"\s*+{closing}\s*+")

    def read(body: str, words: _Vocabulary) -> list[ToolInvocation] | None:
        calls: list[ToolInvocation] = []
        at = 0 if begins.match(body) else len(body)
        while at < len(body):
            opened = opens.match(body, at)
            end = json_end(body, opened.end()) if opened else None
            closed = closes.match(body, end) if end is not None else None
            if opened is None or closed is None:
                return None
            value = decode_strictly(body[opened.end() : end], join=join_edits)
            tool = opened.groupdict().get("tool")
            found = _calls_of({"name": tool, "arguments": value} if tool else value, words.known_tools)
            if not found:
                return None
            calls += found
            at = closed.end()
        return calls or None

    return Dialect(name, re.compile(rf"^[ \t]*+(?:{mark or start or opening})", re.MULTILINE), read)


def _calls_of(value: Any, known_tools: frozenset[str]) -> list[ToolInvocation] | None:
    items = value if isinstance(value, list) else [value]
    calls = [_call_of(item, known_tools) for item in items]
    return [call for call in calls if call is not None] if None not in calls else None


def _call_of(item: Any, known_tools: frozenset[str]) -> ToolInvocation | None:
    """The call that a JSON object with exactly a known tool's name and its arguments means."""
    if not isinstance(item, dict):
        return None
    inner = {key: value for key, value in item.items() if not _is_envelope(key, value)}
    function = inner.get("function")
    name, arguments = _name_and_arguments(function if len(inner) == 1 and isinstance(function, dict) else inner)
    if isinstance(arguments, str):
        arguments = decode_strictly(arguments, join=join_edits)
    if not isinstance(name, str) or name not in known_tools or not isinstance(arguments, dict):
        return None
    call = split_call(name, arguments, known_tools)
    return ToolInvocation(call.tool, call.arguments, 0) if call else None


def _is_envelope(key: str, value: Any) -> bool:
    """Whether this is what endpoints put around a call."""
    return isinstance(value, str) and (key in {"id", "call_id"} or (key == "type" and value in _KINDS))


def _name_and_arguments(item: Any) -> tuple[Any, Any]:
    """The values of an object that has a call's two fields and no others; Nones for anything else."""
    if not isinstance(item, dict) or len(item) != len(("name", "arguments")):
        return None, None
    names, arguments = (item.keys() & keys for keys in (_NAME_KEYS, _ARGUMENT_KEYS))
    return (item[names.pop()], item[arguments.pop()]) if names and arguments else (None, None)


def _is_call_of_anything(body: str) -> bool:
    """Whether a body is one call as JSON, whatever its tool is called: a model invents tools as well."""
    name, arguments = _name_and_arguments(decode_strictly(body) if body.lstrip().startswith("{") else None)
    return isinstance(name, str) and name.isidentifier() and isinstance(arguments, dict) and bool(arguments)


def _read_tool_lines(body: str, words: _Vocabulary) -> list[ToolInvocation] | None:
    """`tool:` lines and nothing else, such as stand in a code fence by mistake."""
    calls = extract_in_order(body, words.known_tools, {})
    found = [call.outcome for call in calls if isinstance(call.outcome, ToolInvocation)]
    rest = [line for line in without_bodies(body, calls).split("\n") if line.strip()]
    if not calls or len(found) < len(calls) or len(rest) > len(calls):
        return None
    return [call._replace(line_number=0) for call in found]


def _read_bare_call(body: str, words: _Vocabulary) -> list[ToolInvocation] | None:
    """`name({json})`, a tool line that lacks its prefix."""
    outcome = parse_tool_line(f"{TOOL_PREFIX} {body}", 0, words.known_tools)
    return [outcome] if isinstance(outcome, ToolInvocation) and not body.startswith(TOOL_PREFIX) else None


_PYTHON_HEAD = re.compile(r"(?:\#[^\n]*+\s*+|\s++)*+(?:tool:[ \t]*+)?(?P<tool>[\w.]++)[ \t]*+\(")


def _read_python_calls(body: str, words: _Vocabulary) -> list[ToolInvocation] | None:
    """Python calls on lines of their own, as `read_file(path="a.py")`; before each may stand `tool:`.

    An example in a text may look like that, so the arguments have to fit.
    """
    head = _PYTHON_HEAD.match(body)
    if head is None or head["tool"] not in words.known_tools or len(body) > MAX_ARGUMENT_CHARS:
        return None
    try:
        calls = [_python_call(statement, words, has_returns="\r" in body) for statement in parse_quietly(body).body]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls if words.fit(calls) else None


class _UnreadError(ValueError):
    """Leaves the reading of what is no literal call."""


def _python_call(statement: ast.stmt, words: _Vocabulary, *, has_returns: bool) -> ToolInvocation:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            pass
        case ast.AnnAssign(target=ast.Name(id="tool"), annotation=ast.Call() as call, value=None):  # `tool: name(...)`
            pass
        case _:
            raise _UnreadError
    tool = ast.unparse(call.func)
    named = [(keyword.arg or "", keyword.value) for keyword in call.keywords]
    if call.args:
        named = [(words.only_required.get(tool, ""), call.args[0]), *named]
    pairs: Pairs = [(name, _literal(value, has_returns=has_returns)) for name, value in named]
    joined: JsonMap | None = dict(pairs) if len(dict(pairs)) == len(pairs) else join_edits(pairs)
    if tool not in words.known_tools or len(call.args) > 1 or joined is None or "" in joined:
        raise _UnreadError
    decoded = split_call(tool, joined, words.known_tools)
    if decoded is None or decode_arguments(json.dumps(decoded.arguments)) != decoded.arguments:
        raise _UnreadError
    return ToolInvocation(decoded.tool, decoded.arguments, 0)


def _literal(node: ast.expr, *, has_returns: bool) -> Any:
    """The value that the expression writes down.

    A text of several lines is none where the body has carriage returns: Python reads these as line feeds, and a file
    would lose them.
    """
    match node:
        case ast.Constant(value=str()) if has_returns and node.lineno != node.end_lineno:
            pass
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List():
            return [_literal(each, has_returns=has_returns) for each in node.elts]
        case ast.Dict():
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if len(set(keys)) == len(keys) and all(isinstance(key, str) for key in keys):
                return {
                    key: _literal(value, has_returns=has_returns) for key, value in zip(keys, node.values, strict=True)
                }
    raise _UnreadError


_TAGS = "(?:tool_call|function_call|tools)"
_TOOL_NAME = r"(?P<tool>[\w.-]++)"
_LINE_START = r"^[ \t]*+"
_JSON_CALL = (
    r'(?:\[\s*+)?\{\s*+(?:"(?:type|id)"\s*+:\s*+"[^"\n]*+"\s*+,\s*+)?(?:"function"\s*+:\s*+\{\s*+)?'
    r'"(?:name|tool|function|action)"\s*+:\s*+"(?P<tool>[^"\n]*+)"\s*+,'
    r'\s*+"(?:arguments|parameters|args|input|action_input)"\s*+:'
)

DIALECTS: tuple[Dialect, ...] = (
    # Hermes and Qwen: `<tool_call>{...}</tool_call>`
    _in_json("tool_call_tags", f"<{_TAGS}>", f"</{_TAGS}>"),
    # Llama: `<function=name>{...}</function>`
    _in_json("function_tags", f"<function={_TOOL_NAME}>", "</function>"),
    # Mistral: `[TOOL_CALLS] [{...}]` and `[TOOL_CALLS]name[ARGS]{...}`, of which a server may drop one of the marks
    _in_json(
        "tool_calls_mark",
        rf"(?:\[TOOL_CALLS\])?\s*+(?:{_TOOL_NAME}\s*+(?:\[CALL_ID\]\w*+)?(?:\[ARGS\])?)?",
        start=r"\[TOOL_CALLS\]|[\w.-]++\[ARGS\]",
    ),
    # Llama: `<|python_tag|>{...}`, several separated by `;`
    _in_json("python_tag", r"(?:<\|python_tag\|>|;)?", r"(?:<\|eom_id\|>|<\|eot_id\|>)?", start=r"<\|python_tag\|>"),
    Dialect("tool_tag", re.compile(rf"{_LINE_START}<tool:[ \t]*+[\w.-]++[ \t]*+[(\w{{]", re.MULTILINE)),
    # ReAct: `Action: name` and `Action Input: {...}`; the first word may have been taken off
    _in_json("react", rf"(?:(?i:action)[ \t]*+:\s*+)?`?{_TOOL_NAME}`?[ \t]*+\r?\n\s*+(?i:action[ _]input)[ \t]*+:"),
    # Objects and lists of objects, one after the other
    _in_json("json", "", mark=_JSON_CALL),
    Dialect(
        "tool_line",
        re.compile(rf"{_LINE_START}tool:[ \t]*+{_TOOL_NAME}[ \t]*+\(", re.MULTILINE),
        _read_tool_lines,
        fences=None,
    ),
    Dialect("bare_call", re.compile(rf"\A{_TOOL_NAME}[ \t]*+\([ \t]*+\{{"), _read_bare_call),
    Dialect(
        "python_call",
        re.compile(rf"\A{_TOOL_NAME}[ \t]*+\(\s*+(?:[A-Za-z_]\w*+\s*+=\s*+)?[\"'\[{{\d].*\)\Z", re.DOTALL),
        _read_python_calls,
        fences=_DATA_FENCES | {"python", "py", "python3"},
        anywhere=False,
    ),
)
"""Tried in this order: tags before the JSON that they hold."""


LONGEST_LEAD = 400
"""Characters of prose before a call; whoever writes more explains."""

_ACTS = (
    "add|call|change|check|correct|create|delete|edit|find|fix|list|look|make|open|read|remove|rename|replace|run|search"
    "|update|use|write"
)
_DOING = (
    "add|call|chang|check|correct|creat|delet|edit|find|fix|list|look|mak|open|read|remov|renam|replac|runn|search|updat"
    "|us|writ"
)
_ANNOUNCES = re.compile(
    rf"""
      \b(?:i|we)(?:'ll|\ will|\ shall|'m\ going\ to|\ am\ going\ to|'re\ going\ to|\ are\ going\ to
        |\ need\ to|\ have\ to|\ want\ to|\ must|\ should)\b
    | \blet(?:\ me|'s|\ us)\b
    | \b(?:first|now|next|then|finally),?\ (?:{_ACTS})\b
    | \A(?:{_DOING})ing\ [^,.]*[:.]*\Z
    | \A(?:thought|plan)[ \t]*:
    | \bhere(?:'s|\ is)\ (?:the|my|a|an)\ (?:\w+\ ){{0,2}}(?:call|change|code|edit|fix)
        (?:\ (?:to|for|in)\ [^.:]*)?[:.]*\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_EXPLAINS = re.compile(
    r"""
      \? | ```
    | \b(?:examples?|e\.g|i\.e|for\ instance|such\ as|like\ (?:this|so|that)|looks?\ like|format|syntax|template)\b
    | \b(?:would|could|might|may|either|alternatively|alternatives?|options?|(?<!help\ )you|they|let\ me\ know)\b
    | (?:\A|[.,;:!]\ )(?:if|see)\b | \bcan\ see\b
    | \b(?:shows?|explain|describe|demonstrate|illustrate|summari[sz]e|quotes?|documented|documentation)\b
    | \b(?:(?:i|we)\ (?:will|shall|should|must|do|did|have|can)\ not|won't|shouldn't|mustn't|don't|can't|cannot|never)\b
    | \b(?:are|contains?|gives?|has|holds?|is|outputs?|prints?|reads|receives?|returns?|returned|said|says|sends?|was
        |were)[ \t]*[:.]*\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LABEL = frozenset({"file", "filename", "path"})
_MARKS = "#*`_\"'():,;>-"


def announces(lead: str, arguments: JsonMap) -> bool:
    """Whether the prose before a call with these arguments says that it is to be made now.

    A lead that ends with the name of a file is the heading of that file's text, unless it is a sentence and the call is
    about that file.
    """
    said = lead.strip().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if len(said) > LONGEST_LEAD or _EXPLAINS.search(said) or not _ANNOUNCES.search(said):
        return False
    words = [word.strip(_MARKS).rstrip(".") for word in said.splitlines()[-1].split()]
    heading = [word for word in words if word and word.lower() not in _LABEL]
    if not heading or not is_file_name(heading[-1]):
        return True
    return len(heading) > 1 and heading[-1] in [value for value in arguments.values() if isinstance(value, str)]


_TAGGED = re.compile(
    r"^[ \t]*+(?:<tool_call>|<function_call>|<tools>|<function=|<tool:|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|(?i:action)[ \t]*+:)",
    re.MULTILINE,
)


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


def recognised(
    text: str,
    known_tools: frozenset[str],
    fits: Fits | None = None,
    only_required: Mapping[str, str] = NO_SINGLE,
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
    words = _Vocabulary(known_tools, fits, only_required)
    return _read(whole(text), words) or _read_fences(text, words) or _read_announced(text, words)


def looks_like_call(text: str, known_tools: frozenset[str]) -> str | None:
    """The name of the dialect that a reply is meant in, also where `recognised` cannot read it; None for answers.

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
    return "json" if alone and _is_call_of_anything(parts[0].body) else None


def fenced_calls(text: str, known_tools: frozenset[str]) -> list[FencedCall]:
    """The code fences of a reply that hold calls in a foreign form, in order; `tool:` lines are none."""
    found: list[FencedCall] = []
    parts = passages(text)
    words = _Vocabulary(known_tools)
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
        if dialect.read and (calls := dialect.read(passage.body, words)):
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
