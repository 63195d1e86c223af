"""`mendgraph model ...`: fetch the embedded model's weights, look at them, serve them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from mendgraph.graph.terminal.options import Options, Port
from mendgraph.graph.terminal.process_end import ExitCode, fail
from mendgraph.graph.terminal.run_commands import options_without_events, tell_object
from mendgraph.nodes.call_model.embedded.weights import (
    PullPhase,
    PullProgress,
    WeightsState,
    WeightsStatus,
    weights_path,
    weights_status,
)
from mendgraph.nodes.language.display import plain

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help="The embedded local model.", rich_markup_mode=None)

EXTRA_HINT = 'not installed: run `uv sync --extra local` or `pip install "mendgraph[local]"`'


@app.command()
def pull(context: typer.Context) -> int:
    """Fetch the weights (1.1 GB): resumable, verified.

    Once for all projects.
    """
    from mendgraph.nodes.call_model.embedded.pull import Pulled, PullFailureKind, pull_weights

    chosen = options_without_events(context)
    with shown_pull() as progress:
        pulled = pull_weights(progress)
    if isinstance(pulled, Pulled) and chosen.as_json:
        return tell_object(asdict(pulled))
    if isinstance(pulled, Pulled):
        how = "was already there" if pulled.source == "cache" else "is in place and verified"
        _tell(f"the model {how}: {pulled.path} ({_gigabytes(pulled.size_bytes)})")
        return ExitCode.FINISHED
    interrupted = pulled.kind is PullFailureKind.INTERRUPTED
    return _complain(chosen, ExitCode.INTERRUPTED if interrupted else ExitCode.SYSTEM_ERROR, pulled.message)


@app.command()
def status(context: typer.Context) -> int:
    """Say whether the embedded model can be used; exit code 0 if it can."""
    chosen = options_without_events(context)
    with shown_pull() as progress:
        found = weights_status(progress=progress)
    has_server = find_spec("xllamacpp") is not None
    usable = has_server and found.state is WeightsState.READY
    if chosen.as_json:
        tell_object({**asdict(found), "extra_installed": has_server, "usable": usable})
    else:
        _tell(f"weights: {_state_words(found)}")
        _tell(f"file: {found.path}")
        _tell(f'extra "local": {"installed" if has_server else EXTRA_HINT}')
    return ExitCode.FINISHED if usable else ExitCode.SYSTEM_ERROR


@app.command()
def serve(context: typer.Context, port: Port = 0) -> int:
    """Serve the embedded model on this machine until Ctrl-C."""
    from mendgraph.nodes.call_model.embedded.local_model import serve_in_foreground, why_unavailable

    chosen = options_without_events(context)
    announce = partial(_announce, as_json=chosen.as_json)
    failure = why_unavailable() or serve_in_foreground(weights_path(), port, announce)
    return ExitCode.FINISHED if failure is None else _complain(chosen, ExitCode.SYSTEM_ERROR, failure.message)


def _announce(base_url: str, *, as_json: bool) -> None:
    if as_json:
        tell_object({"base_url": base_url})
    else:
        _tell(f"serving on {base_url} until Ctrl-C; use it with OPENAI_BASE_URL={base_url}")


def _state_words(found: WeightsStatus) -> str:
    size = f"{_gigabytes(found.bytes_present)} of {_gigabytes(found.bytes_expected)}"
    if found.state is WeightsState.READY:
        return f"ready ({size})"
    return f"{found.state.value} ({size}): run `mendgraph model pull`"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _tell(message: str) -> None:
    typer.echo(plain(message))


def _complain(chosen: Options, code: ExitCode, message: str) -> int:
    return fail(["--json"] * chosen.as_json, code, plain(message))


@contextmanager
def shown_pull(console: "Console | None" = None) -> Iterator[Callable[[PullProgress], None]]:
    """Show a pull or a check of the weights on standard error: a bar, or without a terminal a line for each phase."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = console or Console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not live)
    phase: PullPhase | None = None

    def show(report: PullProgress) -> None:
        nonlocal phase
        total, done = report.bytes_total or None, report.bytes_done
        if report.phase is phase:
            for task in bar.task_ids:
                bar.update(task, completed=done, total=total)
            return
        phase = report.phase
        if not live:
            console.file.write(f"{phase.value}\n")
            console.file.flush()
            return
        bar.start()
        for task in bar.task_ids:
            bar.remove_task(task)
        # A resumed pull begins where the last one stopped; from zero, its rate would count what was there already.
        bar.add_task(phase.value, total=total, completed=done)

    try:
        yield show
    finally:
        bar.stop()
