"""What an endpoint's error means for a run: its kind, and one line that says what to do.

Keys never appear in these messages: only the name of the variable that holds one.
"""

import re

import httpx2

from nodes.call_model.endpoint import Endpoint
from nodes.records import ProviderErrorKind, ProviderFailure

_OVERFLOW = re.compile(
    r"context.{0,20}(length|size|window)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
_SECRET = re.compile(r"\b(sk|pk|key)-[\w*-]{4,}|Bearer\s+\S+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/]*@")
_LONGEST_DETAIL = 300
_BROKEN_OFF = frozenset({ProviderErrorKind.CONNECTION, ProviderErrorKind.SERVER_ERROR})


class ReplyTimeoutError(Exception):
    """A reply did not come in time; the text says which time."""


class TotalTimeoutError(ReplyTimeoutError):
    """A reply took longer than its call may, although it kept coming."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no complete reply within {timeout_s:g} s")


class IdleTimeoutError(ReplyTimeoutError):
    """A reply that had begun did not go on."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the reply had begun, and nothing more came for {timeout_s:g} s")


class ConnectTimeoutError(ReplyTimeoutError):
    """There was no connection in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no connection within {timeout_s:g} s")


class BrokenConnectionError(Exception):
    """The endpoint was not reached, or went away."""

    def __init__(self) -> None:
        super().__init__("Connection error.")


class EndpointError(Exception):
    """What an endpoint says of its failure: `said` is its error object, its text, or None."""

    def __init__(self, message: str, said: object) -> None:
        super().__init__(message)
        self.said = said

    @property
    def code(self) -> str:
        """The endpoint's own word for the kind of failure; "" where it has none."""
        return str(self.said.get("code") or "") if isinstance(self.said, dict) else ""


class StatusError(EndpointError):
    """A refusal by its HTTP status, with the wish for the next try that came with it."""

    def __init__(self, status: int, body: object, retry_after_s: float | None = None) -> None:
        said = body.get("error", body) if isinstance(body, dict) else body
        message = said.get("message") if isinstance(said, dict) else None
        super().__init__(f"Error code: {status}{f' - {message}' if isinstance(message, str) and message else ''}", said)
        self.status, self.retry_after_s = status, retry_after_s


class StreamedError(EndpointError):
    """A failure in the middle of a stream."""

    def __init__(self, said: object) -> None:
        message = said.get("message") if isinstance(said, dict) else None
        super().__init__(
            message if isinstance(message, str) and message else "An error occurred during streaming", said
        )


def describe_failure(error: Exception, endpoint: Endpoint, *, begun: bool = False) -> ProviderFailure:
    """Turn an exception of one call into a typed failure; `begun` says that a part of the reply had come."""
    where = "the embedded model" if endpoint.embedded else _CREDENTIALS.sub("//", endpoint.base_url)
    where = where or "the OpenAI endpoint"
    kind = _kind(error)
    if begun and kind in _BROKEN_OFF:
        kind = ProviderErrorKind.INCOMPLETE_STREAM
    detail = _without_secrets(_detail(error), endpoint.api_key.get_secret_value())[:_LONGEST_DETAIL]
    wish = error.retry_after_s if isinstance(error, StatusError) else None
    return ProviderFailure(
        kind=kind,
        message=_MESSAGES[kind].format(where=where, detail=detail, variable=endpoint.key_variable),
        retry_after_s=wish,
    )


_MESSAGES = {
    ProviderErrorKind.RATE_LIMITED: "{where} says: too many requests ({detail}).",
    ProviderErrorKind.TIMEOUT: "{where} did not answer in time ({detail}).",
    ProviderErrorKind.CONNECTION: "{where} cannot be reached ({detail}). Is the address right and the server running?",
    ProviderErrorKind.SERVER_ERROR: "{where} failed ({detail}).",
    ProviderErrorKind.INCOMPLETE_STREAM: "The reply of {where} broke off ({detail}).",
    ProviderErrorKind.AUTHENTICATION: "{where} refuses the key: check {variable} ({detail}).",
    ProviderErrorKind.BAD_REQUEST: "{where} refuses the request ({detail}).",
    ProviderErrorKind.CONTEXT_OVERFLOW: "The conversation is longer than the model's window at {where} ({detail}).",
    ProviderErrorKind.MODEL_UNAVAILABLE: "{where} does not have this model ({detail}). Choose one with --model.",
}


_STATUSES = {
    401: ProviderErrorKind.AUTHENTICATION,
    403: ProviderErrorKind.AUTHENTICATION,
    404: ProviderErrorKind.MODEL_UNAVAILABLE,
    429: ProviderErrorKind.RATE_LIMITED,
}


_UNPAID = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Refusals with 429 that do not pass: the key's account has nothing left. Source: OpenAI's error codes."""


def _kind(error: Exception) -> ProviderErrorKind:
    if isinstance(error, ReplyTimeoutError | httpx2.TimeoutException):
        return ProviderErrorKind.TIMEOUT
    if isinstance(error, BrokenConnectionError | httpx2.HTTPError):
        return ProviderErrorKind.CONNECTION
    if isinstance(error, EndpointError) and error.code in _UNPAID:
        return ProviderErrorKind.AUTHENTICATION
    status = error.status if isinstance(error, StatusError) else None
    if status in _STATUSES:
        return _STATUSES[status]
    if isinstance(error, EndpointError) and _is_overflow(error):
        return ProviderErrorKind.CONTEXT_OVERFLOW
    server = status is None or status >= 500 or status in (408, 409)
    return ProviderErrorKind.SERVER_ERROR if server else ProviderErrorKind.BAD_REQUEST


def _is_overflow(error: EndpointError) -> bool:
    return error.code in {"context_length_exceeded", "exceed_context_size_error"} or bool(_OVERFLOW.search(str(error)))


def _detail(error: Exception) -> str:
    said = error.said if isinstance(error, EndpointError) else None
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        return said["message"].splitlines()[0] if said["message"] else type(error).__name__
    text = str(error).strip().splitlines()
    known = (EndpointError, ReplyTimeoutError, BrokenConnectionError, httpx2.HTTPError)
    if isinstance(error, known) and text:
        return text[0]
    return f"it sent no chat completion: {text[0]}" if text else type(error).__name__


def _without_secrets(text: str, key: str) -> str:
    """Endpoints quote the key that they refuse. Anything shorter than four characters is no key."""
    return _SECRET.sub("***", text.replace(key, "***") if len(key) > 3 else text)
