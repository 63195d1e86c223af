"""The script as a chat model of LangChain."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.commits.script import Script, Step

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""

ANSWER = "Done."

WITHHELD = "stands for a secret"
"""What the error of our tools says."""


class Replies:
    """The replies that are left, which all copies of a chat model share."""

    def __init__(self, script: Script, call_of: Callable[[Step], Call]) -> None:
        """`call_of` gives the call of a contestant's tool for a step."""
        self._script, self._left = script, list(script.replies)
        self._call_of = call_of
        self._steps: dict[str, Step] = {}

    def next(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The next reply, and in the end the answer. A file that was not written for its secrets is edited before."""
        if not self._left:
            self._left = list(self._edits(messages))
        if not self._left:
            return AIMessage(ANSWER)

        calls = []
        for step in self._left.pop(0):
            name, arguments = self._call_of(step)
            call_id = f"call_{len(self._steps) + 1}"
            self._steps[call_id] = step
            calls.append({"name": name, "args": arguments, "id": call_id, "type": "tool_call"})
        return AIMessage("", tool_calls=calls)

    def _edits(self, messages: Sequence[BaseMessage]) -> Iterator[list[Step]]:
        for message in messages:
            if isinstance(message, ToolMessage) and WITHHELD in str(message.content):
                step = self._steps.get(message.tool_call_id)
                if step is not None and step.act == "write":
                    yield from ([edit] for edit in self._script.edits.pop(step.path, []))


class ScriptedChat(BaseChatModel):
    """Gives the replies in order, whatever it is asked."""

    replies: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> "ScriptedChat":
        """The tools are known."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.replies.next(messages))])
