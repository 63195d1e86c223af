"""`mendgraph config`: what a run in this folder is set to and by whom, and whether the folder's own file is trusted."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.process_end import LONGEST_LINE, ExitCode, settings_refused
from mendgraph.graph.terminal.run_commands import options_without_events, refused, tell, tell_object
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.configuration.loading import Origin
    from mendgraph.graph.configuration.settings_file import Problem, Settings

app = typer.Typer(
    help="Show settings and who set them; `check` or `trust` a file.",
    rich_markup_mode=None,
)

_LONGEST_VALUE = 60


def configure(context: typer.Context) -> None:
    """Put what files set below the options that were given; where a file is wrong, say all of it and end here."""
    from mendgraph.graph.configuration.loading import load_configuration

    chosen: opt.Options = context.obj
    found = load_configuration(str(chosen.root), workspace_file=chosen.workspace_file)
    if isinstance(found, tuple):
        raise typer.Exit(settings_refused(chosen, found))
    settings = {**found.values, **chosen.settings}
    if "max_calls_per_turn" in chosen.settings and "max_calls_per_session" in found.values:
        both = chosen.settings["max_calls_per_turn"], found.values["max_calls_per_session"]
        settings["max_calls_per_session"] = max(both)
    context.obj = replace(chosen, settings=settings)


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> int:
    """Show all settings of this folder, as `show` does."""
    return int(ExitCode.FINISHED) if context.invoked_subcommand is not None else show(context)


@app.command()
def show(context: typer.Context) -> int:
    """Show all settings of a run here, and who set them."""
    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import CALLER, DEFAULT, Origin, load_configuration
    from mendgraph.graph.terminal.output_lines import Line

    chosen = options_without_events(context)
    found = load_configuration(str(chosen.root), workspace_file=chosen.workspace_file)
    if isinstance(found, tuple):
        return settings_refused(chosen, found)
    given = dict(chosen.settings)
    configure(context)
    effective = AgentContext(**{"workspace": str(chosen.root), **context.obj.settings}).model_dump(mode="json")
    effective |= {name: _of_environment(each.name) for name, each in found.origins.items() if each.name in os.environ}
    origins = {**found.origins, **dict.fromkeys(["workspace", *given], Origin(CALLER))}
    named = {name: origins.get(name, Origin(DEFAULT)) for name in effective}
    if chosen.as_json:
        return tell_object({"settings": _objects(effective, named), "files": list(found.files)})
    rows = [(name, _shown(value), str(named[name])) for name, value in effective.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        Line(one_line_kept(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}"), "dim" if origin == DEFAULT else "")
        for name, value, origin in rows
    ]
    read = ", ".join(found.files) or "none is there"
    return tell([*lines, Line(one_line(f"Files that were read: {read}."), "dim")])


@app.command()
def check(context: typer.Context, file: opt.SettingsFile = None) -> int:
    """Check your settings and this folder's, or a file.

    Every problem is named with file, line and field.
    """
    from mendgraph.graph.configuration import loading
    from mendgraph.graph.configuration.settings_file import Settings, parse_settings
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.execute_tools.store.user_files import SETTINGS_FILE, read_user_file

    chosen = options_without_events(context)
    found: list[Settings | tuple[Problem, ...]]
    if file is None:
        found = [loading.read_user_settings(os.environ), loading.read_workspace_settings(str(chosen.root))]
    else:
        text = read_user_file(file)
        if isinstance(text, ToolError):
            return refused(chosen, text)
        of_user = os.path.basename(file) != SETTINGS_FILE
        found = [parse_settings(text, loading.shown(file), of_user=of_user)]
    problems = [problem for each in found if isinstance(each, tuple) for problem in each]
    if problems:
        return settings_refused(chosen, problems)
    good = [each for each in found if isinstance(each, Settings) and each.file]
    if chosen.as_json:
        return tell_object({"files": [{"file": each.file, "settings": sorted(each.values)} for each in good]})
    return tell([Line(one_line(_checked(each))) for each in good] or [Line("There is no file of settings.")])


@app.command()
def trust(context: typer.Context, forget: opt.Forget = False) -> int:
    """Trust the .mendgraph.toml of this folder.

    It may then allow more than you do, so read it first. A file that is changed later has to be trusted again.
    """
    from mendgraph.graph.configuration.loading import read_workspace_settings
    from mendgraph.graph.terminal.output_lines import Line
    from mendgraph.nodes.execute_tools.store import user_files

    chosen = options_without_events(context)
    own = read_workspace_settings(str(chosen.root))
    if not forget and isinstance(own, tuple):
        return settings_refused(chosen, own)
    if not forget and not (own and not isinstance(own, tuple) and own.file):
        message = f"There is no {user_files.SETTINGS_FILE} in this folder to trust."
        return refused(chosen, ToolError(code=ToolErrorCode.NOT_FOUND, message=message))
    sha256 = "" if forget or isinstance(own, tuple) else own.sha256
    problem = user_files.trust(str(chosen.root), sha256)
    if problem is not None:
        return refused(chosen, problem)
    if chosen.as_json:
        return tell_object({"trusted": bool(sha256), "sha256": sha256})
    if isinstance(own, tuple) or not sha256:
        return tell([Line(f"{user_files.SETTINGS_FILE} of this folder is not trusted any more")])
    sets = [Line(one_line(f"  {name} = {_shown(value)}", LONGEST_LINE)) for name, value in own.values.items()]
    return tell([Line(f"trusted {own.file} as it is now; it sets"), *sets])


def _of_environment(variable: str) -> str:
    """What a variable says, without a login."""
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    return Redactor().text(os.environ[variable])


def one_line_kept(text: str) -> str:
    """A row of the table on one line; its columns stay."""
    from mendgraph.nodes.language.display import plain

    return plain(text.replace("\n", " ")).rstrip()


def _objects(effective: dict[str, Any], origins: "dict[str, Origin]") -> dict[str, Any]:
    return {
        name: {"value": value, "origin": origins[name].name, "line": origins[name].line}
        for name, value in effective.items()
    }


def _shown(value: Any) -> str:
    """A value as TOML would have it, where it has one."""
    said = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return one_line(said, _LONGEST_VALUE)


def _checked(settings: "Settings") -> str:
    names: Sequence[str] = list(settings.values)
    listed = f" ({', '.join(names)})" if names else ""
    return f"{settings.file} is fine: {len(names)} {'setting' if len(names) == 1 else 'settings'}{listed}"
