"""What a program gets of a run that has ended, and one diff for each file that it has changed. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AnyMessage

from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.guard.paths import shown
from mendgraph.nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan

_LONGEST_MESSAGE = 200
"""Characters of an outcome's message that one line shows."""


@dataclass(frozen=True)
class RunResult:
    """A run from its end. `print(result)` tells it in one line; every failure that can be expected is an `outcome`.

    `messages` are those of the whole thread, `changes` the file effects of its last turn in the order in which they
    were made, and `diffs` what they come to: one unified diff for each file that is not as it was, without secrets.
    `plan` is the model's own, empty where it made none.
    """

    outcome: Outcome
    messages: tuple[AnyMessage, ...]
    changes: tuple[FileChange, ...]
    plan: Plan
    thread_id: str
    diffs: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The `diffs`, one after the other."""
        return "".join(self.diffs)

    @property
    def ok(self) -> bool:
        """Whether the run has FINISHED: it gave its answer, and no check of it failed."""
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
        """Kind, reason, message, changed files and run in one line that holds nothing but printable characters."""
        message = shown(" ".join(self.outcome.message.split()), _LONGEST_MESSAGE)
        files = ", ".join(map(shown, self.changed_files)) or "no file"
        return (
            f"{self.outcome.kind.value} ({self.outcome.reason.value}): {message} [changed: {files}; run {self.run_id}]"
        )


# --- What many changes of a file come to


def net_diffs(changes: Sequence[FileChange], kept: Callable[[str, str], bytes | None]) -> list[str]:
    """A unified diff for each changed file, in the order of the first change; none for one that is as it was.

    `kept` gives the bytes that a file had, by its path and their SHA-256. Where they are gone, or no
    text, the recorded diffs stand as they are.
    Diffs do not compare line ends: what happened to those of Windows is a remark below the diff, or in place of it.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    diffs = [_net_diff(each, kept) for each in by_path.values() if each[0].sha256_before != each[-1].sha256_after]
    return [diff for diff in diffs if diff]


def file_diff(path: str, before: bytes | None, after: bytes | None) -> str | None:
    """The diff between two states of a file, None being one that is not there; None where one is no text."""
    try:
        old, new = (None if each is None else each.decode() for each in (before, after))
    except UnicodeDecodeError:
        return None
    return unified_diff(path, old, new)


def _net_diff(changes: list[FileChange], kept: Callable[[str, str], bytes | None]) -> str:
    first, last = changes[0], changes[-1]
    before = kept(first.path, first.sha256_before) if first.sha256_before else None
    after = kept(last.path, last.sha256_after) if last.sha256_after else None
    recorded = "".join(change.diff for change in changes)
    if after is None or (before is None and first.sha256_before):
        return recorded
    net = file_diff(last.path, before, after)
    if net is None:
        return recorded
    diff = recorded if len(changes) == 1 else net
    return diff + _remark(last.path, diff, _line_ends(before or b""), _line_ends(after))


def _line_ends(data: bytes) -> str:
    windows = data.count(b"\r\n")
    unix = data.count(b"\n") - windows
    return "CRLF and LF" if windows and unix else "CRLF" if windows else "LF" if unix else ""


def _remark(path: str, diff: str, before: str, now: str) -> str:
    """What has become of the line ends; nothing where Windows has no part in it."""
    if "CRLF" not in before + now:
        return ""
    if before and now and before != now:
        return f"[{'' if diff else path + ': '}line ends changed from {before} to {now}]\n"
    return f"[line ends: {now}, kept]\n" if before == now else f"[line ends: {now}]\n" if now and diff else ""
