"""`mendgraph cassette ...`: make a test of a run, look over the cassettes of a folder, serve one of them."""

import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from mendgraph.graph.runs.kept_run import short_id
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.run_commands import options_without_a_task, refused, tell, tell_object
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError

if TYPE_CHECKING:
    from mendgraph.graph.cassettes.servers import ReplayServer

OPENAI_PATHS = ("/v1/chat/completions", "/v1/responses")
"""Whoever asks for these hears of `OPENAI_BASE_URL`."""

app = typer.Typer(help="Test on recorded conversations: `from-run`, `lint`, `serve`.", rich_markup_mode=None)


@app.command("from-run")
def from_run(
    context: typer.Context,
    run: opt.Run,
    output: opt.TestFolder = None,
    name: opt.TestName = "",
    force: opt.Force = False,
) -> int:
    """Make a cassette of a run, and a pytest file that replays it.

    The run is played in a copy of this folder. Where it does not go the same way again, nothing is written.
    """
    from mendgraph.graph.cassettes.from_run import cassette_from_run
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.language.display import count_of

    chosen = options_without_a_task(context)
    folder = None if output is None else str(output)
    made = cassette_from_run(run, str(chosen.root), folder=folder, name=name, force=force)
    if isinstance(made, ToolError):
        return refused(chosen, made)
    if chosen.as_json:
        return tell_object(asdict(made))
    what = f"{count_of(made.exchanges, 'exchange')}, {count_of(made.files, 'file')}, ends {made.end}"
    test, cassette, *_ = made.paths
    return tell(
        [
            Line(one_line(f"wrote {test}", 1_000)),
            Line(one_line(f"wrote {cassette}", 1_000)),
            Line(f"run {short_id(made.run_id)}: {what}; replay it with: {one_line(made.command, 2_000)}"),
        ]
    )


@app.command()
def lint(context: typer.Context, folder: opt.CassetteFolder = "cassettes") -> int:
    """Find what is wrong with cassettes.

    Secrets, machine paths, orphans and drift; exit code 1 where there is any. Drift: this version would not send what
    was recorded.
    """
    from mendgraph.graph.cassettes.cassette_lint import lint_cassettes
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.language.display import count_of

    chosen = options_without_a_task(context)
    found = lint_cassettes(folder, str(chosen.root))
    if isinstance(found, ToolError):
        return refused(chosen, found)
    mend = sum(not each.note for each in found)
    if chosen.as_json:
        tell_object([asdict(each) for each in found])
    else:
        lines = [Line(one_line(f"{each.path}:{each.line}: {each.what}; {each.remedy}", 2_000)) for each in found]
        tell([*lines, Line(count_of(mend, "finding") if mend else "nothing to mend")])
    return ExitCode.FINDINGS if mend else ExitCode.FINISHED


@app.command()
def serve(context: typer.Context, file: opt.CassettePath, port: opt.Port = 0) -> int:
    """Replay a cassette as an endpoint on this machine until Ctrl-C.

    At the end it says what was not played and what was refused; exit code 1 where anything was refused.
    """
    from mendgraph.graph.cassettes.cassette_file import read
    from mendgraph.graph.cassettes.servers import ReplayServer

    chosen = options_without_a_task(context)
    cassette = read(str(chosen.root / file), str(file))
    if isinstance(cassette, ToolError):
        return refused(chosen, cassette)
    try:
        server = ReplayServer(cassette, port)
    except OSError as error:
        typer.echo(f"mendgraph: port {port} cannot be taken: {error.strerror or error}", err=True)
        return ExitCode.SYSTEM_ERROR
    with server:
        openai = any(exchange.path.startswith(OPENAI_PATHS) for exchange in cassette.exchanges)
        use = f"use it with OPENAI_BASE_URL={server.base_url}" if openai else "give its address to the client"
        announce = f"serving {file} on {server.base_url} until Ctrl-C; {use}"
        _until_stopped(lambda: typer.echo(one_line(announce, 1_000)))
    return _ended(server, as_json=chosen.as_json)


def _until_stopped(announce: Callable[[], None]) -> None:
    """Wait for Ctrl-C or SIGTERM, which are heard before anybody is told that there is something to stop."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        announce()
        while not stopped.wait(0.2):  # some platforms hear no signal in a wait without an end
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(server: "ReplayServer", *, as_json: bool) -> int:
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.language.display import count_of

    if as_json:
        tell_object({"misses": list(server.misses), "unplayed": server.unplayed})
    else:
        left = count_of(server.unplayed, "exchange")
        refusals = [Line(line) for miss in server.misses for line in f"refused: {miss}".splitlines()]
        tell([*refusals, Line(f"{left} not played, {count_of(len(server.misses), 'request')} refused")])
    return ExitCode.FINDINGS if server.misses else ExitCode.FINISHED
