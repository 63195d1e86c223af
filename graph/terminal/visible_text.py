"""What a person sees of a reply while it is streamed: its prose, without the calls and the edits that stand in it.

Pure. Text comes in pieces of any size. A line of prose goes out as it comes; what may be a call or a code block is
held until it is complete, and what begins like a call in another form, until the reply ends. How the same text is cut
into pieces makes no difference to what is seen of it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mendgraph.nodes.language.blocks import read_blocks
from mendgraph.nodes.language.dialects import looks_like_call
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, extract_in_order, fence_after
from mendgraph.nodes.records import ToolInvocation

_LINE_ENDS = frozenset("\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""What surely ends a line (`str.splitlines`); a carriage return does so when it is known what follows."""

_FOREIGN_STARTS = ("<tool", '{"name"', '{"tool"', '[{"name"', '[{"tool"')
_FOREIGN_WITHIN = 100
"""Characters of a text that show whether it begins like a call in another form."""

_FENCE_STARTS = frozenset({"`", "``", "```", "~", "~~", "~~~"})
_MAYBE_PATH = re.compile(r"\s*+[*#]*+\s*+(?:[Ff]ile:?\s*+)?[*`]*+[\w@.+/-]*+[`*:]*+\s*+")
_UNNAMED_FILE = "file.py"
"""Stands for the one file that was shown: a block of definitions without a path is meant for it."""


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
        if undecided > _FOREIGN_WITHIN and _LINE_ENDS.isdisjoint(piece):
            return ""  # a long call in one line costs linear time
        return "".join(self._decided(final=False))

    def end(self) -> str:
        """What was still held when the reply ended; the next piece begins another reply."""
        rest = "".join(self._decided(final=True))
        self._restart()
        return rest

    def _restart(self) -> None:
        self._held = ""  # from the start of a line, unless `_in_line`
        self._in_line = False  # the rest of this line is shown as it comes
        self._heading = ""  # the last line shown that was not blank

    def _decided(self, *, final: bool) -> Iterator[str]:
        while self._held:
            passage = self._next(final=final)
            if passage is None:
                return
            chunk, self._held = self._held[: passage.length], self._held[passage.length :]
            if passage.block:
                self._heading = ""
            elif self._in_line:
                self._heading += passage.shown
            elif passage.shown.strip():
                self._heading = passage.shown
            self._in_line = bool(passage.shown) and chunk[-1] not in {"\r", *_LINE_ENDS}
            yield passage.shown

    def _next(self, *, final: bool) -> _Passage | None:
        """The next passage; None while more has to come before it is clear what it is."""
        lines = self._held.splitlines(keepends=True)
        line, complete = lines[0], _is_complete(lines, 0, final=final)
        start = line.lstrip()
        prose = line if complete else line.removesuffix("\r")
        if self._in_line:
            return _Passage(len(prose), prose) if prose else None
        if not start:
            return _Passage(len(line), line) if complete else None
        if start.startswith(TOOL_PREFIX):
            return self._call(lines, final=final)
        if not complete and (TOOL_PREFIX.startswith(start) or start[:3] in _FENCE_STARTS):
            return None
        foreign = _is_foreign(self._held, final=final)
        if foreign is not False:
            return self._whole_reply() if final and foreign else None
        if fence_after(line, ""):
            return self._code_block(lines, 0, final=final)
        if self._blocks and _MAYBE_PATH.fullmatch(line):
            return self._under_path(lines, final=final) if complete else None
        return _Passage(len(prose), prose)

    def _call(self, lines: Sequence[str], *, final: bool) -> _Passage | None:
        """A call, to the end of the line in which it ends; what a malformed one is shows when the reply ends."""
        call = extract_in_order(self._held, self._known_tools, {})[0]
        ended = call.end_line
        if not isinstance(call.outcome, ToolInvocation):
            if not final:
                return None
            if ended == 1 and "(" in lines[0]:  # its end is not known: the next line that looks like one
                ends = (number for number, line in enumerate(lines, 1) if line.rstrip().endswith((")", "}")))
                ended = next(ends, len(lines))
        if not _is_complete(lines, ended - 1, final=final):
            return None
        return _Passage(sum(map(len, lines[:ended])), "")

    def _whole_reply(self) -> _Passage:
        is_call = looks_like_call(self._held, self._known_tools)
        return _Passage(len(self._held), "" if is_call else self._held)

    def _under_path(self, lines: Sequence[str], *, final: bool) -> _Passage | None:
        """A line that may name a file: it does so if a code block comes next."""
        for number, line in enumerate(lines[1:], 1):
            complete = _is_complete(lines, number, final=final)
            if complete and fence_after(line, ""):
                return self._code_block(lines, number, final=final)
            if not complete and (not line.strip() or line.strip()[:3] in _FENCE_STARTS):
                return None
            if line.strip():
                return _Passage(len(lines[0]), lines[0])
        return _Passage(len(lines[0]), lines[0]) if final else None

    def _code_block(self, lines: Sequence[str], at: int, *, final: bool) -> _Passage | None:
        """The code block that opens in line `at`, with the file's name before it."""
        fence = fence_after(lines[at], "")
        closing = (
            number
            for number, line in enumerate(lines[at + 1 :], at + 1)
            if fence in line and _is_complete(lines, number, final=final) and not fence_after(line, fence)
        )
        last = next(closing, len(lines) - 1 if final else None)
        if last is None:
            return None
        before, block = "".join(lines[:at]), "".join(lines[at : last + 1])
        return _Passage(len(before + block), self._seen_of_block(before, block), block=True)

    def _seen_of_block(self, before: str, block: str) -> str:
        """The block without calls; nothing where it is an edit or a call."""
        calls = extract_in_order(block, self._known_tools, {})
        if not calls and looks_like_call(block, self._known_tools):
            return before
        heading = "" if before else f"{self._heading.strip()}\n"
        reading = read_blocks(heading + before + block, (_UNNAMED_FILE,))
        if self._blocks and reading.outcomes:
            return before if before.strip() in reading.prose.splitlines() else ""
        hidden = {number for call in calls for number in range(call.line_number, call.end_line + 1)}
        shown = [line for number, line in enumerate(block.splitlines(keepends=True), 1) if number not in hidden]
        is_empty = not any(line.strip().strip("`~") for line in shown[1:])
        return before + ("" if calls and is_empty else "".join(shown))


def _is_complete(lines: Sequence[str], number: int, *, final: bool) -> bool:
    """Whether this line has its end."""
    return final or number < len(lines) - 1 or lines[number][-1] in _LINE_ENDS


def _is_foreign(text: str, *, final: bool) -> bool | None:
    """Whether the text begins, white space apart, like a call in another form; None while that is open."""
    compact = "".join(text[:_FOREIGN_WITHIN].split())
    if compact.startswith(_FOREIGN_STARTS):
        return True
    return None if not final and any(each.startswith(compact) for each in _FOREIGN_STARTS) else False
