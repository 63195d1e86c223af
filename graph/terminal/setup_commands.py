"""`mendgraph config`, `permissions`, `doctor`, `model` and `usage`: settings, this machine, and spending."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.answers import LONGEST_LINE, Line, answer, table
from mendgraph.graph.terminal.options import options_without_a_task, options_without_events
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, unwrap, unwrap_settings
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.weights import WeightsState, weights_path, weights_status
from mendgraph.nodes.language.display import count_of, one_line, plain, usd
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from rich.console import Console

    from mendgraph.graph.configuration.loading import Configuration
    from mendgraph.graph.spending.store import ModelDay
    from mendgraph.graph.terminal.doctor import Finding

config_app = typer.Typer(help="Show settings and who set them, or `trust` this folder's.", rich_markup_mode=None)
permissions_app = typer.Typer(help="List what you have allowed for good, or `remove` it.", rich_markup_mode=None)
model_app = typer.Typer(help="The embedded local model.", rich_markup_mode=None)


# --- config


def configure(context: typer.Context) -> "Configuration":
    """Add the settings of files below those of the command line; RefusedError names all problems of a file."""
    read, settings = settings_for(context.obj, str(context.obj.root))
    context.obj = replace(context.obj, settings=settings)
    return read


def settings_for(chosen: opt.Options, root: str) -> "tuple[Configuration, dict[str, Any]]":
    """The configuration of files for the folder `root`, and the settings of a run: options over files over defaults."""
    from mendgraph.graph.configuration.context import HOSTED, UNATTENDED
    from mendgraph.graph.configuration.loading import load_configuration

    def load(defaults: Mapping[str, Any]) -> "Configuration":
        return unwrap_settings(load_configuration(root, workspace_file=chosen.workspace_file, defaults=defaults))

    defaults: Mapping[str, Any] = {}
    if chosen.unattended is not None:
        defaults = UNATTENDED

    read = load(defaults)
    if not defaults and _is_hosted(opt.merged(read.values, chosen.settings)):
        defaults = HOSTED
        read = load(defaults)  # a workspace's file may set what is below these limits

    below = {**defaults, **read.values}
    if chosen.unattended is not None:  # without a person to ask
        below["mode"] = UNATTENDED["mode"]

    return read, opt.merged(below, chosen.settings)


def _is_hosted(settings: Mapping[str, Any]) -> bool:
    """Whether the model is another one than the embedded one."""
    endpoint = find_endpoint(settings.get("model"), settings.get("base_url"), os.environ)
    return isinstance(endpoint, Endpoint) and not endpoint.embedded


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context) -> int:
    """Show all settings of a run here, and who set them. Every problem of a file is named with its line and field."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import CALLER, DEFAULT, Origin
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    chosen = options_without_events(context)
    read = configure(context)
    values = AgentContext(**{"workspace": str(chosen.root), **context.obj.settings}).model_dump(mode="json")
    for name, origin in read.origins.items():
        variable = os.environ.get(origin.name)
        if variable is not None:
            values[name] = Redactor().text(variable)  # an address without its login

    from_caller = dict.fromkeys(["workspace", *chosen.settings], Origin(CALLER))
    origins = {**dict.fromkeys(values, Origin(DEFAULT)), **read.origins, **from_caller}
    settings = {}
    cells = []
    styles = []

    for name, value in values.items():
        origin = origins[name]
        settings[name] = {"value": value, "origin": origin.name, "line": origin.line}
        cells.append((name, _as_toml(value), plain(str(origin))))
        if origin == Origin(DEFAULT):
            styles.append("dim")
        else:
            styles.append("")

    lines = [Line(row.rstrip(), style) for row, style in zip(table(cells), styles, strict=True)]
    files = ", ".join(read.files) or "none is there"
    lines.append(Line(one_line(f"Files that were read: {files}."), "dim"))

    return answer({"settings": settings, "files": list(read.files)}, lines, as_json=chosen.as_json)


