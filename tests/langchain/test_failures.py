import json
import socket
import ssl
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import httpx
import httpx2
import openai
import pytest
from langchain_core import exceptions as langchain

from mendgraph.graph.langchain.failures import (
    CallFailedError,
    Provider,
    ReplyTimeoutError,
    describe_failure,
    retry_after_s,
    setup_fault,
)
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.sdk_errors import URL, status_error

ENDPOINT = Provider(URL, "OPENAI_API_KEY", endpoint=True)
OWN = Provider("m through ChatOwn", "OWN_API_KEY")


def status(
    code: int,
    body: Any = None,
    headers: dict[str, str] | None = None,
    of: str = "openai",
    *,
    is_whole_body: bool = False,
) -> Exception:
    """What this SDK raises for a refused request; a map is the error inside, unless it `is_whole_body`."""
    document = body if is_whole_body or not isinstance(body, dict) else {"error": body}
    return status_error(code, document, headers, of)


def google(code: int, message: str, state: str) -> Exception:
    from google.genai import errors as genai

    body = {"error": {"code": code, "message": message, "status": state}}
    return genai.ClientError(code, body, httpx2.Response(code, json=body, headers={"retry-after": "3"}))


def mistral(code: int, body: Any) -> Exception:
    """As langchain-mistralai raises it."""
    request = httpx.Request("POST", "https://api.mistral.ai/v1/chat/completions")
    response = httpx.Response(code, json=body, headers={"Retry-After": "3"}, request=request)
    text = f"Error response {code} while fetching {request.url}: {json.dumps(body)}"
    return httpx.HTTPStatusError(text, request=request, response=response)


def bedrock(code: int, name: str, message: str) -> Exception:
    """As botocore raises it; botocore need not be installed."""
    error = RuntimeError(f"An error occurred ({name}) when calling the ConverseStream operation: {message}")
    response = {"Error": {"Message": message, "Code": name}, "ResponseMetadata": {"HTTPStatusCode": code}}
    error.response = response  # type: ignore[attr-defined]
    return error


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "code": code}


def stream_error(body: dict[str, Any], of: str = "openai") -> Exception:
    """A failure in the middle of a stream, which has no status."""
    error: Exception = import_module(of).APIError(str(body.get("message")), httpx2.Request("POST", URL), body=body)
    return error


def describe(raised: Exception, provider: Provider = ENDPOINT, *, reply_started: bool = False) -> ProviderFailure:
    return describe_failure(raised, provider, reply_started=reply_started)


NO_STATUS = httpx2.Request("POST", URL)


MESSAGES: list[tuple[Exception, str, str]] = [
    (httpx2.ReadTimeout("timed out"), "timeout", "did not answer in time (timed out)."),
    (ReplyTimeoutError("no reply within 30 s"), "timeout", "did not answer in time (no reply within 30 s)."),
    (
        openai.APIConnectionError(request=NO_STATUS),
        "connection",
        "cannot be reached (Connection error.). Is the address right and the server running?",
    ),
    (status(401, error("bad key")), "authentication", "refuses the key: check OPENAI_API_KEY (bad key)."),
    (
        status(404, error("no m here")),
        "model_unavailable",
        "does not have this model (no m here). Choose one with --model.",
    ),
    (status(429, error("slow\ndown")), "rate_limited", "says: too many requests (slow)."),
    (
        status(422, {"detail": [{"loc": ["body", "stop"], "msg": "no"}]}, is_whole_body=True),
        "bad_request",
        "refuses the request (body.stop: no).",
    ),
    (
        status(400, error("no", "content_filter")),
        "content_filter",
        "refuses the request by its content filter (no). Rephrase the request, or choose another model.",
    ),
    (status(500, "<html>\nbroken"), "server_error", "failed (<html>)."),
    (stream_error(error("overloaded")), "server_error", "failed (overloaded)."),
    (
        json.JSONDecodeError("Expecting value", "x", 0),
        "server_error",
        "failed (it sent no chat completion: Expecting value: line 1 column 1 (char 0)).",
    ),
    (KeyError("choices"), "server_error", "failed (it sent no chat completion: 'choices')."),
]


