"""What a person sees of a reply while it is streamed: its prose, without the calls and the edits that stand in it.

Pure. Text comes in pieces of any size, and goes out as soon as it is certain that it belongs to no call: mostly at
once, a line that may begin a call when that is decided, a code block that may be an edit when it is complete.
How the same text is cut into pieces makes no difference to what is seen of it.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from mendgraph.nodes.language.blocks import read_blocks
from mendgraph.nodes.language.dialects import looks_like_call
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, TextCall, extract_in_order, fence_after

LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""What ends a line in the text protocol (`str.splitlines`)."""

_LINE = re.compile(rf"[^{LINE_ENDS}]*+[{LINE_ENDS}]?")
_NEXT = re.compile(r"\s*+(?P<sign>.?)", re.DOTALL)
_JSON_TOKEN = re.compile(
    r"""(?P<open>[{\[]) | (?P<close>[}\]]) | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*(?P<quote>"?+)) | [^"(){}\[\]\\]++""",
    re.DOTALL | re.VERBOSE,
)


class Unended(Enum):
    """Why no end can be named: more has to come, or the arguments are no JSON."""

    OPEN = auto()
    BROKEN = auto()


def first_line(text: str, at: int = 0) -> str:
    """The line that begins at `at`, with its end if that has come; "" at the end of the text."""
    line = _LINE.match(text, at)
    return line[0] if line else ""


def is_complete(line: str) -> bool:
    """Whether the line has its end."""
    return line[-1:] in LINE_ENDS and bool(line)


def call_end(text: str) -> int | Unended:
    """Just after the call at the start of `text`: after its `)`, or after what there is of it where that is missing."""
    line = first_line(text)
    alone = len(line) if is_complete(line) else Unended.OPEN
    paren = line.find("(")
    if paren < 0:
        return alone
    at, bracket = _next(text, paren + 1)
    if bracket not in {"{", "["}:
        return alone if bracket else Unended.OPEN
    end = _json_end(text, at)
    if isinstance(end, Unended):
        return end
    at, sign = _next(text, end)
    if not sign:
        return Unended.OPEN
    return at + 1 if sign == ")" else end


def _json_end(text: str, at: int) -> int | Unended:
    """Just after the bracket that closes the one at `at`."""
    depth = 0
    while token := _JSON_TOKEN.match(text, at):
        at = token.end()
        depth += bool(token["open"]) - bool(token["close"])
        if token["close"] and depth == 0:
            return at
        if token["string"]:
            after = _next(text, at)[1]
            if not token["quote"] or not after:
                return Unended.OPEN
            if after not in ",:]}":
                return Unended.BROKEN
    return Unended.OPEN if at == len(text) else Unended.BROKEN


def _next(text: str, at: int) -> tuple[int, str]:
    """Where the next character stands that is no white space, and which it is; "" where none has come."""
    found = _NEXT.match(text, at)
    return (found.start("sign"), found["sign"]) if found else (len(text), "")


_FOREIGN_STARTS = ("<tool", '{"name"', '{"tool"', '[{"name"', '[{"tool"')
_MAYBE_PATH = re.compile(r"\s*+[*#]*+\s*+(?:[Ff]ile:?\s*+)?[*`]*+[\w@.+/-]*+[`*:]*+\s*+")
_UNNAMED_FILE = "file.py"
"""Stands for the one file that was shown: a block of definitions without a path is meant for it."""

_PROMPT_HOLD = 100
"""A held line longer than this is looked at again only when it ends, so that a long call costs linear time."""


class _Passage(NamedTuple):
    """The next characters that are decided on, what is seen of them, and whether they are a code block."""

    length: int
    shown: str
    block: bool = False


