"""Formats in which a tool's name precedes one JSON object with its arguments."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mendgraph.nodes.language.formats.call_format import (
    TOOL_NAME,
    CallFormat,
    Markup,
    ToolSchemas,
    WrittenCall,
    after_marks,
    as_json,
    head_pattern,
    incomplete,
    json_value,
    read_head,
    skip_space,
)
from mendgraph.nodes.language.formats.json_calls import NOT_WHOLE
from mendgraph.nodes.records import JsonMap

_N: Final = TOOL_NAME


@dataclass(frozen=True)
class NamedJson(CallFormat):
    """`template` is a complete call with `N` for the name and `{}` for the arguments.

    `head` is a pattern for the text before the arguments, `tail` for the optional text after them.
    """

    name: str
    markers: tuple[str, ...]
    template: str
    head: str
    tail: str = ""
    line_start: bool = False
    inline: tuple[str, ...] = ()
    weak: bool = False
    """Formats without marks need the name of a known tool."""

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        return f"Write it as {self.template.replace('{}', '{JSON}')}".replace("\n", "\\n") + " with valid JSON."

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return the filled template."""
        before, _, after = self.template.partition("{}")
        named = re.sub(r"\bN\b", lambda _: tool, before, count=1)
        return f"{named}{as_json(arguments)}{after}"

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read the name and the JSON; the end mark is optional."""
        head = read_head(self._head, text, position, tools, known=self.weak)
        if head is None:
            return None

        tool, at = head
        value = json_value(text, at)
        if value is None or not isinstance(value[0], dict):
            return incomplete(text, position, NOT_WHOLE)

        arguments, end = value
        tail = self._tail.match(text, skip_space(text, end))
        if self.weak and tail is None:
            return incomplete(text, position, "its end is missing")

        return Markup(position, after_marks(text, tail.end() if tail else end), (WrittenCall(tool, arguments),))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return head_pattern(self.head + r"\s*+(?=\{)")

    @cached_property
    def _tail(self) -> re.Pattern[str]:
        return re.compile(self.tail)


NAMED_JSON: Final = (
    NamedJson(
        "kimi_k2",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        rf"<\|tool_call_begin\|>\s*+{_N}\s*+<\|tool_call_argument_begin\|>",
        r"<\|tool_call_end\|>",
    ),
    NamedJson(
        "deepseek_v3",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>N\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        rf"<｜tool▁call▁begin｜>\s*+function\s*+<｜tool▁sep｜>{_N}\s*+(?:```(?:json)?)",
        r"```\s*+(?:<｜tool▁call▁end｜>)?",
    ),
    NamedJson(
        "deepseek_v3_1",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>N<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        rf"<｜tool▁call▁begin｜>\s*+{_N}<｜tool▁sep｜>",
        r"<｜tool▁call▁end｜>",
    ),
    NamedJson(
        "mistral_named",
        ("[TOOL_CALLS]",),
        "[TOOL_CALLS]N[ARGS]{}",
        rf"\[TOOL_CALLS\]\s*+{_N}(?:\[CALL_ID\][\w-]*+)?(?:\[ARGS\])?",
    ),
    NamedJson(
        "llama_function",
        ("<function=", "<function(", "<function/"),
        "<function=N>{}</function>",
        rf"<function[=(/]{_N}\)?>",
        "</function>",
    ),
    NamedJson(
        "harmony",
        ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis to="),
        "<|channel|>commentary to=functions.N <|constrain|>json<|message|>{}<|call|>",
        rf"(?:<\|start\|>\s*+assistant)?\s*+(?:<\|channel\|>\s*+\w++)?\s*+to={_N}(?=[\s<])"
        r"\s*+(?:<\|channel\|>\w++)?\s*+(?:<\|constrain\|>)?\s*+(?:json|code)?\s*+<\|message\|>",
        r"<\|(?:call|end)\|>",
    ),
    NamedJson(
        "react",
        ("Action:",),
        "Action: N\nAction Input: {}",
        rf"Action:[ \t]*+{_N}[ \t]*+\n\s*+Action Input:",
        line_start=True,
        inline=("Action: {tool}\n",),
    ),
    NamedJson(
        "functionary", (">>>",), ">>>N\n{}", rf">>>[ \t]*+{_N}[ \t]*+\n", line_start=True, inline=(">>>{tool}\n",)
    ),
    NamedJson(
        "mcp_xml",
        ("<use_mcp_tool>",),
        "<use_mcp_tool>\n<tool_name>N</tool_name>\n<arguments>\n{}\n</arguments>\n</use_mcp_tool>",
        rf"<use_mcp_tool>\s*+(?:<server_name>[^<]*+</server_name>\s*+)?<tool_name>\s*+{_N}\s*+</tool_name>\s*+<arguments>",
        r"(?:</arguments>)?\s*+(?:</use_mcp_tool>)?",
    ),
    NamedJson(
        "qwen_agent",
        ("✿FUNCTION✿",),
        "✿FUNCTION✿: N\n✿ARGS✿: {}",
        rf"✿FUNCTION✿:?\s*+{_N}\s*+✿ARGS✿:?",
    ),
    NamedJson(
        "named_element",
        ("<tool_call name=", "<function_call name=", "<function name=", "<invoke name=", "<tool name="),
        '<function name="N">{}</function>',
        rf'<(?:tool_call|function_call|function|invoke|tool)\s+name="{_N}">',
        r"</(?:tool_call|function_call|function|invoke|tool)>",
    ),
    NamedJson("tool_element", ("<tool:",), "<tool: N({})>", rf"<tool:[ \t]*+{_N}[ \t]*+\(", r"\)\s*+>"),
    NamedJson(
        "bare_call",
        ("{tool}(",),
        "N({})",
        rf"{_N}[ \t]*+\(",
        r"\)(?=[ \t]*+(?:\n|\Z))",
        line_start=True,
        weak=True,
    ),
)
"""The formats in the order in which they are tried."""
