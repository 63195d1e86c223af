"""The admission of runs: the user, the folder and the settings, decided before the machine starts.

The tenants file decides; a server without one does not start. A request names a project, never a path.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import short_path
from mendgraph.graph.configuration.narrowing import fields_set, narrowed, refusal, too_wide
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants, is_name, parse_tenants
from mendgraph.nodes.records import StopCause, StopReason, ToolError, quoted
from mendgraph.nodes.workspace.store import database
from mendgraph.nodes.workspace.store.database_schema import STORE_TABLES
from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, workspace_folder
from mendgraph.nodes.workspace.store.run_lock import Owner
from mendgraph.nodes.workspace.store.user_files import read_user_file

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.store.postgres import Locks as StoreLocks

USER = "langgraph_auth_user"
"""The key of the authenticated user in a run's `configurable`; servers replace what a client puts there."""


class RunRefusedError(RuntimeError):
    """A run is refused and leaves the thread as it is: another run may be writing it, or it may continue later."""


class Locks:
    """Locks by name, shared by all servers of the database; each ends with its process."""

    def __init__(self, url: database.PostgresUrl) -> None:
        self.url = url

    @cached_property
    def _locks(self) -> "StoreLocks":
        from mendgraph.nodes.workspace.store.postgres import pool_of

        database.open_postgres(STORE_TABLES)  # it creates the functions of the locks
        return pool_of(self.url).locks

    def take(self, name: str) -> bool:
        """Try to take the lock; return whether it is ours. Raises StoreError."""
        return self._locks.take(_key(name), Owner("serving"))

    def release(self, name: str) -> None:
        """Release the lock."""
        self._locks.release(_key(name))

    def is_held(self, name: str) -> bool:
        """Return whether any process has the lock. Raises StoreError."""
        return self._locks.holder(_key(name)) is not None


def _key(name: str) -> str:
    """Return the key of the lock; names of workspaces have no blank."""
    return f"serving {name}"


class Admitter:
    """Admits the runs of one server process. Its methods block on the disk and the database: call them in a thread."""

    def __init__(self, tenants: Tenants, locks: Locks) -> None:
        self.tenants = tenants
        self.locks = locks

    def user(self, configurable: Mapping[str, Any]) -> Tenant | StopCause:
        """Return the authenticated user, or why there is none."""
        user = configurable.get(USER)
        if isinstance(user, Mapping):
            name = user.get("identity")
        else:
            name = getattr(user, "identity", None)

        tenant = None
        if isinstance(name, str):
            tenant = self.tenants.users.get(name)

        return tenant or refusal("The request names no known user: send the header Authorization: Bearer <token>.")

    def admit(self, tenant: Tenant, context: object) -> AgentContext | StopCause:
        """Return the context of a new turn, or why it is refused."""
        fields = fields_set(context)
        folder = project_folder(self.tenants.root, tenant.name, fields.get("workspace"))
        if isinstance(folder, StopCause):
            return folder

        return narrowed(fields, tenant.allowance, folder)

    def readmit(self, tenant: Tenant, stored: object) -> AgentContext | StopCause:
        """Return the stored context with which an interrupted turn continues, or why it may not.

        This registers its project on this server, as the turn may have begun on another one.
        """
        if not isinstance(stored, AgentContext):
            return refusal("There is nothing to continue: send a request.")
        if stored.account != tenant.name:
            return refusal("Somebody else started this turn.")

        folder = project_folder(self.tenants.root, tenant.name, os.path.basename(stored.workspace))
        if isinstance(folder, StopCause):
            return folder

        what = "workspace"
        if folder == stored.workspace:
            what = ", ".join(too_wide(stored, tenant.allowance))

        if what:
            return refusal(f"The server allows other things than when this turn began ({what}): send a new request.")

        return stored


