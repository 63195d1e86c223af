"""`mendgraph mcp`: the MCP servers of the settings, which `add` and `remove` write into the user's `config.toml`."""

import asyncio
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mendgraph.graph.terminal.options import Command, CommandGroup, Options, options_without_a_task
from mendgraph.graph.terminal.output import Line, answer, table
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, unwrap
from mendgraph.graph.terminal.setup_commands import servers_for
from mendgraph.nodes.language.display import count_of, one_line, plain
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import ToolError, invalid, quoted

if TYPE_CHECKING:
    from mendgraph.graph.runs.configured_servers import OpenedServer

mcp_app = CommandGroup(help="Manage the MCP servers of your runs.")

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The name of the server.", show_default=False)]
ServerCommand: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND ARGS", help="The command that starts the server.", show_default=False),
]
Url: TypeAlias = Annotated[str, typer.Option("--url", metavar="URL", help="The address of a server over HTTP.")]
Pairs: TypeAlias = list[str] | None
Header: TypeAlias = Annotated[
    Pairs, typer.Option("--header", metavar="'NAME: VALUE'", help="Header of each request; ${VARIABLE} is replaced.")
]
Env: TypeAlias = Annotated[
    Pairs, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable; ${VARIABLE} is replaced.")
]
Allow: TypeAlias = Annotated[
    Pairs,
    typer.Option("--allow", metavar="TOOL", help="Tool that runs without approval, in each mode; '*' is all."),
]
Browser: TypeAlias = Annotated[bool, typer.Option(help="Open the browser. The address is always shown.")]
Required: TypeAlias = Annotated[bool, typer.Option("--required", help="Fail the run if the server does not start.")]

Change = Callable[[Any], "ToolError | None"]
"""Changes the servers in a TOML document; an error leaves the file as it is."""


@mcp_app.command("list")
def list_servers(context: typer.Context) -> int:
    """Start the servers of this folder's runs and list their tools."""
    chosen = _options(context)
    root = str(chosen.root.resolve())
    read = servers_for(chosen, root)
    opened: list[OpenedServer] = []

    if read.servers:
        from mendgraph.graph.runs.configured_servers import open_servers
        from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

        with McpServers() as running:
            opened = asyncio.run(open_servers(running, read.servers, root))

    lines = [Line(line.rstrip()) for line in table([("NAME", "STATE", "SERVER"), *map(_row, opened)])]
    if not opened:
        lines = [Line("There is no MCP server: `mendgraph mcp add NAME -- COMMAND` adds one.")]

    lines += [Line(one_line(server.problem, 1_000), "yellow") for server in opened if server.problem]
    lines += [Line(note, "yellow") for note in read.notes]
    value = {"servers": [_as_map(server) for server in opened], "notes": list(read.notes)}
    return answer(value, lines, as_json=chosen.as_json)


def _row(server: "OpenedServer") -> tuple[str, str, str]:
    state = f"{count_of(len(server.tools), 'tool')}, {server.allowed} allowed"
    if server.problem:
        state = "failed"

    return plain(server.name), state, one_line(server.settings.address)


def _as_map(server: "OpenedServer") -> dict[str, Any]:
    names = [tool.name for tool in server.tools]
    return {"name": server.name, "tools": names, "allowed": server.allowed, "problem": server.problem}


class AddCommand(Command):
    """`mcp add`, where options of the server's program have to stand behind `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option before `--` that is none of this command."""
        options = {"--help", "-h", *(name for param in self.params for name in param.opts)}
        for word in args:
            if word == "--":
                break

            if word.startswith("-") and word.partition("=")[0] not in options:
                ctx.fail(
                    f"No such option: {word}. Write `--` before the server's command: `mcp add NAME -- COMMAND ARGS`"
                )

        return super().parse_args(ctx, args)


@mcp_app.command(cls=AddCommand)
def add(
    context: typer.Context,
    name: Name,
    command: ServerCommand = None,
    url: Url = "",
    header: Header = None,
    env: Env = None,
    allow: Allow = None,
    required: Required = False,
) -> int:
    """Add a server to your config.toml.

    Write `mcp add NAME -- COMMAND ARGS...` or `mcp add NAME --url URL`. If the name exists, the server is replaced; it
    keeps `allow` and `required` unless you pass them.
    """
    if bool(command) == bool(url):
        context.fail("give either the server's command (`-- COMMAND ARGS...`) or --url URL")

    program, *args = command or [""]
    settings = {
        "command": program,
        "args": args,
        "env": _pairs(context, "--env", env, "="),
        "url": url,
        "headers": _pairs(context, "--header", header, ":"),
        "allow": allow or [],
        "required": required,
    }
    settings = {field: value for field, value in settings.items() if value}

    def change(document: Any) -> None:
        servers = _table_of(document, name)
        previous = servers.get(name, {})
        permissions = {field: previous[field] for field in ("allow", "required") if field in previous}
        servers[name] = {**permissions, **settings}

    return _write(context, change, f"added {name}; `mendgraph mcp list` tries it", {"added": name})


