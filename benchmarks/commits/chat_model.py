"""A scripted chat model of LangChain, which counts the bytes of its requests."""

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
"""A part of mendgraph's error for a file whose secrets a new text would lose."""


class Replies:
    """The remaining replies, which all copies of a chat model share."""

    def __init__(self, script: Script, call_of: Callable[[Step], Call]) -> None:
        """`call_of` returns a contestant's tool call for a step."""
        self._script = script
        self._remaining = list(script.replies)
        self._call_of = call_of
        self._steps: dict[str, Step] = {}

    def next(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """Return the next reply, and at the end the answer.

        Before the answer come edits of the files that were not written because of their secrets.
        """
        if not self._remaining:
            self._remaining = list(self._edits(messages))
        if not self._remaining:
            return AIMessage(ANSWER)

        calls = []
        for step in self._remaining.pop(0):
            name, arguments = self._call_of(step)
            call_id = f"call_{len(self._steps) + 1}"
            self._steps[call_id] = step
            calls.append({"name": name, "args": arguments, "id": call_id, "type": "tool_call"})
        return AIMessage("", tool_calls=calls)

    def _edits(self, messages: Sequence[BaseMessage]) -> Iterator[list[Step]]:
        """Yield a reply for each edit of a file whose write failed because of its secrets."""
        for message in messages:
            if not isinstance(message, ToolMessage) or WITHHELD not in str(message.content):
                continue

            step = self._steps.get(message.tool_call_id)
            if step is not None and step.act == "write":
                for edit in self._script.edits.pop(step.path, []):
                    yield [edit]


class ScriptedChat(BaseChatModel):
    """Returns the replies in order for any request, and counts the requests in the row."""

    replies: Any
    row: Any
    tools: Any = ()
    last: Any  # a list with the last request, which all copies share

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedChat":
        """Return a copy whose requests include the descriptions of the tools."""
        return self.model_copy(update={"tools": [convert_to_openai_tool(tool) for tool in tools]})

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        request = json.dumps([self.tools, convert_to_openai_messages(messages)])
        count_request(self.row, request, self.last[0])
        self.last[0] = request
        return ChatResult(generations=[ChatGeneration(message=self.replies.next(messages))])


def count_request(row: Row, request: str, last: str) -> None:
    """Add a request to the row, with the length of the prefix that it shares with the last request."""
    row.requests += 1
    row.prompt_bytes += len(request)

    # A binary search: prefixes of `equal` characters are equal, those of `different` characters are not.
    equal = 0
    different = min(len(request), len(last)) + 1
    while different - equal > 1:
        middle = (equal + different) // 2
        if request.startswith(last[:middle]):
            equal = middle
        else:
            different = middle

    row.repeated_bytes += equal
