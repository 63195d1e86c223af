"""Does the orders of a batch on a Ray cluster: one Ray task for each, tried again when its worker or node dies.

The retry is ours, not Ray's: a task that is tried again says so in its result, and goes on from the store.
"""

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S, Executor
from mendgraph.graph.fleet.batch.orders import WORKER_FAILED, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.ray_cluster import Cluster, connect, look_at_nodes
from mendgraph.nodes.call_model.endpoint import (
    EMBEDDED_MODEL,
    NO_KEY,
    Endpoint,
    FallbackProblem,
    find_endpoint,
    models_in_order,
)
from mendgraph.nodes.execute_tools.copies.copy_sources import MOST_PACKED_BYTES, Packed, pack_source
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

GRACE_S: Final = 30.0
"""How long tasks may take to stop after `cancel`, until their processes are ended."""

_AGAIN_S: Final = 5.0
_MOST_SOURCES: Final = 4
_LEAST_CPU: Final = 0.001
_GATEWAYS: Final = {"langsmith": ("LANGSMITH_GATEWAY_API_KEY", "LANGSMITH_API_KEY")}
"""Providers whose key is not that of their chat model class. Source: langchain.chat_models.init_chat_model."""


class _Source(NamedTuple):
    workspace: str
    revision: str
    without: tuple[str, ...]


def ray_executor(
    *, workers: int | None = None, address: str | None = None, context: AgentContext | None = None
) -> "RayExecutor | ToolError":
    """An executor on the cluster at `address`, or at RAY_ADDRESS; without either, on one that is started here.

    Args:
        workers: how many tasks are at work at a time, the CPUs of the cluster by default. More than it has CPUs share
            them: most of a task's time is the model's.
        address: `host:port` of the cluster's head.
        context: what tasks may do. Its model's key has to be in the environment of each node, which is looked at now.

    Returns:
        The executor, whose `run` is called once, and leaves the cluster at its end. UNAVAILABLE where the extra or the
        cluster is missing, or a node has other versions; PERMISSION_DENIED where a node lacks a variable with a
        secret; INVALID_ARGUMENT where nodes on several machines have no shared store.
    """
    cluster = connect(address)
    if isinstance(cluster, ToolError):
        return cluster
    try:
        problem = look_at_nodes(cluster, needed(context) if context is not None else ())
    except BaseException:
        cluster.close()
        raise
    if problem is not None:
        cluster.close()
        return problem
    return RayExecutor(cluster, workers)


class RayExecutor(Executor):
    """An `Executor` of Ray tasks; what does not stop within `GRACE_S` is ended."""

    worker = "Ray worker or node"

    def __init__(self, cluster: Cluster, workers: int | None = None) -> None:
        """Nothing is handed out yet."""
        cpus = max(1, int(cluster.cpus))
        super().__init__(workers or cpus, GRACE_S)
        self._cluster = cluster
        self._cpu = max(_LEAST_CPU, min(1.0, round(cpus / self._workers, 3)))
        self._references: dict[Any, WorkOrder] = {}
        self._sources: dict[_Source, Any] = {}
        self._asked_s = 0.0

    def close(self) -> None:
        """Leave the cluster, as the end of `run` does: for a batch that does not begin after all."""
        self._cluster.close()

    def _begin(self, order: WorkOrder) -> ToolError | None:
        source = self._source(order)
        if isinstance(source, ToolError):
            return source
        sent, needs = for_nodes(order)
        reference = self._cluster.submit(
            "do", pickle.dumps(sent), source, needs, num_cpus=self._cpu, scheduling_strategy="SPREAD"
        )
        self._references[reference] = order
        return None

    def _source(self, order: WorkOrder) -> Any:
        """A reference to the order's source, which is sent to the cluster once while tasks of it follow each other."""
        key = _Source(order.task.workspace, order.task.revision, order.without)
        found = self._sources.pop(key, None)
        if found is None:
            packed = pack_source(*key, MOST_PACKED_BYTES)
            try:
                found = self._cluster.ray.put(packed.data) if isinstance(packed, Packed) else packed
            except self._cluster.ray.exceptions.RayError as error:
                return _not_sent(order, error)
        self._sources[key] = found
        while len(self._sources) > _MOST_SOURCES:
            del self._sources[next(iter(self._sources))]
        return found

    def _gather(self) -> Iterator[Worked]:
        ready, _ = self._cluster.ray.wait([*self._references], timeout=ASKED_EVERY_S)
        for reference in ready:
            yield from self._came(reference, self._references.pop(reference))

    def _came(self, reference: Any, order: WorkOrder) -> Iterator[Worked]:
        ray = self._cluster.ray
        try:
            found: Worked | ToolError = self._cluster.get(reference)
        except ray.exceptions.TaskCancelledError:
            yield Worked(cancelled(order, self._reason or "by somebody who cancelled it in Ray"))
        except ray.exceptions.RayTaskError as error:
            yield Worked(failed(order, _unexpected(error), WORKER_FAILED))
        except ray.exceptions.RayError as error:
            if self._reason:
                yield Worked(cancelled(order, self._reason))
            else:
                yield from self._try_again(order, f"with {type(error).__name__}")
        else:
            yield found if isinstance(found, Worked) else Worked(failed(order, found, WORKER_FAILED))

    def _ask_to_stop(self) -> None:
        if not self._asked_s or monotonic_s() >= self._asked_s + _AGAIN_S:
            self._asked_s = monotonic_s()
            self._cancel_all(force=False)

    def _end(self) -> None:
        self._cancel_all(force=True)
        self._references.clear()
        self._sources.clear()
        self.close()

    def _cancel_all(self, *, force: bool) -> None:
        for reference in self._references:
            with suppress(self._cluster.ray.exceptions.RayError, ValueError):
                self._cluster.ray.cancel(reference, force=force, recursive=False)


