"""In: one reply. Out: its calls, its errors or its answer, and the end of a healing that worked. No effect."""

from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.language.provider_state import without_thoughts
from mendgraph.nodes.parse.reading import Reader, read_reply
from mendgraph.nodes.parse.written_calls import drop_invented
from mendgraph.nodes.records import Correction, ModelReply, Reading


class ParseState(TypedDict, total=False):
    """What the node reads."""

    reply: ModelReply | None
    step: int
    corrections: list[Correction]


def parse(state: ParseState, reader: Reader) -> dict[str, Any]:
    """Read the reply; a reply that is not malformed closes the open corrections, so they leave the prompt.

    Where the model thought aloud or went on to invent results, the `reply` of the update is without both. With new
    calls the verdicts and results of the step before are dropped: a step that is cut off before guard has none.
    """
    reply = state.get("reply") or ModelReply()
    remaining = drop_invented(without_thoughts(reply), reader.known_tools)
    reading = read_reply(remaining, state.get("step", 0), reader)
    update: dict[str, Any] = reading._asdict()
    text = update.pop("text")

    if text is not None:
        remaining = remaining.model_copy(update={"text": text})

    if reading.reading is Reading.CALLS:
        update |= {"verdicts": [], "results": []}

    if remaining is not reply:
        update["reply"] = remaining

    if reading.reading is not Reading.MALFORMED and state.get("corrections"):
        update["corrections"] = []

    return update
