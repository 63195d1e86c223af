"""`mendgraph mcp`, and runs with the MCP servers of the settings."""

import json
import stat
import sys
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from tests.doubles.mcp_servers import ECHO, PROGRAM, http_server, program, running_processes
from tests.doubles.oauth_server import browse, browse_with_another_state, oauth_server
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer
from tests.extent import slow
from tests.surfaces.conftest import Command

USER = '# mine\nmode = "auto"  # stays\n'
CALL = 'tool: s__echo({"a": 1})'
TEXT = ("--protocol", "text")


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "user.toml"
    path.write_text(USER)
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    return path


def configure(user_file: Path, name: str = "s", behaviour: str = "", more: str = "") -> None:
    connection = program(user_file.parent, behaviour)
    server = {"command": connection["command"], "args": connection["args"]}
    lines = [f"{field} = {json.dumps(value)}" for field, value in server.items()]
    with user_file.open("a") as file:
        file.write("\n".join([f"[mcp_servers.{name}]", *lines, more, ""]))


# --- The commands


def test_server_is_added_listed_and_removed_and_the_file_keeps_its_comments(command: Command, user_file: Path) -> None:
    connection: Any = program(user_file.parent)
    words = ("--allow", "echo", "--env", "A=b c", "--", connection["command"], *connection["args"])
    assert command("mcp", "add", "s", *words)[0] == 0
    assert user_file.read_text().startswith(USER)
    assert 'allow = ["echo"]' in user_file.read_text()

    listed = json.loads(command("--json", "mcp", "list")[1])
    [server] = listed["servers"]
    assert (server["name"], server["tools"], server["allowed"]) == ("s", ["s__echo"], 1)
    assert "1 tool, 1 allowed" in command("mcp", "list")[1]
    assert running_processes(user_file.parent) == []

    assert command("mcp", "remove", "s")[0] == 0
    assert user_file.read_text().strip() == USER.strip()
    assert "There is no MCP server" in command("mcp", "list")[1]


def test_server_over_http_is_added_with_headers(command: Command, user_file: Path) -> None:
    with http_server() as url:
        assert command("mcp", "add", "web", "--url", url, "--header", "Authorization: Bearer ${KEY:-none}")[0] == 0
        assert 'Authorization = "Bearer ${KEY:-none}"' in user_file.read_text()
        assert "1 tool, 0 allowed" in command("mcp", "list")[1]


def test_link_to_a_settings_file_stays_a_link(command: Command, user_file: Path) -> None:
    user_file.rename(user_file.parent / "real.toml")
    user_file.symlink_to("real.toml")
    assert command("mcp", "add", "s", "--", "x")[0] == 0
    assert user_file.is_symlink()
    assert "[mcp_servers.s]" in (user_file.parent / "real.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "s"), "give either the server's command"),
        (("add", "s", "--url", "http://localhost", "--", "x"), "give either the server's command"),
        (("add", "s", "npx", "-y", "x"), "No such option: -y. Write `--` before the server's command"),
        (("add", "s", "--env", "A", "--", "x"), "--env 'A': write it as NAME=VALUE"),
        (("add", "s", "--env", "T=ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8", "--", "x"), "looks like a secret"),
        (("remove", "t"), "There is no MCP server 't' in your config.toml."),
    ],
)
def test_invalid_command_is_reported_and_changes_nothing(
    command: Command, user_file: Path, words: tuple[str, ...], message: str
) -> None:
    code, _, err = command("mcp", *words)
    assert (code, message in err) == (2, True), err
    assert user_file.read_text() == USER


def test_invalid_settings_file_is_unchanged(command: Command, user_file: Path) -> None:
    user_file.write_text("a = \n")
    code, _, err = command("mcp", "add", "s", "--", "x")
    assert (code, "Cannot read" in err, user_file.read_text()) == (2, True, "a = \n")


def test_invalid_table_of_servers_is_reported(command: Command, user_file: Path) -> None:
    user_file.write_text("mcp_servers = 5\n")
    code, _, err = command("mcp", "add", "s", "--", "x")
    assert (code, "a server is a table" in err, user_file.read_text()) == (2, True, "mcp_servers = 5\n")


def test_file_keeps_its_mode_its_line_ends_and_the_permissions_of_a_replaced_server(
    command: Command, user_file: Path
) -> None:
    text = '[mcp_servers.a]\ncommand = "a"\n[mcpServers.b]\ncommand = "b"\nallow = ["t"]\n'
    user_file.write_bytes(BOM_UTF8 + text.replace("\n", "\r\n").encode())
    user_file.chmod(0o644)

    assert command("mcp", "add", "b", "--", "new")[0] == 0
    data = user_file.read_bytes()
    assert stat.S_IMODE(user_file.stat().st_mode) == 0o644
    assert data.startswith(BOM_UTF8)
    assert data.count(b"\n") == data.count(b"\r\n")
    assert tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))["mcpServers"] == {
        "b": {"command": "new", "allow": ["t"]}
    }


