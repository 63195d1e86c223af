"""Ctrl-C while the command imports its libraries, and native calls that block Python."""

import signal
import subprocess
import sys
import threading

import pytest

from mendgraph.graph import start

INTERRUPTED = """
import builtins, sys
from mendgraph.graph import start

load = builtins.__import__

def interrupted(name, *more):
    if name == "typer":
        raise KeyboardInterrupt
    return load(name, *more)

builtins.__import__ = interrupted
sys.exit(start.main())
"""


def test_ctrl_c_during_imports_prints_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nmendgraph: stopped by you (Ctrl-C)\n")


def test_long_native_call_has_30_seconds_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document of some hundred megabytes takes `json.loads` several seconds."""
    beaten, wound = threading.Event(), list[float]()

    def wind(_: int, seconds: float) -> None:
        wound.append(seconds)
        beaten.set()

    monkeypatch.setattr(start, "_BEAT_S", 0.001)
    monkeypatch.setattr(signal, "setitimer", wind)
    with start.ended_when_stuck():
        assert beaten.wait(60)
    assert wound[0] > 30
    assert wound[-1] == 0
