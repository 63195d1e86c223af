"""Find the tool calls in a reply with the table of formats, in one pass and linear time.

Markup is read from its start to its end, so text inside of a value is never taken for another call. Code fences that
belong to no format, inline code, quoted lines and indented blocks are quotations. Markup that cannot be read ends the
pass, because the rest may belong to it.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from mendgraph.nodes.language.formats.call_format import Markup, ToolSchemas, after_openers, marker_pattern, skip_space
from mendgraph.nodes.language.formats.table import FORMAT_OF, FORMATS
from mendgraph.nodes.language.text_protocol import RESULT_MARK, TOOL_PREFIX, fence_after, tool_line_end

PROSE_FOLLOWS: Final = "prose follows it"
_UNREADABLE: Final = "it cannot be read"
_AMBIGUOUS: Final = "a value may hold the format's own marks, so that there are two ways to read it"
_OUTSIDE: Final = "it runs in a code fence of the format alone"
_MOST_DOUBTFUL: Final = 5
"""Possible starts of calls that cannot be read; a text with more is neither an answer nor a call."""

_LONGEST_QUOTATION: Final = 2_000
"""Characters of a line or a paragraph that are examined to decide whether it is quoted."""

_LEADING_WORD: Final = r"(?:(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:[ \t]*+)?"
_VISIBLE: Final = re.compile(r"[^\n]")
_FILE_HEADING: Final = re.compile(r"[\s*#`]*+[\w@./-]*\.\w++[`*:\s]*+")
_CALL_LIKE: Final = re.compile(
    r"<[\w|｜:▁-]*(?:tool|function|invoke|call|python|action|DSML)|\[TOOL_|✿|Action:[^\n]*+\n\s*+Action Input:"
)


ROLE_LINE: Final = re.compile(
    r"""[ \t]*+(?:
        (?i:user|human|assistant|system|tool[ _]results?|observation)[ \t]*+:
      | \#{2,}+[ \t]*+(?i:user|human|assistant|system|tool[ _]results?|observation)\b[ \t]*+:?[ \t]*+$
      | <\|(?:im_start|im_end|start_header_id|eot_id|user|assistant|system|end|endoftext|tool_response)\|?>
      | <(?:tool_response|tool_result|tool_results|function_results?|observation|start_function_response)>
      | <｜tool▁outputs?▁begin｜> | <\|start\|>\w++[ ]to= | \[TOOL_RESULTS\] | \[/?INST\] | </s>
    )""",
    re.VERBOSE,
)
"""Matches the start of another role's message, which the model invented if it follows a call."""


class Starts(NamedTuple):
    """Patterns for the start of markup: anywhere, and at the start of a line (group `mark`).

    `parts` are the prefixes of markers that count anywhere, and `lines` the markers of lines, both without spaces.
    """

    anywhere: re.Pattern[str]
    in_line: re.Pattern[str]
    parts: frozenset[str]
    lines: tuple[str, ...]
    longest: int

    def place_in(self, text: str, position: int, end: int, *, complete: bool) -> int:
        """Return where a call starts, or may start if the line is not `complete`, in a line of a growing text.

        `position` and `end` are those of the line; `end` is returned if there is none.
        """
        match = self.anywhere.search(text, position, end + self.longest)
        if match is not None and match.start() < end:
            return match.start()

        if complete:
            return end

        for place in range(max(position, end - self.longest), end):
            if not text[place].isspace() and "".join(text[place:end].split()) in self.parts:
                return place

        return end

    def begins(self, text: str, position: int) -> bool:
        """Return whether a whole marker that counts anywhere is at `position`."""
        return self.anywhere.match(text, position) is not None

    def may_begin_line(self, start: str, *, complete: bool) -> bool:
        """Return whether a line with this start, without spaces, is or may become the start of a call."""
        grows = not complete or not start[-1].isalnum()
        return any(start.startswith(marker) or (grows and marker.startswith(start)) for marker in self.lines)


