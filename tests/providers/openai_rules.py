"""The rules of OpenAI's chat completions for a request, with the bodies of its refusals.

`check_chat_request` is what every scripted endpoint applies. Families add rules of their own.

Bodies: dataline#172 and morphic#136 (tool messages), llm_wiki#336 (unknown arguments).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from tests.providers.wire import JsonMap, RefusedError, names

KNOWN: Final = names("""
    messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
    max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store
    stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
""")
ROLES: Final = ("system", "assistant", "user", "function", "tool", "developer")
PART_TYPES: Final = ("text", "image_url", "input_audio", "refusal", "audio", "file")

FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
MESSAGE_NAME: Final = re.compile(r"[^\s<|\\/>]+")

MAX_FUNCTION_NAME: Final = 64
MAX_CALL_ID: Final = 40
MAX_TOOLS: Final = 128
MAX_STOP: Final = 4

COMBINATORS: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
"""Keywords that a function's schema may not have at its top."""


def openai_error(
    message: str, param: str | None = None, code: str | None = None, kind: str = "invalid_request_error"
) -> JsonMap:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(message: str, param: str | None = None, code: str | None = None, *, why: str = "") -> NoReturn:
    raise RefusedError(400, openai_error(message, param, code), why or param or message)


def wrong_openai_key(authorization: str) -> JsonMap:
    key = authorization.removeprefix("Bearer ")
    if not key:
        return openai_error(
            "You didn't provide an API key. You need to provide your API key in an Authorization header"
        )

    hidden = f"{key[:8]}{'*' * max(len(key) - 12, 0)}{key[-4:]}"
    where = "You can find your API key at https://platform.openai.com/account/api-keys."
    return openai_error(f"Incorrect API key provided: {hidden}. {where}", code="invalid_api_key")


def check_chat_request(body: JsonMap) -> None:
    """Refuse what OpenAI refuses in any chat completion request, whatever the model.

    Raises:
        RefusedError: with OpenAI's status and body.
    """
    check_parameters(body)
    check_messages(body["messages"])
    check_tools(body)


def check_parameters(body: JsonMap) -> None:
    """Known names, a model, messages, and values in their range."""
    unknown = sorted(body.keys() - KNOWN)
    if unknown:
        plural = "s" if len(unknown) > 1 else ""
        refuse(f"Unrecognized request argument{plural} supplied: {', '.join(unknown)}", why="unknown parameter")

    if not isinstance(body.get("model"), str) or not body["model"]:
        refuse("you must provide a model parameter", why="model")
    if "messages" not in body:
        _refuse_missing("messages")

    if body.get("stream_options") is not None and not body.get("stream"):
        refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        text = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        refuse(text, "max_tokens", "invalid_parameter_combination")

    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None and body[name] < 1:
            text = f"integer below minimum value. Expected a value >= 1, but got {body[name]} instead."
            _refuse_value(name, text, "integer_below_min_value")

    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 2:
        text = f"decimal out of range. Expected a value between 0 and 2, but got {temperature}."
        _refuse_value("temperature", text, "decimal_out_of_range")
    if isinstance(body.get("stop"), list):
        _check_length("stop", body["stop"], MAX_STOP)


def check_messages(messages: list[JsonMap]) -> None:
    """Roles, contents and names of messages, and the pairing and order of tool messages."""
    _check_length("messages", messages)
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")
    check_tool_messages(messages)


def _check_message(message: JsonMap, param: str) -> None:
    _check_choice(f"{param}.role", message.get("role"), ROLES)
    if message.get("name") is not None and not MESSAGE_NAME.fullmatch(message["name"]):
        _refuse_pattern(f"{param}.name", "^[^\\s<|\\\\/>]+$")

    content = message.get("content")
    if isinstance(content, list):
        for place, part in enumerate(content):
            where = f"{param}.content[{place}]"
            _check_choice(f"{where}.type", part.get("type") if isinstance(part, dict) else None, PART_TYPES)
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                _refuse_missing(f"{where}.text")
    elif content is not None and not isinstance(content, str):  # where null is allowed depends on the calls
        _refuse_type(f"{param}.content", "one of a string or array of objects", content)

    calls = f"{param}.tool_calls"
    if "tool_calls" in message and message["role"] != "assistant":
        refuse(f"Unknown parameter: '{calls}'.", calls, "unknown_parameter")
    if message.get("tool_calls") is not None:
        _check_length(calls, message["tool_calls"])
    for place, call in enumerate(message.get("tool_calls") or []):
        _check_call(call, f"{calls}[{place}]")


def _check_call(call: JsonMap, param: str) -> None:
    _check_choice(f"{param}.type", call.get("type"), ("function",))
    _check_text(f"{param}.id", call.get("id"), MAX_CALL_ID)
    function = call.get("function") or {}
    _check_function_name(function.get("name"), f"{param}.function.name")
    if not isinstance(function.get("arguments"), str):
        _refuse_type(f"{param}.function.arguments", "a string", function.get("arguments"))


