"""Who may begin a run, in which folder, with what: all that a server decides before the machine works."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import fields_set, narrowed, refusal, too_wide
from mendgraph.graph.fleet.serving.folders import Resolver, project_folder
from mendgraph.graph.fleet.serving.locks import Locks
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import StopCause, StopReason

USER = "langgraph_auth_user"
"""Where servers put who is authenticated, in a run's `configurable`; whatever a client puts there is replaced."""


class RunRefusedError(RuntimeError):
    """Why a run is not taken up and leaves the thread as it is: another one may be writing it, or may go on later."""


class FrontDesk:
    """Admits the runs of one server process. Its methods wait for the disk and the database: call them in a thread."""

    def __init__(self, tenants: Tenants, resolver: Resolver, locks: Locks) -> None:
        self.tenants = tenants
        self._resolver, self.locks = resolver, locks

    def user(self, configurable: Mapping[str, Any]) -> Tenant | StopCause:
        """Who the server says is asking."""
        found = configurable.get(USER)
        try:
            name = found["identity"] if isinstance(found, Mapping) else getattr(found, "identity", None)
        except KeyError:
            name = None
        tenant = self.tenants.users.get(name) if isinstance(name, str) else None
        return tenant or refusal("Nobody knows who asks: send the header Authorization: Bearer <token>.")

    def admit(self, tenant: Tenant, asked: object) -> AgentContext | StopCause:
        """The context of a new turn."""
        fields = fields_set(asked)
        folder = project_folder(self._resolver, tenant.name, fields.get("workspace"))
        return folder if isinstance(folder, StopCause) else narrowed(fields, tenant.allowance, folder)

    def readmit(self, tenant: Tenant, stored: object, project: object) -> AgentContext | StopCause:
        """The context with which a turn that has begun goes on, which is the one that it began with; or why not.

        Its project may have to be made known here first: the turn may have begun on another server.
        """
        if not isinstance(stored, AgentContext):
            return refusal("There is nothing to go on with: send a request.")
        if stored.account != tenant.name:
            return refusal("This turn was begun by somebody else.")
        folder = project_folder(self._resolver, tenant.name, project)
        if isinstance(folder, StopCause):
            return folder
        what = ", ".join(("workspace",) if folder != stored.workspace else too_wide(stored, tenant.allowance))
        if what:
            return refusal(f"The server allows other things than when this turn began ({what}): send a new request.")
        return stored

    def place(self, tenant: Tenant, thread: str) -> "Place":
        """A place for one run of this user, which is not taken yet."""
        return Place(self.locks, tenant, thread)


class Place:
    """One of a user's places for runs at once, and the thread, over all servers.

    It may be left from another thread while it is being taken, as when a run is cancelled: nothing is held after that.
    """

    def __init__(self, locks: Locks, tenant: Tenant, thread: str) -> None:
        self._locks, self._tenant, self._thread = locks, tenant, thread
        self._turn, self._over, self._held = threading.Lock(), False, list[str]()

    def take(self) -> StopCause | None:
        """Hold both from now on; why that cannot be. What was taken until then is held as well.

        Raises:
            RunRefusedError: another run writes the thread, or nobody can tell.
        """
        with self._turn:
            try:
                return None if self._over else self._taken()
            except StoreError as error:
                raise RunRefusedError(str(error)) from None

    def leave(self) -> None:
        """Leave it to others, for good."""
        with self._turn:
            self._over = True
            while self._held:
                with suppress(StoreError):  # it was lost with the connection
                    self._locks.leave(self._held.pop())

    def _taken(self) -> StopCause | None:
        if self._locks.for_threads and not self._takes(f"thread {self._thread}"):
            raise RunRefusedError("Another run of this thread is at work: wait for it, or cancel it.")
        name, most = self._tenant.name, self._tenant.runs_at_once
        if not any(self._takes(f"run {number} of {name}") for number in range(most)):
            said = f"{name} has {most} {_runs(most)} at work on these servers, which is the most at once."
            return refusal(said, StopReason.WORKSPACE_BUSY)
        return None

    def _takes(self, name: str) -> bool:
        taken = self._locks.take(name)
        if taken:
            self._held.append(name)
        return taken


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"
