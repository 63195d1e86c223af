"""`mendgraph runs`, `undo`, `fork`, `report`, `cassette`: what can be done with runs besides going on with them."""

import os.path
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mendgraph.graph.runs.kept_run import KeptRun, short_id
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.answers import LONGEST_LINE, Line, tell, terminal_width, write_object
from mendgraph.graph.terminal.options import options_without_a_task
from mendgraph.graph.terminal.process_end import ExitCode, answer, hearing, refused
from mendgraph.nodes.language.display import count_of, one_line
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.cassettes.from_run import WrittenCassette
    from mendgraph.graph.cassettes.servers import ReplayServer
    from mendgraph.graph.report.page import Report
    from mendgraph.nodes.execute_tools.journal.restoring import Restored


app = typer.Typer(help="List the runs of this folder, or `show` or `prune` some.", rich_markup_mode=None)
cassettes = typer.Typer(help="Test on recorded conversations: `from-run`, `lint`, `serve`.", rich_markup_mode=None)

NOTHING_TO_UNDO = "nothing to undo: it changed no file, or all of that has been taken back"


@app.callback(invoke_without_command=True)
def runs(context: typer.Context) -> int:
    """List the runs of this folder; the one that was at work last comes first."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED
    from mendgraph.graph.runs.runs import list_runs
    from mendgraph.graph.terminal.output_lines import run_lines, run_object

    chosen = options_without_a_task(context)
    return answer(
        chosen,
        list_runs(str(chosen.root)),
        lambda found: list(map(run_object, found)),
        lambda found: run_lines(found, terminal_width(), datetime.now(UTC)),
    )


@app.command()
def show(context: typer.Context, run: opt.Run) -> int:
    """Show a run and its steps, for `undo` and `fork`."""
    from mendgraph.graph.runs.runs import get_run, steps_of
    from mendgraph.graph.terminal.output_lines import run_details, run_object, step_object

    chosen = options_without_a_task(context)
    found, steps = get_run(run, str(chosen.root)), steps_of(run, str(chosen.root))
    if isinstance(found, ToolError):
        return refused(chosen, found)
    return answer(
        chosen,
        steps,
        lambda steps: {**run_object(found), "steps": list(map(step_object, steps))},
        lambda steps: run_details(found, steps, datetime.now(UTC)),
    )


@app.command()
def prune(
    context: typer.Context,
    keep: opt.Keep = None,
    older_than: opt.OlderThan = None,
    unfinished: opt.Unfinished = False,
) -> int:
    """Remove runs with all that is kept of them.

    What they did to files stays, and cannot be undone any more.
    """
    if keep is None and older_than is None:
        context.fail("say which runs to remove: --keep N, --older-than DAYS, or both")
    from mendgraph.graph.runs.runs import prune_runs
    from mendgraph.graph.terminal.output_lines import bytes_words

    chosen = options_without_a_task(context)
    done = prune_runs(str(chosen.root), keep=keep, older_than_days=older_than, unfinished=unfinished)
    if isinstance(done, ToolError):
        return refused(chosen, done)
    if chosen.as_json:
        return write_object({"removed": list(done.run_ids), "freed_bytes": done.freed_bytes})
    names = ", ".join(map(short_id, done.run_ids))
    number = count_of(len(done.run_ids), "run")
    return tell([Line(f"removed {number}, {bytes_words(done.freed_bytes)}" + (f": {names}" if names else ""))])


def undo(
    context: typer.Context, run: opt.Run, from_step: opt.FromStep = 0, skip_changed: opt.SkipChanged = False
) -> int:
    """Restore the files as they were before a run or a step.

    Nothing is restored where one of them was changed since by somebody else, and no other file is touched.
    """
    from mendgraph.graph.runs.runs import undo_run

    chosen = options_without_a_task(context)
    done = undo_run(run, str(chosen.root), from_step=from_step, skip_changed=skip_changed)
    return answer(chosen, done, restored_object, lambda done: restored_lines(done) or [Line(NOTHING_TO_UNDO)])


def fork(context: typer.Context, run: opt.Run, at: opt.AtStep, skip_changed: opt.SkipChanged = False) -> int:
    """Begin a new run where another one was after a step.

    It has the conversation and the files of that time: what the other run did later is taken back.
    """
    from mendgraph.graph.runs.runs import fork_run

    chosen = options_without_a_task(context)
    done = fork_run(run, at, str(chosen.root), skip_changed=skip_changed)
    if isinstance(done, ToolError):
        return refused(chosen, done)
    new = KeptRun(done.run_id, can_go_on=True, root=str(chosen.root))
    if chosen.as_json:
        words = {"run_id": done.run_id, "parent": done.parent, "at": at, "resume": new.resume}
        return write_object({**words, **restored_object(done.restored)})
    begun = f"run {short_id(done.run_id)} begins where run {short_id(done.parent)} was after step {at}"
    return tell([*restored_lines(done.restored), Line(f"{begun}; go on with: {new.resume}")])


def restored_lines(restored: "Restored") -> list[Line]:
    """What was restored and what was left, file by file; none where nothing was."""
    words = {"edited": "restored", "deleted": "removed", "created": "brought back"}
    unknown = "before it was cut off: nobody knows what that is"
    return [
        *(Line(one_line(f"{words[file.kind]} {file.path}")) for file in restored.files),
        *(Line(one_line(f"removed {path}/, which was empty")) for path in restored.removed),
        *(Line(one_line(f"left {file.path}: {file.why}", 500), "yellow") for file in restored.left),
        *(Line(one_line(f"left what {tool} changed {unknown}"), "yellow") for tool in restored.cut_off),
    ]


def restored_object(restored: "Restored") -> dict[str, Any]:
    """The same for a program."""
    return {
        "restored": [{"path": file.path, "kind": str(file.kind)} for file in restored.files],
        "left": [{"path": file.path, "why": file.why} for file in restored.left],
        "removed_directories": list(restored.removed),
        "cut_off": list(restored.cut_off),
        "steps": list(restored.steps),
    }


# --- The page of a run

STANDARD_OUTPUT = "-"

Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the page is written; - is standard output. Default: mendgraph-RUN.html in this folder.",
        show_default=False,
    ),
]


def report(context: typer.Context, run: opt.NewestRun = "", output: Output = "", force: opt.Force = False) -> int:
    """Write what a run did as one page, for a browser.

    It needs no network and no script, and nothing of the run is changed by it.
    """
    from mendgraph.graph.report.page import make_report

    chosen = options_without_a_task(context)
    if output == STANDARD_OUTPUT and chosen.as_json:
        context.fail("with --json the page goes into a file: omit -o - or --json")
    made = make_report(run, str(chosen.root))
    if isinstance(made, ToolError):
        return refused(chosen, made)
    if output == STANDARD_OUTPUT:
        typer.echo(made.html.encode("utf-8"), nl=False)
        return 0
    path = os.path.abspath(output or f"mendgraph-{short_id(made.run_id)}.html")
    problem = _write_page(path, made, force=force)
    if problem is not None:
        return refused(chosen, problem)
    if chosen.as_json:
        return write_object({"run_id": made.run_id, "path": path, "bytes": len(made.html.encode("utf-8"))})
    return tell([Line(f"report of run {one_line(short_id(made.run_id))}: {one_line(path, LONGEST_LINE)}")])


def _write_page(path: str, made: "Report", *, force: bool) -> ToolError | None:
    """Write the page, whole or not at all; INVALID_ARGUMENT where it cannot be there, or something else is."""
    from mendgraph.nodes.execute_tools.files.failures import quoted
    from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
    from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace, WriteFile

    def misplaced(message: str) -> ToolError:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)

    folder, name = os.path.split(path)
    root = check_workspace(folder)
    if isinstance(root, ToolError):
        return misplaced(f"There is no folder {quoted(folder)} to write the page to: make it, or take another FILE.")
    place = Workspace(str(root), lambda *_: None)
    there = place.read_file(name) if place.exists(name) else None
    if isinstance(there, ToolError):
        return misplaced(there.message)
    if there is not None and not force:
        return misplaced(f"{quoted(path)} is there already: name another FILE with -o, or write over it with --force.")
    before = there.sha256 if isinstance(there, FileContent) else ""
    done = place.change_files([WriteFile(name, made.html.encode("utf-8"), expected_sha256=before)])
    if isinstance(done, ToolError) and done.code is ToolErrorCode.PERMISSION_DENIED:
        return misplaced(f"The page cannot be written to {quoted(path)}: it is a link to elsewhere, or no plain file.")
    return done if isinstance(done, ToolError) else None


# --- Cassettes

OPENAI_PATHS = ("/v1/chat/completions", "/v1/responses")
"""Whoever asks for these hears of `OPENAI_BASE_URL`."""


@cassettes.command("from-run")
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

    chosen = options_without_a_task(context)
    folder = None if output is None else str(output)
    made = cassette_from_run(run, str(chosen.root), folder=folder, name=name, force=force)
    return answer(chosen, made, asdict, _written_lines)


def _written_lines(made: "WrittenCassette") -> Iterator[Line]:
    test, cassette, *_ = made.paths
    yield Line(one_line(f"wrote {test}", LONGEST_LINE))
    yield Line(one_line(f"wrote {cassette}", LONGEST_LINE))
    what = f"{count_of(made.exchanges, 'exchange')}, {count_of(made.files, 'file')}, ends {made.end}"
    yield Line(f"run {short_id(made.run_id)}: {what}; replay it with: {one_line(made.command, 2_000)}")


@cassettes.command()
def lint(context: typer.Context, folder: opt.CassetteFolder = "cassettes") -> int:
    """Find what cassettes must not hold: secrets, machine paths and foreign headers; exit code 1 where there is any."""
    from mendgraph.graph.cassettes.cassette_lint import lint_cassettes

    chosen = options_without_a_task(context)
    found = lint_cassettes(folder, str(chosen.root))
    if isinstance(found, ToolError):
        return refused(chosen, found)
    if chosen.as_json:
        write_object([asdict(each) for each in found])
    else:
        lines = [Line(one_line(f"{each.path}:{each.line}: {each.what}; {each.remedy}", 2_000)) for each in found]
        tell([*lines, Line(count_of(len(found), "finding") if found else "nothing to mend")])
    return ExitCode.FINDINGS if found else ExitCode.FINISHED


@cassettes.command()
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
        message = f"port {port} cannot be taken: {error.strerror or error}"
        return refused(chosen, ToolError(code=ToolErrorCode.UNAVAILABLE, message=message))
    with server:
        openai = any(exchange.path.startswith(OPENAI_PATHS) for exchange in cassette.exchanges)
        use = f"use it with OPENAI_BASE_URL={server.base_url}" if openai else "give its address to the client"
        announce = f"serving {file} on {server.base_url} until Ctrl-C; {use}"
        until_stopped(lambda: typer.echo(one_line(announce, LONGEST_LINE)))
    return _served(server, as_json=chosen.as_json)


def until_stopped(announce: Callable[[], None]) -> None:
    """Wait for Ctrl-C or SIGTERM, which are heard before anybody is told that there is something to stop."""
    stopped = threading.Event()
    with hearing(lambda *_: stopped.set()):
        announce()
        while not stopped.wait(0.2):  # some platforms hear no signal in a wait without an end
            pass


def _served(server: "ReplayServer", *, as_json: bool) -> int:
    if as_json:
        write_object({"misses": list(server.misses), "unplayed": server.unplayed})
    else:
        left = count_of(server.unplayed, "exchange")
        refusals = [Line(line) for miss in server.misses for line in f"refused: {miss}".splitlines()]
        tell([*refusals, Line(f"{left} not played, {count_of(len(server.misses), 'request')} refused")])
    return ExitCode.FINDINGS if server.misses else ExitCode.FINISHED