def check_tool_messages(messages: list[JsonMap]) -> None:
    """Each call is followed by its tool message, and no tool message comes without its call."""

    def refuse_message(text: str, param: str, *, why: str = "tool message") -> NoReturn:
        refuse(text, f"messages.[{place}].{param}", why=why)

    place, missing = 0, list[str]()
    for place, message in enumerate([*messages, {"role": "end", "content": ""}]):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if not missing:
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                refuse_message(f"Invalid parameter: {text}", "role")
            if call_id not in missing:
                text = f"'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
                refuse_message(f"Invalid parameter: {text}", "tool_call_id")
            missing.remove(call_id)
            continue

        if missing:
            text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            calls = f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
            refuse_message(text + calls, "role")
        missing = [call["id"] for call in message.get("tool_calls") or []]
        if len(set(missing)) < len(missing):
            text = f"Duplicate value for 'tool_calls[].id' in messages[{place}]."
            refuse_message(f"Invalid parameter: {text}", "tool_calls")
        if message.get("content") is None and not missing:
            refuse_message("Invalid value for 'content': expected a string, got null.", "content", why="content")


def check_tools(body: JsonMap) -> None:
    """Names and schemas of tools, and what may only be sent with tools."""
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                refuse(f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.", name)
        return

    _check_length("tools", tools, MAX_TOOLS)
    for place, tool in enumerate(tools):
        _check_choice(f"tools[{place}].type", tool.get("type"), ("function",))
        function = tool.get("function") or {}
        _check_function_name(function.get("name"), f"tools[{place}].function.name")
        if "parameters" in function:
            _check_parameters_schema(function["name"], function["parameters"], f"tools[{place}].function.parameters")


def _check_function_name(name: Any, param: str) -> None:
    _check_text(param, name, MAX_FUNCTION_NAME)
    if not FUNCTION_NAME.fullmatch(name):
        _refuse_pattern(param, "^[a-zA-Z0-9_-]+$")


def _check_parameters_schema(name: str, schema: Any, param: str) -> None:
    def refuse_schema(text: str) -> NoReturn:
        refuse(f"Invalid schema for function '{name}': {text}", param, "invalid_function_parameters")

    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        refuse_schema(f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.")
    if any(keyword in schema for keyword in COMBINATORS):
        listed = "/".join(f"'{keyword}'" for keyword in COMBINATORS)
        refuse_schema(f"schema must have type 'object' and not have {listed} at the top level.")

    for path, inner in _subschemas(schema, ()):
        if inner.get("type") == "array" and "items" not in inner and "prefixItems" not in inner:
            refuse_schema(f"In context={path}, array schema missing items.")
        if not isinstance(inner.get("required", []), list):
            refuse_schema(f"In context={path}, {inner['required']!r} is not of type 'array'.")


def _subschemas(schema: JsonMap, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], JsonMap]]:
    """The schema and all schemas inside of it, each with its place."""
    yield path, schema
    for keyword in ("properties", "$defs", "definitions"):
        for name, inner in (schema.get(keyword) or {}).items():
            if isinstance(inner, dict):
                yield from _subschemas(inner, (*path, keyword, name))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for place, inner in enumerate(schema.get(keyword) or []):
            yield from _subschemas(inner, (*path, keyword, str(place)))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from _subschemas(schema[keyword], (*path, keyword))


# --- OpenAI's messages


def _check_choice(param: str, value: Any, supported: tuple[str, ...]) -> None:
    if value not in supported:
        listed = ", ".join(map(repr, supported))
        refuse(f"Invalid value: '{value}'. Supported values are: {listed}.", param, "invalid_value")


def _check_length(param: str, array: Sequence[Any], most: int | None = None) -> None:
    if not array:
        text = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        _refuse_value(param, text, "empty_array")
    if most is not None and len(array) > most:
        text = f"array too long. Expected an array with maximum length {most}, but got an array with length"
        _refuse_value(param, f"{text} {len(array)} instead.", "array_above_max_length")


def _check_text(param: str, value: Any, most: int) -> None:
    if not isinstance(value, str) or not value:
        _refuse_missing(param)
    if len(value) > most:
        text = f"string too long. Expected a string with maximum length {most}, but got a string with length"
        _refuse_value(param, f"{text} {len(value)} instead.", "string_above_max_length")


def _refuse_value(param: str, text: str, code: str) -> NoReturn:
    refuse(f"Invalid '{param}': {text}", param, code)


def _refuse_pattern(param: str, pattern: str) -> NoReturn:
    text = "string does not match pattern. Expected a string that matches the pattern"
    _refuse_value(param, f"{text} '{pattern}'.", "invalid_value")


def _refuse_missing(param: str) -> NoReturn:
    refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _refuse_type(param: str, expected: str, value: Any) -> NoReturn:
    text = f"expected {expected}, but got {type(value).__name__} instead."
    refuse(f"Invalid type for '{param}': {text}", param, "invalid_type")
