"""The script as a chat model of LangChain, which counts what it is sent."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

from benchmarks.commits.result import Row
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
    """Gives the replies in order, whatever it is asked, and adds its requests to the row."""

    replies: Any
    row: Any
    tools: Any = ()
    last: Any  # a list of the last request, which all copies share

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedChat":
        """The script knows the tools, but their descriptions are a part of each request."""
        return self.model_copy(update={"tools": [convert_to_openai_tool(tool) for tool in tools]})

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        request = json.dumps([self.tools, convert_to_openai_messages(messages)])
        count_request(self.row, request, self.last[0])
        self.last[0] = request
        return ChatResult(generations=[ChatGeneration(message=self.replies.next(messages))])


def count_request(row: Row, request: str, last: str) -> None:
    """Add a request to the row, and how much of its beginning is that of the last one."""
    row.requests += 1
    row.prompt_bytes += len(request)
    same = 0
    different = min(len(request), len(last)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if request.startswith(last[:middle]):
            same = middle
        else:
            different = middle

    row.repeated_bytes += same
