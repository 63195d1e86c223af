import json
import socket
import ssl
from typing import Any

import anthropic
import httpx
import httpx2
import ollama
import openai
import pytest
from google.genai import errors as genai
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
    code: int, body: Any = None, headers: dict[str, str] | None = None, of: str = "openai", *, whole: bool = False
) -> Exception:
    """What this SDK raises where a request is refused; a map is the error inside, unless it is the `whole` body."""
    document = body if whole or not isinstance(body, dict) else {"error": body}
    return status_error(code, document, headers, of)


def google(code: int, message: str, state: str) -> Exception:
    body = {"error": {"code": code, "message": message, "status": state}}
    return genai.ClientError(code, body, httpx2.Response(code, json=body, headers={"retry-after": "3"}))


def mistral(code: int, body: Any) -> Exception:
    """As langchain-mistralai raises it."""
    request = httpx.Request("POST", "https://api.mistral.ai/v1/chat/completions")
    response = httpx.Response(code, json=body, headers={"Retry-After": "3"}, request=request)
    text = f"Error response {code} while fetching {request.url}: {json.dumps(body)}"
    return httpx.HTTPStatusError(text, request=request, response=response)


def bedrock(code: int, name: str, message: str) -> Exception:
    """Of botocore's design, which need not be here."""
    error = RuntimeError(f"An error occurred ({name}) when calling the ConverseStream operation: {message}")
    told = {"Error": {"Message": message, "Code": name}, "ResponseMetadata": {"HTTPStatusCode": code}}
    error.response = told  # type: ignore[attr-defined]
    return error


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "code": code}


def streamed(body: dict[str, Any], of: Any = openai) -> Exception:
    """A failure in the middle of a stream, which has no status."""
    made: Exception = of.APIError(str(body.get("message")), httpx2.Request("POST", URL), body=body)
    return made


def describe(raised: Exception, provider: Provider = ENDPOINT, *, begun: bool = False) -> ProviderFailure:
    return describe_failure(raised, provider, begun=begun)


