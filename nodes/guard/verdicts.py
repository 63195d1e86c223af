"""Verdicts as values: how a denial is written down, and what the model gets in place of a denied call's result."""

from collections.abc import Sequence

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
    unknown = item.error.error_type is ExtractionErrorType.UNKNOWN_TOOL_NAME
    code = ToolErrorCode.UNKNOWN_TOOL if unknown else ToolErrorCode.INVALID_ARGUMENT
    place = f" in line {item.error.line_number}" if item.error.line_number else ""
    return denied("malformed", code, f"{item.error.error_type.name}{place}: {item.error.details}")


def results_of_denied(items: Sequence[Item], verdicts: Sequence[Verdict]) -> list[CallResult | None]:
    """For each item, in order, the result that its verdict already settles; None where the call may run.

    Whatever is not plainly allowed is settled as denied: a question that nobody answered, an item without a verdict.
    """
    missing = [Verdict(kind=VerdictKind.DENY)] * (len(items) - len(verdicts))
    judged = zip(items, [*verdicts, *missing], strict=False)
    return [None if verdict.kind is VerdictKind.ALLOW else _denial(item, verdict) for item, verdict in judged]


def _denial(item: Item, verdict: Verdict) -> CallResult:
    error = verdict.error or _NOT_JUDGED
    return CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult(ok=False, error=error))
