"""How results go back to the model: spec 1's `tool_result({...})` lines, or one JSON text for each native call.

In text, tools do not know line numbers or ids: the i-th line answers the i-th call of the reply.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from mendgraph.nodes.records import CallResult, JsonMap, ToolError, ToolErrorCode

_OPENING, _CLOSING = "tool_result(", ")"
_LINE_BREAKING_OR_UNSENDABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def render_text_results(results: Sequence[CallResult]) -> str:
    """One `tool_result({...})` line for each result, in order, "tool" first, then spec 2's envelope.

    Every line break, control character and lone surrogate is escaped, so a result is always one line that can be
    sent and stored.
    """
    return "\n".join(
        f"{_OPENING}{_compact({'tool': result.tool, **result.result.as_map()})}{_CLOSING}" for result in results
    )


def render_native_result(result: CallResult) -> str:
    """The content of the tool message: the envelope as compact JSON, without the tool's name."""
    return _compact(result.result.as_map())


def parse_text_results(text: str) -> list[JsonMap]:
    """The maps that `render_text_results` rendered, in order; lines that are no such result are passed over."""
    results = []
    for line in text.split("\n"):
        if line.startswith(_OPENING) and line.endswith(_CLOSING):
            try:
                value = json.loads(line[len(_OPENING) : -len(_CLOSING)])
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