def for_nodes(order: WorkOrder) -> tuple[WorkOrder, tuple[str, ...]]:
    """The order as a node gets it, and the variables that the node has to have.

    Which model this program would ask goes with it, and at which address, which may be its OPENAI_BASE_URL: a node may
    have other settings. No key goes with it.
    """
    given: JsonMap = json.loads(order.given)
    context = AgentContext.model_validate_json(order.context)
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    whole = AgentContext.model_construct(**{**dict(context), **given})
    here = find_endpoint(whole.model, whole.base_url, os.environ)
    named = isinstance(here, Endpoint) and here.provider  # whose package knows where it is
    if url and "@" not in url and not (whole.base_url or named):
        given["base_url"] = url
        whole = AgentContext.model_construct(**{**dict(context), **given})
    if isinstance(here, Endpoint) and here.embedded:
        context = context.model_copy(update={"model": EMBEDDED_MODEL})
    return order._replace(given=json.dumps(given), context=context.model_dump_json()), needed(whole)


def needed(context: AgentContext) -> tuple[str, ...]:
    """The variables with keys that this context's models use here, and so on each node."""
    choices = models_in_order(context.model, context.base_url, context.fallback_models)
    if isinstance(choices, FallbackProblem):
        return ()
    found = [find_endpoint(each.model, each.base_url, os.environ, key_variable=each.key_variable) for each in choices]
    keys = {_key_variable(each) for each in found if isinstance(each, Endpoint)} - {""}
    has_login = "@" in os.environ.get("OPENAI_BASE_URL", "") and any(
        not (choice.base_url or (isinstance(each, Endpoint) and (each.embedded or each.provider)))
        for choice, each in zip(choices, found, strict=True)
    )
    return tuple(sorted(keys | ({"OPENAI_BASE_URL"} if has_login else set())))


def _key_variable(endpoint: Endpoint) -> str:
    """The variable that the endpoint's key comes from here; "" where it has none."""
    if endpoint.provider:
        return next((each for each in _secrets_of(endpoint.provider) if os.environ.get(each, "").strip()), "")
    return "" if endpoint.embedded or endpoint.api_key.get_secret_value() == NO_KEY else endpoint.key_variable


def _secrets_of(provider: str) -> tuple[str, ...]:
    """The variables with secrets that the provider's chat model class reads, its key first; none where that is unknown.

    No chat model is set up for it: some of them load weights then, or ask a server.
    """
    from langchain.chat_models.base import _BUILTIN_PROVIDERS

    if provider in _GATEWAYS:
        return _GATEWAYS[provider]
    try:
        package, name, _ = _BUILTIN_PROVIDERS[provider]
        return tuple(getattr(import_module(package), name).model_construct().lc_secrets.values())
    except Exception:  # noqa: BLE001 - a package that is missing or broken here may be in order on the nodes
        return ()


def _not_sent(order: WorkOrder, error: Exception) -> ToolError:
    message = (
        f"The source of the task {order.task.id!r} could not be put into the cluster's object store"
        f" ({type(error).__name__}): give Ray more memory or disk, as with `ray start --object-store-memory=...`."
    )
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _unexpected(error: Exception) -> ToolError:
    """Of the error its type alone: its text has lines of a trace, and what a program on the node put into them."""
    cause = getattr(error, "cause", None) or error
    message = f"The worker met an error that nobody expected ({type(cause).__name__}): see Ray's logs of that node."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
