"""Images, sound and files in messages: which kinds a message has, and a note in place of what a model does not take."""

import re
from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Final

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage, convert_to_openai_messages

from mendgraph.nodes.records import JsonMap, ToolError, invalid, quoted

_KINDS: Final[dict[str, str]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "file": "file",
    "document": "file",
    "input_file": "file",
    "pdf": "file",
    "audio": "audio",
    "input_audio": "audio",
}
"""The kind of a content block, by the types that providers use."""

MOST_MEDIA_BYTES: Final = 5_242_880
"""The most bytes of an image or a sound for a model. Source: Anthropic, "Vision"."""

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The media types of the images that models accept. Source: Anthropic, "Vision"."""

_SIGNATURES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""How the data of each image begins, whatever the name of its file says."""


def image_block(name: str, data: bytes) -> JsonMap | ToolError | None:
    """Return the content block of an image file; None if the data is not an image that models accept."""
    mime_type = next((kind for kind, signature in _SIGNATURES.items() if signature.match(data)), None)
    if mime_type is None:
        return None

    if len(data) > MOST_MEDIA_BYTES:
        return invalid(f"Cannot read {quoted(name)}: an image may have at most {MOST_MEDIA_BYTES:,} bytes.")

    return {"type": "image", "base64": b64encode(data).decode("ascii"), "mime_type": mime_type}


def media_of(message: AnyMessage) -> tuple[str, ...]:
    """Return the kinds of content beside text in a user or tool message, each once, in order."""
    if isinstance(message.content, str) or not isinstance(message, HumanMessage | ToolMessage):
        return ()

    kinds: list[str] = []
    for block in message.content:
        if isinstance(block, str):
            continue

        kind = _kind(block)
        if kind != "text" and kind not in kinds:
            kinds.append(kind)

    return tuple(kinds)


def in_openai_form(message: AnyMessage) -> list[JsonMap] | None:
    """Return the content blocks in OpenAI's form; None if one of them, such as a video, has none."""
    try:
        blocks: list[JsonMap] = convert_to_openai_messages([message], text_format="block")[0]["content"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None

    return blocks


def without_media(message: AnyMessage, kinds: Collection[str]) -> AnyMessage:
    """Replace each block of these kinds by a note; return the same message if it has none."""
    if not kinds or isinstance(message.content, str):
        return message

    content: list[str | JsonMap] = []
    for block in message.content:
        if isinstance(block, str) or _kind(block) not in kinds:
            content.append(block)
        else:
            content.append({"type": "text", "text": f"[{_kind(block)}, not shown: the model does not take it]"})

    return message.model_copy(update={"content": content})


def text_without_media(message: AnyMessage) -> str:
    """Return the text of a message, with a note for each kind of other content."""
    notes = [f"[{kind}, which is not shown any more]" for kind in media_of(message)]
    return "\n".join([message.text, *notes])


def media_problem(kinds: Sequence[str], model: str) -> str:
    """Return why the model cannot take a request with these kinds of content; "" for no kinds."""
    if not kinds:
        return ""

    media = " and ".join(f"content of the kind {kind!r}" for kind in kinds)
    return (
        f"The request holds {media}, which {model or 'the model'} does not take:"
        " say it in words, or choose a model that does."
    )


def _kind(block: JsonMap) -> str:
    block_type = str(block.get("type", "block"))
    return _KINDS.get(block_type, block_type)
