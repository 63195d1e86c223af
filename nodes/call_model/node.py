"""In: the settled history and the budget. Out: one reply, or why there is none. Effect: a model call."""

from collections.abc import Sequence

from mendgraph.nodes.call_model.exchange import CallModelState, CallSettings, Exchange
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.paid_call import asend_paid, send_paid, stopped
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.records import ToolSpec


def call_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Make the next call of the turn, with its bounded retries; text and waits are told as they come.

    Where somebody wants the run to stop, nothing is called, and nothing that was prepared is used up.
    """
    if services.stop.reason:
        return _stopped(state, services)
    exchange = Exchange(state, settings, specs, services.on_tell)
    while (request := exchange.next_request()) is not None:
        exchange.take(request, send_paid(request, exchange.spending, settings.budget, services))
    return exchange.update


async def acall_model(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
) -> Update:
    """Make the next call in the running event loop, without blocking it."""
    if services.stop.reason:
        return _stopped(state, services)
    exchange = Exchange(state, settings, specs, services.on_tell)
    while (request := exchange.next_request()) is not None:
        exchange.take(request, await asend_paid(request, exchange.spending, settings.budget, services))
    return exchange.update


def _stopped(state: CallModelState, services: CallServices) -> Update:
    return {"reply": None, "spending": state["spending"], "stop": stopped(services.stop.reason)}
