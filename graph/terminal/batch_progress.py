"""How a batch goes, as people see it: a bar with what is done, the time left and the spend; or a line for each result.

Pure but for the consoles that it is given.
"""

from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mendgraph.graph.fleet.batch.batch_folder import Tally
from mendgraph.graph.fleet.batch.tasks import TaskResult
from mendgraph.graph.terminal.answers import write_object
from mendgraph.graph.terminal.output_lines import OUTCOME_STYLES
from mendgraph.nodes.language.display import count_of, one_line, usd
from mendgraph.nodes.records import OutcomeKind

_LONGEST_LINE: Final = 200


def result_line(result: TaskResult) -> str:
    """A result in one line: its end, its task, why, and what it took."""
    files = f"; changed {count_of(len(result.changed), 'file')}" if result.changed else ""
    said = "" if result.kind is OutcomeKind.FINISHED else f": {result.message}"
    took = f" ({count_of(result.usage.calls, 'call')}, {result.seconds:.1f} s{files})"
    state = result.kind.value if result.is_final else "LEFT"
    return one_line(f"{state} {result.id} {result.reason}{took}{said}", _LONGEST_LINE)


class BatchProgress:
    """Watches a batch, until it is closed.

    With a terminal at `err` there is a bar, and a line for each result that has not finished; `out` has a line for
    each result where it is no terminal, or where there is no bar. With `as_json` it has each result as an object on a
    line, those apart that go on later, and there is no bar.
    """

    def __init__(self, out: Console, err: Console, *, as_json: bool = False) -> None:
        """Nothing is shown before the batch begins."""
        self._out, self._err, self._as_json = out, err, as_json
        self._is_live = err.is_terminal and not err.is_dumb_terminal and not as_json
        columns = (BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=err, transient=True, redirect_stdout=False, disable=not self._is_live)
        self._tally, self._stopping = Tally(), ""

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def began(self, tally: Tally, total: int | None) -> None:
        """The batch begins."""
        self._tally = tally
        self._bar.add_task("", total=total, completed=tally.done)
        self._bar.start()

    def task_ended(self, result: TaskResult) -> None:
        """Count it, and show what came of it."""
        if self._as_json:
            if result.is_final:
                write_object(result.model_dump(mode="json"))
            return
        line = result_line(result)
        if not self._is_live or not self._out.is_terminal:
            self._out.file.write(f"{line}\n")
            self._out.file.flush()
        if self._is_live and result.is_final and result.kind is not OutcomeKind.FINISHED:
            self._err.print(Text(line, style=OUTCOME_STYLES[result.kind]))
        self._show()

    def stopping(self, by: str) -> bool:
        """Somebody wants it to stop; whether the bar says so."""
        self._stopping = by
        self._show()
        return self._is_live

    def _show(self) -> None:
        tally = self._tally
        parts = [f"stopping {self._stopping}; again: at once"] if self._stopping else []
        parts += [f"{tally.failed:,} failed"] if tally.failed else []
        parts += [f"{tally.stopped:,} stopped"] if tally.stopped else []
        parts += [usd(tally.cost_usd)] if tally.cost_usd else []
        for task in self._bar.task_ids:
            self._bar.update(task, completed=tally.done, description=" · ".join(parts))