def test_failure_has_its_kind_and_a_message_with_the_remedy(subtests: pytest.Subtests) -> None:
    for raised, kind, message in MESSAGES:
        with subtests.test(message=message):
            assert describe(raised) == ProviderFailure(kind=ProviderErrorKind(kind), message=f"{URL} {message}")
    credit = f"The account at {URL} has no credit left (no credit). Is its billing set up? The key is not wrong."
    assert describe(status(429, error("no credit", "insufficient_quota"))).message == credit
    window = f"The conversation is longer than the model's window at {URL} (x)."
    assert describe(status(500, error("x", "exceed_context_size_error"))).message == window


BUSY, GONE = {"type": "rate_limit_error", "message": "x"}, {"type": "overloaded_error", "message": "x"}


def exceptions_of_packages() -> list[tuple[Exception, str, str, float | None]]:
    """Exceptions, with the kind, the detail and the wait of their failure."""
    import ollama

    return [
        (status(429, BUSY, {"retry-after": "7"}, "anthropic"), "rate_limited", "(x)", 7.0),
        (status(529, GONE, of="anthropic"), "server_error", "(x)", None),
        (stream_error({"error": BUSY}, "anthropic"), "rate_limited", "(x)", None),
        (stream_error({"error": GONE}, "anthropic"), "server_error", "(x)", None),
        (google(429, "Quota", "RESOURCE_EXHAUSTED"), "rate_limited", "(Quota)", 3.0),
        (google(400, "API key not valid. Pass one.", "INVALID_ARGUMENT"), "authentication", "not valid", 3.0),
        (
            status(
                400, {"type": "invalid", "message": "max_tokens is odd: https://x.test/#max-tokens-and-context-window"}
            ),
            "bad_request",
            "is odd",
            None,
        ),
        (google(400, "input token count (9) exceeds 8", "INVALID_ARGUMENT"), "context_overflow", "9", 3.0),
        (ollama.ResponseError('{"error": "no model m"}', 404), "model_unavailable", "(no model m)", None),
        (ConnectionError("Failed to connect to Ollama."), "connection", "Failed to connect", None),
        (mistral(422, {"detail": [{"loc": ["body", "a"], "msg": "No"}]}), "bad_request", "body.a: No", 3.0),
        (mistral(429, {"message": "Rate limit exceeded"}), "rate_limited", "(Rate limit exceeded)", 3.0),
        (httpx.RemoteProtocolError("peer closed"), "connection", "(peer closed)", None),
        (bedrock(400, "ValidationException", "Input is too long."), "context_overflow", "too long", None),
        (langchain.ContextOverflowError("too much"), "context_overflow", "too much", None),
        (langchain.ModelRateLimitError("slow"), "rate_limited", "slow", None),
        (langchain.ModelPermissionDeniedError("no"), "authentication", "no", None),
        (ZeroDivisionError("by zero"), "bad_request", "(ZeroDivisionError: by zero)", None),
    ]


def test_exceptions_of_all_provider_packages_are_classified_alike(subtests: pytest.Subtests) -> None:
    for raised, kind, detail, wait_s in exceptions_of_packages():
        with subtests.test(raised=raised):
            failure = describe(raised, OWN)
            assert (failure.kind.value, failure.retry_after_s) == (kind, wait_s)
            assert ("m through ChatOwn" in failure.message, detail in failure.message) == (True, True)


