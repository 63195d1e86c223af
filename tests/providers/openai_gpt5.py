"""OpenAI's chat completions with the rules of gpt-5, the same behind Azure, and for an organisation nobody verified.

Bodies: qwen-code#921 (temperature), smolagents#1671 (stop), chatbox#646 (deployment), lobehub#9385 (stream).
"""

import re
from typing import ClassVar, Final

from tests.providers.chat import ChatServer
from tests.providers.openai_rules import check_chat_request, openai_error, refuse, wrong_openai_key
from tests.providers.script import Request, Turn
from tests.providers.wire import JsonMap, RefusedError, sse

UNSUPPORTED: Final = (
    "stop",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "logit_bias",
)


class OpenAIGpt5(ChatServer):
    family = "openai_gpt5"
    key = "sk-proj-loopback-gpt5-key"
    model = "gpt-5-mini"
    models = ("gpt-5", "gpt-5-nano")

    def check_request(self, request: Request) -> None:
        body = request.body
        check_chat_request(body)
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

    def wrong_key(self, request: Request) -> JsonMap:
        return wrong_openai_key(request.headers.get("authorization", ""))

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

    def check_path(self, request: Request) -> None:
        match = re.fullmatch(r"/openai/deployments/([^/]+)/chat/completions", request.path)
        if not match or "api-version" not in request.query:
            raise RefusedError(404, {"error": {"code": "404", "message": "Resource not found"}}, "path")
        if request.headers.get("api-key") != self.key:
            text = (
                "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key "
                "for an active subscription and use a correct regional API endpoint for your resource."
            )
            raise RefusedError(401, {"error": {"code": "401", "message": text}}, "key")
        if match[1] != self.model:
            text = "The API deployment for this resource does not exist. If you created the deployment within the last "
            text += "5 minutes, please wait a moment and try again."
            raise RefusedError(404, {"error": {"code": "DeploymentNotFound", "message": text}}, "deployment")

    def check_key(self, request: Request) -> None:
        """It was looked at before the deployment."""

    def check_model(self, request: Request) -> None:
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

    def check_request(self, request: Request) -> None:
        super().check_request(request)
        if request.body.get("stream"):
            text = (
                "Your organization must be verified to stream this model. Please go to: "
                "https://platform.openai.com/settings/organization/general and click on Verify Organization. "
                "If you just verified, it can take up to 15 minutes for access to propagate."
            )
            refuse(text, "stream", "unsupported_value")
