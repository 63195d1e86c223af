"""A workspace's store for as long as something is done with it, with or without the workspace for oneself."""

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from langchain_core.runnables import RunnableConfig

from graph.store import Store
from graph.workspace_records import decide_open_changes
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.run_lock import Owner, WorkspaceLock
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.records import ToolError, ToolErrorCode

Done = TypeVar("Done")


def with_store(workspace: str, use: Callable[[Store], Done | ToolError]) -> Done | ToolError:
    """What `use` gives for the workspace's store; IO_ERROR where that cannot be opened, read or written."""
    root = check_workspace(workspace)
    if isinstance(root, ToolError):
        return root
    try:
        with closing(Store(root)) as store:
            return use(store)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))


def with_store_alone(workspace: str, who: str, use: Callable[[Store, str], Done | ToolError]) -> Done | ToolError:
    """The same while no run works in the workspace, which is UNAVAILABLE otherwise; `use` is also given its real path.

    Every change that was cut off is decided before. `who` is what others are told as long as this takes.
    """

    def with_lock(store: Store) -> Done | ToolError:
        root, lock = str(check_workspace(workspace)), WorkspaceLock(store.folder)
        busy = lock.acquire(Owner(who))
        if busy is not None:
            return busy
        with lock:
            decided = decide_open_changes(Journal(store.folder), root)
            return decided if isinstance(decided, ToolError) else use(store, root)

    return with_store(workspace, with_lock)


def thread_config(run_id: str) -> RunnableConfig:
    """How LangGraph is told which run is meant."""
    return {"configurable": {"thread_id": run_id}}
