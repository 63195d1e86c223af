"""The result of a run, with one diff for each changed file. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from langchain_core.messages import AnyMessage

from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.guard.policy import shown
from mendgraph.nodes.language.display import plain
from mendgraph.nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan

_LONGEST_MESSAGE = 300
"""Characters of an outcome's message that one line shows."""

_LONGEST_DIFF = 8_000
"""Characters of the diff that a notebook shows."""

_COLOURS = {"+": "#1a7f37", "-": "#cf222e", "@": "#888"}
"""Colours of the lines of a diff by their first character."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run. `print(result)` shows it in one line; every expected failure is an `outcome`.

    `messages` are those of the whole thread, `changes` the file changes of its last turn in order, and `diffs` one
    unified diff for each changed file, without secrets. `plan` is the model's, empty if it made none. `structured` is
    an instance of the run's `response_format`, a dict if that is a TypedDict or a JSON schema, None unless the run has
    FINISHED.
    """

    outcome: Outcome
    messages: tuple[AnyMessage, ...]
    changes: tuple[FileChange, ...]
    plan: Plan
    thread_id: str
    diffs: tuple[str, ...] = ()
    structured: Any = None

    @property
    def diff(self) -> str:
        """All `diffs` as one text."""
        return "".join(self.diffs)

    @property
    def ok(self) -> bool:
        """Whether the run has FINISHED: it has an answer, and no check contradicts its changes.

        That is no proof: `outcome.verified` says what was run. With `require_checks` a check must have run.
        """
        return self.outcome.kind is OutcomeKind.FINISHED

    @property
    def answer(self) -> str:
        """The model's answer, "" unless the run has FINISHED; `outcome.message` says why another run ended."""
        return self.outcome.answer

    @property
    def changed_files(self) -> tuple[str, ...]:
        """The files that the last turn has changed, relative to the workspace."""
        return self.outcome.changed_files

    @property
    def usage(self) -> JsonMap:
        """Calls, tokens, steps, seconds and `cost_usd` (None if a price is unknown) of the thread and the turn."""
        return self.outcome.usage

    @property
    def run_id(self) -> str:
        """The run's id for `resume_run`, `undo_run`, `get_run` and `mendgraph runs show`; the same as `thread_id`."""
        return self.thread_id

    @property
    def resumable(self) -> bool:
        """Whether `resume_run(result.run_id, workspace)` continues the work: the run ended without an answer.

        With a checkpointer of your own use `Session(context, checkpointer=..., thread_id=result.thread_id).resume()`.
        """
        return not self.ok

    def __str__(self) -> str:
        """Return kind, reason, message, answer and run in one line of printable characters."""
        outcome = self.outcome
        text = outcome.message
        if outcome.answer.removesuffix(".") not in text:
            text = f"{text} {outcome.answer}"

        message = shown(" ".join(text.split()), _LONGEST_MESSAGE)
        unchanged = "" if self.ok or self.changed_files else "no file changed; "
        return f"{outcome.kind.value} ({outcome.reason.value}): {message} [{unchanged}run {self.run_id}]"

    def __repr__(self) -> str:
        ended = f"{self.outcome.kind.value} ({self.outcome.reason.value})"
        return f"<RunResult {ended} changed_files={self.changed_files} run_id={self.run_id!r}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the line of `str`, and the beginning of the diff in colours."""
        text = self.diff[:_LONGEST_DIFF]
        left_out = len(self.diff[_LONGEST_DIFF:])
        shown_lines = [
            f'<span style="color: {_COLOURS.get(line[:1], "inherit")}">{escape(plain(line))}</span>'
            for line in text.splitlines()
        ]

        if left_out:
            shown_lines.append(f"({left_out:,} more characters are not shown here)")

        return "\n".join([f"<p>{escape(str(self))}</p><pre>", *shown_lines]) + "</pre>"


# --- The diffs of changed files


def result_of(
    values: Mapping[str, Any],
    thread_id: str,
    kept: Callable[[str, str], bytes | None],
    scrub: Callable[[str], str],
) -> RunResult:
    """Return the result that the values of a state hold; `kept` is as in `net_diffs`."""
    changes: tuple[FileChange, ...] = tuple(values.get("changes", ()))
    return RunResult(
        outcome=values["outcome"],
        messages=tuple(values.get("messages", ())),
        changes=changes,
        plan=values.get("plan") or Plan(),
        structured=values.get("structured_response"),
        thread_id=thread_id,
        diffs=tuple(map(scrub, net_diffs(changes, kept))),
    )


def net_diffs(changes: Sequence[FileChange], kept: Callable[[str, str], bytes | None]) -> list[str]:
    """Return a unified diff for each changed file, in the order of the first change; none for one that is as before.

    `kept` returns the bytes that a file had, by its path and their SHA-256. If they are gone or not text, the recorded
    diffs are used. Diffs do not compare line ends: a change of these alone is one line that says so.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)

    diffs = [
        _net_diff(changed, kept) for changed in by_path.values() if changed[0].sha256_before != changed[-1].sha256_after
    ]
    return [diff for diff in diffs if diff]


def file_diff(path: str, before: bytes | None, after: bytes | None, *, whole: bool = False) -> str | None:
    """Return the diff between two states of a file, None for a missing file; None if one is not text.

    With `whole` it may have any length.
    """
    try:
        old, new = (None if content is None else content.decode() for content in (before, after))
    except UnicodeDecodeError:
        return None

    return unified_diff(path, old, new, complete=whole)


def _net_diff(changes: list[FileChange], kept: Callable[[str, str], bytes | None]) -> str:
    first = changes[0]
    last = changes[-1]
    before = kept(first.path, first.sha256_before) if first.sha256_before else None
    after = kept(last.path, last.sha256_after) if last.sha256_after else None
    is_known = after is not None and (before is not None or not first.sha256_before)
    diff = file_diff(last.path, before, after) if is_known and len(changes) > 1 else None
    if diff is None:
        diff = "".join(change.diff for change in changes)

    only_ends = not diff and before is not None and after is not None and b"\r" in before + after
    if only_ends:
        return f"{last.path}: line ends changed\n"

    return diff