NO_STATUS = httpx2.Request("POST", URL)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (httpx2.ReadTimeout("timed out"), "timeout", f"{URL} did not answer in time (timed out)."),
        (
            ReplyTimeoutError("no complete reply within 30 s"),
            "timeout",
            f"{URL} did not answer in time (no complete reply within 30 s).",
        ),
        (
            openai.APIConnectionError(request=NO_STATUS),
            "connection",
            f"{URL} cannot be reached (Connection error.). Is the address right and the server running?",
        ),
        (status(401, error("bad key")), "authentication", f"{URL} refuses the key: check OPENAI_API_KEY (bad key)."),
        (
            status(404, error("no m here")),
            "model_unavailable",
            f"{URL} does not have this model (no m here). Choose one with --model.",
        ),
        (
            status(429, error("no credit", "insufficient_quota")),
            "authentication",
            f"The account at {URL} has no credit left (no credit). Is its billing set up? The key is not wrong.",
        ),
        (status(429, error("slow\ndown")), "rate_limited", f"{URL} says: too many requests (slow)."),
        (
            status(422, {"detail": [{"loc": ["body", "stop"], "msg": "no"}]}, whole=True),
            "bad_request",
            f"{URL} refuses the request (body.stop: no).",
        ),
        (
            status(400, error("no", "content_filter")),
            "content_filter",
            f"{URL} refuses the request by its content filter (no). Say it in other words, or choose another model.",
        ),
        (
            status(400, error("This model's maximum context is 8 tokens")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (This model's maximum context is 8 tokens).",
        ),
        (
            status(500, error("x", "exceed_context_size_error")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (x).",
        ),
        (status(500, "<html>\nbroken"), "server_error", f"{URL} failed (<html>)."),
        (streamed(error("overloaded")), "server_error", f"{URL} failed (overloaded)."),
        (
            json.JSONDecodeError("Expecting value", "x", 0),
            "server_error",
            f"{URL} failed (it sent no chat completion: Expecting value: line 1 column 1 (char 0)).",
        ),
        (KeyError("choices"), "server_error", f"{URL} failed (it sent no chat completion: 'choices')."),
    ],
)
def test_each_error_has_its_kind_and_says_what_to_do(raised: Exception, kind: str, message: str) -> None:
    assert describe(raised) == ProviderFailure(kind=ProviderErrorKind(kind), message=message)


BUSY, GONE = {"type": "rate_limit_error", "message": "x"}, {"type": "overloaded_error", "message": "x"}


@pytest.mark.parametrize(
    ("raised", "kind", "detail", "wish"),
    [
        (status(429, BUSY, {"retry-after": "7"}, "anthropic"), "rate_limited", "(x)", 7.0),
        (status(529, GONE, of="anthropic"), "server_error", "(x)", None),
        (streamed({"error": BUSY}, anthropic), "rate_limited", "(x)", None),
        (streamed({"error": GONE}, anthropic), "server_error", "(x)", None),
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
    ],
)
def test_exceptions_of_each_package_say_the_same(raised: Exception, kind: str, detail: str, wish: float | None) -> None:
    failure = describe(raised, OWN)
    assert (failure.kind.value, failure.retry_after_s) == (kind, wish)
    assert "m through ChatOwn" in failure.message
    assert detail in failure.message


@pytest.mark.parametrize(
    ("status_code", "kind"),
    [
        *((code, "authentication") for code in (401, 402, 403)),
        (404, "model_unavailable"),
        (429, "rate_limited"),
        *((code, "server_error") for code in (408, 409, 500, 502, 503, 504, 529)),
        *((code, "bad_request") for code in (400, 405, 413, 422)),
    ],
)
def test_status_without_error_code_decides_kind(status_code: int, kind: str) -> None:
    assert describe(status(status_code, error("x"))).kind.value == kind


@pytest.mark.parametrize("status_code", [400, 403, 429, 500])
@pytest.mark.parametrize(
    ("error_code", "kind"),
    [
        ("insufficient_quota", "authentication"),
        ("billing_hard_limit_reached", "authentication"),
        ("content_filter", "content_filter"),
        ("content_policy_violation", "content_filter"),
        ("context_length_exceeded", "context_overflow"),
        ("exceed_context_size_error", "context_overflow"),
    ],
)
@pytest.mark.parametrize("field", ["code", "type"])
def test_error_code_decides_kind_whatever_the_status(status_code: int, error_code: str, kind: str, field: str) -> None:
    assert describe(status(status_code, {"message": "x", field: error_code})).kind.value == kind


@pytest.mark.parametrize(
    ("error_type", "kind"),
    [
        ("rate_limit_error", "rate_limited"),
        ("authentication_error", "authentication"),
        ("permission_error", "authentication"),
        ("not_found_error", "model_unavailable"),
        ("invalid_request_error", "bad_request"),
        ("overloaded_error", "server_error"),
        ("api_error", "server_error"),
    ],
)
def test_error_type_inside_a_stream_decides_kind(error_type: str, kind: str) -> None:
    raised = streamed({"error": {"type": error_type, "message": "x"}}, anthropic)
    assert describe(raised, OWN).kind.value == kind


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (langchain.ContextOverflowError("x"), "context_overflow"),
        (langchain.ModelTimeoutError("x"), "timeout"),
        (langchain.ModelAuthenticationError("x"), "authentication"),
        (langchain.ModelPermissionDeniedError("x"), "authentication"),
        (langchain.ModelNotFoundError("x"), "model_unavailable"),
        (langchain.ModelRateLimitError("x"), "rate_limited"),
        (langchain.ModelAPIError("x"), "server_error"),
        (langchain.ModelInvalidRequestError("x"), "bad_request"),
        (langchain.ModelConnectionError("x"), "connection"),
        (TimeoutError("x"), "timeout"),
        (httpx.ConnectTimeout("x"), "timeout"),
        (openai.APITimeoutError(request=NO_STATUS), "timeout"),
        (openai.APIConnectionError(request=NO_STATUS), "connection"),
        (httpx.ReadError("x"), "connection"),
        (OSError("x"), "connection"),
        (RuntimeError("x"), "bad_request"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_exception_class_without_status_decides_kind(raised: Exception, kind: str) -> None:
    assert describe(raised, OWN).kind.value == kind


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (httpx2.ReadError("x"), "incomplete_stream"),
        (streamed(error("x")), "incomplete_stream"),
        (status(500, error("x")), "incomplete_stream"),
        (httpx2.ReadTimeout("x"), "timeout"),
        (streamed({"error": BUSY}, anthropic), "rate_limited"),
        (streamed({"error": {"type": "invalid_request_error", "message": "x"}}, anthropic), "bad_request"),
    ],
)
def test_outage_after_the_reply_began_is_an_incomplete_stream(raised: Exception, kind: str) -> None:
    assert describe(raised, begun=True).kind.value == kind


def test_long_detail_is_cut_after_secrets_are_removed() -> None:
    key = "hunter2-hunter2"
    provider = Provider(URL, keys=(key,), endpoint=True)
    message = describe(status(500, error("x" * 295 + key + "y" * 1_000)), provider).message
    assert message == f"{URL} failed ({'x' * 295}***yy)."


