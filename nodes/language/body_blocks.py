"""The body of a call: a fenced block right after its `tool:` line, for the one text that the arguments leave out.

    tool: write_file({"path": "a.py"})
    ```python
    print("no quote is escaped")
    ```

No model has to escape a file into JSON then. What stands in the block is content, whatever it looks like. A block
whose end is missing or in doubt gives an error: half a file must not be written.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from nodes.language.json_arguments import ArgumentProblem
from nodes.records import ExtractionErrorType, JsonMap

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


def missing_argument(tool: str, arguments: JsonMap, bodies: Mapping[str, str]) -> str | None:
    """The argument that a block would have to give, or None where the call needs no block."""
    name = bodies.get(tool)
    return None if name is None or name in arguments else name


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
        return Body(_in_doubt(opening["marks"]), end)
    return Body(text[opening.end() : closing.start()], end)


def block_end(text: str, at: int) -> int | None:
    """Where the block ends that follows at the line start `at`, blank lines apart; None where something else does."""
    opening = _opening(text, at)
    closing = _closing(text, opening.end(), opening["marks"]) if opening else None
    if closing is None:
        return len(text) if opening else None
    return min(len(text), closing.end() + 1)


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


def _in_doubt(marks: str) -> ArgumentProblem:
    longer = marks[0] * (len(marks) + 1)
    details = f"It is not clear where the block after this call ends. Put {longer} around a text that holds fences."
    return ArgumentProblem(ExtractionErrorType.INVALID_ARGUMENTS, details)
