"""The rules of OpenAI's chat completions for a request, with the bodies of its refusals.

`check_chat_request` is what every scripted endpoint applies. Families add rules of their own.

Bodies: dataline#172 and morphic#136 (tool messages), llm_wiki#336 (unknown arguments).
"""

import re
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
        refuse("Missing required parameter: 'messages'.", "messages", "missing_required_parameter")

    if body.get("stream_options") is not None and not body.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        refuse(text, "stream_options")
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        text = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        refuse(text, "max_tokens", "invalid_parameter_combination")

    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None and body[name] < 1:
            text = (
                f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got {body[name]} instead."
            )
            refuse(text, name, "integer_below_min_value")

    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 2:
        text = f"Invalid 'temperature': decimal out of range. Expected a value between 0 and 2, but got {temperature}."
        refuse(text, "temperature", "decimal_out_of_range")

    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > MAX_STOP:
        refuse(_array_too_long("stop", MAX_STOP, len(stop)), "stop", "array_above_max_length")


def check_messages(messages: list[JsonMap]) -> None:
    """Roles, contents and names of messages, and the pairing and order of tool messages."""
    if not messages:
        refuse(_empty_array("messages"), "messages", "empty_array")

    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")

    check_tool_messages(messages)


def _check_message(message: JsonMap, param: str) -> None:
    role = message.get("role")
    if role not in ROLES:
        refuse(_unsupported_value(role, ROLES), f"{param}.role", "invalid_value")

    name = message.get("name")
    if name is not None and not MESSAGE_NAME.fullmatch(name):
        text = f"Invalid '{param}.name': string does not match pattern. Expected a string that matches the pattern "
        refuse(f"{text}'^[^\\s<|\\\\/>]+$'.", f"{param}.name", "invalid_value")

    _check_content(message.get("content"), param)

    if "tool_calls" in message and role != "assistant":
        refuse(f"Unknown parameter: '{param}.tool_calls'.", f"{param}.tool_calls", "unknown_parameter")
    if message.get("tool_calls") == []:
        refuse(_empty_array(f"{param}.tool_calls"), f"{param}.tool_calls", "empty_array")
    for place, call in enumerate(message.get("tool_calls") or []):
        _check_call(call, f"{param}.tool_calls[{place}]")


