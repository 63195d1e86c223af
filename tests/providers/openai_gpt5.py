"""OpenAI's chat completions with the rules of gpt-5, the same behind Azure, and for an organisation nobody verified.

Bodies: qwen-code#921 (temperature), smolagents#1671 (stop), llm_wiki#336 (unknown arguments), dataline#172 and
morphic#136 (tool messages), chatbox#646 (deployment), lobehub#9385 (stream).
"""

import re
from typing import ClassVar, Final, NoReturn

from mendgraph.nodes.records import JsonMap
from tests.providers.chat import ChatServer
from tests.providers.script import Asked, Turn
from tests.providers.wire import RefusedError, names, sse

KNOWN: Final = names("""
    messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
    max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store
    stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
""")
UNSUPPORTED: Final = (
    "stop",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "logit_bias",
)


def openai_error(
    message: str, param: str | None = None, code: str | None = None, kind: str = "invalid_request_error"
) -> JsonMap:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(message: str, param: str | None = None, code: str | None = None, *, why: str = "") -> NoReturn:
    raise RefusedError(400, openai_error(message, param, code), why or param or message)


def wrong_openai_key(asked: Asked) -> JsonMap:
    key = asked.headers.get("authorization", "").removeprefix("Bearer ")
    if not key:
        return openai_error(
            "You didn't provide an API key. You need to provide your API key in an Authorization header"
        )
    hidden = f"{key[:8]}{'*' * max(len(key) - 12, 0)}{key[-4:]}"
    where = "You can find your API key at https://platform.openai.com/account/api-keys."
    return openai_error(f"Incorrect API key provided: {hidden}. {where}", code="invalid_api_key")


def check_tool_messages(messages: list[JsonMap]) -> None:
    """Each call is followed by its tool message, and no tool message comes unasked."""
    wanted: list[str] = []
    for place, message in enumerate(messages):
        role = f"messages.[{place}].role"
        if message["role"] == "tool":
            if not wanted:
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                refuse(f"Invalid parameter: {text}", role, why="tool message")
            if message.get("tool_call_id") not in wanted:
                text = (
                    f"'tool_call_id' of '{message.get('tool_call_id')}' not found in 'tool_calls' of previous message."
                )
                refuse(f"Invalid parameter: {text}", f"messages.[{place}].tool_call_id", why="tool message")
            wanted.remove(message["tool_call_id"])
            continue
        _check_answered(wanted, role)
        wanted = [call["id"] for call in message.get("tool_calls") or []]
        if message.get("content") is None and not wanted:
            text = "Invalid value for 'content': expected a string, got null."
            refuse(text, f"messages.[{place}].content", why="content")
    _check_answered(wanted, f"messages.[{len(messages)}].role")


def _check_answered(wanted: list[str], param: str) -> None:
    if wanted:
        text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        missing = f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(wanted)}"
        refuse(f"{text}{missing}", param, why="tool message")


class OpenAIGpt5(ChatServer):
    family = "openai_gpt5"
    key = "sk-proj-loopback-gpt5-key"
    model = "gpt-5-mini"
    models = ("gpt-5", "gpt-5-nano")

    def check_request(self, asked: Asked) -> None:
        body = asked.body
        unknown = sorted(body.keys() - KNOWN)
        if unknown:
            plural = "s" if len(unknown) > 1 else ""
            refuse(f"Unrecognized request argument{plural} supplied: {', '.join(unknown)}", why="unknown parameter")
        if body.get("max_tokens") is not None:
            text = "Unsupported parameter: 'max_tokens' is not supported with this model. "
            refuse(f"{text}Use 'max_completion_tokens' instead.", "max_tokens", "unsupported_parameter")
        for name in UNSUPPORTED:
            if body.get(name) is not None:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                refuse(text, name, "unsupported_parameter")
        if body.get("temperature") not in (None, 1):
            text = f"Unsupported value: 'temperature' does not support {body['temperature']} with this model."
            refuse(f"{text} Only the default (1) value is supported.", "temperature", "unsupported_value")
        if body.get("stream_options") is not None and not body.get("stream"):
            text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            refuse(text, "stream_options")
        check_tool_messages(body["messages"])

    def wrong_key(self, asked: Asked) -> JsonMap:
        return wrong_openai_key(asked)

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:
        text = f"The model `{name}` does not exist or you do not have access to it."
        return 404, openai_error(text, code="model_not_found")

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - OpenAI's body does not repeat the status
        return openai_error(message)


class Azure(OpenAIGpt5):
    """The deployment is in the path, the key in a header of its own, and `model` in the body means nothing."""

    family = "azure"
    key = "0123456789loopbackazure"
    root = ""
    model = "our-gpt-5"
    """The deployment's name."""
    api_version: ClassVar[str] = "2025-04-01-preview"

    def check_path(self, asked: Asked) -> None:
        found = re.fullmatch(r"/openai/deployments/([^/]+)/chat/completions", asked.path)
        if not found or "api-version" not in asked.query:
            raise RefusedError(404, {"error": {"code": "404", "message": "Resource not found"}}, "path")
        if asked.headers.get("api-key") != self.key:
            text = (
                "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key "
                "for an active subscription and use a correct regional API endpoint for your resource."
            )
            raise RefusedError(401, {"error": {"code": "401", "message": text}}, "key")
        if found[1] != self.model:
            text = "The API deployment for this resource does not exist. If you created the deployment within the last "
            text += "5 minutes, please wait a moment and try again."
            raise RefusedError(404, {"error": {"code": "DeploymentNotFound", "message": text}}, "deployment")

    def check_key(self, asked: Asked) -> None:
        """It was looked at before the deployment."""

    def check_model(self, asked: Asked) -> None:
        """The deployment was looked at."""

    def events(self, turn: Turn) -> list[bytes]:
        """Azure's first chunk is about its content filter, and has no choices."""
        filters = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]
        first = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": filters}
        return [sse(first), *super().events(turn)]


class NoStreaming(OpenAIGpt5):
    """gpt-5 for an organisation that is not verified."""

    family = "no_streaming"
    key = "sk-proj-loopback-unverified"

    def check_request(self, asked: Asked) -> None:
        super().check_request(asked)
        if asked.body.get("stream"):
            text = (
                "Your organization must be verified to stream this model. Please go to: "
                "https://platform.openai.com/settings/organization/general and click on Verify Organization. "
                "If you just verified, it can take up to 15 minutes for access to propagate."
            )
            refuse(text, "stream", "unsupported_value")
