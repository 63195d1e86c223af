"""The lock of a workspace: one run at a time, on this machine and, where the store is shared, on all others."""

from types import TracebackType
from typing import Final, Self

from nodes.execute_tools.environment.database import StoreError, shared_database
from nodes.execute_tools.environment.deadline import monotonic_s, pause
from nodes.execute_tools.environment.run_lock import Owner, RunLock, busy, is_alive
from nodes.records import ToolError, ToolErrorCode

_POLL_S: Final = 0.05
"""How often the shared lock is asked for again. Who waits for another machine does not notice this."""

_NOTICED_S: Final = 1.0
"""How long the server may take to notice that a process of this machine was killed."""


class WorkspaceLock:
    """The lock of the workspace whose folder of records this is; otherwise as `RunLock`.

    The shared lock is held as long as this process is connected to the server; one that loses it for good finds that
    out when it writes next, which fails.
    """

    def __init__(self, folder: str, what: str = "in this workspace") -> None:
        self._folder, self._what = folder, what
        self._own = RunLock(folder, what=what)
        self._shared = ""

    def acquire(self, owner: Owner, wait_s: float = 0.0) -> ToolError | None:
        """Take the lock within `wait_s` seconds; None says that it is ours.

        UNAVAILABLE says who has it, IO_ERROR that the shared store cannot be asked. What the file system refuses has
        the code of its reason.
        """
        latest = monotonic_s() + wait_s
        refused = self._own.acquire(owner, wait_s)
        if refused is not None:
            return refused
        try:
            refused = self._acquire_shared(owner, latest)
        except StoreError as error:
            refused = ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
        except BaseException:
            self._own.release()
            raise
        if refused is not None:
            self._own.release()
        return refused

    def release(self) -> None:
        """Leave it to others."""
        shared, self._shared = self._shared, ""
        if shared:
            from nodes.execute_tools.environment.shared_lock import release_shared

            release_shared(shared)
        self._own.release()

    def __enter__(self) -> Self:
        """Return the lock, which is acquired before or inside."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it, if it is held."""
        self.release()

    def _acquire_shared(self, owner: Owner, latest: float) -> ToolError | None:
        database = shared_database(self._folder)
        if database is None:
            return None
        from nodes.execute_tools.environment.shared_lock import shared_holder, take_shared

        noticed = monotonic_s() + _NOTICED_S
        while not take_shared(database.workspace, owner):
            if monotonic_s() >= latest:
                holder = shared_holder(database.workspace)
                if _is_at_work(holder) or monotonic_s() >= noticed:
                    return busy(holder, self._what)
            pause(_POLL_S)
        self._shared = database.workspace
        return None


def _is_at_work(holder: Owner | None) -> bool:
    """Whether the holder is known, and no process of this machine that is no more."""
    return holder is not None and (bool(holder.host) or is_alive(holder.pid))
