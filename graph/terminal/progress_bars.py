"""Progress bars of long commands: a batch, and a pull of the weights; without a terminal a line for each step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from graph.batch.batch_result import Tally
from graph.batch.orders import TaskResult
from graph.terminal.output_lines import OUTCOME_STYLES
from nodes.call_model.weights import PullPhase, PullProgress
from nodes.language.display import count_of, one_line, usd
from nodes.records import OutcomeKind

_NARROWEST_BAR: Final = 8
_WIDEST_BAR: Final = 30
_LONGEST_LINE: Final = 200
_REFRESHED: Final = 4
"""Times a second."""


@dataclass
class State:
    """What is known of a batch at work. `done_before` were done by earlier starts; `now` is a clock, in seconds."""

    now: Callable[[], float]
    tally: Tally = field(default_factory=Tally)
    total: int | None = None
    done_before: int = 0
    began_s: float = 0.0
    at_work: int = 0
    stopping: str = ""

    @property
    def per_minute(self) -> float | None:
        """Results of this start in a minute, None while there is none."""
        done, seconds = self.tally.done - self.done_before, self.now() - self.began_s
        return 60 * done / seconds if done > 0 and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate, None where nobody can know."""
        rate = self.per_minute
        return None if rate is None or self.total is None else 60 * (self.total - self.tally.done) / rate


def status(state: State, width: int) -> str:
    """What is known in one line of `width` columns: what matters less is left out where it does not fit."""
    parts = [text for _, text in sorted(_parts(state), key=lambda part: part[0])]
    shown = list(_fitting(parts, width))
    order = [text for _, text in _parts(state)]
    return " · ".join(text for text in order if text in shown)[:width]


def _parts(state: State) -> Iterator[tuple[int, str]]:
    """Each part in the order in which it is shown, with its rank: the lower one is left out later."""
    tally = state.tally
    yield 0, f"{tally.done:,}" + ("" if state.total is None else f"/{state.total:,}")
    if tally.failed:
        yield 2, f"{tally.failed:,} failed"
    if tally.stopped:
        yield 3, f"{tally.stopped:,} stopped"
    if tally.finished:
        yield 6, f"{tally.finished:,} finished"
    if state.stopping:
        yield 1, f"stopping {state.stopping}; again: at once"
        return
    if state.at_work:
        yield 5, f"{state.at_work:,} at work"
    if state.per_minute is not None:
        yield 4, f"{state.per_minute:,.1f}/min"
    if tally.cost_usd:
        yield 3, usd(tally.cost_usd)
    if state.seconds_left is not None:
        yield 1, f"{clock(state.seconds_left)} left"


def _fitting(parts: list[str], width: int) -> Iterator[str]:
    used = -3
    for text in parts:
        if used + 3 + len(text) > width and used > 0:
            return
        used += 3 + len(text)
        yield text


def clock(seconds: float) -> str:
    """A duration as 0:05, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def result_line(result: TaskResult) -> str:
    """A result in one line: its end, its task, why, and what it took."""
    files = f"; changed {count_of(len(result.changed), 'file')}" if result.changed else ""
    said = "" if result.kind is OutcomeKind.FINISHED else f": {result.message}"
    took = f" ({count_of(result.usage.calls, 'call')}, {result.seconds:.1f} s{files})"
    state = result.kind.value if result.is_final else "LEFT"
    return one_line(f"{state} {result.id} {result.reason}{took}{said}", _LONGEST_LINE)


class BatchProgress:
    """Watches a batch. Use it as a context manager: it takes the bar away.

    With a terminal at `err` there is a bar, and a line for each result that has not finished; `out` has a line for
    each result where it is no terminal, or where there is no bar.
    """

    def __init__(self, out: Console, err: Console, now: Callable[[], float]) -> None:
        """Nothing is shown before the batch begins."""
        self.state = State(now)
        self._out, self._err = out, err
        self._is_live = err.is_terminal and not err.is_dumb_terminal
        self._live = Live(
            console=err,
            get_renderable=self._shown,
            refresh_per_second=_REFRESHED,
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        """Return the progress."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        self._live.stop()

    def began(self, tally: Tally, total: int | None) -> None:
        """The batch begins."""
        self.state.tally, self.state.total = tally, total
        self.state.done_before, self.state.began_s = tally.done, self.state.now()
        if self._is_live:
            self._live.start(refresh=True)

    def task_began(self, task_id: str) -> None:  # noqa: ARG002 - only how many there are is shown
        """One more is at work."""
        self.state.at_work += 1

    def task_ended(self, result: TaskResult) -> None:
        """Count it, and show what came of it."""
        self.state.at_work -= 1
        line = result_line(result)
        if not self._is_live or not self._out.is_terminal:
            self._out.file.write(f"{line}\n")
            self._out.file.flush()
        if self._is_live and result.is_final and result.kind is not OutcomeKind.FINISHED:
            self._err.print(Text(line, style=OUTCOME_STYLES[result.kind]))

    def stopping(self, by: str) -> bool:
        """Somebody wants it to stop; whether the bar says so."""
        self.state.stopping = by
        return self._is_live

    def _shown(self) -> RenderableType:
        width = self._err.width
        text = status(self.state, width)
        room = min(width - len(text) - 2, _WIDEST_BAR)
        if self.state.total is None or room < _NARROWEST_BAR:
            return Text(text, no_wrap=True, overflow="crop")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(self.state.total, self.state.tally.done, width=room), Text(text, no_wrap=True))
        return grid


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
