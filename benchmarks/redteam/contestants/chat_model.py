"""The obedient model as a chat model of LangChain, and the steps as calls of a contestant's tools."""

import json
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.redteam.model import Answer, Obedient
from benchmarks.redteam.steps import Step

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


class ObedientChat(BaseChatModel):
    """Says what `mind` does next, as calls that `call_of` makes of a step; None skips one that no tool can do."""

    mind: Any
    call_of: Any
    made: int = 0

    @property
    def _llm_type(self) -> str:
        return "obedient"

    def bind_tools(self, *_: Any, **__: Any) -> "ObedientChat":
        """The tools are known."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        mind: Obedient = self.mind
        call_of: Callable[[Step], Call | None] = self.call_of
        shown = "\n".join(text_of(message) for message in messages)
        last = messages[-1] if messages else None
        result = text_of(last) if isinstance(last, ToolMessage) else ""
        while True:
            step = mind.next(shown, result)
            if isinstance(step, Answer):
                return _said(AIMessage(step.text))
            if call := call_of(step):
                self.made += 1
                name, arguments = call
                made = {"name": name, "args": arguments, "id": f"call_{self.made}", "type": "tool_call"}
                return _said(AIMessage("", tool_calls=[made]))


def text_of(message: BaseMessage) -> str:
    """What a message says."""
    content = message.content
    return content if isinstance(content, str) else json.dumps(content)


def _said(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])
