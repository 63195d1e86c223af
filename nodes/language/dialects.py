"""The forms of a reply beside `tool:` lines: the block form, which small models are asked for, and foreign calls.

The block form is an edit as a file name and a fenced block with the new text of what changes. Small models write code
well and escape it into JSON badly, so for them a reply like

    calc.py
    ```python
    def add(a, b):
        return a + b
    ```

is an `edit_blocks` call. What the text around the blocks says is the answer, so one reply can do the whole task.
Source: measured on a 1.5B model: old and new string in JSON 1 of 12 repairs, fenced blocks 7 to 9 of 12.

A foreign call has another harness's form: a small model prints its call as a JSON block. Source: 163 of 551 logged
replies of a 1.5B model. `recognised` gives calls to run, so it wants a reply that is calls and nothing else, to known
tools, with nothing left to guess. `looks_like_call` only makes the machine ask again, so it also sees broken calls,
calls after any prose, those in a code fence, and forms that are not read at all.
"""

import re
from collections.abc import Sequence
from posixpath import basename
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.names import is_question, named_paths
from mendgraph.nodes.language.text_protocol import decode_arguments, decode_strictly, fence_after, json_end
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, ToolInvocation

_FILE_NAME = re.compile(r"/?(?:[\w@.+-]++/)*(?:[\w@.+-]*\.[A-Za-z]\w{0,9}|(?<=/)[\w@.+-]++|Makefile|Dockerfile)")
_LEADING_WORD = re.compile(r"\s*+(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:")
_COMMENT = re.compile(r"(?:#+|//+)[ \t]*+([^\n]*+)")


class Passage(NamedTuple):
    """A passage of a reply: the inside of a code fence with the line that opens it, or prose (`opening` is None).

    `line` and `end` are the numbers of its first and last line, those of the fence itself included.
    """

    opening: str | None
    text: str
    line: int = 1
    end: int = 1
    closed: bool = True

    @property
    def body(self) -> str:
        """The text without white space around it."""
        return self.text.strip()

    @property
    def title(self) -> str:
        """What stands after the fence's marks."""
        return (self.opening or "").strip().lstrip("`~").strip()

    @property
    def info(self) -> str:
        """The first word of it, in lower case."""
        return next(iter(self.title.split()), "").lower()

    @property
    def is_file(self) -> bool:
        """Whether the fence, or a comment in the first line inside, says that this is the text of a file."""
        comment = _COMMENT.match(self.body) if self.opening is not None else None
        named = comment[1].split() if comment else []
        words = [*named[: len(named) == 1], *self.title.split()]
        return any(_FILE_NAME.fullmatch(word.strip("*`_\"'():,;")) for word in words)


def passages(text: str) -> list[Passage]:
    """The passages of a text in order."""
    found: list[Passage] = []
    opening: str | None = None
    fence, lines, first, number = "", list[str](), 1, 1
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        before, fence = fence, fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue
        found.append(Passage(opening, "".join(lines), first, number))
        opening, lines, first = (line if fence else None), [], number
    return [*found, Passage(opening, "".join(lines), first, number, closed=not fence)]


# --- Calls in foreign forms


def recognised(text: str, known_tools: frozenset[str]) -> list[ToolInvocation]:
    """The calls, with line number 0, of a reply that is nothing but calls as JSON; none of everything else.

    Around the calls there may be white space, a code fence each or one around all, and a leading word such as
    "Action:".
    """
    if found := _read(_whole(text), known_tools):
        return found
    read = [_read(part, known_tools) if part.opening is not None else [] for part in _parts(text)]
    return [call for calls in read for call in calls] if all(read) else []


def looks_like_call(text: str, known_tools: frozenset[str]) -> str | None:
    """The name of the dialect that a reply is meant in, also where `recognised` cannot read it; None for answers.

    Code that calls a function of a tool's name counts at the beginning or the end of the reply only. A reply that is
    one JSON call as a whole is meant as such whatever tool it names.
    """
    if recognised(text, known_tools):
        return "json"
    parts = _parts(text)
    for part in parts:
        if dialect := _meant(part, known_tools, is_end=part in {parts[0], parts[-1]}):
            return dialect.name
    return "json" if len(parts) == 1 and _may_hold(parts[0]) and _is_call_of_anything(parts[0].body) else None


def begins_call(line: str) -> bool:
    """Whether a call in a foreign form begins with this line, whatever its tool is called."""
    return _LEADING_WORD.match(line) is not None or any(each.mark.match(line) for each in DIALECTS if each.anywhere)


def fenced_calls(text: str, known_tools: frozenset[str]) -> list[Passage]:
    """The code fences of a reply that hold calls in a foreign form, in order; `tool:` lines are none."""
    fences = [part for part in passages(_without_lead(text)) if part.opening is not None]
    meant = [(part, _meant(part, known_tools, is_end=False)) for part in fences]
    return [part for part, dialect in meant if dialect is not None and dialect.name != "tool_line"]


def describe_dialect(name: str) -> str:
    """What an `ExtractionError` about a reply in this dialect says, in either protocol."""
    return (
        f"The reply looks like a tool call in the form '{name}', which does not run. Nothing was executed."
        " An answer that quotes calls is given with final_answer."
    )