class VisibleText:
    """Filters one reply after the other. `blocks` says that edits come as fenced blocks under the name of a file."""

    def __init__(self, known_tools: frozenset[str], *, blocks: bool = False) -> None:
        self._known_tools = known_tools
        self._blocks = blocks
        self._restart()

    def feed(self, piece: str) -> str:
        """What can be shown now that this piece has come."""
        undecided = len(self._held)
        self._held += piece
        if undecided > _PROMPT_HOLD and not any(end in piece for end in LINE_ENDS):
            return ""
        return "".join(self._decided(final=False))

    def end(self) -> str:
        """What was still held when the reply ended; the next piece begins another reply."""
        rest = "".join(self._decided(final=True))
        self._restart()
        return rest

    def _restart(self) -> None:
        self._held = ""  # from the start of a line, unless `_in_line`
        self._in_line = False  # the rest of this line is shown as it comes
        self._fence = ""  # the marks of the shown code block that is open
        self._broken = False  # inside a malformed call of many lines
        self._heading = ""  # the last line shown that was not blank

    def _decided(self, *, final: bool) -> Iterator[str]:
        while self._held:
            passage = self._next(final=final)
            if passage is None:
                return
            chunk, self._held = self._held[: passage.length], self._held[passage.length :]
            self._heading = self._heading_after(passage)
            self._in_line = bool(passage.shown) and not is_complete(chunk)
            yield passage.shown

    def _heading_after(self, passage: _Passage) -> str:
        if passage.block:
            return ""
        if self._in_line:
            return self._heading + passage.shown
        return passage.shown if passage.shown.strip() else self._heading

    def _next(self, *, final: bool) -> _Passage | None:
        """The next passage; None while more has to come before it is clear what it is."""
        line = first_line(self._held)
        complete = final or is_complete(line)
        start = line.lstrip()
        if self._in_line:
            return _Passage(len(line), line)
        if self._fence:
            return self._in_fence(line, start, complete=complete, final=final)
        if not start:
            return _Passage(len(line), line) if complete else None
        if _may_begin(TOOL_PREFIX, start, complete=complete):
            return self._call(line, complete=complete, final=final) if start.startswith(TOOL_PREFIX) else None
        if self._broken:
            return self._broken_line(line, complete=complete)
        foreign = _is_foreign(self._held, _FOREIGN_STARTS, final=final)
        if foreign is not False:
            return self._foreign(final=final) if foreign else None
        return self._prose(line, start, complete=complete, final=final)

    def _prose(self, line: str, start: str, *, complete: bool, final: bool) -> _Passage | None:
        if _may_be_fence(start):
            if not complete:
                return None
            if fence_after(line, ""):
                return self._code_block(0, final=final)
        if self._blocks and _MAYBE_PATH.fullmatch(line):
            return self._under_path(len(line), final=final) if complete else None
        return _Passage(len(line), line)

    # --- Calls -------------------------------------------------------------------------------------------------

    def _call(self, line: str, *, complete: bool, final: bool) -> _Passage | None:
        """A call, to the end of the line in which it ends."""
        end = call_end(self._held)
        if end is Unended.OPEN:
            return _Passage(len(self._held), "") if final else None
        if end is Unended.BROKEN and not complete:
            return None
        self._broken = end is Unended.BROKEN and not line.rstrip().endswith(")")
        length = len(line)
        while isinstance(end, int) and length < end:
            length += len(first_line(self._held, length))
        return _Passage(length, "") if final or is_complete(self._held[:length]) else None

    def _broken_line(self, line: str, *, complete: bool) -> _Passage | None:
        """A further line of a malformed call: it ends with a line that looks like the end of one."""
        if not complete:
            return None
        self._broken = not line.rstrip().endswith(")")
        return _Passage(len(line), "")

    def _foreign(self, *, final: bool) -> _Passage | None:
        """What begins like a call in another harness's form: the end of the reply shows whether it is one."""
        if not final:
            return None
        is_call = looks_like_call(self._held, self._known_tools)
        return _Passage(len(self._held), "" if is_call else self._held)

    # --- Code blocks -------------------------------------------------------------------------------------------

    def _in_fence(self, line: str, start: str, *, complete: bool, final: bool) -> _Passage | None:
        """A line of a code block that is shown; a line that may close it or begin a call has to be seen whole."""
        if not complete and (not start or start[0] == self._fence[0]):
            return None
        if not (complete and not fence_after(line, self._fence)):
            if _may_begin(TOOL_PREFIX, start, complete=complete):
                return self._call(line, complete=complete, final=final) if start.startswith(TOOL_PREFIX) else None
            if self._broken:
                return self._broken_line(line, complete=complete)
            foreign = _is_foreign(self._held, _FOREIGN_STARTS, final=final) if start else False
            if foreign is not False:
                return self._foreign_in_fence(line, final=final) if foreign else None
        if complete:
            self._fence, self._broken = fence_after(line, self._fence), False
        return _Passage(len(line), line)

    def _foreign_in_fence(self, line: str, *, final: bool) -> _Passage | None:
        """What begins like a call in another form: the end of the block shows whether it is one."""
        opening = f"{self._fence}\n"
        end = _block_end(opening + self._held, 0, final=final)
        if end is None:
            return None
        rest = self._held[: end - len(opening)]
        if not looks_like_call(opening + rest, self._known_tools):
            return _Passage(len(line), line)
        last = rest.splitlines(keepends=True)[-1]
        closes = not fence_after(last, self._fence)
        self._fence = ""
        return _Passage(len(rest), last if closes else "")

    def _under_path(self, length: int, *, final: bool) -> _Passage | None:
        """A line that may name a file: it does so if a code block comes next."""
        at = length
        while line := first_line(self._held, at):
            start = line.strip()
            if start:
                complete = final or is_complete(line)
                if complete and fence_after(line, ""):
                    return self._code_block(at, final=final)
                if not complete and _may_be_fence(start):
                    return None
                return _Passage(length, self._held[:length])
            at += len(line)
        return _Passage(length, self._held[:length]) if final else None

    def _code_block(self, at: int, *, final: bool) -> _Passage | None:
        """The code block that opens at `at`, with the file's name before it: hidden where it is an edit or a call."""
        opening = first_line(self._held, at)
        if not self._blocks:
            foreign = _is_foreign(self._held[at + len(opening) :], (*_FOREIGN_STARTS, TOOL_PREFIX), final=final)
            if foreign is None:
                return None
            if not foreign:
                self._fence = fence_after(opening, "")
                return _Passage(at + len(opening), self._held[: at + len(opening)])
        end = _block_end(self._held, at, final=final)
        return None if end is None else _Passage(end, self._seen_of_block(self._held[:end], at), block=True)

    def _seen_of_block(self, text: str, at: int) -> str:
        before, block = text[:at], text[at:]
        calls = extract_in_order(block, self._known_tools, {})
        if not calls and looks_like_call(block, self._known_tools):
            return before
        heading = "" if before else f"{self._heading.strip()}\n"
        reading = read_blocks(heading + text, (_UNNAMED_FILE,))
        if not self._blocks or not reading.outcomes:
            return before + _without_calls(block, calls)
        return before if before.strip() in reading.prose.splitlines() else ""


