"""In: the settled history and the budget. Out: one reply, or why there is none. Effect: a model call."""

from collections.abc import Sequence

from nodes.call_model.driver import Connector, OnText, OnWait, aperform, perform, unnoticed
from nodes.call_model.exchange import CallModelState, CallSettings, Update, exchange
from nodes.records import ToolSpec


def call_model(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[ToolSpec],
    connect: Connector,
    on_text: OnText,
    on_wait: OnWait = unnoticed,
) -> Update:
    """Make the next call of the turn, with its bounded retries; text and waits are told as they come."""
    return perform(exchange(state, settings, specs), connect, on_text, on_wait)


async def acall_model(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[ToolSpec],
    connect: Connector,
    on_text: OnText,
    on_wait: OnWait = unnoticed,
) -> Update:
    """Make the next call without blocking the event loop."""
    return await aperform(exchange(state, settings, specs), connect, on_text, on_wait)
