"""`mendgraph batch`: many tasks from a file, each on a separate copy, with one result line and one patch for each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from mendgraph.graph.terminal import options as opt, process_end
from mendgraph.graph.terminal.output import LONGEST_LINE, write_object
from mendgraph.graph.terminal.process_end import (
    SIGNALS,
    ExitCode,
    RefusedError,
    by_whom,
    install,
    unwrap,
    unwrap_settings,
)
from mendgraph.nodes.language.display import count_of, listed, one_line, usd
from mendgraph.nodes.records import OutcomeKind

if TYPE_CHECKING:
    from rich.console import Console

    from mendgraph.graph.fleet.batch.batch import Batch
    from mendgraph.graph.fleet.batch.batch_folder import BatchResult, Tally
    from mendgraph.graph.fleet.batch.tasks import TaskResult

_LONGEST_RESULT: Final = 200
_CODES: Final = {"Ctrl-C": ExitCode.INTERRUPTED, "SIGTERM": ExitCode.TERMINATED}


def batch(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help='JSON object per line: {"id": ..., "prompt": ..., "workspace": ...}.'),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, metavar="N", help="Number of parallel tasks (default: 4; on a cluster, its CPUs)."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=1_000, metavar="P", help="Number of processes for them.")] = 1,
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Folder of results, patches and copies (default: FILE with .batch)."),
    ] = None,
    remove_copies: Annotated[
        bool, typer.Option("--remove-copies", help="Delete each copy after its patch is written.")
    ] = False,
    max_cost: Annotated[
        float | None, typer.Option(min=0.0001, metavar="USD", help="Maximum cost of the whole batch, over all starts.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**53, metavar="N", help="Maximum tokens of the whole batch, in and out.")
    ] = None,
    on: Annotated[Literal["ray"] | None, typer.Option(help="Run on a Ray cluster (extra `ray`).")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="A", help="Address of the cluster (default: RAY_ADDRESS, or a new cluster).")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another process works on the batch; continue if it dies.")
    ] = False,
) -> int:
    """Work on many tasks, each in its own copy of its workspace.

    Each task has one result line and one patch. If you start a batch again, it continues; nothing is done twice.
    """
    chosen = opt.options_without_events(context)
    if address is not None and on is None:
        context.fail("--address is the address of a cluster: add --on ray")

    try:
        from mendgraph.graph.configuration.loading import load_context
        from mendgraph.graph.fleet.batch.batch import BatchOptions, check_batch_options, prepare_batch

        settings = unwrap(load_context(str(chosen.root), workspace_file=False, **chosen.settings))
        options = BatchOptions(settings, max_cost, max_tokens, chosen.durability, workers, processes, on, address)
        try:
            check_batch_options(options)
        except ValueError as error:
            context.fail(str(error))

        prepared = prepare_batch(file, options, out=out, remove_copies=remove_copies, standby=standby)
        ready = cast("Batch", unwrap_settings(unwrap(prepared)))
        with ready.folder:
            return _work(chosen, ready)
    except KeyboardInterrupt:  # while libraries are loaded and workspaces prepared
        message = "stopped by you (Ctrl-C) before any task was started; start the same batch again"
        raise RefusedError(ExitCode.INTERRUPTED, message) from None


def _work(chosen: opt.Options, batch: "Batch") -> int:
    from rich.console import Console

    for sentence in batch.notes:
        typer.echo(f"mendgraph: {one_line(sentence, LONGEST_LINE)}", err=True)

    progress = BatchProgress(Console(), Console(stderr=True), as_json=chosen.as_json)
    try:
        with _signals(batch, progress) as heard:
            progress.began(batch.tally, batch.total)
            result = batch.run(progress.task_ended)
    finally:
        progress.close()

    _show_end(chosen, result)
    return exit_code_of_batch(result, *heard[:1])


def exit_code_of_batch(result: "BatchResult", signal_heard: str = "Ctrl-C") -> ExitCode:
    """Return the exit code of a batch: whether all tasks are FINISHED, or what ended the batch."""
    from mendgraph.graph.fleet.batch.batch_folder import BatchEnd

    match result.end:
        case BatchEnd.COMPLETE if result.ok:
            return ExitCode.FINISHED
        case BatchEnd.COMPLETE:
            return ExitCode.FINDINGS
        case BatchEnd.CANCELLED:
            return _CODES[signal_heard]
        case BatchEnd.LIMIT:
            return ExitCode.BUDGET_STOP

    return ExitCode.SYSTEM_ERROR


def _show_end(chosen: opt.Options, result: "BatchResult") -> None:
    from mendgraph.graph.fleet.batch.batch_folder import tally_words

    tally = result.tally

    if chosen.as_json:
        summary = {"batch": result.batch, "folder": result.folder, "end": result.end.value, "message": result.message}
        write_object({**summary, "total": result.total, "left": result.left, **asdict(tally)})
        return

    cost = ""
    if tally.cost_usd:
        cost = f", {usd(tally.cost_usd)}"
        if tally.unpriced:
            cost += f" (and {count_of(tally.unpriced, 'task')} without a known price)"

    tokens = tally.input_tokens + tally.output_tokens
    typer.echo(f"{tally_words(tally, result.total)}; {count_of(tally.calls, 'model call')}, {tokens:,} tokens{cost}")
    typer.echo(one_line(result.message, LONGEST_LINE))
    typer.echo(f"Results and patches are in {one_line(result.folder, LONGEST_LINE)}")


@contextmanager
def _signals(batch: "Batch", progress: "BatchProgress") -> Iterator[list[str]]:
    """Inside, the first Ctrl-C or SIGTERM stops the batch, and the second ends the process at once."""
    heard: list[str] = []

    def hear(number: int, _: FrameType | None) -> None:
        name = SIGNALS[number]
        heard.append(name)

        if len(heard) == 1:
            batch.cancel(by_whom(name))
            if not progress.stopping(name):
                with suppress(RuntimeError, OSError):  # the thread may be writing there
                    sys.stderr.write(f"mendgraph: stopping the running tasks; {name} again to stop at once\n")

            return

        with suppress(Exception):
            progress.close()

        with suppress(RuntimeError, OSError):
            sys.stderr.write(f"mendgraph: stopped {by_whom(name)}; start the same batch again to continue\n")

        process_end.leave_at_once(_CODES[name])

    before = install(dict.fromkeys(SIGNALS, hear))
    try:
        yield heard
    finally:
        install(before)


# --- Progress


def result_line(result: "TaskResult") -> str:
    """Return a result in one line: outcome, task, reason, calls and time."""
    ending = ""
    if result.message:
        ending = f": {result.message}"
    if result.left_out:
        ending += f"; not in the patch, only in the copy: {listed(result.left_out)}"

    usage = f" ({count_of(result.usage.calls, 'call')}, {result.seconds:.1f} s)"
    state = "LEFT"
    if result.is_final:
        state = result.kind.value

    return one_line(f"{state} {result.id} {result.reason}{usage}{ending}", _LONGEST_RESULT)


class BatchProgress:
    """Shows the progress of a batch until it is closed.

    If `err` is a terminal it has a bar, and a line for each task that is not FINISHED. `out` has a line for each result
    if it is no terminal, or if there is no bar. With `as_json`, `out` has each final result as an object on a line, and
    there is no bar.
    """

    def __init__(self, out: "Console", err: "Console", *, as_json: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._out = out
        self._err = err
        self._as_json = as_json
        self._is_live = err.is_terminal and not err.is_dumb_terminal and not as_json
        columns = (BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=err, transient=True, redirect_stdout=False, disable=not self._is_live)
        self._bar.speed_estimate_period = 3_600  # seconds: Rich's half a minute often has no result
        self._tally: Tally
        self._total = 0
        self._stopping = ""

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def began(self, tally: "Tally", total: int) -> None:
        """Show the beginning of the batch."""
        self._tally = tally
        self._total = total
        self._bar.add_task("", total=total, completed=tally.done)
        self._bar.start()

    def task_ended(self, result: "TaskResult") -> None:
        """Show the result of a task."""
        if self._as_json:
            if result.is_final:
                write_object(result.model_dump(mode="json"))

            return

        line = f"{self._tally.done:,}/{self._total:,} {result_line(result)}"
        if not self._is_live or not self._out.is_terminal:
            self._out.file.write(f"{line}\n")
            self._out.file.flush()

        remarkable = result.refused or result.left_out or result.kind is not OutcomeKind.FINISHED
        if self._is_live and result.is_final and remarkable:
            style = "bold yellow"
            if result.kind is OutcomeKind.SYSTEM_ERROR:
                style = "bold red"

            self._err.print(line, style=style, markup=False, highlight=False)

        self._show()

    def stopping(self, signal_name: str) -> bool:
        """Show that the batch is stopping; return whether a bar shows it."""
        self._stopping = signal_name
        self._show()
        return self._is_live

    def _show(self) -> None:
        for task in self._bar.task_ids:  # there is none before the batch begins
            tally = self._tally

            parts = []
            if self._stopping:
                parts.append(f"stopping the running tasks; {self._stopping} again to stop at once")
            if tally.failed:
                parts.append(f"{tally.failed:,} failed")
            if tally.stopped:
                parts.append(f"{tally.stopped:,} stopped")
            if tally.cost_usd:
                parts.append(usd(tally.cost_usd))

            self._bar.update(task, completed=tally.done, description=" · ".join(parts))
