"""How a batch goes, as people see it: a bar with what is done, the time left, the spend and the rate; or a line each.

Pure but for the consoles that it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mendgraph.graph.fleet.batch.batch_folder import Tally
from mendgraph.graph.fleet.batch.tasks import TaskResult
from mendgraph.graph.terminal.answers import clock, write_object
from mendgraph.graph.terminal.output_lines import OUTCOME_STYLES
from mendgraph.nodes.language.display import count_of, one_line, usd
from mendgraph.nodes.records import OutcomeKind

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


def status(state: State) -> str:
    """What is known in one line, what matters most first."""
    tally = state.tally
    parts = [f"{tally.done:,}" + ("" if state.total is None else f"/{state.total:,}")]
    parts += [f"stopping {state.stopping}; again: at once"] if state.stopping else []
    parts += [f"{clock(state.seconds_left)} left"] if state.seconds_left is not None and not state.stopping else []
    parts += [f"{tally.failed:,} failed"] if tally.failed else []
    parts += [f"{tally.stopped:,} stopped"] if tally.stopped else []
    parts += [usd(tally.cost_usd)] if tally.cost_usd else []
    parts += [f"{state.per_minute:,.1f}/min"] if state.per_minute is not None else []
    parts += [f"{state.at_work:,} at work"] if state.at_work else []
    return " · ".join(parts)


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

    def __init__(self, out: Console, err: Console, now: Callable[[], float], *, as_json: bool = False) -> None:
        """Nothing is shown before the batch begins."""
        self.state = State(now)
        self._out, self._err, self._as_json = out, err, as_json
        self._is_live = err.is_terminal and not err.is_dumb_terminal and not as_json
        self._live = Live(
            console=err,
            get_renderable=self._shown,
            refresh_per_second=_REFRESHED,
            transient=True,
            redirect_stdout=False,
        )

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

    def stopping(self, by: str) -> bool:
        """Somebody wants it to stop; whether the bar says so."""
        self.state.stopping = by
        return self._is_live

    def _shown(self) -> RenderableType:
        text = status(self.state)
        room = min(self._err.width - len(text) - 2, _WIDEST_BAR)
        if self.state.total is None or room < _NARROWEST_BAR:
            return Text(text, no_wrap=True, overflow="crop")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(self.state.total, self.state.tally.done, width=room), Text(text, no_wrap=True))
        return grid
