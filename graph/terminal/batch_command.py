"""`mendgraph batch`: many tasks from a file, each on a copy of its own, with one result line and one patch for each."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from mendgraph.graph.terminal import options as opt, process_end
from mendgraph.graph.terminal.answers import LONGEST_LINE, write_object
from mendgraph.graph.terminal.process_end import SIGNALS, ExitCode, RefusedError, found, hearing, loaded
from mendgraph.nodes.language.display import count_of, one_line, usd

if TYPE_CHECKING:
    from mendgraph.graph.fleet.batch.batch import Batch, Terms
    from mendgraph.graph.fleet.batch.batch_folder import BatchResult
    from mendgraph.graph.terminal.batch_progress import BatchProgress

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
        from mendgraph.graph.fleet.batch.batch import Crew, prepare, terms_problem

        crew, terms = Crew(workers, processes, on, address), _terms(chosen, max_cost, max_tokens)
        if problem := terms_problem(terms, crew):
            context.fail(problem)
        made = prepare(file, terms, crew, out=out, work_folder=work_folder, remove_copies=remove_copies)
        ready = cast("Batch", loaded(found(made)))
        with ready.folder:
            return _work(chosen, ready)
    except KeyboardInterrupt:  # while libraries are loaded and workspaces looked at
        message = "stopped by Ctrl-C before any task was begun; start the same batch again"
        raise RefusedError(ExitCode.INTERRUPTED, message) from None


def _terms(chosen: opt.Options, max_cost: float | None, max_tokens: int | None) -> "Terms":
    """What the tasks may do: the user's file below the options; a workspace's own file comes between them."""
    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import load_configuration
    from mendgraph.graph.fleet.batch.batch import Terms
    from mendgraph.graph.fleet.batch.work import trusted_settings

    return Terms(
        AgentContext(**loaded(load_configuration(str(chosen.root), workspace_file=False)).values),
        chosen.settings,
        own_settings=chosen.workspace_file,
        trusted=lru_cache(maxsize=None)(trusted_settings),
        max_cost_usd=max_cost,
        max_tokens=max_tokens,
        durability=chosen.durability,
    )


def _work(chosen: opt.Options, batch: "Batch") -> int:
    from rich.console import Console

    from mendgraph.graph.telemetry.exporting import exporting, note
    from mendgraph.graph.terminal.batch_progress import BatchProgress

    for sentence in batch.notes:
        typer.echo(f"mendgraph: {one_line(sentence, LONGEST_LINE)}", err=True)
    shown = BatchProgress(Console(), Console(stderr=True), as_json=chosen.as_json)
    try:
        with exporting(os.environ, note), _signals(batch, shown) as heard:
            shown.began(batch.tally, batch.total)
            result = batch.run(shown.task_ended)
    finally:
        shown.close()
    _tell_end(chosen, result)
    return exit_code_of_batch(result, *heard[:1])


def exit_code_of_batch(result: "BatchResult", signal_heard: str = "Ctrl-C") -> ExitCode:
    """The code of a batch: whether all tasks have FINISHED, and otherwise what ended it."""
    from mendgraph.graph.fleet.batch.batch_folder import BatchEnd

    if result.end is BatchEnd.COMPLETE:
        return ExitCode.FINISHED if result.ok else ExitCode.FINDINGS
    if result.end is BatchEnd.CANCELLED:
        return _CODES[signal_heard]
    return ExitCode.BUDGET_STOP if result.end is BatchEnd.LIMIT else ExitCode.SYSTEM_ERROR


def _tell_end(chosen: opt.Options, result: "BatchResult") -> None:
    from mendgraph.graph.fleet.batch.batch_folder import counted

    tally = result.tally
    if chosen.as_json:
        known = {"batch": result.batch, "folder": result.folder, "end": result.end.value, "message": result.message}
        write_object({**known, "total": result.total, "left": result.left, **asdict(tally)})
        return
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
