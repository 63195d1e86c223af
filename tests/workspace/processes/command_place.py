"""A workspace with files that no program may access, and its commands."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands, open_commands
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.sandboxes import open_handles

PROGRAMS = ("sh", "python3", "sleep", "git", "head", "true", "tools/own", "no-such-program", "/no/such/program")


def is_denied(name: str) -> bool:
    """Whether the rules deny this path."""
    parts = name.split("/")
    return ".git" in parts or parts[-1] in {".env", "keys"}


def opened(root: Path, **rules: object) -> Commands:
    """The commands of this workspace; skips the test with the reason if no sandbox starts."""
    named = {"programs": PROGRAMS, **rules}
    commands = open_commands(str(root), CommandRules(**named), is_denied)  # type: ignore[arg-type]  # as they are given
    if isinstance(commands, ToolError):
        assert commands.code is ToolErrorCode.UNAVAILABLE
        pytest.skip(commands.message)
    return commands


class Place:
    """The workspace and its commands."""

    def __init__(self, root: Path, commands: Commands) -> None:
        self.root, self.commands = root, commands
        self.sandbox = commands.sandbox.name

    def opened(self, **rules: object) -> Commands:
        """New commands of this workspace in the same sandbox."""
        return opened(self.root, sandbox=self.sandbox, **rules)

    def result(self, *argv: str, cwd: str = ".", timeout_s: float | None = None) -> CommandResult:
        result = self.commands.run(argv, cwd, timeout_s)
        assert isinstance(result, CommandResult), result
        return result

    def says(self, script: str) -> str:
        """The output of a shell script on both streams."""
        result = self.result("sh", "-c", f"exec 2>&1\n{script}")
        return (result.stdout.head + result.stdout.tail).decode()

    def error(self, *argv: str, cwd: str = ".") -> str:
        error = self.commands.run(argv, cwd)
        assert isinstance(error, ToolError), error
        return f"{error.code.value}: {error.message}"


@contextmanager
def command_place(folder: Path, sandbox: str) -> Iterator[Place]:
    """A workspace with a repository, a denied file and a denied folder. The test fails if it leaves a handle open."""
    root = folder.resolve() / "root"
    for name in (".git/config", ".env", "src/keys/one", "src/a.py", "src/.env"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"canary of {name}\n")
    commands = opened(root, sandbox=sandbox)
    before = open_handles()
    yield Place(root, commands)
    assert open_handles() <= before, "a handle was left open"


def is_alive(mark: str) -> bool:
    """Whether a process with this argument runs."""
    return mark in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def unique_seconds() -> str:
    """A unique number of seconds to sleep."""
    return f"9{os.getpid()}.{time.monotonic_ns()}"
