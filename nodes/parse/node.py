"""In: one reply. Out: its calls, its errors or its answer, and the end of a healing that worked. No effect."""

from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.language.history import without_thoughts
from mendgraph.nodes.parse.reading import Reader, read_reply
from mendgraph.nodes.parse.written_calls import kept_part
from mendgraph.nodes.records import Correction, ModelReply, Reading


class ParseState(TypedDict, total=False):
    """What the node reads."""

    reply: ModelReply | None
    step: int
    corrections: list[Correction]


def parse(state: ParseState, reader: Reader) -> dict[str, Any]:
    """Read the reply; a reply that is not malformed closes the open corrections, so they leave the prompt.

    Where the model thought aloud or went on to invent results, `reply` is what it said beside and before that. With new
    calls the verdicts and results of the ones before are forgotten: a step that is cut off before guard has none.
    """
    said = state.get("reply") or ModelReply()
    reply = kept_part(without_thoughts(said), reader.known_tools)
    read = read_reply(reply, state.get("step", 0), reader)
    update: dict[str, Any] = read._asdict()
    text = update.pop("text")

    if text is not None:
        reply = reply.model_copy(update={"text": text})

    if read.reading is Reading.CALLS:
        update |= {"verdicts": [], "results": []}

    if reply is not said:
        update["reply"] = reply

    if read.reading is not Reading.MALFORMED and state.get("corrections"):
        update["corrections"] = []

    return update
