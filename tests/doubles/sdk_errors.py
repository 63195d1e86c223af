"""The exceptions that SDKs of providers raise: made by the SDKs themselves, of a status, headers and a body.

`sdk_error` gives the one that a provider of this kind of failure causes in its client.
"""

import json
from functools import cache
from typing import Any, Final

import anthropic
import httpx2
import openai

from mendgraph.nodes.records import JsonMap, ProviderErrorKind as Kind, ProviderFailure
from tests.providers.openai_rules import openai_error

URL: Final = "http://llm.test/v1"


@cache
def _client(sdk: str) -> Any:
    return openai.AsyncOpenAI(api_key="k") if sdk == "openai" else anthropic.AsyncAnthropic(api_key="k")


def status_error(
    status: int, body: JsonMap | str | None = None, headers: dict[str, str] | None = None, sdk: str = "openai"
) -> Exception:
    """What the SDK raises for an answer with this status and body."""
    content = json.dumps(body) if isinstance(body, dict) else body or ""
    request = httpx2.Request("POST", URL)
    response = httpx2.Response(status, content=content, headers=headers, request=request)
    error: Exception = _client(sdk)._make_status_error_from_response(response)
    return error


def sdk_error(failure: ProviderFailure) -> Exception:
    """The exception that a client raises for this failure. A wish to wait is a header of the answer."""
    request = httpx2.Request("POST", URL)
    text = failure.message
    headers = {} if failure.retry_after_s is None else {"retry-after": f"{failure.retry_after_s:g}"}

    def anthropic_error(status: int, kind: str) -> Exception:
        body = {"type": "error", "error": {"type": kind, "message": text}}
        return status_error(status, body, headers, "anthropic")

    match failure.kind:
        case Kind.RATE_LIMITED:
            body = openai_error(text, code="rate_limit_exceeded", kind="requests")
            return status_error(429, body, headers)
        case Kind.SERVER_ERROR:
            return anthropic_error(529, "overloaded_error")
        case Kind.TIMEOUT:
            return openai.APITimeoutError(request=request)
        case Kind.CONNECTION:
            return _caused(openai.APIConnectionError(request=request), httpx2.ConnectError(text))
        case Kind.INCOMPLETE_STREAM:
            return httpx2.RemoteProtocolError(
                "peer closed connection without sending complete message body (incomplete chunked read)"
            )
        case Kind.AUTHENTICATION:
            return status_error(401, openai_error(text, code="invalid_api_key"), headers)
        case Kind.MODEL_UNAVAILABLE:
            return anthropic_error(404, "not_found_error")
        case Kind.CONTEXT_OVERFLOW:
            return status_error(400, openai_error(text, "messages", "context_length_exceeded"), headers)
        case Kind.CONTENT_FILTER:
            return status_error(400, openai_error(text, "prompt", "content_filter"), headers)
        case Kind.BAD_REQUEST:
            return status_error(400, openai_error(text), headers)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error
