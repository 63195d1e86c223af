"""Formats with one element for each parameter, whose value is raw text."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from mendgraph.nodes.language.formats.call_format import (
    TOOL_NAME,
    CallFormat,
    Markup,
    ToolSchemas,
    WrittenCall,
    after_marks,
    as_raw,
    head_pattern,
    incomplete,
    read_head,
    skip_space,
)
from mendgraph.nodes.records import JsonMap

_N: Final = TOOL_NAME
_NO_END: Final = "a value or the call has no end mark"
_TWO_READINGS: Final = "a value holds the format's own marks, so that there are two ways to read it"


@dataclass(frozen=True)
class TaggedParameters(CallFormat):
    """`template` is a complete call with `N` for the name and `{}` for its parameters, `pair` one of these.

    `head`, `opening` (with the group `key`), `closing` and `end` are patterns; `{key}` in `closing` is the key. With
    `known` only the name of a known tool makes this a call.
    """

    name: str
    markers: tuple[str, ...]
    template: str
    pair: str
    head: str
    opening: str
    closing: str
    end: str
    known: bool = False

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        call_text = self.template.replace("{}", self.pair.replace("{key}", "KEY").replace("{value}", "VALUE"))
        return f"Write it as {call_text} with every end mark.".replace("\n", "\\n")

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return the filled template."""
        pairs = [self.pair.replace("{key}", key).replace("{value}", as_raw(value)) for key, value in arguments.items()]
        return self.template.replace("N", tool).replace("{}", "".join(pairs))

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read one call; each value and the call must have their end marks."""
        head = read_head(self._head, text, position, tools, known=self.known)
        if head is None:
            return None

        tool, at = head
        arguments: JsonMap = {}
        values: list[tuple[int, int]] = []

        while opening := self._opening.match(text, skip_space(text, at)):
            key = opening["key"].strip()
            closing = self._closing(key).search(text, opening.end())
            if closing is None:
                return incomplete(text, position, _NO_END)

            start, end = _without_line_ends(text, opening.end(), closing.start())
            if key in arguments or self._mark.search(text, start, end):
                return incomplete(text, position, _TWO_READINGS)

            arguments[key] = tools.typed(tool, key, text[start:end])
            values.append((start, end))
            at = closing.end()

        ending = self._end_of(tool).match(text, skip_space(text, at))
        if ending is None:
            if arguments:
                return incomplete(text, position, _NO_END)
            return None

        return Markup(position, after_marks(text, ending.end()), (WrittenCall(tool, arguments, tuple(values)),))

    def end_marks(self, tools: ToolSchemas) -> re.Pattern[str]:
        """A pattern for the end mark of a call of any tool."""
        names = "|".join(map(re.escape, sorted(tools.names)))
        return _pattern(self.end.replace("{tool}", f"(?:{names})"))

    def _end_of(self, tool: str) -> re.Pattern[str]:
        return _pattern(self.end.replace("{tool}", re.escape(tool)))

    def _closing(self, key: str) -> re.Pattern[str]:
        return _pattern(self.closing.replace("{key}", re.escape(key)))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return head_pattern(self.head)

    @cached_property
    def _mark(self) -> re.Pattern[str]:
        beginnings = (re.sub(r"\(\?P<\w+>", "(?:", pattern) for pattern in (self.opening, self.head))
        return re.compile("|".join(beginnings), re.DOTALL)

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(self.opening, re.DOTALL)


@lru_cache(256)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _without_line_ends(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a value's position without the line breaks at its start and end, if both exist."""
    first = 2 if text.startswith("\r\n", start) else 1
    last = 2 if text.endswith("\r\n", start, end) else 1
    framed = text.startswith(("\n", "\r\n"), start) and text.endswith("\n", start, end)

    if not framed:
        return start, end

    return start + first, max(start + first, end - last)


TAGGED: Final = (
    TaggedParameters(
        "qwen3_coder",
        ("<function=", "<seed:tool_call>"),
        "<tool_call>\n<function=N>\n{}</function>\n</tool_call>",
        "<parameter={key}>\n{value}\n</parameter>\n",
        rf"<function={_N}>",
        r"<parameter=(?P<key>[^>\n]{1,200})>",
        r"</parameter>",
        r"</function>",
    ),
    TaggedParameters(
        "glm4",
        ("<tool_call>", "<longcat_tool_call>"),
        "<tool_call>N\n{}</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        rf"<(?:longcat_)?tool_call>\s*+{_N}\s*+(?=<(?:longcat_)?arg_key>|</(?:longcat_)?tool_call>)",
        r"<(?:longcat_)?arg_key>(?P<key>[^<\n]{1,200})</(?:longcat_)?arg_key>\s*+<(?:longcat_)?arg_value>",
        r"</(?:longcat_)?arg_value>",
        r"</(?:longcat_)?tool_call>",
    ),
    TaggedParameters(
        "dsml",
        ("<｜DSML｜",),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="N">\n{}</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        '<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n',
        rf'<[|｜]DSML[|｜]invoke\s+name="{_N}"\s*+>',
        r'<[|｜]DSML[|｜]parameter\s+name="(?P<key>[^"\n]{1,200})"[^>\n]*+>',
        r"</[|｜]DSML[|｜]parameter>",
        r"</[|｜]DSML[|｜]invoke>",
    ),
    TaggedParameters(
        "step3",
        ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke"),
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="N">{}</steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        '<steptml:parameter name="{key}">{value}</steptml:parameter>',
        rf'<steptml:invoke\s+name="{_N}"\s*+>',
        r'<steptml:parameter\s+name="(?P<key>[^"\n]{1,200})"\s*+>',
        r"</steptml:parameter>",
        r"</steptml:invoke>",
    ),
    TaggedParameters(
        "xai",
        ("<xai:function_call",),
        '<xai:function_call name="N">\n{}</xai:function_call>',
        '<parameter name="{key}">{value}</parameter>\n',
        rf'<xai:function_call\s+name="{_N}"\s*+>',
        r'<parameter\s+name="(?P<key>[^"\n]{1,200})"\s*+>',
        r"</parameter>",
        r"</xai:function_call>",
    ),
    TaggedParameters(
        "invoke",
        ("<invoke name=", "<function_calls>", "<minimax:tool_call>"),
        "<function_calls>\n{}</function_calls>".replace("{}", '<invoke name="N">\n{}</invoke>\n'),
        '<parameter name="{key}">{value}</parameter>\n',
        rf'<(?:[\w-]+:)?invoke\s+name="{_N}"\s*+>',
        r'<(?:[\w-]+:)?parameter\s+name="(?P<key>[^"\n]{1,200})"[^>\n]*+>',
        r"</(?:[\w-]+:)?parameter>",
        r"</(?:[\w-]+:)?invoke>",
    ),
    TaggedParameters(
        "cline",
        ("<{tool}>",),
        "<N>\n{}</N>",
        "<{key}>{value}</{key}>\n",
        rf"<{_N}>(?=\s*+</?[A-Za-z_])",
        r"<(?P<key>[A-Za-z_]\w{0,200})>",
        r"</{key}>",
        r"</{tool}>",
        known=True,
    ),
)