STATUSES: dict[str, tuple[int, ...]] = {
    "authentication": (401, 402, 403),
    "model_unavailable": (404,),
    "rate_limited": (429,),
    "server_error": (408, 409, 500, 502, 503, 504, 529),
    "bad_request": (400, 405, 413, 422),
}
CODES = {
    "authentication": ("insufficient_quota", "billing_hard_limit_reached"),
    "content_filter": ("content_filter", "content_policy_violation"),
    "context_overflow": ("context_length_exceeded", "exceed_context_size_error"),
}
TYPES_IN_A_STREAM = {
    "rate_limited": ("rate_limit_error",),
    "authentication": ("authentication_error", "permission_error"),
    "model_unavailable": ("not_found_error",),
    "bad_request": ("invalid_request_error",),
    "server_error": ("overloaded_error", "api_error"),
}
CLASSES: dict[str, tuple[Exception, ...]] = {
    "context_overflow": (langchain.ContextOverflowError("x"),),
    "timeout": (
        langchain.ModelTimeoutError("x"),
        TimeoutError("x"),
        httpx.ConnectTimeout("x"),
        openai.APITimeoutError(request=NO_STATUS),
    ),
    "authentication": (langchain.ModelAuthenticationError("x"), langchain.ModelPermissionDeniedError("x")),
    "model_unavailable": (langchain.ModelNotFoundError("x"),),
    "rate_limited": (langchain.ModelRateLimitError("x"),),
    "server_error": (langchain.ModelAPIError("x"),),
    "bad_request": (langchain.ModelInvalidRequestError("x"), RuntimeError("x")),
    "connection": (
        langchain.ModelConnectionError("x"),
        openai.APIConnectionError(request=NO_STATUS),
        httpx.ReadError("x"),
        OSError("x"),
    ),
}


def kinds(raised: Iterable[Exception], *, reply_started: bool = False) -> set[str]:
    """The kinds of these failures."""
    return {describe(error, OWN, reply_started=reply_started).kind.value for error in raised}


def test_status_without_error_code_decides_the_kind() -> None:
    for kind, codes in STATUSES.items():
        assert kinds(status(code, error("x")) for code in codes) == {kind}


def test_error_code_decides_the_kind_whatever_the_status() -> None:
    places = [(code, field) for code in (400, 403, 429, 500) for field in ("code", "type")]
    for kind, words in CODES.items():
        refusals = (status(code, {"message": "x", field: word}) for code, field in places for word in words)
        assert kinds(refusals) == {kind}


def test_error_type_inside_a_stream_decides_the_kind() -> None:
    for kind, words in TYPES_IN_A_STREAM.items():
        assert kinds(stream_error({"error": {"type": word, "message": "x"}}, "anthropic") for word in words) == {kind}


def test_message_of_an_error_inside_a_stream_outweighs_its_vague_type() -> None:
    words = {
        "prompt is too long: 210000 tokens > 200000 maximum": "context_overflow",
        "API key not valid. Please pass a valid one.": "authentication",
        "stop: no such field": "bad_request",
    }
    for message, kind in words.items():
        assert kinds([stream_error({"type": "invalid_request_error", "message": message})]) == {kind}


def test_exception_class_without_status_decides_the_kind() -> None:
    for kind, raised in CLASSES.items():
        assert kinds(raised) == {kind}


def test_outage_after_the_first_token_is_an_incomplete_stream() -> None:
    outages = (httpx2.ReadError("x"), stream_error(error("x")), status(500, error("x")))
    assert kinds(outages, reply_started=True) == {"incomplete_stream"}
    assert kinds([httpx2.ReadTimeout("x")], reply_started=True) == {"timeout"}
    assert kinds([stream_error({"error": BUSY}, "anthropic")], reply_started=True) == {"rate_limited"}
    refused = {"error": {"type": "invalid_request_error", "message": "x"}}
    assert kinds([stream_error(refused, "anthropic")], reply_started=True) == {"bad_request"}


def test_long_detail_is_truncated_after_redaction() -> None:
    key = "hunter2-hunter2"
    provider = Provider(URL, keys=(key,), endpoint=True)
    message = describe(status(500, error("x" * 295 + key + "y" * 1_000)), provider).message
    assert message == f"{URL} failed ({'x' * 295}***yy)."


def test_known_failure_is_passed_on_unchanged() -> None:
    failure = ProviderFailure(kind=ProviderErrorKind.CONTENT_FILTER, message="As it is.", retry_after_s=3.0)
    assert describe(CallFailedError(failure), OWN, reply_started=True) == failure