@lru_cache(32)
def starts_of(names: frozenset[str]) -> Starts:
    """Return the patterns for the start of calls of these tools in all formats."""
    tools = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
    anywhere: dict[str, None] = {}
    of_lines: dict[str, None] = {}

    for call_format in FORMATS:
        markers = of_lines if call_format.line_start else anywhere
        markers.update(dict.fromkeys(call_format.markers))
        anywhere.update(dict.fromkeys(call_format.inline))

    in_line = "|".join(marker_pattern(marker, tools) for marker in of_lines)
    plain = _plain(anywhere, names)

    return Starts(
        re.compile("|".join(marker_pattern(marker, tools) for marker in anywhere)),
        re.compile(rf"^[ \t]*+(?P<mark>{TOOL_PREFIX}|{_LEADING_WORD}(?P<plain>{in_line}))", re.MULTILINE),
        frozenset(marker[:end] for marker in plain for end in range(1, len(marker) + 1)),
        tuple(_plain(of_lines, names)),
        2 * max(map(len, plain)),
    )


def _plain(markers: Iterable[str], names: frozenset[str]) -> list[str]:
    """Return the markers without spaces, with each tool's name."""
    plain: list[str] = []
    for marker in markers:
        without_spaces = "".join(marker.split())
        if "{tool}" in marker:
            plain += [without_spaces.replace("{tool}", name) for name in names]
        else:
            plain.append(without_spaces)

    return plain


def recognise(text: str, tools: ToolSchemas) -> list[Markup]:
    """Return all markup of a reply in order, and the fences that quote calls (`quoted`), without `tool:` lines.

    Markup of formats without own marks has a problem if prose follows, and is a quotation in a fence. Raw values that
    could end at two places have a problem.
    """
    scan = _Scan(text, tools)
    markups = scan.run()
    if not markups:
        return []

    return _placed(mask_markup(text, scan.lines), _unambiguous(text, markups, tools))


def whole_calls(text: str, tools: ToolSchemas) -> bool:
    """Return whether the text is calls and nothing else."""
    markups = [markup for markup in recognise(text, tools) if not markup.quoted]
    complete = bool(markups) and all(markup.calls and not markup.problem for markup in markups)
    return complete and not without_markup(text, markups).strip()


def without_markup(text: str, markups: Sequence[Markup]) -> str:
    """Return the prose of a reply between its calls."""
    parts = []
    at = 0

    for markup in markups:
        if not markup.quoted:
            parts.append(text[at : markup.start])
            at = markup.end

    parts.append(text[at:])
    return "\n\n".join(part.strip() for part in parts if part.strip())


def mask_markup(text: str, markups: Sequence[Markup]) -> str:
    """Return the text with spaces in place of markup and quotations, so that positions stay the same."""
    parts = []
    at = 0
    for markup in markups:
        parts += [text[at : markup.start], _VISIBLE.sub(" ", text[markup.start : markup.end])]
        at = markup.end

    return "".join([*parts, text[at:]])


