"""Which files of the workspace a connection executes, and the resolved names that it starts with."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.mcp_servers.connections import ConnectionSettingsError, McpServer, resolve_server
from mendgraph.nodes.execute_tools.mcp_servers.executed_files import python_target
from tests.row_tables import rows

PYTHON = sys.executable


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    for name in ("calc.py", "settings.json", "pkg/__init__.py", "pkg/__main__.py", "app/__main__.py", "lib/x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("", encoding="utf-8")
    (root / "link.py").symlink_to(PYTHON)
    return root


def resolve(workspace: Path, *args: str, command: str = PYTHON, **more: Any) -> McpServer:
    connection = {"transport": "stdio", "command": command, "args": [*args], **more}
    return resolve_server("s", connection, str(workspace))


def executable(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def executed_in(workspace: Path, server: McpServer) -> list[str]:
    """What the server executes of the workspace, by relative names."""
    return [os.path.relpath(path, workspace) for path in server.executes if path.startswith(f"{workspace}/")]


OPTION = "--settings={}settings.json"
OPENING = "exec(open('{}calc.py').read())"


@rows(
    (["calc.py"], ["{}calc.py"], ["calc.py"]),
    (["-X", "dev", "./calc.py", "none.py"], ["-X", "dev", "{}calc.py", "none.py"], ["calc.py"]),
    (["-I", "app"], ["-I", "{}app"], ["app"]),
    (["-c", "calc.py", OPTION.replace("{}", "")], ["-c", "calc.py", OPTION], ["settings.json"]),
    (["-c", OPENING], ["-c", OPENING], []),
)
def test_file_arguments_become_absolute_and_count_as_executed(
    args: list[str], resolved: list[str], executed: list[str], workspace: Path
) -> None:
    server = resolve(workspace, *(argument.replace("{}", f"{workspace}/") for argument in args))
    expected = [argument.replace("{}", f"{workspace}/") for argument in resolved]
    assert list(server.argv[1:]) == expected
    assert executed_in(workspace, server) == executed


def test_file_in_a_shell_command_counts_as_executed(workspace: Path) -> None:
    line = f"cd / && exec {PYTHON} {workspace}/calc.py"
    assert executed_in(workspace, resolve(workspace, "-c", line, command="/bin/sh")) == ["calc.py"]


@pytest.mark.parametrize("args", [["-m", "pkg"], ["-mpkg"], ["-Bm", "pkg.sub", "calc.py"]])
def test_python_module_in_the_workspace_counts_as_executed(workspace: Path, tmp_path: Path, args: list[str]) -> None:
    outside = tmp_path / "site"
    outside.mkdir()
    (outside / "pkg").symlink_to(workspace / "pkg")
    server = resolve(workspace, *args, env={"PYTHONPATH": str(outside)})
    assert "pkg" in executed_in(workspace, server)
    assert executed_in(workspace, resolve(workspace, *args, env={})) in (["calc.py"], [])


@rows("PYTHONPATH", "NODE_PATH", "PATH")
def test_folder_in_a_search_variable_counts_as_executed(variable: str, workspace: Path) -> None:
    server = resolve(workspace, "-c", "pass", env={variable: "lib"})
    assert (server.env[variable], executed_in(workspace, server)) == (f"{workspace}/lib", ["lib"])


def test_virtual_environment_of_the_command_counts_as_executed(workspace: Path) -> None:
    folder = workspace / ".venv" / "bin"
    folder.mkdir(parents=True)
    (workspace / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    (folder / "python").symlink_to(PYTHON)
    server = resolve(workspace, "-c", "pass", command=".venv/bin/python")
    assert server.argv[0] == str(folder / "python")  # the real file would not find its environment
    assert executed_in(workspace, server) == [".venv", ".venv/bin/python"]


def test_path_of_a_server_omits_the_workspace(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{workspace}/bin:lib:.:/usr/bin")
    assert resolve(workspace, "-c", "pass").env["PATH"] == "/usr/bin"


def test_safe_path_of_python_cannot_be_unset(workspace: Path) -> None:
    assert resolve(workspace, "calc.py", env={"PYTHONSAFEPATH": ""}).env["PYTHONSAFEPATH"] == "1"


@rows(
    ({"command": "no-such-program"}, "command: there is no program 'no-such-program'"),
    ({"command": "./no-such-program"}, "command: there is no program './no-such-program'"),
    ({"command": PYTHON, "cwd": "lib"}, "its cwd lies in the workspace"),
    ({"command": PYTHON, "cwd": ".."}, ""),
    ({"command": PYTHON, "args": ["."]}, "it executes '{}/.', which holds the workspace"),
    ({"command": PYTHON, "env": {"PYTHONPATH": "."}}, "PYTHONPATH names the workspace"),
    ({"command": PYTHON, "args": ["link.py"]}, "'{}/link.py' is a symbolic link in the workspace"),
)
def test_connection_that_the_agent_could_change_is_refused(
    connection: dict[str, Any], reason: str, workspace: Path
) -> None:
    if not reason:
        assert resolve_server("s", {"transport": "stdio", **connection}, str(workspace)).cwd == str(workspace.parent)
        return
    with pytest.raises(ConnectionSettingsError) as refusal:
        resolve_server("s", {"transport": "stdio", **connection}, str(workspace))
    assert str(refusal.value).startswith(reason.replace("{}", str(workspace)))


@rows(
    "-C .",
    "-C{}",
    "--prefix ./lib start",
    "--prefix=. start",
    "--directory {}/lib run x",
    "-c 'cd {} && make'",
)
def test_workspace_folder_is_refused_as_an_argument(args: str, workspace: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match="names a folder of the workspace, where the agent may change"):
        resolve(workspace, *shlex.split(args.replace("{}", str(workspace))), command="/bin/sh")


@rows(
    ("npx", "-y @modelcontextprotocol/server-filesystem ."),
    ("uvx", "mcp-server-git --repository ."),
    ("python3", "server.py ."),
)
def test_workspace_folder_may_be_data_of_a_known_server(program: str, args: str, workspace: Path) -> None:
    server = resolve(workspace, *args.split(), command=executable(workspace.parent / program))
    assert server.argv[-1] == str(workspace.resolve())


@rows(("uv", "--directory . run x"), ("npx", "--prefix=. x"))
def test_folder_with_files_that_a_program_executes_is_refused(program: str, args: str, workspace: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match="names a folder of the workspace"):
        resolve(workspace, *args.split(), command=executable(workspace.parent / program))


def test_refused_connection_executes_nothing(workspace: Path) -> None:
    (workspace / "sitecustomize.py").write_text(f"open({str(workspace / 'executed')!r}, 'w')")
    with pytest.raises(ConnectionSettingsError, match="PYTHONPATH names the workspace"):
        resolve(workspace, "-m", "pkg", env={"PYTHONPATH": "."})

    assert not (workspace / "executed").exists()


@rows(
    ("python3.12 -W error -B x.py", ("", "x.py", 4, 4)),
    ("uv run python -Im a.b c", ("m", "a.b", 4, 3)),
    ("env python -ma", ("m", "a", 2, 2)),
    ("python -c code x.py", ("c", "code", 2, 1)),
    ("python -Xmc -W ignore -Ec code", ("c", "code", 5, 4)),
)
def test_python_target_is_read_from_a_command_line(argv: str, target: tuple[str, str, int, int]) -> None:
    assert python_target(argv.split()) == target


def test_command_line_without_a_python_target_has_none() -> None:
    lines = ("node x.js", "python", "python -V", "python -m")
    assert [python_target(line.split()) for line in lines] == [None] * 4
