"""Who may begin a run, in which folder, with what: all that a server decides before the machine works.

The tenants file decides; a server without one does not start. A folder is found by a project's name, never by a path
from a request.
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
from mendgraph.nodes.execute_tools.store import database
from mendgraph.nodes.execute_tools.store.database_schema import STORE_TABLES
from mendgraph.nodes.execute_tools.store.run_folder import give_workspace_name, workspace_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner
from mendgraph.nodes.execute_tools.store.user_files import read_user_file
from mendgraph.nodes.records import StopCause, StopReason, ToolError, quoted

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import Locks as StoreLocks

USER = "langgraph_auth_user"
"""Where servers put who is authenticated, in a run's `configurable`; whatever a client puts there is replaced."""


class RunRefusedError(RuntimeError):
    """Why a run is not taken up and leaves the thread as it is: another one may be writing it, or may go on later."""


class Locks:
    """Locks by name in the shared store, for all servers of the database; each ends with its process."""

    def __init__(self, url: database.PostgresUrl) -> None:
        self.url = url

    @cached_property
    def _locks(self) -> "StoreLocks":
        from mendgraph.nodes.execute_tools.store.postgres import pool_of

        database.open_postgres(STORE_TABLES)  # whose functions the locks are taken with
        return pool_of(self.url).locks

    def take(self, name: str) -> bool:
        """Whether it is ours now. StoreError where nobody can tell."""
        return self._locks.take(_key(name), Owner("serving"))

    def leave(self, name: str) -> None:
        """Leave it to others."""
        self._locks.release(_key(name))

    def is_held(self, name: str) -> bool:
        """Whether any process has this lock. StoreError where nobody can tell."""
        return self._locks.holder(_key(name)) is not None


def _key(name: str) -> str:
    """No workspace's name has a blank."""
    return f"serving {name}"


class Admitter:
    """Admits the runs of one server process. Its methods wait for the disk and the database: call them in a thread."""

    def __init__(self, tenants: Tenants, locks: Locks) -> None:
        self.tenants = tenants
        self.locks = locks

    def user(self, configurable: Mapping[str, Any]) -> Tenant | StopCause:
        """The user whom the server has authenticated."""
        user = configurable.get(USER)
        if isinstance(user, Mapping):
            name = user.get("identity")
        else:
            name = getattr(user, "identity", None)

        tenant = None
        if isinstance(name, str):
            tenant = self.tenants.users.get(name)

        return tenant or refusal("Nobody knows who asks: send the header Authorization: Bearer <token>.")

    def admit(self, tenant: Tenant, context: object) -> AgentContext | StopCause:
        """The context of a new turn."""
        fields = fields_set(context)
        folder = project_folder(self.tenants.root, tenant.name, fields.get("workspace"))
        if isinstance(folder, StopCause):
            return folder

        return narrowed(fields, tenant.allowance, folder)

    def readmit(self, tenant: Tenant, stored: object) -> AgentContext | StopCause:
        """The stored context with which an interrupted turn continues, or why it may not.

        Its project may have to be registered on this server first: the turn may have begun on another one.
        """
        if not isinstance(stored, AgentContext):
            return refusal("There is nothing to go on with: send a request.")
        if stored.account != tenant.name:
            return refusal("This turn was begun by somebody else.")

        folder = project_folder(self.tenants.root, tenant.name, os.path.basename(stored.workspace))
        if isinstance(folder, StopCause):
            return folder

        what = "workspace"
        if folder == stored.workspace:
            what = ", ".join(too_wide(stored, tenant.allowance))

        if what:
            return refusal(f"The server allows other things than when this turn began ({what}): send a new request.")

        return stored


class Place:
    """One of a user's places for runs at once, and the thread, over all servers.

    It may be left from another thread while it is being taken, as when a run is cancelled: nothing is held after that.
    """

    def __init__(self, locks: Locks, tenant: Tenant, thread: str) -> None:
        self._locks = locks
        self._tenant = tenant
        self._thread = thread
        self._turn = threading.Lock()
        self._over = False
        self._held = list[str]()

    def take(self) -> StopCause | None:
        """Hold both from now on; why that cannot be. What was taken until then is held as well.

        Raises:
            RunRefusedError: another run writes the thread, or nobody can tell.
        """
        name = self._tenant.name
        most = self._tenant.runs_at_once

        with self._turn:
            try:
                if self._over:
                    return None
                if not self._takes(f"thread {self._thread}"):
                    raise RunRefusedError("Another run of this thread is at work: wait for it, or cancel it.")
                if any(self._takes(f"run {number} of {name}") for number in range(most)):
                    return None
            except database.StoreError as error:
                raise RunRefusedError(str(error)) from None

        message = (
            f"{name} has {most} run{'' if most == 1 else 's'} at work on these servers, which is the most at once."
        )

        return refusal(message, StopReason.WORKSPACE_BUSY)

    def leave(self) -> None:
        """Leave it to others, for good."""
        with self._turn:
            self._over = True
            while self._held:
                with suppress(database.StoreError):  # it was lost with the connection
                    self._locks.leave(self._held.pop())

    def _takes(self, name: str) -> bool:
        slot = self._locks.take(name)
        if slot:
            self._held.append(name)

        return slot


# --- The tenants file of this process

TENANTS_VARIABLE: Final = "MENDGRAPH_TENANTS"
"""Names the file."""


class CannotServeError(RuntimeError):
    """Why there is no server, in one line."""


@lru_cache(1)
def open_admitter() -> Admitter:
    """The one of this process.

    Raises:
        CannotServeError: there is no file, it is wrong, or what it names cannot be used.
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
        raise CannotServeError(f"root: there is no folder {quoted(tenants.root)}: make it, or name another one")

    try:
        url = database.postgres_url()
    except database.StoreError as error:
        raise CannotServeError(" ".join(str(error).split())) from None

    if url is None:
        raise CannotServeError(f"Servers share one PostgreSQL database: name it in {database.STORE_URL_VARIABLE}.")

    return Admitter(tenants, Locks(url))


# --- Where a project lies


def project_folder(root: str, user: str, project: object) -> str | StopCause:
    """The real folder `<root>/<user>/<project>`, which has its name in the shared store; or why there is none.

    Below the root both are folders themselves, and no links to others.
    """
    if not isinstance(project, str) or project in {"", "."}:
        return refusal('The request names no project: set workspace in its context to one\'s name, such as "website".')

    if not is_name(project):
        display = quoted(project[:80])
        return refusal(f"{display} is no project's name: workspace is one name of A-Z a-z 0-9 . _ -, and no path.")

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
