"""What a request tells the model: its messages by the names that a reader of a transcript knows them by.

The names are those of both protocols: `reply 2` is an assistant message that repeats the model's second reply, and
`the result of read_file` is a `tool` message, or a line of a user message in the text protocol.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.doubles.replies import Disconnect, Message, Reply, Slow, Status
from tests.doubles.tool_use import Use, arguments_text, message_of
from tests.scenarios.values import fields, indented
from tests.vocabulary import JsonMap, Protocol

SYSTEM_PROMPT = "the system prompt"

RESULT_START, RESULT_END = "tool_result(", ")"


class Part(NamedTuple):
    """One message of a request, or one result in a message. `text` is its content, "" where its name says it all."""

    name: str
    text: str = ""


class RequestView(NamedTuple):
    """What a request has that the request before it had not, and what it no longer has."""

    added: tuple[Part, ...]
    removed: tuple[str, ...]
    repeated: bool


@dataclass
class Conversation:
    """Names the messages of the requests of one run, or of a child of it.

    Args:
        protocol: in which the results of calls are written.
        replies: of the model so far, by number; the message that repeats one of them is named after it.
        results: tools and results that the run has reported since the last request.
        tasks: what the run was asked for so far, and by what name the transcript knows it.
    """

    protocol: Protocol
    replies: dict[int, Use | Reply] = field(default_factory=dict)
    results: list[tuple[str, JsonMap]] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    _before: list[JsonMap] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _calls: dict[str, str] = field(default_factory=dict)
    _notes: int = 0

    def read(self, messages: Sequence[JsonMap]) -> RequestView:
        """Compare the messages of a request with those of the request before it."""
        same = _common_length(self._before, messages)
        removed = tuple(self._names[_key(message)] for message in self._before[same:])
        added = tuple(part for message in messages[same:] for part in self._parts(message))
        repeated = bool(self._before) and not removed and not added
        self._before = list(messages)
        self.results.clear()
        return RequestView(added, removed, repeated)

    def _parts(self, message: JsonMap) -> list[Part]:
        parts = list(self._named(message))
        self._names[_key(message)] = ", ".join(part.name for part in parts)
        return parts

    def _named(self, message: JsonMap) -> Iterator[Part]:
        role, content = message["role"], message.get("content") or ""
        if role == "system":
            yield Part(SYSTEM_PROMPT, str(content))
        elif role == "tool":
            yield self._result(self._calls.get(message["tool_call_id"], "a call that was never made"), str(content))
        elif role == "assistant":
            yield self._assistant(message)
        elif content in self.tasks:
            yield Part(self.tasks[content])
        elif _is_results(content):
            for line in content.splitlines():
                result = json.loads(line.removeprefix(RESULT_START).removesuffix(RESULT_END))
                yield self._result(result.pop("tool"), json.dumps(result))
        else:
            self._notes += 1
            yield Part(f"note {self._notes}", str(content))

    def _assistant(self, message: JsonMap) -> Part:
        calls = message.get("tool_calls") or []
        for call in calls:
            self._calls[call["id"]] = call["function"]["name"]
        for number, reply in reversed(self.replies.items()):
            if _repeats(message, reply, self.protocol):
                return Part(f"reply {number}")
        lines = [f"{call['function']['name']} {call['function']['arguments']}" for call in calls]
        text = "\n".join([*filter(None, [message.get("content")]), *lines])
        last = max(self.replies, default=0)
        if last and f"reply {last}" not in self._names.values():
            return Part(f"reply {last} (altered)", text)
        self._notes += 1
        return Part(f"note {self._notes} (as a reply)", text)

    def _result(self, tool: str, content: str) -> Part:
        """Name a result. Its content is shown where it differs from what the run has reported."""
        try:
            result = json.loads(content)
        except ValueError:
            return Part(f"a result of {tool} that is no JSON", content)
        if (tool, result) in self.results:
            self.results.remove((tool, result))
            return Part(f"the result of {tool}")
        return Part(f"this result of {tool}", fields(result))


def reply_text(reply: Use | Reply) -> str:
    """Write a scripted reply for both protocols."""
    if isinstance(reply, Use):
        cut = ["(cut at the token limit)"] if reply.cut else []
        return "\n".join([*(_call_text(tool, arguments) for tool, arguments in reply.calls), *cut])
    match reply:
        case Message():
            return _message_text(reply)
        case Status(code, body):
            return f"(HTTP status {code})" if body is None else f"(HTTP status {code})\n{body}"
        case Slow(seconds):
            return f"(no reply for {seconds} seconds)"
        case Disconnect(0):
            return "(the connection breaks before the reply)"
        case Disconnect():
            return "(the connection breaks in the middle of the reply)"
        case _:
            return repr(reply)


def _call_text(tool: str, arguments: JsonMap | str) -> str:
    text = arguments_text(arguments)
    if isinstance(arguments, dict) and "\\n" in text:
        return f"{tool}\n{indented(fields(arguments))}"
    return f"{tool} {text}"


def _message_text(message: Message) -> str:
    parts = [
        f"(thinks) {message.reasoning}" if message.reasoning else "",
        message.text,
        *(f"{call[0]} {call[1]}" for call in message.calls),
        f"(refusal) {message.refusal}" if message.refusal else "",
    ]
    expected = "tool_calls" if message.calls else "stop"
    if message.finish_reason != expected:
        parts.append(f"(finish reason: {message.finish_reason})")
    return "\n".join(filter(None, parts)) or "(an empty reply)"


def _repeats(message: JsonMap, reply: Use | Reply, protocol: Protocol) -> bool:
    """Whether an assistant message is a reply of the model, as the protocol has it in a history."""
    if not isinstance(reply, Use | Message):
        return False
    written = message_of(reply, protocol)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return (message.get("content") or "") == written.text and calls == [call[:2] for call in written.calls]


def _is_results(content: object) -> bool:
    """Whether each line of a content is a result in the text protocol."""
    if not isinstance(content, str) or not content:
        return False
    return all(line.startswith(RESULT_START) and line.endswith(RESULT_END) for line in content.splitlines())


def _common_length(before: Sequence[JsonMap], now: Sequence[JsonMap]) -> int:
    length = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        length += 1
    return length


def _key(message: JsonMap) -> str:
    return json.dumps(message, sort_keys=True)
