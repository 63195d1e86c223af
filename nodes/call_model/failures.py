"""What an endpoint's error means for a run: its kind, and one line that says what to do.

Keys never appear in these messages: only the name of the variable that holds one.
"""

import re

import httpx2
import openai

from nodes.call_model.endpoint import Endpoint
from nodes.records import ProviderErrorKind, ProviderFailure

_OVERFLOW = re.compile(
    r"context.{0,20}(length|size|window)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
_SECRET = re.compile(r"\b(sk|pk|key)-[\w*-]{4,}|Bearer\s+\S+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/]*@")
_LONGEST_DETAIL = 300
_BROKEN_OFF = frozenset({ProviderErrorKind.CONNECTION, ProviderErrorKind.SERVER_ERROR})


class TotalTimeoutError(Exception):
    """A reply took longer than its call may, although it kept coming."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no complete reply within {timeout_s:g} s")


def describe_failure(error: Exception, endpoint: Endpoint, *, begun: bool = False) -> ProviderFailure:
    """Turn an exception of one call into a typed failure; `begun` says that a part of the reply had come."""
    where = "the embedded model" if endpoint.embedded else _CREDENTIALS.sub("//", endpoint.base_url)
    where = where or "the OpenAI endpoint"
    kind = _kind(error)
    if begun and kind in _BROKEN_OFF:
        kind = ProviderErrorKind.INCOMPLETE_STREAM
    detail = _without_secrets(_detail(error), endpoint.api_key.get_secret_value())[:_LONGEST_DETAIL]
    return ProviderFailure(
        kind=kind, message=_MESSAGES[kind].format(where=where, detail=detail), retry_after_s=_retry_after(error)
    )


_MESSAGES = {
    ProviderErrorKind.RATE_LIMITED: "{where} says: too many requests ({detail}).",
    ProviderErrorKind.TIMEOUT: "{where} did not answer in time ({detail}).",
    ProviderErrorKind.CONNECTION: "{where} cannot be reached ({detail}). Is the address right and the server running?",
    ProviderErrorKind.SERVER_ERROR: "{where} failed ({detail}).",
    ProviderErrorKind.INCOMPLETE_STREAM: "The reply of {where} broke off ({detail}).",
    ProviderErrorKind.AUTHENTICATION: "{where} refuses the key: check OPENAI_API_KEY ({detail}).",
    ProviderErrorKind.BAD_REQUEST: "{where} refuses the request ({detail}).",
    ProviderErrorKind.CONTEXT_OVERFLOW: "The conversation is longer than the model's window at {where} ({detail}).",
    ProviderErrorKind.MODEL_UNAVAILABLE: "{where} does not have this model ({detail}). Choose one with --model.",
}


def _kind(error: Exception) -> ProviderErrorKind:
    if isinstance(error, TotalTimeoutError | openai.APITimeoutError):
        return ProviderErrorKind.TIMEOUT
    if isinstance(error, openai.APIConnectionError):
        return ProviderErrorKind.CONNECTION
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return ProviderErrorKind.AUTHENTICATION
    if isinstance(error, openai.NotFoundError):
        return ProviderErrorKind.MODEL_UNAVAILABLE
    if isinstance(error, openai.RateLimitError):
        return ProviderErrorKind.RATE_LIMITED
    if isinstance(error, openai.APIError) and _is_overflow(error):
        return ProviderErrorKind.CONTEXT_OVERFLOW
    if isinstance(error, openai.APIStatusError):
        server = error.status_code >= 500 or error.status_code in (408, 409)
        return ProviderErrorKind.SERVER_ERROR if server else ProviderErrorKind.BAD_REQUEST
    return ProviderErrorKind.CONNECTION if isinstance(error, httpx2.HTTPError) else ProviderErrorKind.SERVER_ERROR


def _is_overflow(error: openai.APIError) -> bool:
    return error.code in {"context_length_exceeded", "exceed_context_size_error"} or bool(_OVERFLOW.search(str(error)))


def _detail(error: Exception) -> str:
    body = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return body["message"].splitlines()[0] if body["message"] else type(error).__name__
    text = str(error).strip().splitlines()
    if isinstance(error, (openai.OpenAIError, httpx2.HTTPError, TotalTimeoutError)) and text:
        return text[0]
    return f"it sent no chat completion: {text[0]}" if text else type(error).__name__


def _without_secrets(text: str, key: str) -> str:
    """Endpoints quote the key that they refuse. Anything shorter than four characters is no key."""
    return _SECRET.sub("***", text.replace(key, "***") if len(key) > 3 else text)


def _retry_after(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    value = response.headers.get("retry-after") if response is not None else None
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