@config_app.command()
def trust(context: typer.Context, forget: opt.Forget = False) -> int:
    """Trust the .mendgraph.toml of this folder.

    It may then allow more than you do, so read it first. A file that is changed later has to be trusted again.
    """
    from mendgraph.graph.configuration.loading import Settings, read_workspace_settings
    from mendgraph.nodes.execute_tools.store import user_files

    chosen = options_without_events(context)

    workspace_settings = Settings()
    if not forget:
        workspace_settings = unwrap_settings(read_workspace_settings(str(chosen.root)))

    if not workspace_settings.file and not forget:
        message = f"There is no {user_files.SETTINGS_FILE} in this folder to trust."
        unwrap(ToolError(code=ToolErrorCode.NOT_FOUND, message=message))

    sha256 = ""
    if workspace_settings.file:
        sha256 = workspace_settings.sha256

    unwrap(user_files.trust(str(chosen.root), sha256))
    lines = [Line(f"trusted {workspace_settings.file} as it is now; it sets")]
    for name, value in workspace_settings.values.items():
        lines.append(Line(one_line(f"  {name} = {_as_toml(value)}", LONGEST_LINE)))

    if forget:
        lines = [Line(f"{user_files.SETTINGS_FILE} of this folder is not trusted any more")]

    return answer({"trusted": bool(sha256), "sha256": sha256}, lines, as_json=chosen.as_json)


def _as_toml(value: Any) -> str:
    if value is None:
        return "-"

    return one_line(json.dumps(value, ensure_ascii=False), 60)


# --- doctor

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "off": "dim"}
_LONGEST = 600

Offline = Annotated[bool, typer.Option("--offline", help="Ask no endpoint.")]


def doctor(context: typer.Context, offline: Offline = False) -> int:
    """Check this machine, and say what to do.

    It looks at model, sandbox, store, programs and settings; exit code 1 where there is a problem.

    Options of a run, such as --model, are honoured. Nothing is written.
    """
    from mendgraph.graph.terminal.doctor import examine, report

    chosen = options_without_events(context)
    root = str(chosen.root)
    findings = examine(root, chosen.settings, offline=offline, workspace_file=chosen.workspace_file)
    report_map = report(findings)
    answer(report_map, finding_lines(findings), as_json=chosen.as_json)

    if report_map["ok"]:
        return ExitCode.FINISHED

    return ExitCode.FINDINGS


def finding_lines(findings: "Sequence[Finding]") -> Iterator[Line]:
    """A line for each finding, and one for what to do about it."""
    from mendgraph.graph.terminal.doctor import summary

    width = max((len(finding.name) for finding in findings), default=0)

    for finding in findings:
        head = f"{finding.status.value:<8} {finding.name:<{width}}  "
        yield Line(head + one_line(finding.found, _LONGEST), _STYLES[finding.status.value])
        if finding.remedy:
            yield Line(" " * len(head) + f"-> {one_line(finding.remedy, _LONGEST)}")

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
        if pulled.interrupted:
            code = ExitCode.INTERRUPTED
        else:
            code = ExitCode.SYSTEM_ERROR

        raise RefusedError(code, plain(pulled.message))

    if pulled.source == "cache":
        how = "was already there"
    else:
        how = "is in place and verified"

    line = Line(f"the model {how}: {pulled.path} ({_gigabytes(pulled.size_bytes)})")
    return answer(asdict(pulled), [line], as_json=chosen.as_json)


@model_app.command()
def status(context: typer.Context) -> int:
    """Say whether the embedded model can be used; exit code 0 if it can."""
    chosen = options_without_events(context)
    with shown_pull() as progress:
        weights = weights_status(progress=progress)

    has_server = find_spec("xllamacpp") is not None
    usable = has_server and weights.state is WeightsState.READY
    size = f"{_gigabytes(weights.bytes_present)} of {_gigabytes(weights.bytes_expected)}"

    if weights.state is WeightsState.READY:
        remedy = ""
    else:
        remedy = ": run `mendgraph model pull`"

    if has_server:
        extra = "installed"
    else:
        extra = f"not installed; it is {how_to_add('local')}"

    lines = (f"weights: {weights.state.value} ({size}){remedy}", f"file: {weights.path}", f'extra "local": {extra}')
    value = {**asdict(weights), "extra_installed": has_server, "usable": usable}
    answer(value, map(Line, lines), as_json=chosen.as_json)

    if usable:
        return ExitCode.FINISHED

    return ExitCode.SYSTEM_ERROR


