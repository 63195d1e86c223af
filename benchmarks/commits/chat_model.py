"""The script as a chat model of LangChain."""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""

ANSWER = "Done."


class Replies:
    """The replies that are left, which all copies of a chat model share."""

    def __init__(self, replies: Sequence[Sequence[Call]]) -> None:
        self._left = list(replies)
        self._calls = 0

    def next(self) -> AIMessage:
        """The next reply, and in the end the answer."""
        if not self._left:
            return AIMessage(ANSWER)

        calls = []
        for name, arguments in self._left.pop(0):
            self._calls += 1
            calls.append({"name": name, "args": arguments, "id": f"call_{self._calls}", "type": "tool_call"})
        return AIMessage("", tool_calls=calls)


class ScriptedChat(BaseChatModel):
    """Gives the replies in order, whatever it is asked."""

    replies: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> "ScriptedChat":
        """The tools are known."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ARG002 - LangChain's
        return ChatResult(generations=[ChatGeneration(message=self.replies.next())])
