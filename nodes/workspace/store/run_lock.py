"""Locks for one run at a time in a workspace and in a thread; they end with their process and name it.

If the store is in PostgreSQL, a workspace is locked on all machines.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from filelock import FileLock, Timeout

from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.deadline import monotonic_s, pause
from mendgraph.nodes.workspace.files.handles import closing
from mendgraph.nodes.workspace.store.database import StoreError, postgres_database, uses_postgres
from mendgraph.nodes.workspace.store.run_folder import known_workspace_name

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.store.postgres import Locks

_POLL_S: Final = 0.01
_POSTGRES_POLL_S: Final = 0.05
"""Interval at which PostgreSQL's lock is tried again."""

_NOTICED_S: Final = 1.0
"""Time in which the server notices that a process of this machine was killed."""
_LONGEST_OWNER: Final = 4_096
"""Size limit of the file that names a holder."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Owner:
    """The holder of a lock: a run, its process (by default this one) and its start in UTC.

    `host` is the name of the machine, "" for this one.
    """

    run_id: str
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    host: str = ""


class RunLock:
    """A file lock in a private `folder`, held once among all processes and threads; `what` is for error messages.

    It is a lock of the kernel (flock), which ends with its process. `<name>.lock.json` names its holder to others.
    Any thread may take and release it.
    """

    def __init__(self, folder: str, name: str = "run", what: str = "in this workspace") -> None:
        self._folder = folder
        self._name = f"{name}.lock"
        self._what = what
        self._held: FileLock | None = None

    def __enter__(self) -> Self:
        """The lock is acquired before, or in the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; UNAVAILABLE names its holder."""
        path = os.path.join(self._folder, self._name)
        lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, poll_interval=_POLL_S)

        try:
            lock.acquire(timeout=max(0.0, wait_s))
        except Timeout:
            holder = written_owner(self._folder, self._name)
            return busy(holder if holder is not None and is_alive(holder.pid) else None, self._what)
        except OSError as error:
            return os_failure(error, "lock", path)

        self._held = lock
        self._introduce(owner)
        return None

    def release(self) -> None:
        """Release the lock. Its file remains: a new one in its place would be another lock."""
        lock = self._held
        self._held = None
        if lock is not None:
            self._forget()
            lock.release()

    def _introduce(self, owner: Owner) -> None:
        """Name the holder to others, if that is possible."""
        new = f"{self._name}.json.new"  # only the holder writes it
        data = json.dumps({"run_id": owner.run_id, "pid": owner.pid, "since": owner.since}).encode()

        try:
            with closing(os.open(self._folder, _DIRECTORY)) as folder:
                with closing(os.open(new, _WRITE, 0o600, dir_fd=folder)) as descriptor:
                    os.write(descriptor, data)

                os.rename(new, f"{self._name}.json", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            self._forget()  # so that no previous holder is named

    def _forget(self) -> None:
        with suppress(OSError), closing(os.open(self._folder, _DIRECTORY)) as folder:
            os.unlink(f"{self._name}.json", dir_fd=folder)


def busy(holder: Owner | None, what: str) -> ToolError:
    """Return the error for a lock that is held, by a known or unknown holder."""
    if holder is None:
        message = f"Another run is working {what}. Wait for it to end, or stop it."
    elif holder.host:
        who = f"run {quoted(holder.run_id)}, process {holder.pid} on {quoted(holder.host)}, since {holder.since}"
        message = f"Another run is working {what}: {who}. Wait for it to end, or stop it there."
    else:
        who = f"run {quoted(holder.run_id)}, process {holder.pid}, since {holder.since}"
        remedy = f"Wait for it to end, or stop it with Ctrl-C or `kill {holder.pid}`."
        message = f"Another run is working {what}: {who}. {remedy}"

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def written_owner(folder: str, name: str) -> Owner | None:
    """Return the holder that is recorded for the lock file `name`, which may have ended."""
    try:
        with (
            closing(os.open(folder, _DIRECTORY)) as handle,
            closing(os.open(f"{name}.json", _READ, dir_fd=handle)) as descriptor,
        ):
            match json.loads(os.read(descriptor, _LONGEST_OWNER)):
                case {"run_id": str(run_id), "pid": int(pid), "since": str(since)} if pid > 0:
                    return Owner(run_id, pid, since)
    except (OSError, ValueError, RecursionError):
        pass

    return None


def is_alive(pid: int) -> bool:
    """Return whether the process exists on this machine."""
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False

    return True


class WorkspaceLock(RunLock):
    """The lock of the workspace with this data folder, otherwise as `RunLock`.

    A process that loses PostgreSQL's lock to another one fails at its next write.
    """

    def __init__(self, folder: str, what: str = "in this workspace") -> None:
        super().__init__(folder, what=what)
        self._shared: tuple[Locks, str] | None = None

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; UNAVAILABLE names its holder, IO_ERROR: PostgreSQL fails."""
        latest = monotonic_s() + wait_s
        if (refused := super().acquire(owner, wait_s)) is not None:
            return refused

        try:
            refused = self._acquire_in_postgres(owner, latest)
        except StoreError as error:
            refused = ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
        except BaseException:
            super().release()
            raise

        if refused is not None:
            super().release()

        return refused

    def release(self) -> None:
        """Release the lock."""
        shared = self._shared
        self._shared = None
        if shared is not None:
            locks, workspace = shared
            locks.release(workspace)

        super().release()

    def _acquire_in_postgres(self, owner: Owner, latest: float) -> ToolError | None:
        database = postgres_database(self._folder)
        if database is None:
            return None

        from mendgraph.nodes.workspace.store.postgres import postgres_holder

        noticed = monotonic_s() + _NOTICED_S

        while not database.locks.take(database.workspace, owner):
            if monotonic_s() >= latest:
                holder = postgres_holder(database.workspace)
                alive = holder is not None and (bool(holder.host) or is_alive(holder.pid))
                if alive or monotonic_s() >= noticed:
                    return busy(holder, self._what)

            pause(_POSTGRES_POLL_S)

        self._shared = database.locks, database.workspace
        return None


def lock_holder(folder: str) -> Owner | None:
    """Return the holder of the workspace's lock, on this machine or by PostgreSQL on another one; None if unknown.

    The name of a killed holder remains, so the lock itself is tried for a moment.
    """
    owner = written_owner(folder, "run.lock")
    with suppress(OSError):
        if owner is not None and _is_held(os.path.join(folder, "run.lock")):
            return owner

    workspace = known_workspace_name(folder) if uses_postgres() else None
    if workspace is None:
        return None

    with suppress(StoreError, ImportError):
        from mendgraph.nodes.workspace.store.postgres import postgres_holder

        return postgres_holder(workspace)

    return None


def _is_held(path: str) -> bool:
    try:
        with FileLock(path, mode=0o600, timeout=0, thread_local=False, fallback_to_soft=False):
            return False
    except Timeout:
        return True
