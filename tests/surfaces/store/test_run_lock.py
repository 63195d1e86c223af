"""One run at a time in a workspace, and which one holds the lock."""

import errno
import json
import os
import signal
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.database import open_database, read_url
from mendgraph.nodes.workspace.store.postgres import PostgresPool, postgres_holder
from mendgraph.nodes.workspace.store.run_folder import workspace_name
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock, WorkspaceLock, is_alive, lock_holder
from tests.broken_stores import NOWHERE
from tests.doubles.system_calls import failing

US = Owner("a1", os.getpid(), "2026-01-02T03:04:05Z")


def lock_error(owner: Owner, what: str = "in this workspace") -> ToolError:
    message = (
        f"Another run is working {what}: run {owner.run_id!r}, process {owner.pid}, since {owner.since}."
        f" Wait for it to end, or stop it with Ctrl-C or `kill {owner.pid}`."
    )
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


SOMEBODY = ToolError(
    code=ToolErrorCode.UNAVAILABLE,
    message="Another run is working in this workspace. Wait for it to end, or stop it.",
)


def test_second_run_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    first, second = RunLock(str(tmp_path)), RunLock(str(tmp_path))
    assert first.acquire(US) is None
    assert second.acquire(Owner("b2")) == lock_error(US)
    first.release()
    assert second.acquire(Owner("b2")) is None
    assert first.acquire(US, wait_s=0.05) is not None
    second.release()


def test_waiting_run_gets_the_released_lock(tmp_path: Path) -> None:
    lock, started = RunLock(str(tmp_path)), threading.Event()
    assert lock.acquire(US) is None

    def wait() -> ToolError | None:
        with RunLock(str(tmp_path)) as other:
            started.set()
            return other.acquire(Owner("b2"), 30)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        started.wait(10)
        lock.release()
        assert waiting.result(30) is None


UNREADABLE = (None, b'{"run_id": "a1", "pi', b'{"run_id": "a1", "pid": 0, "since": "x"}', b"[" * 4_000)


def test_unreadable_holder_is_reported_as_somebody(tmp_path: Path) -> None:
    written = tmp_path / "run.lock.json"
    with RunLock(str(tmp_path)) as lock:
        assert lock.acquire(US) is None
        for data in UNREADABLE:
            written.unlink(missing_ok=True)
            if data is not None:
                written.write_bytes(data)
            assert RunLock(str(tmp_path)).acquire(Owner("b2")) == SOMEBODY


@pytest.mark.parametrize("function", ["write", "rename"])
def test_lock_is_held_even_if_its_holder_cannot_be_written(tmp_path: Path, function: str) -> None:
    (tmp_path / "run.lock.json").write_text(json.dumps({"run_id": "gone", "pid": os.getpid(), "since": "x"}))
    with RunLock(str(tmp_path)) as lock:
        with failing(function, number=errno.ENOSPC, ever_after=True):
            assert lock.acquire(US) is None
        assert RunLock(str(tmp_path)).acquire(Owner("b2")) == SOMEBODY


def test_lock_refused_by_the_file_system_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.lock").symlink_to("elsewhere")
    message = f"Cannot lock {str(tmp_path / 'run.lock')!r}: its symbolic links lead in a circle."
    refused = ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    assert RunLock(str(tmp_path)).acquire(US) == refused


def test_dead_holder_is_not_named(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with RunLock(str(tmp_path)) as lock:
        assert lock.acquire(Owner("a1", gone.pid)) is None
        assert RunLock(str(tmp_path)).acquire(Owner("b2")) == SOMEBODY


def test_process_of_another_user_is_alive() -> None:
    with failing("kill", number=errno.EPERM):
        assert is_alive(1)


def test_released_lock_removes_the_holders_file_and_files_are_private(tmp_path: Path) -> None:
    with RunLock(str(tmp_path)) as lock:
        assert lock.acquire(US) is None
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert files == {"run.lock": 0o600, "run.lock.json": 0o600}
    assert os.listdir(tmp_path) == ["run.lock"]


def test_another_process_is_named_until_it_is_killed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    other = os.fork()
    if other == 0:
        lock = RunLock(str(tmp_path))
        lock.acquire(Owner("other", os.getpid()))
        os.write(writer, b"held")
        signal.pause()
    try:
        assert os.read(reader, 4) == b"held"
        holder = lock_holder(str(tmp_path))
        assert holder is not None
        assert (holder.run_id, holder.pid) == ("other", other)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    assert (tmp_path / "run.lock.json").exists()
    assert lock_holder(str(tmp_path)) is None


RUN = Owner("r1")
FAR = Owner("r2", 7, "2026-11-20T13:00:00Z", "far away")


def refusal(result: ToolError | None) -> ToolError:
    assert result is not None
    return result


@pytest.mark.usefixtures("any_store")
def test_workspace_is_locked_by_one_run_at_a_time(tmp_path: Path) -> None:
    one, two = WorkspaceLock(str(tmp_path)), WorkspaceLock(str(tmp_path))
    with one:
        assert one.acquire(RUN) is None
        assert "run 'r1'" in refusal(two.acquire(Owner("r2"))).message
        assert lock_holder(str(tmp_path)) == RUN
        assert RunLock(str(tmp_path)).acquire(RUN) is not None
    assert lock_holder(str(tmp_path)) is None
    assert two.acquire(Owner("r2")) is None
    two.release()
    two.release()


def test_holder_on_another_machine_is_named_and_nothing_stays_locked_here(shared_store: str, tmp_path: Path) -> None:
    open_database(str(tmp_path)).close()
    pool = PostgresPool(read_url(shared_store))
    theirs = pool.locks
    assert theirs.take(str(workspace_name(str(tmp_path))), FAR)
    assert lock_holder(str(tmp_path)) == FAR
    lock = WorkspaceLock(str(tmp_path), "in this workspace")
    assert refusal(lock.acquire(RUN, 0.01)) == ToolError(
        code=ToolErrorCode.UNAVAILABLE,
        message=(
            "Another run is working in this workspace: run 'r2', process 7 on 'far away', since 2026-11-20T13:00:00Z."
            " Wait for it to end, or stop it there."
        ),
    )
    with RunLock(str(tmp_path)) as run_lock:
        assert run_lock.acquire(RUN) is None
    pool.close()
    assert lock.acquire(RUN, 60.0) is None
    assert postgres_holder(str(workspace_name(str(tmp_path)))) == RUN
    lock.release()
    assert lock_holder(str(tmp_path)) is None


def test_lock_of_a_dead_process_of_this_machine_is_waited_for(shared_store: str, tmp_path: Path) -> None:
    """The server has not noticed the end yet; without waiting, a dead run would be reported as active."""
    open_database(str(tmp_path)).close()
    pool = PostgresPool(read_url(shared_store))
    theirs = pool.locks
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert theirs.take(str(workspace_name(str(tmp_path))), Owner("r2", dead.pid, FAR.since))
    threading.Timer(0.2, pool.close).start()
    with WorkspaceLock(str(tmp_path)) as lock:
        assert lock.acquire(RUN) is None


def test_unavailable_store_is_reported_and_nothing_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", NOWHERE)
    refused = refusal(WorkspaceLock(str(tmp_path)).acquire(RUN))
    assert (refused.code, "cannot be reached" in refused.message) == (ToolErrorCode.IO_ERROR, True)
    assert lock_holder(str(tmp_path)) is None
    with RunLock(str(tmp_path)) as lock:
        assert lock.acquire(RUN) is None
