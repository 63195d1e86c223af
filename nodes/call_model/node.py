"""In: the settled history and the budget. Out: one reply, or why there is none. Effect: a model call."""

from collections.abc import Sequence

from mendgraph.nodes.call_model.driver import Hands, aperform, perform
from mendgraph.nodes.call_model.exchange import CallModelState, CallSettings, exchange
from mendgraph.nodes.call_model.model import Stopped, Update
from mendgraph.nodes.call_model.paid_call import stopped
from mendgraph.nodes.records import ToolSpec


def call_model(state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], hands: Hands) -> Update:
    """Make the next call of the turn, with its bounded retries; text and waits are told as they come.

    Where somebody wants the run to stop, nothing is called, and nothing that was prepared is used up.
    """
    if hands.stop.reason:
        return _given_up(state, hands)
    return perform(exchange(state, settings, specs), hands)


async def acall_model(state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], hands: Hands) -> Update:
    """Make the next call without blocking the event loop."""
    if hands.stop.reason:
        return _given_up(state, hands)
    return await aperform(exchange(state, settings, specs), hands)


def _given_up(state: CallModelState, hands: Hands) -> Update:
    return {"reply": None, "spending": state["spending"], "stop": stopped(Stopped(reason=hands.stop.reason))}