def _without_calls(block: str, calls: Sequence[TextCall]) -> str:
    """A code block without the calls in it, "" where it holds nothing else."""
    hidden = {number for call in calls for number in range(call.line_number, call.end_line + 1)}
    lines = [line for number, line in enumerate(block.splitlines(keepends=True), 1) if number not in hidden]
    marks = fence_after(lines[0], "") if lines else ""
    is_empty = all(not line.strip() or not fence_after(line, marks) for line in lines[1:])
    return "" if calls and is_empty else "".join(lines)


def _may_begin(mark: str, start: str, *, complete: bool) -> bool:
    """Whether the line begins with `mark`, or may do so once it goes on."""
    return start.startswith(mark) or (not complete and mark.startswith(start))


def _may_be_fence(start: str) -> bool:
    return start[:3] in {"`", "``", "```", "~", "~~", "~~~"}


def _is_foreign(text: str, starts: tuple[str, ...], *, final: bool) -> bool | None:
    """Whether the text begins, white space apart, like a call in another form; None while that is open."""
    compact = "".join(text[:_PROMPT_HOLD].split())
    if any(compact.startswith(each) for each in starts):
        return True
    return None if not final and any(each.startswith(compact) for each in starts) else False


def _block_end(text: str, at: int, *, final: bool) -> int | None:
    """Just after the line that closes the code block at `at`; None while there is none."""
    opening = first_line(text, at)
    fence, at = fence_after(opening, ""), at + len(opening)
    while (marks := text.find(fence, at)) >= 0:
        start = max(text.rfind(end, at - 1, marks) for end in LINE_ENDS) + 1
        line = first_line(text, start)
        if not final and not is_complete(line):
            return None
        at = start + len(line)
        if not fence_after(line, fence):
            return at
    return len(text) if final else None