class _Scan:
    """One pass over a text. `_line` is the start of the line up to which fences are known."""

    def __init__(self, text: str, tools: ToolSchemas) -> None:
        self._text = text
        self._tools = tools
        self._starts = starts_of(tools.names)
        self._anywhere = self._starts.anywhere.search(text)
        self._in_line = self._starts.in_line.search(text)
        self._line = 0
        self._doubtful = 0
        self.markups: list[Markup] = []
        self.lines: list[Markup] = []

    def run(self) -> list[Markup]:
        """Return all markup in order."""
        at = 0
        while at < len(self._text) and (match := self._next(at)) is not None:
            at = max(self._after(match), at + 1)

        return self.markups

    def _next(self, at: int) -> re.Match[str] | None:
        """Return the next possible start of a call; each pattern passes over the text once."""
        if self._anywhere is not None and self._anywhere.start() < at:
            self._anywhere = self._starts.anywhere.search(self._text, at)

        if self._in_line is not None and self._in_line.start("mark") < at:
            self._in_line = self._starts.in_line.search(self._text, at)

        places = [match for match in (self._anywhere, self._in_line) if match is not None]
        return min(places, key=_start, default=None)

    def _after(self, match: re.Match[str]) -> int:
        """Read the markup at the match and return where to continue."""
        text = self._text
        start = _start(match)
        line = text.rfind("\n", max(0, start - _LONGEST_QUOTATION), start) + 1
        line = line or max(0, start - _LONGEST_QUOTATION)
        opening = self._open_fence(line)

        if opening is not None:
            return self._after_fence(*opening)

        before = text[line:start]
        at_line_start = not before.strip() or match is self._in_line
        if text.startswith(TOOL_PREFIX, start) and match is self._in_line:
            self.lines.append(Markup(start, tool_line_end(text, line)))
            return self._taken(self.lines[-1].end)

        quotation_end = _quotation_end(text, line, start)
        if quotation_end is not None:
            return quotation_end

        markup = self._read(start, at_line_start=at_line_start)
        if markup is None and not at_line_start:
            return max(match.end(), after_openers(text, start))

        if markup is None:
            self._doubtful += 1
            if self._doubtful <= _MOST_DOUBTFUL and not _CALL_LIKE.match(text, start):
                return match.end()

            markup = Markup(start, len(text), problem=_UNREADABLE)

        if markup.calls or markup.problem:
            self.markups.append(markup)

        return self._taken(markup.end)

    def _taken(self, end: int) -> int:
        """Continue after text whose lines open and close no fences."""
        self._line = max(self._line, self._text.find("\n", end) + 1 or len(self._text))
        return end

    def _read(self, start: int, *, at_line_start: bool, fence: str | None = None) -> Markup | None:
        for call_format in FORMATS:
            usable = (
                fence in call_format.fences
                if fence is not None
                else at_line_start or not call_format.line_start or call_format.inline
            )
            markup = None

            if usable:
                markup = call_format.read(self._text, start, self._tools)

            if markup is None:
                continue

            if fence is None and call_format.fenced_only and not markup.problem:
                markup = markup._replace(calls=(), problem=_OUTSIDE)

            return markup._replace(format=call_format.name)

        return None

    def _open_fence(self, line: int) -> tuple[int, int, str] | None:
        """Return the start, the body and the marks of the fence that is open before `line`."""
        text = self._text
        fence = ""
        opened = 0
        body = 0

        while self._line < line:
            end = text.find("\n", self._line) + 1 or len(text)
            before = fence
            fence = fence_after(text[self._line : end], fence)

            if fence and not before:
                opened = self._line
                body = end

            self._line = end

        if not fence:
            return None

        return opened, body, fence

    def _after_fence(self, opened: int, body: int, fence: str) -> int:
        """Read a fence that belongs to a format; skip any other, which may quote a call."""
        title = self._text[opened:body].strip().lstrip("`~").strip()
        info = title.split()[0].lower() if title else ""
        heading = self._text[max(0, opened - _LONGEST_QUOTATION) : opened].rstrip().rpartition("\n")[2]
        shows_file = "." in title or _FILE_HEADING.fullmatch(heading)

        if shows_file:
            calls = None
        else:
            calls = self._fenced_calls(opened, body, fence, info)

        if calls is not None:
            self.markups += calls
            self._line = calls[-1].end
            return self._line

        end = self._fence_end(body, fence)
        quoted = self._quotes(body, end)
        if quoted:
            self.markups.append(Markup(opened, end, quoted=True, format=quoted))

        self._line = end
        return end

    def _fenced_calls(self, opened: int, body: int, fence: str, info: str) -> list[Markup] | None:
        """Return the calls of a fence that contains only calls of formats it belongs to; None otherwise.

        An incomplete call of a known tool is a problem, not a quotation.
        """
        markups: list[Markup] = []
        at = skip_space(self._text, body)

        while (markup := self._read(at, at_line_start=True, fence=info)) is not None:
            meant = self._starts.begins(self._text, at) or FORMAT_OF[markup.format].fenced_only
            if markup.problem and meant:
                return [markup._replace(start=opened, end=self._fence_end(body, fence))]
            if markup.problem or not markup.calls:
                return None

            markups.append(markup)
            at = skip_space(self._text, markup.end)

        last = self._text[at : self._text.find("\n", at) + 1 or len(self._text)]
        if not markups or (last and fence_after(last, fence)):
            return None

        markups[0] = markups[0]._replace(start=opened)
        markups[-1] = markups[-1]._replace(end=at + len(last))
        return markups

    def _fence_end(self, body: int, fence: str) -> int:
        at = body
        while fence and at < len(self._text):
            end = self._text.find("\n", at) + 1 or len(self._text)
            fence = fence_after(self._text[at:end], fence)
            at = end

        return at

    def _quotes(self, body: int, end: int) -> str:
        """Return the format of the first call in this part of the text, "" if there is none."""
        inside = _Scan(self._text[body:end].rpartition("\n")[0], self._tools).run()
        return next((markup.format for markup in inside if markup.format), "")


