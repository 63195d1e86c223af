"""The command `mendgraph`: parsing, exit codes and one line for each error; it decides nothing else.

What a run needs is imported when a run starts, so that `--help`, `model status` and errors of usage answer at once.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mendgraph.graph.runs.run_words import chat_command
from mendgraph.graph.terminal import batch_command, options as opt, process_end, run_commands, setup_commands
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, exit_code_table, found
from mendgraph.nodes.language.display import one_line, short_id

if TYPE_CHECKING:
    from mendgraph.graph.terminal.turns import Setup

HELP = """A coding agent that repairs the project in the current folder, inside a budget and inside that folder.

Without a key it uses the embedded local model (`mendgraph model pull` fetches it once). With OPENAI_BASE_URL and
OPENAI_API_KEY it uses that endpoint.

\b
Examples:
  mendgraph "The add function in calc.py is wrong: it subtracts. Fix it."
  git diff | mendgraph --mode read-only --json - > review.json
  mendgraph runs                  what was done in this folder
  mendgraph resume                go on where the last run was cut off
  mendgraph undo 3f2a9c01         restore the files as they were before a run
  mendgraph report 3f2a9c01       what a run did, as one page for a browser
  mendgraph usage                 what model calls have used, day by day
  mendgraph batch tasks.jsonl     many tasks, each on a copy of its own
  mendgraph doctor                what this machine lacks, and what to do
  mendgraph cassette from-run 3f2a9c01   a test that replays a run, offline
"""
EPILOG = f"\b\nExit codes:\n{exit_code_table()}"

app = typer.Typer(
    cls=opt.TaskGroup,
    help=HELP,
    epilog=EPILOG,
    subcommand_metavar='"TASK" | COMMAND',
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FOR_EVERY_COMMAND = frozenset({"root", "as_json", "json_lines", "debug", "version", "workspace_config"})
"""Options that are not those of a new run."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mendgraph {version('mendgraph')}")
        raise typer.Exit


@app.callback()
@opt.takes_settings
def options(
    context: typer.Context,
    root: opt.Root = Path(),
    workspace_config: opt.WorkspaceConfig = True,
    durability: opt.Durability = None,
    debug: opt.Debug = False,
    as_json: opt.AsJson = False,
    json_lines: opt.JsonLines = False,
    version: Annotated[  # noqa: ARG001 - its callback ends the process
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    **settings: Any,
) -> None:
    """Keep the options for the command that follows."""
    if as_json and json_lines:
        context.fail("--json and --json-lines exclude each other: one object at the end, or a line for each event")
    given = tuple(
        each.opts[0]
        for each in context.command.params
        if each.name not in _FOR_EVERY_COMMAND and opt.is_given(context, str(each.name))
    )
    context.obj = opt.Options(
        root,
        as_json or json_lines,
        debug,
        opt.settings_of(settings),
        durability or "sync",
        given,
        json_lines=json_lines,
        workspace_file=workspace_config,
    )


@app.command()
def run(context: typer.Context, task: opt.Task = None) -> int:
    """Work on one task. The word `run` may be omitted."""
    request = _task_of(context, task or [])
    setup_commands.configure(context)
    _check_folder(context)

    def work(setup: "Setup") -> int:
        from mendgraph.graph.terminal.turns import run_once

        return run_once(setup, request)

    return _start(context.obj, work, attended=task != ["-"])


@app.command()
def chat(context: typer.Context, run: opt.RunToTalkOf = None) -> int:
    """Talk with the agent, turn by turn, until the input ends.

    A line that begins with / is a command of the chat: /help lists them.
    """
    if run is None:
        setup_commands.configure(context)
    _check_folder(context)

    def work(setup: "Setup") -> int:
        from mendgraph.graph.terminal.chat import chat as talk, prompt_for

        return talk(setup, prompt_for(setup, sys.stdin, sys.stdout))

    if run is None:
        return _start(context.obj, work, attended=True)
    return _take_up(context.obj, run, work)


@app.command()
def resume(context: typer.Context, run: opt.RunToResume = "") -> int:
    """Go on with a run that was cut off or stopped.

    It goes on with the options that it was begun with. A run that has finished says so.
    """
    chosen = opt.options_without_a_task(context)

    def work(setup: "Setup") -> int:
        from mendgraph.graph.terminal.turns import resume_once

        return resume_once(setup)

    return _take_up(chosen, run, work, even_finished=chosen.as_json)


app.add_typer(run_commands.app, name="runs")
app.command()(run_commands.undo)
app.command()(run_commands.apply)
app.command()(run_commands.fork)
app.command()(run_commands.report)
app.command()(setup_commands.usage)
app.command()(batch_command.batch)
app.command()(setup_commands.doctor)
app.add_typer(setup_commands.config_app, name="config")
app.add_typer(run_commands.cassettes, name="cassette")
app.add_typer(setup_commands.model_app, name="model")


@app.command()
def serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen at; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65_535, help="Port to listen at.")] = 2026,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Print a new token, and what the tenants file holds of it.")
    ] = False,
) -> int:
    """Serve the agent to several users, over the Agent Protocol.

    MENDGRAPH_TENANTS names the file with the users, MENDGRAPH_STORE_URL the PostgreSQL database. Start as many of these
    as you like with the same two, on one machine or several that see the same folders.
    """
    opt.options_without_a_task(context)
    if new_token:
        import secrets

        from mendgraph.graph.fleet.serving.tenants import token_hash

        token = f"mg_{secrets.token_urlsafe(32)}"
        typer.echo(f"token, for the user alone:   {token}")
        typer.echo(f'line for the tenants file:   token_sha256 = ["{token_hash(token)}"]')
        return 0
    from mendgraph.graph.fleet.serving.admission import CannotServeError
    from mendgraph.graph.fleet.serving.engine import run_server

    try:
        return run_server(host, port)
    except CannotServeError as error:
        raise RefusedError(ExitCode.USAGE_ERROR, str(error)) from None