OVERFLOWS = (
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum context is 8 tokens",
    "Input is too long for requested model.",
    "prompt token count of 65000 exceeds the limit of 64000",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
    "Range of input length should be [1, 30720]",
    "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
    "Your request exceeded model token limit: 262144 (requested: 300000)",
    "prompt is too long: 212345 tokens > 200000 maximum",
)


def test_context_overflow_is_recognized_in_the_words_of_each_provider(subtests: pytest.Subtests) -> None:
    for words in OVERFLOWS:
        with subtests.test(words=words):
            assert kinds([status(400, error(words)), ValueError(words)]) == {"context_overflow"}
    for words in (
        "max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens for m",
        "Unrecognized request argument supplied: context_size",
        "Request exceeds the maximum number of tokens per minute",
    ):
        assert kinds([status(400, error(words))]) == {"bad_request"}
    assert kinds([status(429, error("Too many tokens, please wait before trying again."))]) == {"rate_limited"}


def test_credentials_and_keys_are_not_quoted_in_failures() -> None:
    provider = Provider("https://me:p@ss@llm.test/v1", "OPENAI_API_KEY")
    assert describe(status(500, error("x")), provider).message == "https://llm.test/v1 failed (x)."
    for words in (
        "Incorrect API key provided: sk-abcd**********wxyz.",
        "header was Authorization: Bearer eyJhbGciOi",
        "unknown token hunter2-hunter2",
    ):
        message = describe(status(401, error(words)), Provider(URL, keys=("hunter2-hunter2",))).message
        assert "***" in message
        assert not any(secret in message for secret in ("sk-abcd", "wxyz", "eyJ", "hunter2"))


SETUPS: list[tuple[dict[str, str], Exception, str]] = [
    (
        {"HTTP_PROXY": "proxy:1", "no_proxy": "x", "SSL_CERT_FILE": "/hunter2", "PATH": "/bin", "ALL_PROXY": ""},
        ValueError("hunter2"),
        "(ValueError): check HTTP_PROXY, SSL_CERT_FILE, no_proxy.",
    ),
    (
        {"ALL_PROXY": "socks5://me:hunter2@proxy:1"},
        ImportError("Using SOCKS proxy"),
        "(a SOCKS proxy needs the package `socksio`): check ALL_PROXY.",
    ),
    ({}, OSError(), "(OSError): check the proxy settings."),
]


def test_invalid_variable_is_named_and_not_quoted() -> None:
    for environment, raised, words in SETUPS:
        message = f"No connection can be set up {words}"
        failure = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)
        assert setup_fault(environment, raised) == failure


def certificate_error(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = why
    return error


CAUSES: list[tuple[Exception, str, str]] = [
    (
        certificate_error("certificate has expired"),
        "its TLS certificate is refused: certificate has expired",
        "model_unavailable",
    ),
    (ssl.SSLError(1, "record layer failure"), "the TLS handshake failed", "connection"),
    (socket.gaierror(-2, "Name or service not known"), "its host name was not found", "connection"),
    (ConnectionRefusedError(111, "refused"), "the connection was refused", "connection"),
    (httpx2.ProxyError("407 Proxy Authentication Required"), "the proxy does not let it through", "connection"),
]


def test_cause_of_a_connection_error_is_found_however_it_is_wrapped(subtests: pytest.Subtests) -> None:
    for cause, words, kind in CAUSES:
        caused, while_handling = httpx2.ConnectError("failed"), httpx2.ConnectError("failed")
        caused.__cause__ = cause
        while_handling.__context__ = cause
        grouped = OSError("All connection attempts failed")
        grouped.__cause__ = ExceptionGroup("several", [ValueError(), cause])
        for raised in (cause, caused, while_handling, grouped):
            with subtests.test(words=words, raised=raised):
                failure = describe(raised)
                assert (f"({words})" in failure.message, failure.kind.value) == (True, kind)


def test_retry_after_is_read_as_a_number_of_seconds() -> None:
    assert (retry_after_s(" 1.5 "), retry_after_s("-3")) == (1.5, 0.0)
    odd = ("Tue, 14 Nov 2023 22:13:30 -0000", "", "soon", "inf", "9" * 5_000)
    assert [retry_after_s(value) for value in odd] == [None] * 5
