"""The command `mendgraph`: parsing, exit codes and one line for each error; it decides nothing else.

What a run needs is imported when a run starts, so that `--help`, `model status` and errors of usage answer at once.
"""

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mendgraph.graph.mcp.commands import mcp_app
from mendgraph.graph.runs.run_words import chat_command
from mendgraph.graph.terminal import batch_command, options as opt, process_end, run_commands, setup_commands
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, by_whom, unwrap
from mendgraph.nodes.language.display import one_line, short_id
from mendgraph.nodes.language.installation import how_to_add

if TYPE_CHECKING:
    from mendgraph.graph.terminal.turns import Setup

HELP = """A coding agent that works in the current folder, within a budget.

Without an API key it uses the embedded model (download it once with `mendgraph model pull`).

\b
  mendgraph "Fix add in calc.py"  work on a task
  mendgraph                       open a chat
  mendgraph -c                    continue the last chat
  mendgraph run --help            show all options
"""

app = opt.CommandGroup(
    cls=opt.TaskGroup,
    help=HELP,
    subcommand_metavar='"TASK" | COMMAND',
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FOR_EVERY_COMMAND = frozenset({"root", "as_json", "json_lines", "debug", "version", "workspace_config"})
"""Options that are not for a run alone."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mendgraph {version('mendgraph')}")
        raise typer.Exit


@app.callback()
@opt.takes_settings
def options(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    context: typer.Context,
    root: opt.Root = Path(),
    workspace_config: opt.WorkspaceConfig = True,
    continue_last: opt.ContinueLast = False,
    debug: opt.Debug = False,
    as_json: opt.AsJson = False,
    json_lines: opt.JsonLines = False,
    unattended: opt.Unattended = False,
    commit: opt.Commit = False,
    pr_body: opt.PrBody = "",
    image: opt.Images = None,
    durability: opt.Durability = None,
    version: Annotated[  # noqa: ARG001 - its callback ends the process
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    **settings: Any,
) -> None:
    """Store the options for the command that follows."""
    if as_json and json_lines:
        context.fail(
            "--json and --json-lines exclude each other: choose one object at the end, or a line for each event"
        )

    if (commit or pr_body) and not unattended:
        context.fail("--commit and --pr-body need --unattended")

    if unattended and context.invoked_subcommand != "run":
        context.fail("--unattended is for a task")

    if image and context.invoked_subcommand != "run":
        context.fail("--image is for a task; in a chat, name the file in a message: @picture.png")

    if pr_body == "-" and (as_json or json_lines):
        context.fail("--pr-body - and --json both write to standard output: name a file for one of them")

    report = pr_body
    if pr_body not in {"", "-"}:
        report = os.path.abspath(pr_body)
        if os.path.isdir(report) or not os.path.isdir(os.path.dirname(report)):
            context.fail(f"--pr-body {pr_body!r}: name a file in an existing folder")

    unattended_request = None
    if unattended:
        unattended_request = {"commit": commit, "report": report}

    context.obj = opt.Options(
        root,
        as_json or json_lines,
        debug,
        opt.settings_of(settings),
        durability or "sync",
        _run_options(context),
        json_lines=json_lines,
        workspace_file=workspace_config,
        unattended=unattended_request,
        images=tuple(image or ()),
        continue_last=continue_last and _may_continue(context, unattended=unattended),
    )


def _may_continue(context: typer.Context, *, unattended: bool) -> bool:
    if unattended or context.invoked_subcommand not in {"run", "chat"}:
        context.fail("--continue is for a task or a chat in this folder")

    return True


def _run_options(context: typer.Context) -> tuple[str, ...]:
    """Return the names of the given options that only a run has."""
    names = []
    for param in context.command.params:
        source = context.get_parameter_source(str(param.name))
        if param.name not in _FOR_EVERY_COMMAND and source is not None and source.name == "COMMANDLINE":
            names.append(param.opts[0])

    return tuple(names)


@app.command(cls=opt.TaskCommand)
def run(context: typer.Context, task: opt.Task = None) -> int:
    """Work on one task. The word `run` may be omitted."""
    request = _task_of(context, task or [])
    attended = task != ["-"]
    chosen: opt.Options = context.obj
    if not chosen.continue_last:
        setup_commands.configure(context)

    _check_folder(context)

    def work(setup: "Setup") -> int:
        from mendgraph.graph.runs.command_files import request_of
        from mendgraph.graph.runs.images import Image, images_in
        from mendgraph.graph.terminal.turns import run_once

        text = request
        images: list[Image] = [*chosen.images]
        if attended:
            root = os.path.realpath(chosen.root)
            called = unwrap(request_of(request, root, setup.context.denied_paths, setup.prompts))
            if called.words:
                setup.display.err.line(f"mendgraph: {called.words}")

            text = called.request
            images += (*images_in(request, root), *called.images)

        return run_once(setup, text, images)

    chosen = context.obj
    if chosen.continue_last:
        return _take_up(chosen, run_commands.run_or_newest("", chosen), work)

    return _start(chosen, work, attended=attended, task=request)


@app.command()
def chat(context: typer.Context, run: opt.RunToChatWith = None) -> int:
    """Open a chat.

    A line that begins with / is a chat command: /help lists them.
    """
    chosen: opt.Options = context.obj
    if run and chosen.continue_last:
        context.fail("--run and --continue exclude each other")

    if chosen.continue_last:
        run = run_commands.run_or_newest("", chosen)

    if run is None:
        setup_commands.configure(context)

    _check_folder(context)

    def work(setup: "Setup") -> int:
        from mendgraph.graph.terminal.chat import chat as start_chat, prompt_for

        return start_chat(setup, prompt_for(setup, sys.stdin, sys.stdout))

    if run is None:
        return _start(context.obj, work, attended=True)

    return _take_up(context.obj, run, work)


@app.command()
def resume(context: typer.Context, run: opt.RunToResume = "") -> int:
    """Continue a run that was interrupted or stopped.

    The run keeps its options. If you pass options, such as a higher limit or another model, they replace the earlier
    ones, and the task continues in a new turn; `mendgraph run --help` lists them. USER/THREAD names a run of a server
    that died.
    """
    chosen: opt.Options = context.obj

    def work(setup: "Setup") -> int:
        from mendgraph.graph.terminal.turns import resume_once

        return resume_once(setup, anew=bool({*chosen.run_options} - {"--durability"}))

    if "/" in run:
        return _resume_served(chosen, run, work)

    return _take_up(chosen, run_commands.run_to_resume(run, chosen), work, even_finished=chosen.as_json)


app.add_typer(run_commands.app, name="runs")
app.command()(run_commands.undo)
app.command()(run_commands.diff)
app.command()(run_commands.apply)
app.command()(run_commands.fork)
app.command()(run_commands.replay)
app.command()(run_commands.report)
app.command()(setup_commands.usage)
app.command()(batch_command.batch)
app.command()(setup_commands.doctor)
app.add_typer(setup_commands.config_app, name="config")
app.add_typer(setup_commands.permissions_app, name="permissions")
app.add_typer(mcp_app, name="mcp")
app.add_typer(run_commands.memories, name="memory")
app.add_typer(run_commands.cassettes, name="cassette")
app.add_typer(setup_commands.model_app, name="model")


@app.command()
def serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen on; 0.0.0.0 listens on all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65_535, help="Port to listen on.")] = 2026,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Print a new token, and its line for the tenants file.")
    ] = False,
) -> int:
    """Serve the agent to several users over the Agent Protocol.

    MENDGRAPH_TENANTS names the file with the users, MENDGRAPH_STORE_URL the PostgreSQL database. Several servers can
    share both, on one machine or on machines that see the same folders.
    """
    opt.options_without_a_task(context)

    if new_token:
        import secrets

        from mendgraph.graph.fleet.serving.tenants import token_hash

        token = f"mg_{secrets.token_urlsafe(32)}"
        typer.echo(f"token, only for the user:   {token}")
        typer.echo(f'line for the tenants file:   token_sha256 = ["{token_hash(token)}"]')

        return 0

    if any(find_spec(name) is None for name in ("aegra_api", "greenlet", "psycopg")):
        raise RefusedError(ExitCode.USAGE_ERROR, f"`mendgraph serve` needs {how_to_add('serve')}")

    from mendgraph.graph.fleet.serving.admission import CannotServeError
    from mendgraph.graph.fleet.serving.engine import run_server

    try:
        return run_server(host, port)
    except CannotServeError as error:
        raise RefusedError(ExitCode.USAGE_ERROR, str(error)) from None


@app.command()
def acp(context: typer.Context) -> int:
    """Serve an editor over the Agent Client Protocol.

    Zed, the JetBrains IDEs, Neovim and others support it. The editor starts this command and names the folder. Options
    of a run, such as --model, apply to all its sessions.
    """
    chosen = opt.options_without_events(context)
    if find_spec("acp") is None:
        raise RefusedError(ExitCode.SYSTEM_ERROR, f"`mendgraph acp` needs {how_to_add('acp')}")

    if not all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in (os.fstat(0).st_mode, os.fstat(1).st_mode)):
        message = "an editor starts `mendgraph acp` over pipes: docs/editor.md says how to set it up"
        raise RefusedError(ExitCode.USAGE_ERROR, message)

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.editor.agent import EditorAgent, serve_editor

    def context_for(root: str) -> AgentContext:
        return AgentContext(**{"questions": True, **setup_commands.settings_for(chosen, root)[1], "workspace": root})

    def with_hooks(session: AgentContext, tell: Callable[[str], None]) -> AgentContext:
        settings = setup_commands.settings_for(chosen, session.workspace)[1]
        return setup_commands.with_hooks(replace(chosen, settings=settings), session, tell)

    servers_for = partial(setup_commands.servers_for, chosen)
    return serve_editor(EditorAgent(context_for, chosen.settings, chosen.durability, servers_for, with_hooks))


@app.command()
def schema(
    form: Annotated[Literal["json", "json-lines"], typer.Argument(metavar="FORM", help="json or json-lines.")] = "json",
) -> int:
    """Print the JSON Schema of --json or --json-lines."""
    import json

    from mendgraph.graph.terminal.json_output import line_schema, object_schema

    json_schema = object_schema()
    if form == "json-lines":
        json_schema = line_schema()

    typer.echo(json.dumps(json_schema, indent=2, sort_keys=True))
    return ExitCode.FINISHED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. `arguments` default to those of the process."""
    process_end.make_streams_writable()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    words = argv
    if not argv and opt.at_terminal():
        words = ["chat"]

    code = _run(words or ["--help"])

    if code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} and arguments is None:
        process_end.leave_at_once(code)
    if not words:
        return ExitCode.USAGE_ERROR

    return code


