"""A process that works on one thread until it is killed in a model call, or until the turn has ended.

`python -m tests.runs.lost_calls_play SETTINGS MOVES [REQUEST]`: settings are the durability and fields of the context
as JSON; without a request the thread's last turn is taken up again. Of the moves, each letter is what a model call
comes to: "c" calls a tool, "a" answers, "d" is the end of the process.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import FinishReason, ModelReply, RawCall
from tests.doubles.call_model import CallModel

KILLED: Final = 9
TOKENS: Final = (100, 7)
"""What each call that ends is told to have used."""


class Moves(CallModel):
    """What a user's own model says, move by move."""

    def __init__(self, moves: str) -> None:
        self._moves = iter(moves)

    def complete(self, _: Call, __: Callable[[str], None]) -> ModelReply:
        move = next(self._moves)
        if move == "d":
            os._exit(KILLED)
        calls = (RawCall(call_id="c", tool="list_files", arguments="{}"),) if move == "c" else ()
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        given, taken = TOKENS
        text = "" if calls else "All is well."
        return ModelReply(text=text, calls=calls, finish_reason=finish, input_tokens=given, output_tokens=taken)


def main(settings: str, moves: str, request: str = "") -> None:
    given = json.loads(settings)
    durability = given.pop("durability")
    context = AgentContext(protocol="native", evidence=False, read_ahead=False, wrap_up=False, **given)
    with Session(context, model=Moves(moves), thread_id="t", durability=durability) as session:
        list(session.stream(request) if request else session.resume())
        sys.stdout.write(session.result().outcome.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
