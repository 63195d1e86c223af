"""What OpenAI-compatible endpoints send in reply, read as LangChain takes it. Pure.

LangChain drops reasoning, signatures, calls without an index and counts of caches: they are read here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata, subtract_usage

from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.language.provider_state import REASONING, REASONING_DETAILS, TOOL_CALL_EXTRAS
from mendgraph.nodes.records import JsonMap

_CALL_FIELDS: Final = frozenset({"id", "type", "function", "index"})
"""Fields of a tool call that LangChain reads; all others are sent back to the endpoint unchanged."""

_PLAIN_FIELDS: Final = frozenset({"role", "content", "tool_calls"})
"""Fields of a delta that a `PlainPart` holds."""


# --- Parts of a stream


class PlainPart(NamedTuple):
    """A part of a reply that is text, or pieces of calls as (index, id, name, arguments), as nearly all are."""

    text: str
    calls: Sequence[tuple[int | str | None, str | None, str | None, str]]


def plain_part(document: JsonMap) -> PlainPart | None:
    """The document of a stream as a plain part; None where it holds anything else, such as usage or reasoning."""
    choices = document.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or document.get("usage") or document.get("timings"):
        return None

    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("index") or choice.get("finish_reason") is not None:
        return None

    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return None

    for name, value in delta.items():
        if value is not None and name not in _PLAIN_FIELDS:
            return None

    content = delta.get("content")
    if not isinstance(content, str | None):
        return None

    pieces = []
    for place, call in enumerate(_calls_in(delta)):
        if type(call) is not dict or call.keys() - _CALL_FIELDS:
            return None

        part = _call_part(call, place)
        pieces.append((part["index"], part["id"], *part["function"].values()))

    return PlainPart(content or "", pieces)


# --- Messages and deltas


def choice_of(document: JsonMap) -> JsonMap | None:
    """The first choice of a document, None where it has none. Raises TypeError: it is no object."""
    choices = document.get("choices")
    if not choices:
        return None

    if isinstance(choices, list):
        choices = choices[0]

    return object_of(choices, "choice")


def object_of(value: Any, name: str) -> JsonMap:
    """The value itself. Raises TypeError, which calls it `name`: it is no JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"its {name} is {json.dumps(value)[:40]}, not an object")

    return value


def read_message(message: JsonMap) -> tuple[JsonMap, JsonMap]:
    """A message, or the delta of one, without its calls: as LangChain takes it, and what `additional_kwargs` keep."""
    content, thought = _text_and_thought(message.get("content"))
    plain = {**message, "role": "assistant", "content": content, "tool_calls": None, "function_call": None}
    extras: JsonMap = {}

    reasoning = text_of(message.get(REASONING)) + thought
    other_reasoning = text_of(message.get("reasoning"))
    if reasoning:
        extras[REASONING] = reasoning
    elif other_reasoning:
        extras["reasoning"] = other_reasoning

    if message.get("refusal"):
        extras["refusal"] = str(message["refusal"])

    if isinstance(message.get(REASONING_DETAILS), list):
        extras[REASONING_DETAILS] = message[REASONING_DETAILS]

    calls = [call for call in _calls_in(message) if isinstance(call, dict)]
    if calls:
        extras[TOOL_CALL_EXTRAS] = _added_fields(calls)

    return plain, extras


def _added_fields(calls: Iterable[JsonMap]) -> list[JsonMap]:
    """The fields of calls that LangChain does not read, each with its call's id and index."""
    additions = []

    for call in calls:
        fields = {name: value for name, value in call.items() if name not in _CALL_FIELDS and value is not None}
        if fields:
            additions.append({"at": _position(call), "fields": fields})

    return additions


def call_parts(message: JsonMap) -> list[JsonMap]:
    """The calls of a message, or the pieces of calls in a delta, in OpenAI's form, with arguments as raw text."""
    return [_call_part(call, place) for place, call in enumerate(_calls_in(message))]


def _calls_in(message: JsonMap) -> list[Any]:
    """The calls as the endpoint sent them. A null is no call; a call outside of a list counts as one."""
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):  # of the API before tools
        calls = {"function": message["function_call"]}

    if not calls:
        return []
    if not isinstance(calls, list):
        return [calls]

    return [call for call in calls if call is not None]