def _run(words: Sequence[str]) -> int:
    try:
        code = int(app(words, prog_name="mendgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
    except RefusedError as refusal:
        return process_end.fail(words, refusal)
    except typer.TyperException as error:
        return process_end.fail(words, RefusedError(ExitCode.USAGE_ERROR, opt.usage_problem(error)))
    except (BrokenPipeError, SystemExit):  # typer turns the first into the second
        return process_end.close_output()
    except OSError as error:
        return process_end.close_output(f"cannot read or write ({error.strerror or type(error).__name__})")
    except Exception as error:  # noqa: BLE001 - no traceback for a user; a bug is one line that asks for a report
        return process_end.fail(words, process_end.bug(error, debug="--debug" in words))

    return code


def _start(chosen: opt.Options, work: "Callable[[Setup], int]", *, attended: bool, task: str = "") -> int:
    try:
        if chosen.unattended is not None:
            setup = _unattended_setup(chosen, task)
        else:
            setup = _setup(chosen, attended=attended)

        return _with_servers(chosen, setup, work)
    except KeyboardInterrupt as signal:  # while libraries are loaded, or for the second time
        if type(signal) is not KeyboardInterrupt:
            raise RefusedError(ExitCode.TERMINATED, f"stopped {by_whom('SIGTERM')}") from None

        if sys.stderr.isatty():
            sys.stderr.write("\n")  # the terminal has echoed ^C

        raise RefusedError(ExitCode.INTERRUPTED, f"stopped {by_whom('Ctrl-C')}") from None


def _with_servers(chosen: opt.Options, setup: "Setup", work: "Callable[[Setup], int]") -> int:
    """Work with the tools of the MCP servers of the settings, which run until the work ends."""
    root = setup.context.workspace
    read = setup_commands.servers_for(chosen, root)

    def tell(message: str) -> None:
        setup.display.err.line(f"mendgraph: {one_line(message, 1_000)}")

    for note in read.notes:
        tell(note)

    setup = replace(setup, context=setup_commands.with_hooks(chosen, setup.context, tell))
    if not read.servers:
        return work(setup)

    from mendgraph.graph.configuration.mcp_servers import secret_values
    from mendgraph.graph.runs.configured_servers import running_servers, usable_tools
    from mendgraph.graph.runs.server_prompts import ServerPrompts
    from mendgraph.nodes.execute_tools.tools import default_tools

    with running_servers(read.servers, root, tell) as (running, opened):
        tools = usable_tools(opened, asks=setup.context.mode == "ask", tell=tell)
        options = {**setup.session_options, "tools": (*default_tools(), *unwrap(tools))}
        options["secrets"] = secret_values(read.servers.values(), setup.environment)
        return work(replace(setup, session_options=options, prompts=ServerPrompts(running, opened)))


def _take_up(chosen: opt.Options, run: str, work: "Callable[[Setup], int]", *, even_finished: bool = True) -> int:
    """Work on a stored run with its own context; options of this command replace what the context holds."""
    from mendgraph.graph.fleet.unattended import find_unattended
    from mendgraph.graph.runs.runs import RunState, get_run

    root = run_commands.find_folder(run, str(chosen.root))
    chosen = replace(chosen, root=Path(root))
    unattended = find_unattended(root)
    if unattended is not None:
        run = run or unattended.run_prefix

    record = unwrap(get_run(run, root))
    is_over = record.standing is RunState.FINISHED and unattended is None  # an unattended run also commits
    carries_out = record.context.mode == "plan" and chosen.settings.get("mode") in {"ask", "auto"}
    if is_over and not (even_finished or carries_out):
        message = f"run {short_id(record.run_id)} has finished; send it another request with: "
        sys.stderr.write(f"mendgraph: {one_line(message + chat_command(record.run_id, root), 1_000)}\n")
        return ExitCode.FINISHED

    stored = record.context.model_dump()
    settings_now = setup_commands.settings_for(chosen, root)[1]
    stored["questions"] = settings_now.get("questions", True)  # the stored value also says whether anybody could answer
    stored["hooks"] = settings_now.get("hooks", "sandbox")  # and this one, whether there were trusted hooks
    settings = {**opt.merged(stored, chosen.settings), "workspace": root}
    resumed = replace(chosen, settings=settings, run_id=record.run_id)
    if "--durability" not in chosen.run_options:
        resumed = replace(resumed, durability=record.durability)

    return _start(resumed, work, attended=True)


def _resume_served(chosen: opt.Options, run: str, work: "Callable[[Setup], int]") -> int:
    """Continue a turn of `user/thread` whose server died, in the project's folder and with its own context."""
    from mendgraph.graph.fleet.serving.engine_threads import EngineSaver
    from mendgraph.graph.machine.serializer import own_saver
    from mendgraph.nodes.workspace.store.database import postgres_url
    from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, workspace_folder

    url = postgres_url()
    user, _, thread = run.partition("/")
    if url is None or {*chosen.run_options} - {"--durability"}:
        message = "a run of a server is resumed in its database (MENDGRAPH_STORE_URL), and with no other options"
        raise RefusedError(ExitCode.USAGE_ERROR, message)

    with EngineSaver.from_conn_string(url.url) as engine_saver:
        saver = own_saver(engine_saver)
        newest = saver.get_tuple({"configurable": {"thread_id": thread}})
        values = newest.checkpoint["channel_values"] if newest else {}
        root = os.path.realpath(chosen.root)

        if values.get("run_id") != run or values.get("outcome") or values["context"].workspace != root:
            message = "no turn of this thread was interrupted in this folder: send a request to a server"
            raise RefusedError(ExitCode.USAGE_ERROR, message)

        problem = give_workspace_name(unwrap(workspace_folder(root)), f"{user}/{os.path.basename(root)}")
        if problem is not None:
            unwrap(problem)

        def resumed(setup: "Setup") -> int:
            return work(replace(setup, session_options={**setup.session_options, "checkpointer": saver}))

        settings = {**values["context"].model_dump(), "workspace": root}
        return _start(replace(chosen, run_id=thread, settings=settings), resumed, attended=True)


def _unattended_setup(chosen: opt.Options, task: str) -> "Setup":
    """Create the worktree of an unattended run, and return its setup."""
    from uuid import uuid4

    from mendgraph.graph.fleet.unattended import begin_unattended, cost_limit

    run_id = uuid4().hex
    place = unwrap(begin_unattended(str(chosen.root), task, run_id, **chosen.unattended or {}))
    setup_commands.trust_worktree(chosen, place)
    settings = {**cost_limit(chosen.settings), **chosen.settings}
    settings["readable_folders"] = (*settings.get("readable_folders", ()), *place.installed_folders)
    setup = _setup(replace(chosen, root=Path(place.root), run_id=run_id, settings=settings), attended=False)

    for line in place.start_messages(str(chosen.root)):
        setup.display.err.line(f"mendgraph: {one_line(line, 1_000)}")

    return replace(setup, unattended=place)


def _setup(chosen: opt.Options, *, attended: bool) -> "Setup":
    from rich.console import Console

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.terminal.approval import read_key
    from mendgraph.graph.terminal.output import Screen
    from mendgraph.graph.terminal.screen import Display
    from mendgraph.graph.terminal.status_line import StatusLine, is_live
    from mendgraph.graph.terminal.turns import Setup
    from mendgraph.nodes.call_model.local_model import local_server_is_starting
    from mendgraph.nodes.workspace.files.deadline import monotonic_s

    report_on_stdout = (chosen.unattended or {}).get("report") == "-"
    out = Console(stderr=report_on_stdout)
    err = Console(stderr=True)
    ask = None
    if attended and not chosen.as_json and sys.stdin.isatty():
        ask = _ask

    settings = {"workspace": str(chosen.root), "questions": True, **chosen.settings}
    settings["questions"] = settings["questions"] and ask is not None
    context = AgentContext(**settings)

    live = None
    if is_live(out) and not chosen.as_json and (is_live(err) or not err.file.isatty()):
        live = StatusLine(out, context.limits(), local_server_is_starting, monotonic_s)

    piped = not (sys.stdout.isatty() or chosen.as_json or report_on_stdout)
    screens = Screen(out), Screen(err)
    if live is not None:
        screens = Screen(out, live.write), Screen(err, live.write if is_live(err) else None)

    return Setup(
        context=context,
        display=Display(*screens, chosen.as_json, chosen.debug, chosen.json_lines, live, piped),
        next_line=input,
        ask=ask,
        ask_key=read_key,
        terminal=sys.stdin.fileno() if ask is not None and live is not None else None,
        environment=os.environ,
        session_options={
            "durability": chosen.durability,
            "thread_id": chosen.run_id,
            "kept_permissions": True,
            **_session_options(),
        },
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
    if not words:
        context.fail('there is no task: type mendgraph "what to do"')
    if len(words) > 1 and not words[0].startswith("/"):
        context.fail('put the task in quotes: mendgraph "what to do"')

    task = " ".join(words)
    try:
        if task == "-":
            task = sys.stdin.read()

        task = os.fsencode(task).decode()
    except UnicodeError:
        context.fail("the task is not valid UTF-8 text")

    if not task.strip():
        context.fail("the task is empty")

    return task


def _check_folder(context: typer.Context) -> None:
    """Refuse a run that may edit in a folder without write permission, before it spends anything."""
    chosen: opt.Options = context.obj
    if chosen.settings.get("mode") not in {"read-only", "plan"} and not os.access(chosen.root, os.W_OK | os.X_OK):
        context.fail(f"cannot write in the folder {str(chosen.root)!r}: use --mode read-only to only look at it")
