"""A workspace that moves to another machine: what is stored of its runs names the folder where they work now."""

from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from graph.context import AgentContext


class RootedSerializer(SerializerProtocol):
    """Gives each run's context with the workspace `root`, whichever folder it was stored with.

    A shared store knows a workspace by its name, so the folder in a stored context may be that of another machine.
    """

    def __init__(self, serializer: SerializerProtocol, root: str) -> None:
        self._serializer, self._root = serializer, root

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """As the other one's."""
        return self._serializer.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """As the other one's, but for the folder of a context."""
        value = self._serializer.loads_typed(data)
        if isinstance(value, AgentContext) and value.workspace != self._root:
            return value.model_copy(update={"workspace": self._root})
        return value
