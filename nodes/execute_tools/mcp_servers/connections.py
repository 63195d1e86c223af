"""The connections to MCP servers in a user's configuration, with all file names resolved.

A server is a program of the user and runs outside of the sandbox. Its command and the files among its arguments are
resolved once, when the configuration is loaded. It starts in an empty directory and searches no module and no program
in the workspace, so that it does not execute a file that the agent has created.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mendgraph.nodes.execute_tools.mcp_servers.executed_files import SEARCH_VARIABLES, ExecutedFiles, python_target
from mendgraph.nodes.workspace.files.sandbox import is_below

Connection = Mapping[str, object]
"""A connection of langchain-mcp-adapters' MultiServerMCPClient: {"transport": "stdio", "command": "python", ...}."""

_VARIABLE: Final = re.compile(r"\$\{([^{}]+)\}")
"""A variable that langchain-mcp-adapters replaces in the values of a connection's `env`."""


class ConnectionSettingsError(ValueError):
    """A connection is invalid, or the agent could change what its server executes."""


@dataclass(frozen=True, eq=False)
class McpServer:
    """A server of a user's configuration, with resolved names. Servers are compared by identity.

    `argv` is empty for a server over HTTP. `cwd` is the configured directory, "" for a temporary one. `executes`
    are the absolute names of files and directories that are executed outside of the sandbox.
    """

    name: str
    connection: Connection
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    executes: tuple[str, ...] = ()

    @property
    def startup_timeout_s(self) -> float | None:
        """The configured seconds in which it has to start and to list its tools."""
        seconds = self.connection.get("startup_timeout_s")
        return seconds if isinstance(seconds, float) else None


def resolve_server(name: str, connection: Connection, workspace: str, *, find_modules: bool = True) -> McpServer:
    """Return the server of this connection; relative names are relative to its `cwd`, or to `workspace` without one.

    `find_modules` starts the command, to ask Python where the module of `-m` is; without it nothing is executed.

    Raises:
        ConnectionSettingsError: the connection is invalid, or the agent could change what the server executes.
    """
    if connection.get("transport") != "stdio":
        if not isinstance(connection.get("url"), str):
            raise ConnectionSettingsError("it has neither a url nor the transport 'stdio'")
        return McpServer(name, connection)

    from mcp import StdioServerParameters
    from pydantic import ValidationError

    try:
        program = StdioServerParameters.model_validate(connection)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise ConnectionSettingsError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error

    root = os.path.realpath(workspace)
    base = os.path.realpath(os.path.join(root, program.cwd or ""))

    if program.cwd is not None and is_below(base, root):
        raise ConnectionSettingsError(
            "its cwd lies in the workspace, whose files the agent may change: leave cwd out, since relative names count"
            " from the workspace anyway"
        )

    files = ExecutedFiles(root)
    env = _environment(program.env or {}, base, files, expand=not connection.get("expanded"))
    command = _resolve_command(program.command, base, env["PATH"])
    files.add_command(command)

    if "PATH" not in (program.env or {}):
        env["PATH"] = files.safe_path(env["PATH"])

    args = _resolve_arguments(command, program.args, base, files)
    cwd = base if program.cwd is not None else ""

    if find_modules and not files.problem:
        files.add_module(command, args, env)

    if files.problem:
        raise ConnectionSettingsError(files.problem)

    return McpServer(name, connection, (command, *args), env, cwd, files.names())


def _environment(variables: Mapping[str, str], base: str, files: ExecutedFiles, *, expand: bool) -> dict[str, str]:
    """Return a server's variables: the inherited ones that `mcp` allows, and those of its connection."""
    from mcp.client.stdio import get_default_environment

    env = get_default_environment()
    env.setdefault("PATH", os.defpath)

    for name, value in variables.items():
        text = value
        if expand:
            text = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), value)

        if name in SEARCH_VARIABLES:
            folders = [os.path.join(base, part) for part in text.split(os.pathsep) if part]
            files.add_folders(name, folders)
            text = os.pathsep.join(folders)
        else:
            files.add_names_in(text)

        env[name] = text

    env["PYTHONSAFEPATH"] = "1"
    return env


def _resolve_command(command: str, base: str, path: str) -> str:
    """Return the absolute name of the program; the last part may be a link, by which a virtual environment is found."""
    folders = os.pathsep.join(part for part in path.split(os.pathsep) if os.path.isabs(part))
    program = os.path.join(base, command) if "/" in command else shutil.which(command, path=folders)
    if program is None or not os.path.isfile(program):
        raise ConnectionSettingsError(f"command: there is no program {command!r}")

    folder, name = os.path.split(os.path.abspath(program))
    return os.path.join(os.path.realpath(folder), name)


def _resolve_arguments(command: str, args: Sequence[str], base: str, files: ExecutedFiles) -> list[str]:
    """Return the arguments with absolute real names of files, and of directories such as `.` or `./name`.

    Only Python's target may be a directory of the workspace: it is protected as a whole.
    """
    target = python_target([command, *args])
    resolved = []

    for position, argument in enumerate(args, start=1):
        is_target = target is not None and position == target.position
        if is_target and target is not None and target.flag:  # a module or code is not a file
            files.refuse_folders_in(argument, command)
            resolved.append(argument)
        elif is_target:
            resolved.append(_resolve_name(argument, base, files, is_script=True))
        else:
            resolved.append(_resolve_name(argument, base, files, is_script=False))
            before = args[position - 2] if position > 1 else ""
            files.refuse_folders_in(resolved[-1], command, before)

    return resolved


def _resolve_name(argument: str, base: str, files: ExecutedFiles, *, is_script: bool) -> str:
    prefix = ""
    value = argument
    if argument.startswith("-"):
        option, separator, value = argument.partition("=")
        prefix = f"{option}{separator}"

    if not value:
        return argument

    path = os.path.join(base, value)
    names_folder = is_script or value in {".", ".."} or value.startswith(("./", "../"))

    if os.path.isfile(path) or (is_script and os.path.isdir(path)):
        files.add(path)
    elif not (names_folder and os.path.isdir(path)):
        files.add_names_in(argument)
        return argument

    return f"{prefix}{os.path.realpath(path)}"