def _check_content(content: Any, param: str) -> None:
    if content is None or isinstance(content, str):
        return  # where null is allowed depends on the calls: see check_tool_messages

    if not isinstance(content, list):
        kind = type(content).__name__
        text = f"Invalid type for '{param}.content': expected one of a string or array of objects, but got {kind}."
        refuse(text, f"{param}.content", "invalid_type")

    for place, part in enumerate(content):
        part_type = part.get("type") if isinstance(part, dict) else None
        if part_type not in PART_TYPES:
            text = (
                f"Invalid value: '{part_type}'. Supported values are: {', '.join(f'{name!r}' for name in PART_TYPES)}."
            )
            refuse(text, f"{param}.content[{place}].type", "invalid_value")
        if part_type == "text" and not isinstance(part.get("text"), str):
            where = f"{param}.content[{place}].text"
            refuse(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")


def _check_call(call: JsonMap, param: str) -> None:
    if call.get("type") != "function":
        refuse(_unsupported_value(call.get("type"), ("function",)), f"{param}.type", "invalid_value")

    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        refuse(f"Missing required parameter: '{param}.id'.", f"{param}.id", "missing_required_parameter")
    if len(call_id) > MAX_CALL_ID:
        refuse(_string_too_long(f"{param}.id", MAX_CALL_ID, call_id), f"{param}.id", "string_above_max_length")

    function = call.get("function") or {}
    _check_function_name(function.get("name"), f"{param}.function.name")
    if not isinstance(function.get("arguments"), str):
        kind = type(function.get("arguments")).__name__
        text = f"Invalid type for '{param}.function.arguments': expected a string, but got {kind} instead."
        refuse(text, f"{param}.function.arguments", "invalid_type")


def check_tool_messages(messages: list[JsonMap]) -> None:
    """Each call is followed by its tool message, and no tool message comes without its call."""
    missing: list[str] = []
    for place, message in enumerate(messages):
        role = f"messages.[{place}].role"

        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if not missing:
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                refuse(f"Invalid parameter: {text}", role, why="tool message")
            if call_id not in missing:
                text = f"'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
                refuse(f"Invalid parameter: {text}", f"messages.[{place}].tool_call_id", why="tool message")
            missing.remove(call_id)
            continue

        _check_answered(missing, role)
        missing = [call["id"] for call in message.get("tool_calls") or []]
        if len(set(missing)) < len(missing):
            text = f"Duplicate value for 'tool_calls[].id' in messages[{place}]."
            refuse(f"Invalid parameter: {text}", f"messages.[{place}].tool_calls", why="tool message")
        if message.get("content") is None and not missing:
            text = "Invalid value for 'content': expected a string, got null."
            refuse(text, f"messages.[{place}].content", why="content")

    _check_answered(missing, f"messages.[{len(messages)}].role")


def _check_answered(missing: list[str], param: str) -> None:
    if missing:
        text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        calls = f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
        refuse(f"{text}{calls}", param, why="tool message")


def check_tools(body: JsonMap) -> None:
    """Names and schemas of tools, and what may only be sent with tools."""
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                refuse(f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.", name)
        return

    if not tools:
        refuse(_empty_array("tools"), "tools", "empty_array")
    if len(tools) > MAX_TOOLS:
        refuse(_array_too_long("tools", MAX_TOOLS, len(tools)), "tools", "array_above_max_length")

    for place, tool in enumerate(tools):
        if tool.get("type") != "function":
            text = _unsupported_value(tool.get("type"), ("function", "custom"))
            refuse(text, f"tools[{place}].type", "invalid_value")
        function = tool.get("function") or {}
        _check_function_name(function.get("name"), f"tools[{place}].function.name")
        if "parameters" in function:
            _check_parameters_schema(function["name"], function["parameters"], f"tools[{place}].function.parameters")


def _check_function_name(name: Any, param: str) -> None:
    if not isinstance(name, str) or not name:
        refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if not FUNCTION_NAME.fullmatch(name):
        text = f"Invalid '{param}': string does not match pattern. Expected a string that matches the pattern "
        refuse(f"{text}'^[a-zA-Z0-9_-]+$'.", param, "invalid_value")
    if len(name) > MAX_FUNCTION_NAME:
        refuse(_string_too_long(param, MAX_FUNCTION_NAME, name), param, "string_above_max_length")


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
        required = inner.get("required", [])
        if not isinstance(required, list):
            refuse_schema(f"In context={path}, {required!r} is not of type 'array'.")


def _subschemas(schema: JsonMap, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], JsonMap]]:
    """The schema and all schemas inside of it, each with its place."""
    schemas = [(path, schema)]

    for keyword in ("properties", "$defs", "definitions"):
        for name, inner in (schema.get(keyword) or {}).items():
            if isinstance(inner, dict):
                schemas += _subschemas(inner, (*path, keyword, name))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for place, inner in enumerate(schema.get(keyword) or []):
            schemas += _subschemas(inner, (*path, keyword, str(place)))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            schemas += _subschemas(schema[keyword], (*path, keyword))

    return schemas


def _unsupported_value(value: Any, supported: tuple[str, ...]) -> str:
    listed = ", ".join(repr(name) for name in supported)
    return f"Invalid value: '{value}'. Supported values are: {listed}."


def _empty_array(param: str) -> str:
    return f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."


def _array_too_long(param: str, limit: int, length: int) -> str:
    text = f"Invalid '{param}': array too long. Expected an array with maximum length {limit}"
    return f"{text}, but got an array with length {length} instead."


def _string_too_long(param: str, limit: int, value: str) -> str:
    text = f"Invalid '{param}': string too long. Expected a string with maximum length {limit}"
    return f"{text}, but got a string with length {len(value)} instead."