@app.command()
def schema(
    form: Annotated[Literal["json", "json-lines"], typer.Argument(metavar="FORM", help="json or json-lines.")] = "json",
) -> int:
    """Print the JSON Schema of what --json or --json-lines write of a task."""
    import json

    from mendgraph.graph.terminal.output_lines import line_schema, object_schema

    typer.echo(json.dumps(object_schema() if form == "json" else line_schema(), indent=2, sort_keys=True))
    return ExitCode.FINISHED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. `arguments` default to those of the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    process_end.make_streams_writable()
    code = _run(given)
    if code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} and arguments is None:
        process_end.leave_at_once(code)
    return code if given else ExitCode.USAGE_ERROR


def _run(given: Sequence[str]) -> int:
    try:
        code = int(app(given or ["--help"], prog_name="mendgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
    except RefusedError as refusal:
        return process_end.fail(given, refusal)
    except typer.TyperException as error:
        said = one_line(error.format_message().replace("Value error, ", ""), 300).rstrip(".")
        return process_end.fail(given, RefusedError(ExitCode.USAGE_ERROR, f"{said}; see `mendgraph --help`"))
    except (BrokenPipeError, SystemExit):  # typer turns the first into the second
        return process_end.close_output()
    except OSError as error:
        return process_end.close_output(f"cannot read or write ({error.strerror or type(error).__name__})")
    except Exception as error:  # noqa: BLE001 - no traceback for a user; a bug is one line that asks for a report
        return process_end.fail(given, process_end.bug(error, debug="--debug" in given))
    return code


def _start(chosen: opt.Options, work: "Callable[[Setup], int]", *, attended: bool) -> int:
    try:
        return work(_setup(chosen, attended=attended))
    except KeyboardInterrupt as signal:  # while libraries are loaded, or for the second time
        terminated = type(signal) is not KeyboardInterrupt
        code = ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED
        if not terminated and sys.stderr.isatty():
            sys.stderr.write("\n")  # the terminal has echoed ^C
        raise RefusedError(code, f"stopped by {'SIGTERM' if terminated else 'Ctrl-C'}") from None


def _take_up(chosen: opt.Options, run: str, work: "Callable[[Setup], int]", *, even_finished: bool = True) -> int:
    """Work on a run that is known, with its own context; options that are given take the place of what is in it."""
    from mendgraph.graph.runs.runs import RunState, get_run

    known = found(get_run(run, str(chosen.root)))
    if known.standing is RunState.FINISHED and not even_finished:
        talk = chat_command(known.run_id, str(chosen.root))
        said = f"run {short_id(known.run_id)} has finished; ask it more with: {talk}"
        sys.stderr.write(f"mendgraph: {one_line(said, 1_000)}\n")
        return ExitCode.FINISHED
    taken_up = replace(
        chosen,
        settings={**known.context.model_dump(), **chosen.settings, "workspace": str(chosen.root)},
        durability=chosen.durability if "--durability" in chosen.given else known.durability,
        run_id=known.run_id,
    )
    return _start(taken_up, work, attended=True)


def _setup(chosen: opt.Options, *, attended: bool) -> "Setup":
    from rich.console import Console

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.terminal.answers import Screen
    from mendgraph.graph.terminal.screen import Display
    from mendgraph.graph.terminal.status_line import StatusLine, is_live
    from mendgraph.graph.terminal.turns import Setup
    from mendgraph.nodes.call_model.local_model import local_server_is_starting
    from mendgraph.nodes.execute_tools.files.deadline import monotonic_s

    out, err = Console(), Console(stderr=True)
    context = AgentContext(**{"workspace": str(chosen.root), **chosen.settings})
    live = None
    if is_live(out) and not chosen.as_json and (is_live(err) or not err.file.isatty()):
        live = StatusLine(out, context.limits(), local_server_is_starting, monotonic_s)
    write = live.write if live is not None else None
    screens = Screen(out, write), Screen(err, write if is_live(err) else None)
    return Setup(
        context=context,
        display=Display(*screens, chosen.as_json, chosen.debug, chosen.json_lines, live),
        next_line=input,
        ask=_ask if attended and not chosen.as_json and sys.stdin.isatty() else None,
        environment=os.environ,
        session_options={"durability": chosen.durability, "thread_id": chosen.run_id, **_session_options()},
    )


def _session_options() -> Mapping[str, Any]:
    """Further arguments of `Session`: the seam at which tests put a model of their own."""
    return {}


def _ask(prompt: str) -> str:
    """Ask on standard error, so that a redirected answer does not swallow the question."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return input()


def _task_of(context: typer.Context, words: list[str]) -> str:
    if len(words) != 1:
        context.fail("put the task in quotes" if words else 'there is no task: mendgraph "what to do"')
    try:
        task = os.fsencode(sys.stdin.read() if words == ["-"] else words[0]).decode()
    except UnicodeError:
        context.fail("the task is not valid UTF-8 text")
    if not task.strip():
        context.fail("the task is empty")
    return task


def _check_folder(context: typer.Context) -> None:
    """A run that may edit wants a folder that it can write in, before it spends anything."""
    chosen: opt.Options = context.obj
    if chosen.settings.get("mode") != "read-only" and not os.access(chosen.root, os.W_OK | os.X_OK):
        context.fail(f"cannot write in the folder {str(chosen.root)!r}: use --mode read-only to only look at it")
