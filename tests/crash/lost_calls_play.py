"""A process that works on one thread until it is killed in a model call or a wait, or until the turn has ended."""

import os
import signal
from collections.abc import Callable
from typing import Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Waiting
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE
from tests.doubles.call_model import CallModel

DURABILITY: Final = "exit"
"""What keeps least; the sweeps of `tests/crash` kill runs that keep each step."""
WAITS: Final = {"b": 0.01, "w": 3.0}
"""The seconds of the wait after a busy endpoint; in the longer one the process dies."""
TOKENS: Final = (100, 7)
"""What each call that ends is told to have used."""


class MovesModel(CallModel):
    """A user's own model that follows the moves."""

    def __init__(self, moves: str) -> None:
        self._moves = iter(moves)

    def complete(self, _: Call, __: Callable[[str], None]) -> ModelReply | ProviderFailure:
        move = next(self._moves)
        if move == "d":
            os.kill(os.getpid(), signal.SIGKILL)
        if move in WAITS:
            return ProviderFailure(
                kind=ProviderErrorKind.RATE_LIMITED, message="It is busy.", retry_after_s=WAITS[move]
            )
        calls = (RawCall(call_id="c", tool="list_files", arguments="{}"),) if move == "c" else ()
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        input_tokens, output_tokens = TOKENS
        text = "" if calls else "All is well."
        return ModelReply(
            text=text, calls=calls, finish_reason=finish, input_tokens=input_tokens, output_tokens=output_tokens
        )


def work(argument: JsonMap) -> JsonMap:
    """The outcome of the turn.

    `context` has fields of the context; without a `request` the thread's last turn is taken up again. Of the `moves`,
    each letter is what a model call comes to: "c" calls a tool, "a" answers, "b" is busy, "d" is the end of the
    process, and "w" is busy and the end of the process in the wait.
    """
    os.environ[DATA_DIR_VARIABLE] = argument["data"]
    context = AgentContext(protocol="native", evidence=False, read_ahead=False, **argument["context"])
    model, request = MovesModel(argument["moves"]), argument["request"]
    durability = argument["durability"]
    with Session(context, model=model, thread_id="t", durability=durability) as session:
        for event in session.stream(request) if request else session.resume():
            if isinstance(event, Waiting) and event.seconds == WAITS["w"] and "w" in argument["moves"]:
                os.kill(os.getpid(), signal.SIGKILL)
        return session.result().outcome.model_dump(mode="json")
