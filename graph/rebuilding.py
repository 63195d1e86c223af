"""A run that another machine has begun goes on here: its files are made again from the shared journal. Pure."""

from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.rebuilt_files import Rebuilt, rebuild
from nodes.execute_tools.environment.run_folder import workspace_folder
from nodes.execute_tools.environment.run_lock import Owner, WorkspaceLock
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.records import ToolError, ToolErrorCode

__all__ = ["Rebuilt", "rebuild_workspace"]


def rebuild_workspace(run_id: str, root: str) -> Rebuilt | ToolError:
    """Bring a fresh copy of the run's workspace to where the run's last change that came to its end has left it.

    Called before the run is resumed, in a folder with the run's name (`give_workspace_name`). Where the files are
    so already, as in the folder in which the run was at work, nothing is done; so it may be called before every resume,
    and again after a kill. A change that was cut off is decided by the recovery when the run begins, by the files'
    hashes. What commands have left in ignored files is not recorded, and so not made again.

    Returns:
        What was written and removed. CONFLICT says that the files cannot be made again (their bytes were not kept, or
        the copy is not what the run began with): begin the run anew. UNAVAILABLE where another run works in the
        workspace, IO_ERROR where the store or the disk cannot be used: try again.
    """
    real = check_workspace(root)
    if isinstance(real, ToolError):
        return real
    folder = workspace_folder(real)
    if isinstance(folder, ToolError):
        return folder
    try:
        with WorkspaceLock(folder) as lock:
            busy = lock.acquire(Owner(run_id))
            return busy or rebuild(Journal(folder), real)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    except OSError as error:
        return os_failure(error, "make the files of the run again in", root)
