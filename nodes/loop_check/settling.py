"""A step as it enters the history: its results, with the typed override beside the one that was repeated."""

from collections.abc import Mapping, Sequence

from nodes.language.misses import is_miss, miss_advice
from nodes.loop_check.repetition import override_notice
from nodes.records import (
    Answer,
    CallError,
    CallResult,
    LoopRecord,
    LoopVerdict,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)


def with_notices(
    items: Sequence[ToolCall | CallError],
    results: Sequence[CallResult],
    signatures: Mapping[int, str],
    loop: LoopRecord,
) -> list[CallResult]:
    """Tell the model, in the result itself, that an action is refused from now on, or that its edits keep missing.

    `signatures` are those of the calls by their place. A result that has data gets the notice as data; a failure gets
    its sentence added, for a failure is all that its reader looks at.
    """
    advised = [_with_advice(item, result, loop) for item, result in zip(items, results, strict=True)]
    return [_with_notice(result, signatures.get(place, ""), loop) for place, result in enumerate(advised)]


def fatal_failure(results: Sequence[CallResult]) -> StopCause | None:
    """Why the run must not go on (the disk is full, or somebody else works on its files), as a call has found out."""
    for result in results:
        error = result.result.error
        if error is not None and error.fatal:
            foreign = error.code is ToolErrorCode.CONFLICT
            reason = StopReason.WORKSPACE_CHANGED if foreign else StopReason.WORKSPACE_FAILED
            return StopCause(reason=reason, message=error.message, diagnostics=(f"{result.tool}: {error.code.value}",))
    return None


def accepted_answer(
    items: Sequence[ToolCall | CallError],
    results: Sequence[CallResult],
    loop: LoopRecord,
    specs: Mapping[str, ToolSpec],
) -> Answer | None:
    """The final answer that this step gave beside its other calls, where it was accepted."""
    if loop.verdict is not LoopVerdict.ANSWERED:
        return None
    for item, result in zip(items, results, strict=True):
        if isinstance(item, ToolCall) and specs[item.tool].terminal and result.result.ok:
            return Answer(text=str(item.arguments.get("answer", "")), value=item.arguments.get("value"))
    return None


def _with_advice(item: ToolCall | CallError, result: CallResult, loop: LoopRecord) -> CallResult:
    """The result of an edit that has missed again, with the form that needs no old text."""
    error = result.result.error
    if error is None or not isinstance(item, ToolCall) or not is_miss(error):
        return result
    path = str(item.arguments.get("path"))
    advice = miss_advice(path, loop.missed.count(path))
    if not advice:
        return result
    told = ToolResult(ok=False, error=error.model_copy(update={"message": f"{error.message} {advice}"}))
    return result.model_copy(update={"result": told})


def _with_notice(result: CallResult, signature: str, loop: LoopRecord) -> CallResult:
    notice = override_notice(loop, signature)
    if notice is None:
        return result
    error = result.result.error
    if error is None:
        told = ToolResult(ok=True, data={**result.result.data, "override": notice})
    else:
        told = ToolResult(ok=False, error=error.model_copy(update={"message": f"{error.message} {notice['message']}"}))
    return result.model_copy(update={"result": told})
