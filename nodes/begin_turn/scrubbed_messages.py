"""A person's words without secrets, before a model reads them and a checkpoint keeps them."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from nodes.language.documents import storable


def scrubbed(messages: Sequence[AnyMessage], text: Callable[[str], str]) -> list[AnyMessage] | None:
    """All messages with `text` applied to what people said, half characters replaced; None where nothing changes.

    What models and tools said was scrubbed when it came in.
    """
    clean = [_scrubbed(message, lambda said: text(storable(said))) for message in messages]
    return clean if any(new is not old for new, old in zip(clean, messages, strict=True)) else None


def _scrubbed(message: AnyMessage, text: Callable[[str], str]) -> AnyMessage:
    if not isinstance(message, HumanMessage):
        return message
    content = _scrubbed_content(message.content, text)
    return message if content == message.content else message.model_copy(update={"content": content})


def _scrubbed_content(content: Any, text: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        return text(content)
    return [
        text(part)
        if isinstance(part, str)
        else {**part, "text": text(part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