def _parts(text: str) -> list[Passage]:
    """The passages of a reply without its leading word and without blank prose."""
    return [part for part in passages(_without_lead(text)) if part.opening is not None or part.body]


def _whole(text: str) -> Passage:
    """The reply as one passage: without its leading word, and without the fence if one stands around all of it."""
    body = _without_lead(text).strip()
    first, _, rest = body.partition("\n")
    fence = fence_after(first, "")
    if not fence:
        return Passage(None, body)
    inside, _, last = rest.rpartition("\n")
    return Passage(first, rest if fence_after(last, fence) else inside)


def _without_lead(text: str) -> str:
    lead = _LEADING_WORD.match(text)
    return "\n" * lead[0].count("\n") + text[lead.end() :] if lead else text


_OPENS = re.compile(r"\s*+(?:<(?:tool_call|function_call|tools)>\s*+)?(?=[{\[])")
_CLOSES = re.compile(r"\s*+(?:</(?:tool_call|function_call|tools)>\s*+)?")
_NAME_KEYS = frozenset({"name", "tool", "function", "action"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "action_input"})
_KINDS = frozenset({"function", "tool_call", "tool_use", "function_call"})


def _read_json(body: str, known_tools: frozenset[str]) -> list[ToolInvocation]:
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


class Dialect(NamedTuple):
    """One foreign form of a call.

    `mark` finds the beginning of such a call; its group `tool`, if it has one, must be a known tool. JSON is read, all
    others are only told from an answer. `fences` are the info words under which the form may stand in a fenced block;
    None is any. Without `anywhere` only a passage that begins or ends the reply counts.
    """

    name: str
    mark: re.Pattern[str]
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
        _DATA,
    ),
    Dialect(
        "tool_line",
        re.compile(r"^[ \t]*+tool:[ \t]*+(?P<tool>[\w.-]++)[ \t]*+\(", re.MULTILINE),
        fences=None,
    ),
    Dialect("bare_call", re.compile(r"\A(?P<tool>[\w.-]++)[ \t]*+\([ \t]*+\{"), _DATA),
    Dialect(
        "python_call",
        re.compile(r"\A(?P<tool>[\w.-]++)[ \t]*+\(\s*+(?:[A-Za-z_]\w*+\s*+=\s*+)?[\"'\[{\d].*\)\Z", re.DOTALL),
        _DATA | {"python", "py", "python3"},
        anywhere=False,
    ),
)
"""Tried in this order."""


def _read(passage: Passage, known_tools: frozenset[str]) -> list[ToolInvocation]:
    return [] if passage.is_file or not _may_hold(passage) else _read_json(passage.body, known_tools)


def _meant(passage: Passage, known_tools: frozenset[str], *, is_end: bool) -> Dialect | None:
    for dialect in DIALECTS:
        if _may_hold(passage, dialect.fences) and (dialect.anywhere or is_end):
            tools = (match.groupdict().get("tool") for match in dialect.mark.finditer(passage.body))
            if any(tool is None or tool in known_tools for tool in tools):
                return dialect
    return None


def _may_hold(passage: Passage, fences: frozenset[str] | None = _DATA) -> bool:
    return passage.opening is None or fences is None or passage.info in fences


# --- The block form


EDIT_TOOL = "edit_blocks"

EXAMPLE_EDITS = {
    "names.py": '''\
def initials(name):
    """The first letters of all words, in upper case.

    >>> initials("Ada Lovelace")
    'AL'
    >>> initials("ada lovelace")
    'AL'
    """
    words = re.findall(r"\\w+", name)
    return "".join(word[0].upper() for word in words)
''',
    "limits.json": '{\n  "depth": 3,\n  "width": 8\n}\n',
    "colors.md": "red, blue\n",
}
"""The edits of the prompt's examples, which an unsure model repeats: they are no edits."""

EXAMPLE_FILES = frozenset({*EXAMPLE_EDITS, "words.py"})
"""The files of the prompt's examples."""


_PATH = re.compile(
    r"/?(?:[\w@.+-]+[/\\])*(?:[\w@.+-]*\.\w+|(?<=[/\\])[\w@.+-]+|Makefile|Dockerfile)"
    r"|(?:~/|[A-Za-z]:[/\\]|/|\\\\)(?:[^`]*[/\\])?[^\s`/\\]*\.\w+"
)
_READING = re.compile(r"tool:\s*+\w++\(\{\s*+\"path\"\s*+:\s*+\"(?P<path>[^\"]++)\"\s*+\}\)")
_NAMING = re.compile(r"#+ ?|// ?")
_LABEL = re.compile(r"^file(?:name)?(?:[ \t]*:[ \t]*|[ \t]+)", re.IGNORECASE)
_DEFINITION = re.compile(r"^[^\S\n]*+(?:async\s+def|def|class|@)\b", re.MULTILINE)
_IMPORTS = re.compile(r"(?:from \S+ import [^\n]*+\n\s*+)++")
_QUOTED_LANGUAGES = frozenset({"bash", "sh", "shell", "console", "text", "diff", "output", "pycon"})
_QUOTED_SUFFIXES = (".sh", ".bash", ".txt")


