import subprocess
import sys
import textwrap

import pytest

from tests.architecture.product import ROOT

PRELUDE = """
import os, signal, subprocess, sys, time
from benchmarks.mutants.forks import forked

def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
"""


def played(program: str) -> str:
    """What the program prints. It is a process of its own, as this one has threads."""
    text = PRELUDE + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("bound", ["wall_s=0.2", "cpu_s=1"])
def test_what_loops_for_ever_is_ended(bound: str) -> None:
    program = f"""
    def work(say):
        say("begun")
        while True:
            pass
    ending = forked(work, {bound})
    print(ending.said, ending.in_time)
    """
    assert played(program) == "['begun'] False"


def test_what_a_fork_started_ends_with_it() -> None:
    program = """
    def work(say):
        say(str(subprocess.Popen(["sleep", "60"]).pid))
    ending = forked(work, 30)
    for _ in range(1000):
        if not alive(int(ending.said[0])):
            break
        time.sleep(0.01)
    print(ending.in_time, alive(int(ending.said[0])))
    """
    assert played(program) == "True False"


def test_a_fork_cannot_use_up_the_memory() -> None:
    program = """
    def work(say):
        sys.stderr = open(os.devnull, "w")
        bytearray(5 << 30)
    print(forked(work, 30).said)
    """
    assert played(program) == "['! MemoryError()']"
