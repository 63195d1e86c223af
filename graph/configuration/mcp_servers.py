"""The MCP servers of a user's `config.toml` and of a workspace's `.mcp.json`.

A server is a program that runs with the user's rights, so nothing of `.mcp.json` is used before the user trusts it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mendgraph.nodes.records import JsonMap, Record, ToolError, invalid, quoted
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from mendgraph.nodes.workspace.store.user_files import SERVERS_FILE, hash_of, read_settings_file, trusted_hash

SERVERS_TABLES: Final = ("mcp_servers", "mcpServers")
"""The names of the table in `config.toml`; the second is that of `.mcp.json`."""

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}` and `${NAME:-default}`. Source: Claude Code, "Environment variable expansion in .mcp.json"."""

_EXPANDED: Final = {"command", "args", "env", "cwd", "url", "headers"}

_UNTRUSTED: Final = (
    "its servers are programs with your rights. Read it, then trust it with `mendgraph config trust`, or leave it out"
    " with --no-workspace-config"
)


class SharedServer(Record):
    """One server of a `.mcp.json`, where fields that only other agents know are ignored.

    It is a program with a `command`, or an address with a `url`. `startup_timeout_s` are the seconds in which it has to
    start and to list its tools, 30 if None.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    type: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    startup_timeout_s: float | None = Field(default=None, gt=0, le=600)

    @property
    def address(self) -> str:
        """The command with its arguments, or the url, as they are written."""
        return self.url or " ".join((self.command, *self.args))


class ServerSettings(SharedServer):
    """One server of a `config.toml`.

    `allow` names the server's tools that run without an approval, "*" all of them. A `required` server that fails ends
    the run. Without command and url an entry adds its fields to the server of this name in `.mcp.json`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[str, ...] = ()
    required: bool = False


class SharedServers(Record):
    """The content of a `.mcp.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    servers: dict[str, SharedServer] = Field(alias="mcpServers")


@dataclass(frozen=True)
class McpSettings:
    """The servers of a run by name, and a line for each file that is not used."""

    servers: Mapping[str, ServerSettings]
    notes: tuple[str, ...] = ()


_USERS: Final = TypeAdapter(dict[str, ServerSettings])


def parse_servers(values: Mapping[str, Any]) -> dict[str, ServerSettings]:
    """Return the servers of a `config.toml` without problems."""
    servers = {}
    for table in SERVERS_TABLES:
        servers.update(_USERS.validate_python(values.get(table, {})))

    return servers


def server_problems(tables: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the message of each problem in the servers of a `config.toml`."""
    for table, servers in tables.items():
        try:
            _USERS.validate_python(servers)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_context=False, include_input=False):
                path = (table, *map(str, detail["loc"]))
                yield path, f"{'.'.join(path)}: {detail['msg']}; a server is a table [{table}.NAME]"


def shared_servers(data: bytes) -> Mapping[str, SharedServer] | ToolError:
    """Return the servers of a `.mcp.json`."""
    try:
        return SharedServers.model_validate_json(data).servers
    except ValidationError as error:
        return invalid(f"{SERVERS_FILE} is not a list of MCP servers: {error.errors()[0]['msg']}.")


def connection_of(name: str, settings: SharedServer, environment: Mapping[str, str]) -> JsonMap | ToolError:
    """Return the connection for `load_mcp_tools`, with the values of variables."""
    missing: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        value = environment.get(match[1])
        if not value and match[2] is not None:
            return match[2]
        if value is None:
            missing.append(match[1])

        return value or ""

    def expand(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: expand(item) for key, item in value.items()}
        if isinstance(value, list):
            return [expand(item) for item in value]

        return _VARIABLE.sub(value_of, value)

    values: JsonMap = expand(settings.model_dump(mode="json", include=_EXPANDED, exclude_defaults=True))
    if missing:
        return invalid(f"The MCP server {quoted(name)} needs {', '.join(missing)} in the environment.")

    if settings.startup_timeout_s:
        values["startup_timeout_s"] = settings.startup_timeout_s

    if settings.url:
        transport = "sse" if settings.type == "sse" else "http"
        return {"transport": transport, "login": True, **values}

    return {"transport": "stdio", "args": [], "expanded": True, **values}


