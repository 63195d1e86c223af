"""What a program gets of a run that has ended."""

from dataclasses import dataclass

from langchain_core.messages import AnyMessage

from nodes.guard.paths import shown
from nodes.records import FileChange, JsonMap, Outcome, OutcomeKind, Plan

_LONGEST_MESSAGE = 200
"""Characters of an outcome's message that one line shows."""


@dataclass(frozen=True)
class RunResult:
    """A run from its end. `print(result)` tells it in one line; every failure that can be expected is an `outcome`.

    `messages` are those of the whole thread, `changes` the file effects of its last turn in the order in which they
    were made, and `diff` what they come to: one unified diff for each file that is not as it was, without secrets.
    `plan` is the model's own, empty where it made none.
    """

    outcome: Outcome
    messages: tuple[AnyMessage, ...]
    changes: tuple[FileChange, ...]
    plan: Plan
    thread_id: str
    diff: str = ""

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
