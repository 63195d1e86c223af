"""Ctrl-C while the command still loads what it needs, and in commands that do not listen for it."""

import subprocess
import sys

import pytest

from graph import cli, start

INTERRUPTED = """
import builtins, sys
from graph import start

load = builtins.__import__

def interrupted(name, *more):
    if name == "typer":
        raise KeyboardInterrupt
    return load(name, *more)

builtins.__import__ = interrupted
sys.exit(start.main())
"""


def test_ctrl_c_while_libraries_are_loaded_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nmendgraph: stopped by Ctrl-C\n")


def test_otherwise_the_command_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda: 3)
    assert start.main() == 3