def without_values(text: str, settings: SharedServer, environment: Mapping[str, str]) -> str:
    """Return a message about a server with `${NAME}` instead of the values that `connection_of` has put in."""
    from mendgraph.nodes.execute_tools.secrets.redact import SHORTEST_VALUE  # only where a server fails

    names = {match[1] for match in _VARIABLE.finditer(settings.model_dump_json(include=_EXPANDED))}
    values = {environment.get(name, ""): name for name in sorted(names)}

    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST_VALUE:
            text = text.replace(value, f"${{{values[value]}}}")

    return text


def secret_values(servers: Iterable[SharedServer], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables in the headers and the environment of servers, without paths and words."""
    from mendgraph.nodes.execute_tools.secrets.redact import is_findable  # only for runs with servers

    values: dict[str, None] = {}
    for settings in servers:
        for match in _VARIABLE.finditer(" ".join([*settings.headers.values(), *settings.env.values()])):
            value = environment.get(match[1], "")
            if is_findable(value):
                values[value] = None

    return tuple(values)


def fingerprint(root: str, data: bytes, environment: Mapping[str, str]) -> str:
    """Return the mark by which a `.mcp.json` is trusted, and execute nothing.

    It is the hash of the file, and that of the workspace's files that its servers name.
    """
    file_hash = hash_of(data)
    digest = sha256()
    servers = shared_servers(data)
    if isinstance(servers, ToolError) or find_spec("mcp") is None:
        return file_hash + digest.hexdigest()

    from mendgraph.nodes.execute_tools.mcp_servers.connections import ConnectionSettingsError, resolve_server

    root = os.path.realpath(root)
    files = Workspace(root, lambda *_: None)

    for name, settings in servers.items():
        connection = connection_of(name, settings, environment)
        if isinstance(connection, ToolError):
            continue

        try:
            executes = resolve_server(name, connection, root, find_modules=False).executes
        except ConnectionSettingsError:  # it does not start either
            continue

        for path in executes:
            content = files.read_file(os.path.relpath(path, root))
            if isinstance(content, FileContent):
                digest.update(content.sha256.encode())

    return file_hash + digest.hexdigest()


def _is_trusted(root: str, data: bytes, environment: Mapping[str, str], mark: str) -> bool:
    """Whether this file is the trusted one; only then are the names in it looked at."""
    return mark.startswith(hash_of(data)) and fingerprint(root, data, environment) == mark


def merge_servers(
    user: Mapping[str, ServerSettings], root: str, environment: Mapping[str, str], *, workspace_file: bool = True
) -> McpSettings:
    """Return the servers of the user, and those of a trusted `.mcp.json` that the user has not defined."""
    servers = {name: settings for name, settings in user.items() if settings.address}
    data = read_settings_file(root, SERVERS_FILE) if workspace_file else None
    if data is None:
        return McpSettings(servers)

    shared: Mapping[str, SharedServer] | ToolError
    if isinstance(data, ToolError):
        shared = data
    elif not (mark := trusted_hash(root, SERVERS_FILE)):
        shared = invalid(f"{SERVERS_FILE} is not used: {_UNTRUSTED}.")
    elif not _is_trusted(root, data, environment, mark):
        shared = invalid(f"{SERVERS_FILE} is not used, because it or a file that it runs has changed: {_UNTRUSTED}.")
    else:
        shared = shared_servers(data)

    if isinstance(shared, ToolError):
        return McpSettings(servers, (shared.message,))

    for name, settings in shared.items():
        if settings.address and name not in servers:
            additions = user.get(name, ServerSettings())
            servers[name] = ServerSettings(**{**additions.model_dump(), **settings.model_dump(exclude_defaults=True)})

    return McpSettings(servers)
