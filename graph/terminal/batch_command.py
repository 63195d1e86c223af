"""`mendgraph batch`: many tasks from a file, each on a copy of its own, with one result line and one patch for each."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mendgraph.graph.fleet.batch.batch_result import Tally
from mendgraph.graph.fleet.batch.orders import TaskResult
from mendgraph.graph.terminal import options as opt, process_end
from mendgraph.graph.terminal.answers import LONGEST_LINE, clock, tell_object
from mendgraph.graph.terminal.output_lines import OUTCOME_STYLES
from mendgraph.graph.terminal.process_end import SIGNALS, ExitCode, hearing, refused, settings_refused
from mendgraph.nodes.language.display import count_of, one_line, usd
from mendgraph.nodes.records import OutcomeKind, ToolError

if TYPE_CHECKING:
    from mendgraph.graph.configuration.settings_file import Problem
    from mendgraph.graph.fleet.batch.batch import Batch, Terms
    from mendgraph.graph.fleet.batch.batch_result import BatchResult
    from mendgraph.graph.fleet.batch.run_batch import Ready
    from mendgraph.graph.terminal.batch_command import BatchProgress

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
                tell_object(result.model_dump(mode="json"))
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


_CODES: Final = {"Ctrl-C": ExitCode.INTERRUPTED, "SIGTERM": ExitCode.TERMINATED}

TaskFile = Annotated[
    str, typer.Argument(metavar="FILE", help='A JSON object a line: {"id": ..., "prompt": ..., "workspace": ...}.')
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, metavar="N", help="Tasks at work at a time (default: 4; of a cluster its CPUs)."),
]
Processes = Annotated[int, typer.Option(min=1, max=1_000, metavar="P", help="Processes that they are spread over.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Results, patches and copies (default: FILE without its suffix, .batch)."),
]
WorkFolder = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Where copies are made (default: work/ in the folder of results).")
]
RemoveCopies = Annotated[bool, typer.Option("--remove-copies", help="Remove each copy once its patch is written.")]
MaxCost = Annotated[
    float | None,
    typer.Option(min=0.0001, metavar="USD", help="Cost of the whole batch, over all its starts."),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, max=2**53, metavar="N", help="Tokens of the whole batch, in and out.")
]
On = Annotated[Literal["ray"] | None, typer.Option(help="Work on a Ray cluster (extra `ray`).")]
Address = Annotated[
    str | None, typer.Option(metavar="A", help="Address of the cluster (default: a new one on this machine).")
]


def batch(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    context: typer.Context,
    file: TaskFile,
    workers: Workers = None,
    processes: Processes = 1,
    out: Out = None,
    work_folder: WorkFolder = None,
    remove_copies: RemoveCopies = False,
    max_cost: MaxCost = None,
    max_tokens: MaxTokens = None,
    on: On = None,
    address: Address = None,
) -> int:
    """Work on many tasks, each on a copy of its own of its workspace.

    Each task gives one result line and one patch. Started again it goes on: nothing is done twice.
    """
    chosen = opt.options_without_events(context)
    if address is not None and on is None:
        context.fail("--address is that of a cluster: give --on ray as well")
    try:
        from mendgraph.graph.fleet.batch.run_batch import Crew, prepare, terms_problem

        crew, terms = Crew(workers, processes, on, address), _terms(chosen, max_cost, max_tokens)
        if isinstance(terms, tuple):
            return settings_refused(chosen, terms)
        problem = terms_problem(terms, crew)
        if problem is not None:
            context.fail(problem)
        ready = prepare(file, terms, crew, out=out, work_folder=work_folder, remove_copies=remove_copies)
        if isinstance(ready, ToolError):
            return refused(chosen, ready)
        if isinstance(ready, tuple):
            return settings_refused(chosen, ready)
        with ready.folder:
            return _work(chosen, ready)
    except KeyboardInterrupt:  # while libraries are loaded and workspaces looked at
        message = "stopped by Ctrl-C before any task was begun; start the same batch again"
        return process_end.fail(chosen.forms, ExitCode.INTERRUPTED, message)


def _terms(chosen: opt.Options, max_cost: float | None, max_tokens: int | None) -> "Terms | tuple[Problem, ...]":
    """What the tasks may do: the user's file below the options; a workspace's own file comes between them."""
    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import load_configuration
    from mendgraph.graph.fleet.batch.batch import Terms
    from mendgraph.graph.fleet.batch.work import trusted_settings

    found = load_configuration(str(chosen.root), workspace_file=False)
    if isinstance(found, tuple):
        return found
    return Terms(
        AgentContext(**found.values),
        chosen.settings,
        own_settings=chosen.workspace_file,
        trusted=lru_cache(maxsize=None)(trusted_settings),
        max_cost_usd=max_cost,
        max_tokens=max_tokens,
        durability=chosen.durability,
    )


def _work(chosen: opt.Options, ready: "Ready") -> int:
    from rich.console import Console

    from mendgraph.graph.telemetry.exporting import exporting, note
    from mendgraph.graph.terminal.batch_command import BatchProgress
    from mendgraph.nodes.execute_tools.files.deadline import monotonic_s

    for sentence in ready.notes:
        typer.echo(f"mendgraph: {one_line(sentence, LONGEST_LINE)}", err=True)
    shown = BatchProgress(Console(), Console(stderr=True), monotonic_s, as_json=chosen.as_json)
    try:
        with exporting(os.environ, note), _signals(ready.batch, shown) as heard:
            result = ready.batch.run(shown)
    finally:
        shown.close()
    _tell_end(chosen, result)
    return exit_code_of_batch(result, *heard[:1])


def exit_code_of_batch(result: "BatchResult", signal_heard: str = "Ctrl-C") -> ExitCode:
    """The code of a batch: whether all tasks have FINISHED, and otherwise what ended it."""
    from mendgraph.graph.fleet.batch.batch_result import BatchEnd

    if result.end is BatchEnd.COMPLETE:
        return ExitCode.FINISHED if result.ok else ExitCode.FINDINGS
    if result.end is BatchEnd.CANCELLED:
        return _CODES[signal_heard]
    return ExitCode.BUDGET_STOP if result.end is BatchEnd.LIMIT else ExitCode.SYSTEM_ERROR


def batch_object(result: "BatchResult") -> dict[str, Any]:
    """The summary for programs."""
    return {
        "batch": result.batch,
        "folder": result.folder,
        "end": result.end.value,
        "message": result.message,
        "total": result.total,
        "left": result.left,
        **asdict(result.tally),
    }


def _tell_end(chosen: opt.Options, result: "BatchResult") -> None:
    from mendgraph.graph.fleet.batch.batch_result import counted

    if chosen.as_json:
        tell_object(batch_object(result))
        return
    tally = result.tally
    unpriced = f" (and {count_of(tally.unpriced, 'task')} without a known price)" if tally.unpriced else ""
    cost = f", {usd(tally.cost_usd)}{unpriced}" if tally.cost_usd else ""
    tokens = tally.input_tokens + tally.output_tokens
    typer.echo(f"{counted(tally, result.total)}; {count_of(tally.calls, 'model call')}, {tokens:,} tokens{cost}")
    typer.echo(one_line(result.message, LONGEST_LINE))
    typer.echo(f"Results and patches are in {one_line(result.folder, LONGEST_LINE)}")


@contextmanager
def _signals(batch: "Batch", shown: "BatchProgress") -> Iterator[list[str]]:
    """Inside, the first Ctrl-C or SIGTERM lets the batch stop, and the second one ends the process at once."""
    heard: list[str] = []

    def hear(number: int, _: FrameType | None) -> None:
        name = SIGNALS[number]
        heard.append(name)
        if len(heard) == 1:
            batch.cancel(f"by {name}")
            if not shown.stopping(f"by {name}"):
                with suppress(RuntimeError, OSError):  # the thread is just writing there
                    sys.stderr.write(f"mendgraph: stopping the tasks at work; {name} again to stop at once\n")
            return
        with suppress(Exception):
            shown.close()
        with suppress(RuntimeError, OSError):
            sys.stderr.write(f"mendgraph: stopped by {name}; start the same batch again to go on\n")
        process_end.leave_at_once(_CODES[name])

    with hearing(hear):
        yield heard
