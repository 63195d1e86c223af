"""The command `mendgraph`: parsing, exit codes and one line for each error; it decides nothing else.

What a run needs is imported when a run starts, so that `--help`, `model status` and errors of usage answer at once.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graph.terminal import cassette_commands, model_commands, options as opt, process_end, run_commands, usage_command
from graph.terminal.exit_codes import ExitCode, exit_code_table
from graph.terminal.plain_text import one_line
from graph.terminal.run_words import KeptRun
from graph.terminal.word_order import TaskGroup

if TYPE_CHECKING:
    from graph.terminal.turns import Setup

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
  mendgraph usage                 what model calls have used, day by day
  mendgraph cassette from-run 3f2a9c01   a test that replays a run, offline
"""
EPILOG = f"\b\nExit codes:\n{exit_code_table()}"

app = typer.Typer(
    cls=TaskGroup,
    help=HELP,
    epilog=EPILOG,
    subcommand_metavar='"TASK" | COMMAND',
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FOR_EVERY_COMMAND = frozenset({"root", "as_json", "debug", "version"})
"""Options that are not those of a new run."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mendgraph {version('mendgraph')}")
        raise typer.Exit


@app.callback()
def options(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    context: typer.Context,
    root: opt.Root = Path(),
    mode: opt.Mode = None,
    model: opt.Model = None,
    base_url: opt.BaseUrl = None,
    protocol: opt.Protocol = None,
    max_calls: opt.MaxCalls = None,
    max_steps: opt.MaxSteps = None,
    max_seconds: opt.MaxSeconds = None,
    max_cost_usd: opt.MaxCostUsd = None,
    max_cost_usd_per_day: opt.MaxCostUsdPerDay = None,
    max_tokens_per_day: opt.MaxTokensPerDay = None,
    wrap_up: opt.WrapUp = None,
    fallback: opt.Fallback = None,
    window_tokens: opt.WindowTokens = None,
    temperature: opt.Temperature = None,
    seed: opt.Seed = None,
    role: opt.Role = None,
    allow_program: opt.AllowProgram = None,
    allow_host: opt.AllowHost = None,
    allow_private_host: opt.AllowPrivateHost = None,
    check: opt.Check = None,
    evidence: opt.Evidence = None,
    durability: opt.Durability = None,
    debug: opt.Debug = False,
    as_json: opt.AsJson = False,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep the options for the command that follows."""
    _check_permissions(root, allow_program or (), allow_host or (), allow_private_host or ())
    _check_fallbacks(model, base_url, fallback or ())
    settings = opt.settings_of(
        max_calls,
        mode=mode,
        model=model,
        base_url=base_url,
        protocol=protocol,
        max_steps=max_steps,
        max_seconds=max_seconds,
        max_cost_usd=max_cost_usd,
        max_cost_usd_per_day=max_cost_usd_per_day,
        max_tokens_per_day=max_tokens_per_day,
        wrap_up=wrap_up,
        fallback_models=tuple(fallback) if fallback else None,
        window_tokens=window_tokens,
        temperature=temperature,
        seed=seed,
        role=role,
        allowed_programs=tuple(allow_program) if allow_program else None,
        allowed_hosts=tuple(allow_host) if allow_host else None,
        allowed_private_hosts=tuple(allow_private_host) if allow_private_host else None,
        checks=tuple(check) if check else None,
        evidence=evidence,
    )
    given = [each.opts[0] for each in context.command.params if _is_of_new_runs(context, str(each.name))]
    context.obj = opt.Options(root, as_json, debug, settings, durability or "sync", tuple(given))


@app.command()
def run(context: typer.Context, task: opt.Task = None) -> int:
    """Work on one task. The word `run` may be left away."""
    request = _task_of(context, task or [])
    _check_folder(context)

    def work(setup: "Setup") -> int:
        from graph.terminal.turns import run_once

        return run_once(setup, request)

    return _start(context.obj, work, attended=task != ["-"])


@app.command()
def chat(context: typer.Context, run: opt.RunToTalkOf = None) -> int:
    """Talk with the agent, turn by turn, until the input ends.

    A line that is only /usage shows what the session has used.
    """
    _check_folder(context)

    def work(setup: "Setup") -> int:
        from graph.terminal.chat import chat as talk

        return talk(setup)

    if run is None:
        return _start(context.obj, work, attended=True)
    return _take_up(context.obj, run, work)


@app.command()
def resume(context: typer.Context, run: opt.RunToResume = "") -> int:
    """Go on with a run that was cut off or stopped.

    It goes on with the options that it was begun with. A run that has finished says so.
    """
    chosen = run_commands.options_without_a_task(context)

    def work(setup: "Setup") -> int:
        from graph.terminal.turns import resume_once

        return resume_once(setup)

    return _take_up(chosen, run, work, even_finished=chosen.as_json)


app.add_typer(run_commands.app, name="runs")
app.command()(run_commands.undo)
app.command()(run_commands.fork)
app.command()(usage_command.usage)
app.add_typer(cassette_commands.app, name="cassette")
app.add_typer(model_commands.app, name="model")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. `arguments` default to those of the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    process_end.make_streams_writable()
    try:
        code = int(app(given or ["--help"], prog_name="mendgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
    except typer.TyperException as error:
        return process_end.fail(given, ExitCode.USAGE_ERROR, f"{process_end.tidy(error)}; see `mendgraph --help`")
    except (BrokenPipeError, SystemExit):  # typer turns the first into the second
        return process_end.close_output()
    except OSError as error:
        return process_end.close_output(f"cannot read or write ({error.strerror or type(error).__name__})")
    except Exception as error:  # noqa: BLE001 - no traceback for a user; a bug is one line that asks for a report
        return process_end.report_bug(given, error)
    if code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} and arguments is None:
        process_end.leave_at_once(code)
    return code if given else ExitCode.USAGE_ERROR


def _start(chosen: opt.Options, work: "Callable[[Setup], int]", *, attended: bool) -> int:
    try:
        return work(_setup(chosen, attended=attended))
    except KeyboardInterrupt as signal:  # while libraries are loaded, or for the second time
        terminated = type(signal) is not KeyboardInterrupt
        sys.stderr.write(f"mendgraph: stopped by {'SIGTERM' if terminated else 'Ctrl-C'}\n")
        return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED


def _take_up(chosen: opt.Options, run: str, work: "Callable[[Setup], int]", *, even_finished: bool = True) -> int:
    """Work on a run that is known, with its own context; options that are given take the place of what is in it."""
    from graph.runs import RunState, get_run
    from nodes.records import ToolError

    found = get_run(run, str(chosen.root))
    if isinstance(found, ToolError):
        return run_commands.refused(chosen, found)
    if found.standing is RunState.FINISHED and not even_finished:
        done = KeptRun(found.run_id, can_go_on=False, root=str(chosen.root))
        sys.stderr.write(f"mendgraph: {one_line(done.when_finished(), 1_000)}\n")
        return ExitCode.FINISHED
    own = found.context.model_dump()
    taken_up = replace(
        chosen,
        settings={**own, **chosen.settings},
        durability=chosen.durability if "--durability" in chosen.given else found.durability,
        run_id=found.run_id,
    )
    return _start(taken_up, work, attended=True)


def _setup(chosen: opt.Options, *, attended: bool) -> "Setup":
    from rich.console import Console

    from graph.context import AgentContext
    from graph.terminal.screen import Display, Screen
    from graph.terminal.turns import Setup

    return Setup(
        context=AgentContext(**{"workspace": str(chosen.root), **chosen.settings}),
        display=Display(Screen(Console()), Screen(Console(stderr=True)), chosen.as_json, chosen.debug),
        next_line=input,
        find_log=_find_log,
        find_run=partial(_find_run, chosen.root),
        ask=_ask if attended and not chosen.as_json and sys.stdin.isatty() else None,
        environment=os.environ,
        session_options={"durability": chosen.durability, "thread_id": chosen.run_id, **_session_options()},
    )


def _session_options() -> Mapping[str, Any]:
    """Further arguments of `Session`: the seam at which tests put a model of their own."""
    return {}


def _is_of_new_runs(context: typer.Context, name: str) -> bool:
    """Whether this option was given, and says how a run is to be."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and name not in _FOR_EVERY_COMMAND


def _find_log(thread_id: str) -> str | None:
    """The path of this thread's log, if one was written."""
    from nodes.execute_tools.environment.audit_log import FILE_NAME
    from nodes.execute_tools.environment.run_folder import run_folder_path

    path = os.path.join(run_folder_path(thread_id), FILE_NAME)
    return path if os.path.isfile(path) else None


def _find_run(root: Path, thread_id: str) -> KeptRun | None:
    """The run, if it was written down."""
    from graph.runs import get_run
    from nodes.records import ToolError

    found = get_run(thread_id, str(root))
    return None if isinstance(found, ToolError) else KeptRun(found.run_id, found.resumable, str(root))


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


def _check_permissions(root: Path, programs: Sequence[str], hosts: Sequence[str], private: Sequence[str]) -> None:
    """Refuse what could never be allowed. A path with spaces is a program where there is such a file."""
    for entry in programs:
        problem = opt.program_problem(entry)
        if problem and not ("/" in entry and os.path.isfile(root / entry)):
            raise typer.BadParameter(problem, param_hint="'--allow-program'")
    unreachable = opt.unreachable_host(private, hosts) if private else None
    if unreachable:
        problem = f"{unreachable!r} is not allowed yet: name it with --allow-host as well"
        raise typer.BadParameter(problem, param_hint="'--allow-private-host'")


def _check_fallbacks(model: str | None, base_url: str | None, fallbacks: Sequence[str]) -> None:
    problem = opt.fallback_problem(model, base_url, fallbacks) if fallbacks else None
    if problem:
        raise typer.BadParameter(problem, param_hint="'--fallback'")