class BlockReading(NamedTuple):
    """What a reply in block form holds: edits and errors in order, and the prose around the blocks.

    `lines` are the numbers of the first and the last line of the block of each outcome, fences included.
    """

    outcomes: list[ToolInvocation | ExtractionError]
    prose: str
    lines: list[tuple[int, int]]


def read_blocks(text: str, shown_files: Sequence[str], request: str | None = None) -> BlockReading:
    """Read the edits of a reply in block form; `request` is what they are for, None where it is not known.

    A block counts as an edit when a path stands on the line before it, in its info string or in its first comment, or
    when it holds definitions, or for an order nothing but imports, and only one file was shown. Other blocks (shell
    lines, output, examples) are prose. An unclosed block is an error: what is missing of it must not be written.
    """
    outcomes: list[ToolInvocation | ExtractionError] = []
    lines: list[tuple[int, int]] = []
    prose: list[str] = []
    heading = ""
    for part in passages(text):
        if part.opening is None:
            said = part.text.rstrip().splitlines(keepends=True) or [""]
            heading = said[-1].strip()
            named = heading and _path_in(heading, shown_files) and part.closed
            prose += said[:-1] if named else [part.text]
            continue
        path, body = _target(part, heading, shown_files, ordered=request is not None and not is_question(request))
        if path is None:
            continue
        lines.append((part.line, part.end))
        foreign = path in EXAMPLE_FILES and path not in shown_files and request is not None and path not in request
        wrong = ""
        if foreign or body in EXAMPLE_EDITS.values():
            whose = "what changes" if foreign else path
            wrong = f"This block is the example's. Write the new text of {whose}, or answer in words."
        elif path not in named_paths(request or "") and (shown := _namesakes(path, shown_files)):
            wrong = f"{path} was not shown, but {' and '.join(shown)}. Send the block again under its whole path."
        if wrong:
            invalid = ExtractionErrorType.INVALID_ARGUMENTS
            outcomes.append(ExtractionError(invalid, part.line, heading or part.title, wrong))
        elif part.closed:
            outcomes.append(ToolInvocation(EDIT_TOOL, {"path": path, "content": body}, part.line))
        else:
            details = f"The block for {path} has no closing fence. Send it again, complete."
            error = ExtractionErrorType.TRUNCATED_REPLY
            outcomes.append(ExtractionError(error, part.line, heading or part.title, details))
    return BlockReading(outcomes, "".join(prose).strip(), lines)


def render_file(path: str, content: str) -> str:
    """Show a file in the form in which the model is to answer. The fence is longer than any in the content."""
    longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
    fence = "`" * max(3, longest + 1)
    language = "python" if path.endswith((".py", ".pyi")) else path.rsplit(".", 1)[-1] if "." in path else ""
    newline = "" if content.endswith("\n") or not content else "\n"
    return f"{path}\n{fence}{language}\n{content}{newline}{fence}"


def _target(part: Passage, heading: str, shown_files: Sequence[str], *, ordered: bool) -> tuple[str | None, str]:
    """The file that a block is for, and its body without a comment that only names the file."""
    language = re.split(r"[\s:]", part.title, maxsplit=1)[0].lower()
    body, info = part.text, part.title[len(language) :] or (part.title if part.title in shown_files else "")
    named = _path_in(heading, shown_files) or _path_in(info, shown_files)
    if named is None:
        first, _, rest = body.partition("\n")
        comment = _NAMING.match(first)
        named = _path_in(first[comment.end() :], shown_files) if comment else None
        body = body if named is None else rest
    quoted = language in _QUOTED_LANGUAGES
    if named is None:
        change = _DEFINITION.search(body) or (ordered and _IMPORTS.fullmatch(body))
        return (shown_files[0] if len(shown_files) == 1 and not quoted and change else None), body
    if quoted and named not in shown_files and not named.endswith(_QUOTED_SUFFIXES):
        return None, body
    return named, body


def _namesakes(path: str, shown_files: Sequence[str]) -> list[str]:
    """The shown files that a bare name may be short for, none where it is the name of one."""
    return [] if path in shown_files else [shown for shown in shown_files if basename(shown) == path]


def _path_in(text: str, shown_files: Sequence[str]) -> str | None:
    """The one path that a short line names, or None. A call that would read the file before its new text names it."""
    if reading := _READING.fullmatch(text.strip()):
        return reading["path"]
    if text.strip() in shown_files:
        return text.strip()
    bare = _LABEL.sub("", text.strip().strip("*#`: "), count=1).strip("*`: ")
    if bare in shown_files or _PATH.fullmatch(bare):
        return bare.removeprefix("./")
    names = {basename(shown) for shown in shown_files}
    if absolute := [path for path in named_paths(text) if path.startswith("/") and basename(path) in names]:
        return absolute[0]
    quoted = re.findall(r"`([^`]+)`", text)
    paths = [word for word in quoted if _PATH.fullmatch(word)]
    return paths[0].removeprefix("./") if len(paths) == 1 and text.rstrip().endswith(":") else None
