"""Who holds a lock, for somebody who only wants to know: it is tried for a moment, and nobody is kept waiting."""

import os
from contextlib import suppress

from filelock import FileLock, Timeout

from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.run_lock import Owner, written_owner
from nodes.execute_tools.environment.shared_name import known_shared_name
from nodes.execute_tools.environment.shared_url import is_shared


def lock_holder(folder: str, name: str = "run") -> Owner | None:
    """The holder of the `RunLock` of this name in `folder`, as it has written itself down; None where there is none.

    A holder that was killed has left its name, so the lock itself is asked whether anybody has it. That takes no
    longer than a moment, in which another one who wants the lock tries again. The lock of a workspace may be held on
    another machine, where the store is shared; nobody is named where that cannot be asked.
    """
    owner = written_owner(folder, f"{name}.lock")
    with suppress(OSError):
        if owner is not None and _is_held(os.path.join(folder, f"{name}.lock")):
            return owner
    return _elsewhere(folder) if name == "run" and is_shared() else None


def _elsewhere(folder: str) -> Owner | None:
    workspace = known_shared_name(folder)
    if workspace is None:
        return None
    with suppress(StoreError, ImportError):
        from nodes.execute_tools.environment.shared_lock import shared_holder

        return shared_holder(workspace)
    return None


def _is_held(path: str) -> bool:
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
