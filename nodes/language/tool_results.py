"""How results go back to the model: spec 1's `tool_result({...})` lines, or one JSON text for each native call.

In text, tools do not know line numbers or ids: the i-th line answers the i-th call of the reply.
"""

import json
import re
from collections.abc import Sequence

from nodes.records import CallResult, JsonMap

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
