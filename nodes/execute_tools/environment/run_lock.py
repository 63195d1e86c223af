"""One run at a time in a workspace, and in a thread: a lock that ends with its holder, and says who that is."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from filelock import FileLock, Timeout

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing
from nodes.records import ToolError, ToolErrorCode

_POLL_S: Final = 0.01
_INTRODUCTION_S: Final = 1.0
"""How long a new holder may take to write down who it is."""
_LONGEST_OWNER: Final = 4_096
"""Bytes of what a holder wrote down that are read."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: a run, the process that it runs in, and since when, in UTC. By default it is us, and now.

    `host` is the name of the machine, "" for this one.
    """

    run_id: str
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=_now)
    host: str = ""


class RunLock:
    """A lock in `folder`, which is there and private. `what` says in an error where the holder is at work.

    Of all locks of one name one is held at a time, among all processes and within each; none is held twice. The kernel
    keeps it (flock on a handle), so it ends with its process, whatever ends that. Its holder is written down beside it
    in `<name>.lock.json`, for others to read: nothing is decided by that. Any thread may take and release it.
    """

    def __init__(self, folder: str, name: str = "run", what: str = "in this workspace") -> None:
        self._folder, self._name, self._what = folder, f"{name}.lock", what
        self._held: FileLock | None = None

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; None says that it is ours.

        UNAVAILABLE says who has it. What the file system refuses has the code of its reason.
        """
        path = os.path.join(self._folder, self._name)
        lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, poll_interval=_POLL_S)
        try:
            if self._held is not None:
                return self._busy(self._written())
            busy = None if _taken(lock, wait_s) else self._refused(lock)
        except OSError as error:
            return os_failure(error, "lock", path)
        if busy is None:
            self._held = lock
            self._introduce(owner)
        return busy

    def release(self) -> None:
        """Leave it to others. The lock's file stays: a new one in its place would be another lock."""
        held, self._held = self._held, None
        if held is not None:
            self._forget()
            held.release()

    def __enter__(self) -> Self:
        """Return the lock, which is acquired before or inside."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it, if it is held."""
        self.release()

    def _refused(self, lock: FileLock) -> ToolError | None:
        """Why the lock was not taken; None where it has become ours meanwhile.

        A holder that was killed leaves its name, and a new one takes a moment to write down its own: so the name of a
        process that is no more is not believed at first.
        """
        deadline = time.monotonic() + _INTRODUCTION_S
        while True:
            holder = self._written()
            if (holder is not None and is_alive(holder.pid)) or time.monotonic() >= deadline:
                return self._busy(holder)
            if _taken(lock, _POLL_S):
                return None

    def _busy(self, holder: Owner | None) -> ToolError:
        return busy(holder, self._what)

    def _introduce(self, owner: Owner) -> None:
        """Write down who holds the lock, for others; it is held even where that cannot be done."""
        new, data = f"{self._name}.json.new", _written_down(owner)  # ours alone, and so its name as well
        try:
            with closing(self._open_folder()) as folder:
                with closing(os.open(new, _WRITE, 0o600, dir_fd=folder)) as descriptor:
                    os.write(descriptor, data)
                os.rename(new, f"{self._name}.json", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            self._forget()  # a wrong name would be worse than none

    def _forget(self) -> None:
        with suppress(OSError), closing(self._open_folder()) as folder:
            os.unlink(f"{self._name}.json", dir_fd=folder)

    def _written(self) -> Owner | None:
        return written_owner(self._folder, self._name)

    def _open_folder(self) -> int:
        return _open_folder(self._folder)


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


def _taken(lock: FileLock, wait_s: float) -> bool:
    try:
        lock.acquire(timeout=max(0.0, wait_s))
    except Timeout:
        return False
    return True


def written_owner(folder: str, name: str) -> Owner | None:
    """Who the holder of the lock file `name` says it is, or was; None where nothing that can be read is there."""
    try:
        with (
            closing(_open_folder(folder)) as handle,
            closing(os.open(f"{name}.json", _READ, dir_fd=handle)) as descriptor,
        ):
            return _owner(os.read(descriptor, _LONGEST_OWNER))
    except OSError:
        return None


def _written_down(owner: Owner) -> bytes:
    return json.dumps({"run_id": owner.run_id, "pid": owner.pid, "since": owner.since}).encode()


def _open_folder(folder: str) -> int:
    return os.open(folder, _DIRECTORY)


def _owner(data: bytes) -> Owner | None:
    try:
        match json.loads(data):
            case {"run_id": str(run_id), "pid": int(pid), "since": str(since)} if pid > 0:
                return Owner(run_id, pid, since)
    except (ValueError, RecursionError):
        pass
    return None


def is_alive(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
