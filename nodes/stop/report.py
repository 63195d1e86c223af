"""The outcome of a run: why it ended, what was done, what is left, and how to continue.

No model is called: a run without a budget left also has a complete report.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

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
_MOST_DIAGNOSTICS = 3
_LONGEST_SKIP = 100  # characters of the reason why tests were skipped
FAILED_WORK = frozenset({StopReason.EDITS_FAILED, StopReason.CHECKS_FAILED})
"""Reasons of failed work, whose changes are undone."""
_LONGEST_CALL = 60  # characters of a refused call
_MOST_CALLS = 3  # refused for the same reason
_REFUSED = re.compile(r"refused(?: \(.*?\))?: ")
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
    """Return the outcome of a run with a final answer; an empty answer is replaced by what was changed.

    `checking`: the run's changes are checked. `changing`: the agent has tools that can change files.
    """
    reason = _NO_CHECK_RAN if checking else _CHECKS_OFF
    loop = loop.model_copy(update={"verified": loop.verified or Verification(reason=reason)})
    cause = StopCause(reason=StopReason.ANSWERED, message="")
    outcome = stopped(OutcomeKind.FINISHED, cause, Plan(), changes, usage, loop)

    text = answer.text
    if not text and outcome.changed_files:
        text = f"{_changes_clause(outcome.changed_files, outcome.marks)}."

    message = outcome.message
    if not message and changing:
        message = NO_FILE_CHANGED
    elif not message:
        message = text or "Done."

    if answer.quotes and (outcome.message or changing):
        message += " The answer quotes a tool call, which did not run."

    parts = {"message": message, "answer": text, "value": answer.value, "quotes": answer.quotes}
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
    """Return the outcome of a run that ended without an answer; `cause` is that of the deciding node."""
    changed = net_changes(changes)
    files = tuple(path for path in changed if path not in restored)
    marks = _marks(loop, changed, files)
    verified = Verification()

    if changed and loop.verified:
        verified = loop.verified
    elif changed and cause.reason is StopReason.CHECKS_FAILED:
        verified = Verification(kind="contradicted", reason=" ".join(cause.diagnostics[-1:]))
    elif changed:
        verified = _CUT_SHORT

    words = changes_words(files, verified, loop.refused, marks)
    if cause.reason is StopReason.NOTHING_CHANGED and not words:
        words = NO_FILE_CHANGED

    message = cause.message or words
    if cause.message and words:
        message = f"{cause.message.removesuffix('.')}. {words}"

    how_to_go_on = cause.reason.how_to_go_on
    open_steps = [step.title for step in plan.steps if step.status is not PlanStatus.DONE]
    if open_steps:
        how_to_go_on = f"Left: {'; '.join(open_steps)}. {how_to_go_on}"

    return Outcome(
        kind=kind,
        reason=cause.reason,
        message=message,
        diagnostics=cause.diagnostics,
        changed_files=files,
        marks=marks,
        refused=loop.refused,
        restored=tuple(restored),
        verified=verified,
        usage=usage,
        how_to_go_on=how_to_go_on,
    )


def _marks(loop: LoopRecord, changed: Mapping[str, tuple[str, str]], files: Sequence[str]) -> tuple[Mark, ...]:
    """Return the marks of these and of unread files, with one for each deleted file that has no other for that."""
    marked = {mark.path for mark in loop.marks if mark.kind == "tests_deleted"}
    marks = [Mark(kind="deleted", path=path) for path in files if not changed[path][1] and path not in marked]
    marks += [mark for mark in loop.marks if mark.path in files or mark.kind == "unread"]
    return tuple(marks)


def wrap_up(outcome: Outcome, plan: Plan, last_results: Sequence[CallResult]) -> str:
    """Return the last message of a run that ended early: why, what was done, what is left, how to continue."""
    lines = [f"{outcome.kind.value} ({outcome.reason.value}): {outcome.message}"]
    lines += [f"- {line}" for line in outcome.diagnostics]
    done = [step.title for step in plan.steps if step.status is PlanStatus.DONE]
    lines.append("Done: " + ("; ".join(done) or "no step of a plan") + ".")

    if not outcome.changed_files and NO_FILE_CHANGED.removesuffix(".") not in outcome.message:
        lines.append(NO_FILE_CHANGED)

    failed = [r.result.error.message for r in last_results if r.result.error is not None]
    if failed:
        lines.append(f"Last failure: {failed[-1]}")

    lines.append(f"How to continue: {outcome.how_to_go_on}")
    # A quotation of a reply may hold a `tool:` line, which must not be a line of the history.
    return "\n".join(" ".join(line.split()) for line in lines)


def changes_words(
    files: Sequence[str], verified: Verification, refused: Sequence[str], marks: Sequence[Mark] = ()
) -> str:
    """Return the sentence on a turn's changes ("Changed cart.py; 2 tests pass."); "" if there is nothing to say."""
    unread = [_path_with_detail(mark) for mark in marks if mark.kind == "unread"]
    if not files:
        words = ""
        if refused:
            words = f"{NO_FILE_CHANGED.removesuffix('.')}: {_refusals(refused)}."
        elif unread:
            words = NO_FILE_CHANGED

        if unread:
            words += f" Not read: {listed(unread)}."

        return words

    reason = one_line(verified.reason.rstrip("."), _LONGEST_REASON)
    if verified.kind in {"passed", "indistinct"}:
        checked = _passed(verified)
        if reason:
            checked.append(reason)

        if verified.kind == "indistinct" and not all(IS_TEST.search(path) for path in files):
            checked[0] = f"not verified: {checked[0]}"
    elif verified.kind == "contradicted":
        checked = [f"its checks fail: {reason}" if reason else "its checks fail"]
    else:
        checked = [f"not checked: {reason[:1].lower()}{reason[1:]}" if reason else "not checked"]

    clauses = [_changes_clause(files, marks), *checked]
    if unread:
        clauses.append(f"not read: {listed(unread)}")
    if verified.diagnostics:
        clauses.append(f"new diagnostics: {listed(verified.diagnostics, _MOST_DIAGNOSTICS)}")

    if refused:
        clauses.append(_refusals(refused))

    words = "; ".join(clauses)
    return words if words.endswith("...") else f"{words}."


