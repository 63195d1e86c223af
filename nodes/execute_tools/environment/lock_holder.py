"""Who holds a lock, for somebody who only wants to know: it is tried for a moment, and nobody is kept waiting."""

import json
import os
from contextlib import suppress
from typing import Final

from filelock import FileLock, Timeout

from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.run_lock import Owner

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LONGEST_OWNER: Final = 4_096
"""Bytes of what a holder wrote down that are read."""


def lock_holder(folder: str, name: str = "run") -> Owner | None:
    """The holder of the `RunLock` of this name in `folder`, as it has written itself down; None where there is none.

    A holder that was killed has left its name, so the lock itself is asked whether anybody has it. That takes no
    longer than a moment, in which another one who wants the lock tries again.
    """
    path = os.path.join(folder, f"{name}.lock")
    with suppress(OSError):
        owner = _written(f"{path}.json")
        return owner if owner is not None and _is_held(path) else None
    return None


def _written(path: str) -> Owner | None:
    with closing(os.open(path, _READ)) as descriptor:
        data = os.read(descriptor, _LONGEST_OWNER)
    with suppress(ValueError, RecursionError):
        match json.loads(data):
            case {"run_id": str(run_id), "pid": int(pid), "since": str(since)}:
                return Owner(run_id, pid, since)
    return None


def _is_held(path: str) -> bool:
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
