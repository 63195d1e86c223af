"""In: the settled history and the budget. Out: one reply, or why there is none. Effect: a model call."""

from collections.abc import Sequence

from nodes.call_model.driver import NEVER, Connector, OnText, OnWait, Stop, aperform, perform, unnoticed
from nodes.call_model.exchange import CallModelState, CallSettings, Stopped, Update, exchange, stopped
from nodes.records import ToolSpec


def call_model(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[ToolSpec],
    connect: Connector,
    on_text: OnText,
    on_wait: OnWait = unnoticed,
    stop: Stop = NEVER,
) -> Update:
    """Make the next call of the turn, with its bounded retries; text and waits are told as they come.

    Where somebody wants the run to stop, nothing is called, and nothing that was prepared is used up.
    """
    if stop.reason:
        return stopped(Stopped(reason=stop.reason), state["spending"])
    return perform(exchange(state, settings, specs), connect, on_text, on_wait, stop)


async def acall_model(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[ToolSpec],
    connect: Connector,
    on_text: OnText,
    on_wait: OnWait = unnoticed,
    stop: Stop = NEVER,
) -> Update:
    """Make the next call without blocking the event loop."""
    if stop.reason:
        return stopped(Stopped(reason=stop.reason), state["spending"])
    return await aperform(exchange(state, settings, specs), connect, on_text, on_wait, stop)
