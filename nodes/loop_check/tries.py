"""How often in a row has the work failed: edits that miss, checks that do not pass. A bounded number, then an end.

A failed try of a small model is not answered in the conversation, where it would repeat itself; it is told in a fresh
request. So what ends such a run is this count, as repeated calls end others.
"""

from collections.abc import Mapping, Sequence

from nodes.language.misses import is_miss
from nodes.records import (
    CHANGING,
    CallError,
    CallResult,
    EditForm,
    LoopRecord,
    LoopVerdict,
    Profile,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolSpec,
)

MISSES_BEFORE_STEPPING_DOWN = 2
"""Edits that miss on one file, after which a model that may is asked for whole blocks instead."""

Items = Sequence[ToolCall | CallError]


def count_tries(
    record: LoopRecord,
    items: Items,
    results: Sequence[CallResult],
    specs: Mapping[str, ToolSpec],
    profile: Profile,
    max_failed_tries: int,
) -> LoopRecord:
    """The record with the failed tries and missed edits after this step, and the verdict that they were too many."""
    missed = (*record.missed, *_missed_paths(items, results, specs))
    if _is_failed(items, results, specs, profile):
        tries = record.failed_tries + 1
    else:
        tries = 0 if _is_won(results, profile) else record.failed_tries
    gave_up = tries >= max_failed_tries and record.verdict in {LoopVerdict.FRESH, LoopVerdict.OVERRIDE}
    verdict = LoopVerdict.GAVE_UP if gave_up else record.verdict
    return record.model_copy(update={"failed_tries": tries, "missed": missed, "verdict": verdict})


def tries_stop(record: LoopRecord, results: Sequence[CallResult]) -> StopCause | None:
    """Why the run ends where the tries are used up; else None."""
    if record.verdict is not LoopVerdict.GAVE_UP:
        return None
    errors = [result.result.error for result in results]
    failed = [error for error in errors if error is not None and error.code is not ToolErrorCode.CANCELLED]
    checks = any(error.code is ToolErrorCode.CHECK_FAILED for error in failed)
    what = "The work did not pass its checks" if checks else "No edit could be used"
    return StopCause(
        reason=StopReason.CHECKS_FAILED if checks else StopReason.EDITS_FAILED,
        message=f"{what} after {record.failed_tries} tries.",
        diagnostics=tuple(error.message for error in failed),
    )


def stepped_down(profile: Profile, record: LoopRecord) -> Profile | None:
    """The profile that asks for whole blocks, for a model whose edits keep missing on one file; None to go on."""
    counts = [record.missed.count(path) for path in set(record.missed)]
    keeps_missing = max(counts, default=0) >= MISSES_BEFORE_STEPPING_DOWN
    if profile.edit_form is not EditForm.REPLACE or not profile.steps_down or not keeps_missing:
        return None
    return profile.model_copy(update={"edit_form": EditForm.BLOCKS})


def _is_failed(items: Items, results: Sequence[CallResult], specs: Mapping[str, ToolSpec], profile: Profile) -> bool:
    """A check that failed, whatever the form; in the block form also a step whose edits all failed."""
    errors = [result.result.error for result in results]
    if any(error is not None and error.code is ToolErrorCode.CHECK_FAILED for error in errors):
        return True
    writing = [error for item, error in zip(items, errors, strict=True) if _writes(item, specs)]
    blocks = profile.edit_form is EditForm.BLOCKS
    return blocks and bool(writing) and all(error is not None for error in writing)


def _is_won(results: Sequence[CallResult], profile: Profile) -> bool:
    """Checks that passed; in the block form, where checks come with the edit, also an edit that was used."""
    passed = any("checks" in result.result.data for result in results)
    return passed or (profile.edit_form is EditForm.BLOCKS and any(result.changes for result in results))


def _missed_paths(items: Items, results: Sequence[CallResult], specs: Mapping[str, ToolSpec]) -> list[str]:
    return [
        str(item.arguments.get("path"))
        for item, result in zip(items, results, strict=True)
        if isinstance(item, ToolCall) and _writes(item, specs) and is_miss(result.result.error)
    ]


def _writes(item: ToolCall | CallError, specs: Mapping[str, ToolSpec]) -> bool:
    return item.tool in specs and specs[item.tool].effect in CHANGING