def test_failure_that_is_known_already_is_told_as_it_is() -> None:
    failure = ProviderFailure(kind=ProviderErrorKind.CONTENT_FILTER, message="As it is.", retry_after_s=3.0)
    assert describe(CallFailedError(failure), OWN, begun=True) == failure


@pytest.mark.parametrize(
    "said",
    [
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Input is too long for requested model.",
        "prompt token count of 65000 exceeds the limit of 64000",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
        "Range of input length should be [1, 30720]",
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        "Your request exceeded model token limit: 262144 (requested: 300000)",
        "prompt is too long: 212345 tokens > 200000 maximum",
    ],
)
def test_each_way_to_say_that_a_prompt_is_too_long(said: str) -> None:
    assert describe(status(400, error(said))).kind is ProviderErrorKind.CONTEXT_OVERFLOW
    assert describe(ValueError(said), OWN).kind is ProviderErrorKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (400, "max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens for m", "bad_request"),
        (400, "Unrecognized request argument supplied: context_size", "bad_request"),
        (400, "Request exceeds the maximum number of tokens per minute", "bad_request"),
        (429, "Too many tokens, please wait before trying again.", "rate_limited"),
    ],
)
def test_what_speaks_of_tokens_and_is_no_overflow(code: int, said: str, kind: str) -> None:
    assert describe(status(code, error(said))).kind is ProviderErrorKind(kind)


def test_endpoint_is_named_without_credentials() -> None:
    provider = Provider("https://me:p@ss@llm.test/v1", "OPENAI_API_KEY")
    assert describe(status(500, error("x")), provider).message == "https://llm.test/v1 failed (x)."


@pytest.mark.parametrize(
    "said",
    [
        "Incorrect API key provided: sk-abcd**********wxyz.",
        "header was Authorization: Bearer eyJhbGciOi",
        "unknown token hunter2-hunter2",
    ],
)
def test_endpoint_that_quotes_the_key_is_not_quoted(said: str) -> None:
    message = describe(status(401, error(said)), Provider(URL, keys=("hunter2-hunter2",))).message
    assert "***" in message
    assert not any(secret in message for secret in ("sk-abcd", "wxyz", "eyJ", "hunter2"))


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (
            {"HTTP_PROXY": "proxy:1", "no_proxy": "x", "SSL_CERT_FILE": "/hunter2", "PATH": "/bin", "ALL_PROXY": ""},
            ValueError("hunter2"),
            "No connection can be set up (ValueError): look at HTTP_PROXY, SSL_CERT_FILE, no_proxy.",
        ),
        (
            {"ALL_PROXY": "socks5://me:hunter2@proxy:1"},
            ImportError("Using SOCKS proxy"),
            "No connection can be set up (a SOCKS proxy needs the package `socksio`): look at ALL_PROXY.",
        ),
        ({}, OSError(), "No connection can be set up (OSError): look at the proxy settings."),
    ],
)
def test_variable_is_named_and_never_quoted(environment: dict[str, str], error: Exception, message: str) -> None:
    kind = ProviderErrorKind.MODEL_UNAVAILABLE
    assert setup_fault(environment, error) == ProviderFailure(kind=kind, message=message, sent=False)


def refused(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = why
    return error


@pytest.mark.parametrize(
    ("cause", "words", "kind"),
    [
        (refused("certificate has expired"), "its TLS certificate is refused: certificate has expired", "bad"),
        (ssl.SSLError(1, "record layer failure"), "the TLS handshake failed", "connection"),
        (socket.gaierror(-2, "Name or service not known"), "its name is not found", "connection"),
        (ConnectionRefusedError(111, "refused"), "the connection is refused", "connection"),
        (httpx2.ProxyError("407 Proxy Authentication Required"), "the proxy does not let it through", "connection"),
    ],
)
def test_cause_is_found_however_it_is_wrapped(cause: Exception, words: str, kind: str) -> None:
    caused = httpx2.ConnectError("failed")
    caused.__cause__ = cause
    while_handling = httpx2.ConnectError("failed")
    while_handling.__context__ = cause
    grouped = OSError("All connection attempts failed")
    grouped.__cause__ = ExceptionGroup("several", [ValueError(), cause])
    for error in (cause, caused, while_handling, grouped):
        failure = describe(error)
        assert f"({words})" in failure.message
        assert failure.kind.value == ("model_unavailable" if kind == "bad" else kind)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("Tue, 14 Nov 2023 22:13:30 -0000", None),
        ("", None),
        ("soon", None),
        ("inf", None),
        ("9" * 5_000, None),
    ],
)
def test_wish_is_a_number_of_seconds(value: str, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds
