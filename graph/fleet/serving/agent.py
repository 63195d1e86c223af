"""The graph that the engine serves: the machine for several users, each run of which has to be admitted.

Only runs write its threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, NoReturn, cast

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.fleet.serving.admission import Admitter, RunRefusedError, RunSlot, open_admitter
from mendgraph.graph.fleet.serving.tenants import Tenant
from mendgraph.graph.machine.build import AgentGraph, build_machine
from mendgraph.nodes.records import StopCause

_NOT_BEGUN: Final = frozenset({"__start__", "begin_turn"})
"""The next nodes of a thread whose request is stored, and whose turn has not begun."""


class ServedMachine(AgentGraph):
    """A compiled graph for the users that `admitter()` admits.

    A turn that is not admitted ends in SYSTEM_ERROR before anything is spent or changed.
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
        """Run if admitted; yield the parts of LangGraph's stream."""
        if isinstance(input, Command) and (input.update or input.goto or input.graph):
            raise RunRefusedError("Only its runs may write a thread: a command may hold `resume`, and nothing else.")

        run_input = input or None  # some servers send {} for a run without input
        continues = isinstance(run_input, Command) or run_input is None

        async with AsyncExitStack() as stack:
            admission = await self._admit(stack, config, context, continues=continues)
            if self.checkpointer:
                options["durability"] = "sync"  # each step is stored before the next one, whatever a client requests

            async with aclosing(cast("Any", super().astream(run_input, config, context=admission, **options))) as parts:
                async for part in parts:
                    yield part

    async def _admit(self, stack: AsyncExitStack, config: Any, context: object, *, continues: bool) -> Admission:
        """Return the admission of a run, whose slot is released at the end of `stack`.

        Raises:
            RunRefusedError: a run that `continues` a turn is refused.
        """
        configurable: Mapping[str, Any] = (config or {}).get("configurable") or {}
        tenant = self.admitter().user(configurable)
        if isinstance(tenant, StopCause):
            return _refused(tenant, "", continues=continues)

        cause = await self._take_slot(stack, tenant, configurable)
        if cause is not None:
            return _refused(cause, tenant.name, continues=continues)
        if continues:
            return await self._admit_resumed(tenant, context, config)

        return await self._admit_new(tenant, context)

    async def _take_slot(
        self, stack: AsyncExitStack, tenant: Tenant, configurable: Mapping[str, Any]
    ) -> StopCause | None:
        """Take a slot, which is released at the end of `stack`; return why there is none."""
        slot = RunSlot(self.admitter().locks, tenant, str(configurable.get("thread_id") or ""))
        stack.push_async_callback(asyncio.to_thread, slot.release)
        return await asyncio.to_thread(slot.take)

    async def _admit_new(self, tenant: Tenant, context: object) -> Admission:
        """Return the admission of a new turn."""
        return Admission(await asyncio.to_thread(self.admitter().admit, tenant, context), tenant.name)

    async def _admit_resumed(self, tenant: Tenant, context: object, config: Any) -> Admission:
        """Return the admission of a turn that was interrupted or waits for approval: it keeps its context.

        A turn that was interrupted before it had a context begins now.

        Raises:
            RunRefusedError: it may not continue.
        """
        snapshot = await self.aget_state(config)
        if not _NOT_BEGUN.isdisjoint(snapshot.next):
            return await self._admit_new(tenant, context)

        readmitted = await asyncio.to_thread(self.admitter().readmit, tenant, snapshot.values.get("context"))
        if isinstance(readmitted, StopCause):
            raise RunRefusedError(readmitted.message)

        return Admission(readmitted, tenant.name)

    def stream(self, *_arguments: Any, **_options: Any) -> Iterator[Any]:
        """Refuse: a server does not use sync runs."""
        raise RunRefusedError("A served machine is run by `astream` alone.")

    def update_state(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse with 403: a client that writes a thread's state could set any context."""
        from starlette.exceptions import HTTPException

        raise HTTPException(status_code=403, detail="Only its runs may write a thread.")

    bulk_update_state = aupdate_state = abulk_update_state = update_state


def _refused(cause: StopCause, user: str, *, continues: bool) -> Admission:
    """Return the admission of a new run that ends with this cause. Raises RunRefusedError for one that `continues`."""
    if continues:
        raise RunRefusedError(cause.message)

    return Admission(cause, user)


def served(machine: CompiledStateGraph[Any, Any, Any, Any], admitter: Callable[[], Admitter]) -> ServedMachine:
    """Return the same machine, for the users of a server."""
    parts: dict[str, Any] = {name: value for name, value in vars(machine).items() if name != "__orig_class__"}
    return ServedMachine(admitter=admitter, **parts)


graph = served(build_machine(served=True)[0], open_admitter)