class RunSlot:
    """One of a user's slots for concurrent runs, and the lock of the thread, over all servers.

    Another thread may release it while it is being taken, as when a run is cancelled: nothing is locked after that.
    """

    def __init__(self, locks: Locks, tenant: Tenant, thread: str) -> None:
        self._locks = locks
        self._tenant = tenant
        self._thread = thread
        self._mutex = threading.Lock()
        self._is_released = False
        self._names = list[str]()

    def take(self) -> StopCause | None:
        """Take the thread and a slot; return why there is no slot. `release` releases what was taken.

        Raises:
            RunRefusedError: another run writes the thread, or the store cannot be reached.
        """
        name = self._tenant.name
        most = self._tenant.runs_at_once

        with self._mutex:
            try:
                if self._is_released:
                    return None
                if not self._take_lock(f"thread {self._thread}"):
                    raise RunRefusedError("Another run of this thread is working: wait for it, or cancel it.")
                if any(self._take_lock(f"run {number} of {name}") for number in range(most)):
                    return None
            except database.StoreError as error:
                raise RunRefusedError(str(error)) from None

        message = f"{name} has {most} run{'' if most == 1 else 's'} working on these servers, which is the maximum."

        return refusal(message, StopReason.WORKSPACE_BUSY)

    def release(self) -> None:
        """Release it for good."""
        with self._mutex:
            self._is_released = True
            while self._names:
                with suppress(database.StoreError):  # it ended with the connection
                    self._locks.release(self._names.pop())

    def _take_lock(self, name: str) -> bool:
        is_ours = self._locks.take(name)
        if is_ours:
            self._names.append(name)

        return is_ours


# --- The tenants file of this process

TENANTS_VARIABLE: Final = "MENDGRAPH_TENANTS"
"""Names the tenants file."""


class CannotServeError(RuntimeError):
    """The server cannot start; the message is one line."""


@lru_cache(1)
def open_admitter() -> Admitter:
    """Return the admitter of this process.

    Raises:
        CannotServeError: there is no tenants file, it is wrong, or its folder or the store cannot be used.
    """
    path = os.environ.get(TENANTS_VARIABLE, "").strip()
    if not path:
        raise CannotServeError(f"Name the file with the server's users in {TENANTS_VARIABLE}.")

    text = read_user_file(path)
    if isinstance(text, ToolError):
        raise CannotServeError(f"{text.message} {TENANTS_VARIABLE} names it.")

    tenants = parse_tenants(text, short_path(path))
    if not isinstance(tenants, Tenants):
        first, *others = map(str, tenants)
        raise CannotServeError(f"{first}{f' (and {len(others)} more problems)' if others else ''}")

    if not os.path.isdir(tenants.root):
        raise CannotServeError(f"root: there is no folder {quoted(tenants.root)}: create it, or name another one")

    try:
        url = database.postgres_url()
    except database.StoreError as error:
        raise CannotServeError(" ".join(str(error).split())) from None

    if url is None:
        raise CannotServeError(f"Servers share one PostgreSQL database: name it in {database.STORE_URL_VARIABLE}.")

    return Admitter(tenants, Locks(url))


# --- Projects


def project_folder(root: str, user: str, project: object) -> str | StopCause:
    """Return the real folder `<root>/<user>/<project>`, named in the shared store; or why there is none.

    Below the root, neither may be a symbolic link.
    """
    if not isinstance(project, str) or project in {"", "."}:
        return refusal('The request names no project: set workspace in its context to one\'s name, such as "website".')

    if not is_name(project):
        display = quoted(project[:80])
        return refusal(f"{display} is not the name of a project: workspace is a name of A-Z a-z 0-9 . _ -, not a path.")

    folder = os.path.realpath(root)

    for name in (user, project):
        folder = os.path.join(folder, name)
        if os.path.islink(folder) or not os.path.isdir(folder):
            return refusal(f"There is no project {project}. Ask the people who run this server for it.")

    if database.uses_postgres():
        records = workspace_folder(folder)
        problem = records if isinstance(records, ToolError) else give_workspace_name(records, f"{user}/{project}")
        if problem is not None:
            return refusal(problem.message)

    return folder