def _call_part(call: Any, place: int) -> JsonMap:
    if not isinstance(call, dict):
        call = {"index": -1 - place, "function": call}

    function = call.get("function")
    if function is None and "name" in call:
        function = call

    if not isinstance(function, dict):
        function = {"arguments": function}

    name = function.get("name")
    if name is not None:
        name = text_of(name)

    arguments = text_of(function.get("arguments"))
    return {**_position(call), "type": "function", "function": {"name": name, "arguments": arguments}}


def _position(call: JsonMap) -> JsonMap:
    """The id and the index of a call, None for one that is missing or has no such type."""
    call_id = call.get("id")
    if call_id is None or isinstance(call_id, dict | list):
        call_id = None
    else:
        call_id = str(call_id)

    index = call.get("index")
    if not isinstance(index, int | str):
        index = None

    return {"id": call_id, "index": index}


def _text_and_thought(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's content, which is a text or a list of blocks."""
    if not isinstance(content, list):
        return text_of(content), ""

    text = ""
    thought = ""

    for block in content:
        if not isinstance(block, dict):
            text += text_of(block)
        elif block.get("type") == "text":
            text += text_of(block.get("text"))
        elif block.get("type") == "thinking":
            thinking = block.get("thinking")
            if isinstance(thinking, list):
                thinking, _ = _text_and_thought(thinking)

            thought += text_of(thinking)

    return text, thought


def text_of(value: Any) -> str:
    """A text unchanged, None as "", and anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""

    return json.dumps(value, ensure_ascii=False)


# --- Counts of tokens


def usage_of(usage: Any, timings: Any) -> UsageMetadata | None:
    """An endpoint's count of tokens from its `usage` and, of llama.cpp, its `timings`; None where it counts none.

    Each kind of endpoint counts the tokens of its cache in another field.
    """
    usage = _map_of(usage)
    timings = _map_of(timings)
    if not usage and not timings:
        return None

    input_tokens = countable(usage.get("prompt_tokens") or usage.get("input_tokens"))
    output_tokens = countable(usage.get("completion_tokens") or usage.get("output_tokens"))
    input_details = _map_of(usage.get("prompt_tokens_details"))
    output_details = _map_of(usage.get("completion_tokens_details"))
    cache_read = _first_count(
        input_details.get("cached_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        timings.get("cache_n"),
    )
    cache_written = _first_count(
        input_details.get("cache_write_tokens"),
        usage.get("cache_creation_input_tokens"),
    )

    return UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        input_token_details=InputTokenDetails(cache_read=cache_read, cache_creation=cache_written),
        output_token_details=OutputTokenDetails(reasoning=countable(output_details.get("reasoning_tokens"))),
    )


def _map_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value

    return {}


def _first_count(*counts: Any) -> int:
    """The first count that is a positive number, or 0."""
    for value in counts:
        count = countable(value)
        if count:
            return count

    return 0


class StreamExtras:
    """What LangChain does not join of a stream's parts: counts that grow, and added fields of tool calls."""

    def __init__(self) -> None:
        self.call_ids: dict[Any, str] = {}
        self._usage: UsageMetadata | None = None
        self._fields_of_calls: JsonMap = {}

    def take_from(self, part: AIMessageChunk) -> None:
        """Take the fields of calls out of a part, and reduce its usage to what it adds: some endpoints count up."""
        usage = part.usage_metadata
        if usage is not None:
            part.usage_metadata = subtract_usage(usage, self._usage)
            self._usage = usage

        for call in part.tool_call_chunks:
            if call["id"] and call["index"] is not None:
                self.call_ids[call["index"]] = call["id"]

        part.additional_kwargs = self.take_call_fields(part.additional_kwargs)

    def take_call_fields(self, extras: JsonMap) -> JsonMap:
        """Take the added fields of calls; returns the other extras."""
        for addition in extras.get(TOOL_CALL_EXTRAS) or ():
            position = addition["at"]
            call_id = position["id"] or self.call_ids.get(position["index"])
            if call_id:
                self._fields_of_calls.setdefault(str(call_id), {}).update(addition["fields"])

        return {name: value for name, value in extras.items() if name != TOOL_CALL_EXTRAS}

    def flush(self) -> JsonMap:
        """The fields of calls since the last flush, by the ids of the calls, as `additional_kwargs`."""
        fields = self._fields_of_calls
        self._fields_of_calls = {}
        if fields:
            return {TOOL_CALL_EXTRAS: fields}

        return {}
