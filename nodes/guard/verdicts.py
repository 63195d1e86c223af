"""Verdicts as values: how a denial is written down, and what the model gets in place of a denied call's result."""

import json
from collections.abc import Sequence

from nodes.guard.paths import shown
from nodes.records import (
    CallError,
    CallResult,
    ExtractionErrorType,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)

Item = ToolCall | CallError
"""One call of a reply, in its place: it fits its schema, or it is malformed."""

_LONGEST_TOLD = 2_000
"""Characters of an argument that are told."""

_CODES = {
    ExtractionErrorType.UNKNOWN_TOOL_NAME: ToolErrorCode.UNKNOWN_TOOL,
    ExtractionErrorType.TOO_MANY_CALLS: ToolErrorCode.RATE_LIMITED,
}

_NOT_JUDGED = ToolError(
    code=ToolErrorCode.PERMISSION_DENIED,
    message="This call was not approved, so it did not run. Do something else, or ask for it again.",
)


def denied(
    rule: str, code: ToolErrorCode, message: str, suggestions: tuple[str, ...] = (), *, path: str = ""
) -> Verdict:
    """A denial by `rule`. The message is what the model reads: it names the thing and the remedy."""
    error = ToolError(code=code, message=message, suggestions=suggestions)
    return Verdict(kind=VerdictKind.DENY, rule=rule, error=error, path=path)


def verdict_on_malformed(item: CallError) -> Verdict:
    """The denial of a call that could not be read, beside other calls of the same reply that could."""
    code = _CODES.get(item.error.error_type, ToolErrorCode.INVALID_ARGUMENT)
    place = f" in line {item.error.line_number}" if item.error.line_number else ""
    return denied("malformed", code, f"{item.error.error_type.name}{place}: {item.error.details}")


def results_of_denied(items: Sequence[Item], verdicts: Sequence[Verdict]) -> list[CallResult | None]:
    """For each item, in order, the result that its verdict already settles; None where the call may run.

    Whatever is not plainly allowed is settled as denied: a question that nobody answered, an item without a verdict.
    """
    missing = [Verdict(kind=VerdictKind.DENY)] * (len(items) - len(verdicts))
    judged = zip(items, [*verdicts, *missing], strict=False)
    return [None if verdict.kind is VerdictKind.ALLOW else _denial(item, verdict) for item, verdict in judged]


def told_of_edit(item: Item, verdict: Verdict, result: CallResult) -> CallResult:
    """The result of a call that a person changed, with what ran in place of what the model's reply says."""
    if not verdict.edited or not isinstance(item, ToolCall):
        return result
    arguments = {name: _short(item.arguments.get(name)) for name in verdict.edited}
    notice = f"A person changed {', '.join(map(shown, verdict.edited))} of this call before it ran."
    error = result.result.error
    if error is None:
        data = {**result.result.data, "changed_by_person": {"notice": notice, "ran_with": arguments}}
        return result.model_copy(update={"result": ToolResult(ok=True, data=data)})
    ran = json.dumps(arguments, ensure_ascii=False)
    told = error.model_copy(update={"message": f"{notice} It ran with {ran}. {error.message}"})
    return result.model_copy(update={"result": ToolResult(ok=False, error=told)})


def _short(value: object) -> object:
    if not isinstance(value, str) or len(value) <= _LONGEST_TOLD:
        return value
    return f"{value[:_LONGEST_TOLD]}... {len(value) - _LONGEST_TOLD} more characters"


def _denial(item: Item, verdict: Verdict) -> CallResult:
    error = verdict.error or _NOT_JUDGED
    return CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult(ok=False, error=error))
