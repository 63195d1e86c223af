"""The obedient model as a chat model of LangChain."""

import json
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.redteam.model import Answer, ObedientModel
from benchmarks.redteam.steps import Step

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


class ObedientChat(BaseChatModel):
    """Returns the next step of the model as a tool call. `call_of` translates a step; None skips it."""

    obedient: Any
    call_of: Any
    call_count: int = 0

    @property
    def _llm_type(self) -> str:
        return "obedient"

    def bind_tools(self, *_: Any, **__: Any) -> "ObedientChat":
        """Return the model itself, because `call_of` knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        obedient: ObedientModel = self.obedient
        call_of: Callable[[Step], Call | None] = self.call_of
        prompt = "\n".join(text_of(message) for message in messages)
        last = messages[-1] if messages else None
        result = text_of(last) if isinstance(last, ToolMessage) else ""

        while True:
            step = obedient.next(prompt, result)
            if isinstance(step, Answer):
                return _chat_result(AIMessage(step.text))
            if call := call_of(step):
                return _chat_result(AIMessage("", tool_calls=[self._tool_call(*call)]))

    def _tool_call(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        self.call_count += 1
        return ToolCall(name=name, args=arguments, id=f"call_{self.call_count}", type="tool_call")


def text_of(message: BaseMessage) -> str:
    """Return the content of a message as text."""
    content = message.content
    return content if isinstance(content, str) else json.dumps(content)


def _chat_result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])
