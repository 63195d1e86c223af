"""What the engine's configuration names: the machine for several users, each run of which is admitted first.

Only runs write its threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, NoReturn, cast

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.fleet.serving.admission import Admitter, Place, RunRefusedError, open_admitter
from mendgraph.graph.fleet.serving.tenants import Tenant
from mendgraph.graph.machine.build import AgentGraph, build_machine
from mendgraph.nodes.records import StopCause

_NOT_BEGUN: Final = frozenset({"__start__", "begin_turn"})
"""Where a thread stands whose request is written down, and no more."""


class ServedMachine(AgentGraph):
    """Runs as any compiled graph, for the users that `admitter` admits, which is opened when it is needed.

    A turn that is not admitted ends in SYSTEM_ERROR before anything is spent or touched.
    """

    def __init__(self, *, admitter: Callable[[], Admitter], **parts: Any) -> None:
        super().__init__(**parts)
        self.admitter = admitter

    async def astream(
        self,
        input: Any,  # noqa: A002 - LangGraph's name
        config: Any = None,
        *,
        context: Any = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Run once admitted; the parts are LangGraph's own."""
        configurable: Mapping[str, Any] = (config or {}).get("configurable") or {}

        if isinstance(input, Command) and (input.update or input.goto or input.graph):
            raise RunRefusedError(
                "A thread is written by its runs alone: a command may hold `resume`, and nothing else."
            )

        tenant = self.admitter().user(configurable)
        async with AsyncExitStack() as stack:
            run_input = input or None  # some servers send {} for a run that has no input
            refused = tenant if isinstance(tenant, StopCause) else await self._placed(stack, tenant, configurable)
            goes_on = isinstance(run_input, Command) or run_input is None

            if isinstance(tenant, StopCause) or refused is not None:
                cause = cast("StopCause", refused)
                if goes_on:
                    raise RunRefusedError(cause.message)

                admission = Admission(cause, "" if isinstance(tenant, StopCause) else tenant.name)
            else:
                if goes_on:
                    decide = self._goes_on(tenant, context, config)
                else:
                    decide = self._begins(tenant, context)

                admission = await decide

            if self.checkpointer:
                options["durability"] = "sync"  # what is done is on the disk before more is, whatever a client wants

            async with aclosing(cast("Any", super().astream(run_input, config, context=admission, **options))) as parts:
                async for part in parts:
                    yield part

    async def _placed(self, held: AsyncExitStack, tenant: Tenant, configurable: Mapping[str, Any]) -> StopCause | None:
        """Take a place, which is left when `held` ends."""
        place = Place(self.admitter().locks, tenant, str(configurable.get("thread_id") or ""))
        held.push_async_callback(asyncio.to_thread, place.leave)
        return await asyncio.to_thread(place.take)

    async def _begins(self, tenant: Tenant, asked: object) -> Admission:
        """What is decided of a new turn."""
        return Admission(await asyncio.to_thread(self.admitter().admit, tenant, asked), tenant.name)

    async def _goes_on(self, tenant: Tenant, asked: object, config: Any) -> Admission:
        """What is decided of a turn that was cut off, or has asked: it keeps the context that it began with.

        One that was cut off before it had any begins now.

        Raises:
            RunRefusedError: it may not go on.
        """
        snapshot = await self.aget_state(config)
        if not _NOT_BEGUN.isdisjoint(snapshot.next):
            return await self._begins(tenant, asked)

        readmitted = await asyncio.to_thread(self.admitter().readmit, tenant, snapshot.values.get("context"))
        if isinstance(readmitted, StopCause):
            raise RunRefusedError(readmitted.message)

        return Admission(readmitted, tenant.name)

    def stream(self, *_given: Any, **_options: Any) -> Iterator[Any]:
        """No server runs it like this."""
        raise RunRefusedError("A served machine is run by `astream` alone.")

    def update_state(self, *_given: Any, **_options: Any) -> NoReturn:
        """Not on a server, which answers 403: who writes a thread's state could give it any context."""
        from starlette.exceptions import HTTPException

        raise HTTPException(status_code=403, detail="A thread is written by its runs alone.")

    bulk_update_state = aupdate_state = abulk_update_state = update_state


def served(machine: CompiledStateGraph[Any, Any, Any, Any], admitter: Callable[[], Admitter]) -> ServedMachine:
    """The same machine, for the users of a server."""
    parts: dict[str, Any] = {name: value for name, value in vars(machine).items() if name != "__orig_class__"}
    return ServedMachine(admitter=admitter, **parts)


graph = served(build_machine(served=True)[0], open_admitter)