def _start(match: re.Match[str]) -> int:
    groups = match.re.groupindex
    if "plain" in groups:
        if match["plain"] is not None:
            return match.start("plain")
        return match.start("mark")

    return match.start()


def _quotation_end(text: str, line: int, start: int) -> int | None:
    """Return the end of the inline code, quoted paragraph or indented block around `start`; None outside of them.

    `line` is the start of its line.
    """
    before = text[line:start]
    furthest = min(len(text), start + _LONGEST_QUOTATION)
    paragraph_end = text.find("\n\n", start, furthest)
    paragraph_end = furthest if paragraph_end < 0 else paragraph_end

    if before.count("`") % 2:
        span_end = text.find("`", start, paragraph_end)
        return start + 1 if span_end < 0 else span_end + 1

    indented = not before.strip() and len(before.expandtabs(4)) >= len("    ")
    if before.lstrip().startswith(">") or (indented and (line == 0 or text.endswith("\n\n", 0, line))):
        return paragraph_end

    return None


def _unambiguous(text: str, markups: list[Markup], tools: ToolSchemas) -> list[Markup]:
    """Mark markup with raw values as a problem if an end mark of its format occurs again outside of calls."""
    raw = {markup.format for markup in markups if any(call.values for call in markup.calls)}
    marks = [marks for name in raw if (marks := FORMAT_OF[name].end_marks(tools))]
    if not marks:
        return markups

    last_stray = -1
    following = len(text)

    for markup in reversed(markups):
        gap_start = markup.start if markup.problem else markup.end
        if any(pattern.search(text, gap_start, following) for pattern in marks):
            last_stray = following
            break

        following = markup.start

    for index, markup in enumerate(markups):
        if markup.end < last_stray and any(call.values for call in markup.calls):
            return [*markups[:index], Markup(markup.start, len(text), (), _AMBIGUOUS, format=markup.format)]

    return markups


def _placed(text: str, markups: list[Markup]) -> list[Markup]:
    """Mark markup of formats without own marks as a problem, or as a quotation, if text other than calls follows."""
    placed: list[Markup] = []
    following = len(text)
    closed = True

    for markup in reversed(markups):
        gap = text[markup.end : following].lstrip()
        invents = gap.startswith(RESULT_MARK) or ROLE_LINE.match(gap) is not None
        closed = (invents or (closed and not gap)) and not markup.quoted
        following = markup.start
        fenced = text.startswith(("```", "~~~"), markup.start)

        if not closed and markup.calls and (fenced or _is_told_by_place(text, markup)):
            markup = markup._replace(calls=(), quoted=fenced, problem="" if fenced else PROSE_FOLLOWS)  # noqa: PLW2901

        placed.append(markup)

    return placed[::-1]


def _is_told_by_place(text: str, markup: Markup) -> bool:
    """Return whether the format has no marks of its own, or stands in the middle of a line."""
    form = FORMAT_OF[markup.format]
    before = text[text.rfind("\n", 0, markup.start) + 1 : markup.start]
    return form.weak or (form.line_start and re.fullmatch(rf"[ \t]*+{_LEADING_WORD}", before) is None)
