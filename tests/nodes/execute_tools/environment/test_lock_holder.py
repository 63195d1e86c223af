"""Who holds a lock, seen from outside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodes.execute_tools.environment.lock_holder import lock_holder
from nodes.execute_tools.environment.run_lock import Owner, RunLock
from tests.architecture.house import ROOT

OWNER = Owner("r", 12, "2026-11-20T13:00:00Z")
HOLD = """
import sys
from nodes.execute_tools.environment.run_lock import Owner, RunLock
lock = RunLock(sys.argv[1])
assert lock.acquire(Owner("other")) is None
print("held", flush=True)
sys.stdin.read()
"""


def test_the_holder_is_named_for_as_long_as_it_holds_the_lock(tmp_path: Path) -> None:
    lock = RunLock(str(tmp_path))
    assert lock_holder(str(tmp_path)) is None
    assert lock.acquire(OWNER) is None
    assert [lock_holder(str(tmp_path)) for _ in range(2)] == [OWNER, OWNER]
    lock.release()
    assert lock_holder(str(tmp_path)) is None


def test_another_process_is_named_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        held = lock_holder(str(tmp_path))
        other.kill()
    assert (held.run_id if held else "", held.pid if held else 0) == ("other", other.pid)
    assert (tmp_path / "run.lock.json").exists()
    assert lock_holder(str(tmp_path)) is None


def test_to_ask_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.lock.json").write_text(json.dumps({"run_id": "r", "pid": os.getpid(), "since": ""}))
    assert lock_holder(str(tmp_path)) is None
    assert RunLock(str(tmp_path)).acquire(OWNER) is None


@pytest.mark.parametrize("written", ["", "{", "[" * 4_000, "[]", '{"run_id": 1, "pid": 2, "since": ""}', "\udcff"])
def test_what_nobody_can_read_names_nobody(tmp_path: Path, written: str) -> None:
    lock = RunLock(str(tmp_path))
    assert lock.acquire(OWNER) is None
    (tmp_path / "run.lock.json").write_bytes(os.fsencode(written))
    assert lock_holder(str(tmp_path)) is None
    lock.release()


def test_where_there_is_no_folder_there_is_no_holder(tmp_path: Path) -> None:
    assert lock_holder(str(tmp_path / "none")) is None
