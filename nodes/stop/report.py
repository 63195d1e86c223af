"""The outcome of a run: what ended it, what was done, what is left, and how to go on.

Nothing here asks the model: a run that ended without its budget still gives a full account of itself.
"""

import re
from collections import Counter
from collections.abc import Sequence

from mendgraph.nodes.language.display import NO_FILE_CHANGED, count_of, listed, one_line
from mendgraph.nodes.language.names import IS_TEST
from mendgraph.nodes.records import (
    Answer,
    CallResult,
    FileChange,
    JsonMap,
    LoopRecord,
    Mark,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStatus,
    StopCause,
    StopReason,
    Verification,
    net_changes,
)

_CUT_SHORT = Verification(reason="the run ended before its changes were checked")
_NO_CHECK_RAN = "no check ran after the last change"
_CHECKS_OFF = "evidence is off, and no check is configured"
MOST_TOLD = 20  # files of one kind of mark
_LONGEST_REASON = 300  # characters of why nothing was checked, or of what fails
_LONGEST_SKIP = 100  # characters of the reason why tests were skipped
FAILED_WORK = frozenset({StopReason.EDITS_FAILED, StopReason.CHECKS_FAILED})
"""Why a run ends whose work failed: what it has changed is taken back."""
_COUNT = re.compile(r": (\d+) ([a-z]+?)s?\Z")


def finished(
    answer: Answer,
    changes: Sequence[FileChange],
    usage: JsonMap,
    loop: LoopRecord,
    *,
    checking: bool = True,
    changing: bool = True,
) -> Outcome:
    """The outcome of a run that gave its final answer, which without words is what was changed.

    `checking`: the run's changes are checked. `changing`: the agent has tools that can change files.
    """
    cause = StopCause(reason=StopReason.ANSWERED, message="")
    verified = loop.verified or Verification(reason=_NO_CHECK_RAN if checking else _CHECKS_OFF)
    loop = loop.model_copy(update={"verified": verified})
    outcome = stopped(OutcomeKind.FINISHED, cause, Plan(), changes, usage, loop)
    answer_text = answer.text or (f"{_deeds(outcome.changed_files, outcome.marks)}." if outcome.changed_files else "")
    message = outcome.message or (NO_FILE_CHANGED if changing else answer_text or "Done.")

    if answer.quotes and (outcome.message or changing):
        message += " The answer quotes a tool call, which did not run."

    parts = {"message": message, "answer": answer_text, "value": answer.value, "quotes": answer.quotes}
    return outcome.model_copy(update=parts)


def stopped(
    kind: OutcomeKind,
    cause: StopCause,
    plan: Plan,
    changes: Sequence[FileChange],
    usage: JsonMap,
    loop: LoopRecord,
    restored: Sequence[str] = (),
) -> Outcome:
    """The outcome of a run that ended before its answer. `cause` is what the deciding node said."""
    open_steps = [step.title for step in plan.steps if step.status is not PlanStatus.DONE]
    changed = net_changes(changes)
    files = tuple(path for path in changed if path not in restored)
    paths_told = {mark.path for mark in loop.marks if mark.kind == "tests_deleted"}
    gone = [Mark(kind="deleted", path=path) for path in files if not changed[path][1] and path not in paths_told]
    marks = (*gone, *(mark for mark in loop.marks if mark.path in files))
    failed = Verification(kind="contradicted", reason=" ".join(cause.diagnostics[-1:]))

    if cause.reason is StopReason.CHECKS_FAILED:
        unknown = failed
    else:
        unknown = _CUT_SHORT

    verified = (loop.verified or unknown) if changed else Verification()
    words = changes_words(files, verified, loop.refused, marks)
    if cause.reason is StopReason.NOTHING_CHANGED and not words:
        words = NO_FILE_CHANGED

    return Outcome(
        kind=kind,
        reason=cause.reason,
        message=f"{cause.message.removesuffix('.')}. {words}" if cause.message and words else cause.message or words,
        diagnostics=cause.diagnostics,
        changed_files=files,
        marks=marks,
        refused=loop.refused,
        restored=tuple(restored),
        verified=verified,
        usage=usage,
        how_to_go_on=(f"Left: {'; '.join(open_steps)}. " if open_steps else "") + cause.reason.how_to_go_on,
    )