@model_app.command()
def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="Port on 127.0.0.1 (0: a free one).")] = 0,
) -> int:
    """Serve the embedded model on this machine until Ctrl-C."""
    from mendgraph.nodes.call_model.local_model import start_local_server, why_unavailable
    from mendgraph.nodes.records import ProviderFailure

    chosen = options_without_events(context)
    server = why_unavailable() or start_local_server(weights_path(), port=port)
    if isinstance(server, ProviderFailure):
        raise RefusedError(ExitCode.SYSTEM_ERROR, plain(server.message))

    message = f"serving {server.model} on {server.base_url} until Ctrl-C; use it with OPENAI_BASE_URL={server.base_url}"
    try:
        answer(
            {"base_url": server.base_url, "model": server.model},
            [Line(f"{message} and --model {server.model}")],
            as_json=chosen.as_json,
        )
        raise RefusedError(ExitCode.SYSTEM_ERROR, f"the model server ended by itself (exit code {server.wait()})")
    except KeyboardInterrupt:
        return ExitCode.FINISHED
    finally:
        server.stop()


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


@permissions_app.callback(invoke_without_command=True)
def permissions(context: typer.Context) -> int:
    """List what you have allowed for good, in all folders: the answer "always" of mode ask."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    from mendgraph.graph.configuration.permissions import list_permissions

    chosen = options_without_a_task(context)
    rows = [("ID", "FOLDER", "ALLOWED")]
    value = []
    for permission in unwrap(list_permissions()):
        rows.append((permission.id, plain(permission.place), permission.allows))
        value.append({"id": permission.id, **permission.model_dump(mode="json")})

    head, *others = table(rows)
    lines = [Line(head.rstrip(), "bold"), *(Line(row.rstrip()) for row in others)]
    if not value:
        lines = [Line("Nothing is allowed for good.")]

    return answer(value, lines, as_json=chosen.as_json)


@permissions_app.command()
def remove(context: typer.Context, ids: opt.PermissionIds = None, everything: opt.AllPermissions = False) -> int:
    """Remove permissions; the next run asks again, and so does one that is at work."""
    if bool(ids) == everything:
        context.fail("say what to remove: an ID, as `mendgraph permissions` lists it, or --all")

    from mendgraph.graph.configuration.permissions import list_permissions, remove_permissions

    chosen = options_without_a_task(context)
    all_ids = [permission.id for permission in unwrap(list_permissions())]
    removed = list(ids or all_ids)

    for permission_id in removed:
        if permission_id not in all_ids:
            message = f"There is no permission {permission_id!r}: `mendgraph permissions` lists them."
            unwrap(ToolError(code=ToolErrorCode.NOT_FOUND, message=message))

    unwrap(remove_permissions(removed))
    line = Line(f"removed {count_of(len(removed), 'permission')}")
    return answer({"removed": removed}, [line], as_json=chosen.as_json)


# --- usage


def usage(context: typer.Context, days: opt.Days = 7) -> int:
    """Show what model calls have used, by day (UTC) and model.

    All folders count together, as they do for the limits of days and accounts.
    """
    from mendgraph.graph.spending.store import spent_by_day

    chosen = options_without_a_task(context)
    spent = unwrap(spent_by_day(days))
    return answer([day.model_dump(mode="json") for day in spent], day_lines(spent), as_json=chosen.as_json)


def day_lines(spent: Sequence["ModelDay"]) -> list[Line]:
    """A table with a line for each model of each day."""
    if not spent:
        return [Line("No model was called in this time.")]

    rows = []
    for day in spent:
        model = one_line(day.model) or "(the default)"
        counts = (day.calls, day.input_tokens, day.cached_tokens, day.output_tokens)
        rows.append((str(day.day), model, *map("{:,}".format, counts), _money(day.cost_usd, day.unpriced_calls)))

    head = ("DAY", "MODEL", "CALLS", "IN", "CACHED", "OUT", "COST")
    first, *lines = table([head, *rows], right=range(2, len(head) - 1))
    unsettled = sum(day.unsettled for day in spent)
    counted = f"Not settled: {count_of(unsettled, 'call')}, under way or killed, counted as reserved until resumed."
    table_lines = [Line(first.rstrip(), "bold"), *(Line(line.rstrip()) for line in lines)]
    if unsettled:
        table_lines.append(Line(counted, "dim"))

    return table_lines


def _money(cost_usd: float, unpriced: int) -> str:
    if cost_usd and unpriced:
        return f"{usd(cost_usd)} and {unpriced} without a price"
    if cost_usd:
        return usd(cost_usd)
    if unpriced:
        return "no price known"

    return ""
