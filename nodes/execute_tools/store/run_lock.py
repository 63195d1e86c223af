"""One run at a time in a workspace, and in a thread: locks that end with their holder, and say who that is.

A workspace is locked on this machine and, where the store is in PostgreSQL, on all others.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from filelock import FileLock, Timeout

from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.store.database import StoreError, postgres_database, uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import known_workspace_name
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import Locks

_POLL_S: Final = 0.01
_POSTGRES_POLL_S: Final = 0.05
"""How often PostgreSQL's lock is asked for again. Who waits for another machine does not notice this."""

_NOTICED_S: Final = 1.0
"""How long the server may take to notice that a process of this machine was killed."""
_LONGEST_OWNER: Final = 4_096
"""Bytes of what a holder wrote down that are read."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: a run, the process that it runs in, and since when, in UTC. By default it is us, and now.

    `host` is the name of the machine, "" for this one.
    """

    run_id: str
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    host: str = ""


class RunLock:
    """A lock in `folder`, which is there and private. `what` says in an error where the holder is at work.

    Of all locks of one name one is held at a time, among all processes and within each; none is held twice. The kernel
    keeps it (flock on a handle), so it ends with its process, whatever ends that. Its holder is written down beside it
    in `<name>.lock.json`, for others to read: nothing is decided by that. Any thread may take and release it.
    """

    def __init__(self, folder: str, name: str = "run", what: str = "in this workspace") -> None:
        self._folder = folder
        self._name = f"{name}.lock"
        self._what = what
        self._held: FileLock | None = None

    def __enter__(self) -> Self:
        """Acquire it before, or inside."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; None says that it is ours.

        UNAVAILABLE says who has it. What the file system refuses has the code of its reason.
        """
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
        """Leave it to others. The lock's file stays: a new one in its place would be another lock."""
        lock = self._held
        self._held = None
        if lock is not None:
            self._forget()
            lock.release()

    def _introduce(self, owner: Owner) -> None:
        """Write down who holds the lock, for others; it is held even where that cannot be done."""
        new = f"{self._name}.json.new"  # ours alone, and so its name as well
        data = json.dumps({"run_id": owner.run_id, "pid": owner.pid, "since": owner.since}).encode()

        try:
            with closing(os.open(self._folder, _DIRECTORY)) as folder:
                with closing(os.open(new, _WRITE, 0o600, dir_fd=folder)) as descriptor:
                    os.write(descriptor, data)

                os.rename(new, f"{self._name}.json", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            self._forget()  # a wrong name would be worse than none

    def _forget(self) -> None:
        with suppress(OSError), closing(os.open(self._folder, _DIRECTORY)) as folder:
            os.unlink(f"{self._name}.json", dir_fd=folder)


def busy(holder: Owner | None, what: str) -> ToolError:
    """The error for a lock that somebody else has, as far as it is known who."""
    if holder is None:
        message = f"Another run is at work {what}. Wait until it has ended, or stop it."
    elif holder.host:
        who = f"run {quoted(holder.run_id)}, process {holder.pid} on {quoted(holder.host)}, since {holder.since}"
        message = f"Another run is at work {what}: {who}. Wait until it has ended, or stop it there."
    else:
        who = f"run {quoted(holder.run_id)}, process {holder.pid}, since {holder.since}"
        remedy = f"Wait until it has ended, or stop it with Ctrl-C or `kill {holder.pid}`."
        message = f"Another run is at work {what}: {who}. {remedy}"

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def written_owner(folder: str, name: str) -> Owner | None:
    """Who the holder of the lock file `name` says it is, or was; None where nothing that can be read is there."""
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
    """Whether there is such a process on this machine."""
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False

    return True


class WorkspaceLock(RunLock):
    """The lock of the workspace whose folder of records this is; otherwise as `RunLock`.

    PostgreSQL's lock is held as long as this process is connected to the server; one that loses it for good finds that
    out when it writes next, which fails.
    """

    def __init__(self, folder: str, what: str = "in this workspace") -> None:
        super().__init__(folder, what=what)
        self._shared: tuple[Locks, str] | None = None

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; None says that it is ours.

        UNAVAILABLE says who has it, IO_ERROR that PostgreSQL cannot be asked. What the file system refuses has
        the code of its reason.
        """
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
        """Leave it to others."""
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

        from mendgraph.nodes.execute_tools.store.postgres import postgres_holder

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
    """The holder of the `RunLock` in `folder`, as it has written itself down; None where there is none.

    A holder that was killed has left its name, so the lock itself is asked whether anybody has it. That takes no
    longer than a moment, in which another one who wants the lock tries again. The lock of a workspace may be held on
    another machine, where the store is in PostgreSQL; nobody is named where that cannot be asked.
    """
    owner = written_owner(folder, "run.lock")
    with suppress(OSError):
        if owner is not None and _is_held(os.path.join(folder, "run.lock")):
            return owner

    workspace = known_workspace_name(folder) if uses_postgres() else None
    if workspace is None:
        return None

    with suppress(StoreError, ImportError):
        from mendgraph.nodes.execute_tools.store.postgres import postgres_holder

        return postgres_holder(workspace)

    return None


def _is_held(path: str) -> bool:
    try:
        with FileLock(path, mode=0o600, timeout=0, thread_local=False, fallback_to_soft=False):
            return False
    except Timeout:
        return True
