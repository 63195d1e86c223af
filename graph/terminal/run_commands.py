"""`mendgraph runs`, `undo` and `fork`: what can be done with runs besides going on with them."""

import os.path
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mendgraph.graph.runs.kept_run import KeptRun, short_id
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.report.page import Report
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.execute_tools.journal.restoring import Restored


app = typer.Typer(help="List the runs of this folder, or `show` or `prune` some.", rich_markup_mode=None)

_WRONG_WORD = frozenset({ToolErrorCode.NOT_FOUND, ToolErrorCode.INVALID_ARGUMENT})
"""Errors that are the command line's: what it names does not exist, or may be several things."""

_MOST_NAMED = 50
"""Files that a refusal lists."""

NOTHING_TO_UNDO = "nothing to undo: it changed no file, or all of that has been taken back"


@app.callback(invoke_without_command=True)
def runs(context: typer.Context) -> int:
    """List the runs of this folder; the one that was at work last comes first."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED
    from mendgraph.graph.runs.runs import list_runs
    from mendgraph.graph.terminal.output_lines import Line, run_lines, run_object

    chosen = options_without_a_task(context)
    found = list_runs(str(chosen.root))
    if isinstance(found, ToolError):
        return refused(chosen, found)
    if chosen.as_json:
        return tell_object([run_object(each) for each in found])
    lines = (
        run_lines(found, terminal_width(), datetime.now(UTC))
        if found
        else [Line("There are no runs of this folder yet.")]
    )
    return tell(lines)


@app.command()
def show(context: typer.Context, run: opt.Run) -> int:
    """Show a run and its steps, for `undo` and `fork`."""
    from mendgraph.graph.runs.runs import get_run, steps_of
    from mendgraph.graph.terminal.output_lines import run_details, run_object, step_object

    chosen = options_without_a_task(context)
    found, steps = get_run(run, str(chosen.root)), steps_of(run, str(chosen.root))
    if isinstance(found, ToolError):
        return refused(chosen, found)
    if isinstance(steps, ToolError):
        return refused(chosen, steps)
    if chosen.as_json:
        return tell_object({**run_object(found), "steps": [step_object(each) for each in steps]})
    return tell(run_details(found, steps, datetime.now(UTC)))


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
    from mendgraph.graph.terminal.output_lines import Line, bytes_words
    from mendgraph.nodes.language.display import count_of

    chosen = options_without_a_task(context)
    done = prune_runs(str(chosen.root), keep=keep, older_than_days=older_than, unfinished=unfinished)
    if isinstance(done, ToolError):
        return refused(chosen, done)
    if chosen.as_json:
        return tell_object({"removed": list(done.run_ids), "freed_bytes": done.freed_bytes})
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
    from mendgraph.graph.terminal.output_lines import Line

    chosen = options_without_a_task(context)
    done = undo_run(run, str(chosen.root), from_step=from_step, skip_changed=skip_changed)
    if isinstance(done, ToolError):
        return refused(chosen, done)
    if chosen.as_json:
        return tell_object(restored_object(done))
    return tell(restored_lines(done) or [Line(NOTHING_TO_UNDO)])


def fork(context: typer.Context, run: opt.Run, at: opt.AtStep, skip_changed: opt.SkipChanged = False) -> int:
    """Begin a new run where another one was after a step.

    It has the conversation and the files of that time: what the other run did later is taken back.
    """
    from mendgraph.graph.runs.runs import fork_run
    from mendgraph.graph.terminal.output_lines import Line

    chosen = options_without_a_task(context)
    done = fork_run(run, at, str(chosen.root), skip_changed=skip_changed)
    if isinstance(done, ToolError):
        return refused(chosen, done)
    new = KeptRun(done.run_id, can_go_on=True, root=str(chosen.root))
    if chosen.as_json:
        words = {"run_id": done.run_id, "parent": done.parent, "at": at, "resume": new.resume}
        return tell_object({**words, **restored_object(done.restored)})
    begun = f"run {short_id(done.run_id)} begins where run {short_id(done.parent)} was after step {at}"
    return tell([*restored_lines(done.restored), Line(f"{begun}; go on with: {new.resume}")])


# --- What the commands for runs have in common


def options_without_a_task(context: typer.Context) -> opt.Options:
    """The options of a command that begins no run: those of a run would have no effect, so they are refused."""
    chosen: opt.Options = context.obj if context.info_name == "resume" else options_without_events(context)
    if chosen.given:
        context.fail(
            f"{chosen.given[0]} is for new runs: a run goes on with the options that it was begun with;"
            " `mendgraph chat --run RUN` takes others"
        )
    return chosen


def options_without_events(context: typer.Context) -> opt.Options:
    """The options of a command that works on no task, and so tells no events."""
    chosen: opt.Options = context.obj
    if chosen.json_lines:
        context.fail("--json-lines is for what works on a task (run, chat, resume); use --json here")
    return chosen


def refused(chosen: opt.Options, error: ToolError) -> int:
    """Say what the error says, and what it names, on standard error; with `--json` as an object as well."""
    from mendgraph.graph.terminal.output_lines import as_json

    message, named = refusal_words(error)
    typer.echo("\n".join([f"mendgraph: {message}", *named]), err=True)
    if chosen.as_json:
        told = {"error": {**error.as_map(), "message": message}}
        typer.echo(as_json({"event": "error", **told} if chosen.json_lines else told))
    return ExitCode.USAGE_ERROR if error.code in _WRONG_WORD else ExitCode.SYSTEM_ERROR


def refusal_words(error: ToolError) -> tuple[str, list[str]]:
    """What an error says, with what it may have meant, and the lines that name what stands in the way."""
    message = one_line(error.message.replace("skip_changed", "--skip-changed"), 2_000)
    named = [one_line(each) for each in error.suggestions]
    if error.code in _WRONG_WORD:
        meant = [each for each in named if each not in message]
        return message + (f" Did you mean {' or '.join(meant)}?" if meant else ""), []
    more = [f"  and {len(named) - _MOST_NAMED} more"] if named[_MOST_NAMED:] else []
    return message, [*(f"  {each}" for each in named[:_MOST_NAMED]), *more]


def restored_lines(restored: "Restored") -> "list[Line]":
    """What was restored and what was left, file by file; none where nothing was."""
    from mendgraph.graph.terminal.output_lines import Line

    words = {"edited": "restored", "deleted": "removed", "created": "brought back"}
    return [
        *(Line(one_line(f"{words[file.kind]} {file.path}")) for file in restored.files),
        *(Line(one_line(f"removed {path}/, which was empty")) for path in restored.removed),
        *(Line(one_line(f"left {file.path}: {file.why}", 500), "yellow") for file in restored.left),
        *(
            Line(one_line(f"left what {tool} changed before it was cut off: nobody knows what that is"), "yellow")
            for tool in restored.cut_off
        ),
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


def tell(lines: "list[Line]") -> int:
    """Show these lines on standard output."""
    from rich.console import Console

    from mendgraph.graph.terminal.screen import Screen

    screen = Screen(Console())
    for line in lines:
        screen.line(*line)
    return ExitCode.FINISHED


def tell_object(value: Any) -> int:
    """Show this value as JSON, on one line of standard output."""
    from mendgraph.graph.terminal.output_lines import as_json

    typer.echo(as_json(value))
    return ExitCode.FINISHED


def terminal_width() -> int | None:
    """How many cells a line of the terminal has; None where the output is no terminal."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


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
    problem = _written(path, made, force=force)
    if problem is not None:
        return refused(chosen, problem)
    if chosen.as_json:
        return tell_object({"run_id": made.run_id, "path": path, "bytes": len(made.html.encode("utf-8"))})
    from mendgraph.graph.terminal.output_lines import Line

    return tell([Line(f"report of run {one_line(short_id(made.run_id))}: {one_line(path, 1_000)}")])


def _written(path: str, made: "Report", *, force: bool) -> ToolError | None:
    """Write the page, whole or not at all; INVALID_ARGUMENT where it cannot be there, or something else is."""
    from mendgraph.nodes.execute_tools.files.failures import quoted
    from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
    from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace, WriteFile

    folder, name = os.path.split(path)
    root = check_workspace(folder)
    if isinstance(root, ToolError):
        message = f"There is no folder {quoted(folder)} to write the page to: make it, or take another FILE."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    place = Workspace(str(root), lambda *_: None)
    there = place.read_file(name) if place.exists(name) else None
    if isinstance(there, ToolError):
        return there.model_copy(update={"code": ToolErrorCode.INVALID_ARGUMENT})
    if there is not None and not force:
        message = f"{quoted(path)} is there already: name another FILE with -o, or write over it with --force."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    before = there.sha256 if isinstance(there, FileContent) else ""
    done = place.change_files([WriteFile(name, made.html.encode("utf-8"), expected_sha256=before)])
    if isinstance(done, ToolError) and done.code is ToolErrorCode.PERMISSION_DENIED:
        message = f"The page cannot be written to {quoted(path)}, which is a link to elsewhere, or no plain file."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return done if isinstance(done, ToolError) else None
