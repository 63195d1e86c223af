"""In: the settled history and the budget. Out: a reply, a stop cause, or a pending call. Effect: a model call."""

from collections.abc import Sequence

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.exchange import CallVisit
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.records import ToolSpec


def call_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Make at most one request. `pending_call` in the update means that the node has to run again."""
    visit = CallVisit(state, settings, specs, services)
    services.wait(visit.pending.wait_s, visit.pending.reason)
    call = visit.next_call()

    if call is None:
        return visit.update

    if not call.connect(services.connect(call.choice)):
        return visit.finish(call)

    if call.reserve():
        call.settle(services.send(call.model, call.call))

    return visit.finish(call)


async def acall_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Do the same in the running event loop."""
    visit = CallVisit(state, settings, specs, services)
    await services.wait_async(visit.pending.wait_s, visit.pending.reason)
    call = visit.next_call()

    if call is None:
        return visit.update

    if not call.connect(await services.aconnect(call.choice)):
        return visit.finish(call)

    if await call.areserve():
        call.settle(await services.asend(call.model, call.call))

    return visit.finish(call)
