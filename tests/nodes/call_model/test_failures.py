import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, strategies as st
from pydantic import SecretStr

from nodes.call_model.endpoint import Endpoint
from nodes.call_model.failures import TotalTimeoutError, describe_failure
from nodes.records import ProviderErrorKind, ProviderFailure

URL = "http://llm.test/v1"
ENDPOINT = Endpoint(model="m", base_url=URL)
REQUEST = httpx2.Request("POST", f"{URL}/chat/completions")


def status(code: int, body: Any = None, **headers: str) -> openai.APIStatusError:
    """The error as the SDK makes it: `body` is the inner error object, or text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(code, request=REQUEST, headers=named)
    kinds: dict[int, type[openai.APIStatusError]] = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
    }
    message = body if isinstance(body, str) else f"Error code: {code}{f' - {body}' if body else ''}"
    return kinds.get(code, openai.APIStatusError)(message, response=response, body=body)


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "code": code}


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (openai.APITimeoutError(REQUEST), "timeout", f"{URL} did not answer in time (Request timed out.)."),
        (TotalTimeoutError(30.0), "timeout", f"{URL} did not answer in time (no complete reply within 30 s)."),
        (
            openai.APIConnectionError(request=REQUEST),
            "connection",
            f"{URL} cannot be reached (Connection error.). Is the address right and the server running?",
        ),
        (
            httpx2.ConnectError("no route"),
            "connection",
            f"{URL} cannot be reached (no route). Is the address right and the server running?",
        ),
        (status(401, error("bad key")), "authentication", f"{URL} refuses the key: check OPENAI_API_KEY (bad key)."),
        (status(403, error("no")), "authentication", f"{URL} refuses the key: check OPENAI_API_KEY (no)."),
        (
            status(404, error("no m here")),
            "model_unavailable",
            f"{URL} does not have this model (no m here). Choose one with --model.",
        ),
        (status(429, error("slow\ndown")), "rate_limited", f"{URL} says: too many requests (slow)."),
        (status(400, error("temperature?")), "bad_request", f"{URL} refuses the request (temperature?)."),
        (status(422, error("no")), "bad_request", f"{URL} refuses the request (no)."),
        (
            status(400, error("This model's maximum context is 8 tokens")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (This model's maximum context is 8 tokens).",
        ),
        (
            status(400, error("too big", "context_length_exceeded")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (too big).",
        ),
        (
            status(500, error("x", "exceed_context_size_error")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (x).",
        ),
        (status(500, "<html>\nbroken"), "server_error", f"{URL} failed (<html>)."),
        (status(503, error("")), "server_error", f"{URL} failed (APIStatusError)."),
        (status(408), "server_error", f"{URL} failed (Error code: 408)."),
        (status(409), "server_error", f"{URL} failed (Error code: 409)."),
        (openai.APIError("overloaded", REQUEST, body=None), "server_error", f"{URL} failed (overloaded)."),
        (
            json.JSONDecodeError("Expecting value", "x", 0),
            "server_error",
            f"{URL} failed (it sent no chat completion: Expecting value: line 1 column 1 (char 0)).",
        ),
        (ValueError(), "server_error", f"{URL} failed (ValueError)."),
    ],
)
def test_each_error_has_its_kind_and_says_what_to_do(raised: Exception, kind: str, message: str) -> None:
    assert describe_failure(raised, ENDPOINT) == ProviderFailure(kind=ProviderErrorKind(kind), message=message)


@pytest.mark.parametrize(
    ("raised", "detail"),
    [
        (openai.APIConnectionError(request=REQUEST), "Connection error."),
        (ValueError("bad"), "it sent no chat completion: bad"),
        (status(500, error("x")), "x"),
    ],
)
def test_a_reply_that_had_begun_broke_off(raised: Exception, detail: str) -> None:
    assert describe_failure(raised, ENDPOINT, begun=True) == ProviderFailure(
        kind=ProviderErrorKind.INCOMPLETE_STREAM, message=f"The reply of {URL} broke off ({detail})."
    )


def test_a_timeout_in_the_middle_is_a_timeout() -> None:
    failure = describe_failure(openai.APITimeoutError(REQUEST), ENDPOINT, begun=True)
    assert failure.kind is ProviderErrorKind.TIMEOUT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0.25", 0.25), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("", None)],
)
def test_the_endpoints_wish_is_kept(value: str, seconds: float | None) -> None:
    failure = describe_failure(status(429, error("later"), retry_after=value), ENDPOINT)
    assert failure.retry_after_s == seconds


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        (Endpoint(model="m", embedded=True, base_url=URL), "the embedded model"),
        (Endpoint(model="m"), "the OpenAI endpoint"),
        (Endpoint(model="m", base_url="https://me:p@ss@llm.test/v1"), "https://llm.test/v1"),
    ],
)
def test_the_endpoint_is_named_without_credentials(endpoint: Endpoint, where: str) -> None:
    assert describe_failure(status(500, error("x")), endpoint).message == f"{where} failed (x)."


@pytest.mark.parametrize(
    "said",
    [
        "Incorrect API key provided: sk-abcd**********wxyz.",
        "header was Authorization: Bearer eyJhbGciOi",
        "unknown token hunter2-hunter2",
    ],
)
def test_an_endpoint_that_quotes_the_key_is_not_quoted(said: str) -> None:
    endpoint = Endpoint(model="m", base_url=URL, api_key=SecretStr("hunter2-hunter2"))
    message = describe_failure(status(401, error(said)), endpoint).message
    assert "***" in message
    assert not any(secret in message for secret in ("sk-abcd", "wxyz", "eyJ", "hunter2"))


@given(st.text("0123456789abcdef-_", min_size=4, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_the_key_never_shows(key: str, before: str, after: str) -> None:
    endpoint = Endpoint(model="m", api_key=SecretStr(key))
    assert key not in describe_failure(status(401, error(f"{before}{key}{after}")), endpoint).message


@pytest.mark.parametrize(
    ("key", "message"), [("sent", f"{URL} failed (what was ***)."), ("was", f"{URL} failed (what was sent).")]
)
def test_three_characters_are_no_key(key: str, message: str) -> None:
    endpoint = Endpoint(model="m", base_url=URL, api_key=SecretStr(key))
    assert describe_failure(status(500, error("what was sent")), endpoint).message == message


def test_a_long_detail_is_cut() -> None:
    assert describe_failure(status(500, error("x" * 1_000)), ENDPOINT).message == f"{URL} failed ({'x' * 300})."
