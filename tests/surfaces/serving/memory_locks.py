"""Locks in memory, as servers of one database have them, and a server's one user."""

from pathlib import Path

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.admission import Admitter, Locks
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants


class MemoryLocks(Locks):
    """Those in `held_elsewhere` are held by others."""

    def __init__(self, *held_elsewhere: str) -> None:
        self.names = set(held_elsewhere)

    def take(self, name: str) -> bool:
        free = name not in self.names
        self.names.add(name)
        return free

    def release(self, name: str) -> None:
        self.names.discard(name)

    def is_held(self, name: str) -> bool:
        return name in self.names


ANN = Tenant("ann", (), AgentContext(account="ann", max_steps=9), runs_at_once=2)


def admitter(root: Path, ann: Tenant = ANN, locks: MemoryLocks | None = None) -> Admitter:
    """That of a server whose one user is Ann, with her projects below `root`."""
    return Admitter(Tenants({"ann": ann}, root=str(root)), locks or MemoryLocks())
