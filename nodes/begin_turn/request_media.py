"""What a request holds beside text, and what is told of it where the model does not take that. Pure."""

from collections.abc import Sequence

from langchain_core.messages import AnyMessage

MEDIA: dict[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("file", "document", "input_file", "pdf"), "file"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
}
"""What blocks of a message hold, by the types that providers give them."""


def media_of(message: AnyMessage) -> tuple[str, ...]:
    """What a message holds beside text, such as an image: each kind once, in order."""
    blocks = [] if isinstance(message.content, str) else [each for each in message.content if isinstance(each, dict)]
    types = (str(block.get("type", "block")) for block in blocks)
    return tuple(dict.fromkeys(MEDIA.get(kind, kind) for kind in types if kind != "text"))


def media_problem(kinds: Sequence[str], model: str) -> str:
    """Why a request with these kinds of content cannot be worked on; "" where there are none."""
    if not kinds:
        return ""
    held = " and ".join(f"content of the kind {kind!r}" for kind in kinds)
    named = model or "the model"
    return f"The request holds {held}, which {named} does not take: say it in words, or choose a model that does."
