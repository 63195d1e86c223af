"""What the results of a step say: failed tries, notices for the model, fatal errors, the answer, and the evidence."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from mendgraph.nodes.language.display import listed, target_of as target_words
from mendgraph.nodes.language.names import IS_TEST
from mendgraph.nodes.language.text_protocol import is_miss
from mendgraph.nodes.loop_check.repetition import LoopConfig, LoopState, override_notice
from mendgraph.nodes.records import (
    CHANGING,
    Answer,
    CallError,
    CallResult,
    Effect,
    LoopRecord,
    LoopVerdict,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verification,
)

MOST_MISSES = 2
"""Edits of one file that miss in one turn, after which the model is asked for its whole text, in blocks if it may."""

Items = Sequence[ToolCall | CallError]


def count_tries(
    record: LoopRecord,
    items: Items,
    results: Sequence[CallResult],
    specs: Mapping[str, ToolSpec],
    max_failed_tries: int,
    *,
    in_blocks: bool,
) -> LoopRecord:
    """Return the record with the failed tries and missed edits of this step, and the verdict if they are too many.

    A failed check is a failed try; `in_blocks` also a step in which all edits failed. Passed checks reset the count; in
    the block form, where checks come with the edit, an applied edit does too.
    """
    missed = list(record.missed)
    edit_errors = []

    for item, result in zip(items, results, strict=True):
        if item.tool not in specs or specs[item.tool].effect not in CHANGING:
            continue

        edit_errors.append(result.result.error)
        if isinstance(item, ToolCall) and is_miss(result.result.error):
            missed.append(_path(item))

    errors = [result.result.error for result in results]
    all_edits_failed = bool(edit_errors) and all(error is not None for error in edit_errors)
    check_failed = any(error is not None and error.code is ToolErrorCode.CHECK_FAILED for error in errors)
    check_passed = any("checks" in result.result.data for result in results)
    edit_used = any(result.changes for result in results)
    tries = record.failed_tries

    if check_failed or (in_blocks and all_edits_failed):
        tries += 1
    elif check_passed or (in_blocks and edit_used):
        tries = 0

    gave_up = tries >= max_failed_tries and record.verdict in {LoopVerdict.FRESH, LoopVerdict.OVERRIDE}
    verdict = LoopVerdict.GAVE_UP if gave_up else record.verdict
    return record.model_copy(update={"failed_tries": tries, "missed": tuple(missed), "verdict": verdict})


def tries_stop(record: LoopRecord, results: Sequence[CallResult]) -> StopCause | None:
    """Return why the run ends, if its tries are used up."""
    if record.verdict is not LoopVerdict.GAVE_UP:
        return None

    errors = [result.result.error for result in results]
    failed = [error for error in errors if error is not None and error.code is not ToolErrorCode.CANCELLED]
    reason = StopReason.EDITS_FAILED
    problem = "No edit could be used"

    if any(error.code is ToolErrorCode.CHECK_FAILED for error in failed):
        reason = StopReason.CHECKS_FAILED
        problem = "The work did not pass its checks"

    return StopCause(
        reason=reason,
        message=f"{problem} after {record.failed_tries} tries.",
        diagnostics=tuple(error.message for error in failed),
    )


def keeps_missing(record: LoopRecord) -> bool:
    """Return whether `MOST_MISSES` edits of one file have missed in this turn."""
    counts = [record.missed.count(path) for path in set(record.missed)]
    return max(counts, default=0) >= MOST_MISSES


def _path(call: ToolCall) -> str:
    return str(call.arguments.get("path"))


def with_notices(
    items: Items, results: Sequence[CallResult], signatures: Mapping[int, str], loop: LoopRecord
) -> list[CallResult]:
    """Add to the results that an action is refused from now on, or that edits keep missing.

    `signatures` are those of the calls by their places. The notice is added to the data of a result, or to the message
    of a failure, because a failure's reader sees nothing else.
    """
    notices = []

    for place, (item, result) in enumerate(zip(items, results, strict=True)):
        notice = override_notice(loop, signatures.get(place, ""))
        error = result.result.error
        advice = ""

        if isinstance(item, ToolCall) and is_miss(error):
            advice = _miss_advice(item, loop)

        tool_result = result.result

        if error is not None and (notice or advice):
            message = " ".join(filter(None, [error.message, advice, notice["message"] if notice else ""]))
            tool_result = ToolResult(ok=False, error=error.model_copy(update={"message": message}))
        elif notice:
            tool_result = ToolResult(ok=True, data={**tool_result.data, "override": notice})

        notices.append(result.model_copy(update={"result": tool_result}))

    return notices


def _miss_advice(call: ToolCall, loop: LoopRecord) -> str:
    # write_file replaces only files that were read.
    path = _path(call)
    misses = loop.missed.count(path)
    advice = f"That is miss {misses} on {path} in this turn: read_file it, then give its whole new text with write_file"

    if misses >= MOST_MISSES:
        return f"{advice} instead of old_str and new_str."

    return ""


def fatal_failure(results: Sequence[CallResult]) -> StopCause | None:
    """Return why the run must end, if a call found the disk full or somebody else working on its files."""
    for result in results:
        error = result.result.error
        if error is not None and error.fatal:
            reason = _FATAL.get(error.code, StopReason.WORKSPACE_FAILED)
            return StopCause(reason=reason, message=error.message, diagnostics=(f"{result.tool}: {error.code.value}",))

    return None


_FATAL = {
    ToolErrorCode.CONFLICT: StopReason.WORKSPACE_CHANGED,
    ToolErrorCode.HOOK_FAILED: StopReason.HOOK_FAILED,
}


def accepted_answer(
    items: Items, results: Sequence[CallResult], loop: LoopRecord, specs: Mapping[str, ToolSpec]
) -> Answer | None:
    """Return the final answer of this step, if it was accepted."""
    if loop.verdict is not LoopVerdict.ANSWERED:
        return None

    for item, result in zip(items, results, strict=True):
        if isinstance(item, ToolCall) and specs[item.tool].terminal and result.result.ok:
            return Answer.given(item.arguments)

    return None


_ACTING: Final = CHANGING | {Effect.NETWORK}
_REFUSALS: Final = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.APPROVAL_REQUIRED})


def with_account(
    record: LoopRecord, state: LoopState, specs: Mapping[str, ToolSpec], changed: Sequence[str]
) -> LoopRecord:
    """Return the record with the verification of all `changed` files by the last checks, and with the refused calls."""
    items = state.get("items", [])
    verified = record.verified
    refused = list(record.refused)
    verdicts = state.get("verdicts", [])

    for place, (item, result) in enumerate(zip(items, state.get("results", []), strict=True)):
        verified = None if result.changes else verified
        if isinstance(item, ToolCall) and item.implied and not specs[item.tool].terminal:
            verified = verification(item, result.result, changed) or verified

        renamed = result.result.data.get("set_aside", ())
        refused += (f"refused (a protected name; not named by the user), so it is called {path}" for path in renamed)
        refused += result.result.data.get("child_refused", ())

        error = result.result.error
        if not isinstance(item, ToolCall) or item.tool not in specs or error is None:
            continue

        if specs[item.tool].effect in _ACTING and error.code in _REFUSALS:
            words = verdicts[place].refused if place < len(verdicts) else ""
            refused.append(f"{words or 'refused:'} {item.tool} {target_words(item.arguments)}".rstrip())

    return record.model_copy(update={"verified": verified, "refused": tuple(dict.fromkeys(refused))})


def verification(call: ToolCall, result: ToolResult, changed: Sequence[str]) -> Verification | None:
    """Return what a call of the checks says of all `changed` files; None if it was cancelled."""
    error = result.error
    data = result.data

    if error is not None:
        failed: Literal["contradicted", "none"] = "contradicted" if error.code is ToolErrorCode.CHECK_FAILED else "none"
        if error.code is ToolErrorCode.CANCELLED:
            return None
        return Verification(kind=failed, reason=error.message)

    unseen = [path for path in changed if path not in call.arguments.get("paths", ())]
    fields = {name: data[name] for name in Verification.model_fields if name in data}

    if unseen:
        reason = f"no check looked at {listed(unseen)}"
    else:
        reason = str(data.get("reason", ""))

    kind = "none" if unseen else data.get("checks", "none")
    return Verification.model_validate({**fields, "kind": kind, "reason": reason})


def answer_stop(
    record: LoopRecord, answer: Answer | None, changed: Sequence[str], config: LoopConfig
) -> StopCause | None:
    """Return why an answer is refused: a required check or change is missing."""
    if answer is None:
        return None

    evidence = (f"the answer: {answer.text}",) if answer.text else ()
    if not changed and config.require_changes:
        message = "This run has to change a file, and its changes cancel out."
        return StopCause(reason=StopReason.NOTHING_CHANGED, message=message, diagnostics=evidence)

    if changed and config.require_checks and not _is_checked(record.verified, changed):
        is_indistinct = record.verified is not None and record.verified.kind == "indistinct"
        if is_indistinct:
            why = "no test that passes distinguishes"
        else:
            why = "nothing could check"

        message = f"This run has to be checked, and {why} its changes."
        return StopCause(reason=StopReason.NOT_CHECKED, message=message, diagnostics=evidence)

    return None


def _is_checked(verified: Verification | None, changed: Sequence[str]) -> bool:
    """Return whether checks verify the changes; changed tests need not fail before the changes."""
    if verified is None:
        return False
    if verified.kind == "indistinct":
        return all(map(IS_TEST.search, changed))

    return verified.kind != "none"
