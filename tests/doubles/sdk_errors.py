"""The exceptions that SDKs of providers raise: made by the SDKs themselves, of a status, headers and a body.

`sdk_error` gives the one that OpenAI's client raises for this kind of failure. An SDK is imported with its first error:
that takes up to 1.4 s, and each process with a scripted model imports this module.
"""

import json
from functools import cache
from typing import Any, Final

import httpx2

from mendgraph.nodes.records import JsonMap, ProviderErrorKind as Kind, ProviderFailure
from tests.providers.openai_rules import openai_error

URL: Final = "http://llm.test/v1"


@cache
def _client(sdk: str) -> Any:
    if sdk == "openai":
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key="k")

    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key="k")


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
    import openai

    request = httpx2.Request("POST", URL)
    text = failure.message
    headers = {} if failure.retry_after_s is None else {"retry-after": f"{failure.retry_after_s:g}"}

    match failure.kind:
        case Kind.RATE_LIMITED:
            body = openai_error(text, code="rate_limit_exceeded", kind="requests")
            return status_error(429, body, headers)
        case Kind.SERVER_ERROR:
            return status_error(503, openai_error(text, kind="server_error"), headers)
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
            return status_error(404, openai_error(text, "model", "model_not_found"), headers)
        case Kind.CONTEXT_OVERFLOW:
            return status_error(400, openai_error(text, "messages", "context_length_exceeded"), headers)
        case Kind.CONTENT_FILTER:
            return status_error(400, openai_error(text, "prompt", "content_filter"), headers)
        case Kind.BAD_REQUEST:
            return status_error(400, openai_error(text), headers)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error
