"""The embedded model on a Ray node: one server for all tasks there, in an actor that lives as long as the batch."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mendgraph.nodes.call_model.embedded.local_model import LocalServer, shared_local_server, take_local_server_from
from mendgraph.nodes.execute_tools.files.deadline import pause
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

Start = Callable[[], LocalServer | ProviderFailure]

_HELD: Final[dict[str, Any]] = {}
"""An actor ends when the process that started it lets go of it: it is held even while its server is found dead."""

_LONGEST_START_S: Final = 120.0
_LONGEST_LOOK_S: Final = 20.0
_MOST_STARTS: Final = 20
_PAUSE_S: Final = 0.25


class ModelOfNode:
    """The actor: it starts the server when the first task asks, and again where it has died since."""

    def __init__(self, start: Start | None = None) -> None:
        """Nothing is started yet. Without `start` it is the server of the embedded model."""
        self._start = start or shared_local_server

    def serve(self) -> tuple[str, str] | ProviderFailure:
        """The server's address and the name of its model, or why there is none."""
        server = self._start()
        return server if isinstance(server, ProviderFailure) else (server.base_url, server.model)


class NodeServer(LocalServer):
    """The server of another process of this node. To stop it is not up to us."""

    def __init__(self, actor: Any, base_url: str, model: str) -> None:
        """`actor` is a handle of the `ModelOfNode` that serves at this address."""
        self.base_url, self.model = base_url, model
        self._actor = actor

    @property
    def alive(self) -> bool:
        """Whether it still answers at this address."""
        try:
            found = ray.get(self._actor.serve.remote(), timeout=_LONGEST_LOOK_S)
        except RayError:
            return False
        return bool(found == (self.base_url, self.model))

    def stop(self) -> None:
        """Leave it to the actor, which ends with the batch."""


def use_node_model(start: Start | None = None) -> None:
    """Let this worker process share the node's server, wherever a run needs the embedded model."""
    take_local_server_from(lambda: node_server(start))


def node_server(start: Start | None = None) -> LocalServer | ProviderFailure:
    """The node's server. Whoever asks first starts the actor; the server runs until the batch ends, or its node does.

    The actor belongs to the job and to the process that started it: where that process dies, the next one that needs
    a model starts another. An actor of one node is of no use to another, as its server listens on loopback alone.
    """
    node = ray.get_runtime_context().get_node_id()
    for _ in range(_MOST_STARTS - 1):
        with suppress(RayActorError):
            return _server_of(node, start)
        pause(_PAUSE_S)  # the actor ended with the process that had started it, and its name is not free yet
    try:
        return _server_of(node, start)
    except RayActorError as error:
        return _unreachable(error)


def _server_of(node: str, start: Start | None) -> LocalServer | ProviderFailure:
    actor: Any = (
        ray.remote(ModelOfNode)
        .options(
            name=f"mendgraph-model-{node}",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(start)
    )
    _HELD[node] = actor
    try:
        found: tuple[str, str] | ProviderFailure = ray.get(actor.serve.remote(), timeout=_LONGEST_START_S)
    except RayActorError:
        raise
    except RayError as error:
        return _unreachable(error)
    return found if isinstance(found, ProviderFailure) else NodeServer(actor, *found)


def _unreachable(error: Exception) -> ProviderFailure:
    message = f"the node's local model server cannot be reached ({type(error).__name__})"
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