def _pairs(context: typer.Context, option: str, words: Pairs, separator: str) -> dict[str, str]:
    pairs = {}
    for word in words or ():
        name, mark, value = word.partition(separator)
        if not mark or not name:
            context.fail(f"{option} {word!r}: write it as NAME{separator}VALUE")

        pairs[name.strip()] = value.strip()

    return pairs


@mcp_app.command(no_args_is_help=True)
def remove(context: typer.Context, name: Name) -> int:
    """Remove a server from your config.toml."""

    def change(document: Any) -> ToolError | None:
        servers = _table_of(document, name)
        if servers.pop(name, None) is None:
            return invalid(f"There is no MCP server {quoted(name)} in your config.toml.")

        return None

    return _write(context, change, f"removed {name}", {"removed": name})


@mcp_app.command(no_args_is_help=True)
def login(context: typer.Context, name: Name, browser: Browser = True) -> int:
    """Log in to an HTTP server in your browser. Later runs use and renew the login."""
    chosen = _options(context)

    from mendgraph.graph.configuration.mcp_servers import connection_of
    from mendgraph.graph.mcp.login import log_in, open_in_browser

    server = servers_for(chosen, str(chosen.root.resolve())).servers.get(name)
    if server is None or not server.url:
        message = f"There is no MCP server {quoted(name)} with a url: `mendgraph mcp list` lists them."
        raise RefusedError(ExitCode.USAGE_ERROR, message)

    def open_page(address: str) -> None:
        typer.echo(f"mendgraph: log in at {address}", err=True)
        if browser:
            open_in_browser(address)

    connection = unwrap(connection_of(name, server, os.environ))
    problem = asyncio.run(log_in(connection["url"], server, open_page))
    if problem is not None:
        unwrap(problem)

    return answer({"logged_in": name}, [Line(f"logged in to {name}")], as_json=chosen.as_json)


def _options(context: typer.Context) -> Options:
    if find_spec("tomlkit") is None or find_spec("mcp") is None:
        raise RefusedError(ExitCode.SYSTEM_ERROR, f"`mendgraph mcp` needs {how_to_add('mcp')}")

    return options_without_a_task(context)


def _write(context: typer.Context, change: Change, message: str, value: Mapping[str, Any]) -> int:
    """Change the servers in the user's file, of which all else stays as it is, and say so."""
    chosen = _options(context)

    from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, FILE_NAME
    from mendgraph.nodes.workspace.store.user_files import configuration_file, exchange

    named = os.environ.get(CONFIG_VARIABLE)
    if named == "":
        raise RefusedError(ExitCode.USAGE_ERROR, f"{CONFIG_VARIABLE} is empty, so no settings file is read: unset it")

    path = named or unwrap(configuration_file(FILE_NAME))
    path = os.path.realpath(os.path.expanduser(path))  # a link into a repository of settings stays one
    problem = exchange(path, lambda data: _changed(data, path, change), keep_mode=True)
    if problem is not None:
        unwrap(problem)

    return answer({**value, "file": path}, [Line(f"{message} ({plain(path)})")], as_json=chosen.as_json)


def _changed(data: bytes, path: str, change: Change) -> bytes | ToolError:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from mendgraph.graph.configuration.loading import parse_settings

    mark = BOM_UTF8 if data.startswith(BOM_UTF8) else b""
    line_end = "\r\n" if b"\r\n" in data else "\n"

    try:
        text = data.removeprefix(mark).decode().replace("\r\n", "\n")
        document = tomlkit.parse(text)
        before = parse_settings(text, path)
        if isinstance(before, tuple):
            return invalid("\n".join(map(str, before)))

        problem = change(document)
    except (UnicodeDecodeError, TOMLKitError) as error:
        return invalid(f"Cannot read {quoted(path)}: {error}.")

    if problem is not None:
        return problem

    text = tomlkit.dumps(document)
    after = parse_settings(text, path)
    if isinstance(after, tuple):
        return invalid("\n".join(map(str, after)))

    return mark + text.replace("\n", line_end).encode()


def _table_of(document: Any, name: str) -> Any:
    """Return the table whose server of this name is used; for a new one, the first table, which may be added."""
    import tomlkit

    from mendgraph.graph.configuration.mcp_servers import SERVERS_TABLES

    tables = [key for key in reversed(SERVERS_TABLES) if key in document]
    for key in tables:
        if name in document[key]:
            return document[key]

    key = tables[-1] if tables else SERVERS_TABLES[0]
    return document.setdefault(key, tomlkit.table(is_super_table=True))
