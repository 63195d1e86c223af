"""What a request holds beside text, and what is told of it where the model does not take that. Pure."""

from collections.abc import Collection, Sequence

from langchain_core.messages import AnyMessage, HumanMessage, convert_to_openai_messages

from nodes.records import JsonMap

MEDIA: dict[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("file", "document", "input_file", "pdf"), "file"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
}
"""What blocks of a message hold, by the types that providers give them."""


def media_of(message: AnyMessage) -> tuple[str, ...]:
    """What a person's message holds beside text, such as an image: each kind once, in order."""
    if isinstance(message.content, str) or not isinstance(message, HumanMessage):
        return ()
    blocks = (each for each in message.content if isinstance(each, dict))
    return tuple(dict.fromkeys(kind for kind in map(_kind, blocks) if kind != "text"))


def in_openai_form(message: AnyMessage) -> list[JsonMap] | None:
    """The blocks of a person's message as OpenAI's; None where one of them, such as a video, has no such form."""
    try:
        found: list[JsonMap] = convert_to_openai_messages([message], text_format="block")[0]["content"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return found


def without_media(message: AnyMessage, kinds: Collection[str]) -> AnyMessage:
    """The message with a note in place of each block of these kinds; the message itself where it has none."""
    if not kinds or isinstance(message.content, str):
        return message
    content = [each if isinstance(each, str) or _kind(each) not in kinds else _note(each) for each in message.content]
    return message.model_copy(update={"content": content})


def _kind(block: JsonMap) -> str:
    named = str(block.get("type", "block"))
    return MEDIA.get(named, named)


def _note(block: JsonMap) -> JsonMap:
    return {"type": "text", "text": f"[{_kind(block)}, not shown: the model does not take it]"}


def media_problem(kinds: Sequence[str], model: str) -> str:
    """Why a request with these kinds of content cannot be worked on; "" where there are none."""
    if not kinds:
        return ""
    held = " and ".join(f"content of the kind {kind!r}" for kind in kinds)
    named = model or "the model"
    return f"The request holds {held}, which {named} does not take: say it in words, or choose a model that does."
