"""How the end of a run is told: its diffs and its outcome, as lines for a person or as one JSON object.

Pure.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from graph.terminal.call_words import count_of
from nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan, ToolError

SCHEMA: Final = 1
"""The form of what programs are given. Within it keys are added, and none is taken away or given another meaning."""


class Line(NamedTuple):
    """One line of output, and the style that a colour terminal gives it (rich's words for styles)."""

    text: str
    style: str = ""


OUTCOME_STYLES = {
    OutcomeKind.FINISHED: "bold green",
    OutcomeKind.BUDGET_STOP: "bold yellow",
    OutcomeKind.SYSTEM_ERROR: "bold red",
}
_DIFF_STYLES = {"---": "bold", "+++": "bold", "@": "cyan", "-": "red", "+": "green", "\\": "dim", "[": "dim"}


def diff_lines(diffs: Iterable[str]) -> Iterator[Line]:
    """The lines of unified diffs, coloured."""
    for diff in diffs:
        for number, line in enumerate(diff.removesuffix("\n").split("\n")):
            yield Line(line, _DIFF_STYLES.get(line[:3] if number < 2 else line[:1], ""))


def outcome_lines(outcome: Outcome) -> Iterator[Line]:
    """The outcome in one line; for a run that did not finish also its evidence, its own account, and how to go on."""
    style = OUTCOME_STYLES[outcome.kind]
    head = f"{outcome.kind.value} ({outcome.reason.value}): "
    if outcome.kind is OutcomeKind.FINISHED:
        if outcome.value is not None:
            yield Line(f"value: {json.dumps(outcome.value, ensure_ascii=False)}")
        checks = f"; checks {outcome.checks}" if outcome.checks in {"passed", "failed", "unavailable"} else ""
        yield Line(head + _changed(outcome.changed_files) + checks, style)
        return
    yield Line(head + " ".join(outcome.message.split()), style)
    yield from (Line(f"  - {' '.join(line.split())}", "dim") for line in outcome.diagnostics)
    if outcome.changed_files:
        yield Line(_changed(outcome.changed_files))
    if outcome.account:
        yield Line("The model's own account:")
        yield from (Line(f"  {line}".rstrip()) for line in outcome.account.splitlines())
    yield Line(f"How to go on: {outcome.how_to_go_on}")


def result_object(
    outcome: Outcome,
    changes: Sequence[FileChange],
    plan: Plan,
    thread_id: str,
    account: JsonMap,
    log: str | None,
    resume: str | None = None,
) -> JsonMap:
    """The one object of `--json`; its JSON Schema is in `output_schema`.

    `account` are the turn's model calls, compactions (`usage_words.Account`) and refused calls. `log` is the path of
    the run's log, None where it has none; `resume` is the command that goes on with a run that can go on, and left out
    for others.
    """
    return {
        "schema": SCHEMA,
        "outcome": outcome.model_dump(mode="json"),
        "changes": [change.model_dump(mode="json") for change in changes],
        "plan": plan.model_dump(mode="json"),
        "usage": outcome.usage,
        **account,
        "thread_id": thread_id,
        "log": log,
        **({"resume": resume} if resume else {}),
    }


def result_as_json(
    outcome: Outcome,
    changes: Sequence[FileChange],
    plan: Plan,
    thread_id: str,
    account: JsonMap,
    log: str | None,
    resume: str | None = None,
) -> str:
    """The same in ASCII, on one line."""
    return as_json(result_object(outcome, changes, plan, thread_id, account, log, resume))


def refused_call(tool: str, target: str, error: ToolError) -> JsonMap:
    """A call that was not allowed, for programs: what it was about, and the code and words of the refusal."""
    return {"tool": tool, "target": target, "code": error.code.value, "message": error.message}


def interruption(by: str, changed: Iterable[str], resume: str | None) -> str:
    """What is said of a run that was ended at once: by what, which files it had changed, and how it is resumed."""
    files = ", ".join(dict.fromkeys(changed))
    done = f"; changed before that: {files}" if files else ""
    return f"stopped by {by}{done}" + (f"; go on with: {resume}" if resume else "")


def error_object(code: str, message: str) -> JsonMap:
    """The object of `--json` where there is no result."""
    return {"error": {"code": code, "message": message}}


def error_as_json(code: str, message: str) -> str:
    """The same on one line."""
    return as_json(error_object(code, message))


def as_json(value: Any) -> str:
    """ASCII on one line: nothing in it can steer a terminal, and every encoding can write it.

    It is JSON as RFC 8259 has it: no number is infinite or none at all (null stands for them), and half a surrogate
    pair, which no text in UTF-8 has, is U+FFFD.
    """
    try:
        written = json.dumps(value, ensure_ascii=True, default=str, allow_nan=False)
    except ValueError:
        written = ""
    return written if written and "\\ud" not in written else json.dumps(_strict(value), ensure_ascii=True, default=str)


def _strict(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_strict(str(key)): _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list | tuple) else value


def _changed(paths: Sequence[str]) -> str:
    if not paths:
        return "no file changed"
    return f"{count_of(len(paths), 'file')} changed: {', '.join(paths)}"
