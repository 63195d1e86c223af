import os
import sys
from pathlib import Path

import pytest

from nodes.execute_tools.environment.command_rules import (
    CommandRules,
    command_environment,
    find_program,
    malformed_command,
    own_installation,
    readable_folders,
)
from nodes.records import ToolError, ToolErrorCode

RULES = CommandRules(("sh", "tools/own", "/opt/x", "no-such-program"))
EMPTY = "The command is empty: name a program, and its arguments one by one."
TOO_LONG = (
    "The command is too long: 1000 arguments and 100000 bytes are allowed. Write a long input to a file, and name that."
)


def test_by_default_no_program_is_allowed() -> None:
    assert CommandRules() == CommandRules((), 30.0, 0.2, 16_000, ())
    message = "'sh' may not be run: no program is allowed."
    found = find_program("sh", CommandRules(), "/w", "/usr/bin:/bin")
    assert found == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


@pytest.mark.parametrize(
    "name",
    ["ls", "/usr/bin/sh", "./sh", "../sh", "SH", "sh ", "tools/../tools/own", "./tools/own", "own", "opt/x", "X", ""],
)
def test_a_program_that_is_not_allowed_is_refused(name: str) -> None:
    message = f"{name!r} may not be run: allowed are sh, tools/own, /opt/x, no-such-program."
    refused = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=RULES.programs)
    assert find_program(name, RULES, "/w", "/usr/bin:/bin") == refused


def test_where_allowed_programs_are() -> None:
    assert find_program("tools/own", RULES, "/w", "") == "/w/tools/own"
    assert find_program("/opt/x", RULES, "/w", "") == "/opt/x"
    assert find_program("x", RULES, "/w", "/usr/bin") == "/opt/x"
    assert find_program("sh", RULES, "/w", "/no/such/folder:/bin:/usr/bin") == "/bin/sh"


def test_a_bare_name_that_is_allowed_itself_is_looked_for() -> None:
    rules = CommandRules(("/opt/sh", "sh", "/a/x", "/b/x"))
    assert find_program("sh", rules, "/w", "/bin") == "/bin/sh"
    assert find_program("x", rules, "/w", "/bin") == "/a/x"


def test_a_program_that_is_not_installed() -> None:
    message = (
        "The program 'no-such-program' is not installed where commands can see it. Whoever starts the run can allow it"
        " by its absolute path in `allowed_programs` (`--allow-program`), or show its folder in `readable_folders`."
    )
    found = find_program("no-such-program", RULES, "/w", "/usr/bin:/bin")
    assert found == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], EMPTY),
        ([""], EMPTY),
        (["sh", "a\0b"], "An argument of the command contains a NUL character."),
        (["sh", "\ud800"], "An argument of the command is not valid Unicode text."),
        (["sh", "x" * 99_997], TOO_LONG),
        (["sh", *("" for _ in range(1_000))], TOO_LONG),
    ],
)
def test_what_is_no_command_line(argv: list[str], message: str) -> None:
    assert malformed_command(argv) == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_command_lines_at_their_bounds() -> None:
    assert malformed_command(["sh", "x" * 99_996]) is None
    assert malformed_command(["sh", *("" for _ in range(999))]) is None


@pytest.mark.parametrize("name", ["/", "relative", "/no/such/folder", "/usr/..", "/proc", "/proc/self", "/dev"])
def test_folders_that_cannot_be_shown(name: str) -> None:
    message = (
        f"{name!r} cannot be shown to commands: name an existing folder by its absolute path, and none of"
        " / /dev /proc /run /sys."
    )
    found = readable_folders(CommandRules(readable=("/usr", name)))
    assert found == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_file_can_be_shown_and_a_socket_or_a_pipe_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    shown = readable_folders(CommandRules(readable=(str(tmp_path / "file"),)))
    assert isinstance(shown, tuple)
    assert shown[-1] == str(tmp_path.resolve() / "file")
    refused = readable_folders(CommandRules(readable=(str(tmp_path / "pipe"),)))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.INVALID_ARGUMENT


def test_our_python_is_shown_unless_it_is_the_systems_or_holds_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    (root / "python").mkdir()
    (root / "link").symlink_to("python")
    monkeypatch.setenv("HOME", str(root / "home"))
    for prefix, shown in ((root / "link", (str(root / "python"),)), (root, ()), (root / "home", ()), ("/usr", ())):
        monkeypatch.setattr(sys, "base_prefix", str(prefix))
        assert own_installation() == readable_folders(CommandRules()) == shown
    assert readable_folders(CommandRules(readable=("~/../link", str(root / "python")))) == (str(root / "python"),)


def test_the_path_has_nothing_of_the_workspace_of_our_virtualenv_or_of_what_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    for name in ("work/bin", "own/bin", "shown/tools", "shown/bin", "hidden/bin"):
        (root / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(root / "own"))
    asked = ["work/bin", "own/bin", "hidden/bin", "shown/tools", "shownalso"]
    monkeypatch.setenv("PATH", ":".join((*(f"{root}/{name}" for name in asked), ".", "", "bin", "/usr/sbin")))
    path = command_environment(f"{root}/work", (f"{root}/shown", f"{root}/own", f"{root}/work"))["PATH"].split(":")
    assert path[:3] == [f"{root}/shown/tools", "/usr/sbin", f"{root}/shown/bin"]
    system = {os.path.realpath(f"{place}/{kind}") for place in ("/usr/local", "/usr", "") for kind in ("bin", "sbin")}
    assert sorted(path[1:2] + path[3:]) == sorted(system)


def test_four_variables_are_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    found = command_environment("/w", ())
    found.pop("PATH")
    assert found == {"LANG": "de_DE.UTF-8", "HOME": "/run/home", "TMPDIR": "/tmp"}
    monkeypatch.delenv("LANG")
    assert command_environment("/w", ())["LANG"] == "C.UTF-8"
