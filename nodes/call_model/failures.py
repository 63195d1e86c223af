"""What an endpoint's error means for a run: its kind, and one line that says what to do.

Keys never appear in these messages: only the name of the variable that holds one.
"""

import re

import httpx2

from nodes.call_model.connection_faults import cause_in_words, is_bad_certificate
from nodes.call_model.endpoint import Endpoint
from nodes.records import ProviderErrorKind, ProviderFailure

_OVERFLOW = re.compile(
    r"context.{0,20}(length|size|window|limit)|maximum (context|prompt length|model length)|max_model_len"
    r"|(prompt|input|request) is too long|prompt exceeds max|too many (input )?tokens|exceed\w* model token limit"
    r"|(prompt|input) token count.{0,40}exceeds|range of input length|exceed\w* the maximum number of (input )?tokens"
    r"|inputs\W{1,3}(tokens \+ \W?max_new_tokens\W{1,3}must be|must have less than)",
    re.IGNORECASE,
)
_NO_OVERFLOW = re.compile(
    r"tokens?[ _-]per[ _-](second|minute|hour|day)|\bTP[MD]\b|please wait"
    r"|(unknown|unrecognized|unsupported|unexpected) (request )?(parameter|argument|field|keyword)"
    r"|number of output tokens",
    re.IGNORECASE,
)
"""What a refusal says that speaks of the window's words, but not of a prompt beyond it: rates, names, the reply."""

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded"}
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


def describe_failure(
    error: Exception, endpoint: Endpoint, *, begun: bool = False, proxied: bool = False
) -> ProviderFailure:
    """Turn an exception of one call into a typed failure; `begun` says that a part of the reply had come.

    `proxied` says that a proxy of the environment was to reach the endpoint.
    """
    where = "the embedded model" if endpoint.embedded else _CREDENTIALS.sub("//", endpoint.base_url)
    where = where or "the OpenAI endpoint"
    kind = _kind(error)
    if begun and kind in _BROKEN_OFF:
        kind = ProviderErrorKind.INCOMPLETE_STREAM
    detail = _detail(error)
    if proxied and kind is ProviderErrorKind.CONNECTION:
        detail += "; the way there leads through a proxy of the environment"
    detail = _without_secrets(detail, endpoint.api_key.get_secret_value())[:_LONGEST_DETAIL]
    wish = error.retry_after_s if isinstance(error, StatusError) else None
    template = _BAD_CERTIFICATE if is_bad_certificate(error) else _MESSAGES[kind]
    return ProviderFailure(
        kind=kind,
        message=template.format(where=where, detail=detail, variable=endpoint.key_variable),
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


_BAD_CERTIFICATE = "{where} cannot be trusted ({detail}). Is the address right? SSL_CERT_FILE names authorities."

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
        if is_bad_certificate(error):
            return ProviderErrorKind.MODEL_UNAVAILABLE
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
    said = str(error)
    return error.code in _OVERFLOW_CODES or (bool(_OVERFLOW.search(said)) and not _NO_OVERFLOW.search(said))


def _detail(error: Exception) -> str:
    if isinstance(error, BrokenConnectionError | httpx2.HTTPError) and (cause := cause_in_words(error)):
        return cause
    if isinstance(error, httpx2.LocalProtocolError):
        return type(error).__name__  # its text quotes what could not be sent
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
