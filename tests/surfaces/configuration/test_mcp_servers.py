"""MCP servers in `config.toml` and `.mcp.json`: what is read, and what must be trusted first."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, load_configuration, read_user_settings
from mendgraph.graph.configuration.mcp_servers import (
    McpSettings,
    ServerSettings,
    connection_of,
    fingerprint,
    merge_servers,
)
from mendgraph.nodes.execute_tools.mcp_servers.connections import resolve_server
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.store.user_files import SERVERS_FILE, trust
from tests.extent import slow
from tests.row_tables import rows


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "user.toml"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "user.toml").touch()
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def write_user(root: Path, text: str) -> None:
    (root.parent / "user.toml").write_text(text)


def share(root: Path, **servers: Any) -> None:
    (root / SERVERS_FILE).write_text(json.dumps({"mcpServers": servers}))


def trust_shared(root: Path) -> None:
    trust(str(root), fingerprint(str(root), (root / SERVERS_FILE).read_bytes(), os.environ), SERVERS_FILE)


def servers_of(root: Path, **options: Any) -> McpSettings:
    user = read_user_settings(os.environ)
    assert not isinstance(user, tuple), user
    return merge_servers(user.servers, str(root), os.environ, **options)


def test_both_spellings_of_the_mcp_table_are_read_beside_other_settings(root: Path) -> None:
    write_user(
        root, 'mode = "ask"\n[mcp_servers.a]\ncommand = "x"\nallow = ["t"]\n[mcpServers.b]\nurl = "http://localhost/"\n'
    )
    a = ServerSettings(command="x", allow=("t",))
    assert servers_of(root).servers == {"a": a, "b": ServerSettings(url="http://localhost/")}
    configuration = load_configuration(str(root))
    assert not isinstance(configuration, tuple)
    assert configuration.values == {"mode": "ask"}


@rows(
    ("mcp_servers = 3", "user.toml:1: mcp_servers: Input should be a valid dictionary; a server is a table"),
    ("[mcp_servers.a]\nargs = 3", "user.toml:2: mcp_servers.a.args: Input should be a valid tuple"),
    ("[mcp_servers.a]\ncmd = 'x'", "user.toml:2: mcp_servers.a.cmd: Extra inputs are not permitted"),
    (
        "[mcp_servers.a]\ncommand = 'x'\nenv = {T = 'ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8'}",
        "mcp_servers holds what looks like a secret: set it in the environment, and write ${VARIABLE} in the file",
    ),
)
def test_invalid_server_is_reported_with_its_place(text: str, message: str, root: Path) -> None:
    write_user(root, text)
    problems = read_user_settings(os.environ)
    assert isinstance(problems, tuple)
    assert message in str(problems[0])


def test_workspace_settings_file_cannot_define_servers(root: Path) -> None:
    (root / ".mendgraph.toml").write_text("[mcp_servers.a]\ncommand = 'x'\n")
    problems = load_configuration(str(root))
    assert isinstance(problems, tuple)
    assert "MCP servers belong in your config.toml; those of a repository in .mcp.json" in str(problems[0])


# --- Connections


def test_variables_are_expanded_as_in_claude_code() -> None:
    settings = ServerSettings(
        command="${BIN}/x", args=("${EMPTY:-d}", "${NONE:-a b}", "$BIN", "${EMPTY}"), env={"${BIN}": "${BIN:-no}"}
    )
    connection = connection_of("a", settings, {"BIN": "/bin", "EMPTY": ""})
    args = ["d", "a b", "$BIN", ""]
    expanded = {"command": "/bin/x", "args": args, "env": {"${BIN}": "/bin"}}
    assert connection == {"transport": "stdio", "expanded": True, **expanded}


@slow
def test_variable_in_the_value_of_a_variable_is_not_expanded(root: Path) -> None:
    settings = ServerSettings(command=sys.executable, env={"CODE": "${CODE}"})
    connection = connection_of("a", settings, {"CODE": "a${HOME}b"})
    assert not isinstance(connection, ToolError)
    assert resolve_server("a", connection, str(root), find_modules=False).env["CODE"] == "a${HOME}b"


def test_startup_timeout_of_the_user_applies_to_a_server_of_the_workspace(root: Path) -> None:
    share(root, s={"command": "x"})
    trust_shared(root)
    write_user(root, "[mcp_servers.s]\nstartup_timeout_s = 5\n")
    assert servers_of(root).servers["s"].startup_timeout_s == 5


def test_variable_without_value_and_default_is_named() -> None:
    problem = connection_of("a", ServerSettings(url="http://${HOST}/", headers={"A": "${KEY}"}), {})
    assert isinstance(problem, ToolError)
    assert problem.message == "The MCP server 'a' needs HOST, KEY in the environment."


@rows((None, "http"), ("http", "http"), ("streamable-http", "http"), ("sse", "sse"))
def test_transport_follows_from_the_type(kind: Any, transport: str) -> None:
    settings = ServerSettings(url="http://localhost/", headers={"A": "b"}, type=kind)
    expected = {"transport": transport, "login": True, "url": "http://localhost/", "headers": {"A": "b"}}
    assert connection_of("a", settings, {}) == expected


# --- Trust


def test_mcp_file_of_a_workspace_is_used_once_it_is_trusted(root: Path) -> None:
    share(root, s={"command": "x", "type": "stdio", "allow": ["*"], "required": True, "oauth": {}})
    before = servers_of(root)
    assert before.servers == {}
    [note] = before.notes
    assert note.startswith(".mcp.json is not used: its servers are programs with your rights.")
    assert "`mendgraph config trust`" in note

    trust_shared(root)
    assert servers_of(root) == McpSettings({"s": ServerSettings(command="x", type="stdio")})
    assert servers_of(root, workspace_file=False) == McpSettings({})


@rows("file", "script")
def test_change_of_the_file_or_of_what_it_executes_must_be_trusted_again(changed: str, root: Path) -> None:
    (root / "serve.py").write_text("1")
    share(root, s={"command": sys.executable, "args": ["serve.py"]})
    trust_shared(root)
    assert servers_of(root).servers

    if changed == "file":
        share(root, s={"command": sys.executable, "args": ["serve.py", "more"]})
    else:
        (root / "serve.py").write_text("2")

    read = servers_of(root)
    assert read.servers == {}
    assert "it or a file that it runs has changed" in read.notes[0]


@rows(
    {"command": "./run", "args": ["python", "-m", "x"]},
    {"command": sys.executable, "args": ["-m", "x"], "env": {"PYTHONPATH": "lib"}},
)
def test_changed_file_executes_nothing_before_it_is_trusted(server: dict[str, Any], root: Path) -> None:
    share(root, s={"command": "true"})
    trust_shared(root)

    (root / "run").write_text(f"#!/bin/sh\ntouch {root}/executed\n")
    (root / "run").chmod(0o755)
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib" / "sitecustomize.py").write_text(f"open({str(root / 'executed')!r}, 'w')")
    share(root, s=server)
    assert servers_of(root).servers == {}

    trust_shared(root)
    assert servers_of(root).servers
    assert not (root / "executed").exists()


def test_users_servers_take_precedence_and_can_add_permissions_to_others(root: Path) -> None:
    write_user(
        root, "[mcp_servers.a]\ncommand = 'mine'\n[mcp_servers.b]\nallow = ['t']\n[mcp_servers.c]\nallow = ['t']"
    )
    share(root, a={"command": "theirs"}, b={"command": "theirs"})
    trust_shared(root)
    servers = {"a": ServerSettings(command="mine"), "b": ServerSettings(command="theirs", allow=("t",))}
    assert servers_of(root).servers == servers


@rows(
    "", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', '{"mcpServers": {"a": {"args": 1}}}', "[" * 9_999
)
def test_invalid_mcp_file_of_a_workspace_does_not_stop_the_run(text: str, root: Path) -> None:
    (root / SERVERS_FILE).write_text(text)
    assert len(servers_of(root).notes) == 1
    trust_shared(root)
    read = servers_of(root)
    assert read.servers == {}
    assert read.notes[0].startswith(".mcp.json")
