import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.nodes.call_model.driver import Hands
from mendgraph.nodes.call_model.exchange import CallModelState, CallSettings
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.records import (
    EditForm,
    Effect,
    ModelReply,
    Profile,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    StopCause,
    StopReason,
    ToolSpec,
)

READ = ToolSpec(name="read_file", description="Read a file.", parameters={}, effect=Effect.READ)
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3, seconds=0.0)
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="busy", retry_after_s=0.0)
PROFILES = [
    Profile(),
    Profile(protocol=Protocol.NATIVE),
    Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS, embedded=True),
]


class Scripted(Model):
    """Answers with `results` in order and keeps the calls."""

    def __init__(self, *results: ModelReply | ProviderFailure) -> None:
        self.results = list(results)
        self.calls: list[Call] = []

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.calls.append(call)
        result = self.results.pop(0)
        if isinstance(result, ModelReply):
            on_text(result.text)
        return result


def run(asynchronous: bool, model: Scripted, state: CallModelState, settings: CallSettings) -> tuple[Any, list[str]]:
    said: list[str] = []

    hands = Hands(lambda _: model, said.append)
    if asynchronous:
        update = asyncio.run(acall_model(state, settings, [READ], hands))
    else:
        update = call_model(state, settings, [READ], hands)
    if "spending" in update:  # the clock's part, which is the driver's
        update["spending"] = update["spending"].model_copy(update={"seconds": 0.0})
    return update, said


def begun(profile: Profile) -> CallModelState:
    return CallModelState(messages=[HumanMessage("Fix calc.py")], profile=profile, spending=Spending(), step=2)


@pytest.mark.parametrize("profile", PROFILES)
def test_both_ways_give_the_same_update_and_the_same_calls(profile: Profile) -> None:
    sync, other = Scripted(BUSY, REPLY), Scripted(BUSY, REPLY)
    update, said = run(False, sync, begun(profile), CallSettings())
    assert (update, said) == run(True, other, begun(profile), CallSettings())
    assert sync.calls == other.calls
    assert (update["reply"], update["step"], said) == (REPLY, 3, ["Hello"])
    assert update["spending"].usage == (2, 70, 3, 2)
    assert [tool["function"]["name"] for tool in sync.calls[0].prompt.tools] == (
        ["read_file"] if profile.protocol is Protocol.NATIVE else []
    )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_called_once_somebody_wants_the_run_to_stop(asynchronous: bool) -> None:
    model, stop, spending = Scripted(), StopRequest(), Spending(steps=2, seconds=1.0)
    stop.ask("by the program")
    state = CallModelState(
        messages=[HumanMessage("hi")], profile=Profile(), spending=spending, preload=ModelReply(preloaded=True)
    )
    given: Any = (state, CallSettings(), [READ], Hands(lambda _: model, print, print, stop=stop))
    update = asyncio.run(acall_model(*given)) if asynchronous else call_model(*given)
    cause = StopCause(reason=StopReason.CANCELLED, message="The run was stopped by the program.")
    assert update == {"reply": None, "spending": spending, "stop": cause}
    assert model.calls == []
