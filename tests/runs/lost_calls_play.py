"""A process that works on one thread until it is killed in a model call, or until the turn has ended."""

import os
import signal
from collections.abc import Callable
from typing import Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, RawCall
from tests.doubles.call_model import CallModel

DURABILITY: Final = "exit"
"""What keeps least; the sweeps of `tests/crash` kill runs that keep each step."""
TOKENS: Final = (100, 7)
"""What each call that ends is told to have used."""


class Moves(CallModel):
    """What a user's own model says, move by move."""

    def __init__(self, moves: str) -> None:
        self._moves = iter(moves)

    def complete(self, _: Call, __: Callable[[str], None]) -> ModelReply:
        move = next(self._moves)
        if move == "d":
            os.kill(os.getpid(), signal.SIGKILL)
        calls = (RawCall(call_id="c", tool="list_files", arguments="{}"),) if move == "c" else ()
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        given, taken = TOKENS
        text = "" if calls else "All is well."
        return ModelReply(text=text, calls=calls, finish_reason=finish, input_tokens=given, output_tokens=taken)


def work(argument: JsonMap) -> JsonMap:
    """The outcome of the turn.

    `context` has fields of the context; without a `request` the thread's last turn is taken up again. Of the `moves`,
    each letter is what a model call comes to: "c" calls a tool, "a" answers, "d" is the end of the process.
    """
    os.environ[DATA_DIR_VARIABLE] = argument["data"]
    context = AgentContext(protocol="native", evidence=False, read_ahead=False, **argument["context"])
    model, request = Moves(argument["moves"]), argument["request"]
    with Session(context, model=model, thread_id="t", durability=DURABILITY) as session:
        list(session.stream(request) if request else session.resume())
        return session.result().outcome.model_dump(mode="json")
