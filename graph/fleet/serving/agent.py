"""What the engine's configuration names: the machine for several users, each run of which is admitted first.

Only runs write its threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, NamedTuple, NoReturn, cast

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from mendgraph.graph.configuration.narrowing import Admission, fields_set
from mendgraph.graph.fleet.serving.admission import Admitter, RunRefusedError, open_admitter
from mendgraph.graph.fleet.serving.tenants import Tenant
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.compiled import AgentGraph
from mendgraph.nodes.records import StopCause

_NOT_BEGUN: Final = frozenset({"__start__", "begin_turn"})
"""Where a thread stands whose request is written down, and no more."""


PROJECT: Final = "mendgraph_project"
"""The key of a checkpoint's metadata that names the project, for the server that goes on with the turn."""


class _Decided(NamedTuple):
    """What was decided of a turn, and the project's name, "" where it has none."""

    admission: Admission
    project: str


class ServedMachine(AgentGraph):
    """Runs as any compiled graph, for the users that `admitter` admits, which is opened when it is needed.

    A turn that is not admitted ends in SYSTEM_ERROR before anything is spent or touched.
    """

    def __init__(self, *, admitter: Callable[[], Admitter], **parts: Any) -> None:
        super().__init__(**parts)
        self.admitter = admitter

    async def astream(self, *sent: Any, **options: Any) -> AsyncIterator[Any]:
        """Run once admitted; the parts are LangGraph's own."""
        request, config, more = _taken_apart(sent, options)
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        if isinstance(request, Command) and (request.update or request.goto or request.graph):
            raise RunRefusedError(
                "A thread is written by its runs alone: a command may hold `resume`, and nothing else."
            )
        asked, tenant = more.pop("context", None), self.admitter().user(configurable)
        async with AsyncExitStack() as held:
            refused = tenant if isinstance(tenant, StopCause) else await self._placed(held, tenant, configurable)
            goes_on = isinstance(request, Command) or not request
            if isinstance(tenant, StopCause) or refused is not None:
                cause = cast("StopCause", refused)
                if goes_on:
                    raise RunRefusedError(cause.message)
                admission, project = Admission(cause, "" if isinstance(tenant, StopCause) else tenant.name), ""
            else:
                decide = self._goes_on(tenant, asked, config) if goes_on else self._begins(tenant, asked)
                admission, project = await decide
            if self.checkpointer:
                more["durability"] = "sync"  # what is done is on the disk before more is, whatever a client wants
            known: Any = {**config, "metadata": {**(config.get("metadata") or {}), PROJECT: project}}
            given: Any = request or None  # some servers send {} for a run that has no input
            async with aclosing(cast("Any", super().astream(given, known, context=admission, **more))) as parts:
                async for part in parts:
                    yield part

    async def _placed(self, held: AsyncExitStack, tenant: Tenant, configurable: Mapping[str, Any]) -> StopCause | None:
        """Take a place, which is left when `held` ends."""
        place = self.admitter().place(tenant, str(configurable.get("thread_id") or ""))
        held.push_async_callback(asyncio.to_thread, place.leave)
        return await asyncio.to_thread(place.take)

    async def _begins(self, tenant: Tenant, asked: object) -> _Decided:
        """What is decided of a new turn."""
        admitted = await asyncio.to_thread(self.admitter().admit, tenant, asked)
        project = "" if isinstance(admitted, StopCause) else str(fields_set(asked)["workspace"])
        return _Decided(Admission(admitted, tenant.name), project)

    async def _goes_on(self, tenant: Tenant, asked: object, config: Any) -> _Decided:
        """What is decided of a turn that was cut off, or has asked: it keeps the context that it began with.

        One that was cut off before it had any begins now.

        Raises:
            RunRefusedError: it may not go on.
        """
        found = await self.aget_state(config)
        if not _NOT_BEGUN.isdisjoint(found.next):
            return await self._begins(tenant, asked)
        project, stored = (found.metadata or {}).get(PROJECT), found.values.get("context")
        readmitted = await asyncio.to_thread(self.admitter().readmit, tenant, stored, project)
        if isinstance(readmitted, StopCause):
            raise RunRefusedError(readmitted.message)
        return _Decided(Admission(readmitted, tenant.name), str(project))

    def stream(self, *_given: Any, **_options: Any) -> Iterator[Any]:
        """No server runs it like this."""
        raise RunRefusedError("A served machine is run by `astream` alone.")

    def update_state(self, *_given: Any, **_options: Any) -> NoReturn:
        """Not on a server: who writes a thread's state could give it any context."""
        raise _forbidden()

    bulk_update_state = update_state

    async def aupdate_state(self, *_given: Any, **_options: Any) -> NoReturn:
        """Not on a server: who writes a thread's state could give it any context."""
        raise _forbidden()

    abulk_update_state = aupdate_state


def served(machine: CompiledStateGraph[Any, Any, Any, Any], admitter: Callable[[], Admitter]) -> ServedMachine:
    """The same machine, for the users of a server."""
    parts: dict[str, Any] = {name: value for name, value in vars(machine).items() if name != "__orig_class__"}
    return ServedMachine(admitter=admitter, **parts)


def _forbidden() -> Exception:
    """What servers answer with 403."""
    from starlette.exceptions import HTTPException

    return HTTPException(status_code=403, detail="A thread is written by its runs alone.")


def _taken_apart(given: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Mapping[str, Any], dict[str, Any]]:
    """The input, the configuration, and the other arguments."""
    more = dict(options)
    request = given[0] if given else more.pop("input", None)
    config = given[1] if len(given) > 1 else more.pop("config", None)
    return request, config or {}, more


graph = served(build_graph(), open_admitter)
