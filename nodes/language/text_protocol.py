"""Spec 1's text protocol: a call is a line `tool: NAME({json})`.

A line that begins with `tool:` is a call wherever it stands, in a code fence too. Beyond the spec's one-line form, the
JSON may hold any character, line breaks included, so a call can span lines; what stands inside it is never taken for
another call. A call may leave its one long text to the fenced block after it (`body_blocks`). The document's functions
read one line for each call. Nor is a line a call that stands in a fence after a call in another form: it belongs to
what that call writes. Reading is linear in the reply.

Results go back as lines `tool_result({...})`: the i-th line answers the i-th call of the reply.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from types import MappingProxyType
from typing import Final, NamedTuple

from mendgraph.nodes.language.json_arguments import ArgumentProblem, decode_call, excerpt, unknown_tool_details
from mendgraph.nodes.records import (
    CallResult,
    ExtractionError,
    ExtractionErrorType,
    JsonMap,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
)

BODY_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "write_file": "content",
        "append_file": "content",
        "edit_blocks": "content",
        "edit_file": "new_str",
        "apply_patch": "patch",
    }
)
"""For each tool the argument that a block can give."""

BODY_BLOCK_RULE: Final = (
    "A long text (content, new_str, patch) can be left out of the JSON and follow the tool line in a fenced block."
)
"""What a prompt says about it. Nothing would happen if a model said this sentence back."""

_OPENING = re.compile(r"(?:[ \t]*+\r?\n)* {0,3}(?P<marks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n]*+)\n?")
_FENCE_LINE = re.compile(r"^ {0,3}(?P<marks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n]*+)$", re.MULTILINE)
_CALL_LINE = re.compile(r"^[ \t]*+tool:", re.MULTILINE)
_MARKDOWN = frozenset({"markdown", "md", "mdx", "gfm"})
_UNCLOSED = ArgumentProblem(
    ExtractionErrorType.TRUNCATED_REPLY,
    "The block after this call has no closing fence. Send the call again, with the whole block.",
)


class Body(NamedTuple):
    """The text of a block, or what is wrong with it, and where the line after its closing fence begins."""

    text: str | ArgumentProblem
    end: int


def read_body(text: str, at: int) -> Body | None:
    """The block that follows at the line start `at`, blank lines apart; None where something else does.

    The text keeps its bytes, the line break before the closing fence included. A fence that names a language inside of
    the block opens a block of its own. Source of the fences: CommonMark 4.5.
    """
    opening = _opening(text, at)
    if opening is None:
        return None
    closing = _closing(text, opening.end(), opening["marks"])
    if closing is None:
        return Body(_UNCLOSED, len(text))
    end = min(len(text), closing.end() + 1)
    words = opening["info"].lower().split(maxsplit=1)
    if words and words[0] in _MARKDOWN and _goes_on(text, end, opening["marks"]):
        longer = opening["marks"] + opening["marks"][0]
        details = f"It is not clear where the block after this call ends. Put {longer} around a text that holds fences."
        return Body(ArgumentProblem(ExtractionErrorType.INVALID_ARGUMENTS, details), end)
    return Body(text[opening.end() : closing.start()], end)


def with_body(arguments: JsonMap, name: str, body: str) -> JsonMap:
    """The arguments with the text of the block.

    A block always ends its last line. Where it replaces a text that does not, that line break is the block's own.
    """
    old = arguments.get("old_str")
    if name == "new_str" and isinstance(old, str) and old and not old.endswith("\n"):
        body = body.removesuffix("\n").removesuffix("\r")
    return {**arguments, name: body}


def _opening(text: str, at: int) -> re.Match[str] | None:
    opening = _OPENING.match(text, at)
    is_inline_code = opening is not None and opening["marks"][0] == "`" and "`" in opening["info"]
    return None if is_inline_code else opening


def _closing(text: str, at: int, marks: str) -> re.Match[str] | None:
    """The line that closes the block whose inside begins at `at`."""
    depth = 1
    for line in _FENCE_LINE.finditer(text, at):
        if not line["marks"].startswith(marks):
            continue
        is_opening = bool(line["info"].strip())
        if is_opening and line["marks"][0] == "`" and "`" in line["info"]:
            continue
        depth += 1 if is_opening else -1
        if depth == 0:
            return line
    return None


def _goes_on(text: str, at: int, marks: str) -> bool:
    """Whether another fence follows before the next call: in Markdown the block may have ended in its middle."""
    next_call = _CALL_LINE.search(text, at)
    lines = _FENCE_LINE.finditer(text, at, next_call.start() if next_call else len(text))
    return any(line["marks"].startswith(marks) for line in lines)


TOOL_PREFIX = "tool:"

ExtractionResult = ToolInvocation | ExtractionError

HoldsCall = Callable[[str, str], bool]
"""Whether the line that opens a code fence and what follows inside are, or begin, a call in another form."""

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^\r\n]*)")
_FENCE_NEXT = re.compile(r"(?:[ \t]*+\r?\n)*(?P<line>[ \t]*+(?:`{3}|~{3})[^\r\n]*+)(?:\r?\n|\Z)")
_JSON_START = re.compile(r"\(\s*+(?=[{\[])")
_JSON_TOKEN = re.compile(
    r"""(?P<open>[{\[]++) | (?P<close>[}\]]++)
      | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*(?P<quote>")?)
      | (?P<marks>[`~]++)           # of code or of a code fence
      | [^"(){}\[\]\\`~]++          # separators, white space, numbers, words""",
    re.DOTALL | re.VERBOSE,
)
_JSON_NEXT = re.compile(r"""[^"{}\[\]`~]*+(?=[{\[])""")
_AFTER_STRING = re.compile(r"\s*+[,:\]}]")
_CLOSING_PAREN = re.compile(r"\s*+\)")
_UNNAMED = frozenset(
    {
        ExtractionErrorType.UNKNOWN_TOOL_NAME,
        ExtractionErrorType.MISSING_OPENING_PAREN,
        ExtractionErrorType.EMPTY_TOOL_NAME,
    }
)
_MOST_LEAD_LINES = 3
_WORD = re.compile(r"\w++")
_NOT_RUN = "The block after it was taken for its text: the calls in it did not run."


class TextCall(NamedTuple):
    """One call at its place in the reply, from `line_number` to `end_line`, its block included.

    `raw_arguments` is the exact text between the parentheses, `body` that of the block which gives what they lack.
    `fences` are the marks of the code fence that is open before the call and after it, "" for none.
    """

    line_number: int
    tool: str
    raw_arguments: str
    outcome: ExtractionResult
    end_line: int
    body: str | None = None
    fences: tuple[str, str] = ("", "")


def parse_tool_line(line: str, line_number: int, known_tools: frozenset[str]) -> ExtractionResult:
    """Read one call; never raises.

    The order of the checks (prefix, opening parenthesis, name, known tool, closing parenthesis, JSON) and the texts
    are the spec's; quoted parts of the line are cut to 200 characters. Source: spec 1 section 1.2.
    """
    return _read_call(line, line_number, known_tools, line).outcome


def extract_tool_invocations_with_errors(
    text: str, known_tools: frozenset[str]
) -> tuple[list[ToolInvocation], list[ExtractionError]]:
    """All calls of a reply and all errors, each in the order of the reply; one line for each call.

    A call whose JSON goes on in the next line is an error, and what follows of it no call. Source: spec 1 section 1.2.
    """
    outcomes = [call.outcome for call in extract_in_order(text, known_tools, {}, one_line=True)]
    return (
        [outcome for outcome in outcomes if isinstance(outcome, ToolInvocation)],
        [outcome for outcome in outcomes if isinstance(outcome, ExtractionError)],
    )


def extract_in_order(
    text: str,
    known_tools: frozenset[str],
    bodies: Mapping[str, str] = BODY_ARGUMENTS,
    *,
    content: Sequence[tuple[int, int]] = (),
    fenced: bool = True,
    one_line: bool = False,
    foreign: HoldsCall | None = None,
) -> list[TextCall]:
    """All calls of a reply, well-formed or not, in order; [] for a reply without `tool:` lines.

    Args:
        text: The whole reply.
        known_tools: The tools that there are.
        bodies: For a tool the argument that it takes from the fenced block after its line.
        content: Where text begins and ends, in order, that belongs to something else, such as a file's new text.
        fenced: Whether lines in code fences count.
        one_line: Whether a call is what its first line says, as in the document.
        foreign: Tells calls in another form: what follows of one, in its fence or in the block after it, is its text.
    """
    lines = text.splitlines(keepends=True)
    bounds = list(accumulate(map(len, lines), initial=0))
    skipped = {bisect_left(bounds, start): bisect_left(bounds, end) for start, end in content}
    calls: list[TextCall] = []
    index, fence = 0, ""
    while index < len(lines):
        if index in skipped:
            index = max(index + 1, skipped[index])
            continue
        line = lines[index]
        if not _begins_call(line) or (fence and not fenced):
            before, fence, index = fence, fence_after(line, fence), index + 1
            if foreign and fence and not before and foreign(line, _head(lines, index, fence)):
                fence, index = "", bisect_left(bounds, _foreign_end(text, lines, bounds, index, fence, bodies))
            continue
        end = _call_end(text, bounds[index], bounds[index + 1])
        after = bisect_left(bounds, end)
        source = line if one_line else text[bounds[index] : bounds[after]]
        call = _read_call(source, index + 1, known_tools, _first_line(source))
        call, end = _completed(call._replace(fences=(fence, fence)), text, bounds[after], bodies)
        fence, index = call.fences[1], bisect_left(bounds, end)
        calls.append(call._replace(end_line=index))
    return calls


def without_bodies(text: str, calls: Sequence[TextCall]) -> str:
    """The text in which of each call only the first line is left, the others blank: all lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    for call in calls:
        for index in range(call.line_number, call.end_line):
            lines[index] = "\n" if lines[index].endswith("\n") else ""
    return "".join(lines)


def format_extraction_errors(errors: Sequence[ExtractionError]) -> str:
    """The errors for display and logs, "" for none. Source: spec 1 section 1.2."""
    if not errors:
        return ""
    lines = ["Tool Extraction Errors:"]
    for error in errors:
        lines.append(f"  Line {error.line_number}: [{error.error_type.name}]")
        lines.append(f"    Content: {error.line_content[:80]}...")
        lines.append(f"    Details: {error.details}")
    return "\n".join(lines)


def fence_after(line: str, fence: str) -> str:
    """The code fence that is open after `line`, given the one open before it ("" for none). Source: CommonMark 4.5."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    marks, info = match.groups()
    if not fence:
        is_inline_code = marks[0] == "`" and "`" in info
        return "" if is_inline_code else marks
    closes = marks.startswith(fence) and not info.strip()
    return "" if closes else fence


def _read_call(source: str, line_number: int, known_tools: frozenset[str], line: str) -> TextCall:
    def broken(kind: ExtractionErrorType, details: str, tool: str = "", raw: str = "") -> TextCall:
        error = ExtractionError(kind, line_number, line, details)
        return TextCall(line_number, tool, raw, error, line_number)

    stripped = source.strip()
    if not stripped.startswith(TOOL_PREFIX):
        return broken(ExtractionErrorType.MISSING_TOOL_PREFIX, "Line does not start with 'tool:' prefix")
    after_prefix = stripped.removeprefix(TOOL_PREFIX).strip()
    name, paren, rest = after_prefix.partition("(")
    name = name.strip()
    if not paren:
        details = f"Missing '(' in tool invocation: '{excerpt(after_prefix)}'"
        return broken(ExtractionErrorType.MISSING_OPENING_PAREN, details)
    raw = rest.removesuffix(")")
    if not name:
        return broken(ExtractionErrorType.EMPTY_TOOL_NAME, "Tool name is empty", raw=raw)
    if name not in known_tools:
        return broken(ExtractionErrorType.UNKNOWN_TOOL_NAME, unknown_tool_details(name, known_tools), name, raw)
    if not rest.endswith(")"):
        details = f"Missing closing ')' in: '{excerpt(rest, at=len(rest))}'"
        return broken(ExtractionErrorType.MISSING_CLOSING_PAREN, details, name, raw)
    call = decode_call(name, raw.strip(), known_tools)
    if isinstance(call, ArgumentProblem):
        return broken(call.kind, call.details, name, raw)
    outcome = ToolInvocation(call.tool, call.arguments, line_number)
    return TextCall(line_number, call.tool, raw, outcome, line_number)


def _first_line(source: str) -> str:
    return source.splitlines()[0] if source else ""


def _completed(call: TextCall, text: str, after: int, bodies: Mapping[str, str]) -> tuple[TextCall, int]:
    """The call with what the block at `after` gives it, if it lacks that, and where what belongs to it ends.

    Where the call ends a code fence, its block is the next one.
    """
    outcome, fence = call.outcome, call.fences[0]
    closing = _FENCE_NEXT.match(text, after) if fence else None
    leaves = closing is not None and not fence_after(closing["line"], fence)
    if isinstance(outcome, ExtractionError):
        return (call, after) if leaves else _with_content(call, outcome, text, after, bodies)
    name = bodies.get(call.tool)
    if name is None or name in outcome.args:
        return call, after
    start, left = (closing.end(), "") if closing is not None and leaves else (after, fence)
    body = read_body(text, start)
    if body is None:
        end = _misplaced_end(text, start, left)
        if end == start:
            return call, after
        missing = f"{call.tool}: {name} is missing. {_NOT_RUN}"
        body = Body(ArgumentProblem(ExtractionErrorType.INVALID_ARGUMENTS, missing), end)
    call = call._replace(fences=(fence, left))
    if isinstance(body.text, ArgumentProblem):
        line = _first_line(f"{TOOL_PREFIX} {call.tool}({call.raw_arguments})")
        error = ExtractionError(body.text.kind, call.line_number, line, body.text.details)
        return call._replace(outcome=error), body.end
    completed = outcome._replace(args=with_body(outcome.args, name, body.text))
    return call._replace(outcome=completed, body=body.text), body.end


def _with_content(
    call: TextCall, error: ExtractionError, text: str, after: int, bodies: Mapping[str, str]
) -> tuple[TextCall, int]:
    """A broken call, and where the block after it ends if that is, or may be, the text that the call leaves out.

    Nothing in such a block is a call; where something looks like one, the model is told.
    """
    unnamed = bool(bodies) and error.error_type in _UNNAMED
    takes = unnamed or (call.tool in bodies and f'"{bodies[call.tool]}"' not in call.raw_arguments)
    body = read_body(text, after) if takes else None
    if body is None:
        return call, after
    if any(map(_begins_call, text[after : body.end].splitlines())):
        call = call._replace(outcome=error._replace(details=f"{error.details} {_NOT_RUN}"))
    return call, body.end


def _head(lines: Sequence[str], index: int, fence: str) -> str:
    """What stands in a code fence before its first `tool:` line, from the line `index` on."""
    inside = (lines[at] for at in range(index, len(lines)))
    return "".join(takewhile(lambda line: fence_after(line, fence) and not _begins_call(line), inside))


def _foreign_end(
    text: str, lines: Sequence[str], bounds: Sequence[int], index: int, fence: str, bodies: Mapping[str, str]
) -> int:
    """Where a code fence ends whose inside begins at the line `index` and is a call in another form.

    A line that would close the fence is text where it stands in a string of the call's JSON. Where the call leaves its
    text out, the block after it belongs to it as well.
    """
    at = bounds[index]
    while (start := _JSON_NEXT.match(text, at)) and (after := json_end(text, start.end(), fenced=True)) is not None:
        at = after
    rest = range(bisect_left(bounds, at), len(lines))
    last = next((number for number in rest if not fence_after(lines[number], fence)), len(lines) - 1)
    source, end = text[bounds[index] : bounds[last]], bounds[last + 1]
    words = set(_WORD.findall(source))
    if any(tool in words and f'"{name}"' not in source and f"{name}=" not in source for tool, name in bodies.items()):
        body = read_body(text, end)
        end = body.end if body else _misplaced_end(text, end, "")
    return end


def _misplaced_end(text: str, at: int, fence: str) -> int:
    """Where the text ends that a call lacks and that stands in the wrong place; `at` where there is none.

    That is the rest of the code fence in which the call stands, or the next fence, after a few lines that lead to it.
    A fence that holds nothing but calls is none.
    """
    end, lead, calls, others = at, -1 if fence else 0, 0, 0
    inside = bool(fence)
    for line in _lines(text, at):
        before, fence = fence, fence_after(line, fence)
        is_call = _begins_call(line)
        if before and not fence:
            end += 0 if inside else len(line)
            break
        end += len(line)
        if not line.strip() or (fence and not before):
            lead = -1 if fence else lead
        elif lead >= 0:
            lead += 1
            if is_call or lead > _MOST_LEAD_LINES:
                return at
        elif is_call and not others:
            return at
        else:
            calls, others = calls + is_call, others + 1
    return end if calls else at


def _lines(text: str, at: int) -> Iterator[str]:
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def _begins_call(line: str) -> bool:
    return line.lstrip().startswith(TOOL_PREFIX)


def _call_end(text: str, line_start: int, line_end: int) -> int:
    """Where the call that starts at `line_start` ends: at least at its line's end, at most at the text's.

    A call whose JSON is broken is its line alone. A string that is never closed runs to the end of the text: what
    stands in it is content that must not run.
    """
    paren = text.find("(", line_start, line_end)
    start = _JSON_START.match(text, paren) if paren >= 0 else None
    end = json_end(text, start.end()) if start else None
    if end is None:
        return line_end
    closing = _CLOSING_PAREN.match(text, end)
    return max(line_end, closing.end() if closing else end)


def json_end(text: str, start: int, *, fenced: bool = False) -> int | None:
    """Just after the bracket that closes the one at `start`; None where brackets and strings are no JSON.

    The end of the text if a string is never closed. Many broken calls cost linear time together: a scan ends where it
    meets the `(` of a later call outside a string, and one that passes it inside a string is from there on always on
    the other side of a quote than the later call's own scan, so that one of the two ends at the next call. The same
    holds for code fences where the JSON is `fenced`: their marks are no JSON.
    """
    position, depth = start, 0
    while token := _JSON_TOKEN.match(text, position):
        position = token.end()
        if token["string"]:
            if not token["quote"]:
                return len(text)
            if not _AFTER_STRING.match(text, position):
                return None
        elif token["open"]:
            depth += len(token["open"])
        elif token["close"]:
            if len(token["close"]) >= depth:
                return token.start() + depth
            depth -= len(token["close"])
        elif token["marks"] and fenced:
            return None
    return None


# --- How results go back: spec 1's lines, or one JSON text for each native call

_RESULT: Final = "tool_result("
_LINE_BREAKING_OR_UNSENDABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def render_text_results(results: Sequence[CallResult]) -> str:
    """One `tool_result({...})` line for each result, in order, "tool" first, then spec 2's envelope.

    Every line break, control character and lone surrogate is escaped, so a result is always one line that can be
    sent and stored.
    """
    return "\n".join(f"{_RESULT}{_compact({'tool': result.tool, **result.result.as_map()})})" for result in results)


def render_native_result(result: CallResult) -> str:
    """The content of the tool message: the envelope as compact JSON, without the tool's name."""
    return _compact(result.result.as_map())


def parse_text_results(text: str) -> list[JsonMap]:
    """The maps that `render_text_results` rendered, in order; lines that are no such result are passed over."""
    results = []
    for line in text.split("\n"):
        if line.startswith(_RESULT) and line.endswith(")"):
            try:
                value = json.loads(line[len(_RESULT) : -1])
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                results.append(value)
    return results


def _compact(value: JsonMap) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _LINE_BREAKING_OR_UNSENDABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


MISSED: Final = "old_str does not occur in"

"""How the error of such an edit begins, after what multi_edit says of the edits before."""

WHOLE_FORM_AFTER: Final = 2

"""Misses on one file in one turn after which the whole file is asked for: who cannot quote it can still write it."""


def is_miss(error: ToolError | None) -> bool:
    """Whether an edit failed because its old text is not in the file."""
    return error is not None and error.code is ToolErrorCode.INVALID_ARGUMENT and MISSED in error.message


def miss_advice(path: str, misses: int) -> str:
    """What is added to the error of the last of so many misses on this file, "" where nothing is yet.

    It names the form that needs no old text. The file is read first, as write_file replaces only what was read.
    """
    if misses < WHOLE_FORM_AFTER:
        return ""
    return (
        f"That is miss {misses} on {path} in this turn: read_file it, then give its whole new text with write_file"
        " instead of old_str and new_str."
    )
