"""Locks in memory, as servers of one database have them."""

from mendgraph.graph.fleet.serving.admission import Locks


class MemoryLocks(Locks):
    """Those in `taken` are others'."""

    def __init__(self, *taken: str) -> None:
        self.names = set(taken)

    def take(self, name: str) -> bool:
        free = name not in self.names
        self.names.add(name)
        return free

    def leave(self, name: str) -> None:
        self.names.discard(name)

    def is_held(self, name: str) -> bool:
        return name in self.names