def wrap_up(outcome: Outcome, plan: Plan, last_results: Sequence[CallResult]) -> str:
    """The last message of a run that ended early: why, what was done, what is left, how to go on."""
    lines = [f"{outcome.kind.value} ({outcome.reason.value}): {outcome.message}"]
    lines += [f"- {line}" for line in outcome.diagnostics]
    done = [step.title for step in plan.steps if step.status is PlanStatus.DONE]
    lines.append("Done: " + ("; ".join(done) or "no step of a plan") + ".")

    if not outcome.changed_files and NO_FILE_CHANGED.removesuffix(".") not in outcome.message:
        lines.append(NO_FILE_CHANGED)

    failed = [r.result.error.message for r in last_results if r.result.error is not None]
    if failed:
        lines.append(f"Last failure: {failed[-1]}")

    lines.append(f"How to go on: {outcome.how_to_go_on}")
    # What is quoted from a reply may hold a `tool:` line, which must not stand in the history as one.
    return "\n".join(" ".join(line.split()) for line in lines)


def changes_words(
    files: Sequence[str], verified: Verification, refused: Sequence[str], marks: Sequence[Mark] = ()
) -> str:
    """What a person reads first of a turn's changes ("Changed cart.py; 2 tests pass."); "" where there are none."""
    if not files:
        if refused:
            return f"{NO_FILE_CHANGED.removesuffix('.')}: {listed(refused)}."
        return ""

    if verified.kind in {"passed", "indistinct"}:
        checked = [
            *_passed(verified),
            *[one_line(verified.reason.rstrip("."), _LONGEST_REASON)] * bool(verified.reason),
        ]

        if verified.kind == "indistinct" and not all(map(IS_TEST.search, files)):
            checked[0] = f"not verified: {checked[0]}"
    else:
        reason = one_line(verified.reason.rstrip("."), _LONGEST_REASON)
        failed = verified.kind == "contradicted"
        said = ["its checks fail" if failed else "not checked", reason if failed else reason[:1].lower() + reason[1:]]
        checked = [": ".join(filter(None, said))]

    words = "; ".join([_deeds(files, marks), *checked, *[listed(refused)] * bool(refused)])
    return words if words.endswith("...") else f"{words}."


def _deeds(files: Sequence[str], marks: Sequence[Mark]) -> str:
    """What was done to files, and what their marks say: "Changed a.py; deleted b.py; runs later: conftest.py"."""
    paths_by_kind: dict[str, list[str]] = {}
    for mark in marks:
        paths_by_kind.setdefault(mark.kind, []).append(f"{mark.path} ({mark.detail})" if mark.detail else mark.path)

    gone = paths_by_kind.pop("deleted", [])
    unnamed = paths_by_kind.pop("not_named", [])
    paths_left = [path for path in files if path not in {*gone, *paths_by_kind.get("tests_deleted", [])}]
    changed, beside = ([path for path in paths_left if (path in unnamed) is other] for other in (False, True))
    clauses = [f"changed {listed(changed)}"] * bool(changed)
    clauses += [f"changed, not named in the request: {listed(beside, MOST_TOLD)}"] * bool(beside)
    clauses += [f"deleted {listed(gone, MOST_TOLD)}"] * bool(gone)
    clauses += [f"{kind.replace('_', ' ')}: {listed(paths, MOST_TOLD)}" for kind, paths in paths_by_kind.items()]
    summary = "; ".join(clauses)

    return summary[0].upper() + summary[1:]


def _passed(verified: Verification) -> list[str]:
    """What passed: how many where a number was told ("2 tests pass"), the names of the others; and what it is worth."""
    counts: Counter[str] = Counter()
    for match in filter(None, map(_COUNT.search, verified.ran)):
        counts[match[2]] += int(match[1])

    others = listed([command for command in verified.ran if not _COUNT.search(command)])
    words = [f"{count_of(number, noun)} {'passes' if number == 1 else 'pass'}" for noun, number in counts.items()]
    words += [f"passed: {others}"] * bool(others)

    if verified.skipped:
        reason = ""
        if verified.skip_reason:
            reason = f": {one_line(verified.skip_reason, _LONGEST_SKIP)}"

        words[-1] += f", {verified.skipped:,} skipped{reason}"

    one = len(verified.indistinct) == 1
    worth = {
        "failed before the change": verified.failed_before,
        "tests new code" if len(verified.new_code) == 1 else "test new code": verified.new_code,
        f"{'does' if one else 'do'} not distinguish before from after": verified.indistinct,
    }

    return [*words, *(f"{listed(names)} {kind}" for kind, names in worth.items() if names)]
