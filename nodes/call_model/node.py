"""In: the settled history and the budget. Out: one reply, why there is none, or another visit. Effect: a model call."""

from collections.abc import Sequence

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.exchange import Exchange
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.records import ToolSpec


def call_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Make one request at most; text and waits are told as they come. `pending_call` says that another follows."""
    exchange = Exchange(state, settings, specs, services)
    services.wait(exchange.pending.wait_s, exchange.pending.reason)
    call = exchange.next_call()

    if call is None:
        return exchange.update

    if not call.connect(services.connect(call.choice)):
        return exchange.take(call)

    if call.reserve():
        call.settle(services.send(call.model, call.call))

    return exchange.take(call)


async def acall_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Do the same in the running event loop, without blocking it."""
    exchange = Exchange(state, settings, specs, services)
    await services.await_(exchange.pending.wait_s, exchange.pending.reason)
    call = exchange.next_call()

    if call is None:
        return exchange.update

    if not call.connect(await services.aconnect(call.choice)):
        return exchange.take(call)

    if await call.areserve():
        call.settle(await services.asend(call.model, call.call))

    return exchange.take(call)