def _refusals(refused: Sequence[str]) -> str:
    """Return the refused calls, each reason once: "refused: run_shell ls, run_shell git log"."""
    calls_by_reason: dict[str, list[str]] = {}
    for refusal in refused:
        reason = _REFUSED.match(refusal)
        if reason is None:
            calls_by_reason.setdefault("", []).append(refusal)
            continue

        call = one_line(refusal.removeprefix(reason[0]), _LONGEST_CALL)
        calls_by_reason.setdefault(reason[0], []).append(call)

    return listed(f"{reason}{listed(calls, _MOST_CALLS)}" for reason, calls in calls_by_reason.items())


def _tests(tests: Sequence[str]) -> str:
    """Return names of tests without the files of pytest's; the cases of a parametrized test are counted."""
    counts: Counter[str] = Counter()
    for test in tests:
        file, colons, name = test.partition("::")
        counts[name.partition("[")[0] if colons else file] += 1

    names = [f"{count:,} cases of {name}" if count > 1 else name for name, count in counts.items()]
    return listed(names)


def _changes_clause(files: Sequence[str], marks: Sequence[Mark]) -> str:
    """Return what was done to files, with their marks: "Changed a.py; deleted b.py; runs later: conftest.py"."""
    paths_by_kind: dict[str, list[str]] = {}
    for mark in marks:
        paths_by_kind.setdefault(mark.kind, []).append(_path_with_detail(mark))

    deleted = paths_by_kind.pop("deleted", [])
    unnamed = paths_by_kind.pop("not_named", [])
    paths_by_kind.pop("unread", None)
    absent = {*deleted, *paths_by_kind.get("tests_deleted", [])}
    changed = [path for path in files if path not in absent]
    changed_named = [path for path in changed if path not in unnamed]
    changed_unnamed = [path for path in changed if path in unnamed]
    clauses = []

    if changed_named:
        clauses.append(f"changed {listed(changed_named)}")

    if changed_unnamed:
        clauses.append(f"changed, not named in the request: {listed(changed_unnamed, MOST_TOLD)}")

    if deleted:
        clauses.append(f"deleted {listed(deleted, MOST_TOLD)}")

    for kind, paths in paths_by_kind.items():
        clauses.append(f"{kind.replace('_', ' ')}: {listed(paths, MOST_TOLD)}")

    summary = "; ".join(clauses)
    return summary[0].upper() + summary[1:]


def _path_with_detail(mark: Mark) -> str:
    return f"{mark.path} ({mark.detail})" if mark.detail else mark.path


def _passed(verified: Verification) -> list[str]:
    """Return clauses on what passed: counts ("2 tests pass") or names of other checks, and what that proves."""
    counts: Counter[str] = Counter()
    others = []

    for check in verified.ran:
        match = _COUNT.search(check)
        if match:
            counts[match[2]] += int(match[1])
        else:
            others.append(check)

    words = []
    for noun, number in counts.items():
        verb = "passes" if number == 1 else "pass"
        words.append(f"{count_of(number, noun)} {verb}")

    if others:
        words.append(f"passed: {listed(others)}")

    if verified.skipped:
        reason = f": {one_line(verified.skip_reason.rstrip('.'), _LONGEST_SKIP)}" if verified.skip_reason else ""
        words[-1] += f", {verified.skipped:,} skipped{reason}"

    test = "tests" if len(verified.new_code) == 1 else "test"
    does = "does" if len(verified.indistinct) == 1 else "do"

    if verified.failed_before:
        words.append(f"{_tests(verified.failed_before)} failed before the change")

    if verified.new_code:
        words.append(f"{_tests(verified.new_code)} {test} new code")

    if verified.indistinct:
        words.append(f"{_tests(verified.indistinct)} {does} not distinguish before from after")

    return words
