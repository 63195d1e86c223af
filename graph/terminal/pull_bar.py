"""A pull of the weights as people see it: a bar with bytes, rate and time left, or without a terminal its phases.

Pure but for the console that it is given.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from nodes.call_model.weights import PullPhase, PullProgress


class PullBar:
    """Takes the reports of a pull or of a check (`nodes.call_model.weights.Progress`). Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console, self._live = console, console.is_terminal and not console.is_dumb_terminal
        self._phase: PullPhase | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        """Return the bar, which shows nothing before the first report."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bar.stop()

    def __call__(self, report: PullProgress) -> None:
        """Show how far it is."""
        if report.phase is not self._phase:
            self._begin(report)
        for task in self._bar.task_ids[-1:]:
            self._bar.update(task, completed=report.bytes_done, total=report.bytes_total or None)

    def _begin(self, report: PullProgress) -> None:
        self._phase = report.phase
        if not self._live:
            self._console.file.write(f"{report.phase.value}\n")
            self._console.file.flush()
            return
        self._bar.start()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        # A resumed pull begins where the last one stopped; from zero, its rate would count what was there already.
        self._bar.add_task(report.phase.value, total=report.bytes_total or None, completed=report.bytes_done)
