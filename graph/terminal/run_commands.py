"""`mendgraph runs`, `undo` and `fork`: what can be done with runs besides going on with them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from graph.terminal import options as opt
from graph.terminal.exit_codes import ExitCode
from graph.terminal.plain_text import one_line
from graph.terminal.run_words import KeptRun, short_id
from nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from graph.terminal.ending import Line
    from nodes.execute_tools.environment.restoring import Restored

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
    from graph.runs import list_runs
    from graph.terminal.ending import Line
    from graph.terminal.run_table import run_lines, run_object

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
    from graph.runs import get_run, steps_of
    from graph.terminal.run_table import run_details, run_object, step_object

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
    from graph.runs import prune_runs
    from graph.terminal.call_words import count_of
    from graph.terminal.ending import Line
    from graph.terminal.run_table import bytes_words

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
    from graph.runs import undo_run
    from graph.terminal.ending import Line

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
    from graph.runs import fork_run
    from graph.terminal.ending import Line

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
    from graph.terminal.ending import as_json

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
    from graph.terminal.ending import Line

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

    from graph.terminal.screen import Screen

    screen = Screen(Console())
    for line in lines:
        screen.line(*line)
    return ExitCode.FINISHED


def tell_object(value: Any) -> int:
    """Show this value as JSON, on one line of standard output."""
    from graph.terminal.ending import as_json

    typer.echo(as_json(value))
    return ExitCode.FINISHED


def terminal_width() -> int | None:
    """How many cells a line of the terminal has; None where the output is no terminal."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None
