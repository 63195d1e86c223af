"""The lock of a workspace: on this machine, and in the shared store where there is one."""

import subprocess
from pathlib import Path

import pytest

from nodes.execute_tools.environment import workspace_lock as module
from nodes.execute_tools.environment.database import open_database
from nodes.execute_tools.environment.lock_holder import lock_holder
from nodes.execute_tools.environment.run_lock import Owner, RunLock
from nodes.execute_tools.environment.shared_connections import Connections
from nodes.execute_tools.environment.shared_lock import Locks, shared_holder
from nodes.execute_tools.environment.shared_name import shared_name
from nodes.execute_tools.environment.shared_url import read_url
from nodes.execute_tools.environment.workspace_lock import WorkspaceLock
from nodes.records import ToolError, ToolErrorCode
from tests.broken_stores import NOWHERE

OWNER = Owner("r1")
FAR = Owner("r2", 7, "2026-11-20T13:00:00Z", "far away")


def refusal(found: ToolError | None) -> ToolError:
    assert found is not None
    return found


@pytest.mark.usefixtures("any_store")
def test_one_has_it_at_a_time(tmp_path: Path) -> None:
    one, two = WorkspaceLock(str(tmp_path)), WorkspaceLock(str(tmp_path))
    with one:
        assert one.acquire(OWNER) is None
        assert "run 'r1'" in refusal(two.acquire(Owner("r2"))).message
        assert lock_holder(str(tmp_path)) == OWNER
        assert RunLock(str(tmp_path)).acquire(OWNER) is not None
    assert lock_holder(str(tmp_path)) is None
    assert two.acquire(Owner("r2")) is None
    two.release()
    two.release()


def test_another_machine_that_has_it_is_named_and_nothing_stays_locked_here(shared_store: str, tmp_path: Path) -> None:
    open_database(str(tmp_path)).close()
    theirs = Locks(Connections(read_url(shared_store)))
    assert theirs.take(shared_name(str(tmp_path)), FAR)
    assert lock_holder(str(tmp_path)) == FAR
    assert lock_holder(str(tmp_path), "another") is None
    lock = WorkspaceLock(str(tmp_path), "in this workspace")
    assert refusal(lock.acquire(OWNER, 0.01)) == ToolError(
        code=ToolErrorCode.UNAVAILABLE,
        message=(
            "Another run is at work in this workspace: run 'r2', process 7 on 'far away', since 2026-11-20T13:00:00Z."
            " Wait until it has ended, or stop it there."
        ),
    )
    with RunLock(str(tmp_path)) as own:
        assert own.acquire(OWNER) is None
    theirs.close()
    assert lock.acquire(OWNER, 60.0) is None
    assert shared_holder(shared_name(str(tmp_path))) == OWNER
    lock.release()
    assert lock_holder(str(tmp_path)) is None


def test_who_waits_has_it_as_soon_as_it_is_free(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(str(tmp_path)).close()
    theirs = Locks(Connections(read_url(shared_store)))
    assert theirs.take(shared_name(str(tmp_path)), FAR)
    monkeypatch.setattr(module, "pause", lambda _: theirs.close())
    with WorkspaceLock(str(tmp_path)) as lock:
        assert lock.acquire(OWNER, 60.0) is None


def test_a_process_of_this_machine_that_is_no_more_is_waited_for(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has not noticed yet. Whoever is asked nothing more would be told that a dead run is at work."""
    open_database(str(tmp_path)).close()
    theirs = Locks(Connections(read_url(shared_store)))
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert theirs.take(shared_name(str(tmp_path)), Owner("r2", dead.pid, FAR.since))
    with monkeypatch.context() as patch:
        patch.setattr(module, "pause", lambda _: theirs.close())
        with WorkspaceLock(str(tmp_path)) as lock:
            assert lock.acquire(OWNER) is None
    assert theirs.take(shared_name(str(tmp_path)), Owner("r2", dead.pid, FAR.since))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_NOTICED_S", 0.0)
        assert f"process {dead.pid}" in refusal(WorkspaceLock(str(tmp_path)).acquire(OWNER)).message
    theirs.close()


def test_a_store_that_cannot_be_asked_is_told_and_nothing_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", NOWHERE)
    refused = refusal(WorkspaceLock(str(tmp_path)).acquire(OWNER))
    assert (refused.code, "cannot be reached" in refused.message) == (ToolErrorCode.IO_ERROR, True)
    assert lock_holder(str(tmp_path)) is None
    with RunLock(str(tmp_path)) as own:
        assert own.acquire(OWNER) is None


def test_an_interrupt_meanwhile_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "shared_database", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WorkspaceLock(str(tmp_path)).acquire(OWNER)
    with RunLock(str(tmp_path)) as own:
        assert own.acquire(OWNER) is None
