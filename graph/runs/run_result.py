"""What a program gets of a run that has ended, and one diff for each file that it has changed. Pure."""

from collections.abc import Callable, Sequence
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

_LONGEST_DIFF, _COLOURS = 8_000, {"+": "#1a7f37", "-": "#cf222e", "@": "#888"}
"""Characters of the diff that a notebook shows, and the colours of its lines by their first character."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """A run from its end. `print(result)` tells it in one line; every failure that can be expected is an `outcome`.

    `messages` are those of the whole thread, `changes` the file effects of its last turn in the order in which they
    were made, and `diffs` what they come to: one unified diff for each file that is not as it was, without secrets.
    `plan` is the model's own, empty where it made none. `structured` is an instance of the run's `response_format`, a
    dict where that is a TypedDict or a JSON schema, None unless the run has FINISHED.
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
        """The `diffs`, one after the other."""
        return "".join(self.diffs)

    @property
    def ok(self) -> bool:
        """Whether the run has FINISHED: it gave its answer, and nothing that was run speaks against its changes.

        That is no proof: `outcome.verified` tells what was run. With `require_checks` something must have been.
        """
        return self.outcome.kind is OutcomeKind.FINISHED

    @property
    def answer(self) -> str:
        """What the model answered, "" unless it has FINISHED; `outcome.message` says why another run ended."""
        return self.outcome.answer

    @property
    def changed_files(self) -> tuple[str, ...]:
        """The files that the last turn has changed, relative to the workspace."""
        return self.outcome.changed_files

    @property
    def usage(self) -> JsonMap:
        """Calls, tokens, steps, seconds and `cost_usd` (None where a price is not known) of the thread and the turn."""
        return self.outcome.usage

    @property
    def run_id(self) -> str:
        """The run's name for `resume_run`, `undo_run`, `get_run` and `mendgraph runs show`; the same as `thread_id`."""
        return self.thread_id

    @property
    def resumable(self) -> bool:
        """Whether `resume_run(result.run_id, workspace)` goes on with the work: it ended, but not with its answer.

        Under a checkpointer of your own, which `resume_run` does not know, that is
        `Session(context, checkpointer=..., thread_id=result.thread_id).resume()`.
        """
        return not self.ok

    def __str__(self) -> str:
        """Kind, reason, message, answer and run in one line that holds nothing but printable characters."""
        outcome = self.outcome
        if outcome.answer in outcome.message:
            text = outcome.message
        else:
            text = f"{outcome.message} {outcome.answer}"

        message = shown(" ".join(text.split()), _LONGEST_MESSAGE)

        if self.ok or self.changed_files:
            unchanged = ""
        else:
            unchanged = "no file changed; "

        return f"{outcome.kind.value} ({outcome.reason.value}): {message} [{unchanged}run {self.run_id}]"

    def __repr__(self) -> str:
        ended = f"{self.outcome.kind.value} ({self.outcome.reason.value})"
        return f"<RunResult {ended} changed_files={self.changed_files} run_id={self.run_id!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the line of `str`, and the beginning of the diff in colours."""
        text = self.diff[:_LONGEST_DIFF]
        left_out = len(self.diff[_LONGEST_DIFF:])
        shown_lines = [
            f'<span style="color: {_COLOURS.get(line[:1], "inherit")}">{escape(plain(line))}</span>'
            for line in text.splitlines()
        ]

        if left_out:
            more = [f"({left_out:,} more characters are not shown here)"]
        else:
            more = []

        return "\n".join([f"<p>{escape(str(self))}</p><pre>", *shown_lines, *more]) + "</pre>"


# --- What many changes of a file come to


def net_diffs(changes: Sequence[FileChange], kept: Callable[[str, str], bytes | None]) -> list[str]:
    """A unified diff for each changed file, in the order of the first change; none for one that is as it was.

    `kept` gives the bytes that a file had, by its path and their SHA-256. Where they are gone, or no text, the recorded
    diffs stand as they are. Diffs do not compare line ends: a change of these alone is one line that says so.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)

    diffs = [_net_diff(each, kept) for each in by_path.values() if each[0].sha256_before != each[-1].sha256_after]
    return [diff for diff in diffs if diff]


def file_diff(path: str, before: bytes | None, after: bytes | None, *, whole: bool = False) -> str | None:
    """The diff between two states of a file, None being one that is not there; None where one is no text.

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
    before = None

    if first.sha256_before:
        before = kept(first.path, first.sha256_before)

    after = None
    if last.sha256_after:
        after = kept(last.path, last.sha256_after)

    is_known = after is not None and (before is not None or not first.sha256_before)
    net = None
    if is_known and len(changes) > 1:
        net = file_diff(last.path, before, after)

    if net is None:
        diff = "".join(change.diff for change in changes)
    else:
        diff = net

    only_ends = not diff and before is not None and after is not None and b"\r" in before + after
    if only_ends:
        return f"{last.path}: line ends changed\n"

    return diff
