"""Formats that write calls as Python, and Gemma's format with its own string delimiters."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from mendgraph.nodes.language.formats.call_format import (
    TOOL_NAME,
    CallFormat,
    Markup,
    ToolSchemas,
    WrittenCall,
    after_literal,
    after_marks,
    as_json,
    as_raw,
    head_pattern,
    incomplete,
    json_value,
)
from mendgraph.nodes.language.formats.json_calls import NOT_WHOLE
from mendgraph.nodes.records import JsonMap

_NOT_PYTHON: Final = "it is not a whole Python call with literal keyword arguments"
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_TOKEN: Final = re.compile(
    r"""(?P<string>(?:\b[rRbBuU]{1,2})?(?:\"\"\"(?:[^"\\]|\\.|"(?!\"\"))*+\"\"\"|'''(?:[^'\\]|\\.|'(?!''))*+'''
      |"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')) | (?P<open>[(\[{]) | (?P<close>[)\]}])
      | (?P<quote>["']) | [^()\[\]{}"']++""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class PythonCalls(CallFormat):
    """Calls with keyword arguments: in a list or one on each line, with or without marks."""

    name: str
    markers: tuple[str, ...]
    opening: str = ""
    closing: str = ""
    listed: bool = True
    weak: bool = False
    line_start: bool = False
    fences: frozenset[str] = frozenset()
    fenced_only: bool = False
    inline: tuple[str, ...] = ()

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        return "Write each call as TOOL(KEY=VALUE), with literals as values."

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return a call between the marks."""
        call = f"{tool}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        call_text = f"{self.opening}{f'[{call}]' if self.listed else call}{self.closing}"
        if self.fenced_only:
            return f"```tool_code\n{call_text}\n```"

        return call_text

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read all calls of the list or on the lines after the mark."""
        head = self._head.match(text, position)
        if head is None:
            return None

        calls: list[WrittenCall] = []
        at = end = head.end()

        while first := _CALL.match(text, at):
            at = first.start("bracket") if first["bracket"] else first.end() - 1
            if not self.opening and tools.plain_name(first["tool"]) not in tools.names:
                return None

            end = _closing_bracket(text, at)
            source = text[first.start("call") : end]
            read = [_call_of(node, tools) for node in _parsed(source)]

            if not read or None in read:
                return incomplete(text, position, _NOT_PYTHON, calls)

            calls += [call for call in read if call is not None]
            at = end

        if not calls or (not self.opening and _SENTENCE.match(text, end)):
            return None
        if not self.opening and not _LINE_END.match(text, end):
            return incomplete(text, position, _NOT_PYTHON)

        end = after_literal(text, end, self.closing.strip())
        return Markup(position, after_marks(text, end), tuple(calls))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        if self.opening:
            return head_pattern(rf"{re.escape(self.opening.strip())}\s*+(?=\[?\s*+[\w.]++[ \t]*+\()")

        bracket = r"\[\s*+" if self.listed else ""
        return re.compile(rf"(?<![\w.])(?={bracket}[\w.]++[ \t]*+\((?:{_VALUE}|\)))")


_VALUE: Final = r"\s*+(?:[A-Za-z_]\w*+\s*+=\s*+)?[\"'\[{\d]"
_LINE_END: Final = re.compile(r"[ \t]*+(?:\r?\n|\Z)")
_SENTENCE: Final = re.compile(r"[ \t,.:]*+\w")
_CALL: Final = re.compile(r"[\s;]*+(?P<call>(?P<bracket>\[)?\s*+(?P<tool>[A-Za-z_][\w.-]*+)[ \t]*+\()")


def _closing_bracket(text: str, position: int) -> int:
    """Return the position after the bracket that closes the first one; the end of the text if none does."""
    depth = 0
    at = position

    while token := _TOKEN.match(text, at):
        at = token.end()
        depth += (token["open"] is not None) - (token["close"] is not None)
        if token["quote"] or (depth <= 0 and token["close"]):
            break

    return at


def _parsed(source: str) -> list[ast.expr]:
    try:
        body = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []

    return body.elts if isinstance(body, ast.List) else [body]


def _call_of(node: ast.expr, tools: ToolSchemas) -> WrittenCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None

    arguments: JsonMap = {}

    for keyword in node.keywords:
        value = _literal(keyword.value)
        if keyword.arg is None or value is _NO_LITERAL:
            return None

        arguments[keyword.arg] = value

    return WrittenCall(tools.plain_name(ast.unparse(node.func)), arguments)


_NO_LITERAL: Final = object()


class _JsonWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _CONSTANTS:
            return ast.Constant(_CONSTANTS[node.id])
        return node


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(_JsonWords().visit(node))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NO_LITERAL


@dataclass(frozen=True)
class GemmaCall(CallFormat):
    """`call:N{key:value}` with strings between two marks."""

    name: str
    markers: tuple[str, ...]
    opening: str
    closing: str
    quote: str

    @property
    def reminder(self) -> str:
        """A description of the complete format."""
        return f"Write {self.opening}call:TOOL{{KEY:{self.quote}TEXT{self.quote}}}{self.closing}."

    def example(self, tool: str, arguments: JsonMap) -> str:
        """Return a call between the marks."""
        pairs = []
        for key, value in arguments.items():
            mark = self.quote if isinstance(value, str) else ""
            pairs.append(f"{key}:{mark}{as_raw(value)}{mark}")

        return f"{self.opening}call:{tool}{{{','.join(pairs)}}}{self.closing}"

    def read(self, text: str, position: int, tools: ToolSchemas) -> Markup | None:
        """Read the call as JSON, with quotes added around keys and strings."""
        head = self._head.match(text, position)
        if head is None:
            return None

        parts = ["{"]
        depth = 1
        at = head.end()
        values: list[tuple[int, int]] = []

        while depth and (token := self._token.match(text, at)):
            at = token.end()
            depth += (token["open"] is not None) - (token["close"] is not None)
            raw = token["raw"]

            if raw is not None:
                values.append(token.span("raw"))

            parts.append(as_json(raw) if raw is not None else f'"{token["key"]}":' if token["key"] else token[0])

        joined = "".join(parts)
        value = json_value(joined, 0) if not depth else None
        if value is None or not isinstance(value[0], dict):
            return incomplete(text, position, NOT_WHOLE)

        call = WrittenCall(tools.plain_name(head["tool"]), value[0], tuple(values))
        return Markup(position, after_marks(text, after_literal(text, at, self.closing)), (call,))

    def end_marks(self, tools: ToolSchemas) -> re.Pattern[str]:  # noqa: ARG002 - the same for all
        """A pattern for the closing mark."""
        return re.compile(re.escape(self.closing))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return head_pattern(rf"{re.escape(self.opening)}\s*+call:{TOOL_NAME}\{{")

    @cached_property
    def _token(self) -> re.Pattern[str]:
        mark = re.escape(self.quote)
        return re.compile(
            rf"""{mark}(?P<raw>.*?){mark} | (?P<open>[{{\[]) | (?P<close>[}}\]]) | "(?:[^"\\]|\\.)*+"
              | (?P<key>[A-Za-z_]\w*+)\s*+: | [^{{}}\[\]"<\w]++ | \w++""",
            re.DOTALL | re.VERBOSE,
        )


PYTHON: Final = (
    PythonCalls("llama4", ("<|python_start|>",), "<|python_start|>", "<|python_end|>"),
    PythonCalls("lfm2", ("<|tool_call_start|>",), "<|tool_call_start|>", "<|tool_call_end|>"),
    PythonCalls("olmo3", ("<function_calls>",), "<function_calls>\n", "\n</function_calls>", listed=False),
    PythonCalls("python_list", ("[{tool}(",), line_start=True, weak=True, inline=("[{tool}(",)),
    PythonCalls(
        "tool_code",
        ("{tool}(", "default_api.{tool}("),
        listed=False,
        line_start=True,
        weak=True,
        fences=frozenset({"tool_code"}),
        fenced_only=True,
    ),
    GemmaCall("gemma4", ("<|tool_call>",), "<|tool_call>", "<tool_call|>", '<|"|>'),
    GemmaCall("function_gemma", ("<start_function_call>",), "<start_function_call>", "<end_function_call>", "<escape>"),
)
