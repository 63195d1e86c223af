"""Read one reply: its calls, its errors or its answer. No effects."""

from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.language.provider_state import without_thoughts
from mendgraph.nodes.parse.reading import Reader, read_reply
from mendgraph.nodes.parse.written_calls import without_invented
from mendgraph.nodes.records import Correction, ModelReply, Reading


class ParseState(TypedDict, total=False):
    """The keys of the state that this node reads."""

    reply: ModelReply | None
    step: int
    corrections: list[Correction]


def parse(state: ParseState, reader: Reader) -> dict[str, Any]:
    """Read the reply; a reply that is not malformed removes the open corrections from the prompt.

    If the reply contains thoughts or invented results, the update has a `reply` without them. With new calls the
    verdicts and results of the previous step are removed, so that a step interrupted before guard has none.
    """
    reply = state.get("reply") or ModelReply()
    remaining = without_invented(without_thoughts(reply), reader.known_tools)
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