def test_value_of_a_variable_is_in_no_message(
    command: Command, user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDRESS", "hunter2-is-no-pattern")
    user_file.write_text("[mcp_servers.s]\ncommand = '${ADDRESS}'\n")
    code, out, err = command("mcp", "list")
    assert (code, "there is no program '${ADDRESS}'" in out, "hunter2" in out + err) == (0, True, False)


def test_empty_config_variable_writes_no_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    code, _, err = command("mcp", "add", "s", "--", "x")
    assert (code, "MENDGRAPH_CONFIG is empty" in err) == (2, True)


# --- Logins


@pytest.fixture
def config(tmp_path: Path, user_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's private files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert user_file.exists()
    return tmp_path / "config" / "mendgraph"


def log_in(
    command: Command, monkeypatch: pytest.MonkeyPatch, url: str, browser: Callable[[str], None] = browse
) -> tuple[int, str, str]:
    monkeypatch.setattr("webbrowser.open", browser)
    assert command("mcp", "add", "web", "--url", url)[0] == 0
    return command("mcp", "login", "web")


def test_login_is_done_once_and_renewed_by_later_runs(
    command: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oauth_server() as server:
        assert command("mcp", "add", "web", "--url", server.url)[0] == 0
        failed = command("mcp", "list")[1]
        assert "it asks for a login (HTTP 401): run `mendgraph mcp login NAME`" in failed

        code, out, err = log_in(command, monkeypatch, server.url)
        assert (code, out) == (0, "logged in to web\n")
        assert f"log in at {server.base}/as/authorize?" in err
        assert "1 tool" in command("mcp", "list")[1]
        assert server.grants == ["authorization_code"]
        [stored] = (config / "mcp-logins").glob("*.json")
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
        assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700

        server.access.clear()
        stored.write_text(json.dumps({**json.loads(stored.read_text()), "expires_at": 1}))
        for _ in range(2):
            assert "1 tool" in command("mcp", "list")[1]
        assert server.grants == ["authorization_code", "refresh_token"]


def test_expired_login_error_names_the_login_command(
    command: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oauth_server() as server:
        log_in(command, monkeypatch, server.url)
        assert len([*(config / "mcp-logins").glob("*.json")]) == 1
        server.access.clear()
        server.refresh.clear()
        assert "its login has expired: run `mendgraph mcp login NAME`" in command("mcp", "list")[1]


@pytest.mark.usefixtures("config")
def test_login_with_a_wrong_state_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_server() as server:
        code, _, err = log_in(command, monkeypatch, server.url, browse_with_another_state)
        assert (code, "State parameter mismatch" in err) == (4, True), err
        assert server.grants == []


@pytest.mark.usefixtures("config")
def test_server_without_a_login_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server() as url:
        code, _, err = log_in(command, monkeypatch, url)
        assert (code, "it asks for no login" in err) == (4, True), err


# --- Runs


@slow
def test_allowed_tool_runs_in_mode_auto_and_its_server_ends_with_the_command(command: Command, user_file: Path) -> None:
    configure(user_file, more='allow = ["echo"]')
    code, out, _ = command(*TEXT, "Echo it", says=(CALL, "Echoed."))
    assert (code, "s__echo  ok" in out) == (0, True), out
    assert running_processes(user_file.parent) == []
    assert len((user_file.parent / "pids").read_text().split()) == 1


def test_tool_that_is_not_allowed_is_refused_in_mode_auto(command: Command, user_file: Path) -> None:
    configure(user_file)
    code, out, err = command(*TEXT, "Echo it", says=(CALL, "I could not."))
    assert code == 0
    assert "The MCP server 's' has 1 tool, and none may run in mode auto: list them in `allow`" in err
    assert "refused (not allowed without approval): s__echo" in out


def test_server_that_cannot_start_is_reported_and_the_run_continues(command: Command, user_file: Path) -> None:
    configure(user_file, "dead", "dead")
    user_file.write_text(f"{user_file.read_text()}[mcp_servers.none]\ncommand = 'no-such-program'\n")
    code, _, err = command("Say hi", says=("Hi.",))
    assert code == 0
    assert "The MCP server 'dead' failed: it ended; it said: a line for people" in err
    assert (
        "there is no program 'no-such-program'. The run continues without it; `mendgraph mcp list` tries it again."
        in err
    )


def test_slow_server_is_given_up_at_its_startup_timeout(command: Command, user_file: Path) -> None:
    configure(user_file, "slow", "mute", "startup_timeout_s = 0.2")
    code, _, err = command("Say hi", says=("Hi.",))
    assert (code, "within 0.2 s" in err, "The run continues without it" in err) == (0, True, True), err


@pytest.mark.usefixtures("folder")
def test_value_of_a_variable_reaches_only_the_server(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "hunter2-is-no-pattern")
    configure(user_file, "s", "tells", 'allow = ["*"]\nenv = { CODE = "${PLACE}" }')
    call = Calls([("s__echo", '{"a": 1}')])
    _, (_, result) = play(monkeypatch, ("--model", "m", "Echo it"), call, Say("Done."))
    assert "the code is [" in result
    assert "hunter2" not in result


def test_required_server_that_cannot_start_ends_the_command(command: Command, user_file: Path) -> None:
    configure(user_file, "dead", "dead", "required = true")
    code, _, err = command("Say hi", says=("Hi.",))
    assert (code, "It is `required`, so nothing is run" in err) == (4, True), err


@slow
def test_server_that_dies_during_a_call_is_an_error_of_that_call(command: Command, user_file: Path) -> None:
    configure(user_file, "s", "dies", 'allow = ["*"]')
    code, out, _ = command(*TEXT, "Echo it", says=(CALL, "It died."))
    assert (code, "it ended; it said: a line for people" in out) == (0, True), out


def test_trusted_servers_of_the_workspace_are_used_and_their_scripts_cannot_be_changed(
    command: Command, folder: Path, user_file: Path
) -> None:
    arguments = [str(user_file.parent / "pids"), json.dumps([ECHO]), ""]
    (folder / "serve.py").write_text(f"import sys\nsys.argv[1:] = {arguments!r}\n{PROGRAM}")
    shared = {"mcpServers": {"s": {"command": sys.executable, "args": ["serve.py"]}}}
    (folder / ".mcp.json").write_text(json.dumps(shared))
    user_file.write_text(f"{USER}[mcp_servers.s]\nallow = ['echo']\n")
    assert ".mcp.json is not used" in command("Say hi", says=("Hi.",))[2]

    code, out, _ = command("config", "trust")
    assert (code, f"s: {sys.executable} serve.py" in out) == (0, True)
    edit = 'tool: edit_file({"path": "serve.py", "old_str": "import sys", "new_str": "evil"})'
    code, out, err = command(*TEXT, "Change serve.py", says=(CALL, edit, "Done."))
    assert (code, "s__echo  ok" in out, "an MCP server or a hook of this run executes" in out) == (0, True, True), out
    assert ".mcp.json" not in err

    command("config", "trust", "--forget")
    assert ".mcp.json is not used" in command("Say hi", says=("Hi.",))[2]


# --- Many tools

DESCRIPTION = "It is one of many tools that all have a description of some length, and a number of their own."
MANY = [{**ECHO, "name": f"count_{number}", "description": f"{DESCRIPTION} {number}"} for number in range(299)]
INVOICE = {**ECHO, "name": "create_invoice", "description": "Create an invoice for a customer."}
FIND = Calls([("find_tools", '{"query": "invoice customer"}')])
CREATE = Calls([("s__create_invoice", '{"a": 1}')])


def play(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], *says: Reply) -> list[tuple[set[str], str]]:
    """The names of the tools of each request, and its last message."""
    with ScriptedServer(says) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-Zq8vTn3LrXw5Kd7PmYb2Hc9J")
        cli.main(words)
        return [
            ({tool["function"]["name"] for tool in request["tools"]}, request["messages"][-1]["content"])
            for request in server.requests
        ]


@pytest.mark.usefixtures("folder")
def test_three_hundred_tools_are_searched_and_a_resumed_run_keeps_those_it_found(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = program(user_file.parent, "", *MANY, INVOICE)
    user_file.write_text(
        "[mcp_servers.s]\n" + "\n".join(f"{name} = {json.dumps(connection[name])}" for name in ("command", "args"))
    )
    with user_file.open("a") as file:
        file.write('\nallow = ["*"]\n')

    [(listed, _)] = play(monkeypatch, ("--max-calls", "1", "--model", "m", "Create an invoice"), FIND)
    assert "find_tools" in listed
    assert not any(name.startswith("s__") for name in listed)

    resumed = play(monkeypatch, ("resume", "--max-calls", "9"), CREATE, Say("Created."))
    (offered, _), (_, result) = resumed
    assert {name for name in offered if name.startswith("s__")} == {"s__create_invoice"}
    assert json.loads(result)["ok"] is True
